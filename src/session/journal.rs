//! What a session tells the audit log: each cell, and each call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};
use tracing::Span;

use super::approval::Refusal;
use super::authority::Authority;
use super::cell::Cell;
use super::options::SessionOptions;
use super::spans;
use crate::audit::{Audit, CallEnd, CallStart, CellEnd, Decision, Event, Origin, Record, Script, account};
use crate::link::IncomingCall;
use crate::outcome::Outcome;
use crate::output::Masker;

/// Refused calls of one cell that get a line each: a script may make any number, and must not push older lines out.
const REFUSALS: u64 = 100;

/// A session's side of the audit log; without one it does nothing.
pub(super) struct Journal {
    audit: Option<Audit>,
    origin: Arc<Origin>,
    cells: AtomicU64,
    calls: AtomicU64,
    masker: Mutex<Masker>,
    /// Calls refused since the running cell began.
    refused: AtomicU64,
    /// Whether an outcome has told of a log that cannot be written.
    has_told: AtomicBool,
}

impl Journal {
    pub(super) fn new(options: &SessionOptions) -> Self {
        let audit = options.audit.as_ref().map(Audit::open);
        // What a cell is masked with is known when it runs; until then, what is withheld here.
        let environment = &options.environment;
        let masker = audit.as_ref().and_then(|_| {
            let cell = environment.cell_environment(&options.passes);
            let terminal = environment.terminal_environment(&options.passes);
            Masker::new(environment.masked_values(&[&cell, &terminal])).ok()
        });
        Self {
            audit,
            origin: Arc::new(Origin {
                who: options.principal.clone().unwrap_or_else(|| account().to_owned()),
                session: random_name(),
                target: options.target.clone(),
            }),
            cells: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            masker: Mutex::new(masker.unwrap_or_default()),
            refused: AtomicU64::new(0),
            has_told: AtomicBool::new(false),
        }
    }

    /// The session's name in the log.
    pub(super) fn session(&self) -> &str {
        &self.origin.session
    }

    fn masker(&self) -> MutexGuard<'_, Masker> {
        self.masker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, cell: Option<u64>, event: Event) -> Record {
        Record {
            at: SystemTime::now(),
            origin: self.origin.clone(),
            cell,
            masker: self.masker().clone(),
            event,
        }
    }

    fn record(&self, cell: Option<u64>, event: Event) {
        if let Some(audit) = &self.audit {
            audit.record(self.entry(cell, event));
        }
    }

    /// A cell that was handed over.
    pub(super) fn cell(self: &Arc<Self>, cell: &Cell) -> CellEntry {
        CellEntry {
            number: self.cells.fetch_add(1, Ordering::Relaxed) + 1,
            script: Script(match &self.audit {
                Some(_) => cell.source.bytes().into(),
                None => Arc::default(),
            }),
            is_announced: AtomicBool::new(false),
            journal: self.clone(),
        }
    }

    /// A call that has come; `None` where nothing is recorded.
    pub(super) fn call(&self, call: &IncomingCall) -> CallEntry<'_> {
        let masker = self.masker().clone();
        CallEntry {
            call: self
                .audit
                .is_some()
                .then(|| CallStart::of(&call.tool, &call.arguments, &masker)),
            tool: call.tool.chars().take(100).collect(),
            cell: None,
            span: Span::none(),
            decision: Decision::Allowed,
            began: Instant::now(),
            journal: self,
        }
    }

    /// A request that was refused before it could be read as a call.
    pub(super) fn unreadable(&self, reason: &str) {
        self.refusal(
            CallEnd::answered(
                None,
                Decision::Refused(reason.to_owned()),
                std::time::Duration::ZERO,
                &json!({ "error": reason }),
            ),
            None,
        );
    }

    fn refusal(&self, end: CallEnd, cell: Option<u64>) {
        if self.refused.fetch_add(1, Ordering::Relaxed) < REFUSALS {
            self.record(cell, Event::Call(Box::new(end)));
        }
    }

    /// Why no tool may be called at present.
    pub(super) fn refusal_of_calls(&self) -> Option<String> {
        self.audit.as_ref()?.refusal()
    }

    /// Waits until all is written.
    pub(super) async fn flush(&self) {
        if let Some(audit) = &self.audit {
            audit.flush().await;
        }
    }
}

/// A cell between its coming and its outcome.
pub(super) struct CellEntry {
    pub(super) number: u64,
    script: Script,
    is_announced: AtomicBool,
    journal: Arc<Journal>,
}

impl CellEntry {
    /// It is about to run, and will be masked so.
    ///
    /// # Errors
    /// The log is required and cannot be written, in a sentence.
    pub(super) async fn announce(&self, masker: &Masker) -> Result<(), String> {
        let journal = &self.journal;
        let Some(audit) = &journal.audit else { return Ok(()) };
        journal.masker().clone_from(masker);
        journal.refused.store(0, Ordering::Relaxed);
        if self.is_announced.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let start = Event::Start(self.script.clone());
        audit
            .announce(journal.entry(Some(self.number), start))
            .await
            .map_err(|error| format!("nothing ran, for nothing may run that is not recorded (audit.required): {error}"))
    }

    /// It has ended, or never ran. Adds what the caller should know of the log.
    pub(super) fn end(&self, outcome: &mut Outcome) {
        let journal = &self.journal;
        let Some(audit) = &journal.audit else { return };
        journal.record(
            Some(self.number),
            Event::Cell(Box::new(CellEnd {
                script: self.script.clone(),
                ran: outcome.kernel.is_some(),
                status: outcome.status,
                exit_code: outcome.exit_code,
                seconds: outcome.duration_seconds,
                phases: outcome.phases,
                tool_calls: outcome.tool_calls_made,
                refused_calls: journal.refused.swap(0, Ordering::Relaxed),
                printed: outcome.stdout_bytes_total,
                error: outcome.error.clone(),
            })),
        );
        if let Some(failure) = audit.failure()
            && !journal.has_told.swap(true, Ordering::Relaxed)
        {
            let told = outcome.notice.take().map_or_else(String::new, |notice| notice + " · ");
            outcome.notice = Some(told + &failure);
        }
    }
}

/// A call between its coming and its answer. One that is dropped is recorded too: its caller hung up.
pub(super) struct CallEntry<'a> {
    call: Option<CallStart>,
    tool: String,
    /// The number of its cell, once it is known.
    cell: Option<u64>,
    pub(super) span: Span,
    /// What was decided of it.
    pub(super) decision: Decision,
    began: Instant,
    journal: &'a Journal,
}

impl CallEntry<'_> {
    /// It is a call of the running cell.
    pub(super) fn of_cell(&mut self, authority: &Authority) {
        self.cell = Some(authority.entry);
        if !authority.span.is_disabled() {
            let number = self.journal.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let id = format!("{}-{}-{number}", self.journal.session(), authority.entry);
            self.span = spans::call(&authority.span, &self.tool, &id);
        }
    }

    /// It was let through.
    pub(super) fn admit(&mut self, decision: Decision) {
        self.decision = decision;
    }

    /// It was refused; its answer.
    pub(super) fn refuse(&mut self, refusal: Refusal) -> Value {
        self.decision = refusal.decision;
        json!({ "error": refusal.told })
    }

    /// It was answered.
    pub(super) fn end(mut self, answer: &Value) {
        self.record(answer);
    }

    fn record(&mut self, answer: &Value) {
        if !self.span.is_disabled() {
            let failed = answer.get("error").is_some_and(|error| !error.is_null());
            spans::call_ended(&std::mem::replace(&mut self.span, Span::none()), &self.decision, failed);
        }
        let Some(call) = self.call.take() else { return };
        let is_refused = !matches!(self.decision, Decision::Allowed | Decision::Asked { allowed: true, .. });
        let end = CallEnd::answered(
            Some(call),
            std::mem::take(&mut self.decision),
            self.began.elapsed(),
            answer,
        );
        if is_refused {
            self.journal.refusal(end, self.cell);
        } else {
            self.journal.record(self.cell, Event::Call(Box::new(end)));
        }
    }
}

impl Drop for CallEntry<'_> {
    fn drop(&mut self) {
        self.record(&json!({"error": "the caller went away before the call was answered"}));
    }
}

/// A name by which a session is told in the log.
fn random_name() -> String {
    let mut random = [0; 8];
    // Without random bytes sessions are still told apart by their broker and time.
    let _ = getrandom::fill(&mut random);
    format!("{:016x}", u64::from_ne_bytes(random))
}
