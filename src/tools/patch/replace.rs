//! Mode `replace`: one text for another.

use std::ops::Range;

use super::edits::{joined, keep_missing_end, of_pieces};
use super::find::{Level, MOST_DOUBTS, MOST_PLACES, Match, find};
use super::lines::{Lines, Piece, dominant_end, pieces};
use super::nearest::{nearest, numbers};
use super::text::{Edit, changes};

/// Edits that put `new` where `old` stands.
///
/// # Errors
/// A sentence that says why not, and what to do.
pub(super) fn replace(text: &str, old: &str, new: &str, all: bool) -> Result<Vec<Edit>, String> {
    // What was copied with a byte order mark is found without.
    let old = old.strip_prefix('\u{feff}').unwrap_or(old);
    let new = new.strip_prefix('\u{feff}').unwrap_or(new);
    if old.is_empty() {
        return Err("old_string is empty; give the text to replace, or use write_file for a whole file".into());
    }
    if old == new {
        return Err("old_string and new_string are the same; nothing would change".into());
    }
    let lines = Lines::new(text);
    let (level, found) = find(&lines, old, !all);
    let how = match level {
        Level::Exact => "",
        Level::Ends => " but for line ends",
        Level::Blanks => " but for blanks at line ends",
        Level::Indent => " but for indentation",
        Level::Lookalike => " but for signs that look alike",
    };
    match found.len() {
        0 => {
            let pattern: Vec<&str> = pieces(old).iter().map(|piece| piece.content).collect();
            return Err(format!("old_string was not found; {}", nearest(&lines, &pattern)));
        }
        1 => {}
        MOST_PLACES => {
            return Err(format!(
                "old_string stands there {MOST_PLACES} times or more; replace so many with terminal() or in Python"
            ));
        }
        count if !all => {
            let or_more = if count == MOST_DOUBTS { " or more" } else { "" };
            return Err(format!(
                "old_string is not unique: it stands there {count} times{or_more}{how}, in lines {}; give more of the lines around the one that is meant, or replace_all=True",
                numbers(found.iter().map(|found| lines.at(found.range.start)))
            ));
        }
        _ => {}
    }
    let end = if level == Level::Exact && !new.contains('\n') {
        "\n" // none is written
    } else {
        dominant_end(text).unwrap_or(if new.contains("\r\n") { "\r\n" } else { "\n" })
    };
    let (old, new) = (pieces(old), pieces(new));
    let mut edits = Vec::new();
    for found in &found {
        let place = place(&lines, found, old.len());
        of_pieces(&place, (&old, &new), &found.shift, end, &mut edits)
            .map_err(|why| format!("line {}: {why}", lines.at(found.range.start) + 1))?;
    }
    let mut edits = joined(edits);
    if ends_without_end(text, found.last(), &old) {
        keep_missing_end(text, &mut edits, end);
    }
    if !changes(text, &edits) {
        return Err("nothing would change: what old_string stands for is new_string already, but for line ends or blanks, which stay as they are".into());
    }
    Ok(edits)
}

/// Whether a line end that the file's last line lacks was forgiven.
fn ends_without_end(text: &str, found: Option<&Match>, old: &[Piece<'_>]) -> bool {
    let by_lines_to_the_end = found.is_some_and(|found| found.line.is_some() && found.range.end == text.len());
    by_lines_to_the_end && old.last().is_some_and(|piece| piece.has_end)
}

/// The pieces of the file at a place, one for each of `old`.
fn place(lines: &Lines<'_>, found: &Match, count: usize) -> Vec<Range<usize>> {
    if let Some(first) = found.line {
        return (first..first + count)
            .map(|line| lines.start(line)..lines.start(line + 1).min(found.range.end))
            .collect();
    }
    let mut at = found.range.start;
    lines.text()[found.range.clone()]
        .split_inclusive('\n')
        .map(|piece| {
            at += piece.len();
            at - piece.len()..at
        })
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::super::text::applied;
    use super::*;

    fn done(text: &str, old: &str, new: &str, all: bool) -> Result<String, String> {
        replace(text, old, new, all).map(|edits| applied(text, &edits))
    }

    #[test]
    fn what_is_replaced_by_what() {
        for (text, old, new, expected) in [
            ("a b c", "b", "x", "a x c"),
            ("a b c", " b", "", "a c"),
            ("a\r\nb\r\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\r\nc\r\n"),
            ("a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\n", "a\r\nx\r\nc\r\n"),
            ("a\nb\n", "b", "x\r\ny", "a\nx\ny\n"),
            ("ab", "b", "x\r\ny", "ax\r\ny"),
            // Lines that stay are as they were, whatever their ends and blanks.
            ("a\r\nb\nc\n", "a\nb\nc", "a\nx\nc", "a\r\nx\nc\n"),
            ("a  \nb\n", "a\nb\n", "a\nx\n", "a  \nx\n"),
            // Indentation is that of the file.
            (
                "class A:\n    def f(self):\n        return 1\n",
                "def f(self):\n    return 1\n",
                "def f(self):\n    if x:\n        return 2\n\n    return 1\n",
                "class A:\n    def f(self):\n        if x:\n            return 2\n\n        return 1\n",
            ),
            (
                "\tif a:\n\t\tb()\n",
                "    if a:\n        b()\n",
                "    if a:\n        b()\n        c()\n",
                "\tif a:\n\t\tb()\n\t\tc()\n",
            ),
            // A last line without end stays one.
            ("a\nb", "a\nb\n", "a\nx\n", "a\nx"),
            ("a\nb", "b\n", "b\nc\n", "a\nb\nc"),
            ("a\nb", "b\n", "", "a"),
            (
                "print(\u{201c}a\u{201d})\n",
                "print(\"a\")",
                "print(\"b\")",
                "print(\"b\")\n",
            ),
            ("a", "\u{feff}a", "\u{feff}b", "b"),
            // No line end is cut.
            ("a\r\nb", "\n", "", "ab"),
            ("a\r\nb\r\nc", "\nb", "\nx", "a\r\nx\r\nc"),
        ] {
            assert_eq!(
                done(text, old, new, false).as_deref(),
                Ok(expected),
                "{text:?} {old:?} {new:?}"
            );
        }
    }

    #[test]
    fn all_of_the_first_level_that_fits() {
        for (text, old, new, expected) in [
            ("a b a", "a", "aa", "aa b aa"),
            ("aaa", "aa", "b", "ba"),
            ("x\n  x\n", "x", "y", "y\n  y\n"),
            ("a  \nb\na\t\nb\n", "a\nb\n", "c\n", "c\nc\n"),
            ("  a\n  b\n\ta\n\tb\n", "a\nb\n", "a\nc\n", "  a\n  c\n\ta\n\tc\n"),
        ] {
            assert_eq!(done(text, old, new, true).as_deref(), Ok(expected), "{text:?} {old:?}");
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        for (text, old, new, words) in [
            ("a", "", "x", vec!["empty"]),
            ("a", "a", "a", vec!["the same"]),
            (
                "a\nx\na\n\na",
                "a",
                "b",
                vec!["3 times", "lines 1, 3, 5", "replace_all"],
            ),
            ("ababa", "aba", "x", vec!["2 times", "lines 1"]),
            (
                "  a\n  b\n a\n b\n",
                "a\nb\n",
                "x\n",
                vec!["2 times but for indentation", "lines 1, 3"],
            ),
            (
                "one\ntwo\nthree\n",
                "one\ntwoo\n",
                "x\n",
                vec!["not found", "1|one", "2|two", "line 2 should be \"twoo\""],
            ),
            ("a\n", "a\n", "a\r\n", vec!["nothing would change"]),
            (
                "x\n  if a:\n    b\n",
                "    if a:\n      b\n",
                "    if a:\n      b\n d\n",
                vec!["line 2", "\" d\"", "indentation"],
            ),
            // Two letters that changed places.
            (
                "def f():\n    return 2\n",
                "retrun 2",
                "return 3",
                vec!["nearest lines", "2|    return 2"],
            ),
            ("", "a", "b", vec!["empty"]),
            (&"a".repeat(20_000), "a", "b", vec!["10000 times or more"]),
        ] {
            let error = done(text, old, new, false).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text:?} {old:?}: {error}");
            }
        }
    }
}
