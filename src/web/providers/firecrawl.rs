//! Firecrawl: <https://docs.firecrawl.dev/api-reference/endpoint/search> and `…/scrape`

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use url::Url;

use super::{Asking, listed, text};
use crate::web::{Hit, Page};

/// The most results that one request gives.
const MOST: usize = 100;

pub(super) fn search(asking: &Asking<'_>, query: &str, limit: usize) -> RequestBuilder {
    post(
        asking,
        "/v2/search",
        &json!({"query": query, "limit": limit.clamp(1, MOST), "sources": ["web"]}),
    )
}

pub(super) fn hits(answer: &Value) -> Option<(Vec<Hit>, bool)> {
    // Instances of one's own may be older: there the list is `data` itself.
    let data = answer.get("data")?;
    let list = if data.is_array() { Some(data) } else { data.get("web") };
    let hits = match list {
        Some(_) => listed(list, &["description", "snippet"])?,
        // Nothing was found among pages.
        None => data.as_object().map(|_| Vec::new())?,
    };
    Some((hits, false))
}

pub(super) fn extract(asking: &Asking<'_>, url: &Url) -> RequestBuilder {
    let body = json!({"url": url.as_str(), "formats": ["markdown"], "onlyMainContent": true});
    post(asking, "/v2/scrape", &body)
}

pub(super) fn page(answer: &Value) -> Option<Result<Page, String>> {
    if answer.get("success").and_then(Value::as_bool) == Some(false) {
        return Some(Err(text(answer, "error")));
    }
    let data = answer.get("data")?;
    let metadata = data.get("metadata").unwrap_or(&Value::Null);
    let status = metadata.get("statusCode").and_then(Value::as_u64);
    if let Some(status) = status.filter(|status| *status >= 400) {
        return Some(Err(format!("the page answers {status}")));
    }
    Some(Ok(Page {
        title: text(metadata, "title"),
        content: data.get("markdown")?.as_str()?.trim().to_owned(),
    }))
}

fn post(asking: &Asking<'_>, path: &str, body: &Value) -> RequestBuilder {
    let request = asking
        .client
        .post(asking.at(path))
        .header("Content-Type", "application/json")
        .body(body.to_string());
    // An instance of one's own needs no key.
    if asking.key().is_empty() {
        request
    } else {
        request.bearer_auth(asking.key())
    }
}
