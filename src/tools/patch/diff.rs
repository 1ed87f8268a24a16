//! What a change looks like: a unified diff, made from the edits. Only the lines around them are compared.

use std::fmt::Write;
use std::ops::Range;

use memchr::{memchr, memchr_iter, memrchr};
use similar::{DiffOp, DiffTag, group_diff_ops};

use super::edits::{difference, shifted};
use super::text::Edit;

/// Lines around a change.
const CONTEXT: usize = 3;
/// Bytes of a diff; what is beyond is counted.
pub(in crate::tools) const MOST_BYTES: usize = 64 * 1024;
/// Characters of a line.
const MOST_CHARS: usize = 2000;

/// A diff of several files, up to a size.
#[derive(Debug, Default)]
pub(super) struct Diff {
    text: String,
    /// Changed lines that have no room.
    left_out: usize,
}

impl Diff {
    /// An existing file with edits, and its name afterwards.
    pub(super) fn changed(&mut self, old_name: &str, new_name: &str, text: &str, edits: &[Edit]) {
        if edits.is_empty() {
            self.header(&format!("rename from {old_name}\nrename to {new_name}\n"));
            return;
        }
        self.header(&format!("--- a/{}\n+++ b/{}\n", shown(old_name), shown(new_name)));
        // Lines before the region, and where that was counted.
        let (mut old_before, mut new_before, mut counted) = (0, 0, 0);
        let mut rest = edits;
        while !rest.is_empty() {
            let (count, region) = region(text, rest);
            let (near, others) = rest.split_at(count);
            let skipped = line_ends(&text[counted..region.start]);
            (old_before, new_before) = (old_before + skipped, new_before + skipped);
            let old = &text[region.clone()];
            let new = with_edits(text, &region, near);
            self.hunks(old, &new, || between(text, &region, near), old_before, new_before);
            (old_before, new_before) = (old_before + line_ends(old), new_before + line_ends(&new));
            counted = region.end;
            rest = others;
        }
    }

    /// A file that is new.
    pub(super) fn created(&mut self, name: &str, text: &str) {
        self.header(&format!("--- /dev/null\n+++ b/{}\n", shown(name)));
        self.hunks("", text, || whole("", text), 0, 0);
    }

    /// A file that is gone.
    pub(super) fn deleted(&mut self, name: &str, text: &str) {
        self.header(&format!("--- a/{}\n+++ /dev/null\n", shown(name)));
        self.hunks(text, "", || whole(text, ""), 0, 0);
    }

    /// A symlink that is gone; the file that it leads to is not.
    pub(super) fn deleted_link(&mut self, name: &str, to: &str) {
        self.header("deleted file mode 120000\n");
        self.deleted(name, to);
    }

    /// A file that is gone, and is no text.
    pub(super) fn deleted_binary(&mut self, name: &str) {
        self.header(&format!("Binary files a/{} and /dev/null differ\n", shown(name)));
    }

    pub(super) fn finish(mut self) -> String {
        if self.left_out > 0 {
            let said = format!(
                "[the diff is cut here: {} more changed lines are not shown]\n",
                self.left_out
            );
            self.text.push_str(&said);
        }
        self.text
    }

    fn header(&mut self, header: &str) {
        if self.left_out == 0 {
            self.text.push_str(header);
        }
    }

    /// The hunks between two pieces before which there are so many lines.
    fn hunks(&mut self, old: &str, new: &str, ops: impl FnOnce() -> Vec<DiffOp>, old_before: usize, new_before: usize) {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
        let new: Vec<&str> = new.split_inclusive('\n').collect();
        for ops in group_diff_ops(ops(), CONTEXT) {
            self.hunk(&ops, (&old, &new), old_before, new_before);
        }
    }

    fn hunk(&mut self, ops: &[DiffOp], (old, new): (&[&str], &[&str]), old_before: usize, new_before: usize) {
        let lines = ops.iter().flat_map(|op| {
            let (sign, come) = match op.tag() {
                DiffTag::Equal => (' ', &new[..0]),
                _ => ('-', &new[op.new_range()]),
            };
            let gone = old[op.old_range()].iter().map(move |line| (sign, *line));
            gone.chain(come.iter().map(|line| ('+', *line)))
        });
        if ops.iter().all(|op| op.tag() == DiffTag::Equal) {
            return;
        }
        for (index, (sign, line)) in lines.enumerate() {
            if self.left_out > 0 || self.text.len() > MOST_BYTES {
                self.left_out += usize::from(sign != ' ');
                continue;
            }
            if index == 0 {
                let from = numbers(ops, old_before, DiffOp::old_range);
                let to = numbers(ops, new_before, DiffOp::new_range);
                let _ = writeln!(self.text, "@@ -{from} +{to} @@");
            }
            push_line(&mut self.text, sign, line);
        }
    }
}

/// The lines that differ between two texts.
fn whole(old: &str, new: &str) -> Vec<DiffOp> {
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    difference(&old, &new)
}

/// The lines that edits make different in a region: only those that they touch are compared.
fn between(text: &str, region: &Range<usize>, edits: &[Edit]) -> Vec<DiffOp> {
    let mut ops = Vec::new();
    let (mut old_at, mut new_at, mut place) = (0, 0, region.start);
    let mut rest = edits;
    let equal = |ops: &mut Vec<DiffOp>, gap: &str, old_at: &mut usize, new_at: &mut usize| {
        let len = gap.split_inclusive('\n').count();
        push(
            ops,
            DiffOp::Equal {
                old_index: *old_at,
                new_index: *new_at,
                len,
            },
        );
        *old_at += len;
        *new_at += len;
    };
    while !rest.is_empty() {
        let (count, touched) = lines_touched(text, rest);
        let (here, others) = rest.split_at(count);
        equal(&mut ops, &text[place..touched.start], &mut old_at, &mut new_at);
        let (old, new) = (&text[touched.clone()], with_edits(text, &touched, here));
        for op in whole(old, &new) {
            push(&mut ops, shifted(op, old_at, new_at));
        }
        old_at += old.split_inclusive('\n').count();
        new_at += new.split_inclusive('\n').count();
        (place, rest) = (touched.end, others);
    }
    equal(&mut ops, &text[place..region.end], &mut old_at, &mut new_at);
    ops
}

/// Appends an operation; lines that are equal make one with those before.
fn push(ops: &mut Vec<DiffOp>, op: DiffOp) {
    match (ops.last_mut(), op) {
        (_, DiffOp::Equal { len: 0, .. }) => {}
        (Some(DiffOp::Equal { len, .. }), DiffOp::Equal { len: more, .. }) => *len += more,
        _ => ops.push(op),
    }
}

/// First line and count of a hunk.
fn numbers(ops: &[DiffOp], before: usize, range: fn(&DiffOp) -> Range<usize>) -> String {
    let start = ops.first().map_or(0, |op| range(op).start);
    let end = ops.last().map_or(0, |op| range(op).end);
    match end - start {
        // Of no lines, the one before is named.
        0 => format!("{},0", before + start),
        1 => format!("{}", before + start + 1),
        count => format!("{},{count}", before + start + 1),
    }
}

fn push_line(into: &mut String, sign: char, line: &str) {
    into.push(sign);
    let content = line.strip_suffix('\n');
    let shown = content.unwrap_or(line);
    match shown
        .char_indices()
        .nth(MOST_CHARS)
        .filter(|_| shown.len() > MOST_CHARS)
    {
        Some((at, _)) => {
            let _ = write!(into, "{} [… {} more bytes]", &shown[..at], shown.len() - at);
        }
        None => into.push_str(shown),
    }
    into.push('\n');
    if content.is_none() {
        into.push_str("\\ No newline at end of file\n");
    }
}

/// A path behind `a/` or `b/`.
fn shown(name: &str) -> &str {
    name.trim_start_matches('/')
}

fn line_ends(text: &str) -> usize {
    memchr_iter(b'\n', text.as_bytes()).count()
}

/// How many edits touch the same lines as the first, and these lines.
fn lines_touched(text: &str, edits: &[Edit]) -> (usize, Range<usize>) {
    let start = line_start(text, edits.first().map_or(0, |edit| edit.range.start));
    let mut end = start;
    for (count, edit) in edits.iter().enumerate() {
        if count > 0 && edit.range.start >= end {
            return (count, start..end);
        }
        end = changed_end(text, edit);
    }
    (edits.len(), start..end)
}

/// How many edits lie so near to the first that they share a hunk, and the whole lines around them.
fn region(text: &str, edits: &[Edit]) -> (usize, Range<usize>) {
    let first = edits.first().map_or(0, |edit| edit.range.start);
    let start = lines_back(text, line_start(text, first), CONTEXT);
    let mut end = start;
    for (count, edit) in edits.iter().enumerate() {
        if count > 0 && line_start(text, edit.range.start) > lines_on(text, end, 2 * CONTEXT) {
            return (count, start..lines_on(text, end, CONTEXT));
        }
        end = changed_end(text, edit);
    }
    (edits.len(), start..lines_on(text, end, CONTEXT))
}

/// The end of the last line that an edit changes: there a line ends before it and after it.
fn changed_end(text: &str, edit: &Edit) -> usize {
    let Range { start, end } = edit.range;
    let is_line_start = |place: usize| place == 0 || text.as_bytes()[place - 1] == b'\n';
    let ends_line = match edit.new.as_bytes().last() {
        Some(last) => *last == b'\n',
        None => is_line_start(start),
    };
    if ends_line && is_line_start(end) {
        end
    } else {
        lines_on(text, end, 1)
    }
}

fn line_start(text: &str, place: usize) -> usize {
    memrchr(b'\n', &text.as_bytes()[..place]).map_or(0, |at| at + 1)
}

/// So many lines before the start of a line.
fn lines_back(text: &str, mut place: usize, count: usize) -> usize {
    for _ in 0..count {
        if place == 0 {
            break;
        }
        place = line_start(text, place - 1);
    }
    place
}

/// The end of so many lines from a place on.
fn lines_on(text: &str, mut place: usize, count: usize) -> usize {
    for _ in 0..count {
        place = memchr(b'\n', &text.as_bytes()[place..]).map_or(text.len(), |at| place + at + 1);
    }
    place
}

fn with_edits(text: &str, region: &Range<usize>, edits: &[Edit]) -> String {
    let mut result = String::with_capacity(region.len());
    let mut at = region.start;
    for edit in edits {
        result.push_str(&text[at..edit.range.start]);
        result.push_str(&edit.new);
        at = edit.range.end;
    }
    result.push_str(&text[at..region.end]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(range: Range<usize>, new: &str) -> Edit {
        Edit { range, new: new.into() }
    }

    fn diff(text: &str, edits: &[Edit]) -> String {
        let mut diff = Diff::default();
        diff.changed("f", "f", text, edits);
        diff.finish().replace("--- a/f\n+++ b/f\n", "")
    }

    #[test]
    fn hunks_are_as_diff_makes_them() {
        let text = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n";
        for (edits, expected) in [
            (vec![edit(0..0, "0\n")], "@@ -1,3 +1,4 @@\n+0\n 1\n 2\n 3\n"),
            (
                vec![edit(8..9, "x")],
                "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n",
            ),
            (
                vec![edit(2..4, ""), edit(10..12, "")],
                "@@ -1,9 +1,7 @@\n 1\n-2\n 3\n 4\n 5\n-6\n 7\n 8\n 9\n",
            ),
            (
                vec![edit(0..2, "a\nb\n"), edit(33..36, "z")],
                "@@ -1,4 +1,5 @@\n-1\n+a\n+b\n 2\n 3\n 4\n@@ -12,4 +13,4 @@\n 12\n 13\n 14\n-15\n+z\n\\ No newline at end of file\n",
            ),
            // What joins two lines changes both.
            (vec![edit(1..2, "")], "@@ -1,5 +1,4 @@\n-1\n-2\n+12\n 3\n 4\n 5\n"),
        ] {
            assert_eq!(diff(text, &edits), expected);
        }
        assert_eq!(
            diff("a", &[edit(1..1, "b")]),
            "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+ab\n\\ No newline at end of file\n"
        );
        assert_eq!(diff("", &[edit(0..0, "b\n")]), "@@ -0,0 +1 @@\n+b\n");
        assert_eq!(diff("a\r\n", &[edit(0..1, "b")]), "@@ -1 +1 @@\n-a\r\n+b\r\n");
    }

    #[test]
    fn many_edits_are_compared_line_by_line() {
        let text = "one two\n".repeat(30_000);
        let edits: Vec<Edit> = (0..30_000).map(|line| edit(8 * line..8 * line + 3, "1")).collect();
        assert!(diff(&text, &edits).starts_with("@@ -1,30000 +1,30000 @@\n-one two\n+1 two\n-one two\n"));
        // Two edits of one line.
        let edits = [edit(0..3, "1"), edit(4..7, "2"), edit(8..8, "new\n")];
        let expected = "@@ -1,4 +1,5 @@\n-one two\n+1 2\n+new\n one two\n one two\n one two\n";
        assert_eq!(diff(&text, &edits), expected);
    }

    #[test]
    fn new_and_gone_files() {
        let mut diff = Diff::default();
        diff.created("/x/new", "a\nb");
        diff.deleted("old", "c\n");
        diff.changed("p", "q", "", &[]);
        diff.deleted_binary("z");
        diff.deleted_link("l", "to/old");
        assert_eq!(
            diff.finish(),
            "--- /dev/null\n+++ b/x/new\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-c\nrename from p\nrename to q\nBinary files a/z and /dev/null differ\ndeleted file mode 120000\n--- a/l\n+++ /dev/null\n@@ -1 +0,0 @@\n-to/old\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn a_large_diff_is_cut_and_says_so() {
        let mut diff = Diff::default();
        diff.created("f", &"line\n".repeat(1_000_000));
        diff.changed("g", "g", "a", &[edit(0..1, "b")]);
        let text = diff.finish();
        assert!(text.len() < MOST_BYTES + 200, "{}", text.len());
        let shown = text.matches("\n+line").count();
        assert!(text.ends_with(&format!(
            "cut here: {} more changed lines are not shown]\n",
            1_000_002 - shown
        )));
        let mut diff = Diff::default();
        diff.created("f", &"x".repeat(1 << 20));
        assert!(diff.finish().contains("more bytes]"));
    }
}
