//! From what a supervisor and a collector know of a cell to its outcome.

use crate::kernel::{Ending, signal_name};
use crate::limits::format_seconds;
use crate::link::CellDone;
use crate::outcome::{KernelReport, Outcome, Phases, Status};
use crate::output::{Collected, Masker};

/// The line between stdout and stderr in the output of a cell that failed.
const STDERR_LINE: &str = "--- stderr ---";

/// An outcome of a cell that never ran.
pub(super) fn refused(target: &str, phases: Phases, error: impl Into<String>) -> Outcome {
    Outcome {
        phases,
        ..Outcome::refused(target, error)
    }
}

/// An outcome of a cell that was cancelled before it ran.
pub(super) fn cancelled_early(target: &str, phases: Phases, reason: &str) -> Outcome {
    Outcome {
        status: Status::Interrupted,
        exit_code: Some(130),
        output: interruption(reason),
        error: Some(format!(
            "the cell was cancelled ({reason}) before it began; nothing ran"
        )),
        ..refused(target, phases, "")
    }
}

fn interruption(reason: &str) -> String {
    format!("[execution interrupted — {reason}]")
}

/// How a cell ended, in the terms of an outcome.
pub(super) struct Verdict {
    pub(super) status: Status,
    /// `None`: nothing ran, or nobody knows.
    exit_code: Option<i32>,
    error: Option<String>,
    /// A line that ends `output`.
    last_line: Option<String>,
    /// Whether the kernel ended with the cell.
    pub(super) kernel_ended: bool,
    /// In words, for the notice of the next cell.
    pub(super) lost_because: String,
}

/// What an error says of the state that went with the process; a standalone script had none.
fn loss(keeps_state: bool) -> &'static str {
    if keeps_state {
        "; variables and imports are lost"
    } else {
        ""
    }
}

/// Judges a cell from its record.
pub(super) fn judge(done: &CellDone, timeout: std::time::Duration, cancel_reason: &str, keeps_state: bool) -> Verdict {
    match (done.why.as_str(), &done.result) {
        ("done", Some(result)) => {
            let failed = result.kind == "raised" || (result.kind == "exit" && result.code != 0);
            let error = if !failed {
                None
            } else if result.error.is_empty() {
                Some(format!("the script left with exit code {}", result.code))
            } else {
                Some(result.error.clone())
            };
            Verdict {
                status: if failed { Status::Error } else { Status::Success },
                exit_code: Some(result.code),
                error,
                last_line: None,
                kernel_ended: false,
                lost_because: String::new(),
            }
        }
        ("timeout", _) => {
            let line = format!("Script timed out after {} and was killed.", format_seconds(timeout));
            Verdict {
                status: Status::Timeout,
                exit_code: Some(124),
                error: Some(line.clone()),
                last_line: Some(line),
                kernel_ended: keeps_state,
                lost_because: "the cell before it timed out".to_owned(),
            }
        }
        ("interrupted", _) => Verdict {
            status: Status::Interrupted,
            exit_code: Some(130),
            error: Some(format!(
                "the cell was interrupted ({cancel_reason}) and its process ended{}",
                loss(keeps_state)
            )),
            last_line: Some(interruption(cancel_reason)),
            kernel_ended: keeps_state,
            lost_because: "the cell before it was interrupted".to_owned(),
        },
        _ => gone(done, keeps_state),
    }
}

fn gone(done: &CellDone, keeps_state: bool) -> Verdict {
    if !keeps_state && done.status.is_none() && !done.detail.is_empty() {
        return Verdict {
            status: Status::Error,
            exit_code: None,
            error: Some(format!("the script could not be started: {}", done.detail)),
            last_line: None,
            kernel_ended: false,
            lost_because: String::new(),
        };
    }
    let (exit_code, how) = match Ending::of_status(done.status) {
        Ending::Signalled(signal) => (
            128 + signal,
            format!(
                "the Python process was ended by {}{}",
                signal_name(signal),
                if done.detail.is_empty() { likely(signal) } else { "" }
            ),
        ),
        Ending::Exited(code) => (
            code,
            format!("the Python process exited with {code} before the cell ended"),
        ),
        _ => (1, "the Python process is gone".to_owned()),
    };
    let detail = if done.detail.is_empty() {
        String::new()
    } else {
        format!(" ({})", done.detail)
    };
    Verdict {
        status: Status::Error,
        exit_code: Some(exit_code),
        error: Some(format!("{how}{detail}{}", loss(keeps_state))),
        last_line: None,
        kernel_ended: keeps_state,
        lost_because: how.replace("before the cell ended", "in the cell before it") + &detail,
    }
}

fn likely(signal: i32) -> &'static str {
    match signal {
        libc::SIGKILL => " (killed from outside, most often because memory ran out)",
        libc::SIGSEGV | libc::SIGBUS => " (a crash in C code, or recursion that overran the stack)",
        _ => "",
    }
}

/// A verdict for a cell whose supervisor was lost while it ran, or whose target was.
pub(super) fn supervisor_lost(reason: &str, is_here: bool, keeps_state: bool) -> Verdict {
    let loss = loss(keeps_state);
    let error = if is_here {
        format!(
            "{reason} while the cell ran (it was killed, perhaps by the script itself); the script's processes were ended{loss}; the next call starts afresh"
        )
    } else {
        format!("{reason}{loss}; the next call starts afresh")
    };
    Verdict {
        status: Status::Error,
        // How a script ended on a target that is lost nobody knows: it may still run.
        exit_code: is_here.then_some(128 + libc::SIGKILL),
        error: Some(error),
        last_line: None,
        kernel_ended: keeps_state,
        lost_because: if is_here {
            "the supervisor of the session was killed".to_owned()
        } else {
            reason.to_owned()
        },
    }
}

/// A verdict for a cell that was cancelled on a target that does not answer: what runs there ends by itself.
pub(super) fn left_behind(reason: &str, cancel_reason: &str, keeps_state: bool) -> Verdict {
    Verdict {
        status: Status::Interrupted,
        exit_code: Some(130),
        error: Some(format!(
            "the cell was interrupted ({cancel_reason}), but {reason}; what runs there ends by itself (lease){}",
            loss(keeps_state)
        )),
        last_line: Some(interruption(cancel_reason)),
        kernel_ended: keeps_state,
        lost_because: format!("the cell before it was interrupted ({cancel_reason}), and {reason}"),
    }
}

/// What beside the verdict goes into an outcome.
pub(super) struct Facts {
    pub(super) target: String,
    pub(super) kernel: KernelReport,
    pub(super) phases: Phases,
    pub(super) seconds: f64,
    pub(super) tool_calls: u64,
    pub(super) notice: Option<String>,
    pub(super) hint: Option<String>,
}

/// Puts an outcome together.
pub(super) fn outcome(verdict: Verdict, collected: Collected, masker: &Masker, facts: Facts) -> Outcome {
    let success = verdict.status == Status::Success;
    let mut output = collected.stdout;
    let mut stderr = None;
    if success {
        stderr = Some(collected.stderr).filter(|text| !text.is_empty());
    } else if !collected.stderr.is_empty() {
        append_line(&mut output, STDERR_LINE);
        output.push('\n');
        output.push_str(&collected.stderr);
    }
    if let Some(line) = &verdict.last_line {
        append_line(&mut output, line);
    }
    let truncation = collected.truncation;
    let clean = |text: String| crate::output::clean_text(text.as_bytes(), masker);
    Outcome {
        status: verdict.status,
        output,
        exit_code: verdict.exit_code,
        tool_calls_made: facts.tool_calls,
        duration_seconds: facts.seconds,
        stdout_bytes_total: collected.stdout_bytes_total,
        target: facts.target,
        kernel: Some(facts.kernel),
        stderr,
        phases: facts.phases,
        error: verdict.error.map(clean),
        notice: facts.notice,
        hint: facts.hint.map(clean),
        stdout_truncated: truncation.as_ref().map(|_| true),
        stdout_bytes_omitted: truncation.as_ref().map(|cut| cut.bytes_omitted),
        stdout_spill_path: truncation
            .and_then(|cut| cut.spill_path)
            .map(|path| path.display().to_string()),
    }
}

/// Adds a line of its own.
fn append_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
}
