//! What the web tools work with, as plain values.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{ExtractProvider, HostPattern, SearchProvider};
use crate::environment::Secret;

/// Why something cannot be used as it is set up: a sentence that says what to do.
pub type Unusable = String;

/// What the web tools work with. The default searches nowhere and reads public pages itself.
#[derive(Clone)]
pub struct WebOptions {
    /// Who is asked by a search; a sentence where nobody can be.
    pub search: Result<SearchOptions, Unusable>,
    /// How pages are read.
    pub extract: ExtractOptions,
    /// Through whom requests go.
    pub proxies: Proxies,
    /// How names become addresses; `None`: as the system does it.
    pub names: Option<Arc<dyn Names>>,
}

/// Who is asked by a search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// The provider.
    pub provider: SearchProvider,
    /// Where and as whom.
    pub endpoint: Endpoint,
    /// The time that a search may take, attempts and all.
    pub timeout: Duration,
}

/// How pages are read.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Who reads them; a sentence where nobody can.
    pub reader: Result<Reader, Unusable>,
    /// The time that a page may take, attempts and redirects and all.
    pub timeout: Duration,
    /// Characters of a page that a call gives back, where it does not say.
    pub char_limit: usize,
    /// Bytes that are fetched of a page, decoded.
    pub max_bytes: usize,
    /// Hosts and networks that pages may come from though they are not public.
    pub allow_private: Vec<HostPattern>,
    /// The command `talaria`, which reads a PDF apart from this process; without it, a PDF is an error.
    pub pdf_reader: Option<PathBuf>,
}

/// Who reads pages.
#[derive(Clone, Debug)]
pub enum Reader {
    /// This process fetches them.
    Builtin,
    /// A provider does.
    Provider(ExtractProvider, Endpoint),
}

/// Where a provider is, and as whom it is asked.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its address, without a slash at the end.
    pub url: String,
    /// The variable that the address came from, if it is one.
    pub url_variable: Option<String>,
    /// Its key.
    pub key: Option<Key>,
    /// The variable in which a key is looked for.
    pub key_variable: String,
}

/// A key, and the variable that it came from.
#[derive(Clone, Debug)]
pub struct Key {
    /// The variable, for messages.
    pub variable: String,
    /// The key itself.
    pub value: Secret,
}

/// The proxies that requests go through; empty where there is none.
#[derive(Clone, Default)]
pub struct Proxies {
    /// For `http` addresses.
    pub http: String,
    /// For `https` addresses.
    pub https: String,
    /// For both, where there is no other.
    pub all: String,
    /// Hosts that are asked directly.
    pub no: String,
}

/// Addresses of proxies may hold passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxies(***)")
    }
}

/// How names become addresses.
pub trait Names: Send + Sync {
    /// The addresses of a host.
    fn lookup(&self, host: &str) -> Lookup;
}

/// The addresses of a host, once they are known.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

impl Default for WebOptions {
    fn default() -> Self {
        Self {
            search: Err(NO_PROVIDER.to_owned()),
            extract: ExtractOptions {
                reader: Ok(Reader::Builtin),
                timeout: Duration::from_secs(60),
                char_limit: 15_000,
                max_bytes: 10 * 1024 * 1024,
                allow_private: Vec::new(),
                pdf_reader: None,
            },
            proxies: Proxies::default(),
            names: None,
        }
    }
}

/// What a search answers when nobody can be asked.
pub const NO_PROVIDER: &str = "no search provider is configured: set the variable BRAVE_API_KEY, TAVILY_API_KEY, \
    EXA_API_KEY or FIRECRAWL_API_KEY, or SEARXNG_URL for a SearXNG of your own, where the broker starts, or \
    `web: {search: …}` in its configuration (talaria config --template shows how)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_shown() {
        let key = Key {
            variable: "EXA_API_KEY".into(),
            value: Secret::new("hunter2"),
        };
        assert_eq!(format!("{key:?}"), r#"Key { variable: "EXA_API_KEY", value: *** }"#);
    }
}
