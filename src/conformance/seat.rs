//! A session as a case uses it: whatever it asks for comes within a bounded time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use super::case::{Checked, Unmet};
use super::check::{equal, failed};
use super::host::{BUILTIN, PROBES};
use crate::outcome::{Outcome, Status};
use crate::output::Stream;
use crate::session::{Cell, OutputSink, Session};

/// The longest that one cell is waited for, beyond what it may run; it bounds a hang.
const BEYOND: Duration = Duration::from_secs(90);

/// The longest that a session may take to end.
const CLOSING: Duration = Duration::from_secs(60);

/// A session, seen from a case.
#[derive(Clone)]
pub struct Seat {
    session: Session,
    /// Files here that keep what outcomes left out.
    spills: Arc<Mutex<Vec<String>>>,
}

impl Seat {
    pub(super) fn new(session: Session) -> Self {
        Self {
            session,
            spills: Arc::default(),
        }
    }

    /// Runs a cell; the outcome, whatever it says.
    pub(super) async fn run(&self, cell: Cell) -> Result<Outcome, Unmet> {
        let limit = BEYOND + cell.limits.timeout.unwrap_or_default();
        let outcome = tokio::time::timeout(limit, self.session.execute(cell))
            .await
            .map_err(|_| {
                failed(format!(
                    "a cell had no outcome after {} s, its timeout included",
                    limit.as_secs()
                ))
            })?;
        let mut spills = self.spills.lock().unwrap_or_else(PoisonError::into_inner);
        spills.extend(outcome.stdout_spill_path.clone());
        Ok(outcome)
    }

    /// Removes what its outcomes left here.
    pub(super) async fn tidy(&self) {
        let spills = std::mem::take(&mut *self.spills.lock().unwrap_or_else(PoisonError::into_inner));
        for path in spills {
            // What cannot be removed is pruned in time, like all that is kept there.
            let _ = tokio::fs::remove_file(path).await;
        }
    }

    /// Runs text that sees the built-in tools.
    pub(super) async fn cell(&self, code: impl Into<String>) -> Result<Outcome, Unmet> {
        self.run(builtin(code)).await
    }

    /// Runs text that sees the tools of the suite as well.
    pub(super) async fn probing(&self, code: impl Into<String>) -> Result<Outcome, Unmet> {
        self.run(probing(code)).await
    }

    /// Runs text that may take so many seconds.
    pub(super) async fn cell_for(&self, seconds: f64, code: &str) -> Result<Outcome, Unmet> {
        let mut cell = builtin(code);
        cell.limits.timeout = Some(Duration::from_secs_f64(seconds));
        self.run(cell).await
    }

    /// Runs text that must succeed; what it printed.
    pub(super) async fn ok(&self, code: &str) -> Result<String, Unmet> {
        printed(code, self.cell(code).await?)
    }

    /// The same for text that sees the tools of the suite.
    pub(super) async fn ok_probing(&self, code: &str) -> Result<String, Unmet> {
        printed(code, self.probing(code).await?)
    }

    /// Runs text that must succeed and print just that.
    pub(super) async fn prints(&self, code: &str, expected: &str) -> Checked {
        let printed = self.ok(code).await?;
        equal(&format!("the output of\n{code}\n"), printed.as_str(), expected)
    }

    /// The same for text that sees the tools of the suite.
    pub(super) async fn prints_probing(&self, code: &str, expected: &str) -> Checked {
        let printed = self.ok_probing(code).await?;
        equal(&format!("the output of\n{code}\n"), printed.as_str(), expected)
    }

    /// Runs text that must succeed and print JSON; its value.
    pub(super) async fn value(&self, code: &str) -> Result<Value, Unmet> {
        let printed = self.ok(code).await?;
        serde_json::from_str(&printed)
            .map_err(|error| failed(format!("expected JSON of\n{code}\n, seen {printed:?} ({error})")))
    }

    /// Calls a tool in a cell of its own; its result.
    pub(super) async fn call(&self, tool: &str, arguments: &Value) -> Result<Value, Unmet> {
        let arguments = Value::String(arguments.to_string());
        self.value(&format!(
            "import json, hermes_tools\nprint(json.dumps(hermes_tools.{tool}(**json.loads({arguments}))))"
        ))
        .await
    }

    /// Runs a cell and cancels it once it has printed `mark`.
    pub(super) async fn cancelled(&self, mut cell: Cell, mark: &'static str, reason: &str) -> Result<Outcome, Unmet> {
        let heard = Arc::new(Heard::new(mark));
        cell.sink = Some(heard.clone());
        let cancel = cell.cancel.clone();
        let (outcome, ()) = tokio::join!(self.run(cell), async {
            // Where it is never heard, the cell ends at its limit, and the outcome says so.
            if tokio::time::timeout(BEYOND / 2, heard.wait()).await.is_ok() {
                cancel.cancel(reason);
            }
        });
        outcome
    }

    /// Discards the state; how long that takes is bounded.
    pub(super) async fn reset(&self) -> Checked {
        tokio::time::timeout(CLOSING, self.session.reset())
            .await
            .map_err(|_| failed(format!("a reset was not done after {} s", CLOSING.as_secs())))
    }

    /// Ends the session; whether it did in time.
    pub(super) async fn close(&self) -> Checked {
        tokio::time::timeout(CLOSING, self.session.close())
            .await
            .map_err(|_| failed(format!("a session was not closed after {} s", CLOSING.as_secs())))
    }
}

fn printed(code: &str, outcome: Outcome) -> Result<String, Unmet> {
    if outcome.status == Status::Success {
        return Ok(outcome.output);
    }
    Err(failed(format!(
        "expected success of\n{code}\nseen {:?}, exit code {:?}, error {:?}, output {:?}",
        outcome.status, outcome.exit_code, outcome.error, outcome.output
    )))
}

/// A cell that may call the built-in tools.
pub(super) fn builtin(code: impl Into<String>) -> Cell {
    allowing(code, BUILTIN)
}

/// A cell that may call the tools of the suite too.
pub(super) fn probing(code: impl Into<String>) -> Cell {
    let names: Vec<&str> = BUILTIN.iter().chain(PROBES).copied().collect();
    allowing(code, &names)
}

/// A cell that may call only these.
pub(super) fn allowing(code: impl Into<String>, tools: &[&str]) -> Cell {
    let mut cell = Cell::new(code);
    cell.allowed_tools = Some(tools.iter().map(|&name| name.to_owned()).collect());
    cell
}

/// Hears what a cell prints, as it is printed.
pub(super) struct Heard {
    mark: &'static str,
    text: Mutex<String>,
    heard: Notify,
}

impl Heard {
    pub(super) fn new(mark: &'static str) -> Self {
        Self {
            mark,
            text: Mutex::default(),
            heard: Notify::new(),
        }
    }

    /// Waits until the mark was printed.
    pub(super) async fn wait(&self) {
        self.heard.notified().await;
    }

    /// What was printed so far.
    pub(super) fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl OutputSink for Heard {
    fn write(&self, _stream: Stream, text: &str) {
        let mut so_far = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.push_str(text);
        if so_far.contains(self.mark) {
            self.heard.notify_one();
        }
    }
}
