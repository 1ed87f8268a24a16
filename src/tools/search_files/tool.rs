//! Arguments and result of `search_files`.

use ignore::overrides::OverrideBuilder;
use serde_json::{Map, Value, json};

use super::{Found, MOST_RESULTS, Pattern, SearchRequest, Told, Wanted};
use crate::tools::builtin::{failure, text};
use crate::tools::{CallContext, ToolSpec};

const DEFAULT_LIMIT: u64 = 50;
const MOST_CONTEXT: u64 = 100;

const DOC: &str = "Searches files on the target: lines by a regular expression, or files by name.

target=\"content\" searches the text files below `path` (or that one file) for lines that match
`pattern`, a regular expression in the dialect of ripgrep: no look-around, no backreferences; (?i)
in front ignores case; re.escape(text) finds the very text. target=\"files\" takes `pattern` as a
glob (*.py, src/**/test_*) and lists the files that fit, newest first. What .gitignore or .ignore
exclude, hidden files and binary files are left out, links are not followed; a file that is named as
`path` is searched in any case.

Returns a dict: `matches` (output_mode=\"content\": dicts of `path`, `line`, `content`, sorted by path
and line; with context=N also `before` and `after`, lists of lines), `files` (output_mode=
\"files_only\", or target=\"files\": paths), `counts` (output_mode=\"count\": path -> matching lines),
`total_count` (of all pages: matching lines, for files_only and target=\"files\" files) and `truncated`.
All are always there. When `truncated` is true, `hint` says which `offset` goes on. `hint` also says
why nothing could be found, `warnings` what could not be searched. A line of more than 2,000
characters is cut around its match. A failure has only `error`.";

pub(in crate::tools) fn spec() -> ToolSpec {
    ToolSpec {
        name: "search_files".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["pattern"],
            "properties": {
                "pattern": {
                    "type": "string",
                    "description": "a regular expression; with target=\"files\" a glob for names",
                },
                "target": {
                    "type": "string", "enum": ["content", "files"], "default": "content",
                    "description": "whether lines are searched, or names",
                },
                "path": {
                    "type": "string", "default": ".",
                    "description": "the folder to search below, or one file; a relative path starts at \
                                    the session's working directory, ~ is the home directory",
                },
                "file_glob": {
                    "type": ["string", "array", "null"], "items": {"type": "string"}, "default": null,
                    "description": "only files that fit: *.py, or several: *.py,*.md or a list; !tests/ \
                                    leaves out; one with a slash inside starts at path",
                },
                "limit": {
                    "type": "integer", "default": DEFAULT_LIMIT, "minimum": 1,
                    "description": "results at most",
                },
                "offset": {
                    "type": "integer", "default": 0, "minimum": 0,
                    "description": "results to leave out at first",
                },
                "output_mode": {
                    "type": "string", "enum": ["content", "files_only", "count"], "default": "content",
                    "description": "the lines, the files that hold one, or how many each file holds",
                },
                "context": {
                    "type": "integer", "default": 0, "minimum": 0, "maximum": MOST_CONTEXT,
                    "description": "lines before and after each match",
                },
            },
        }),
    }
}

pub(in crate::tools) async fn call(arguments: &Map<String, Value>, context: &CallContext) -> Value {
    let request = match request(arguments) {
        Ok(request) => request,
        Err(error) => return failure(error),
    };
    let asked = request.clone();
    match context.workspace.search(request, context.reply.as_ref()).await {
        Ok(found) => result(&asked, found),
        Err(error) => failure(error.to_string()),
    }
}

/// What is asked for, checked as far as it can be without the target.
fn request(arguments: &Map<String, Value>) -> Result<SearchRequest, String> {
    let given = |name: &str| arguments.get(name).and_then(Value::as_str);
    let number = |name: &str, default: u64| arguments.get(name).and_then(whole).unwrap_or(default);
    let pattern = text(arguments, "pattern");
    let wanted = if given("target") == Some("files") {
        check_glob(pattern).map_err(|why| format!("pattern {pattern:?} is no glob for names: {why}"))?;
        Wanted::Names(pattern.to_owned())
    } else {
        Wanted::Lines {
            pattern: Pattern::parse(pattern)?,
            told: match given("output_mode") {
                Some("files_only") => Told::Files,
                Some("count") => Told::Counts,
                _ => Told::Lines,
            },
            context: number("context", 0),
        }
    };
    let globs = match arguments.get("file_glob") {
        Some(Value::String(list)) => split(list),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).flat_map(split).collect(),
        _ => Vec::new(),
    };
    for glob in &globs {
        check_glob(glob).map_err(|why| format!("file_glob {glob:?} is no glob: {why}"))?;
    }
    let (offset, limit) = (number("offset", 0), number("limit", DEFAULT_LIMIT));
    if offset > MOST_RESULTS {
        return Err(format!(
            "offset {offset} is over the limit of {MOST_RESULTS} results; narrow the search by path, file_glob or pattern"
        ));
    }
    Ok(SearchRequest {
        path: given("path").unwrap_or(".").to_owned(),
        wanted,
        globs,
        offset,
        limit: limit.min(MOST_RESULTS),
    })
}

/// A whole number, also when Python wrote it as `5.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and validation has ruled out fractions and negative numbers"
)]
fn whole(number: &Value) -> Option<u64> {
    number.as_u64().or_else(|| number.as_f64().map(|number| number as u64))
}

/// Globs between commas; a comma in braces or brackets belongs to a glob.
fn split(list: &str) -> Vec<String> {
    let (mut globs, mut glob, mut depth, mut is_escaped) = (Vec::new(), String::new(), 0_u32, false);
    for c in list.chars() {
        match c {
            _ if is_escaped => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                globs.push(std::mem::take(&mut glob));
                continue;
            }
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
        glob.push(c);
    }
    globs.push(glob);
    let globs = globs.into_iter().map(|glob| glob.trim().to_owned());
    globs.filter(|glob| !glob.is_empty()).collect()
}

fn check_glob(glob: &str) -> Result<(), String> {
    let mut builder = OverrideBuilder::new("/");
    let complaint = |error: ignore::Error| match error {
        ignore::Error::Glob { err, .. } => err,
        other => other.to_string(),
    };
    builder.add(glob).map_err(complaint)?;
    let built = builder.build().map_err(complaint)?;
    if built.is_empty() {
        return Err("it names nothing; * fits all".to_owned());
    }
    Ok(())
}

// Its twin is `_found` of `remote_agent/answers.py`.
fn result(asked: &SearchRequest, found: Found) -> Value {
    let hint = hint(asked, &found);
    let matches: Vec<Value> = found
        .matches
        .into_iter()
        .map(|found| {
            let mut line = json!({"path": found.path, "line": found.line, "content": found.content});
            if matches!(asked.wanted, Wanted::Lines { context: 1.., .. }) {
                line["before"] = found.before.into();
                line["after"] = found.after.into();
            }
            line
        })
        .collect();
    let counts: Map<String, Value> = found
        .counts
        .into_iter()
        .map(|(path, count)| (path, count.into()))
        .collect();
    let mut result = json!({
        "matches": matches,
        "files": found.files,
        "counts": counts,
        "total_count": found.total,
        "truncated": found.more,
    });
    if !hint.is_empty() {
        result["hint"] = hint.join(" ").into();
    }
    if !found.warnings.is_empty() {
        let mut warnings = found.warnings;
        if found.more_warnings > 0 {
            warnings.push(format!("{} more could not be searched", found.more_warnings));
        }
        result["warnings"] = warnings.into();
    }
    result
}

/// What a caller should know of a result that is not the whole, or is nothing.
fn hint(asked: &SearchRequest, found: &Found) -> Vec<String> {
    let mut hints = Vec::new();
    let shown = (found.matches.len() + found.files.len() + found.counts.len()) as u64;
    if found.more {
        let next = asked.offset + shown;
        let of = match asked.wanted {
            Wanted::Lines { told: Told::Counts, .. } => String::new(),
            _ => format!(" of {}", found.total),
        };
        hints.push(if next < MOST_RESULTS {
            format!(
                "These are results {} to {next}{of}: go on with offset={next}.",
                asked.offset + 1
            )
        } else {
            format!("Results after {MOST_RESULTS} cannot be reached: narrow the search by path, file_glob or pattern.")
        });
    } else if shown == 0 && found.total > 0 {
        hints.push(format!("offset={} is past the last result.", asked.offset));
    }
    let place = &asked.path;
    if let Some(file) = &found.passed_over {
        hints.push(format!(
            "No file was looked at: what fits below {place} is hidden or excluded by ignore files, {file} for one; give it, or its folder, as path."
        ));
    } else if let Some(file) = &found.misfit {
        hints.push(format!(
            "No file was looked at: none below {place} fits file_glob ({file} does not, for one). A glob without a slash is compared with names, one with a slash with paths from {place} on."
        ));
    } else if found.searched == 0 && found.binary == 0 {
        hints.push(format!("There is no file below {place}."));
    } else if found.total == 0 && found.binary > 0 {
        hints.push(format!(
            "Left out as no text: {} of the files; search them in Python.",
            found.binary
        ));
    }
    if found.total == 0 && found.searched > 0 {
        hints.extend(unlike(asked));
    }
    hints
}

/// What a pattern that fits nothing may have been meant for.
fn unlike(asked: &SearchRequest) -> Option<String> {
    match &asked.wanted {
        Wanted::Names(glob) if !glob.contains(['*', '?', '[', '{', '!', '/']) => Some(format!(
            "No file has exactly this name: *{glob}* fits those that hold it, **/{glob}/** those below a folder of the name."
        )),
        Wanted::Lines { pattern, .. } => {
            let pattern = pattern.for_python().ascii;
            (pattern.ends_with('$') && !pattern.ends_with("\\$")).then(|| {
                "Where lines end as on Windows, $ stands behind a carriage return: \\r?$ fits both ends.".to_owned()
            })
        }
        Wanted::Names(_) => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::BuiltinTools;
    use crate::tools::builtin::testing::{call, silent, workspace};

    #[test]
    fn globs_stand_between_commas() {
        for (list, globs) in [
            ("*.py", vec!["*.py"]),
            ("*.py, *.md ,!tests/", vec!["*.py", "*.md", "!tests/"]),
            ("*.{a,b},[,x]", vec!["*.{a,b}", "[,x]"]),
            (r"a\,b", vec![r"a\,b"]),
            (r"a\{,b", vec![r"a\{", "b"]),
            (" , ", vec![]),
        ] {
            assert_eq!(split(list), globs, "{list}");
        }
    }

    #[tokio::test]
    async fn keys_of_every_mode() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.py", "one\ntwo\none\n"), ("b.md", "one")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let host = BuiltinTools::new(None);
        let search =
            async |arguments: Value| call(&host, workspace(folder.path(), silent()), "search_files", arguments).await;
        assert_eq!(
            search(json!({"pattern": "one", "limit": 2})).await,
            json!({
                "matches": [
                    {"path": "a.py", "line": 1, "content": "one"},
                    {"path": "a.py", "line": 3, "content": "one"},
                ],
                "files": [], "counts": {}, "total_count": 3, "truncated": true,
                "hint": "These are results 1 to 2 of 3: go on with offset=2.",
            })
        );
        assert_eq!(
            search(json!({"pattern": "two", "context": 1})).await["matches"],
            json!([{"path": "a.py", "line": 2, "content": "two", "before": ["one"], "after": ["one"]}])
        );
        assert_eq!(
            search(json!({"pattern": "one", "output_mode": "files_only"})).await,
            json!({"matches": [], "files": ["a.py", "b.md"], "counts": {}, "total_count": 2, "truncated": false})
        );
        assert_eq!(
            search(json!({"pattern": "one", "output_mode": "count", "file_glob": "*.py"})).await,
            json!({"matches": [], "files": [], "counts": {"a.py": 2}, "total_count": 2, "truncated": false})
        );
        assert_eq!(
            search(json!({"pattern": "*.md", "target": "files"})).await,
            json!({"matches": [], "files": ["b.md"], "counts": {}, "total_count": 1, "truncated": false})
        );
        assert_eq!(
            search(json!({"pattern": "three"})).await,
            json!({"matches": [], "files": [], "counts": {}, "total_count": 0, "truncated": false})
        );
    }

    #[tokio::test]
    async fn arguments_that_cannot_be_used_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.py"), "x").unwrap();
        let host = BuiltinTools::new(None);
        for (arguments, word) in [
            (json!({"pattern": "(x"}), "re.escape"),
            (json!({"pattern": "x", "path": "a.pi"}), "a.py"),
            (
                json!({"pattern": "x", "path": "a.py/x"}),
                "a part of the path is a file",
            ),
            (json!({"pattern": "x", "path": ""}), "empty"),
            (json!({"pattern": "x", "path": "/dev/null"}), "a device"),
            (json!({"pattern": "x", "file_glob": "{a"}), "no glob"),
            (json!({"pattern": "[x", "target": "files"}), "no glob"),
            (json!({"pattern": "", "target": "files"}), "names nothing"),
            (json!({"pattern": "*", "target": "files", "path": "a.py"}), "is a file"),
            (json!({"pattern": "x", "offset": 2_000_000}), "narrow"),
            (json!({"pattern": "x", "file_glob": [1]}), "string"),
            (json!({"pattern": "x", "context": 1000}), "at most 100"),
            (json!({"pattern": "x", "target": "names"}), "one of"),
        ] {
            let files = workspace(folder.path(), silent());
            let result = call(&host, files, "search_files", arguments.clone()).await;
            assert_eq!(result.as_object().unwrap().len(), 1, "{arguments}: {result}");
            assert!(
                result["error"].as_str().unwrap().contains(word),
                "{arguments}: {result}"
            );
        }
    }

    #[tokio::test]
    async fn nothing_found_says_why_where_nothing_could_be() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        std::fs::create_dir_all(root.join("ignored")).unwrap();
        std::fs::write(root.join("ignored/.ignore"), "*.log").unwrap();
        std::fs::write(root.join("ignored/a.log"), "x").unwrap();
        std::fs::create_dir_all(root.join("odd")).unwrap();
        std::fs::write(root.join("odd/data"), "\0").unwrap();
        std::fs::write(root.join("windows"), "two\r\n").unwrap();
        let host = BuiltinTools::new(None);
        for (arguments, word) in [
            (json!({"pattern": "x", "path": "empty"}), "no file below empty"),
            (json!({"pattern": "x", "path": "ignored"}), "ignored/a.log for one"),
            (
                json!({"pattern": "x", "path": "odd", "file_glob": "*.rs"}),
                "fits file_glob (odd/data",
            ),
            (json!({"pattern": "x", "path": "odd"}), "no text: 1 of"),
            (
                json!({"pattern": "*", "path": "ignored", "target": "files"}),
                "ignored/a.log for one",
            ),
            (
                json!({"pattern": "x", "offset": 9, "path": "ignored/a.log"}),
                "past the last",
            ),
            (json!({"pattern": "wind", "target": "files"}), "*wind* fits"),
            (json!({"pattern": "two$", "path": "windows"}), r"\r?$ fits both"),
        ] {
            let files = workspace(root, silent());
            let result = call(&host, files, "search_files", arguments.clone()).await;
            assert!(
                result["hint"].as_str().unwrap_or_default().contains(word),
                "{arguments}: {result}"
            );
        }
    }
}
