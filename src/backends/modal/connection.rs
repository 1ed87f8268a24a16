//! Connections: HTTP/2, encrypted with the system's certificates as the web tools trust them, through a proxy where one is
//! set.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::Uri;
use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tracing::debug;

use super::credentials::Account;
use super::dialing::Dial;
use super::trouble::{NETWORK, Trouble};
use super::waiting::{Wait, Waits};
use crate::web::Proxies;

/// Time in which a connection must stand, and the server on it speak.
const CONNECT_LIMIT: Duration = Duration::from_secs(12);

/// The first and the longest pause before a first connection is tried again.
const START_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The head start that an address has before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_secs(3);

/// Time between two signs of life, and in which one is answered.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
const SIGN_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that may be under way in one stream, and in all of a connection. One that nobody reads must not hold up others.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// The longest message that is taken; a worker sends what its process wrote in pieces of its own choice.
pub(super) const LONGEST_MESSAGE: usize = 64 << 20;

/// Who asks, in every request.
const USER_AGENT: &str = concat!("talaria/", env!("CARGO_PKG_VERSION"));

/// How connections are made: cheap to hold.
#[derive(Clone)]
pub(super) struct Connector {
    dial: Dial,
}

impl Connector {
    /// `is_plain`: nothing will ever be encrypted, so nobody needs certificates.
    ///
    /// # Errors
    /// When the system's certificates cannot be read, or a variable names no proxy.
    pub(super) fn new(proxies: &Proxies, is_plain: bool) -> Result<Self, Trouble> {
        let dial = Dial::new(proxies, trust(is_plain)?)?;
        Ok(Self { dial })
    }

    /// A connection that is made with its first request, and anew when it broke.
    pub(super) fn lazily(&self, to: &Uri) -> Channel {
        endpoint(to).connect_with_connector_lazy(self.dial.clone())
    }

    /// Connects to the first server of an account that answers; the earlier ones are preferred. What may pass is tried
    /// again for as long as the account has patience.
    ///
    /// # Errors
    /// When none does: what was seen at the first.
    pub(super) async fn to_first(&self, account: &Account, waits: &Waits) -> Result<(Channel, Uri), Trouble> {
        let began = Instant::now();
        let mut pause = START_PAUSES.0;
        loop {
            let trouble = match self.to_any(&account.servers).await {
                Ok(made) => return Ok(made),
                Err(trouble) => trouble,
            };
            if !trouble.may_pass || began.elapsed() + pause > account.patience {
                return Err(trouble);
            }
            debug!(%trouble, ?pause, "Modal is tried again");
            waits
                .pause(pause, Wait::telling(format!("{trouble}; trying again")))
                .await;
            pause = (2 * pause).min(START_PAUSES.1);
        }
    }

    async fn to_any(&self, servers: &[Uri]) -> Result<(Channel, Uri), Trouble> {
        let mut attempts = FuturesUnordered::new();
        let mut troubles: Vec<Trouble> = Vec::new();
        let mut waiting = servers.iter();
        let mut next = waiting.next();
        loop {
            if let Some(server) = next.take() {
                attempts.push(async move { (server, self.now(server).await) });
            }
            let has_more = waiting.len() > 0;
            tokio::select! {
                Some((server, made)) = attempts.next() => match made {
                    Ok(channel) => return Ok((channel, server.clone())),
                    Err(trouble) => {
                        troubles.push(trouble);
                        next = waiting.next();
                    }
                },
                () = tokio::time::sleep(HEAD_START), if has_more => next = waiting.next(),
            }
            if attempts.is_empty() && next.is_none() {
                return Err(all_of(troubles));
            }
        }
    }

    async fn now(&self, to: &Uri) -> Result<Channel, Trouble> {
        let (endpoint, server) = (endpoint(to), named(to));
        let made = endpoint.connect_with_connector(self.dial.clone());
        match tokio::time::timeout(CONNECT_LIMIT, made).await {
            Ok(made) => made.map_err(|error| Trouble::of(&error, &server, None)),
            Err(_) => Err(Trouble::passing(
                format!("{server} does not answer within {} s", CONNECT_LIMIT.as_secs()),
                NETWORK,
            )),
        }
    }
}

/// What was seen at each of several servers: one that may pass is enough for another attempt.
fn all_of(troubles: Vec<Trouble>) -> Trouble {
    let mut reasons: Vec<&str> = Vec::new();
    for trouble in &troubles {
        if !reasons.contains(&trouble.reason.as_str()) {
            reasons.push(&trouble.reason);
        }
    }
    Trouble {
        reason: reasons.join(", and "),
        advice: troubles
            .first()
            .map_or_else(|| NETWORK.to_owned(), |first| first.advice.clone()),
        may_pass: troubles.iter().any(|trouble| trouble.may_pass),
    }
}

/// An address for messages: without what may be secret in it.
pub(super) fn named(server: &Uri) -> String {
    let port = server.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", server.host().unwrap_or("?"))
}

/// Whether an address leads to this machine.
pub(super) fn is_here(server: &Uri) -> bool {
    matches!(server.host(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

fn endpoint(to: &Uri) -> Endpoint {
    let endpoint = Endpoint::from(to.clone())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(SIGN_OF_LIFE)
        .keep_alive_timeout(SIGN_LIMIT)
        .keep_alive_while_idle(true);
    // A name of letters is always taken.
    endpoint.clone().user_agent(USER_AGENT).unwrap_or(endpoint)
}

/// What is trusted; nothing where no connection is encrypted, so that nobody needs certificates.
fn trust(is_plain: bool) -> Result<ClientConfig, Trouble> {
    let bad = |error: rustls::Error| {
        Trouble::lasting(
            format!("no encrypted connection can be made here: {error}"),
            "install the system's certificates (ca-certificates), or name a file with those to trust in SSL_CERT_FILE",
        )
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(bad)?;
    let builder = match is_plain {
        true => builder.with_root_certificates(rustls::RootCertStore::empty()),
        false => builder.with_platform_verifier().map_err(bad)?,
    };
    Ok(builder.with_no_client_auth())
}
