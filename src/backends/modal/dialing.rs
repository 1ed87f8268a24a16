//! How a connection is made: directly, or through a proxy that tunnels; encrypted where the address says so. What comes in
//! between is told as [`Trouble`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV4, SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tonic::codegen::Service;

use super::trouble::{Proxy, Trouble};
use crate::web::Proxies;

/// Time in which the way to a server must stand.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The way to a server, or to a proxy that may itself be spoken to with encryption.
type Way = MaybeHttpsStream<TokioIo<TcpStream>>;

type Making<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Makes connections; cheap to hold.
#[derive(Clone)]
pub(super) struct Dial {
    route: Route,
    tls: ClientConfig,
}

impl Dial {
    /// # Errors
    /// When a variable names no proxy.
    pub(super) fn new(proxies: &Proxies, tls: ClientConfig) -> Result<Self, Trouble> {
        Ok(Self {
            route: Route {
                proxies: Arc::new(ProxyOf::new(proxies)?),
                tls: tls.clone(),
            },
            tls,
        })
    }
}

impl Service<Uri> for Dial {
    type Response = MaybeHttpsStream<Way>;
    type Error = Trouble;
    type Future = Making<Self::Response, Trouble>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let to = with_port(to);
        let server = super::connection::named(&to);
        let proxy = self.route.proxies.named(&to);
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.tls.clone());
        let builder = builder.https_or_http().enable_http2();
        let made = builder.wrap_connector(self.route.clone()).call(to);
        Box::pin(async move {
            let stream = match tokio::time::timeout(CONNECT_LIMIT, made).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(Trouble::of(&*error, &server, proxy.as_ref())),
                Err(_) => {
                    let late = io::Error::other(format!("nothing within {} s", CONNECT_LIMIT.as_secs()));
                    return Err(Trouble::of(&late, &server, proxy.as_ref()));
                }
            };
            // A server that names no protocol may speak the right one all the same.
            if let MaybeHttpsStream::Https(encrypted) = &stream
                && encrypted
                    .inner()
                    .get_ref()
                    .1
                    .alpn_protocol()
                    .is_some_and(|protocol| protocol != b"h2")
            {
                return Err(Trouble::of_older_http(&server));
            }
            Ok(stream)
        })
    }
}

/// The way to a server, on which nothing is said to it yet.
#[derive(Clone)]
struct Route {
    proxies: Arc<ProxyOf>,
    tls: ClientConfig,
}

impl Service<Uri> for Route {
    type Response = Way;
    type Error = BoxError;
    type Future = Making<Way, BoxError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.of(&to) else {
            let made = direct().call(to);
            return Box::pin(async move { Ok(MaybeHttpsStream::Http(made.await?)) });
        };
        let at = proxy.uri().clone();
        match at.scheme_str() {
            Some("socks4" | "socks4a") => {
                let is_local = at.scheme_str() == Some("socks4");
                let made = SocksV4::new(at, direct()).local_dns(is_local).call(to);
                Box::pin(async move { Ok(MaybeHttpsStream::Http(made.await?)) })
            }
            Some("socks5" | "socks5h") => {
                let is_local = at.scheme_str() == Some("socks5");
                let mut socks = SocksV5::new(at, direct()).local_dns(is_local);
                if let Some((user, password)) = proxy.raw_auth() {
                    socks = socks.with_auth(user.to_owned(), password.to_owned());
                }
                let made = socks.call(to);
                Box::pin(async move { Ok(MaybeHttpsStream::Http(made.await?)) })
            }
            _ => {
                let mut tunnel = Tunnel::new(at, self.to_proxy());
                if let Some(login) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(login.clone());
                }
                let made = tunnel.call(to);
                Box::pin(async move { Ok(made.await?) })
            }
        }
    }
}

impl Route {
    fn to_proxy(&self) -> HttpsConnector<HttpConnector> {
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.tls.clone());
        builder.https_or_http().enable_http1().wrap_connector(direct())
    }
}

/// Which proxy leads where.
pub(super) struct ProxyOf {
    matcher: Matcher,
    variables: [&'static str; 2],
}

impl ProxyOf {
    /// # Errors
    /// When a variable names no proxy: it must not be passed over in silence.
    pub(super) fn new(proxies: &Proxies) -> Result<Self, Trouble> {
        let build = |no: &str| {
            Matcher::builder()
                .http(proxies.http.clone())
                .https(proxies.https.clone())
                .all(proxies.all.clone())
                .no(no.to_owned())
                .build()
        };
        let or_all = |own: &'static str, value: &str| if value.is_empty() { "all_proxy" } else { own };
        let variables = [
            or_all("http_proxy", &proxies.http),
            or_all("https_proxy", &proxies.https),
        ];
        let everywhere = build("");
        for (own, value, variable, example) in [
            ("http_proxy", &proxies.http, variables[0], "http://host.example"),
            ("https_proxy", &proxies.https, variables[1], "https://host.example"),
        ] {
            let is_set = variable == own && !value.is_empty() || variable != own && !proxies.all.is_empty();
            if is_set && everywhere.intercept(&Uri::from_static(example)).is_none() {
                return Err(Trouble::lasting(
                    format!(
                        "the variable {variable} (or {}) names no proxy",
                        variable.to_ascii_uppercase()
                    ),
                    "correct it: http://HOST:PORT, https://HOST:PORT or socks5h://HOST:PORT, with USER:PASSWORD@ before \
                     the host where the proxy wants that",
                ));
            }
        }
        Ok(Self {
            // What is on this machine no proxy can reach for us.
            matcher: build(&format!("localhost,127.0.0.0/8,::1,{}", proxies.no)),
            variables,
        })
    }

    fn of(&self, to: &Uri) -> Option<Intercept> {
        self.matcher.intercept(to)
    }

    /// The proxy on the way to a server, for messages.
    pub(super) fn named(&self, to: &Uri) -> Option<Proxy> {
        let proxy = self.of(to)?;
        let is_encrypted = to.scheme_str() == Some("https");
        Some(Proxy {
            variable: self.variables[usize::from(is_encrypted)],
            address: super::connection::named(proxy.uri()),
            has_login: proxy.basic_auth().is_some() || proxy.raw_auth().is_some(),
        })
    }
}

/// Proxies are told a port always.
fn with_port(to: Uri) -> Uri {
    if to.port().is_some() {
        return to;
    }
    let port = if to.scheme_str() == Some("http") { 80 } else { 443 };
    let mut parts = to.clone().into_parts();
    parts.authority = to.host().and_then(|host| format!("{host}:{port}").parse().ok());
    Uri::from_parts(parts).unwrap_or(to)
}

fn direct() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_LIMIT));
    connector
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn proxies(https: &str, all: &str, no: &str) -> Proxies {
        Proxies {
            https: https.to_owned(),
            all: all.to_owned(),
            no: no.to_owned(),
            ..Proxies::default()
        }
    }

    #[test]
    fn the_proxy_of_a_server_is_the_one_that_the_variables_name() {
        for (https, all, no, to, expected) in [
            ("", "", "", "https://api.modal.com", None),
            (
                "http://p:1",
                "",
                "",
                "https://api.modal.com",
                Some(("https_proxy", "p:1", false)),
            ),
            (
                "p:1",
                "http://q:2",
                "",
                "https://api.modal.com",
                Some(("https_proxy", "p:1", false)),
            ),
            (
                "",
                "socks5h://u:w@q:2",
                "",
                "https://api.modal.com",
                Some(("all_proxy", "q:2", true)),
            ),
            (
                "http://u:w@p:1",
                "",
                "",
                "https://api.modal.com",
                Some(("https_proxy", "p:1", true)),
            ),
            ("http://p:1", "", "modal.com", "https://api.modal.com", None),
            ("http://p:1", "", "", "http://api.modal.com", None),
            ("http://p:1", "", "", "https://localhost:9", None),
            ("http://p:1", "", "", "https://127.0.0.1:9", None),
        ] {
            let of = ProxyOf::new(&proxies(https, all, no)).unwrap();
            let found = of.named(&to.parse().unwrap());
            let found = found
                .as_ref()
                .map(|proxy| (proxy.variable, &*proxy.address, proxy.has_login));
            assert_eq!(found, expected, "{https} {all} {no} {to}");
        }
        for (https, all, word) in [("ftp://p:1", "", "https_proxy"), ("", "http://a b", "all_proxy")] {
            let Err(trouble) = ProxyOf::new(&proxies(https, all, "")) else {
                panic!("{https}{all} was taken");
            };
            assert!(trouble.reason.contains(word) && !trouble.may_pass, "{trouble}");
        }
    }

    #[test]
    fn a_port_is_always_named() {
        for (given, expected) in [
            ("https://a.example", "https://a.example:443/"),
            ("http://a.example/", "http://a.example:80/"),
            ("https://a.example:8/", "https://a.example:8/"),
            ("https://[::1]", "https://[::1]:443/"),
        ] {
            assert_eq!(with_port(given.parse().unwrap()).to_string(), expected);
        }
    }
}
