//! The `read_file` tool.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::builtin::{failure, text};
use super::spill_files::is_spill;
use super::{CallContext, LocalFiles, Page, ReadRequest, ToolSpec};

const DEFAULT_LIMIT: u64 = 2000;

const DOC: &str = "Reads a text file on the target, a page at a time.

Returns a dict: `content` (each line as `N|text`, numbered from 1; with raw=True the exact text
alone), `total_lines` (None for a file over 256 MiB whose end was not reached), `file_size` in
bytes, and `truncated`. When `truncated` is true there are also `next_offset`, to be passed back
as `offset` for the next page, and `hint`. A page holds `limit` lines and 1 MiB at most, with
raw=True 64 MiB; a longer line comes in pieces. A failure has only `error`.";

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "read_file".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["path"],
            "properties": {
                "path": {
                    "type": "string",
                    "description": "the file; a relative path starts at the session's working \
                                    directory, ~ is the home directory",
                },
                "offset": {
                    "type": ["integer", "string"], "default": 1, "minimum": 1,
                    "description": "the first line, or the next_offset of an earlier page",
                },
                "limit": {
                    "type": "integer", "default": DEFAULT_LIMIT, "minimum": 1,
                    "description": "lines at most",
                },
                "raw": {
                    "type": "boolean", "default": false,
                    "description": "the text without line numbers, exactly as in the file",
                },
            },
        }),
    }
}

pub(super) async fn call(arguments: &Map<String, Value>, context: &CallContext, spill_dir: Option<&Path>) -> Value {
    let path = text(arguments, "path");
    let request = ReadRequest {
        path: path.to_owned(),
        offset: match arguments.get("offset") {
            None => "1".into(),
            Some(Value::String(offset)) => offset.clone(),
            Some(number) => whole(number).unwrap_or(1).to_string(),
        },
        limit: arguments.get("limit").and_then(whole).unwrap_or(DEFAULT_LIMIT),
        raw: arguments.get("raw").and_then(Value::as_bool).unwrap_or(false),
    };
    let (offset, limit) = (request.offset.clone(), request.limit);
    let page = match spill_dir {
        Some(folder) if is_spill(Path::new(path), folder) => LocalFiles::new(folder, None).read_page(request).await,
        _ => context.workspace.read_page(request, context.reply.as_ref()).await,
    };
    match page {
        Ok(page) => result(page, &offset, limit),
        Err(error) => failure(error.to_string()),
    }
}

/// A whole number, also when Python wrote it as `5.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and validation has ruled out fractions and negative numbers"
)]
pub(super) fn whole(number: &Value) -> Option<u64> {
    number.as_u64().or_else(|| number.as_f64().map(|number| number as u64))
}

// Its twin is `_page` of `remote_agent/answers.py`.
fn result(page: Page, offset: &str, limit: u64) -> Value {
    let lines = page.content.lines().count() as u64;
    let mut result = json!({
        "content": page.content,
        "total_lines": page.total_lines,
        "file_size": page.file_size,
        "truncated": page.next_offset.is_some(),
    });
    if let Some(next) = page.next_offset {
        let next = next.parse::<u64>().map_or_else(|_| Value::from(next), Value::from);
        let total = page.total_lines.map(counted);
        let of = total.map(|total| format!(" of a file of {total}")).unwrap_or_default();
        let cut = if lines < limit {
            "as much as one page holds".to_owned()
        } else {
            format!("{}, as many as limit allows", counted(limit))
        };
        let hint = format!("This is a part{of}: {cut}. Read on with offset={next}.");
        result["next_offset"] = next;
        result["hint"] = hint.into();
    } else if let (Some(total), Some(first)) = (page.total_lines, first_line(offset))
        && first > total.max(1)
    {
        result["hint"] = format!("offset={offset} is past the end: the file has {}.", counted(total)).into();
    }
    result
}

/// The line of an offset, which may point inside it.
fn first_line(offset: &str) -> Option<u64> {
    offset.split(':').next()?.parse().ok()
}

fn counted(lines: u64) -> String {
    format!("{lines} line{}", if lines == 1 { "" } else { "s" })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::BuiltinTools;
    use crate::tools::builtin::testing::{call, silent, workspace};

    #[tokio::test]
    async fn keys_of_a_whole_file_and_of_a_part() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "a\nb\nc\n").unwrap();
        let host = BuiltinTools::new(None);
        let files = workspace(folder.path(), silent());
        let whole = call(&host, files.clone(), "read_file", json!({"path": "f"})).await;
        assert_eq!(
            whole,
            json!({"content": "1|a\n2|b\n3|c", "total_lines": 3, "file_size": 6, "truncated": false})
        );
        let arguments = json!({"path": "f", "offset": 2.0, "limit": 1, "raw": true});
        let part = call(&host, files.clone(), "read_file", arguments).await;
        assert_eq!(part["content"], "b\n");
        assert_eq!(part["truncated"], true);
        assert_eq!(part["next_offset"], 3);
        assert_eq!(
            part["hint"],
            "This is a part of a file of 3 lines: 1 line, as many as limit allows. Read on with offset=3."
        );
        for (offset, hint) in [(json!(4), true), (json!("9:3"), true), (json!(3), false)] {
            let page = call(
                &host,
                files.clone(),
                "read_file",
                json!({"path": "f", "offset": offset}),
            )
            .await;
            assert_eq!(page["truncated"], false);
            let told = format!(
                "offset={} is past the end: the file has 3 lines.",
                offset.as_str().unwrap_or("4")
            );
            assert_eq!(page.get("hint"), hint.then_some(&json!(told)), "{offset}");
        }
        let missing = call(&host, files.clone(), "read_file", json!({"path": "g"})).await;
        assert_eq!(missing.as_object().unwrap().len(), 1);
        assert!(missing["error"].is_string());
        for wrong in [json!({"path": "f", "offset": 0}), json!({"path": "f", "limit": -1})] {
            let wrong = call(&host, files.clone(), "read_file", wrong).await;
            assert!(wrong["error"].as_str().unwrap().contains("at least 1"));
        }
    }

    #[tokio::test]
    async fn spill_files_are_served_and_nothing_beside_them() {
        let target = tempfile::tempdir().unwrap();
        let spill = tempfile::tempdir().unwrap();
        for name in ["stdout-1.txt", "secret"] {
            std::fs::write(spill.path().join(name), "spilled").unwrap();
        }
        let host = BuiltinTools::new(Some(spill.path().into()));
        let path = spill.path().join("stdout-1.txt");
        let files = workspace(target.path(), silent());
        let result = call(&host, files.clone(), "read_file", json!({ "path": path })).await;
        assert_eq!(result["content"], "1|spilled");
        // The others tell of it where they fail.
        let arguments = json!({"path": path, "old_string": "x", "new_string": "y"});
        let result = call(&host, files.clone(), "patch", arguments).await;
        assert!(result["error"].as_str().unwrap().contains("only read_file"), "{result}");
        let other = call(&host, files, "read_file", json!({"path": spill.path().join("none")})).await;
        assert!(!other["error"].as_str().unwrap().contains("only read_file"), "{other}");
    }
}
