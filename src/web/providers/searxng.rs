//! SearXNG: <https://docs.searxng.org/dev/search_api.html>

use reqwest::RequestBuilder;
use serde_json::Value;

use super::{Asking, listed};
use crate::web::Hit;

pub(super) fn search(asking: &Asking<'_>, query: &str, page: usize) -> RequestBuilder {
    let page = (page + 1).to_string();
    let url = with_query(
        &asking.at("/search"),
        &[("q", query), ("format", "json"), ("pageno", &page)],
    );
    let request = asking.client.get(url);
    // An instance may stand behind a login of its own.
    match asking.key().split_once(':') {
        Some((user, password)) => request.basic_auth(user, Some(password)),
        None if asking.key().is_empty() => request,
        None => request.bearer_auth(asking.key()),
    }
}

pub(super) fn hits(answer: &Value) -> Option<(Vec<Hit>, bool)> {
    let hits = listed(answer.get("results"), &["content"])?;
    Some((hits, true))
}

/// An address with a query; one that is none is told by the client.
pub(super) fn with_query(base: &str, pairs: &[(&str, &str)]) -> String {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish();
    format!("{base}?{query}")
}
