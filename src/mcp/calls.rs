//! The tools that run scripts, wait for them, and look after their sessions.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rmcp::model::{CallToolResponse, CallToolResult, InputRequiredResult, InputResponses, ProgressNotificationParam};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::json;

use super::answers;
use super::approval::{Desk, takes_questions};
use super::arguments::{CancelExecution, CloseSession, Execute, Status};
use super::server::{Caller, Server};
use super::tools::WAIT;
use crate::broker::{Ended, Execution, Progress, Request, Stage, fingerprint};
use crate::limits::LimitOverrides;
use crate::session::Cell;
use crate::telemetry::TraceContext;

/// When a client that asked for it first hears of progress, and how often from then on.
const FIRST_PROGRESS: Duration = Duration::from_millis(250);
const PROGRESS: Duration = Duration::from_secs(1);

/// Time in which an interrupted script should have ended: the grace that its processes get, and some for the way.
const INTERRUPTED: Duration = Duration::from_secs(15);

/// Executions of a session that a list of sessions names.
const EXECUTIONS_LISTED: usize = 5;

/// What became of a call that waits.
enum Followed {
    /// The script has ended, or the time to wait has.
    Answered,
    /// The client does not want an answer any more.
    GivenUp,
    /// Its user is to decide on something first.
    Asked(Box<InputRequiredResult>),
}

/// What a client brings that calls again because it was asked something.
pub(super) struct Brought {
    /// The execution that it was asked for.
    pub(super) state: Option<String>,
    pub(super) responses: Option<InputResponses>,
}

/// The trace that a client names beside its request.
fn trace(context: &RequestContext<RoleServer>) -> Option<TraceContext> {
    let text = |name: &str| context.meta.get(name)?.as_str().map(str::to_owned);
    Some(TraceContext {
        traceparent: text("traceparent")?,
        tracestate: text("tracestate").unwrap_or_default(),
    })
}

impl Server {
    pub(super) async fn execute_code(
        &self,
        asked: Execute,
        brought: Brought,
        caller: &Caller,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let wait = asked.call.wait.unwrap_or(WAIT);
        if let Some(handle) = &brought.state {
            // It goes on: nothing is started.
            let Some(execution) = self.shared.executions.get(&caller.principal, handle) else {
                return Err(ErrorData::invalid_params(
                    "requestState is none that this server has given",
                    None,
                ));
            };
            if let (Some(desk), Some(responses)) = (self.desk(handle), &brought.responses) {
                desk.decide(responses);
            }
            let attached = execution.attach();
            return match self.follow(&execution, wait, caller, context).await {
                Followed::Answered => Ok(answers::of_execution(&execution).into()),
                Followed::Asked(question) => Ok((*question).into()),
                Followed::GivenUp => {
                    attached.give_up("the client cancelled the call");
                    Err(given_up())
                }
            };
        }
        let desk = Desk::of(asked.detach, context);
        let request = Request {
            principal: &caller.principal,
            key: asked.call.idempotency_key.as_deref(),
            fingerprint: fingerprint(&asked),
            detached: asked.detach,
        };
        let (mut is_new, mut is_started) = (false, false);
        let started = self.shared.executions.start(&request, || {
            let chosen = self.choose(
                &caller.principal,
                asked.session.as_deref(),
                asked.target.as_deref(),
                true,
            )?;
            (is_new, is_started) = (chosen.is_new, true);
            let mut cell = Cell::new(asked.code.clone());
            cell.reset = asked.reset;
            cell.trace = trace(context);
            cell.approver = Some(desk.clone());
            cell.limits = LimitOverrides {
                timeout: asked.timeout,
                ..LimitOverrides::default()
            };
            Ok((chosen.session, cell))
        });
        let execution = match started {
            Ok(execution) => execution,
            Err(error) => {
                let target = self.target_named(asked.target.as_deref());
                return Ok(answers::refused(target, error.to_string()).into());
            }
        };
        if is_started {
            self.keep_desk(&execution.handle, &desk);
        }
        let attached = execution.attach();
        match self.follow(&execution, wait, caller, context).await {
            Followed::Answered => Ok(answers::of_execution(&execution).into()),
            Followed::Asked(question) => Ok((*question).into()),
            Followed::GivenUp => {
                attached.give_up("the client cancelled the call");
                if is_new && !execution.detached {
                    self.forget_session(&execution, caller);
                }
                Err(given_up())
            }
        }
    }

    /// Ends a session that nobody has heard of, once nothing runs in it.
    fn forget_session(&self, execution: &Arc<Execution>, caller: &Caller) {
        let (server, execution, principal) = (self.clone(), execution.clone(), caller.principal.clone());
        tokio::spawn(async move {
            execution.wait().await;
            if let Some(session) = server.shared.sessions.remove(&principal, &execution.session) {
                session.close().await;
            }
        });
    }

    pub(super) async fn execution_status(
        &self,
        asked: Status,
        brought: Brought,
        caller: &Caller,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(execution) = self.shared.executions.get(&caller.principal, &asked.execution) else {
            return Ok(unknown(&asked.execution).into());
        };
        if let (Some(desk), Some(responses)) = (self.desk(&asked.execution), &brought.responses) {
            desk.decide(responses);
        }
        match self
            .follow(&execution, asked.wait.unwrap_or(WAIT), caller, context)
            .await
        {
            Followed::Answered => Ok(answers::of_execution(&execution).into()),
            Followed::Asked(question) => Ok((*question).into()),
            Followed::GivenUp => Err(given_up()),
        }
    }

    pub(super) async fn execution_cancel(
        &self,
        asked: CancelExecution,
        caller: &Caller,
    ) -> Result<CallToolResult, ErrorData> {
        let Some(execution) = self.shared.executions.get(&caller.principal, &asked.execution) else {
            return Ok(unknown(&asked.execution));
        };
        execution.cancel("the client asked for it", false);
        let ended = tokio::time::timeout(INTERRUPTED, execution.wait()).await;
        let mut result = answers::of_execution(&execution);
        // What was asked for was done, however the script ended.
        if matches!(ended, Ok(Ended::With(_))) {
            result.is_error = Some(false);
        }
        Ok(result)
    }

    pub(super) fn session_list(&self, caller: &Caller) -> CallToolResult {
        let sessions = self.shared.sessions.list(&caller.principal);
        let told = sessions.iter().map(|one| {
            let executions = self
                .shared
                .executions
                .of_session(&caller.principal, &one.handle, EXECUTIONS_LISTED);
            let executions = executions.iter().map(|execution| {
                json!({"execution": execution.handle, "status": answers::status(execution)})
            });
            json!({
                "session": one.handle,
                "target": one.target,
                "busy": one.is_busy(),
                "idle_seconds": one.idle().as_secs(),
                "executions": executions.collect::<Vec<_>>(),
                "working_directory": one.session.working_directory().map(|folder| folder.to_string_lossy().into_owned()),
            })
        });
        answers::structured(json!({"sessions": told.collect::<Vec<_>>()}))
    }

    pub(super) async fn session_close(
        &self,
        asked: CloseSession,
        caller: &Caller,
    ) -> Result<CallToolResult, ErrorData> {
        let handle = &asked.session;
        let Some(session) = self.shared.sessions.remove(&caller.principal, handle) else {
            let shown: String = handle.chars().take(100).collect();
            return Ok(answers::failed(format!(
                "there is no session {shown:?}; session_list names those that are open"
            )));
        };
        self.shared
            .executions
            .cancel_session(&caller.principal, handle, "the session was closed");
        // In a task of its own: what is half closed would stay.
        let closing = tokio::spawn(async move { session.close().await });
        closing
            .await
            .map_err(|error| ErrorData::internal_error(format!("the session could not be closed: {error}"), None))?;
        Ok(answers::structured(json!({"session": handle, "closed": true})))
    }
}

impl Server {
    /// Waits for the end of a script, at most for `wait`, and tells the client how far it is where it asked for that.
    async fn follow(
        &self,
        execution: &Arc<Execution>,
        wait: Duration,
        caller: &Caller,
        context: &RequestContext<RoleServer>,
    ) -> Followed {
        let desk = self.desk(&execution.handle).filter(|_| takes_questions(context));
        let asked = async {
            match desk {
                Some(desk) => desk.question(&execution.handle).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = execution.wait() => Followed::Answered,
            () = context.ct.cancelled() => Followed::GivenUp,
            () = caller.gone.cancelled() => Followed::GivenUp,
            question = asked => Followed::Asked(Box::new(question)),
            () = tokio::time::sleep(wait) => Followed::Answered,
            () = tell_progress(execution, context) => Followed::Answered,
        }
    }

    /// Who is asked about the calls of an execution, as long as it runs.
    fn desk(&self, execution: &str) -> Option<Arc<Desk>> {
        let desks = self.shared.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.get(execution)?.upgrade()
    }

    fn keep_desk(&self, execution: &str, desk: &Arc<Desk>) {
        let mut desks = self.shared.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.retain(|_, desk| desk.strong_count() > 0);
        desks.insert(execution.to_owned(), Arc::downgrade(desk));
    }
}

/// Tells of progress, for ever.
async fn tell_progress(execution: &Arc<Execution>, context: &RequestContext<RoleServer>) {
    let Some(token) = context.meta.get_progress_token() else {
        return std::future::pending().await;
    };
    let began = tokio::time::Instant::now();
    tokio::time::sleep(FIRST_PROGRESS).await;
    loop {
        // It must grow, also from what was queued to what runs.
        let told = ProgressNotificationParam::new(token.clone(), began.elapsed().as_secs_f64())
            .with_message(in_words(&execution.progress()));
        if let Err(error) = context.peer.notify_progress(told).await {
            tracing::debug!(%error, "the client could not be told of progress");
        }
        tokio::time::sleep(PROGRESS).await;
    }
}

fn in_words(progress: &Progress) -> String {
    let seconds = progress.elapsed.as_secs();
    let mut text = match (progress.stage, progress.tool_calls) {
        (Stage::Queued, _) => format!("waits for {seconds} s"),
        (_, 0) => format!("{seconds} s"),
        (_, 1) => format!("{seconds} s, 1 tool call"),
        (_, calls) => format!("{seconds} s, {calls} tool calls"),
    };
    if !progress.last_line.is_empty() {
        text.push_str(": ");
        text.push_str(&progress.last_line);
    }
    text
}

fn unknown(execution: &str) -> CallToolResult {
    let shown: String = execution.chars().take(100).collect();
    answers::failed(format!(
        "there is no execution {shown:?}: the handle is in the answer of execute_code, and holds for an hour after the script has ended"
    ))
}

/// Nobody reads it.
pub(super) fn given_up() -> ErrorData {
    ErrorData::internal_error("the call was cancelled", None)
}
