//! Lines of a text: where they begin, their indentation, their ends.

use std::cell::OnceCell;
use std::ops::Range;

use memchr::{memchr_iter, memmem};

/// A text that knows where its lines begin. What follows the last line end is a line only if it is not empty.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Looked for when it is first asked for: what is found exactly needs no lines.
    starts: OnceCell<Vec<usize>>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            starts: OnceCell::new(),
        }
    }

    fn starts(&self) -> &[usize] {
        self.starts.get_or_init(|| {
            let mut starts = Vec::with_capacity(self.text.len() / 32 + 1);
            if !self.text.is_empty() {
                starts.push(0);
            }
            let after = memchr_iter(b'\n', self.text.as_bytes()).map(|at| at + 1);
            starts.extend(after.filter(|at| *at < self.text.len()));
            starts
        })
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn len(&self) -> usize {
        self.starts().len()
    }

    /// Where a line begins; the end of the text for the one after the last.
    pub(super) fn start(&self, index: usize) -> usize {
        self.starts().get(index).copied().unwrap_or(self.text.len())
    }

    /// A line with its end.
    pub(super) fn whole(&self, index: usize) -> Range<usize> {
        self.start(index)..self.start(index + 1)
    }

    /// A line without its end; empty past the last.
    pub(super) fn content(&self, index: usize) -> &'a str {
        without_end(&self.text[self.whole(index)])
    }

    /// The line (from 0) in which a place lies.
    pub(super) fn at(&self, place: usize) -> usize {
        self.starts().partition_point(|start| *start <= place).saturating_sub(1)
    }
}

/// A piece of a text up to a line end or to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Piece<'a> {
    pub(super) content: &'a str,
    pub(super) has_end: bool,
}

/// A text cut after each line end.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    text.split_inclusive('\n')
        .map(|line| Piece {
            content: without_end(line),
            has_end: line.ends_with('\n'),
        })
        .collect()
}

pub(super) fn without_end(line: &str) -> &str {
    line.strip_suffix('\n')
        .map_or(line, |line| line.strip_suffix('\r').unwrap_or(line))
}

/// The line end that most lines of a text have; `None` where none has one.
pub(super) fn dominant_end(text: &str) -> Option<&'static str> {
    let all = memchr_iter(b'\n', text.as_bytes()).count();
    if all == 0 {
        return None;
    }
    // A text without it is passed over at once.
    let with_return = match memchr::memchr(b'\r', text.as_bytes()) {
        None => 0,
        Some(at) => memmem::find_iter(&text.as_bytes()[at..], b"\r\n").count(),
    };
    let is_first = || text.split('\n').next().is_some_and(|line| line.ends_with('\r'));
    let returns = 2 * with_return > all || (2 * with_return == all && is_first());
    Some(if returns { "\r\n" } else { "\n" })
}

/// The blanks that a line begins with.
pub(super) fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

pub(super) fn is_blank(line: &str) -> bool {
    line.trim_matches([' ', '\t']).is_empty()
}

/// How indentation as it was given differs from that of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    /// The file's has this before it.
    Add(String),
    /// The file's lacks this.
    Remove(String),
    /// A step is written in another way: tabs for blanks, two blanks for four.
    Steps(&'static str, &'static str),
}

/// What a step of indentation may be.
const STEPS: [&str; 5] = ["    ", "  ", "\t", "        ", "   "];

impl Shift {
    pub(super) fn none() -> Self {
        Self::Add(String::new())
    }

    /// The one shift that turns each given indentation into the file's; `None` where there is none.
    pub(super) fn between(pairs: &[(&str, &str)]) -> Option<Self> {
        let Some((given, found)) = pairs.first() else {
            return Some(Self::none());
        };
        let whole = found
            .strip_suffix(given)
            .map(|more| Self::Add(more.into()))
            .or_else(|| given.strip_suffix(found).map(|less| Self::Remove(less.into())));
        let steps = STEPS
            .iter()
            .flat_map(|from| STEPS.iter().map(move |to| Self::Steps(from, to)));
        whole.into_iter().chain(steps).find(|shift| {
            let fits = |(given, found): &(&str, &str)| shift.turns(given, found);
            pairs.iter().all(fits)
        })
    }

    fn turns(&self, given: &str, found: &str) -> bool {
        match self {
            Self::Add(more) => found.strip_prefix(more.as_str()) == Some(given),
            Self::Remove(less) => given.strip_prefix(less.as_str()) == Some(found),
            Self::Steps(from, to) => {
                let count = given.len() / from.len();
                given == from.repeat(count) && found == to.repeat(count)
            }
        }
    }

    /// Appends a line with its indentation shifted.
    ///
    /// # Errors
    /// A sentence, when it is not indented so far as it would have to be shifted.
    pub(super) fn push(&self, line: &str, into: &mut String) -> Result<(), String> {
        if is_blank(line) {
            into.push_str(line);
            return Ok(());
        }
        match self {
            Self::Add(more) => {
                into.push_str(more);
                into.push_str(line);
            }
            Self::Remove(less) => {
                let rest = line.strip_prefix(less.as_str()).ok_or_else(|| {
                    format!(
                        "its lines are indented less there than in the old text, by {less:?}, and the new line {line:?} has not that much to lose; give old and new text with the file's own indentation"
                    )
                })?;
                into.push_str(rest);
            }
            Self::Steps(from, to) => {
                let mut rest = line;
                while let Some(shorter) = rest.strip_prefix(from) {
                    into.push_str(to);
                    rest = shorter;
                }
                into.push_str(rest);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    #[test]
    fn lines_and_their_places() {
        for (text, expected) in [
            ("", vec![]),
            ("a", vec!["a"]),
            ("a\n", vec!["a"]),
            ("a\r\n\nb", vec!["a", "", "b"]),
            ("\n\n", vec!["", ""]),
            ("a\rb\n", vec!["a\rb"]),
        ] {
            let lines = Lines::new(text);
            let contents: Vec<_> = (0..lines.len()).map(|index| lines.content(index)).collect();
            assert_eq!(contents, expected, "{text:?}");
            let joined: String = (0..lines.len()).map(|index| &text[lines.whole(index)]).collect();
            assert_eq!(joined, text);
            for index in 0..lines.len() {
                assert_eq!(lines.at(lines.start(index)), index);
                assert_eq!(lines.at(lines.start(index + 1) - 1), index);
            }
        }
    }

    #[test]
    fn the_end_of_most_lines() {
        for (text, end) in [
            ("", None),
            ("a\rb", None),
            ("a\n", Some("\n")),
            ("a\r\nb", Some("\r\n")),
            ("a\r\nb\n", Some("\r\n")),
            ("a\nb\r\n", Some("\n")),
            ("a\nb\r\nc\r\n", Some("\r\n")),
        ] {
            assert_eq!(dominant_end(text), end, "{text:?}");
        }
    }

    #[test]
    fn one_shift_for_all_lines_or_none() {
        for (pairs, line, expected) in [
            (vec![("", "    "), ("  ", "      ")], " x", Some("     x")),
            (vec![("    ", ""), ("      ", "  ")], "        x", Some("    x")),
            // Not indented so far.
            (vec![("    ", "")], "  x", None),
            (vec![("\t", "")], "    x", None),
            (
                vec![("    ", "\t"), ("        ", "\t\t"), ("", "")],
                "            x",
                Some("\t\t\tx"),
            ),
            (
                vec![("  ", "    "), ("    ", "        ")],
                "      x",
                Some("            x"),
            ),
            (vec![("", "  "), ("  ", "  ")], "", None),
            (vec![("", "\t"), ("\t", "  ")], "", None),
            (vec![], "  x", Some("  x")),
        ] {
            let shifted = Shift::between(&pairs).and_then(|shift| {
                let mut text = String::new();
                shift.push(line, &mut text).ok().map(|()| text)
            });
            assert_eq!(shifted.as_deref(), expected, "{pairs:?}");
        }
        let mut blank = String::new();
        Shift::between(&[("", "  ")]).unwrap().push(" ", &mut blank).unwrap();
        assert_eq!(blank, " ");
    }
}
