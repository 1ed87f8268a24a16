//! The HTTP clients. They are made with the first request, as reading the system's certificates takes a while.

use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::header::{ACCEPT, ACCEPT_LANGUAGE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, NoProxy, Proxy};
use url::Url;

use super::guard::Guard;
use super::options::{Proxies, WebOptions};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time between two pieces of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

const USER_AGENT: &str = concat!("Mozilla/5.0 (compatible; Talaria/", env!("CARGO_PKG_VERSION"), ")");

/// What a page may be, the best first.
const WANTED: &str = "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/plain;q=0.8, \
    application/json;q=0.8, application/pdf;q=0.7, */*;q=0.1";

/// Hosts that no proxy can reach for us.
const HERE: &str = "localhost,127.0.0.0/8,::1";

/// The clients for each kind of request.
pub(super) struct Clients {
    /// For pages: connects only to what its guard admits.
    direct: Client,
    /// For pages by way of a proxy, which looks names up itself.
    proxied: Client,
    proxies: Matcher,
    provider_proxies: Matcher,
    variables: ProxyVariables,
    /// For providers, wherever the user says they are.
    pub(super) provider: Client,
    /// Judges the addresses of pages.
    pub(super) guard: Guard,
}

impl Clients {
    /// # Errors
    /// A proxy whose address is none, and a system whose certificates cannot be read.
    pub(super) fn new(options: &WebOptions) -> Result<Self, String> {
        install_cryptography();
        let guard = Guard::new(&options.extract.allow_private, options.names.clone());
        let page = || base().default_headers(page_headers());
        let proxies = &options.proxies;
        let always = Proxies {
            no: String::new(),
            ..proxies.clone()
        };
        let without_here = proxies_but_here(proxies);
        Ok(Self {
            direct: built(page().no_proxy().dns_resolver(guard.clone()))?,
            // It never goes directly, whatever it would make of `no_proxy`: nothing would be judged then.
            proxied: built(with_proxies(page().no_proxy(), &always)?)?,
            proxies: matcher(proxies),
            provider_proxies: matcher(&without_here),
            variables: ProxyVariables::of(proxies),
            provider: built(with_proxies(base().no_proxy(), &without_here)?)?,
            guard,
        })
    }

    /// The client for a page, and the variable of the proxy that it goes through.
    pub(super) fn page(&self, url: &Url) -> (&Client, Option<&'static str>) {
        match self.variables.of_proxy(&self.proxies, url.as_str()) {
            Some(variable) => (&self.proxied, Some(variable)),
            None => (&self.direct, None),
        }
    }

    /// The variable of the proxy through which a provider is asked.
    pub(super) fn provider_proxy(&self, url: &str) -> Option<&'static str> {
        self.variables.of_proxy(&self.provider_proxies, url)
    }
}

/// A client for a service that is asked on a user's behalf, wherever the user says it is. It waits for an answer as long as
/// whoever asks.
///
/// # Errors
/// A proxy whose address is none, and a system whose certificates cannot be read.
pub(crate) fn api_client(proxies: &Proxies, headers: HeaderMap) -> Result<Client, String> {
    install_cryptography();
    let builder = Client::builder()
        .user_agent(concat!("Talaria/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .default_headers(headers)
        .no_proxy();
    built(with_proxies(builder, &proxies_but_here(proxies))?)
}

fn install_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have been faster, with the same effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// For whoever may be on this machine, where no proxy can reach it.
fn proxies_but_here(proxies: &Proxies) -> Proxies {
    Proxies {
        no: format!("{HERE},{}", proxies.no),
        ..proxies.clone()
    }
}

/// The variables that proxies come from, for each scheme.
struct ProxyVariables {
    http: &'static str,
    https: &'static str,
}

impl ProxyVariables {
    fn of(proxies: &Proxies) -> Self {
        let or_all = |own: &'static str, proxy: &str| if proxy.is_empty() { "all_proxy" } else { own };
        Self {
            http: or_all("http_proxy", &proxies.http),
            https: or_all("https_proxy", &proxies.https),
        }
    }

    fn of_proxy(&self, proxies: &Matcher, url: &str) -> Option<&'static str> {
        proxies.intercept(&url.parse().ok()?)?;
        Some(if url.starts_with("https:") {
            self.https
        } else {
            self.http
        })
    }
}

fn matcher(proxies: &Proxies) -> Matcher {
    Matcher::builder()
        .http(proxies.http.clone())
        .https(proxies.https.clone())
        .all(proxies.all.clone())
        .no(proxies.no.clone())
        .build()
}

fn base() -> ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        .redirect(Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(2)
}

fn page_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (ACCEPT, HeaderValue::from_static(WANTED)),
        (ACCEPT_LANGUAGE, HeaderValue::from_static("en, *;q=0.5")),
    ])
}

fn with_proxies(mut builder: ClientBuilder, proxies: &Proxies) -> Result<ClientBuilder, String> {
    // The variable's value may hold a password, so it is not repeated.
    let bad = |variable: &str| format!("the proxy in {variable} has no address that can be used; correct the variable");
    let no = NoProxy::from_string(&proxies.no);
    if !proxies.http.is_empty() {
        let proxy = Proxy::http(&proxies.http).map_err(|_| bad("http_proxy"))?;
        builder = builder.proxy(proxy.no_proxy(no.clone()));
    }
    if !proxies.https.is_empty() {
        let proxy = Proxy::https(&proxies.https).map_err(|_| bad("https_proxy"))?;
        builder = builder.proxy(proxy.no_proxy(no.clone()));
    }
    if !proxies.all.is_empty() {
        let proxy = Proxy::all(&proxies.all).map_err(|_| bad("all_proxy"))?;
        builder = builder.proxy(proxy.no_proxy(no));
    }
    Ok(builder)
}

fn built(builder: ClientBuilder) -> Result<Client, String> {
    builder.build().map_err(|error| {
        let mut deepest: &dyn std::error::Error = &error;
        while let Some(source) = deepest.source() {
            deepest = source;
        }
        format!(
            "no web request can be made here: {deepest}; are the system's certificates installed (ca-certificates)?"
        )
    })
}
