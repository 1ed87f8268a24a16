//! Asking a client's user whether a tool call of a script may happen.
//!
//! Up to protocol version 2025-11-25 the server asks by a request of its own. From 2026-07-28 on it may send none: the
//! call that waits for the script is answered with the question, and the client calls again with what its user said.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rmcp::model::{
    CancelledNotificationParam, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationSchema, InputRequest, InputRequiredResult, InputResponses, ProtocolVersion, RequestId, ServerRequest,
};
use rmcp::service::{PeerRequestOptions, RequestContext};
use rmcp::{Peer, RoleServer};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::approval::{ApprovalRequest, Approver, Decision, Question};

/// Columns of a question; a client breaks longer lines as it likes.
const COLUMNS: usize = 120;
/// The longest reason that is passed on, in characters.
const MOST_REASON: usize = 1000;

/// Asks the client whose call has started a script.
pub(super) struct Desk {
    way: Way,
    questions: AtomicU64,
    /// Says when there is a question for an answer to carry.
    open: watch::Sender<bool>,
    /// That question.
    asked: Mutex<Option<Asked>>,
}

enum Way {
    /// A request of ours.
    Request(Peer<RoleServer>),
    /// The answer to a call of the client's.
    Answer,
    /// There is none: why, and what to do.
    None(&'static str),
}

/// A question that waits for a call to be answered with it.
struct Asked {
    id: String,
    message: String,
    decided: oneshot::Sender<Decision>,
}

/// Whether this call may be answered with a question.
pub(super) fn takes_questions(context: &RequestContext<RoleServer>) -> bool {
    let capability = context
        .client_capabilities()
        .and_then(|capabilities| capabilities.elicitation);
    // One that says no more than that it can be asked takes forms.
    capability.is_some_and(|capability| capability.form.is_some() || capability.url.is_none())
}

fn answers_only(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

impl Desk {
    /// Of a call that starts a script.
    pub(super) fn of(detached: bool, context: &RequestContext<RoleServer>) -> Arc<Self> {
        let way = if detached {
            Way::None(
                "the script is detached, and nobody waits for it; start it without `detach`, or allow the call in the configuration (approval)",
            )
        } else if !takes_questions(context) {
            Way::None(
                "this client cannot ask its user (it has not declared elicitation); allow the call in the configuration (approval), or use a client that can",
            )
        } else if answers_only(context) {
            Way::Answer
        } else {
            Way::Request(context.peer.clone())
        };
        Arc::new(Self {
            way,
            questions: AtomicU64::new(0),
            open: watch::Sender::new(false),
            asked: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a question, and gives the answer that carries it; `state` is what the client calls again with.
    pub(super) async fn question(&self, state: &str) -> InputRequiredResult {
        let mut open = self.open.subscribe();
        loop {
            // The sender is ours.
            let _ = open.wait_for(|open| *open).await;
            if let Some(asked) = &*self.lock() {
                let request = ElicitRequest::new(form(asked.message.clone()));
                let requests = BTreeMap::from([(asked.id.clone(), InputRequest::Elicitation(request))]);
                return InputRequiredResult::new(Some(requests), Some(state.to_owned()));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Takes what a client has brought. What answers no open question is passed over.
    pub(super) fn decide(&self, responses: &InputResponses) {
        let mut slot = self.lock();
        let Some(value) = slot.as_ref().and_then(|asked| responses.get(&asked.id)) else {
            return;
        };
        let decision = serde_json::from_value(value.clone()).map_or_else(|_| unclear(), decision);
        if let Some(asked) = slot.take() {
            self.open.send_replace(false);
            // Nobody may wait for it any more.
            let _ = asked.decided.send(decision);
        }
    }
}

/// Takes a question back.
struct Withdrawn<'a>(&'a Desk);

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        self.0.open.send_replace(false);
        self.0.lock().take();
    }
}

#[async_trait]
impl Approver for Desk {
    fn who(&self) -> String {
        "the user of the client".to_owned()
    }

    async fn ask(&self, request: ApprovalRequest) -> Decision {
        let cannot = |why: &str| Decision::CannotAsk { reason: why.to_owned() };
        let message = Question::of(&request).shown(COLUMNS, false).trim().to_owned();
        // Not withdrawn when the call that started the script has been answered: the client asks for the script with
        // another call. One that has gone leaves the question unanswered, which is a refusal.
        match &self.way {
            Way::None(why) => cannot(why),
            Way::Request(peer) => by_request(peer, message).await,
            Way::Answer => {
                let (decided, decision) = oneshot::channel();
                let id = format!("approval-{}", self.questions.fetch_add(1, Ordering::Relaxed) + 1);
                *self.lock() = Some(Asked { id, message, decided });
                self.open.send_replace(true);
                let _withdrawn = Withdrawn(self);
                decision
                    .await
                    .unwrap_or_else(|_| cannot("the question was withdrawn; call it again"))
            }
        }
    }
}

/// Tells the client that its answer is not wanted any more.
struct Open<'a>(&'a Peer<RoleServer>, Option<RequestId>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.1.take() {
            let peer = self.0.clone();
            let told = CancelledNotificationParam::new(Some(id), Some("the question was withdrawn".to_owned()));
            tokio::spawn(async move { peer.notify_cancelled(told).await });
        }
    }
}

async fn by_request(peer: &Peer<RoleServer>, message: String) -> Decision {
    let failed = |error: rmcp::ServiceError| Decision::CannotAsk {
        reason: format!("the client could not be asked ({error}); allow the call in the configuration (approval)"),
    };
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(message)));
    let handle = match peer
        .send_cancellable_request(request, PeerRequestOptions::no_options())
        .await
    {
        Ok(handle) => handle,
        Err(error) => return failed(error),
    };
    let mut open = Open(peer, Some(handle.id.clone()));
    let answer = handle.await_response().await;
    open.1 = None;
    match answer {
        Ok(ClientResult::ElicitResult(result)) => decision(result),
        Ok(_) => unclear(),
        Err(error) => failed(error),
    }
}

fn unclear() -> Decision {
    Decision::CannotAsk {
        reason: "the client's answer could not be read; call it again".to_owned(),
    }
}

/// What the user is shown.
fn form(message: String) -> ElicitRequestParams {
    let schema = json!({
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "May it happen?",
                "description": "once: this call. session: every call of this tool that the same rules ask about, until the session ends. no: not at all.",
                "enum": ["once", "session", "no"],
            },
            "reason": {"type": "string", "title": "Reason", "description": "What the script is told if not."},
        },
        "required": ["decision"],
    });
    let schema = match schema {
        Value::Object(fields) => ElicitationSchema::from_json_schema(fields).ok(),
        _ => None,
    };
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message,
        requested_schema: schema.unwrap_or_else(|| ElicitationSchema::new(BTreeMap::new())),
    }
}

/// What the user's answer means: only a word that allows does.
fn decision(result: ElicitResult) -> Decision {
    let content = result.content.unwrap_or_default();
    match (result.action, content["decision"].as_str()) {
        (ElicitationAction::Accept, Some("once")) => Decision::AllowOnce,
        (ElicitationAction::Accept, Some("session")) => Decision::AllowForSession,
        _ => Decision::Deny {
            reason: content["reason"]
                .as_str()
                .map(|reason| reason.trim().chars().take(MOST_REASON).collect::<String>())
                .filter(|reason| !reason.is_empty()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_that_allows_does() {
        let of = |answer: Value| serde_json::from_value(answer).map_or_else(|_| unclear(), decision);
        let refused = Decision::Deny { reason: None };
        for (answer, expected) in [
            (
                json!({"action": "accept", "content": {"decision": "once"}}),
                Decision::AllowOnce,
            ),
            (
                json!({"action": "accept", "content": {"decision": "session"}}),
                Decision::AllowForSession,
            ),
            (
                json!({"action": "accept", "content": {"decision": "no"}}),
                refused.clone(),
            ),
            (
                json!({"action": "accept", "content": {"decision": true}}),
                refused.clone(),
            ),
            (json!({"action": "accept", "content": {}}), refused.clone()),
            (json!({"action": "accept"}), refused.clone()),
            (
                json!({"action": "decline", "content": {"decision": "once"}}),
                refused.clone(),
            ),
            (json!({"action": "cancel"}), refused),
            (json!({"decision": "once"}), unclear()),
            (
                json!({"action": "accept", "content": {"decision": "no", "reason": " later "}}),
                Decision::Deny {
                    reason: Some("later".to_owned()),
                },
            ),
        ] {
            assert_eq!(of(answer.clone()), expected, "{answer}");
        }
        let ElicitRequestParams::FormElicitationParams { requested_schema, .. } = form(String::new()) else {
            panic!("it is no form");
        };
        assert_eq!(requested_schema.properties.len(), 2);
    }
}
