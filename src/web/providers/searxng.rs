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

/// What to say when there are no results because the engines that SearXNG asks did not answer.
pub(super) fn silence(answer: &Value) -> Option<String> {
    let engines = answer.get("unresponsive_engines")?.as_array()?;
    // Each is its name and why.
    let named: Vec<String> = engines
        .iter()
        .filter_map(|engine| {
            let name = engine.get(0).unwrap_or(engine).as_str()?;
            let why = engine.get(1).and_then(Value::as_str).unwrap_or_default();
            let why: String = why.chars().take(80).collect();
            Some(if why.is_empty() {
                name.to_owned()
            } else {
                format!("{name} ({why})")
            })
        })
        .take(10)
        .collect();
    (!named.is_empty()).then(|| {
        format!(
            "searxng found nothing, as the engines that it asks did not answer: {}; try again later, or enable other \
             engines in its settings.yml",
            named.join(", ")
        )
    })
}

/// An address with a query; one that is none is told by the client.
pub(super) fn with_query(base: &str, pairs: &[(&str, &str)]) -> String {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish();
    format!("{base}?{query}")
}
