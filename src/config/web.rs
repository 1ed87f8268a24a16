//! Settings of the web tools.

use std::time::Duration;

use super::choice::{ExtractProvider, SearchProvider};
use super::hosts::HostPattern;
use super::layers::Layers;
use super::settings::{duration, effective, list, word};
use super::value::Value;

/// What the web tools work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// Of `web_search`.
    pub search: WebSearch,
    /// Of `web_extract`.
    pub extract: WebExtract,
}

/// Settings of `web_search`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSearch {
    /// Who answers; `None`: the first whose usual variable is set.
    pub provider: Option<SearchProvider>,
    /// Where the provider is, instead of its usual address.
    pub url: Option<String>,
    /// The variable that holds the key, instead of the provider's usual one.
    pub api_key_env: Option<String>,
    /// The time that a search may take, attempts and all.
    pub timeout: Duration,
}

/// Settings of `web_extract`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebExtract {
    /// Who fetches and reads pages.
    pub provider: ExtractProvider,
    /// Where the provider is, instead of its usual address.
    pub url: Option<String>,
    /// The variable that holds the key, instead of the provider's usual one.
    pub api_key_env: Option<String>,
    /// The time that one page may take, attempts and redirects and all.
    pub timeout: Duration,
    /// Characters of a page that a call gives back, where it does not say.
    pub char_limit: u64,
    /// Bytes that are fetched of a page, decoded.
    pub max_bytes: u64,
    /// Hosts and networks that pages may come from though they are not public.
    pub allow_private: Vec<HostPattern>,
}

impl Web {
    pub(super) fn of(layers: &Layers) -> Self {
        let owned = |path: &str| layers.text(path).map(str::to_owned);
        let count = |path: &str| match effective(layers, path) {
            Some(Value::Count(count)) => count,
            _ => 0,
        };
        Self {
            search: WebSearch {
                provider: layers.text("web.search.provider").and_then(|word| word.parse().ok()),
                url: owned("web.search.url"),
                api_key_env: owned("web.search.api_key_env"),
                timeout: duration(layers, "web.search.timeout"),
            },
            extract: WebExtract {
                provider: word(layers, "web.extract.provider"),
                url: owned("web.extract.url"),
                api_key_env: owned("web.extract.api_key_env"),
                timeout: duration(layers, "web.extract.timeout"),
                char_limit: count("web.extract.char_limit"),
                max_bytes: count("web.extract.max_bytes"),
                allow_private: list(layers, "web.extract.allow_private")
                    .iter()
                    .filter_map(|host| host.parse().ok())
                    .collect(),
            },
        }
    }
}

/// The defaults, as without any configuration.
impl Default for Web {
    fn default() -> Self {
        Self::of(&Layers::default())
    }
}
