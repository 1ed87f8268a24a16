//! What providers are asked, and how their answers read. One file each; asking itself is the same for all.

mod brave;
mod exa;
mod firecrawl;
mod searxng;
mod tavily;

use reqwest::header::LOCATION;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::body;
use super::failure::{Again, Failure, again_after, proxy_of, with_attempts};
use super::options::Endpoint;
use super::{Hit, Page};
use crate::config::{ExtractProvider, SearchProvider};

/// The largest answer of a provider.
const LONGEST_ANSWER: usize = 32 * 1024 * 1024;

/// Headers that hold a key, beside `Authorization`.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "x-subscription-token"];

/// Pages of results that one search may take.
const MOST_PAGES: usize = 5;

/// Somebody who is asked.
pub(super) struct Asking<'a> {
    pub(super) name: &'static str,
    /// The section of the configuration that says who is asked.
    pub(super) section: &'static str,
    pub(super) client: &'a Client,
    /// The variable of the proxy through which this provider is asked.
    pub(super) proxy: Option<&'static str>,
    pub(super) endpoint: &'a Endpoint,
    pub(super) deadline: Instant,
}

/// The results of a search, page after page until there are enough.
pub(super) async fn search_pages(
    provider: SearchProvider,
    asking: &Asking<'_>,
    query: &str,
    limit: usize,
) -> Result<Vec<Hit>, String> {
    let mut found: Vec<Hit> = Vec::new();
    for page in 0..MOST_PAGES {
        let answer = asking
            .ask(|| match provider {
                SearchProvider::Searxng => searxng::search(asking, query, page),
                SearchProvider::Brave => brave::search(asking, query, limit, page),
                SearchProvider::Tavily => tavily::search(asking, query, limit),
                SearchProvider::Exa => exa::search(asking, query, limit),
                SearchProvider::Firecrawl => firecrawl::search(asking, query, limit),
            })
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            // What was found so far is more than nothing.
            Err(error) if !found.is_empty() => {
                tracing::debug!(error, page, "a further page of results is left out");
                break;
            }
            Err(error) => return Err(error),
        };
        let (hits, has_more) = match provider {
            SearchProvider::Searxng => searxng::hits(&answer),
            SearchProvider::Brave => brave::hits(&answer),
            SearchProvider::Tavily => tavily::hits(&answer),
            SearchProvider::Exa => exa::hits(&answer),
            SearchProvider::Firecrawl => firecrawl::hits(&answer),
        }
        .ok_or_else(|| asking.unexpected())?;
        if found.is_empty()
            && hits.is_empty()
            && provider == SearchProvider::Searxng
            && let Some(sentence) = searxng::silence(&answer)
        {
            return Err(asking.scrubbed(&sentence));
        }
        let new: Vec<Hit> = hits
            .into_iter()
            .filter(|hit| !found.iter().any(|known| known.url == hit.url))
            .collect();
        let is_stale = new.is_empty();
        found.extend(new);
        if !has_more || is_stale || found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// One page, read by a provider.
pub(super) async fn read_page(provider: ExtractProvider, asking: &Asking<'_>, url: &Url) -> Result<Page, String> {
    let answer = asking
        .ask(|| match provider {
            ExtractProvider::Tavily => tavily::extract(asking, url),
            ExtractProvider::Exa => exa::extract(asking, url),
            ExtractProvider::Firecrawl | ExtractProvider::Builtin => firecrawl::extract(asking, url),
        })
        .await?;
    let page = match provider {
        ExtractProvider::Tavily => tavily::page(&answer),
        ExtractProvider::Exa => exa::page(&answer),
        ExtractProvider::Firecrawl | ExtractProvider::Builtin => firecrawl::page(&answer),
    };
    let page = page
        .ok_or_else(|| asking.unexpected())?
        .map_err(|why| format!("{} could not read it: {}", asking.name, asking.scrubbed(&why)))?;
    if page.content.is_empty() {
        return Err(format!("{} found no text there; try another source", asking.name));
    }
    Ok(page)
}

impl Asking<'_> {
    /// The address of a part of the provider's API.
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint.url)
    }

    fn key(&self) -> &str {
        self.endpoint.key.as_ref().map_or("", |key| key.value.reveal())
    }

    /// Asks, as often as that makes sense.
    async fn ask(&self, request: impl Fn() -> RequestBuilder) -> Result<Value, String> {
        with_attempts(self.deadline, || self.attempt(request()))
            .await
            .map_err(|failure| self.scrubbed(&failure.sentence))
    }

    async fn attempt(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let sent = async {
            let mut request = request.build()?;
            for name in KEY_HEADERS {
                if let Some(key) = request.headers_mut().get_mut(name) {
                    // No log shows it then.
                    key.set_sensitive(true);
                }
            }
            self.client.execute(request).await
        };
        let response = sent.await.map_err(|error| {
            if error.is_builder() && !self.key().chars().all(|letter| letter.is_ascii_graphic()) {
                return Failure::last(format!(
                    "{} cannot be asked: the key in the variable {} holds characters that no key has; correct it",
                    self.name, self.endpoint.key_variable
                ));
            }
            let mut failure = Failure::of_transport(&error);
            let check = match self.proxy {
                Some(variable) if error.is_connect() => format!("{}, and {}", self.place(), proxy_of(variable)),
                _ => format!("{} and the network", self.place()),
            };
            failure.sentence = format!(
                "{} cannot be asked at {}: {}; check {check}",
                self.name, self.endpoint.url, failure.sentence
            );
            failure
        })?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let body = body::read(response, LONGEST_ANSWER).await.map_err(|mut failure| {
            failure.sentence = format!("{}: {}", self.name, failure.sentence);
            failure
        })?;
        if body.is_cut {
            return Err(Failure::last(format!("{} answers with more than 32 MiB", self.name)));
        }
        serde_json::from_slice(&body.bytes).map_err(|_| Failure::last(self.unexpected()))
    }

    /// Where the provider's address is written, or would be.
    fn place(&self) -> String {
        match &self.endpoint.url_variable {
            Some(variable) => format!("the variable {variable}"),
            None => format!("{}.url", self.section),
        }
    }

    /// What is said of an answer that has not the form that it should have.
    fn unexpected(&self) -> String {
        format!(
            "{} answers at {} with something other than its API gives; check {}",
            self.name,
            self.endpoint.url,
            self.place()
        )
    }

    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let again = again_after(status, response.headers());
        let location = response.headers().get(LOCATION).map(|value| {
            String::from_utf8_lossy(value.as_bytes())
                .chars()
                .take(200)
                .collect::<String>()
        });
        let detail = match body::read(response, 64 * 1024).await {
            Ok(body) => serde_json::from_slice(&body.bytes)
                .ok()
                .and_then(|answer| detail(&answer)),
            Err(_) => None,
        };
        let is_bad_key = detail
            .as_deref()
            .is_some_and(|detail| detail.contains("SUBSCRIPTION_TOKEN_INVALID"));
        let advice = self.advice(status, is_bad_key, location.as_deref());
        let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
        Failure {
            sentence: format!("{} answers {status}{detail}: {advice}", self.name),
            again: if is_bad_key { Again::No } else { again },
        }
    }

    fn advice(&self, status: StatusCode, is_bad_key: bool, location: Option<&str>) -> String {
        let section = self.section;
        let code = status.as_u16();
        let is_searxng = self.name == SearchProvider::Searxng.as_str();
        if is_searxng && code == 403 {
            return "this SearXNG gives no JSON; add `json` to `search: formats:` in its settings.yml, or use another"
                .to_owned();
        }
        if let (407, Some(variable)) = (code, self.proxy) {
            return format!("{} wants a login; write it into that variable", proxy_of(variable));
        }
        if is_bad_key || matches!(code, 401 | 403) {
            return match &self.endpoint.key {
                Some(key) => format!(
                    "it does not accept the key in the variable {}; put a valid one there",
                    key.variable
                ),
                None => format!(
                    "it wants a key; put it into the variable {} where the broker starts, or name another in \
                     {section}.api_key_env",
                    self.endpoint.key_variable
                ),
            };
        }
        match code {
            402 | 432 | 433 => "the plan's quota is used up; raise it there, or configure another provider".to_owned(),
            429 => "too many requests; search less often, or raise the plan's limit there".to_owned(),
            400 | 413 | 414 | 422 => "it does not take this request; make it shorter or simpler".to_owned(),
            404 | 405 => format!("there is no such API at {}; check {}", self.endpoint.url, self.place()),
            300..=399 => format!(
                "it is elsewhere, at {}; write that into {}",
                location.unwrap_or("an address that it does not name"),
                self.place()
            ),
            500..=599 => "it fails; try again later, or configure another provider".to_owned(),
            _ => "that was not expected; try again later".to_owned(),
        }
    }

    /// A text without the key, should the provider have repeated it.
    fn scrubbed(&self, text: &str) -> String {
        match self.key() {
            "" => text.to_owned(),
            key => text.replace(key, "***"),
        }
    }
}

/// What a provider says is wrong: a text somewhere among the usual keys.
fn detail(answer: &Value) -> Option<String> {
    let mut found = Vec::new();
    collect(answer, &mut found, 0);
    let text = found.join(": ");
    (!text.is_empty()).then(|| {
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(300)
            .collect()
    })
}

fn collect(answer: &Value, found: &mut Vec<String>, depth: usize) {
    const KEYS: [&str; 6] = ["error", "detail", "code", "tag", "message", "msg"];
    for key in KEYS {
        match answer.get(key) {
            Some(Value::String(text)) if !found.contains(text) => found.push(text.clone()),
            Some(inner @ Value::Object(_)) if depth < 3 => collect(inner, found, depth + 1),
            _ => {}
        }
    }
}

/// A text under a key; empty where there is none.
fn text(value: &Value, key: &str) -> String {
    value
        .get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Results in a list, each with its description under the first of `descriptions` that it has.
fn listed(list: Option<&Value>, descriptions: &[&str]) -> Option<Vec<Hit>> {
    let hits = list?.as_array()?.iter().map(|item| Hit {
        url: text(item, "url"),
        title: text(item, "title"),
        description: descriptions
            .iter()
            .map(|key| text(item, key))
            .find(|description| !description.is_empty())
            .unwrap_or_default(),
    });
    Some(hits.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_found_wherever_a_provider_says_it() {
        for (answer, expected) in [
            (json!({"error": "No."}), Some("No.")),
            (
                json!({"detail": {"error": "Unauthorized: no key."}}),
                Some("Unauthorized: no key."),
            ),
            (
                json!({"type": "ErrorResponse", "error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "bad token"}}),
                Some("bad token: SUBSCRIPTION_TOKEN_INVALID"),
            ),
            (
                json!({"requestId": "1", "error": "bad\n key", "tag": "INVALID_API_KEY"}),
                Some("bad key: INVALID_API_KEY"),
            ),
            (json!({"success": false}), None),
            (json!([]), None),
        ] {
            assert_eq!(detail(&answer).as_deref(), expected, "{answer}");
        }
    }
}
