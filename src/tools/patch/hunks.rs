//! Where the hunks of a patch belong in a file, and what they make of it.
//!
//! Each hunk has its candidates: the places where its old lines stand at the first level that has any, after its
//! anchors. Hunks stand in the order of the file, and one choice of places must be the only one: when the earliest and
//! the latest differ, the patch is refused as ambiguous. A guess would change the wrong place without a word.

use std::ops::Range;

use super::edits::{joined, keep_missing_end};
use super::find::{LINE_LEVELS, Level, find_lines};
use super::lines::{Lines, Shift, dominant_end, is_blank};
use super::nearest::{nearest, numbers};
use super::text::{Edit, changes};
use super::v4a::{Hunk, Line};

/// A place of a hunk: its first line (from 0), and how its lines are shifted there.
#[derive(Clone, Debug)]
struct Place {
    line: usize,
    shift: Shift,
}

/// A hunk with all places where it could be.
struct Open<'h> {
    hunk: &'h Hunk,
    /// Lines before the first that it changes. Those around its changes may be another's too.
    before: usize,
    /// Lines from the first to the last that it changes.
    changed: usize,
    places: Vec<Place>,
}

impl Open<'_> {
    fn new<'h>(hunk: &'h Hunk, places: Vec<Place>) -> Open<'h> {
        let stays = |line: &&Line| matches!(line, Line::Stays(_));
        let before = hunk.lines.iter().take_while(stays).count();
        let after = hunk.lines.iter().rev().take_while(stays).count();
        Open {
            hunk,
            before,
            changed: hunk.old().len().saturating_sub(before + after),
            places,
        }
    }

    /// The lines that it changes at one of its places.
    fn changes(&self, place: usize) -> Range<usize> {
        let first = self.places[place].line + self.before;
        first..first + self.changed
    }

    /// The first place whose changes begin at a line or after it.
    fn earliest(&self, from: usize) -> Option<usize> {
        (0..self.places.len()).find(|place| self.changes(*place).start >= from)
    }

    /// The last place whose changes end before a line.
    fn latest(&self, before: usize) -> Option<usize> {
        (0..self.places.len()).rfind(|place| self.changes(*place).end <= before)
    }
}

/// Edits that carry out the hunks of one file.
///
/// # Errors
/// A sentence that names the hunk and the line of the patch.
pub(super) fn apply(text: &str, hunks: &[Hunk]) -> Result<Vec<Edit>, String> {
    let lines = Lines::new(text);
    let fail =
        |index: usize, why: String| format!("hunk {} (line {} of the patch): {why}", index + 1, hunks[index].line);
    let mut open = Vec::with_capacity(hunks.len());
    for (index, hunk) in hunks.iter().enumerate() {
        let places = candidates(&lines, hunk).map_err(|why| fail(index, why))?;
        open.push(Open::new(hunk, places));
    }
    let chosen = choose(&open, lines.len()).map_err(|(index, doubt)| {
        let places = numbers(open[index].places.iter().map(|place| place.line));
        fail(
            index,
            match doubt {
                Doubt::Ambiguous => format!(
                    "its lines stand at several places (lines {places}); add more of the lines around them, or @@ and a line that stands before the right place"
                ),
                Doubt::Order => format!(
                    "its lines stand only at line {places}, where the hunks before it have been already; put hunks in the order of the file, and what overlaps into one"
                ),
            },
        )
    })?;
    let mut placed: Vec<(&Open<'_>, usize)> = open.iter().zip(chosen).collect();
    placed.sort_by_key(|(open, place)| (open.changes(*place).start, open.changes(*place).end));
    let end = dominant_end(text).unwrap_or("\n");
    let mut edits = Vec::new();
    for (open, place) in placed {
        edits_of(&lines, open.hunk, &open.places[place], end, &mut edits)?;
    }
    let mut edits = joined(edits);
    keep_missing_end(text, &mut edits, end);
    if changes(text, &edits) {
        Ok(edits)
    } else {
        Err("nothing would change: the file has these lines already".into())
    }
}

/// All places where a hunk could be, in the order of the file.
fn candidates(lines: &Lines<'_>, hunk: &Hunk) -> Result<Vec<Place>, String> {
    let old = hunk.old();
    let starts = anchored(lines, &hunk.anchors)?;
    if old.is_empty() {
        return insertion(lines, hunk, &starts);
    }
    let (mut places, level) = matching(lines, &old);
    if places.is_empty() {
        let unmarked = match hunk.unmarked {
            Some(line) => format!(
                "\nline {line} of the patch begins with none of + - and a blank, and was taken as a line that stays"
            ),
            None => String::new(),
        };
        return Err(format!("its lines were not found; {}{unmarked}", nearest(lines, &old)));
    }
    if hunk.at_end {
        let at_end = |place: &Place| place.line + old.len() == lines.len();
        if places.iter().any(at_end) {
            places.retain(at_end);
        }
    }
    if !hunk.anchors.is_empty() {
        places = after_each(&places, &starts);
        if places.is_empty() {
            return Err(format!(
                "its lines stand nowhere after its @@ anchor, which is line {}",
                numbers(starts.iter().map(|start| start - 1))
            ));
        }
    }
    if let (true, Some(heading)) = (places.len() > 1, &hunk.heading) {
        let after = anchored(lines, std::slice::from_ref(heading)).map(|starts| after_each(&places, &starts));
        if let Ok(after) = after
            && !after.is_empty()
        {
            places = after;
        }
    }
    // Line numbers are often wrong: they decide only between places that fit, and only when they hit one.
    if let Some(number) = hunk.number
        && level == Level::Exact
        && places.iter().any(|place| place.line + 1 == number)
    {
        places.retain(|place| place.line + 1 == number);
    }
    Ok(places)
}

/// The place of new lines without any around them.
fn insertion(lines: &Lines<'_>, hunk: &Hunk, starts: &[usize]) -> Result<Vec<Place>, String> {
    let shift = Shift::none();
    let at = |line| Ok(vec![Place { line, shift }]);
    match starts {
        _ if hunk.at_end && hunk.anchors.is_empty() || lines.len() == 0 => at(lines.len()),
        [line] if !hunk.anchors.is_empty() => at(*line),
        starts if !hunk.anchors.is_empty() => Err(format!(
            "its @@ anchor stands at several places (lines {}); add lines around the new ones",
            numbers(starts.iter().map(|start| start - 1))
        )),
        _ => Err("nothing says where its lines go; add lines around them, @@ and the line that stands before them, or *** End of File".into()),
    }
}

/// The places where lines stand, at the first level that has any.
fn matching(lines: &Lines<'_>, old: &[&str]) -> (Vec<Place>, Level) {
    for level in LINE_LEVELS {
        let mut places = Vec::new();
        let mut from = 0;
        while let Some((line, shift)) = find_lines(lines, old, level, from) {
            places.push(Place { line, shift });
            from = line + 1;
        }
        if !places.is_empty() {
            return (places, level);
        }
    }
    (Vec::new(), Level::Lookalike)
}

/// The lines after each place where the anchors stand, one after the other.
fn anchored(lines: &Lines<'_>, anchors: &[String]) -> Result<Vec<usize>, String> {
    let mut starts: Option<Vec<usize>> = None;
    for anchor in anchors {
        let found = anchor_lines(lines, anchor);
        let after: Vec<usize> = match &starts {
            None => found,
            Some(starts) => {
                let first_after = |start: &usize| found.iter().find(|line| *line >= start).copied();
                starts.iter().filter_map(first_after).collect()
            }
        };
        if after.is_empty() {
            let said = match starts {
                Some(_) => " after the anchor before it",
                None => "",
            };
            return Err(format!(
                "its anchor @@ {anchor} was not found{said}; {}",
                nearest(lines, &[anchor])
            ));
        }
        let mut after: Vec<usize> = after.into_iter().map(|line| line + 1).collect();
        after.dedup();
        starts = Some(after);
    }
    Ok(starts.unwrap_or_default())
}

/// The lines that are an anchor: the whole line, or, where there is none, its beginning.
fn anchor_lines(lines: &Lines<'_>, anchor: &str) -> Vec<usize> {
    let (whole, _) = matching(lines, &[anchor]);
    if !whole.is_empty() {
        return whole.into_iter().map(|place| place.line).collect();
    }
    let begins = |line: &usize| lines.content(*line).trim_start().starts_with(anchor.trim());
    (0..lines.len()).filter(begins).collect()
}

/// The first place after each start.
fn after_each(places: &[Place], starts: &[usize]) -> Vec<Place> {
    let mut after: Vec<Place> = Vec::new();
    for start in starts {
        if let Some(place) = places.iter().find(|place| place.line >= *start)
            && after.last().is_none_or(|last| last.line != place.line)
        {
            after.push(place.clone());
        }
    }
    after
}

/// Why no choice of places can be made.
enum Doubt {
    Ambiguous,
    Order,
}

/// The place of each hunk, where there is only one choice.
fn choose(open: &[Open<'_>], count: usize) -> Result<Vec<usize>, (usize, Doubt)> {
    let mut earliest = Vec::with_capacity(open.len());
    let mut from = 0;
    for (index, hunk) in open.iter().enumerate() {
        let Some(place) = hunk.earliest(from) else {
            return out_of_order(open).ok_or(match hunk.places.len() {
                1 => (index, Doubt::Order),
                _ => (index, Doubt::Ambiguous),
            });
        };
        earliest.push(place);
        from = hunk.changes(place).end;
    }
    let mut before = count;
    for (index, hunk) in open.iter().enumerate().rev() {
        // There is one: the earliest.
        let place = hunk.latest(before).unwrap_or(earliest[index]);
        if place != earliest[index] {
            // The first whose choice is open is named; those before it are settled by then.
            let first = (0..=index).find(|index| open[*index].places.len() > 1).unwrap_or(index);
            return Err((first, Doubt::Ambiguous));
        }
        before = hunk.changes(place).start;
    }
    Ok(earliest)
}

/// Hunks in another order than the file, where each has a single place and none overlap.
fn out_of_order(open: &[Open<'_>]) -> Option<Vec<usize>> {
    if open.iter().any(|hunk| hunk.places.len() != 1) {
        return None;
    }
    let mut changed: Vec<Range<usize>> = open.iter().map(|hunk| hunk.changes(0)).collect();
    changed.sort_unstable_by_key(|range| (range.start, range.end));
    let apart = changed.windows(2).all(|pair| pair[0].end <= pair[1].start);
    apart.then(|| vec![0; open.len()])
}

/// What a hunk does at its place. Lines that stay are not touched.
fn edits_of(lines: &Lines<'_>, hunk: &Hunk, place: &Place, end: &str, edits: &mut Vec<Edit>) -> Result<(), String> {
    let mut at = place.line;
    let mut under_way: Option<Edit> = None;
    for line in &hunk.lines {
        let start = lines.start(at);
        match line {
            Line::Stays(_) => {
                edits.extend(under_way.take());
                at += 1;
            }
            Line::Goes(_) => {
                at += 1;
                let edit = under_way.get_or_insert_with(|| empty_at(start));
                edit.range.end = lines.start(at);
            }
            Line::Comes(text) => {
                let edit = under_way.get_or_insert_with(|| empty_at(start));
                if is_blank(text) {
                    edit.new.push_str(text);
                } else {
                    place
                        .shift
                        .push(text, &mut edit.new)
                        .map_err(|why| format!("line {}: {why}", place.line + 1))?;
                }
                edit.new.push_str(end);
            }
        }
    }
    edits.extend(under_way);
    Ok(())
}

fn empty_at(place: usize) -> Edit {
    Edit {
        range: place..place,
        new: String::new(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::super::text::applied;
    use super::super::v4a::{Action, parse};
    use super::*;

    fn done(text: &str, hunks: &str) -> Result<String, String> {
        let sections = parse(&format!("*** Update File: f\n{hunks}")).unwrap();
        let Action::Update { hunks, .. } = &sections[0].action else {
            panic!("{sections:?}")
        };
        apply(text, hunks).map(|edits| applied(text, &edits))
    }

    #[test]
    fn hunks_find_their_places() {
        for (text, hunks, expected) in [
            ("a\nb\nc\n", "@@\n a\n-b\n+x\n+y\n c", "a\nx\ny\nc\n"),
            // Ends of lines: as most are; those that stay are not touched.
            ("a\r\nb\r\nc\n", " a\n+x\n b\n-c", "a\r\nx\r\nb\r\n"),
            ("a  \n\tb\n", " a\n-b\n+c", "a  \n\tb\n"),
            // Shifted as the file is.
            ("  if a:\n    b\n", "-if a:\n+if c:\n   b", "  if c:\n    b\n"),
            ("x = \u{201c}a\u{201d}\n", "-x = \"a\"\n+x = \"b\"", "x = \"b\"\n"),
            // Anchors.
            (
                "class A:\n  x\nclass B:\n  x\n",
                "@@ class B:\n-  x\n+  y",
                "class A:\n  x\nclass B:\n  y\n",
            ),
            (
                "class A:\n def f(a):\n  x\n def g():\n  x\nclass B:\n def g():\n  x\n",
                "@@ class A\n@@ def g()\n-  x\n+  y",
                "class A:\n def f(a):\n  x\n def g():\n  y\nclass B:\n def g():\n  x\n",
            ),
            ("def f():\n  x\n", "@@ def f():\n+  new", "def f():\n  new\n  x\n"),
            // The end of the file.
            ("x\ny\nx\n", "-x\n+z\n*** End of File", "x\ny\nz\n"),
            ("x\n", "+y\n*** End of File", "x\ny\n"),
            ("x", "+y\n*** End of File", "x\ny"),
            ("x\ny", " x\n-y", "x"),
            ("", "+y", "y\n"),
            // Hunks one after the other; each of several alike has its own.
            ("x\nx\nx\n", "-x\n+1\n@@\n-x\n+2\n@@\n-x\n+3", "1\n2\n3\n"),
            ("a\nx\nb\nx\n", " b\n-x\n+y", "a\nx\nb\ny\n"),
            ("a\nb\nc\nd\n", "-d\n+D\n@@\n-b\n+B", "a\nB\nc\nD\n"),
            ("a\nb\nc\n", "-a\n+A\n b\n@@\n b\n-c\n+C", "A\nb\nC\n"),
            // Numbers decide between places that fit.
            ("x\ny\nx\n", "@@ -3,1 +3,1 @@\n-x\n+z", "x\ny\nz\n"),
            ("x\ny\nz\n", "@@ -9,1 +9,1 @@\n-y\n+Y", "x\nY\nz\n"),
            (
                "def a:\n x\ndef b:\n x\n",
                "@@ -99,1 +99,1 @@ def b:\n- x\n+ y",
                "def a:\n x\ndef b:\n y\n",
            ),
        ] {
            let expected = if text == "a  \n\tb\n" {
                Err(())
            } else {
                Ok(expected.to_owned())
            };
            assert_eq!(done(text, hunks).map_err(|_| ()), expected, "{text:?} {hunks:?}");
        }
    }

    #[test]
    fn errors_name_hunk_and_line() {
        for (text, hunks, words) in [
            (
                "a\nb\n",
                "@@\n-a\n+x\n@@\n-c\n+y",
                vec!["hunk 2 (line 5 of the patch)", "not found"],
            ),
            (
                "x\ny\nx\n",
                "-x\n+z",
                vec!["hunk 1 (line 2", "several places (lines 1, 3)", "@@"],
            ),
            (
                "x\nx\nx\n",
                "-x\n+1\n@@\n-x\n+2",
                vec!["hunk 1", "several places (lines 1, 2, 3)"],
            ),
            ("a\nb\n", "@@ nowhere\n-a\n+b", vec!["@@ nowhere was not found"]),
            ("a\nb\n", "@@ b\n-a\n+b", vec!["nowhere after", "line 2"]),
            ("a\nb\n", "+x", vec!["nothing says where"]),
            (
                "a\nb\na\n",
                "@@ a\n+x",
                vec!["anchor stands at several places (lines 1, 3)"],
            ),
            ("a\nb\nc\n", "-b\n+x\n@@\n a\n-b\n+y", vec!["hunk 2", "only at line 1"]),
            ("a\n", "-a\n+a", vec!["nothing would change"]),
            ("a\n", "b\n+x", vec!["line 2 of the patch begins with none of"]),
        ] {
            let error = done(text, hunks).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text:?} {hunks:?}: {error}");
            }
        }
    }
}
