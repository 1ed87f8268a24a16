//! Where a text stands in another: exactly, and then more and more forgivingly.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;

use super::lines::{Lines, Piece, Shift, indent, is_blank};

/// How forgiving a comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Byte for byte.
    Exact,
    /// But for the kind of line ends.
    Ends,
    /// But for blanks at the end of lines.
    Blanks,
    /// But for indentation that is shifted alike in all lines.
    Indent,
    /// But for quotes, dashes and blanks that look alike.
    Lookalike,
}

/// The levels at which whole lines are compared, without their ends.
pub(super) const LINE_LEVELS: [Level; 4] = [Level::Exact, Level::Blanks, Level::Indent, Level::Lookalike];

/// Places that are looked for where more than one is a mistake.
pub(super) const MOST_DOUBTS: usize = 10_000;
/// Places that are looked for where all are meant.
pub(super) const MOST_PLACES: usize = 1_000_000;

/// A place where something was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) range: Range<usize>,
    /// How new lines have to be indented there.
    pub(super) shift: Shift,
    /// FetchedFile by whole lines: from this one on.
    pub(super) line: Option<usize>,
}

impl Match {
    /// Of a part of the text, as it is.
    pub(super) fn part(range: Range<usize>) -> Self {
        Self {
            range,
            shift: Shift::none(),
            line: None,
        }
    }
}

/// All places of `old` at the first level that has any. They do not overlap, unless that is what
/// makes a single one doubtful (`overlapping`).
pub(super) fn find(lines: &Lines<'_>, old: &str, overlapping: bool) -> (Level, Vec<Match>) {
    let text = lines.text();
    let exact = exactly(text, old, overlapping);
    if !exact.is_empty() {
        return (Level::Exact, exact.into_iter().map(Match::part).collect());
    }
    let pieces = super::lines::pieces(old);
    let pattern: Vec<&str> = pieces.iter().map(|piece| piece.content).collect();
    for level in [Level::Ends, Level::Blanks, Level::Indent, Level::Lookalike] {
        let mut found: Vec<Match> = match level {
            Level::Ends => alike(text, old, false, overlapping)
                .into_iter()
                .map(Match::part)
                .collect(),
            Level::Lookalike => alike(text, old, true, overlapping)
                .into_iter()
                .map(Match::part)
                .collect(),
            _ => Vec::new(),
        };
        if found.is_empty() && level != Level::Ends {
            found = whole_lines(lines, &pieces, &pattern, level, overlapping);
        }
        if !found.is_empty() {
            return (level, found);
        }
    }
    (Level::Lookalike, Vec::new())
}

/// Whether it is worth while to look for more.
fn is_open<T>(found: &[T], overlapping: bool) -> bool {
    found.len() < if overlapping { MOST_DOUBTS } else { MOST_PLACES }
}

fn exactly(text: &str, old: &str, overlapping: bool) -> Vec<Range<usize>> {
    let finder = memmem::Finder::new(old);
    let step = if overlapping {
        old.chars().next().map_or(1, char::len_utf8)
    } else {
        old.len()
    };
    let mut found = Vec::new();
    let mut from = 0;
    while is_open(&found, overlapping)
        && let Some(at) = finder.find(&text.as_bytes()[from..])
    {
        let at = from + at;
        // A line end is not cut: what is before the first belongs to it.
        let has_return = old.starts_with('\n') && text[..at].ends_with('\r');
        let is_free = found
            .last()
            .is_none_or(|last: &Range<usize>| last.end < at || overlapping);
        let start = if has_return && is_free { at - 1 } else { at };
        found.push(start..at + old.len());
        from = at + step;
    }
    found
}

/// Places that are the same but for line ends, and `folded` also but for what looks alike.
fn alike(text: &str, old: &str, folded: bool, overlapping: bool) -> Vec<Range<usize>> {
    let pattern: Vec<char> = folded_chars(old, folded).map(|(_, c)| c).collect();
    let has_ends = text.contains('\r') || old.contains('\r');
    let has_alike = folded && !(text.is_ascii() && old.is_ascii());
    let Some(first) = pattern.first().copied().filter(|_| has_ends || has_alike) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut at = 0;
    while is_open(&found, overlapping)
        && let Some(start) = text[at..].find(|c: char| c == first || c == '\r' || (folded && !c.is_ascii()))
    {
        let start = at + start;
        let next = folded_chars(&text[start..], false).next();
        at = start + next.map_or(1, |((_, end), _)| end);
        if let Some(length) = end_of_match(&text[start..], &pattern, folded) {
            found.push(start..start + length);
            if !overlapping {
                at = start + length;
            }
        }
    }
    found
}

/// How long the match at the beginning of a text is. It begins with a sign that counts and ends between two.
fn end_of_match(text: &str, pattern: &[char], folded: bool) -> Option<usize> {
    let mut pattern = pattern.iter();
    let mut signs = folded_chars(text, folded).peekable();
    let begins_here = signs.peek().is_some_and(|((start, _), _)| *start == 0);
    let mut end = 0;
    for wanted in pattern.by_ref() {
        let ((_, sign_end), c) = signs.next().filter(|_| begins_here)?;
        if c != *wanted {
            return None;
        }
        end = sign_end;
    }
    // Three points are one sign: it is not cut.
    let is_whole = signs.peek().is_none_or(|((start, _), _)| *start >= end);
    is_whole.then_some(end)
}

/// The signs of a text, each with the range of the character it comes from; `\r\n` counts as `\n`.
fn folded_chars(text: &str, folded: bool) -> impl Iterator<Item = ((usize, usize), char)> {
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (start, mut c) = chars.next()?;
        let mut end = start + c.len_utf8();
        if c == '\r'
            && let Some((at, '\n')) = chars.peek().copied()
        {
            chars.next();
            (c, end) = ('\n', at + 1);
        }
        Some(((start, end), c))
    })
    .flat_map(move |(range, c)| {
        let plain = if folded { plain(c) } else { None };
        let (several, single) = match plain {
            Some(text) => (Some(text.chars()), None),
            None => (None, Some(c)),
        };
        several.into_iter().flatten().chain(single).map(move |c| (range, c))
    })
}

/// What a sign looks like that stands on every keyboard; `None` for all others.
fn plain(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{2018}'..='\u{201b}' | '\u{2032}' => "'",
        '\u{201c}'..='\u{201f}' | '\u{2033}' => "\"",
        '\u{2010}'..='\u{2015}' | '\u{2212}' => "-",
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => " ",
        '\u{2026}' => "...",
        '\u{200b}' | '\u{2060}' | '\u{feff}' => "",
        _ => return None,
    })
}

fn folded(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        Cow::Borrowed(text)
    } else {
        folded_chars(text, true).map(|(_, c)| c).collect()
    }
}

/// Places by whole lines. A line end that is lacking at the end of the file is forgiven.
fn whole_lines(
    lines: &Lines<'_>,
    pieces: &[Piece<'_>],
    pattern: &[&str],
    level: Level,
    overlapping: bool,
) -> Vec<Match> {
    let mut found = Vec::new();
    let mut next = 0;
    while is_open(&found, overlapping)
        && let Some((line, shift)) = find_lines(lines, pattern, level, next)
    {
        let last = line + pattern.len() - 1;
        let has_end = pieces.last().is_some_and(|piece| piece.has_end);
        let end = if has_end {
            lines.start(last + 1)
        } else {
            lines.start(last) + lines.content(last).len()
        };
        found.push(Match {
            range: lines.start(line)..end,
            shift,
            line: Some(line),
        });
        next = if overlapping { line + 1 } else { last + 1 };
    }
    found
}

/// The first place from line `from` on where these lines stand, and how they are shifted there.
pub(super) fn find_lines(lines: &Lines<'_>, pattern: &[&str], level: Level, from: usize) -> Option<(usize, Shift)> {
    if pattern.is_empty() || (level > Level::Blanks && pattern.iter().all(|line| is_blank(line))) {
        return None;
    }
    let prepared: Vec<Cow<'_, str>> = pattern.iter().map(|line| prepare(line, level)).collect();
    let last = lines.len().checked_sub(pattern.len())?;
    let stands_at = |line: usize| {
        let same = |(index, wanted): (usize, &Cow<'_, str>)| {
            let found = lines.content(line + index);
            match level {
                Level::Exact | Level::Ends => found == wanted,
                Level::Blanks => found.trim_end_matches([' ', '\t']) == wanted,
                Level::Indent => found.trim_matches([' ', '\t']) == wanted,
                Level::Lookalike => prepare(found, level) == *wanted,
            }
        };
        if !prepared.iter().enumerate().all(same) {
            return None;
        }
        if level <= Level::Blanks {
            return Some((line, Shift::none()));
        }
        let indents: Vec<(&str, &str)> = pattern
            .iter()
            .enumerate()
            .filter(|(_, given)| !is_blank(given))
            .map(|(index, given)| (indent(given), indent(lines.content(line + index))))
            .collect();
        Shift::between(&indents).map(|shift| (line, shift))
    };
    let cores = pattern.iter().map(|line| line.trim_matches([' ', '\t'])).enumerate();
    let Some((index, core)) = cores
        .max_by_key(|(_, core)| core.len())
        .filter(|(_, core)| !core.is_empty())
    else {
        return (from..=last).find_map(stands_at);
    };
    if level == Level::Lookalike {
        return (from..=last).find_map(stands_at);
    }
    // Most lines are passed over at once: only those that hold the longest of the pattern are looked at.
    let finder = memmem::Finder::new(core);
    let mut at = lines.start(from + index);
    while let Some(hit) = finder.find(&lines.text().as_bytes()[at..]) {
        let line = lines.at(at + hit);
        if line - index > last {
            break;
        }
        if let Some(found) = stands_at(line - index) {
            return Some(found);
        }
        at = lines.start(line + 1);
    }
    None
}

/// A line as it is compared.
fn prepare(line: &str, level: Level) -> Cow<'_, str> {
    match level {
        Level::Exact | Level::Ends => Cow::Borrowed(line),
        Level::Blanks => Cow::Borrowed(line.trim_end_matches([' ', '\t'])),
        Level::Indent => Cow::Borrowed(line.trim_matches([' ', '\t'])),
        Level::Lookalike => match folded(line) {
            Cow::Borrowed(line) => Cow::Borrowed(line.trim_matches([' ', '\t'])),
            Cow::Owned(line) => Cow::Owned(line.trim_matches([' ', '\t']).to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(text: &'a str, old: &str) -> (Level, Vec<&'a str>) {
        let lines = Lines::new(text);
        let (level, found) = find(&lines, old, true);
        (level, found.into_iter().map(|found| &text[found.range]).collect())
    }

    #[test]
    fn the_first_level_that_fits_counts() {
        use Level::{Blanks, Ends, Exact, Indent, Lookalike};
        for (text, old, level, places) in [
            ("one two one", "one", Exact, vec!["one", "one"]),
            ("ababa", "aba", Exact, vec!["aba", "aba"]),
            ("a\r\nb\r\nc", "a\nb", Ends, vec!["a\r\nb"]),
            ("xa\nb\n", "a\r\nb\r\n", Ends, vec!["a\nb\n"]),
            ("a  \nb\n", "a\nb", Blanks, vec!["a  \nb"]),
            ("a\nb\n", "a  \nb\t\n", Blanks, vec!["a\nb\n"]),
            ("x\nlast", "x\nlast\n", Blanks, vec!["x\nlast"]),
            (
                "if x:\n        a\n          b\n",
                "  a\n    b",
                Indent,
                vec!["        a\n          b"],
            ),
            ("\ta\n\t\tb\n", "    a\n        b\n", Indent, vec!["\ta\n\t\tb\n"]),
            (
                "say \u{201c}hi\u{201d}\u{2026} now",
                "\"hi\"...",
                Lookalike,
                vec!["\u{201c}hi\u{201d}\u{2026}"],
            ),
            ("a\u{a0}b \u{2013} c", "a b - c", Lookalike, vec!["a\u{a0}b \u{2013} c"]),
            (
                "  it\u{2019}s\n    x\n",
                "it's\n  x\n",
                Lookalike,
                vec!["  it\u{2019}s\n    x\n"],
            ),
            // A sign is not cut.
            ("wait\u{2026}", "wait.", Lookalike, vec![]),
            // Not shifted alike.
            ("  a\n  b\n", "a\n b\n", Lookalike, vec![]),
            ("aXb", "a b", Lookalike, vec![]),
        ] {
            assert_eq!(found(text, old), (level, places), "{text:?} {old:?}");
        }
    }

    #[test]
    fn lines_that_stand_twice_are_found_twice() {
        let text = "  a\n  b\n    a\n    b\n";
        assert_eq!(found(text, "a\nb\n").1, ["  a\n  b\n", "    a\n    b\n"]);
        let lines = Lines::new("x\nx\nx\n");
        assert_eq!(find(&lines, "x \nx", true).1.len(), 2);
        assert_eq!(find(&lines, "x \nx", false).1.len(), 1);
        assert_eq!(find(&lines, "x", false).1.len(), 3);
    }
}
