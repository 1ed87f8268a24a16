//! What is known of an execution while it runs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output::Stream;
use crate::session::OutputSink;

/// Characters of a line that are kept.
const LINE: usize = 200;

/// How far an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The script has not begun: another one of its session runs, or its target is being made ready.
    Queued,
    /// It runs.
    Running,
    /// Its outcome is there.
    Done,
}

/// How far an execution is, and what can be seen of it.
#[derive(Clone, Debug)]
pub struct Progress {
    /// How far it is.
    pub stage: Stage,
    /// Time since the script began; before, since it was handed over.
    pub elapsed: Duration,
    /// Tool calls that were admitted.
    pub tool_calls: u64,
    /// The last line that the script printed, or what is done before it can begin. Empty when there is none.
    pub last_line: String,
}

/// Watches a cell.
pub(super) struct Watched(Mutex<Seen>);

struct Seen {
    handed_over: Instant,
    began: Option<Instant>,
    calls: u64,
    /// The last whole line that was not blank.
    last: String,
    /// The line that has no end yet.
    open: String,
}

impl Watched {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Seen {
            handed_over: Instant::now(),
            began: None,
            calls: 0,
            last: String::new(),
            open: String::new(),
        }))
    }

    /// Of an execution that is not done.
    pub(super) fn progress(&self) -> Progress {
        let seen = self.lock();
        let line = if seen.open.trim().is_empty() {
            &seen.last
        } else {
            &seen.open
        };
        Progress {
            stage: if seen.began.is_some() {
                Stage::Running
            } else {
                Stage::Queued
            },
            elapsed: seen.began.unwrap_or(seen.handed_over).elapsed(),
            tool_calls: seen.calls,
            last_line: line.trim_end().to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn push(&mut self, text: &str) {
        // Whatever comes before the last two line ends of a piece is not the last line.
        let start = text
            .rmatch_indices('\n')
            .nth(1)
            .map_or(0, |(at, _)| if text[at..].trim().is_empty() { 0 } else { at + 1 });
        for line in text[start..].split_inclusive('\n') {
            let is_whole = line.ends_with('\n');
            let room = LINE.saturating_sub(self.open.chars().count());
            self.open.extend(line.trim_end_matches(['\r', '\n']).chars().take(room));
            if is_whole {
                if !self.open.trim().is_empty() {
                    self.last.clone_from(&self.open);
                }
                self.open.clear();
            }
        }
    }
}

impl OutputSink for Watched {
    fn write(&self, _stream: Stream, text: &str) {
        self.lock().push(text);
    }

    fn tool_calls(&self, made: u64) {
        self.lock().calls = made;
    }

    fn progress(&self, line: &str) {
        self.lock().last = line.chars().take(LINE).collect();
    }

    fn started(&self) {
        let mut seen = self.lock();
        seen.began = Some(Instant::now());
        seen.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(pieces: &[&str]) -> String {
        let watched = Watched::new();
        watched.started();
        for piece in pieces {
            watched.write(Stream::Stdout, piece);
        }
        watched.progress().last_line
    }

    #[test]
    fn the_last_line_is_the_last_that_shows_something() {
        let long = "x".repeat(1000);
        for (pieces, line) in [
            (&["one\ntwo\n"][..], "two"),
            (&["one\ntwo"], "two"),
            (&["one\n", "tw", "o"], "two"),
            (&["one\n\n\n"], "one"),
            (&["one\n", "\n \n"], "one"),
            (&["a\nb\nc\nd\n\n\n\n"], "d"),
            (&["one\r\n"], "one"),
            (&[], ""),
            (&[&long, &long], &long[..LINE]),
        ] {
            assert_eq!(last_line(pieces), line, "{pieces:?}");
        }
    }

    #[test]
    fn before_the_script_begins_it_is_queued_and_says_what_is_done() {
        let watched = Watched::new();
        OutputSink::progress(&watched, "pulling python:3.12");
        let progress = watched.progress();
        assert_eq!(
            (progress.stage, &*progress.last_line),
            (Stage::Queued, "pulling python:3.12")
        );
        watched.started();
        watched.tool_calls(3);
        let progress = watched.progress();
        assert_eq!(
            (progress.stage, progress.tool_calls, &*progress.last_line),
            (Stage::Running, 3, "")
        );
    }
}
