//! Both streams of one cell, from the first byte to the outcome.

use std::path::PathBuf;

use super::clean::Cleaner;
use super::marker;
use super::mask::Masker;
use super::progress::Progress;
use super::spill::Spill;
use super::window::{View, Window};
use crate::limits::Limits;

/// The stream that bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How much of a cell's output is shown and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// Bytes of stdout that are shown; the line that says what is left out comes on top.
    pub max_stdout_bytes: usize,
    /// Bytes of stderr that are shown, likewise.
    pub max_stderr_bytes: usize,
    /// Bytes of stdout that are kept in the spill file; a closing line comes on top. With 0 there
    /// is no spill file.
    pub max_spill_bytes: u64,
}

impl From<&Limits> for OutputLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            max_stdout_bytes: limits.max_stdout_bytes,
            max_stderr_bytes: limits.max_stderr_bytes,
            max_spill_bytes: limits.max_spill_bytes,
        }
    }
}

/// That stdout is not all shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Bytes between head and tail: of the text as it would have been shown, and of what was lost
    /// before it could be read (see [`Collector::skip`]).
    pub bytes_omitted: u64,
    /// The file with the whole text or its beginning, if one could be written.
    pub spill_path: Option<PathBuf>,
}

/// What a cell printed, ready for its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Stdout, with a line in the middle that says what is left out, if anything is.
    pub stdout: String,
    /// Stderr, likewise.
    pub stderr: String,
    /// Text of stdout and of stderr that was still held back and that a live stream has to show.
    pub live_rest: (String, String),
    /// Raw bytes of stdout, whether shown or not.
    pub stdout_bytes_total: u64,
    /// Present when `stdout` does not hold everything.
    pub truncation: Option<Truncation>,
}

/// Collects the output of one cell in bounded memory.
///
/// Files are written from [`Collector::push`], which blocks while it does so. Dropped without
/// [`Collector::finish`], a collector leaves the file that it may have begun behind; [`prune`]
/// removes it in time.
///
/// [`prune`]: super::prune
#[derive(Debug)]
pub struct Collector {
    stdout: Lane,
    stderr: Lane,
    spill: Spill,
    stdout_bytes_total: u64,
}

impl Collector {
    /// A collector that keeps a long stdout in a file in `spill_dir`. The directory is made if need
    /// be and closed to other users, so it must be one that holds nothing else.
    #[must_use]
    pub fn new(limits: OutputLimits, spill_dir: PathBuf, masker: Masker) -> Self {
        Self {
            stdout: Lane::new(limits.max_stdout_bytes, masker.clone()),
            stderr: Lane::new(limits.max_stderr_bytes, masker),
            spill: Spill::new(spill_dir, limits.max_stdout_bytes, limits.max_spill_bytes),
            stdout_bytes_total: 0,
        }
    }

    /// Adds raw bytes, cut anywhere. Returns the text that a live stream can show now: cleaned and
    /// masked, with progress bars as they were drawn.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) -> String {
        match stream {
            Stream::Stdout => {
                self.stdout_bytes_total += bytes.len() as u64;
                let text = self.stdout.push(bytes);
                self.spill.push(&text);
                text
            }
            Stream::Stderr => self.stderr.push(bytes),
        }
    }

    /// Notes that `omitted` raw bytes were lost here, and that `tail` follows them. Returns the
    /// text that a live stream can show now, with a line that tells of the loss.
    ///
    /// The spill file ends here; stdout shown later is what follows the loss.
    pub fn skip(&mut self, stream: Stream, omitted: u64, tail: &[u8]) -> String {
        if omitted == 0 {
            return self.push(stream, tail);
        }
        let lane = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let before = lane.break_off(omitted);
        let after = lane.resume(tail);
        if stream == Stream::Stdout {
            self.stdout_bytes_total += omitted + tail.len() as u64;
            self.spill.push(&before);
            self.spill.gap();
        }
        before + &marker::lost(omitted) + &after
    }

    /// Ends both streams and puts together what the outcome shows.
    #[must_use]
    pub fn finish(mut self) -> Collected {
        let live_rest = (self.stdout.end(), self.stderr.end());
        self.spill.push(&live_rest.0);
        let (stdout, truncation) = match self.stdout.window.finish() {
            View::Whole(text) => {
                self.spill.discard();
                (text, None)
            }
            View::Cut { head, tail, omitted } => {
                let kept = self.spill.finish();
                let text = marker::join(&head, &tail, omitted, Some(&kept));
                let truncation = Truncation {
                    bytes_omitted: omitted,
                    spill_path: kept.into_path(),
                };
                (text, Some(truncation))
            }
        };
        let stderr = match self.stderr.window.finish() {
            View::Whole(text) => text,
            View::Cut { head, tail, omitted } => marker::join(&head, &tail, omitted, None),
        };
        Collected {
            stdout,
            stderr,
            live_rest,
            stdout_bytes_total: self.stdout_bytes_total,
            truncation,
        }
    }
}

/// The stages of one stream.
#[derive(Debug)]
struct Lane {
    cleaner: Cleaner,
    progress: Progress,
    window: Window,
}

impl Lane {
    fn new(limit: usize, masker: Masker) -> Self {
        Self {
            cleaner: Cleaner::new(masker),
            progress: Progress::default(),
            window: Window::new(limit),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> String {
        let text = self.cleaner.push(bytes);
        self.show(&text);
        text
    }

    fn break_off(&mut self, omitted: u64) -> String {
        let text = self.cleaner.break_off();
        self.show(&text);
        self.progress.finish(&mut |part| self.window.push(part));
        self.window.gap(omitted);
        text
    }

    fn resume(&mut self, bytes: &[u8]) -> String {
        let text = self.cleaner.resume(bytes);
        self.show(&text);
        text
    }

    fn end(&mut self) -> String {
        let text = self.cleaner.finish();
        self.show(&text);
        self.progress.finish(&mut |part| self.window.push(part));
        text
    }

    fn show(&mut self, text: &str) {
        self.progress.push(text, &mut |part| self.window.push(part));
    }
}
