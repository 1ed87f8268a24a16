//! What one cell may do: its tool host, its tools, its budget. Given anew with each cell and taken
//! away when it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, warn};

use super::approval::{Approvals, Refusal};
use super::cell::OutputSink;
use super::journal::{CallEntry, Journal};
use crate::audit::Decision;
use crate::link::{CallHandler, IncomingCall, Reply};
use crate::tools::{CallContext, ToolCall, ToolHost, ToolSpec, Workspace, validate_arguments};

/// The authority of one cell.
pub(super) struct Authority {
    pub(super) cell: u64,
    /// The number of the cell in the audit log.
    pub(super) entry: u64,
    /// The span of the cell.
    pub(super) span: tracing::Span,
    pub(super) host: Arc<dyn ToolHost>,
    /// Names that may be called, in the host's order.
    pub(super) allowed: Vec<String>,
    pub(super) budget: u64,
    pub(super) made: AtomicU64,
    pub(super) cancel: CancellationToken,
    pub(super) sink: Option<Arc<dyn OutputSink>>,
    pub(super) answers: Answers,
    pub(super) replies: Replies,
    pub(super) approvals: Approvals,
}

/// Calls that the target may answer, for as long as they are handled.
#[derive(Default)]
pub(super) struct Replies(Mutex<Vec<Arc<Reply>>>);

impl Replies {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Reply>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a call until the guard is dropped.
    fn handle<'a>(&'a self, reply: &'a Arc<Reply>) -> Handled<'a> {
        self.list().push(reply.clone());
        Handled { replies: self, reply }
    }
}

struct Handled<'a> {
    replies: &'a Replies,
    reply: &'a Arc<Reply>,
}

impl Drop for Handled<'_> {
    fn drop(&mut self) {
        self.replies.list().retain(|other| !Arc::ptr_eq(other, self.reply));
        self.reply.note();
    }
}

/// What the calls of a cell were answered, as far as a hint may need it.
#[derive(Default)]
pub(super) struct Answers(Mutex<Seen>);

/// The answers so far.
#[derive(Default)]
pub(super) struct Seen {
    /// The last tool that failed and so had nothing but an `error` to give, and that error.
    pub(super) failed: Option<(String, String)>,
    /// The keys of each tool's first result.
    pub(super) keys: BTreeMap<String, Vec<String>>,
    /// How the calls of each tool went.
    pub(super) calls: BTreeMap<String, Calls>,
}

/// How the calls of one tool went in one cell.
#[derive(Default)]
pub(super) struct Calls {
    /// How many gave something to work with.
    worked: u64,
    /// How many did not, and the error of the last.
    failed: u64,
    error: String,
}

impl Calls {
    /// If all failed: how many there were, and what the last was told.
    pub(super) fn all_failed(&self) -> Option<(u64, &str)> {
        (self.worked == 0 && self.failed > 0).then_some((self.failed, self.error.as_str()))
    }
}

/// Why an answer gives a script nothing to work with: it is an error, or a list of results of which each is one.
fn failure(answer: &Map<String, Value>) -> Option<&str> {
    fn error(answer: &Map<String, Value>) -> Option<&str> {
        answer.get("error")?.as_str()
    }
    match answer.get("results") {
        Some(Value::Array(results)) if !results.is_empty() => {
            let errors: Option<Vec<&str>> = results.iter().map(|result| error(result.as_object()?)).collect();
            errors?.last().copied()
        }
        _ => error(answer),
    }
}

/// How long a call that the target has answered may still take here.
const NOTE_LIMIT: Duration = Duration::from_secs(1);
/// Keys of a result that are remembered: a hint lists no more.
const KEYS_SEEN: usize = 12;

impl Answers {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, tool: &str, is_there: bool, answer: &Value) {
        let Value::Object(answer) = answer else { return };
        let mut seen = self.seen();
        // Names that are made up are without number.
        if is_there {
            let calls = seen.calls.entry(tool.to_owned()).or_default();
            match failure(answer) {
                Some(error) => {
                    calls.failed += 1;
                    calls.error = error.to_owned();
                }
                None => calls.worked += 1,
            }
        }
        if answer.len() == 1
            && let Some(Value::String(error)) = answer.get("error")
        {
            seen.failed = Some((tool.to_owned(), error.clone()));
        } else if !seen.keys.contains_key(tool) {
            let keys = answer.keys().take(KEYS_SEEN).cloned().collect();
            seen.keys.insert(tool.to_owned(), keys);
        }
    }
}

impl Authority {
    fn spec(&self, name: &str) -> Option<&ToolSpec> {
        if !self.allowed.iter().any(|allowed| allowed == name) {
            return None;
        }
        self.host.tools().iter().find(|spec| spec.name == name)
    }

    /// Checks a call, has it approved and charges it to the budget: one that is refused is free.
    async fn admit(&self, call: &IncomingCall, workspace: &dyn Workspace) -> Result<Decision, Refusal> {
        let Some(spec) = self.spec(&call.tool) else {
            let name: String = call.tool.chars().take(100).collect();
            let available = if self.allowed.is_empty() {
                "none".to_owned()
            } else {
                self.allowed.join(", ")
            };
            return Err(format!(
                "{} is not available in scripts; available: {available}",
                name.escape_debug()
            )
            .into());
        };
        validate_arguments(spec, &call.arguments)?;
        if self.made.load(Ordering::Acquire) >= self.budget {
            return Err(self.used_up(&call.tool).into()); // nobody needs to be asked about it
        }
        let decision = self.approvals.admit(call, workspace, &self.cancel).await?;
        let admitted = self.made.fetch_update(Ordering::AcqRel, Ordering::Acquire, |made| {
            (made < self.budget).then_some(made + 1)
        });
        match admitted {
            Ok(before) => {
                if let Some(sink) = &self.sink {
                    sink.tool_calls(before + 1);
                }
                Ok(decision)
            }
            Err(_) => Err(self.used_up(&call.tool).into()),
        }
    }

    fn used_up(&self, tool: &str) -> String {
        format!(
            "the limit of {} tool calls per cell is reached and {tool} was not run; print what you have, or go on in another call",
            self.budget
        )
    }
}

/// The door that every tool call of a session goes through.
pub(super) struct Gate {
    current: RwLock<Option<Arc<Authority>>>,
    workspace: Arc<dyn Workspace>,
    journal: Arc<Journal>,
}

impl Gate {
    pub(super) fn new(workspace: Arc<dyn Workspace>, journal: Arc<Journal>) -> Self {
        Self {
            current: RwLock::new(None),
            workspace,
            journal,
        }
    }

    /// Opens the door for a cell.
    pub(super) fn open(&self, authority: Arc<Authority>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(authority);
    }

    /// Shuts it; calls that are still open are cancelled. Returns when note was taken of those that the target answered.
    pub(super) async fn shut(&self) {
        let authority = self.current.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(authority) = authority {
            let mut answered = authority.replies.list().clone();
            answered.retain(|reply| reply.is_given());
            authority.cancel.cancel();
            for reply in answered {
                let _ = tokio::time::timeout(NOTE_LIMIT, reply.noted()).await;
            }
        }
    }

    fn authority(&self, cell: u64) -> Result<Arc<Authority>, String> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(authority) if authority.cell == cell => Ok(authority.clone()),
            _ if cell == 0 => Err(
                "this thread belongs to no running cell and may not call tools; start the work from the cell that needs it".to_owned(),
            ),
            _ => Err(format!(
                "cell {cell} has ended, and what it left running may not call tools; start the work from the cell that needs it"
            )),
        }
    }
}

#[async_trait]
impl CallHandler for Gate {
    async fn handle(&self, call: IncomingCall) -> Value {
        let mut entry = self.journal.call(&call);
        let authority = match self.authority(call.cell) {
            Ok(authority) => authority,
            Err(refusal) => {
                let answer = entry.refuse(refusal.into());
                entry.end(&answer);
                return answer;
            }
        };
        entry.of_cell(&authority);
        let reply = call.reply.clone();
        let _handled = reply.as_ref().map(|reply| authority.replies.handle(reply));
        let tool = call.tool.clone();
        let answer = self.judge(&authority, call, &mut entry).await;
        authority
            .answers
            .remember(&tool, authority.spec(&tool).is_some(), &answer);
        // Before the cell may end: its line comes last.
        entry.end(&answer);
        answer
    }

    fn refused(&self, reason: &str) {
        self.journal.unreadable(reason);
    }
}

impl Gate {
    /// Lets a call of the running cell through, or says why not.
    async fn judge(&self, authority: &Authority, call: IncomingCall, entry: &mut CallEntry<'_>) -> Value {
        if let Some(failure) = self.journal.refusal_of_calls() {
            return entry.refuse(format!("{} was not run: {failure}", call.tool).into());
        }
        match authority.admit(&call, &*self.workspace).await {
            Ok(decision) => {
                entry.admit(decision);
                self.answer(authority, call).instrument(entry.span.clone()).await
            }
            Err(refusal) => entry.refuse(refusal),
        }
    }

    /// What the host has to say to an admitted call.
    async fn answer(&self, authority: &Authority, call: IncomingCall) -> Value {
        let reply = call.reply.filter(|_| authority.host.passes_answers_on());
        let context = CallContext {
            cancel: authority.cancel.clone(),
            workspace: self.workspace.clone(),
            reply: reply.clone(),
        };
        let name = call.tool.clone();
        let call = ToolCall {
            name: call.tool,
            arguments: call.arguments,
        };
        // A task of its own: a host that panics or blocks must not take the connection with it.
        let host = authority.host.clone();
        let answer = AbortOnDropHandle::new(tokio::spawn(
            async move { flat_enough(host.call(call, &context).await) },
        ));
        let cut = async {
            authority.cancel.cancelled().await;
            if reply.as_ref().is_some_and(|reply| reply.is_given()) {
                // Its script has the answer: it is only to be taken note of.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = cut => json!({
                "error": format!("the cell ended before {name} did; the call was cancelled")
            }),
            answer = answer => answer.unwrap_or_else(|failure| json!({ "error": host_failed(&name, failure) })),
        }
    }
}

/// Levels of a result that a script's JSON reader surely takes.
const MAX_RESULT_DEPTH: usize = 500;

/// The answer, or why it cannot be one. Neither is a deep value encoded nor dropped as a whole: both
/// would descend into it on the stack.
fn flat_enough(answer: Value) -> Value {
    fn inner(value: &Value) -> Vec<&Value> {
        match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(map) => map.values().collect(),
            _ => Vec::new(),
        }
    }
    let mut level = inner(&answer);
    let mut depth = 0;
    while !level.is_empty() && depth < MAX_RESULT_DEPTH {
        level = level.into_iter().flat_map(inner).collect();
        depth += 1;
    }
    if level.is_empty() {
        return answer;
    }
    let mut pending = vec![answer];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(map) => pending.extend(map.into_values()),
            _ => {}
        }
    }
    json!({"error": format!(
        "the tool ran, but its result is nested more than {MAX_RESULT_DEPTH} levels deep and cannot be passed on; ask for less"
    )})
}

/// What a script is told of a host that panicked.
fn host_failed(tool: &str, failure: JoinError) -> String {
    let reason = match failure.try_into_panic() {
        Ok(panic) => match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "no reason given".to_owned(),
        },
        Err(failure) => failure.to_string(),
    };
    warn!(%tool, %reason, "the tool host failed");
    format!(
        "the tool {tool} broke down while it ran ({reason}); whether it did its work is not known, so look before you call it again"
    )
}
