//! The control plane: one connection, the account's token on every call, attempts as [`Policy`] says.

use std::future::Future;
use std::time::Duration;

use http::Uri;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tracing::debug;

use super::connection::{Connector, LONGEST_MESSAGE, is_here, named};
use super::credentials::Account;
use super::retry::{Failed, Next, Policy, Retry, chance};
use super::token::{Token, Worth};
use super::trouble::{Trouble, deepest};
use super::waiting::{Wait, Waits};
use super::wire::client::AuthTokenGetRequest;
use super::wire::client::modal_client_client::ModalClientClient;
use super::wire::status;
use crate::environment::Secret;

/// The version of Modal's interface that is spoken, as its own client names it.
const INTERFACE: &str = "1.6.4";

/// What kind of client this is: none of Modal's own.
const CLIENT_TYPE: &str = "7";

/// The client as the calls are made with it.
pub(super) type Client = ModalClientClient<Channel>;

/// A call that came to nothing.
#[derive(Clone, Debug)]
pub(super) struct CallFailed {
    pub(super) code: Code,
    /// What the server, or the connection, said.
    pub(super) message: String,
    /// The server asked for patience, for longer than there is time.
    pub(super) throttled: bool,
    /// No server answered.
    pub(super) unanswered: bool,
    /// Why not, where that is known.
    pub(super) trouble: Option<Trouble>,
}

/// A connection to the control plane.
pub(super) struct Control {
    client: Client,
    /// Makes further connections.
    pub(super) connector: Connector,
    pub(super) server: Uri,
    identity: MetadataMap,
    token: Mutex<Option<Token>>,
    /// What its calls wait for.
    pub(super) waits: Waits,
}

impl Control {
    /// Connects to the first server of the account that answers.
    ///
    /// # Errors
    /// When none does.
    pub(super) async fn connect(account: &Account, waits: Waits) -> Result<Self, Trouble> {
        let is_plain = account.servers.iter().all(|server| server.scheme_str() == Some("http"));
        let connector = Connector::new(&account.proxies, is_plain)?;
        let (channel, server) = connector.to_first(account, &waits).await?;
        debug!(server = named(&server), "connected to Modal");
        Ok(Self {
            client: ModalClientClient::new(channel).max_decoding_message_size(LONGEST_MESSAGE),
            identity: identity(account),
            connector,
            server,
            token: Mutex::new(None),
            waits,
        })
    }

    /// Whether it is a stand-in on this machine: only then may a worker be spoken to without encryption.
    pub(super) fn is_here(&self) -> bool {
        is_here(&self.server)
    }

    /// Makes a call, again where that may help.
    pub(super) async fn call<Q, A, F>(
        &self,
        name: &str,
        policy: Policy,
        request: Q,
        call: impl Fn(Client, Request<Q>) -> F,
    ) -> Result<A, CallFailed>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let began = Instant::now();
        let mut retry = Retry::new(policy);
        let key = idempotency_key();
        loop {
            let mut metadata = self.identity.clone();
            number(&mut metadata, "x-retry-attempt", retry.failed);
            number(&mut metadata, "x-throttle-retry-attempt", retry.throttled);
            metadata.insert("x-idempotency-key", key.clone());
            let attempt = call(self.client.clone(), with(metadata, request.clone()));
            let status = match within(retry.time(began.elapsed()), attempt).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            debug!(call = name, code = ?status.code(), message = status.message(), "a call of Modal failed");
            match retry.next(failed(&status), began.elapsed(), chance()) {
                Next::After(pause) => self.waits.pause(pause, wait(&status, retry.failed)).await,
                Next::Renewed | Next::GiveUp => return Err(CallFailed::of(&status)),
            }
        }
    }

    /// The same, with what the calls of the newer generation carry beside.
    pub(super) async fn call_v2<Q, A, F>(
        &self,
        name: &str,
        policy: Policy,
        request: Q,
        sandbox_token: Option<&Secret>,
        call: impl Fn(Client, Request<Q>) -> F,
    ) -> Result<A, CallFailed>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut is_renewed = false;
        loop {
            let token = self.token().await?;
            let answer = self
                .call(name, policy, request.clone(), |client, mut request| {
                    secret(request.metadata_mut(), "x-modal-auth-token", &token);
                    if let Some(token) = sandbox_token {
                        secret(request.metadata_mut(), "x-modal-sandbox-token", token);
                    }
                    call(client, request)
                })
                .await;
            match answer {
                // The token may have ended sooner than it said, or than our clock does.
                Err(failed) if failed.code == Code::Unauthenticated && !is_renewed => {
                    is_renewed = true;
                    *self.token.lock().await = None;
                }
                answer => return answer,
            }
        }
    }

    /// The server-sent messages of a call, from its beginning. One attempt.
    pub(super) async fn stream<Q, A, F>(
        &self,
        request: Q,
        limit: Duration,
        call: impl FnOnce(Client, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let request = with(self.identity.clone(), request);
        let answer = within(limit, call(self.client.clone(), request)).await?;
        Ok(answer.into_inner())
    }

    /// Has a token at hand for the calls that need one.
    pub(super) async fn token(&self) -> Result<Secret, CallFailed> {
        let mut held = self.token.lock().await;
        let worth = held.as_ref().map_or(Worth::Ended, |token| token.worth(Instant::now()));
        if let (Some(token), Worth::Good) = (&*held, worth) {
            return Ok(token.value.clone());
        }
        let policy = match worth {
            Worth::Ended => Policy::CONTROL,
            // The one at hand does for a while.
            _ => Policy {
                retries: Some(0),
                ..Policy::QUESTION
            },
        };
        let asked = self.call(
            "AuthTokenGet",
            policy,
            AuthTokenGetRequest {},
            |mut client, request| async move { client.auth_token_get(request).await },
        );
        match (asked.await, &mut *held) {
            (Ok(answer), held) => {
                let token = Token::new(Secret::new(answer.token), chance());
                let value = token.value.clone();
                *held = Some(token);
                Ok(value)
            }
            (Err(failed), Some(token)) if worth == Worth::Due => {
                debug!(message = failed.message, "a token of Modal could not be renewed");
                token.renewal_failed(Instant::now());
                Ok(token.value.clone())
            }
            (Err(failed), _) => Err(failed),
        }
    }
}

impl CallFailed {
    pub(super) fn of(status: &Status) -> Self {
        let source = std::error::Error::source(status).filter(|_| status.metadata().is_empty());
        let trouble = source.and_then(Trouble::told).cloned();
        let message = match (&trouble, source) {
            (Some(trouble), _) => trouble.reason.clone(),
            (None, Some(source)) => deepest(source),
            (None, None) => status.message().trim().to_owned(),
        };
        Self {
            code: status.code(),
            message,
            throttled: failed(status).retry_after.is_some(),
            unanswered: source.is_some() || status.message() == LATE,
            trouble,
        }
    }
}

/// A pause before a call is made again, `failed` attempts of which came to nothing that is known.
fn wait(status: &Status, failed: u32) -> Wait {
    let message = status.message().trim();
    match self::failed(status).retry_after {
        Some(_) => {
            let line = format!("Modal asks for patience (rate limit): {message}; waiting");
            // What was turned away was not done; of what broke off nobody knows.
            if failed == 0 {
                Wait::leaving_nothing(line)
            } else {
                Wait::telling(line)
            }
        }
        None => Wait::telling(format!("Modal does not answer ({message}); trying again")),
    }
}

/// What is said of an attempt that took too long.
const LATE: &str = "it did not answer in time";

/// Lets an attempt take so long and no longer.
pub(super) async fn within<T>(limit: Duration, attempt: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(limit, attempt).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded(LATE)),
    }
}

/// What a policy needs to know of a status.
pub(super) fn failed(status: &Status) -> Failed {
    Failed {
        code: status.code(),
        retry_after: patience(status.details()),
    }
}

/// The time for which the server wants nothing of us, when its status says one.
fn patience(details: &[u8]) -> Option<Duration> {
    let status: status::Status = prost::Message::decode(details).ok()?;
    let policy = status
        .details
        .iter()
        .find(|detail| detail.type_url.ends_with("RPCRetryPolicy"))?;
    let policy: status::RpcRetryPolicy = prost::Message::decode(policy.value.clone()).ok()?;
    Duration::try_from_secs_f32(policy.retry_after_secs).ok()
}

/// Names a call, so that one that was made twice has the effect of one.
fn idempotency_key() -> MetadataValue<Ascii> {
    let key = super::unique();
    // Letters and digits.
    key.parse().unwrap_or_else(|_| MetadataValue::from_static("talaria"))
}

/// Who we are, in every call.
fn identity(account: &Account) -> MetadataMap {
    let mut identity = MetadataMap::new();
    identity.insert("x-modal-client-version", MetadataValue::from_static(INTERFACE));
    identity.insert("x-modal-client-type", MetadataValue::from_static(CLIENT_TYPE));
    secret(&mut identity, "x-modal-token-id", &account.token_id);
    secret(&mut identity, "x-modal-token-secret", &account.token_secret);
    identity
}

/// Adds a secret; what cannot travel there is left out, and refused by the server.
pub(super) fn secret(metadata: &mut MetadataMap, name: &'static str, value: &Secret) {
    if let Ok(mut value) = value.reveal().parse::<MetadataValue<Ascii>>() {
        value.set_sensitive(true);
        metadata.insert(name, value);
    }
}

pub(super) fn number(metadata: &mut MetadataMap, name: &'static str, number: u32) {
    metadata.insert(name, MetadataValue::from(number));
}

pub(super) fn with<Q>(metadata: MetadataMap, request: Q) -> Request<Q> {
    Request::from_parts(metadata, tonic::Extensions::default(), request)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn the_patience_that_a_server_asks_for_is_read() {
        let said = |type_url: &str, seconds: f32| {
            let value = status::RpcRetryPolicy {
                retry_after_secs: seconds,
            };
            let details = vec![
                status::Detail {
                    type_url: "type.googleapis.com/google.rpc.Help".into(),
                    value: "x".into(),
                },
                status::Detail {
                    type_url: type_url.into(),
                    value: value.encode_to_vec().into(),
                },
            ];
            let code = Code::ResourceExhausted as i32;
            let message = "slow down".into();
            status::Status { code, message, details }.encode_to_vec()
        };
        let policy = "type.modal.com/modal.client.RPCRetryPolicy";
        for (details, expected) in [
            (said(policy, 2.5), Some(Duration::from_millis(2500))),
            (
                said("type.googleapis.com/modal.client.RPCRetryPolicy", 0.0),
                Some(Duration::ZERO),
            ),
            (said(policy, -1.0), None),
            (said(policy, f32::NAN), None),
            (said("type.modal.com/modal.client.Other", 1.0), None),
            (b"nonsense".to_vec(), None),
            (Vec::new(), None),
        ] {
            let status = Status::with_details(Code::ResourceExhausted, "slow down", details.into());
            assert_eq!(failed(&status).retry_after, expected);
            assert_eq!(CallFailed::of(&status).throttled, expected.is_some());
        }
    }

    #[test]
    fn what_a_server_said_is_told_from_silence() {
        let answered = CallFailed::of(&Status::unauthenticated(" no such token "));
        assert_eq!(
            (answered.message.as_str(), answered.unanswered),
            ("no such token", false)
        );
        let late = CallFailed::of(&Status::deadline_exceeded(LATE));
        assert!(late.unanswered);
    }
}
