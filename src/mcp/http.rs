//! The protocol over HTTP (streamable HTTP): who may ask, and what happens when who asked has gone.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{Caller, Server};
use super::tools::MAX_WAIT;

/// Where the protocol is spoken.
pub const PATH: &str = "/mcp";

/// The variable that holds the token of the one client, where no file holds those of several.
pub const TOKEN_VARIABLE: &str = "TALARIA_MCP_TOKEN";

/// The principal of all who need no token, and of the one whose token has no name.
const NAMELESS: &str = "http";

/// Characters below which a token can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Bytes of a request: a file of the largest size, as base64 in JSON, fits.
const MAX_BODY: usize = 16 << 20;

/// Connections at once; more wait.
const CONNECTIONS: usize = 256;

/// Clients of versions with a handshake that are remembered; one that goes without a word is for as long as a call may
/// be silent.
const CLIENTS: usize = 1024;

/// Time in which a client must have said what it wants, up to the body.
const HEADERS: Duration = Duration::from_secs(30);

/// Time that open connections have to end when the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why a client cannot be served like that.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Everybody on the network could run scripts.
    #[error(
        "{0} is no loopback address, so every client needs a token: put one into {TOKEN_VARIABLE}, or name a file of tokens with --token-file"
    )]
    Open(SocketAddr),
    /// A token that can be guessed.
    #[error(
        "a token of {from} is shorter than {SHORTEST_TOKEN} characters; make one with for instance `openssl rand -hex 32`"
    )]
    Short {
        /// Where it stands.
        from: String,
    },
    /// A line that is none.
    #[error("line {line} of {file} is none; write TOKEN, or NAME TOKEN")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// There is none.
    #[error("{0} holds no token")]
    Empty(String),
}

/// Who may ask. A token gives the principal.
#[derive(Clone, Default)]
pub struct Access {
    tokens: Vec<(Arc<str>, String)>,
    /// Names that a request may call the server by, beside those of loopback and its address.
    pub hosts: Vec<String>,
    /// Web pages that may ask; none unless named.
    pub origins: Vec<String>,
}

impl Access {
    /// With one token.
    ///
    /// # Errors
    /// It is too short.
    pub fn with_token(mut self, token: &str, from: &str) -> Result<Self, AccessError> {
        self.add(NAMELESS, token.trim(), from)?;
        Ok(self)
    }

    /// With the tokens of a file: one a line, after the name of its principal where it has one.
    ///
    /// # Errors
    /// A line is none, a token is too short, or there is none.
    pub fn with_tokens(mut self, text: &str, file: &str) -> Result<Self, AccessError> {
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [token] => self.add(NAMELESS, token, file)?,
                [name, token] => self.add(name, token, file)?,
                _ => {
                    let (file, line) = (file.to_owned(), number + 1);
                    return Err(AccessError::Line { file, line });
                }
            }
        }
        if self.tokens.is_empty() {
            return Err(AccessError::Empty(file.to_owned()));
        }
        Ok(self)
    }

    fn add(&mut self, name: &str, token: &str, from: &str) -> Result<(), AccessError> {
        if token.len() < SHORTEST_TOKEN {
            let from = from.to_owned();
            return Err(AccessError::Short { from });
        }
        self.tokens.push((name.into(), token.to_owned()));
        Ok(())
    }

    /// Whether everybody may ask.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Sees that not everybody may ask who reaches an address.
    ///
    /// # Errors
    /// See [`AccessError::Open`].
    pub fn check(&self, address: SocketAddr) -> Result<(), AccessError> {
        if self.is_open() && !address.ip().is_loopback() {
            return Err(AccessError::Open(address));
        }
        Ok(())
    }

    /// Whose request it is. Every token is compared whole, so that the time tells nothing.
    fn principal(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        if self.is_open() {
            return Some(NAMELESS.into());
        }
        let given = headers.get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, given) = given.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return None;
        }
        let mut found = None;
        for (principal, token) in &self.tokens {
            if bool::from(token.as_bytes().ct_eq(given.trim_ascii())) {
                found = Some(principal.clone());
            }
        }
        found
    }

    fn config(&self, address: SocketAddr, stop: &CancellationToken) -> StreamableHttpServerConfig {
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stop.child_token())
            .with_max_request_body_bytes(MAX_BODY)
            // A stream that breaks off is not taken up again: the call was cancelled, or its script is detached.
            .with_sse_retry(None)
            .with_allowed_origins(&self.origins)
            .enforce_origin_validation();
        if address.ip().is_unspecified() && self.hosts.is_empty() {
            // Whatever name leads here; there is a token.
            return config.disable_allowed_hosts();
        }
        let own = [
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
            address.ip().to_string(),
        ];
        config.with_allowed_hosts(own.iter().chain(&self.hosts).cloned())
    }
}

/// What every connection leads to.
struct Door {
    access: Access,
    mcp: StreamableHttpService<Server, LocalSessionManager>,
    clients: Arc<LocalSessionManager>,
    owners: Owners,
}

/// The header that names a session of the protocol.
const SESSION: &str = "mcp-session-id";

/// Whose the sessions of the protocol are: what is asked of a client goes to its own, and comes from it.
#[derive(Default)]
struct Owners(Mutex<HashMap<HeaderValue, Arc<str>>>);

impl Owners {
    fn lock(&self) -> MutexGuard<'_, HashMap<HeaderValue, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is no other's. Of one that is not there the protocol itself says so.
    fn is_of(&self, session: &HeaderValue, principal: &Arc<str>) -> bool {
        self.lock().get(session).is_none_or(|owner| owner == principal)
    }
}

impl Door {
    /// Whether the request is to begin what there is no room for.
    async fn is_crowded(&self, headers: &HeaderMap) -> bool {
        let begins = !headers.contains_key(SESSION) && !is_without_handshake(headers);
        begins && self.clients.sessions.read().await.len() >= CLIENTS
    }
}

/// Versions compare as the dates that they are.
fn is_without_handshake(headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version").map(header::HeaderValue::as_bytes);
    version.is_some_and(|version| version >= b"2026-07-28".as_slice())
}

/// Serves clients until `stop` is cancelled. [`Server::close`] is the caller's.
///
/// # Errors
/// Not everybody may be served who reaches the address, or connections cannot be taken any more.
pub async fn serve(server: &Server, listener: TcpListener, access: Access, stop: &CancellationToken) -> io::Result<()> {
    let address = listener.local_addr()?;
    access.check(address).map_err(io::Error::other)?;
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.sse_retry = None;
    sessions.session_config.completed_cache_ttl = Duration::ZERO;
    // A call may be silent for as long as it waits.
    sessions.session_config.keep_alive = Some(MAX_WAIT + Duration::from_secs(600));
    let factory = {
        let server = server.clone();
        move || Ok(server.clone())
    };
    let clients = Arc::new(sessions);
    let mcp = StreamableHttpService::new(factory, clients.clone(), access.config(address, stop));
    let owners = Owners::default();
    let door = Arc::new(Door {
        access,
        mcp,
        clients,
        owners,
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let taken = tokio::select! {
            () = stop.cancelled() => break,
            taken = take(&listener, &room) => taken,
        };
        while connections.try_join_next().is_some() {}
        match taken {
            Ok((stream, place)) => {
                let (door, stop) = (door.clone(), stop.clone());
                connections.spawn(async move {
                    converse(stream, door, &stop).await;
                    drop(place);
                });
            }
            // One that has gone already, or no descriptor left for now.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    // What is left is cut off.
    let _ = tokio::time::timeout(LAST_ANSWERS, ended).await;
    Ok(())
}

async fn take(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn converse(stream: TcpStream, door: Arc<Door>, stop: &CancellationToken) {
    let service = service_fn(move |request| answer(request, door.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            // One that stands idle ends now, another one with its answer.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

async fn answer(mut request: Request<Incoming>, door: Arc<Door>) -> Result<Response<Answer>, Infallible> {
    let Some(principal) = door.access.principal(request.headers()) else {
        let mut refusal = refusal(
            StatusCode::UNAUTHORIZED,
            "a token is needed: Authorization: Bearer TOKEN\n",
        );
        let challenge = header::HeaderValue::from_static("Bearer");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        return Ok(refusal);
    };
    if request.uri().path() != PATH {
        return Ok(refusal(
            StatusCode::NOT_FOUND,
            "there is nothing here; the protocol is spoken at /mcp\n",
        ));
    }
    if door.is_crowded(request.headers()).await {
        return Ok(refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients have begun and not ended; end a session with DELETE, or try again later\n",
        ));
    }
    let session = request.headers().get(SESSION).cloned();
    if session
        .as_ref()
        .is_some_and(|session| !door.owners.is_of(session, &principal))
    {
        return Ok(refusal(
            StatusCode::NOT_FOUND,
            "there is no such session; begin another with `initialize`\n",
        ));
    }
    let gone = CancellationToken::new();
    // Dropped with this future or the answer, whichever is there when the client goes.
    let guard = gone.clone().drop_guard();
    request.extensions_mut().insert(Caller {
        principal: principal.clone(),
        gone,
    });
    // What is shown to a handler must not hold the token.
    request.headers_mut().remove(header::AUTHORIZATION);
    let is_end = request.method() == http::Method::DELETE;
    let mut response = tower_service::Service::call(&mut door.mcp.clone(), request).await?;
    match (session, response.headers().get(SESSION).cloned()) {
        (None, Some(made)) => drop(door.owners.lock().insert(made, principal)),
        (Some(session), _) if is_end || response.status() == StatusCode::NOT_FOUND => {
            door.owners.lock().remove(&session);
        }
        _ => {}
    }
    if is_end && response.status() == StatusCode::ACCEPTED {
        // That it has ended is known at once, and clients complain of another word for it.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    Ok(response.map(|inner| Answer {
        inner,
        _guard: Some(guard),
    }))
}

fn refusal(status: StatusCode, text: &'static str) -> Response<Answer> {
    let mut response = Response::new(Answer {
        inner: Full::new(Bytes::from_static(text.as_bytes())).boxed(),
        _guard: None,
    });
    *response.status_mut() = status;
    response
}

/// An answer that tells when nobody takes it any more.
struct Answer {
    inner: BoxBody<Bytes, Infallible>,
    _guard: Option<DropGuard>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    const LONG: &str = "0123456789abcdef";

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn a_token_gives_the_principal() {
        let text = format!("# people\nada {LONG}-ada\n\n{LONG}-nameless\n");
        let access = Access::default().with_tokens(&text, "tokens").unwrap();
        let principal = |value: &str| access.principal(&with(value)).map(|name| name.to_string());
        assert_eq!(principal(&format!("Bearer {LONG}-ada")).as_deref(), Some("ada"));
        assert_eq!(principal(&format!("bearer {LONG}-nameless")).as_deref(), Some(NAMELESS));
        for wrong in [
            "Bearer",
            "Bearer ",
            "Basic abc",
            LONG,
            &format!("Bearer {LONG}"),
            &format!("Bearer {LONG}-adaa"),
            "€",
        ] {
            assert_eq!(principal(wrong), None, "{wrong}");
        }
        assert_eq!(access.principal(&HeaderMap::new()), None);
        assert!(Access::default().principal(&HeaderMap::new()).is_some());
    }

    #[test]
    fn tokens_that_are_none() {
        let read = |text: &str| {
            Access::default()
                .with_tokens(text, "F")
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        assert!(read("short").contains("shorter than 16"));
        assert!(read("").contains("F holds no token"));
        assert!(read(&format!("\na b {LONG}")).contains("line 2 of F"));
        assert!(Access::default().with_token(" ", "V").is_err());
    }

    #[test]
    fn only_loopback_is_open() {
        let open = |access: &Access, address: &str| access.check(address.parse().unwrap()).is_ok();
        let none = Access::default();
        let token = Access::default().with_token(LONG, "V").unwrap();
        for address in ["127.0.0.1:1", "[::1]:1", "127.5.5.5:1"] {
            assert!(open(&none, address), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert!(!open(&none, address) && open(&token, address), "{address}");
        }
    }
}
