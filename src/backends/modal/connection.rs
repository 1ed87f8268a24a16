//! Connections: HTTP/2, encrypted with the system's certificates as the web tools trust them, through a proxy where one is
//! set.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;
use tonic::transport::{Channel, Endpoint};

use crate::web::Proxies;

/// Time in which a connection must stand.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

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
    proxies: Arc<Matcher>,
    tls: ClientConfig,
}

impl Connector {
    /// `is_plain`: nothing will ever be encrypted, so nobody needs certificates.
    ///
    /// # Errors
    /// When the system's certificates cannot be read.
    pub(super) fn new(proxies: &Proxies, is_plain: bool) -> Result<Self, String> {
        let matcher = Matcher::builder()
            .http(proxies.http.clone())
            .https(proxies.https.clone())
            .all(proxies.all.clone())
            .no(format!("localhost,127.0.0.0/8,::1,{}", proxies.no))
            .build();
        Ok(Self {
            proxies: Arc::new(matcher),
            tls: trust(is_plain)?,
        })
    }

    /// A connection that is made with its first request, and anew when it broke.
    pub(super) fn lazily(&self, to: &Uri) -> Channel {
        let endpoint = endpoint(to);
        match self.through_proxy(to) {
            Some(tunnel) => endpoint.connect_with_connector_lazy(self.encrypted(tunnel)),
            None => endpoint.connect_with_connector_lazy(self.encrypted(direct())),
        }
    }

    /// Connects to the first of these that answers; the earlier ones are preferred.
    ///
    /// # Errors
    /// When none does: what was seen at the first.
    pub(super) async fn to_first(&self, servers: &[Uri]) -> Result<(Channel, Uri), String> {
        let mut attempts = FuturesUnordered::new();
        let mut errors = Vec::new();
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
                    Err(error) => {
                        errors.push((server, error));
                        next = waiting.next();
                    }
                },
                () = tokio::time::sleep(HEAD_START), if has_more => next = waiting.next(),
            }
            if attempts.is_empty() && next.is_none() {
                let shown = errors
                    .iter()
                    .map(|(server, error)| format!("{}: {error}", named(server)));
                return Err(shown.collect::<Vec<_>>().join("; "));
            }
        }
    }

    async fn now(&self, to: &Uri) -> Result<Channel, String> {
        let endpoint = endpoint(to);
        let made = async {
            match self.through_proxy(to) {
                Some(tunnel) => endpoint.connect_with_connector(self.encrypted(tunnel)).await,
                None => endpoint.connect_with_connector(self.encrypted(direct())).await,
            }
        };
        match tokio::time::timeout(CONNECT_LIMIT, made).await {
            Ok(made) => made.map_err(|error| deepest(&error)),
            Err(_) => Err(format!("no connection within {} s", CONNECT_LIMIT.as_secs())),
        }
    }

    fn through_proxy(&self, to: &Uri) -> Option<Tunnel<HttpConnector>> {
        let proxy = self.proxies.intercept(to)?;
        let tunnel = Tunnel::new(proxy.uri().clone(), direct());
        Some(match proxy.basic_auth() {
            Some(login) => tunnel.with_auth(login.clone()),
            None => tunnel,
        })
    }

    fn encrypted<C>(&self, inner: C) -> HttpsConnector<C> {
        HttpsConnectorBuilder::new()
            .with_tls_config(self.tls.clone())
            .https_or_http()
            .enable_http2()
            .wrap_connector(inner)
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

/// What lies at the bottom of an error.
pub(super) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn endpoint(to: &Uri) -> Endpoint {
    let endpoint = Endpoint::from(to.clone())
        .connect_timeout(CONNECT_LIMIT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(SIGN_OF_LIFE)
        .keep_alive_timeout(SIGN_LIMIT)
        .keep_alive_while_idle(true);
    // A name of letters is always taken.
    endpoint.clone().user_agent(USER_AGENT).unwrap_or(endpoint)
}

fn direct() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_LIMIT));
    connector
}

/// What is trusted; nothing where no connection is encrypted, so that nobody needs certificates.
fn trust(is_plain: bool) -> Result<ClientConfig, String> {
    let bad = |error: rustls::Error| {
        format!(
            "no encrypted connection can be made here: {error}; are the system's certificates installed (ca-certificates)?"
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
