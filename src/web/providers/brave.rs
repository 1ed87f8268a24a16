//! Brave: <https://api-dashboard.search.brave.com/api-reference/web/search/get>

use reqwest::RequestBuilder;
use serde_json::Value;

use super::searxng::with_query;
use super::{Asking, listed};
use crate::web::Hit;

/// The most results that one request gives.
const MOST: usize = 20;

pub(super) fn search(asking: &Asking<'_>, query: &str, limit: usize, page: usize) -> RequestBuilder {
    let (count, page) = (limit.clamp(1, MOST).to_string(), page.to_string());
    let pairs = [
        ("q", query),
        ("count", &count),
        ("offset", &page),
        ("result_filter", "web"),
        ("text_decorations", "false"),
    ];
    asking
        .client
        .get(with_query(&asking.at("/res/v1/web/search"), &pairs))
        .header("Accept", "application/json")
        .header("X-Subscription-Token", asking.key())
}

pub(super) fn hits(answer: &Value) -> Option<(Vec<Hit>, bool)> {
    // Where nothing was found there is no `web`.
    if answer.get("web").is_none_or(Value::is_null) {
        return answer.get("type").map(|_| (Vec::new(), false));
    }
    let mut hits = listed(answer.pointer("/web/results"), &["description"])?;
    for hit in &mut hits {
        hit.title = plain(&hit.title);
        hit.description = plain(&hit.description);
    }
    let has_more = answer.pointer("/query/more_results_available").and_then(Value::as_bool);
    Some((hits, has_more.unwrap_or(false)))
}

/// A text without the marks of its search words, and with its characters as they are.
fn plain(text: &str) -> String {
    let text = text.replace("<strong>", "").replace("</strong>", "");
    let mut plain = text;
    for (entity, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#x27;", "'"),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ] {
        plain = plain.replace(entity, character);
    }
    plain
}
