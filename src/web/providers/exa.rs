//! Exa: <https://exa.ai/docs/reference/search> and <https://exa.ai/docs/reference/get-contents>

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use url::Url;

use super::{Asking, listed, text};
use crate::web::{Hit, Page};

/// The most results that one request gives.
const MOST: usize = 100;

/// Characters of a result that describe it.
const DESCRIPTION: usize = 400;

pub(super) fn search(asking: &Asking<'_>, query: &str, limit: usize) -> RequestBuilder {
    let body = json!({
        "query": query,
        "numResults": limit.clamp(1, MOST),
        "contents": {"highlights": {"maxCharacters": DESCRIPTION}},
    });
    post(asking, "/search", &body)
}

pub(super) fn hits(answer: &Value) -> Option<(Vec<Hit>, bool)> {
    let mut hits = listed(answer.get("results"), &["summary", "text"])?;
    for (hit, result) in hits.iter_mut().zip(answer.get("results")?.as_array()?) {
        let highlights = result.get("highlights").and_then(Value::as_array);
        let joined: Vec<&str> = highlights.into_iter().flatten().filter_map(Value::as_str).collect();
        if !joined.is_empty() {
            hit.description = joined.join(" … ");
        }
        if let Some((at, _)) = hit.description.char_indices().nth(DESCRIPTION) {
            hit.description.truncate(at);
        }
    }
    Some((hits, false))
}

pub(super) fn extract(asking: &Asking<'_>, url: &Url) -> RequestBuilder {
    post(asking, "/contents", &json!({"urls": [url.as_str()], "text": true}))
}

pub(super) fn page(answer: &Value) -> Option<Result<Page, String>> {
    if let Some(result) = answer.get("results")?.get(0) {
        return Some(Ok(Page {
            title: text(result, "title"),
            content: text(result, "text"),
        }));
    }
    let error = answer.get("statuses")?.get(0)?.get("error")?;
    let code = error.get("httpStatusCode").and_then(Value::as_u64);
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    Some(Err(format!("{}{code}", text(error, "tag"))))
}

fn post(asking: &Asking<'_>, path: &str, body: &Value) -> RequestBuilder {
    asking
        .client
        .post(asking.at(path))
        .header("x-api-key", asking.key())
        .header("Content-Type", "application/json")
        .body(body.to_string())
}
