//! The first words of an interpreter that was started for a session: which one it is, or why it is unfit.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::debug;

use crate::backends::{Process, ProcessEnd};
use crate::bundle::MARKER;

/// Bytes of stderr that an error quotes.
const STDERR_KEPT: usize = 2000;
/// Bytes that may come before the introduction: banners of login shells and their like.
const MAX_BANNER: usize = 1 << 16;
/// Time to wait for the end of a process that said what it had to say.
const END_LIMIT: Duration = Duration::from_secs(1);

/// An interpreter that is fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// `3.11.7`
    pub(crate) version: String,
    /// Its path, as it knows itself; may be empty.
    pub(crate) python: String,
}

/// Why an interpreter is unfit.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It is too old: its version.
    TooOld(String),
    /// It is no Python, or broken.
    Ended(LastWords),
}

/// How a process ended and what it had to say.
#[derive(Debug)]
pub(crate) struct LastWords {
    end: Option<ProcessEnd>,
    line: String,
}

impl LastWords {
    /// Whether the program was not there, or cannot be executed, as shells and engines say it.
    pub(crate) fn is_missing(&self) -> bool {
        let says_so = ["not found", "No such file or directory"]
            .iter()
            .any(|words| self.line.contains(words));
        match self.end {
            Some(ProcessEnd::Code(126 | 127)) => true,
            Some(ProcessEnd::Code(code)) => code != 0 && says_so,
            _ => says_so,
        }
    }

    /// Whether a shell, or an engine, did not find this name, and says no more.
    pub(crate) fn is_not_found(&self, name: &str) -> bool {
        if is_an_engines(&self.line) && self.line.contains("not found") && self.line.contains(name) {
            return true;
        }
        let says_so = ["not found", "command not found"].map(|words| format!("{name}: {words}"));
        self.end == Some(ProcessEnd::Code(127)) && says_so.iter().any(|words| self.line.ends_with(words))
    }
}

/// Pauses before a command is tried again that an engine could not start just then.
pub(crate) const PAUSES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(800),
];

impl LastWords {
    /// Whether an engine gave up before there was a program: its own helper may meet a limit of processes, and do
    /// better the next time.
    pub(crate) fn may_pass(&self) -> bool {
        let is_silent = self.line.is_empty() || self.line.contains("connection reset by peer");
        match self.end {
            Some(ProcessEnd::Code(126)) => is_silent,
            Some(ProcessEnd::Code(2)) => self.line == CRASHED,
            _ => false,
        }
    }
}

impl fmt::Display for LastWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Some(ProcessEnd::Code(code)) => write!(formatter, "exited with {code}")?,
            Some(ProcessEnd::Signal(signal)) => write!(formatter, "was ended by signal {signal}")?,
            Some(ProcessEnd::Lost) | None => formatter.write_str("did not answer as Python does")?,
        }
        if !self.line.is_empty() {
            write!(formatter, ": {}", self.line)?;
        }
        Ok(())
    }
}

/// Waits for the line that says which interpreter this is. What follows it stays in `buffer`.
pub(crate) async fn introduction(process: &mut Process, buffer: &mut BytesMut) -> Result<Introduction, Unfit> {
    let mut before = String::new();
    let Some(found) = listen(&mut process.stdout, buffer, &mut before).await else {
        let mut words = last_words(process).await;
        // An engine says there why it could not start a program.
        if words.line.is_empty() && is_an_engines(&before) {
            words.line = telling_line(&before);
        }
        return Err(unfit(words));
    };
    let mut numbers = found.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(3), Some(8)) {
        return Err(Unfit::TooOld(found.version));
    }
    Ok(found)
}

/// The same for an interpreter that is known to be fit; `None` when it ended or said other things.
pub(crate) async fn introduce<R: AsyncRead + Unpin>(stdout: &mut R, buffer: &mut BytesMut) -> Option<Introduction> {
    listen(stdout, buffer, &mut String::new()).await
}

/// Docker's and Podman's words for a program that their runtime did not start.
fn is_an_engines(line: &str) -> bool {
    line.contains("OCI runtime")
}

/// The same, and the line that came last before it.
async fn listen<R: AsyncRead + Unpin>(
    stdout: &mut R,
    buffer: &mut BytesMut,
    before: &mut String,
) -> Option<Introduction> {
    loop {
        if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            // A banner may have ended without a line end.
            if let Some((_, found)) = text.rsplit_once(MARKER) {
                let (version, python) = found.split_once(' ').unwrap_or((found, ""));
                return Some(Introduction {
                    version: version.to_owned(),
                    python: python.trim().to_owned(),
                });
            }
            debug!(line = %text, "the interpreter said something before it began");
            *before = text;
            continue;
        }
        if buffer.len() > MAX_BANNER || !matches!(stdout.read_buf(buffer).await, Ok(1..)) {
            return None;
        }
    }
}

/// Why an interpreter that never introduced itself is unfit.
fn unfit(last_words: LastWords) -> Unfit {
    // All that Python 2 has to say to the option that isolates it.
    if last_words.line.contains("Unknown option: -I") {
        Unfit::TooOld("2".to_owned())
    } else {
        Unfit::Ended(last_words)
    }
}

/// How a process ended and what it wrote to stderr: of that, the line that says it.
pub(crate) async fn last_words(process: &mut Process) -> LastWords {
    let mut text = Vec::new();
    let _ = tokio::time::timeout(END_LIMIT, process.stderr.read_to_end(&mut text)).await;
    let end = tokio::time::timeout(END_LIMIT, process.end.wait()).await.ok();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(STDERR_KEPT)..]);
    LastWords {
        end,
        line: telling_line(&text),
    }
}

/// What is said of a program written in Go, as the engines' helpers are, that ended with the traces of its routines: those
/// of one that was denied a thread.
const CRASHED: &str = "a helper of its engine crashed";

/// A traceback says it in its last line, everything else in its first.
fn telling_line(text: &str) -> String {
    if text.contains("goroutine ") && text.contains("runtime.") {
        return CRASHED.to_owned();
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = if text.contains("Traceback (") {
        lines.next_back()
    } else {
        lines.next()
    };
    line.unwrap_or_default().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(end: ProcessEnd, line: &str) -> LastWords {
        LastWords {
            end: Some(end),
            line: line.to_owned(),
        }
    }

    #[test]
    fn a_missing_program_is_told_from_a_broken_one() {
        for (end, line, missing) in [
            (ProcessEnd::Code(127), "", true),
            (ProcessEnd::Code(126), "sh: python3: Permission denied", true),
            (
                ProcessEnd::Code(1),
                "exec: \"python3\": executable file not found in $PATH",
                true,
            ),
            (ProcessEnd::Lost, "bash: python3: command not found", true),
            (ProcessEnd::Code(1), "ImportError: libpython3.so", false),
            (ProcessEnd::Code(0), "", false),
            (ProcessEnd::Signal(11), "", false),
        ] {
            assert_eq!(words(end, line).is_missing(), missing, "{end:?} {line}");
        }
    }

    #[test]
    fn what_an_engine_could_not_start_is_told_from_what_cannot_be_run() {
        let reset = "OCI runtime exec failed: unable to start container process: read init-p: connection reset by peer";
        for (end, line, passes) in [
            (ProcessEnd::Code(126), "", true),
            (ProcessEnd::Code(126), reset, true),
            (ProcessEnd::Code(126), "sh: python3: Permission denied", false),
            (ProcessEnd::Code(127), "", false),
            (ProcessEnd::Code(2), CRASHED, true),
            (ProcessEnd::Code(2), "python3: can't open file", false),
            (ProcessEnd::Lost, "", false),
        ] {
            assert_eq!(words(end, line).may_pass(), passes, "{end:?} {line}");
        }
    }

    #[tokio::test]
    async fn what_was_printed_before_does_not_hide_it() {
        for before in ["", "banner\n", "banner without a line end"] {
            let said = format!("{before}{MARKER}3.11.7 /usr/bin/python3\nrest");
            let mut buffer = BytesMut::new();
            let found = introduce(&mut said.as_bytes(), &mut buffer).await;
            assert_eq!(found.map(|found| found.version), Some("3.11.7".to_owned()), "{before}");
        }
    }

    #[test]
    fn the_line_that_says_it_is_quoted() {
        assert_eq!(telling_line("\n  first \nsecond"), "first");
        assert_eq!(
            telling_line("Traceback (most recent call last):\n  x\nValueError: y\n"),
            "ValueError: y"
        );
        // Of a long one only the end is kept.
        let trace = "6\nruntime.newm(0x0)\n\truntime/proc.go:2243 +0x6\n\ngoroutine 1 [runnable, locked to thread]:\nmain.main()";
        assert_eq!(telling_line(trace), CRASHED);
        assert_eq!(words(ProcessEnd::Code(3), "x").to_string(), "exited with 3: x");
        assert_eq!(words(ProcessEnd::Signal(9), "").to_string(), "was ended by signal 9");
    }
}
