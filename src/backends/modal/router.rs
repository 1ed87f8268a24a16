//! The exec service of the worker that a sandbox runs on. Where it is, and the token for it, is asked of the control
//! plane, and again when the token has ended or the service is somewhere else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tracing::{debug, info};

use super::connection::{Connector, LONGEST_MESSAGE, named};
use super::control::{CallFailed, failed, number, secret, with, within};
use super::retry::{Next, Policy, Retry, chance};
use super::token::{Token, Worth};
use super::wire::task_command_router::task_command_router_client::TaskCommandRouterClient;
use crate::environment::Secret;

/// The client as the calls are made with it.
pub(super) type Client = TaskCommandRouterClient<Channel>;

/// After so many failures in a row the service may be somewhere else by now.
const MAY_HAVE_MOVED: u32 = 3;

/// The least time between two questions where it is, unless its token was refused.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Where the service of a sandbox is, and what it is opened with.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) url: String,
    pub(super) token: Secret,
}

/// Asks the control plane for access.
#[async_trait]
pub(super) trait Lookup: Send + Sync {
    async fn access(&self) -> Result<Access, CallFailed>;
}

/// The service of one sandbox.
pub(super) struct Router {
    connector: Connector,
    lookup: Box<dyn Lookup>,
    /// Whether it may be spoken to without encryption.
    may_be_plain: bool,
    reached: Mutex<Option<Reached>>,
}

/// A way to it.
#[derive(Clone)]
struct Reached {
    client: Client,
    url: String,
    token: Token,
    since: Instant,
    /// How often access was asked for.
    times: u64,
}

impl Router {
    pub(super) fn new(connector: Connector, lookup: Box<dyn Lookup>, may_be_plain: bool) -> Arc<Self> {
        Arc::new(Self {
            connector,
            lookup,
            may_be_plain,
            reached: Mutex::new(None),
        })
    }

    /// Takes access that came without asking.
    pub(super) async fn take(&self, access: Access) -> Result<(), CallFailed> {
        let mut reached = self.reached.lock().await;
        *reached = Some(self.reach(access, None)?);
        Ok(())
    }

    /// Where it is, for whoever wants to know.
    pub(super) fn shown(&self) -> Option<String> {
        let reached = self.reached.try_lock().ok()?;
        let uri: Uri = reached.as_ref()?.url.parse().ok()?;
        Some(named(&uri))
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
        let mut attempts = Attempts::new(self, name, policy);
        loop {
            let (client, metadata) = attempts.next().await?;
            let attempt = call(client, with(metadata, request.clone()));
            match within(attempts.time(), attempt).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => attempts.failed(&status).await?,
            }
        }
    }

    /// The way there, as it is known, or asked for anew.
    async fn way(&self) -> Result<Reached, CallFailed> {
        let mut reached = self.reached.lock().await;
        if let Some(reached) = &*reached
            && reached.token.worth(Instant::now()) != Worth::Ended
        {
            return Ok(reached.clone());
        }
        self.ask(&mut reached).await
    }

    /// Asks for access, unless somebody did since it was asked for the `times`th time.
    async fn renew(&self, times: u64, pause: Duration) -> Result<(), CallFailed> {
        let mut reached = self.reached.lock().await;
        match &*reached {
            Some(known) if known.times != times || known.since.elapsed() < pause => Ok(()),
            _ => self.ask(&mut reached).await.map(|_| ()),
        }
    }

    async fn ask(&self, reached: &mut Option<Reached>) -> Result<Reached, CallFailed> {
        let access = self.lookup.access().await?;
        let new = self.reach(access, reached.as_ref())?;
        *reached = Some(new.clone());
        Ok(new)
    }

    fn reach(&self, access: Access, before: Option<&Reached>) -> Result<Reached, CallFailed> {
        let times = before.map_or(1, |before| before.times + 1);
        let client = match before {
            Some(before) if before.url == access.url => before.client.clone(),
            before => {
                let uri = self.address(&access.url)?;
                if before.is_some() {
                    info!(router = named(&uri), "a sandbox's worker answers somewhere else now");
                }
                TaskCommandRouterClient::new(self.connector.lazily(&uri)).max_decoding_message_size(LONGEST_MESSAGE)
            }
        };
        Ok(Reached {
            client,
            url: access.url,
            token: Token::new(access.token, chance()),
            since: Instant::now(),
            times,
        })
    }

    fn address(&self, url: &str) -> Result<Uri, CallFailed> {
        let uri: Option<Uri> = url.parse().ok();
        let uri = uri.filter(|uri| uri.host().is_some());
        match uri.as_ref().and_then(Uri::scheme_str) {
            Some("https") => {}
            Some("http") if self.may_be_plain => {}
            _ => return Err(refused("Modal named a worker that cannot be reached with encryption")),
        }
        uri.ok_or_else(|| refused("Modal named a worker without an address"))
    }
}

fn refused(message: &str) -> CallFailed {
    CallFailed::of(&Status::failed_precondition(message))
}

/// The attempts of one call, or of a stream that is opened again and again.
pub(super) struct Attempts<'a> {
    router: &'a Router,
    name: &'a str,
    retry: Retry,
    began: Instant,
    times: u64,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(router: &'a Router, name: &'a str, policy: Policy) -> Self {
        Self {
            router,
            name,
            retry: Retry::new(policy),
            began: Instant::now(),
            times: 0,
        }
    }

    /// What the next attempt is made with.
    pub(super) async fn next(&mut self) -> Result<(Client, MetadataMap), CallFailed> {
        let way = self.router.way().await?;
        self.times = way.times;
        let mut metadata = MetadataMap::new();
        secret(
            &mut metadata,
            "authorization",
            &Secret::new(format!("Bearer {}", way.token.value.reveal())),
        );
        number(&mut metadata, "x-throttle-retry-attempt", self.retry.throttled);
        Ok((way.client, metadata))
    }

    /// The time of the next attempt.
    pub(super) fn time(&self) -> Duration {
        self.retry.time(self.began.elapsed())
    }

    /// Something was brought on.
    pub(super) fn progress(&mut self) {
        self.retry.progress();
    }

    /// Waits until it is time for the next attempt.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn failed(&mut self, status: &Status) -> Result<(), CallFailed> {
        debug!(call = self.name, code = ?status.code(), message = status.message(), "a call of a worker failed");
        match self.retry.next(failed(status), self.began.elapsed(), chance()) {
            Next::After(pause) => {
                tokio::time::sleep(pause).await;
                if self.retry.failed >= MAY_HAVE_MOVED && status.code() != Code::DeadlineExceeded {
                    // What the control plane says of a sandbox that has ended is worth more than another attempt.
                    self.ask(ASK_AGAIN).await?;
                }
                Ok(())
            }
            Next::Renewed => self.ask(Duration::ZERO).await,
            Next::GiveUp => Err(CallFailed::of(status)),
        }
    }

    async fn ask(&self, pause: Duration) -> Result<(), CallFailed> {
        match self.router.renew(self.times, pause).await {
            // Nobody knows anything new.
            Err(failed) if failed.unanswered => Ok(()),
            asked => asked,
        }
    }
}
