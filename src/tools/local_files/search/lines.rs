//! Searches one file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};

use super::super::page::decoded;
use crate::tools::search_files::{LEAD_CHARACTERS, LINE_CHARACTERS, LONGEST_LINE};

/// Lines of a file: those that match, and those around them.
#[derive(Debug, Default)]
pub(super) struct FileLines {
    /// How many match.
    pub count: u64,
    /// The first of them, as many as were asked for, with their context: number, text, and whether it matches.
    pub lines: Vec<(u64, String, bool)>,
    /// Bytes of their texts.
    pub bytes: usize,
    /// The file is no text: none of its lines counts.
    pub is_binary: bool,
}

/// Searches files one after another, with the same buffers.
pub(super) struct Lines<'a> {
    matcher: &'a RegexMatcher,
    searcher: Searcher,
    context: u64,
    stop: &'a AtomicBool,
}

impl<'a> Lines<'a> {
    pub(super) fn new(matcher: &'a RegexMatcher, context: u64, stop: &'a AtomicBool) -> Self {
        let around = usize::try_from(context).unwrap_or(usize::MAX);
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .before_context(around)
            .after_context(around)
            .heap_limit(Some(LONGEST_LINE))
            .build();
        Self {
            matcher,
            searcher,
            context,
            stop,
        }
    }

    /// Counts the lines that match, and keeps the first `wanted` of them.
    pub(super) fn search(&mut self, path: &Path, wanted: u64) -> io::Result<FileLines> {
        let file = open(path)?;
        let mut taking = Taking {
            matcher: self.matcher,
            wanted,
            kept: 0,
            until: 0,
            context: self.context,
            found: FileLines::default(),
        };
        let reader = Stoppable { file, stop: self.stop };
        self.searcher.search_reader(self.matcher, reader, &mut taking)?;
        let mut found = taking.found;
        if found.is_binary {
            found = FileLines {
                is_binary: true,
                ..FileLines::default()
            };
        }
        Ok(found)
    }
}

/// A file that is read only while somebody waits for it.
struct Stoppable<'a> {
    file: File,
    stop: &'a AtomicBool,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the search was cancelled"));
        }
        self.file.read(buffer)
    }
}

/// Opens what might be anything by now without waiting for it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

struct Taking<'a> {
    matcher: &'a RegexMatcher,
    wanted: u64,
    kept: u64,
    /// The last line that is wanted after a match.
    until: u64,
    context: u64,
    found: FileLines,
}

impl Taking<'_> {
    fn take(&mut self, number: Option<u64>, line: &[u8], matches: bool) -> Result<(), io::Error> {
        let start = if matches && line.len() > LINE_CHARACTERS {
            self.matcher.find(without_end(line))?.map_or(0, |found| found.start())
        } else {
            0
        };
        let text = told(without_end(line), start);
        self.found.bytes += text.len();
        self.found.lines.push((number.unwrap_or_default(), text, matches));
        Ok(())
    }
}

impl Sink for Taking<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.found.count += 1;
        let number = line.line_number();
        if self.kept < self.wanted {
            self.kept += 1;
            self.until = number.unwrap_or_default() + self.context;
            self.take(number, line.bytes(), true)?;
        } else if number.is_some_and(|number| number <= self.until) {
            self.take(number, line.bytes(), false)?;
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> Result<bool, io::Error> {
        let number = line.line_number();
        if self.kept < self.wanted || number.is_some_and(|number| number <= self.until) {
            self.take(number, line.bytes(), false)?;
        }
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> Result<(), io::Error> {
        self.found.is_binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// A line as it is told; where it is long, the part around a match that begins at a byte of it.
pub(super) fn told(line: &[u8], start: usize) -> String {
    let text = decoded(line);
    let length = if text.len() > LINE_CHARACTERS {
        text.chars().count()
    } else {
        0
    };
    if length <= LINE_CHARACTERS {
        return text.into_owned();
    }
    let at = decoded(line.get(..start).unwrap_or(line)).chars().count();
    let from = at.saturating_sub(LEAD_CHARACTERS).min(length - LINE_CHARACTERS);
    let after = length - LINE_CHARACTERS - from;
    let part: String = text.chars().skip(from).take(LINE_CHARACTERS).collect();
    let mark = |count: usize| format!("[{count} characters left out]");
    match (from, after) {
        (0, after) => format!("{part}…{}", mark(after)),
        (from, 0) => format!("{}…{part}", mark(from)),
        (from, after) => format!("{}…{part}…{}", mark(from), mark(after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_its_match() {
        assert_eq!(told(b"short", 0), "short");
        let line = "é".repeat(5000);
        let told_at = |at: usize| told(line.as_bytes(), at * 2);
        for (at, before, after) in [(0, 0, 3000), (600, 100, 2900), (4999, 3000, 0)] {
            let text = told_at(at);
            assert_eq!(text.matches('é').count(), 2000, "{at}");
            let marks: Vec<&str> = text.split('é').filter(|mark| !mark.is_empty()).collect();
            let expected: Vec<String> = [(before, true), (after, false)]
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, is_first)| {
                    let mark = format!("[{count} characters left out]");
                    if is_first {
                        format!("{mark}…")
                    } else {
                        format!("…{mark}")
                    }
                })
                .collect();
            assert_eq!(marks, expected, "{at}");
        }
    }
}
