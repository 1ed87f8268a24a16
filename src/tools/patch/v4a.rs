//! The patch format of mode `patch` (V4A): sections of files, in them hunks of lines.
//!
//! It is read as models write it: without its first or last line, in a code fence or a here document, with `\r\n`,
//! with line numbers behind `@@` as unified diffs have them.

use std::ops::Range;

/// What a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) path: String,
    pub(super) action: Action,
    /// The line of the patch (from 1) where it begins.
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A new file of these lines.
    Add(Vec<String>),
    Delete,
    Update {
        move_to: Option<String>,
        hunks: Vec<Hunk>,
    },
}

/// Lines that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// Lines that stand before it, one after the other, with any lines between.
    pub(super) anchors: Vec<String>,
    /// A line that stands before it if there is one: it comes from a unified diff.
    pub(super) heading: Option<String>,
    /// Where the file has it (from 1), says a unified diff.
    pub(super) number: Option<usize>,
    pub(super) lines: Vec<Line>,
    /// Whether it ends with the file.
    pub(super) at_end: bool,
    /// Where it begins in the patch (from 1).
    pub(super) line: usize,
    /// The first line without a sign before it, which was taken as one that stays.
    pub(super) unmarked: Option<usize>,
    /// Empty lines at its end, so far.
    trailing_blanks: usize,
}

/// A line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Stays(String),
    Goes(String),
    Comes(String),
}

impl Hunk {
    /// The lines that the file has.
    pub(super) fn old(&self) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(|line| match line {
                Line::Stays(text) | Line::Goes(text) => Some(text.as_str()),
                Line::Comes(_) => None,
            })
            .collect()
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.anchors.is_empty() && self.number.is_none()
    }
}

const KNOWN: &str = "*** Update File: PATH, *** Add File: PATH, *** Delete File: PATH or *** Move File: PATH -> PATH";

/// Reads a patch.
///
/// # Errors
/// A sentence with the line of the patch.
pub(super) fn parse(patch: &str) -> Result<Vec<Section>, String> {
    let lines: Vec<&str> = patch
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .collect();
    let body = body(&lines);
    let mut parser = Parser::default();
    for index in body.clone() {
        parser.line(index + 1, lines[index])?;
    }
    nothing_outside(&lines, &body)?;
    parser.end()?;
    if parser.sections.is_empty() {
        return Err(format!(
            "the patch names no file; between *** Begin Patch and *** End Patch it needs {KNOWN}"
        ));
    }
    Ok(parser.sections)
}

/// The lines between the first and the last of the format.
fn body(lines: &[&str]) -> Range<usize> {
    let is = |line: &str, words: &str| {
        directive(line).is_some_and(|text| text.trim_end_matches(['*', ' ']).eq_ignore_ascii_case(words))
    };
    let begin = lines.iter().position(|line| is(line, "Begin Patch"));
    let mut start = begin.map_or(0, |at| at + 1);
    // Only a last line counts: a patch may be about patches.
    let end = (start..lines.len()).find(|at| is(lines[*at], "End Patch"));
    let mut end = end.unwrap_or(lines.len());
    if begin.is_none() {
        while start < end && (lines[start].trim().is_empty() || is_wrapper(lines[start])) {
            start += 1;
        }
    }
    while start < end && lines[end - 1].is_empty() {
        end -= 1;
    }
    if start < end && is_closing(lines[end - 1]) {
        end -= 1;
    }
    start..end
}

/// Words around a patch are passed over, but no part of one.
fn nothing_outside(lines: &[&str], body: &Range<usize>) -> Result<(), String> {
    let is_part =
        |line: &str| line.starts_with("@@") || directive(line).is_some_and(|text| value_of_any(text).is_some());
    let is_bound =
        |line: &str| directive(line).is_some_and(|text| text.to_ascii_lowercase().starts_with("begin patch"));
    let before = lines[..body.start].iter().position(|line| is_part(line));
    let after = lines[body.end..]
        .iter()
        .position(|line| is_part(line) || is_bound(line))
        .map(|at| body.end + at);
    match before.or(after) {
        None => Ok(()),
        Some(at) => Err(format!(
            "line {} of the patch, {}, stands outside of *** Begin Patch and *** End Patch, of which there is one each; put \
             all of it between the two",
            at + 1,
            shown(lines[at])
        )),
    }
}

/// The value of a directive that names a file.
fn value_of_any(directive: &str) -> Option<&str> {
    let names = ["Update File", "Add File", "Delete File", "Move File", "Move to"];
    names.iter().find_map(|name| value(directive, name))
}

/// The beginning of a code fence or of a here document.
fn is_wrapper(line: &str) -> bool {
    line.starts_with("```") || line.starts_with("apply_patch <<") || line.starts_with("<<")
}

fn is_closing(line: &str) -> bool {
    matches!(line.trim_end(), "```" | "EOF" | "PATCH" | "'EOF'")
}

/// What stands behind three stars.
fn directive(line: &str) -> Option<&str> {
    line.strip_prefix("***").map(str::trim)
}

/// The value of a directive of this name.
fn value<'a>(directive: &'a str, name: &str) -> Option<&'a str> {
    let (head, rest) = directive.split_once(':')?;
    let mut words = head.split_whitespace();
    let same = name
        .split(' ')
        .all(|word| words.next().is_some_and(|given| given.eq_ignore_ascii_case(word)));
    (same && words.next().is_none()).then(|| unquoted(rest.trim()))
}

/// A path without the quotes that may stand around it.
fn unquoted(path: &str) -> &str {
    for quote in ['`', '"', '\''] {
        if let Some(inner) = path.strip_prefix(quote).and_then(|path| path.strip_suffix(quote))
            && !inner.is_empty()
        {
            return inner;
        }
    }
    path
}

#[derive(Default)]
struct Parser {
    sections: Vec<Section>,
    hunk: Option<Hunk>,
    /// Lines of the new file that count: empty ones without + after them only stand before what follows.
    kept: usize,
}

impl Parser {
    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        if let Some(directive) = directive(line) {
            return self.directive(number, line, directive);
        }
        let Some(section) = self.sections.last_mut() else {
            if line.trim().is_empty() {
                return Ok(());
            }
            return Err(format!(
                "line {number} of the patch, {}, stands before any file; begin with {KNOWN}",
                shown(line)
            ));
        };
        match &mut section.action {
            Action::Add(lines) => match line.strip_prefix('+') {
                Some(text) => {
                    lines.push(text.to_owned());
                    self.kept = lines.len();
                }
                None if line.trim().is_empty() => lines.push(String::new()),
                None => {
                    return Err(format!(
                        "line {number} of the patch, {}: each line of a new file ({}) begins with +",
                        shown(line),
                        section.path
                    ));
                }
            },
            Action::Delete if line.trim().is_empty() => {}
            Action::Delete => {
                return Err(format!(
                    "line {number} of the patch, {}: nothing follows *** Delete File ({}) but another file",
                    shown(line),
                    section.path
                ));
            }
            Action::Update { .. } => match line.strip_prefix("@@") {
                Some(rest) => self.anchor(number, rest),
                None => self.hunk_line(number, line),
            },
        }
        Ok(())
    }

    fn directive(&mut self, number: usize, line: &str, directive: &str) -> Result<(), String> {
        if directive.eq_ignore_ascii_case("End of File") {
            return match (&mut self.hunk, self.sections.last().map(|section| &section.action)) {
                (Some(hunk), _) => {
                    hunk.at_end = true;
                    self.close_hunk();
                    Ok(())
                }
                (None, Some(Action::Add(_))) => Ok(()),
                _ => Err(format!(
                    "line {number} of the patch: *** End of File stands at the end of a hunk, and there is none"
                )),
            };
        }
        if let Some(to) = value(directive, "Move to") {
            self.close_hunk();
            return match self.sections.last_mut() {
                Some(Section {
                    action: Action::Update { move_to, .. },
                    ..
                }) if move_to.is_none() && !to.is_empty() => {
                    *move_to = Some(to.to_owned());
                    Ok(())
                }
                _ => Err(format!(
                    "line {number} of the patch: *** Move to: PATH stands once, below *** Update File: PATH"
                )),
            };
        }
        let update = |move_to| Action::Update {
            move_to,
            hunks: Vec::new(),
        };
        let (path, action) = if let Some(path) = value(directive, "Update File") {
            (path, update(None))
        } else if let Some(path) = value(directive, "Add File").or_else(|| value(directive, "Create File")) {
            (path, Action::Add(Vec::new()))
        } else if let Some(path) = value(directive, "Delete File") {
            (path, Action::Delete)
        } else if let Some((path, to)) = value(directive, "Move File").and_then(|paths| paths.split_once(" -> ")) {
            (unquoted(path.trim()), update(Some(unquoted(to.trim()).to_owned())))
        } else {
            return Err(format!(
                "line {number} of the patch, {}, is unknown; there are {KNOWN}",
                shown(line)
            ));
        };
        self.end()?;
        if path.is_empty() {
            return Err(format!("line {number} of the patch, {}, lacks the path", shown(line)));
        }
        self.sections.push(Section {
            path: path.to_owned(),
            action,
            line: number,
        });
        Ok(())
    }

    /// What stands behind `@@`: nothing, the numbers of a unified diff, or a line that stands before the hunk.
    fn anchor(&mut self, number: usize, rest: &str) {
        // Several in a row belong to one hunk.
        let goes_on = self.hunk.as_ref().is_some_and(|hunk| hunk.lines.is_empty());
        if !goes_on {
            self.close_hunk();
        }
        let hunk = self.hunk.get_or_insert_with(|| Hunk {
            line: number,
            ..Hunk::default()
        });
        if let Some((start, heading)) = numbers(rest) {
            hunk.number = Some(start);
            hunk.heading = Some(heading.trim()).filter(|text| !text.is_empty()).map(str::to_owned);
            return;
        }
        let text = rest.strip_prefix(' ').unwrap_or(rest);
        let text = text.strip_suffix("@@").map_or(text, str::trim_end);
        if !text.trim().is_empty() {
            hunk.anchors.push(text.to_owned());
        }
    }

    fn hunk_line(&mut self, number: usize, line: &str) {
        if self.hunk.is_none() && line.trim().is_empty() || line.starts_with("\\ No newline") {
            return;
        }
        let hunk = self.hunk.get_or_insert_with(|| Hunk {
            line: number,
            ..Hunk::default()
        });
        let rest = || line[1..].to_owned();
        hunk.lines.push(match line.as_bytes().first() {
            Some(b'+') => Line::Comes(rest()),
            Some(b'-') => Line::Goes(rest()),
            Some(b' ') => Line::Stays(rest()),
            None => Line::Stays(String::new()),
            Some(_) => {
                hunk.unmarked.get_or_insert(number);
                Line::Stays(line.to_owned())
            }
        });
        if line.is_empty() {
            // Empty lines at its end only stand between it and what follows.
            hunk.trailing_blanks += 1;
        } else {
            hunk.trailing_blanks = 0;
        }
    }

    fn close_hunk(&mut self) {
        let Some(mut hunk) = self.hunk.take().filter(|hunk| !hunk.is_empty()) else {
            return;
        };
        let kept = hunk.lines.len() - hunk.trailing_blanks;
        hunk.lines.truncate(kept);
        if let Some(Section {
            action: Action::Update { hunks, .. },
            ..
        }) = self.sections.last_mut()
        {
            hunks.push(hunk);
        }
    }

    /// Ends the section that is open.
    fn end(&mut self) -> Result<(), String> {
        self.close_hunk();
        match self.sections.last_mut() {
            Some(Section {
                action: Action::Update { move_to: None, hunks },
                path,
                line,
            }) if hunks.is_empty() => Err(format!(
                "line {line} of the patch: the section of {path} says nothing to change; give lines with - and +, or *** Move to: PATH"
            )),
            Some(Section {
                action: Action::Add(lines),
                ..
            }) => {
                lines.truncate(self.kept);
                self.kept = 0;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The start of the old lines in ` -1,2 +1,2 @@ heading`, and the heading.
fn numbers(rest: &str) -> Option<(usize, &str)> {
    let rest = rest.trim_start().strip_prefix('-')?;
    let (old, rest) = rest.split_once(" +")?;
    let (new, heading) = rest.split_once("@@").unwrap_or((rest, ""));
    let number = |text: &str| text.trim().split(',').next()?.parse().ok();
    number(new).map(|_: usize| ())?;
    Some((number(old)?, heading))
}

fn shown(line: &str) -> String {
    let text: String = line.chars().take(80).collect();
    format!("{text:?}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    fn one_hunk(patch: &str) -> Hunk {
        match &parse(patch).unwrap()[..] {
            [
                Section {
                    action: Action::Update { hunks, .. },
                    ..
                },
            ] => hunks[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_parts_of_the_format() {
        let patch = "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@ class A\n@@   def f\n x\n-y\n+z\n\n*** End of File\n*** Add File: c d.txt\n+1\n\n+2\n\n*** Delete File: e\n*** Move File: f -> g\n*** End Patch\n";
        let sections = parse(patch).unwrap();
        let hunk = Hunk {
            anchors: vec!["class A".into(), "  def f".into()],
            lines: vec![Line::Stays("x".into()), Line::Goes("y".into()), Line::Comes("z".into())],
            at_end: true,
            line: 4,
            trailing_blanks: 1,
            ..Hunk::default()
        };
        let update = |to: &str, hunks| Action::Update {
            move_to: Some(to.into()),
            hunks,
        };
        let expected = [
            ("a.py", update("b.py", vec![hunk]), 2),
            ("c d.txt", Action::Add(vec!["1".into(), String::new(), "2".into()]), 11),
            ("e", Action::Delete, 16),
            ("f", update("g", vec![]), 17),
        ];
        for (section, (path, action, line)) in sections.iter().zip(expected) {
            assert_eq!(
                section,
                &Section {
                    path: path.into(),
                    action,
                    line
                }
            );
        }
        assert_eq!(sections.len(), 4);
    }

    #[test]
    fn as_models_write_it() {
        let plain = one_hunk("*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch").lines;
        for patch in [
            "*** Update File: a\n-x\n+y",
            "\n\n```diff\n*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch\n```\n",
            "```\n*** Update File: a\n-x\n+y\n```\n",
            "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch\nEOF\n",
            "<<EOF\n*** Update File: a\n-x\n+y\nEOF\n",
            "*** Begin Patch\r\n*** Update File: a\r\n-x\r\n+y\r\n*** End Patch\r\n",
            "***Begin Patch\n*** update file:`a`\n\n-x\n+y\n\\ No newline at end of file\n\n*** End Patch ***",
            "Here it is:\n*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch\nDone.",
        ] {
            assert_eq!(one_hunk(patch).lines, plain, "{patch}");
        }
        let hunk = one_hunk("*** Update File: a\n@@ -12,3 +12,4 @@ def f():\n x\n+y");
        assert_eq!((hunk.number, hunk.heading.as_deref()), (Some(12), Some("def f():")));
        let hunk = one_hunk("*** Update File: a\n@@ def f(): @@\nunmarked\n+y");
        assert_eq!(hunk.anchors, ["def f():"]);
        assert_eq!((hunk.unmarked, hunk.old()), (Some(3), vec!["unmarked"]));
        // A patch about a patch.
        let hunk = one_hunk("*** Begin Patch\n*** Update File: a\n+*** End Patch\n *** Begin Patch\n*** End Patch");
        assert_eq!(hunk.lines.len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        for (patch, words) in [
            ("", vec!["names no file", "*** Update File"]),
            ("*** Begin Patch\n*** End Patch", vec!["names no file"]),
            (
                "*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch\n*** Begin Patch\n*** Update File: b\n-x\n+y\n*** End Patch",
                vec!["line 6", "stands outside"],
            ),
            (
                "*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch\n@@\n-z\n+y\n",
                vec!["line 6", "stands outside"],
            ),
            (
                "*** Delete File: a\n*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch",
                vec!["line 1", "stands outside"],
            ),
            ("*** Begin Patch\nx\n*** End Patch", vec!["line 2", "before any file"]),
            (
                "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
                vec!["line 1", "before any file"],
            ),
            ("*** Change File: x\n-a", vec!["line 1", "unknown", "*** Add File"]),
            ("*** Update File: x\n*** End Patch", vec!["line 1", "x says nothing"]),
            ("*** Update File:\n-a", vec!["line 1", "lacks the path"]),
            ("*** Add File: x\n+a\nb", vec!["line 3", "\"b\"", "begins with +"]),
            ("*** Delete File: x\n-a", vec!["line 2", "nothing follows"]),
            (
                "*** Add File: x\n+a\n*** Move to: y",
                vec!["line 3", "below *** Update File"],
            ),
            ("*** Move to: y", vec!["line 1"]),
            ("*** Update File: x\n*** End of File", vec!["line 2", "end of a hunk"]),
        ] {
            let error = parse(patch).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{patch}: {error}");
            }
        }
    }
}
