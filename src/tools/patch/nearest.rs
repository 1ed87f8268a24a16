//! What to say of a text that was not found, or found too often.

use std::collections::HashMap;
use std::ops::Range;

use super::lines::{Lines, is_blank};

/// Lines of a file that an error shows.
const SHOWN_LINES: usize = 12;
/// Lines beside the place that is shown.
const BESIDE: usize = 1;
/// Characters of a line that an error shows.
const SHOWN_CHARS: usize = 160;
/// Places that an error names.
const SHOWN_PLACES: usize = 200;
/// Lines that are compared letter by letter.
const COMPARED_LINES: usize = 20_000;
/// Letters of a line that are compared.
const COMPARED_CHARS: usize = 120;
/// Lines that are so alike that one may be meant by the other.
const ALIKE: f64 = 0.55;
/// Bytes of a line of which few pairs of letters are left by a slip or two.
const SHORT: usize = 24;
const SLIPS: usize = 2;

/// Numbers of lines, from 1.
pub(super) fn numbers(found: impl Iterator<Item = usize>) -> String {
    let mut found: Vec<usize> = found.map(|line| line + 1).collect();
    found.dedup();
    let more = found.len().saturating_sub(SHOWN_PLACES);
    found.truncate(SHOWN_PLACES);
    let shown: Vec<String> = found.iter().map(usize::to_string).collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}

/// The lines that are most like a pattern, numbered, with a word of what differs; a sentence in any case.
pub(super) fn nearest(lines: &Lines<'_>, pattern: &[&str]) -> String {
    if lines.len() == 0 {
        return "the file is empty".into();
    }
    let Some(start) = best_start(lines, pattern) else {
        let mut text = String::from("no line is like it; the file begins with\n");
        push_lines(&mut text, lines, 0..lines.len().min(SHOWN_LINES / 2));
        text.push_str("read it again");
        return text;
    };
    let end = (start + pattern.len()).min(lines.len());
    let differing = (start..end).find(|line| lines.content(*line) != pattern[line - start]);
    // With a long pattern, what is of interest is where it begins to differ.
    let first = match differing {
        Some(line) if line - start > SHOWN_LINES / 2 => line - SHOWN_LINES / 2,
        _ => start.saturating_sub(BESIDE),
    };
    let last = (end + BESIDE).min(lines.len()).min(first + SHOWN_LINES);
    let mut text = String::from("the nearest lines are\n");
    push_lines(&mut text, lines, first..last);
    match differing {
        Some(line) => text.push_str(&format!(
            "where line {} should be {:?}",
            line + 1,
            clipped(pattern[line - start])
        )),
        None => text.push_str("and there the file ends"),
    }
    text
}

fn push_lines(text: &mut String, lines: &Lines<'_>, range: Range<usize>) {
    for line in range {
        text.push_str(&format!("{}|{}\n", line + 1, clipped(lines.content(line))));
    }
}

fn clipped(line: &str) -> String {
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Where the pattern would begin.
fn best_start(lines: &Lines<'_>, pattern: &[&str]) -> Option<usize> {
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    for (index, line) in pattern.iter().enumerate() {
        if !is_blank(line) {
            wanted.entry(line.trim()).or_insert(index);
        }
    }
    // Each line that is the same votes for a place.
    let mut votes: HashMap<usize, usize> = HashMap::new();
    for line in 0..lines.len() {
        if let Some(index) = wanted.get(lines.content(line).trim()) {
            *votes.entry(line.saturating_sub(*index)).or_default() += 1;
        }
    }
    let most = votes
        .into_iter()
        .max_by_key(|(start, votes)| (*votes, usize::MAX - start));
    most.map(|(start, _)| start).or_else(|| most_alike(lines, pattern))
}

/// The place whose line is most like the longest of the pattern.
fn most_alike(lines: &Lines<'_>, pattern: &[&str]) -> Option<usize> {
    let (index, longest) = pattern
        .iter()
        .enumerate()
        .max_by_key(|(index, line)| (line.trim().len(), usize::MAX - index))?;
    let longest = head(longest.trim());
    let score = |line: usize| {
        let content = head(lines.content(line).trim());
        if content.contains(longest) || (!content.is_empty() && longest.contains(content)) {
            return 1.0;
        }
        let dice = strsim::sorensen_dice(longest, content);
        if dice > ALIKE || longest.len().max(content.len()) > SHORT {
            return dice;
        }
        // A slip of the fingers leaves few pairs of a short line.
        let slips = strsim::osa_distance(longest, content);
        if slips <= SLIPS && longest.len() > 3 * slips {
            1.0 - slips as f64 / SHORT as f64
        } else {
            dice
        }
    };
    (0..lines.len().min(COMPARED_LINES))
        .map(|line| (score(line), line))
        .filter(|(score, _)| *score > ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)))
        .map(|(_, line)| line.saturating_sub(index))
}

fn head(line: &str) -> &str {
    line.char_indices()
        .nth(COMPARED_CHARS)
        .map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, pattern: &[&str]) -> String {
        nearest(&Lines::new(text), pattern)
    }

    #[test]
    fn the_place_with_most_of_the_lines_is_shown() {
        let text = "one\ndef f():\n    return 1\ndef g():\n    return 2\nend\n";
        assert_eq!(
            shown(text, &["def g():", "    return 3", "end"]),
            "the nearest lines are\n3|    return 1\n4|def g():\n5|    return 2\n6|end\nwhere line 5 should be \"    return 3\""
        );
    }

    #[test]
    fn else_the_most_alike_line() {
        let said = shown("alpha\nthe_value = compute(1)\nomega\n", &["the_value = compute(2)"]);
        assert!(said.contains("2|the_value = compute(1)"), "{said}");
        let said = shown("alpha\nbeta\n", &["zzzzzz"]);
        assert!(said.contains("no line is like it") && said.contains("2|beta"), "{said}");
        assert_eq!(shown("", &["x"]), "the file is empty");
    }

    #[test]
    fn an_error_stays_short() {
        let text = format!("{}\n", "x".repeat(10_000)).repeat(50);
        let pattern = vec!["x".repeat(10_000); 40];
        let pattern: Vec<&str> = pattern.iter().map(String::as_str).chain(["y"]).collect();
        assert!(shown(&text, &pattern).len() < 5000);
        assert!(numbers(0..100_000).len() < 2000);
        assert_eq!(numbers([0, 0, 4].into_iter()), "1, 5");
    }
}
