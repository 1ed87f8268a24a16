//! What is shown and kept of the output of `terminal`.

use std::path::PathBuf;

use crate::limits::{Limits, MAX_TOOL_MESSAGE};
use crate::output::{Collector, Masker, OutputLimits};

/// Bytes of text that a result's output may hold, with some room for the other fields.
#[expect(clippy::cast_possible_truncation, reason = "it is a constant of 64 MiB")]
const SHOWN: usize = MAX_TOOL_MESSAGE as usize - 8192;
/// A script may want all of it: more is kept of a command's output than of a cell's.
const TIMES_OF_A_CELL: u64 = 16;

/// Where long output goes, and how much of it.
#[derive(Clone, Default)]
pub(super) struct TerminalOutput {
    spill: PathBuf,
    kept: u64,
}

impl TerminalOutput {
    pub(super) fn new(spill: PathBuf, limits: &Limits) -> Self {
        let kept = limits.max_spill_bytes.saturating_mul(TIMES_OF_A_CELL);
        Self { spill, kept }
    }

    /// Bytes that the target side sends.
    pub(super) fn kept(&self) -> u64 {
        self.kept.max(SHOWN as u64)
    }

    /// A collector for one command. Results of tools are never altered, so nothing is masked.
    pub(super) fn collector(&self) -> Collector {
        let limits = OutputLimits {
            max_stdout_bytes: SHOWN,
            max_stderr_bytes: 0,
            max_spill_bytes: self.kept,
        };
        Collector::new(limits, self.spill.clone(), Masker::none())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::output::Stream;

    fn shown(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut collector = TerminalOutput::new(folder.path().into(), &Limits::default()).collector();
        for piece in bytes.chunks(3) {
            collector.push(Stream::Stdout, piece);
        }
        let collected = collector.finish();
        assert_eq!(collected.truncation, None);
        collected.stdout
    }

    #[test]
    fn output_is_as_a_terminal_shows_it() {
        for (bytes, expected) in [
            (&b"plain\nlines\n"[..], "plain\nlines\n"),
            (b"\x1b[31mred\x1b[0m\n", "red\n"),
            (b"1%\r50%\r100%\ndone", "100%\ndone"),
            (b"10%\r20%\r", "20%"),
            (b"bad \xff byte", "bad \u{fffd} byte"),
        ] {
            assert_eq!(shown(bytes), expected);
        }
    }

    #[test]
    fn long_output_is_whole_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut collector = TerminalOutput::new(folder.path().into(), &Limits::default()).collector();
        let line = [b'x'; 1 << 20];
        for _ in 0..70 {
            collector.push(Stream::Stdout, &line);
            collector.push(Stream::Stdout, b"\n");
        }
        let collected = collector.finish();
        assert!(collected.stdout.len() <= SHOWN + 1000);
        let spill = collected.truncation.unwrap().spill_path.unwrap();
        assert_eq!(spill.metadata().unwrap().len(), 70 * ((1 << 20) + 1));
    }
}
