//! Cuts one page out of a text that is read as a stream.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use super::source::Source;
use super::{Page, WorkspaceError};
use crate::limits::{MAX_TOOL_MESSAGE, MIB};

/// How much of a file one page takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of content.
    pub content: usize,
    /// A file of more bytes is not read on to its end only to count its lines.
    pub counted: u64,
}

impl Bounds {
    /// Raw text is data: a page takes what a result may hold, less room for the other fields. Numbered lines are to be
    /// looked at: 1 MiB. The lines are counted up to the contract's 256 MiB.
    pub(super) const fn of(raw: bool) -> Self {
        let content = if raw { MAX_TOOL_MESSAGE - 64 * 1024 } else { MIB };
        Self {
            content: content as usize,
            counted: 256 * MIB,
        }
    }
}

/// The smallest room in which a line is begun.
const LEAST_ROOM: usize = 16;

/// Where a page starts: a line, and a byte inside it when an earlier page ended there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    line: u64,
    byte: u64,
}

impl Start {
    pub(super) fn parse(offset: &str) -> Result<Self, WorkspaceError> {
        let (line, byte) = offset.split_once(':').unwrap_or((offset, "0"));
        match (line.parse(), byte.parse()) {
            (Ok(line), Ok(byte)) if line > 0 => Ok(Self { line, byte }),
            _ => Err(WorkspaceError(format!(
                "offset {offset:?} is neither a line number from 1 on nor the next_offset of an \
                 earlier page"
            ))),
        }
    }
}

impl std::fmt::Display for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.byte {
            0 => write!(f, "{}", self.line),
            byte => write!(f, "{}:{byte}", self.line),
        }
    }
}

/// Reads at most `limit` lines.
pub(super) fn read(source: Source, start: Start, limit: u64, raw: bool, bounds: Bounds) -> io::Result<Page> {
    let size = source.size;
    let mut text = Counted {
        inner: source.reader,
        newlines: 0,
        bytes: 0,
        last: b'\n',
    };
    for _ in 1..start.line {
        if text.skip_until(b'\n')? == 0 {
            break;
        }
    }
    text.by_ref().take(start.byte).skip_until(b'\n')?;
    let mut cut = Cut {
        content: String::new(),
        at: start,
        lines: 0,
        raw,
        cap: bounds.content,
    };
    let next = loop {
        if text.fill_buf()?.is_empty() {
            break None;
        }
        if cut.lines == limit || !cut.take_line(&mut text)? {
            break Some(cut.at);
        }
    };
    let at_end = next.is_none() || (size <= bounds.counted && text.run_to_end(bounds.counted)?);
    Ok(Page {
        content: cut.content,
        total_lines: at_end.then(|| text.newlines + u64::from(text.last != b'\n')),
        file_size: if size == 0 { text.bytes } else { size },
        next_offset: next.map(|next| next.to_string()),
    })
}

/// A page in the making.
struct Cut {
    content: String,
    /// What comes next.
    at: Start,
    /// Lines on the page so far.
    lines: u64,
    raw: bool,
    cap: usize,
}

impl Cut {
    /// Puts the next line on the page; false when the page is full with it or without it.
    fn take_line(&mut self, text: &mut impl BufRead) -> io::Result<bool> {
        let mut prefix = String::new();
        if !self.raw {
            let separator = if self.lines > 0 { "\n" } else { "" };
            prefix = format!("{separator}{}|", self.at.line);
        }
        let room = self.cap.saturating_sub(self.content.len() + prefix.len());
        if room < LEAST_ROOM && self.lines > 0 {
            return Ok(false);
        }
        let room = room.max(LEAST_ROOM);
        let mut line = Vec::new();
        text.take(room as u64 + 1).read_until(b'\n', &mut line)?;
        let whole = line.ends_with(b"\n") || text.fill_buf()?.is_empty();
        let shown = decoded(self.ending_cut(&line));
        if whole && shown.len() <= room {
            self.content.push_str(&prefix);
            self.content.push_str(&shown);
            self.lines += 1;
            self.at = Start {
                line: self.at.line + 1,
                byte: 0,
            };
            return Ok(true);
        }
        if self.lines == 0 {
            let piece = piece(&line, room);
            self.content.push_str(&prefix);
            self.content.push_str(&decoded(piece));
            self.at.byte += piece.len() as u64;
        }
        Ok(false)
    }

    /// The line as it is shown: numbered lines are without their ends.
    fn ending_cut<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        match line.strip_suffix(b"\n") {
            Some(line) if !self.raw => line.strip_suffix(b"\r").unwrap_or(line),
            _ => line,
        }
    }
}

/// The first part of a line that is longer than the room, cut between characters.
fn piece(line: &[u8], room: usize) -> &[u8] {
    let mut end = room.min(line.len());
    while end > room.saturating_sub(4) && line.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    let piece = &line[..end];
    // Every byte of what is no UTF-8 may become two or three.
    if std::str::from_utf8(piece).is_ok() {
        piece
    } else {
        &piece[..end / 3]
    }
}

/// UTF-8 as it is; a line with no sign of UTF-8 is Latin-1; a damaged one has replacements.
pub(super) fn decoded(line: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(line);
    let is_damage = matches!(text, Cow::Owned(_));
    if is_damage && !text.chars().any(|c| !c.is_ascii() && c != char::REPLACEMENT_CHARACTER) {
        return line.iter().map(|byte| char::from(*byte)).collect::<String>().into();
    }
    text
}

/// Counts what passes through it.
struct Counted<R> {
    inner: R,
    newlines: u64,
    bytes: u64,
    last: u8,
}

impl<R: BufRead> Counted<R> {
    /// Reads on, only counting; false when there is more than should be counted.
    fn run_to_end(&mut self, at_most: u64) -> io::Result<bool> {
        while self.bytes <= at_most {
            let count = self.fill_buf()?.len();
            if count == 0 {
                return Ok(true);
            }
            self.consume(count);
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What is consumed has been filled before, so this reads nothing and cannot fail.
        if let Ok(buffer) = self.inner.fill_buf() {
            let used = &buffer[..count.min(buffer.len())];
            self.newlines += used.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.bytes += used.len() as u64;
            self.last = used.last().copied().unwrap_or(self.last);
        }
        self.inner.consume(count);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    const PAGE_CAP: usize = Bounds::of(true).content;

    fn page(bytes: &[u8], offset: &str, limit: u64, raw: bool, cap: usize) -> Page {
        let reader = Box::new(io::BufReader::with_capacity(7, Cursor::new(bytes.to_vec())));
        let source = Source {
            reader,
            size: bytes.len() as u64,
        };
        read(
            source,
            Start::parse(offset).unwrap(),
            limit,
            raw,
            Bounds {
                content: cap,
                ..Bounds::of(true)
            },
        )
        .unwrap()
    }

    #[test]
    fn lines_are_numbered_and_counted() {
        for (text, content, total) in [
            ("", "", 0),
            ("\n", "1|", 1),
            ("a", "1|a", 1),
            ("a\n", "1|a", 1),
            ("a\n\nb", "1|a\n2|\n3|b", 3),
            ("a\r\nb\rc\r\n", "1|a\n2|b\rc", 2),
            ("\r", "1|\r", 1),
        ] {
            let page = page(text.as_bytes(), "1", 2000, false, PAGE_CAP);
            assert_eq!(page.content, content, "{text:?}");
            assert_eq!((page.total_lines, page.next_offset), (Some(total), None), "{text:?}");
        }
    }

    #[test]
    fn pages_by_lines() {
        let text = b"a\nb\nc\nd\n";
        for (offset, limit, content, next) in [
            ("1", 2, "1|a\n2|b", Some("3")),
            ("3", 2, "3|c\n4|d", None),
            ("3", 1, "3|c", Some("4")),
            ("4", 9, "4|d", None),
            ("5", 9, "", None),
            ("900", 9, "", None),
        ] {
            let page = page(text, offset, limit, false, PAGE_CAP);
            assert_eq!((page.content.as_str(), page.next_offset.as_deref()), (content, next));
            assert_eq!(page.total_lines, Some(4));
        }
    }

    #[test]
    fn a_line_longer_than_a_page_comes_in_pieces() {
        let text = "0123456789abcdefghij\nshort\n";
        let first = page(text.as_bytes(), "1", 9, false, 18);
        assert_eq!(first.content, "1|0123456789abcdef");
        assert_eq!(
            (first.next_offset.as_deref(), first.total_lines),
            (Some("1:16"), Some(2))
        );
        let second = page(text.as_bytes(), "1:16", 9, false, 18);
        assert_eq!(
            (second.content.as_str(), second.next_offset.as_deref()),
            ("1|ghij", Some("2"))
        );
    }

    #[test]
    fn lines_without_utf8_are_latin1() {
        let page = page(b"caf\xe9\n\xc3\xa9 \xff\nok", "1", 9, false, PAGE_CAP);
        assert_eq!(page.content, "1|caf\u{e9}\n2|\u{e9} \u{fffd}\n3|ok");
    }

    #[test]
    fn offsets_that_are_none() {
        for offset in ["", "0", "-1", "x", "1:", ":1", "1:2:3", "1.5", "18446744073709551616"] {
            assert!(Start::parse(offset).is_err(), "{offset:?}");
        }
        for offset in ["1", "7:3", "18446744073709551615"] {
            assert_eq!(Start::parse(offset).unwrap().to_string(), offset);
        }
    }

    #[test]
    fn a_page_of_the_largest_size_passes_whole() {
        let text = vec![b'x'; PAGE_CAP];
        let page = page_of(text);
        assert_eq!((page.content.len(), page.next_offset), (PAGE_CAP, None));
        let page = page_of(vec![b'x'; PAGE_CAP + 1]);
        assert_eq!(page.next_offset, Some(format!("1:{PAGE_CAP}")));
    }

    fn page_of(text: Vec<u8>) -> Page {
        let size = text.len() as u64;
        let source = Source {
            reader: Box::new(Cursor::new(text)),
            size,
        };
        read(source, Start { line: 1, byte: 0 }, 1, true, Bounds::of(true)).unwrap()
    }

    #[test]
    fn a_huge_file_is_not_counted_to_its_end() {
        let reader = || Box::new(io::BufReader::new(io::repeat(b'\n')));
        let start = Start { line: 3, byte: 0 };
        let bounds = Bounds {
            counted: 10_000,
            ..Bounds::of(true)
        };
        let source = Source {
            reader: reader(),
            size: 10_001,
        };
        let page = read(source, start, 2, false, bounds).unwrap();
        assert_eq!((page.content.as_str(), page.total_lines), ("3|\n4|", None));
        let endless = Source {
            reader: reader(),
            size: 0,
        };
        assert_eq!(read(endless, start, 2, false, bounds).unwrap().total_lines, None);
    }

    proptest! {
        #[test]
        fn raw_pages_joined_are_the_file(
            text in "([a-c\u{e9}\u{20ac}\u{1f600}]{0,40}\r?\n?){0,12}", limit in 1u64..4, cap in 16usize..60,
        ) {
            let mut joined = String::new();
            let mut offset = "1".to_owned();
            loop {
                let page = page(text.as_bytes(), &offset, limit, true, cap);
                prop_assert!(page.content.len() <= cap);
                joined.push_str(&page.content);
                match page.next_offset {
                    Some(next) => {
                        prop_assert_ne!(&next, &offset);
                        offset = next;
                    }
                    None => break,
                }
            }
            prop_assert_eq!(joined, text);
        }
    }
}
