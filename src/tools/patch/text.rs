//! The bytes of a file as text, and changes of the text as changes of the bytes.
//!
//! What a change does not touch stays byte for byte, whatever the encoding: places in the text are turned into places
//! in the file, and only what is new is encoded.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::tools::local_files::binary_kind;
use crate::tools::workspace::Splice;

/// Bytes by which a file is judged to be text.
const SAMPLE: usize = 8192;
/// Bytes between two edits that make one splice.
const NEAR: usize = 64;
/// Bytes of such a splice.
const LARGE: usize = 1 << 20;

/// A replacement: what stands at a range of a text becomes something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    pub(super) range: Range<usize>,
    pub(super) new: String,
}

/// The bytes of a file, as text.
#[derive(Debug)]
pub(super) struct Text<'a> {
    /// The text, without a byte order mark.
    pub(super) text: Cow<'a, str>,
    coding: Coding,
    raw: &'a [u8],
}

#[derive(Debug)]
enum Coding {
    /// After so many bytes of a mark.
    Utf8(usize),
    Utf16(fn(u16) -> [u8; 2]),
    /// No UTF-8 as a whole; the lines, as `read_file` shows them.
    Bytes(Vec<Line>),
}

/// A line of a file that is no UTF-8: where it begins in the text and in the file, and whether it is Latin-1.
#[derive(Clone, Copy, Debug)]
struct Line {
    text: usize,
    raw: usize,
    is_latin1: bool,
}

impl<'a> Text<'a> {
    /// # Errors
    /// What the file is, when it is no text.
    pub(super) fn decode(raw: &'a [u8]) -> Result<Self, &'static str> {
        let (text, coding) = match raw {
            [0xff, 0xfe, 0, 0, ..] => return Err("UTF-32 text"),
            [0xff, 0xfe, rest @ ..] => (
                Cow::Owned(utf16(rest, u16::from_le_bytes)),
                Coding::Utf16(u16::to_le_bytes),
            ),
            [0xfe, 0xff, rest @ ..] => (
                Cow::Owned(utf16(rest, u16::from_be_bytes)),
                Coding::Utf16(u16::to_be_bytes),
            ),
            _ => {
                if let Some(kind) = binary_kind(&raw[..raw.len().min(SAMPLE)]) {
                    return Err(kind);
                }
                let mark = if raw.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
                match std::str::from_utf8(&raw[mark..]) {
                    Ok(text) => (Cow::Borrowed(text), Coding::Utf8(mark)),
                    Err(_) => {
                        let (text, lines) = line_by_line(raw, mark);
                        (Cow::Owned(text), Coding::Bytes(lines))
                    }
                }
            }
        };
        Ok(Self { text, coding, raw })
    }

    /// Changes of the text as changes of the file. They are in order and do not overlap.
    ///
    /// # Errors
    /// A sentence, when the file's encoding has no sign for something new.
    pub(super) fn splices(&self, edits: &[Edit]) -> Result<Vec<Splice>, String> {
        let mut map = Map::new(self);
        let mut splices = Vec::new();
        let mut open: Option<(Range<usize>, Vec<u8>)> = None;
        for edit in edits {
            let range = map.place(edit.range.start)..map.place(edit.range.end);
            let new = self.encode(edit, &range)?;
            match &mut open {
                // A splice of its own would be more than the few bytes between them.
                Some((last, bytes)) if range.start - last.end <= NEAR && bytes.len() < LARGE => {
                    bytes.extend_from_slice(&self.raw[last.end..range.start]);
                    bytes.extend_from_slice(&new);
                    last.end = range.end;
                }
                _ => splices.extend(open.replace((range, new)).map(splice)),
            }
        }
        splices.extend(open.map(splice));
        Ok(splices)
    }

    fn encode(&self, edit: &Edit, range: &Range<usize>) -> Result<Vec<u8>, String> {
        match &self.coding {
            Coding::Utf8(_) => Ok(edit.new.clone().into_bytes()),
            Coding::Utf16(order) => Ok(edit.new.encode_utf16().flat_map(order).collect()),
            Coding::Bytes(lines) => {
                let replaced = std::str::from_utf8(&self.raw[range.clone()]);
                // Among lines of both kinds, it is as what it replaces.
                let is_latin1 = match replaced {
                    Err(_) => true,
                    Ok(replaced) if !replaced.is_ascii() => false,
                    Ok(_) => !lines.iter().any(|line| !line.is_latin1),
                };
                if !is_latin1 {
                    return Ok(edit.new.clone().into_bytes());
                }
                let byte = |c: char| {
                    u8::try_from(c).map_err(|_| {
                        format!("the file is in Latin-1, which has no {c:?}; write it in another way, or convert the file to UTF-8 first")
                    })
                };
                edit.new.chars().map(byte).collect()
            }
        }
    }
}

fn splice((range, bytes): (Range<usize>, Vec<u8>)) -> Splice {
    let bytes = Bytes::from(bytes);
    Splice { range, bytes }
}

/// Turns places in a text into places in its file, one after the other.
struct Map<'t, 'a> {
    text: &'t Text<'a>,
    /// The last pair, from which UTF-16 goes on counting.
    last: (usize, usize),
}

impl<'t, 'a> Map<'t, 'a> {
    fn new(text: &'t Text<'a>) -> Self {
        Self { text, last: (0, 2) }
    }

    fn place(&mut self, place: usize) -> usize {
        let Text { text, coding, raw } = self.text;
        match coding {
            Coding::Utf8(mark) => mark + place,
            // The last unit may be half a one.
            Coding::Utf16(_) if place == text.len() => raw.len(),
            Coding::Utf16(_) => {
                let units = text[self.last.0..place].chars().map(char::len_utf16).sum::<usize>();
                self.last = (place, self.last.1 + 2 * units);
                self.last.1
            }
            Coding::Bytes(lines) => {
                let index = lines.partition_point(|line| line.text <= place).saturating_sub(1);
                lines.get(index).map_or(place, |line| line.place(text, raw, place))
            }
        }
    }
}

impl Line {
    fn place(&self, text: &str, raw: &[u8], place: usize) -> usize {
        let mut rest = place - self.text;
        if self.is_latin1 {
            return self.raw + text[self.text..place].chars().count();
        }
        let mut at = self.raw;
        for chunk in raw[self.raw..].utf8_chunks() {
            let valid = chunk.valid().len();
            if rest <= valid {
                return at + rest;
            }
            rest = rest.saturating_sub(valid + char::REPLACEMENT_CHARACTER.len_utf8());
            at += valid + chunk.invalid().len();
        }
        at
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let pairs = bytes.chunks(2).map(|pair| match *pair {
        [a, b] => unit([a, b]),
        _ => 0xfffd,
    });
    char::decode_utf16(pairs)
        .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

/// The text as `read_file` shows it: a line with no sign of UTF-8 is Latin-1, a damaged one has replacements.
fn line_by_line(raw: &[u8], mark: usize) -> (String, Vec<Line>) {
    let mut text = String::with_capacity(raw.len() + raw.len() / 8);
    let mut lines = Vec::new();
    let mut at = mark;
    for line in raw[mark..].split_inclusive(|byte| *byte == b'\n') {
        let shown = String::from_utf8_lossy(line);
        let is_other = |c: char| !c.is_ascii() && c != char::REPLACEMENT_CHARACTER;
        let is_latin1 = match &shown {
            Cow::Borrowed(shown) => shown.is_ascii(),
            Cow::Owned(shown) => !shown.contains(is_other),
        };
        lines.push(Line {
            text: text.len(),
            raw: at,
            is_latin1,
        });
        if is_latin1 {
            text.extend(line.iter().map(|byte| char::from(*byte)));
        } else {
            text.push_str(&shown);
        }
        at += line.len();
    }
    (text, lines)
}

/// A text with edits that are in order and do not overlap.
pub(super) fn applied(text: &str, edits: &[Edit]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for edit in edits {
        result.push_str(&text[at..edit.range.start]);
        result.push_str(&edit.new);
        at = edit.range.end;
    }
    result.push_str(&text[at..]);
    result
}

/// Whether edits make a difference.
pub(super) fn changes(text: &str, edits: &[Edit]) -> bool {
    let (old, new) = edits.iter().fold((0, 0), |(old, new), edit| {
        (old + edit.range.len(), new + edit.new.len())
    });
    old != new || (edits.iter().any(|edit| text[edit.range.clone()] != edit.new) && applied(text, edits) != text)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    fn spliced(raw: &[u8], splices: &[Splice]) -> Vec<u8> {
        let mut result = Vec::new();
        let mut at = 0;
        for splice in splices {
            result.extend_from_slice(&raw[at..splice.range.start]);
            result.extend_from_slice(&splice.bytes);
            at = splice.range.end;
        }
        result.extend_from_slice(&raw[at..]);
        result
    }

    /// Replaces the one occurrence of `old`.
    fn changed(raw: &[u8], old: &str, new: &str) -> Result<Vec<u8>, String> {
        let text = Text::decode(raw)?;
        let start = text.text.find(old).unwrap();
        let range = start..start + old.len();
        let edits = [Edit { range, new: new.into() }];
        Ok(spliced(raw, &text.splices(&edits)?))
    }

    fn utf16_of(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
        std::iter::once(0xfeff)
            .chain(text.encode_utf16())
            .flat_map(order)
            .collect()
    }

    #[test]
    fn the_encoding_stays() {
        let (before, after) = ("ü\r\n😀 old é\nend", "ü\r\n😀 nöw é\nend");
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            assert_eq!(
                changed(&utf16_of(before, order), "old", "nöw").unwrap(),
                utf16_of(after, order)
            );
        }
        assert_eq!(changed(before.as_bytes(), "old", "nöw").unwrap(), after.as_bytes());
        let marked = |text: &str| [b"\xef\xbb\xbf", text.as_bytes()].concat();
        assert_eq!(changed(&marked(before), "old", "nöw").unwrap(), marked(after));
        assert_eq!(
            changed(b"caf\xe9 old\n\xfc", "é old", "è nöw").unwrap(),
            b"caf\xe8 n\xf6w\n\xfc"
        );
        let error = changed(b"caf\xe9", "é", "€").unwrap_err();
        assert!(error.contains("Latin-1") && error.contains('€'), "{error}");
    }

    #[test]
    fn what_is_damaged_stays_as_it_is() {
        // A lone half of a pair, and half a unit at the end.
        let raw = b"\xff\xfea\0\x00\xd8b\0c\0d";
        assert_eq!(changed(raw, "b", "xy").unwrap(), b"\xff\xfea\0\x00\xd8x\0y\0c\0d");
        assert_eq!(changed(raw, "\u{fffd}b", "").unwrap(), b"\xff\xfea\0c\0d");
        // UTF-8 with a damaged place before and after.
        let raw = b"\xc3\xa9 \xff old \xe2\x82\nnext \xe9";
        assert_eq!(
            changed(raw, "old", "nöw").unwrap(),
            b"\xc3\xa9 \xff n\xc3\xb6w \xe2\x82\nnext \xe9"
        );
        assert_eq!(
            changed(raw, "next é", "é").unwrap(),
            b"\xc3\xa9 \xff old \xe2\x82\n\xe9"
        );
        assert_eq!(
            changed(raw, "\u{fffd} old \u{fffd}", "x").unwrap(),
            b"\xc3\xa9 x\nnext \xe9"
        );
    }

    #[test]
    fn edits_that_are_near_make_one_splice() {
        let raw = b"a\xff,b,c                                                                    ,d";
        let text = Text::decode(raw).unwrap();
        let found = text.text.match_indices(',');
        let edits: Vec<Edit> = found
            .map(|(at, _)| Edit {
                range: at..at + 1,
                new: ";;".into(),
            })
            .collect();
        let splices = text.splices(&edits).unwrap();
        assert_eq!(splices.len(), 2);
        let expected = String::from_utf8_lossy(raw).replace(',', ";;");
        assert_eq!(String::from_utf8_lossy(&spliced(raw, &splices)), expected);
    }

    #[test]
    fn what_is_no_text_is_named() {
        assert_eq!(Text::decode(b"a\0b").unwrap_err(), "binary data");
        assert_eq!(Text::decode(b"\x89PNG\r\n\x1a\n\0").unwrap_err(), "a PNG image");
        assert_eq!(Text::decode(b"\xff\xfe\0\0a").unwrap_err(), "UTF-32 text");
        assert_eq!(Text::decode(b"").unwrap().text, "");
    }
}
