//! Tavily: <https://docs.tavily.com/documentation/api-reference/endpoint/search> and `…/extract`

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use url::Url;

use super::{Asking, listed, text};
use crate::web::{Hit, Page};

/// The most results that one request gives.
const MOST: usize = 20;

pub(super) fn search(asking: &Asking<'_>, query: &str, limit: usize) -> RequestBuilder {
    post(
        asking,
        "/search",
        &json!({"query": query, "max_results": limit.clamp(1, MOST)}),
    )
}

pub(super) fn hits(answer: &Value) -> Option<(Vec<Hit>, bool)> {
    Some((listed(answer.get("results"), &["content"])?, false))
}

pub(super) fn extract(asking: &Asking<'_>, url: &Url) -> RequestBuilder {
    post(
        asking,
        "/extract",
        &json!({"urls": [url.as_str()], "format": "markdown"}),
    )
}

pub(super) fn page(answer: &Value) -> Option<Result<Page, String>> {
    if let Some(result) = answer.get("results")?.get(0) {
        return Some(Ok(Page {
            title: text(result, "title"),
            content: text(result, "raw_content"),
        }));
    }
    let failed = answer.get("failed_results")?.get(0)?;
    Some(Err(text(failed, "error")))
}

fn post(asking: &Asking<'_>, path: &str, body: &Value) -> RequestBuilder {
    asking
        .client
        .post(asking.at(path))
        .bearer_auth(asking.key())
        .header("Content-Type", "application/json")
        .body(body.to_string())
}
