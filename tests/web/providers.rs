//! What providers are asked and how their answers read, in the shapes that their documentation shows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::config::{ExtractProvider, SearchProvider};
use talaria_broker::environment::Secret;
use talaria_broker::web::{Endpoint, Hit, Key, Reader, SearchOptions, Web, WebOptions};

use super::server::{Server, redirect, reply};
use super::{read, refusal};

const KEY: &str = "tvly-abcdef-123456";

fn endpoint(server: &Server, key: Option<&str>) -> Endpoint {
    Endpoint {
        url: server.url(""),
        url_variable: None,
        key_variable: "MY_API_KEY".to_owned(),
        key: key.map(|key| Key {
            variable: "MY_API_KEY".to_owned(),
            value: Secret::new(key),
        }),
    }
}

pub(crate) fn search_options(provider: SearchProvider, server: &Server, key: Option<&str>) -> WebOptions {
    WebOptions {
        search: Ok(SearchOptions {
            provider,
            endpoint: endpoint(server, key),
            timeout: Duration::from_secs(20),
        }),
        ..WebOptions::default()
    }
}

async fn search(provider: SearchProvider, server: &Server, limit: usize) -> Result<Vec<Hit>, String> {
    let web = Web::new(search_options(provider, server, Some(KEY)));
    web.search("rust async & more", limit)
        .await
        .map_err(|error| error.to_string())
}

fn extractor(provider: ExtractProvider, server: &Server) -> Web {
    let mut options = WebOptions::default();
    options.extract.reader = Ok(Reader::Provider(provider, endpoint(server, Some(KEY))));
    Web::new(options)
}

fn answering(answer: Value) -> Server {
    Server::with("application/json", answer.to_string())
}

fn hit(url: &str, title: &str, description: &str) -> Hit {
    Hit {
        url: url.into(),
        title: title.into(),
        description: description.into(),
    }
}

/// <https://docs.searxng.org/dev/search_api.html>
#[tokio::test]
async fn searxng() {
    let server = Server::new(|request, stream| {
        let page = if request.target.contains("pageno=1") { "1" } else { "2" };
        let one = |name: &str| {
            json!({"url": format!("https://{name}.org/"), "title": format!("{name}!"), "content": "About it.",
                   "engine": "duckduckgo", "score": 1.0, "category": "general"})
        };
        let results = if page == "1" {
            vec![one("a"), one("b")]
        } else {
            vec![one("b"), one("c")]
        };
        let answer = json!({"query": "q", "number_of_results": 0, "results": results, "answers": [], "corrections": [],
                            "infoboxes": [], "suggestions": [], "unresponsive_engines": []});
        reply(
            stream,
            "200 OK",
            &[("Content-Type", "application/json")],
            answer.to_string().as_bytes(),
        );
    });
    let found = search(SearchProvider::Searxng, &server, 3).await.unwrap();
    let names: Vec<&str> = found.iter().map(|hit| hit.title.as_str()).collect();
    assert_eq!(names, ["a!", "b!", "c!"]);
    assert_eq!(found[0], hit("https://a.org/", "a!", "About it."));
    let asked = &server.requests()[0];
    assert_eq!(
        (asked.method.as_str(), asked.target.as_str()),
        ("GET", "/search?q=rust+async+%26+more&format=json&pageno=1")
    );
    assert_eq!(asked.header("authorization"), Some("Bearer tvly-abcdef-123456"));
    assert_eq!(server.requests().len(), 2);

    let login = Web::new(search_options(SearchProvider::Searxng, &server, Some("bob:pw")));
    login.search("x", 1).await.unwrap();
    assert_eq!(server.requests()[2].header("authorization"), Some("Basic Ym9iOnB3"));
}

#[tokio::test]
async fn a_searxng_whose_engines_are_silent_has_not_found_nothing() {
    let silent = json!([["google", "Suspended: CAPTCHA"], ["duckduckgo", "timeout"]]);
    let server = answering(json!({"query": "q", "results": [], "unresponsive_engines": silent}));
    let why = search(SearchProvider::Searxng, &server, 3).await.unwrap_err();
    for word in ["google (Suspended: CAPTCHA)", "duckduckgo (timeout)", "try again later"] {
        assert!(why.contains(word), "{why}");
    }
    let one = json!([{"url": "https://a.org/", "title": "A", "content": "B"}]);
    let server = answering(json!({"query": "q", "results": one, "unresponsive_engines": silent}));
    assert_eq!(search(SearchProvider::Searxng, &server, 3).await.unwrap().len(), 1);
    let server = answering(json!({"query": "q", "results": [], "unresponsive_engines": []}));
    assert_eq!(search(SearchProvider::Searxng, &server, 3).await.unwrap(), []);
}

#[tokio::test]
async fn a_key_that_is_wanted_or_cannot_be_sent_is_named_by_its_variable() {
    let server = Server::new(|_, stream| reply(stream, "401 Unauthorized", &[], b""));
    for (key, word) in [
        (None, "put it into the variable MY_API_KEY"),
        (Some("one\ntwo"), "the key in the variable MY_API_KEY holds characters"),
    ] {
        let web = Web::new(search_options(SearchProvider::Brave, &server, key));
        let why = web.search("x", 5).await.unwrap_err().to_string();
        assert!(why.contains(word) && !why.contains("two"), "{why}");
    }
}

/// <https://api-dashboard.search.brave.com/api-reference/web/search/get>
#[tokio::test]
async fn brave() {
    let server = answering(json!({
        "type": "search",
        "query": {"original": "q", "more_results_available": true},
        "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": false}]},
        "web": {"type": "search", "results": [
            {"title": "Tom &amp; Jerry", "url": "https://a.org/", "description": "A <strong>cat</strong> &#x27;n&#39; a &lt;mouse&gt;",
             "is_source_local": false, "family_friendly": true, "extra_snippets": []},
            {"title": "No text", "url": "https://b.org/"},
        ]},
    }));
    let found = search(SearchProvider::Brave, &server, 2).await.unwrap();
    assert_eq!(
        found,
        [
            hit("https://a.org/", "Tom & Jerry", "A cat 'n' a <mouse>"),
            hit("https://b.org/", "No text", "")
        ]
    );
    let asked = &server.requests()[0];
    assert!(
        asked
            .target
            .starts_with("/res/v1/web/search?q=rust+async+%26+more&count=2&offset=0&"),
        "{}",
        asked.target
    );
    assert_eq!(asked.header("x-subscription-token"), Some(KEY));
    // More is asked for page by page, until a page brings nothing new.
    assert_eq!(search(SearchProvider::Brave, &server, 50).await.unwrap().len(), 2);
    assert!(server.requests()[1].target.contains("count=20&offset=0"));
    assert!(server.requests()[2].target.contains("offset=1"));

    let nothing = answering(json!({"type": "search", "query": {"original": "q", "more_results_available": false}}));
    assert_eq!(search(SearchProvider::Brave, &nothing, 5).await.unwrap(), []);
}

/// <https://docs.tavily.com/documentation/api-reference/endpoint/search>
#[tokio::test]
async fn tavily() {
    let server = answering(json!({
        "query": "q", "answer": null, "images": [],
        "results": [{"title": "T", "url": "https://a.org/", "content": "C", "score": 0.8, "raw_content": null, "favicon": null}],
        "response_time": "1.67", "request_id": "123e4567-e89b-12d3-a456-426614174111",
    }));
    assert_eq!(
        search(SearchProvider::Tavily, &server, 50).await.unwrap(),
        [hit("https://a.org/", "T", "C")]
    );
    let asked = &server.requests()[0];
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/search"));
    assert_eq!(asked.header("authorization"), Some("Bearer tvly-abcdef-123456"));
    assert_eq!(asked.json(), json!({"query": "rust async & more", "max_results": 20}));
}

/// <https://exa.ai/docs/reference/search>
#[tokio::test]
async fn exa() {
    let server = answering(json!({
        "requestId": "b5947044c4b78efa9552a7c89b306d95",
        "results": [
            {"title": "T", "url": "https://a.org/", "publishedDate": "2023-11-16T01:36:32.547Z", "author": "X",
             "id": "https://a.org/", "highlights": ["One.", "Two."], "highlightScores": [0.5, 0.4]},
            {"title": "U", "url": "https://b.org/", "id": "https://b.org/", "text": "Long text"},
        ],
        "searchType": "neural", "costDollars": {"total": 0.005},
    }));
    assert_eq!(
        search(SearchProvider::Exa, &server, 2).await.unwrap(),
        [
            hit("https://a.org/", "T", "One. … Two."),
            hit("https://b.org/", "U", "Long text")
        ]
    );
    let asked = &server.requests()[0];
    assert_eq!(
        (asked.target.as_str(), asked.header("x-api-key")),
        ("/search", Some(KEY))
    );
    assert_eq!(asked.json()["numResults"], 2);
}

/// <https://docs.firecrawl.dev/api-reference/endpoint/search>
#[tokio::test]
async fn firecrawl() {
    let one = json!({"title": "T", "description": "D", "url": "https://a.org/", "position": 1});
    for data in [json!({"web": [one]}), json!([one])] {
        let server = answering(json!({"success": true, "data": data, "warning": null, "creditsUsed": 2}));
        assert_eq!(
            search(SearchProvider::Firecrawl, &server, 5).await.unwrap(),
            [hit("https://a.org/", "T", "D")]
        );
        let asked = &server.requests()[0];
        assert_eq!(
            (asked.target.as_str(), asked.header("authorization")),
            ("/v2/search", Some("Bearer tvly-abcdef-123456"))
        );
        assert_eq!(
            asked.json(),
            json!({"query": "rust async & more", "limit": 5, "sources": ["web"]})
        );
    }
    let nothing = answering(json!({"success": true, "data": {}}));
    assert_eq!(search(SearchProvider::Firecrawl, &nothing, 5).await.unwrap(), []);
}

/// <https://docs.tavily.com/documentation/api-reference/endpoint/extract>, <https://exa.ai/docs/reference/get-contents>,
/// <https://docs.firecrawl.dev/api-reference/endpoint/scrape>
#[tokio::test]
async fn pages_by_provider() {
    const PAGE: &str = "https://example.org/page";
    for (provider, answer, path, body) in [
        (
            ExtractProvider::Tavily,
            json!({"results": [{"url": PAGE, "title": "T", "raw_content": "# Text", "images": []}], "failed_results": [],
                   "response_time": 0.02, "request_id": "1"}),
            "/extract",
            json!({"urls": [PAGE], "format": "markdown"}),
        ),
        (
            ExtractProvider::Exa,
            json!({"requestId": "1", "results": [{"id": PAGE, "url": PAGE, "title": "T", "text": "# Text"}],
                   "statuses": [{"id": PAGE, "status": "success", "source": "crawled"}]}),
            "/contents",
            json!({"urls": [PAGE], "text": true}),
        ),
        (
            ExtractProvider::Firecrawl,
            json!({"success": true, "data": {"markdown": "# Text\n",
                   "metadata": {"title": "T", "sourceURL": PAGE, "statusCode": 200}}}),
            "/v2/scrape",
            json!({"url": PAGE, "formats": ["markdown"], "onlyMainContent": true}),
        ),
    ] {
        let server = answering(answer);
        let page = read(&extractor(provider, &server), PAGE).await.unwrap();
        assert_eq!(
            (page.title.as_str(), page.content.as_str()),
            ("T", "# Text"),
            "{provider}"
        );
        let asked = &server.requests()[0];
        assert_eq!((asked.target.as_str(), asked.json()), (path, body), "{provider}");
    }
    for (provider, answer, word) in [
        (
            ExtractProvider::Tavily,
            json!({"results": [], "failed_results": [{"url": PAGE, "error": "blocked there"}], "response_time": 0.1}),
            "blocked there",
        ),
        (
            ExtractProvider::Exa,
            json!({"results": [], "statuses": [{"id": PAGE, "status": "error",
                   "error": {"tag": "CRAWL_NOT_FOUND", "httpStatusCode": 404}}]}),
            "CRAWL_NOT_FOUND (404)",
        ),
        (
            ExtractProvider::Firecrawl,
            json!({"success": true, "data": {"markdown": "", "metadata": {"statusCode": 404}}}),
            "the page answers 404",
        ),
        (
            ExtractProvider::Firecrawl,
            json!({"success": false, "error": "no such site"}),
            "no such site",
        ),
        (
            ExtractProvider::Firecrawl,
            json!({"success": true, "data": {"markdown": "", "metadata": {"statusCode": 200}}}),
            "found no text",
        ),
        (
            ExtractProvider::Exa,
            json!({"unexpected": 1}),
            "something other than its API",
        ),
    ] {
        let server = answering(answer);
        let why = refusal(&extractor(provider, &server), PAGE).await;
        assert!(why.contains(word), "{provider}: {why}");
    }
    let server = answering(json!({}));
    let why = refusal(&extractor(ExtractProvider::Exa, &server), "http://10.0.0.1/").await;
    assert!(why.contains("private") && server.requests().is_empty(), "{why}");
}

#[tokio::test]
async fn failures_say_what_to_do_and_never_show_the_key() {
    use SearchProvider::{Brave, Exa, Firecrawl, Searxng, Tavily};
    for (provider, status, body, word) in [
        (
            Tavily,
            "401 Unauthorized",
            json!({"detail": {"error": format!("Unauthorized: bad key {KEY}.")}}),
            "variable MY_API_KEY",
        ),
        (
            Exa,
            "401 Unauthorized",
            json!({"error": "x", "tag": "INVALID_API_KEY"}),
            "variable MY_API_KEY",
        ),
        (
            Brave,
            "422 Unprocessable Entity",
            json!({"error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "bad"}, "type": "ErrorResponse"}),
            "variable MY_API_KEY",
        ),
        (
            Brave,
            "422 Unprocessable Entity",
            json!({"error": {"code": "VALIDATION", "detail": "too long"}}),
            "shorter",
        ),
        (
            Firecrawl,
            "402 Payment Required",
            json!({"success": false, "error": "no credits"}),
            "quota",
        ),
        (Tavily, "432 Limit", json!({"detail": {"error": "plan"}}), "quota"),
        (Searxng, "403 Forbidden", json!("no"), "settings.yml"),
        (Searxng, "404 Not Found", json!(null), "check web.search.url"),
        (Exa, "501 Not Implemented", json!({"error": "down"}), "it fails"),
    ] {
        let server = Server::new(move |_, stream| {
            reply(
                stream,
                status,
                &[("Content-Type", "application/json")],
                body.to_string().as_bytes(),
            );
        });
        let why = search(provider, &server, 5).await.unwrap_err();
        assert!(why.contains(word) && why.contains(&status[..3]), "{provider}: {why}");
        assert!(!why.contains(KEY), "{why}");
        assert_eq!(server.requests().len(), 1, "{provider} {status}");
    }
    let elsewhere = Server::new(|_, stream| redirect(stream, "https://search.example.org/search"));
    let why = search(Searxng, &elsewhere, 5).await.unwrap_err();
    assert!(
        why.contains("https://search.example.org/search") && why.contains("web.search.url"),
        "{why}"
    );
    let page = Server::with("text/html", "<html>Log in");
    let why = search(Searxng, &page, 5).await.unwrap_err();
    assert!(why.contains("something other than its API gives"), "{why}");
    let url = page.url("");
    drop(page);
    let gone = WebOptions {
        search: Ok(SearchOptions {
            provider: Searxng,
            endpoint: Endpoint {
                url: url.clone(),
                url_variable: Some("SEARXNG_URL".to_owned()),
                key: None,
                key_variable: "SEARXNG_API_KEY".to_owned(),
            },
            timeout: Duration::from_secs(20),
        }),
        ..WebOptions::default()
    };
    let why = Web::new(gone).search("x", 5).await.unwrap_err().to_string();
    assert!(
        why.contains(&url) && why.contains("no connection") && why.contains("the variable SEARXNG_URL"),
        "{why}"
    );
}

#[tokio::test]
async fn a_provider_that_is_busy_is_asked_again() {
    let asked = AtomicUsize::new(0);
    let server = Server::new(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => reply(stream, "429 Too Many Requests", &[("Retry-After", "1")], b"{}"),
        1 => reply(stream, "502 Bad Gateway", &[], b"<html>"),
        _ => reply(
            stream,
            "200 OK",
            &[],
            br#"{"results": [{"url": "https://a.org/", "title": "T", "content": "C"}]}"#,
        ),
    });
    assert_eq!(
        search(SearchProvider::Tavily, &server, 5).await.unwrap(),
        [hit("https://a.org/", "T", "C")]
    );
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_provider_that_is_silent_is_given_up() {
    let server = Server::new(|_, _| std::thread::sleep(Duration::from_secs(5)));
    let mut options = search_options(SearchProvider::Exa, &server, Some(KEY));
    options.search.as_mut().unwrap().timeout = Duration::from_millis(300);
    let why = Web::new(options).search("x", 5).await.unwrap_err().to_string();
    assert!(why.contains("within 0.3 s"), "{why}");
}
