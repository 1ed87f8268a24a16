//! From a place and what is wanted there to edits that touch no line that stays.

use std::ops::Range;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::lines::{Piece, Shift};
use super::text::Edit;

/// Lines on either side up to which a difference is looked for; beyond, all is exchanged.
const COMPARED_LINES: usize = 4000;

/// The lines that differ, with as few as is easily found. What both sides begin and end with is left out first.
pub(super) fn difference<T: std::hash::Hash + Ord + Clone>(old: &[T], new: &[T]) -> Vec<DiffOp> {
    let shorter = old.len().min(new.len());
    let head = (0..shorter).take_while(|index| old[*index] == new[*index]).count();
    let same_at_end = |back: &usize| old[old.len() - 1 - back] == new[new.len() - 1 - back];
    let tail = (0..shorter - head).take_while(same_at_end).count();
    let (old, new) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let equal = |old_index, new_index, len| DiffOp::Equal {
        old_index,
        new_index,
        len,
    };
    let mut ops = Vec::new();
    if head > 0 {
        ops.push(equal(0, 0, head));
    }
    if old.len().max(new.len()) > COMPARED_LINES {
        ops.push(DiffOp::Replace {
            old_index: head,
            old_len: old.len(),
            new_index: head,
            new_len: new.len(),
        });
    } else {
        let inner = capture_diff_slices(Algorithm::Myers, old, new);
        ops.extend(inner.into_iter().map(|op| shifted(op, head, head)));
    }
    if tail > 0 {
        ops.push(equal(head + old.len(), head + new.len(), tail));
    }
    ops
}

/// An operation so many lines further on either side.
pub(super) fn shifted(op: DiffOp, old_by: usize, new_by: usize) -> DiffOp {
    let (_, old, new) = op.as_tag_tuple();
    let (old_index, new_index) = (old.start + old_by, new.start + new_by);
    match op {
        DiffOp::Equal { len, .. } => DiffOp::Equal {
            old_index,
            new_index,
            len,
        },
        DiffOp::Delete { old_len, .. } => DiffOp::Delete {
            old_index,
            old_len,
            new_index,
        },
        DiffOp::Insert { new_len, .. } => DiffOp::Insert {
            old_index,
            new_index,
            new_len,
        },
        DiffOp::Replace { old_len, new_len, .. } => DiffOp::Replace {
            old_index,
            old_len,
            new_index,
            new_len,
        },
    }
}

/// Edits that make a place, whose pieces are given, what is wanted: pieces that are the same in `old` and `new` stay
/// as the file has them.
///
/// # Errors
/// A sentence, when a new line cannot be indented as the file is.
pub(super) fn of_pieces(
    place: &[Range<usize>],
    (old, new): (&[Piece<'_>], &[Piece<'_>]),
    shift: &Shift,
    end: &str,
    edits: &mut Vec<Edit>,
) -> Result<(), String> {
    let after = place.last().map_or(0, |piece| piece.end);
    let start_of = |index: usize| place.get(index).map_or(after, |piece| piece.start);
    for op in difference(old, new) {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        let (old, changed) = (op.old_range(), op.new_range());
        let mut text = String::new();
        for piece in &new[changed] {
            shift.push(piece.content, &mut text)?;
            if piece.has_end {
                text.push_str(end);
            }
        }
        let range = start_of(old.start)..if old.is_empty() {
            start_of(old.start)
        } else {
            place.get(old.end - 1).map_or(after, |piece| piece.end)
        };
        edits.push(Edit { range, new: text });
    }
    Ok(())
}

/// Joins edits that touch each other.
pub(super) fn joined(edits: Vec<Edit>) -> Vec<Edit> {
    let mut result: Vec<Edit> = Vec::with_capacity(edits.len());
    for edit in edits {
        match result.last_mut() {
            Some(last) if last.range.end == edit.range.start => {
                last.range.end = edit.range.end;
                last.new.push_str(&edit.new);
            }
            _ => result.push(edit),
        }
    }
    result
}

/// Edits of whole lines at the end of a text whose last line has no end: it has none afterwards either.
pub(super) fn keep_missing_end(text: &str, edits: &mut Vec<Edit>, end: &str) {
    if text.is_empty() || text.ends_with('\n') {
        return;
    }
    let Some(mut last) = edits.pop_if(|edit| edit.range.end == text.len()) else {
        return;
    };
    if last.range.is_empty() && !last.new.is_empty() {
        last.new.insert_str(0, end);
    }
    if !last.new.is_empty() {
        without_last_end(&mut last.new);
    } else if let Some(start) = text[..last.range.start].strip_suffix('\n') {
        // The line before becomes the last.
        match edits.last_mut() {
            Some(before) if before.range.end == last.range.start => without_last_end(&mut before.new),
            _ => last.range.start = start.strip_suffix('\r').unwrap_or(start).len(),
        }
    }
    edits.push(last);
}

fn without_last_end(text: &mut String) {
    if text.ends_with("\r\n") {
        text.truncate(text.len() - 2);
    } else if text.ends_with('\n') {
        text.pop();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::super::lines::pieces;
    use super::super::text::applied;
    use super::*;

    fn made(text: &str, old: &str, new: &str, end: &str) -> String {
        let mut at = 0;
        let place: Vec<Range<usize>> = text
            .split_inclusive('\n')
            .map(|piece| {
                at += piece.len();
                at - piece.len()..at
            })
            .collect();
        let mut edits = Vec::new();
        of_pieces(&place, (&pieces(old), &pieces(new)), &Shift::none(), end, &mut edits).unwrap();
        applied(text, &joined(edits))
    }

    #[test]
    fn lines_that_stay_are_not_touched() {
        for (text, old, new, end, expected) in [
            ("a\r\nb\nc", "a\nb\nc", "a\nB\nc", "\r\n", "a\r\nB\r\nc"),
            ("a  \nb \nc", "a\nb\nc", "a\nx\ny\nc", "\n", "a  \nx\ny\nc"),
            ("a\nb\nc\n", "a\nb\nc\n", "b\n", "\n", "b\n"),
            ("a\n", "a\n", "", "\n", ""),
            ("a\n", "a\n", "0\na\n1\n", "\n", "0\na\n1\n"),
            ("b", "b", "b\nc", "\n", "b\nc"),
        ] {
            assert_eq!(made(text, old, new, end), expected, "{text:?} {old:?} {new:?}");
        }
    }

    #[test]
    fn a_last_line_without_end_stays_one() {
        let edit = |range: Range<usize>, new: &str| Edit { range, new: new.into() };
        for (text, edits, expected) in [
            ("a\nb", vec![edit(3..3, "c\n")], "a\nb\nc"),
            ("a\nb", vec![edit(2..3, "x\ny\n")], "a\nx\ny"),
            ("a\r\nb", vec![edit(3..4, "")], "a"),
            ("a\nb", vec![edit(0..2, "x\r\n"), edit(2..3, "")], "x"),
            ("a", vec![edit(0..1, "")], ""),
            ("a\nb", vec![edit(0..2, "x\n")], "x\nb"),
            ("a\nb\n", vec![edit(2..4, "")], "a\n"),
            ("", vec![edit(0..0, "x\n")], "x\n"),
        ] {
            let mut edits = edits;
            keep_missing_end(text, &mut edits, "\n");
            assert_eq!(applied(text, &edits), expected, "{text:?}");
        }
    }

    #[test]
    fn very_long_differences_are_exchanged_whole() {
        let old: Vec<usize> = (0..20_000).collect();
        let mut new = old.clone();
        new.swap(5, 19_990);
        let ops = difference(&old, &new);
        assert_eq!(ops.len(), 3);
        assert_eq!(ops[1].old_range(), 5..19_991);
    }
}
