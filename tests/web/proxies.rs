//! Requests that go through a proxy.

use talaria_broker::config::SearchProvider;
use talaria_broker::web::{Proxies, Web, WebOptions};

use super::providers::search_options;
use super::server::{Server, html};
use super::{content, refusal};

fn through(server: &Server, no: &str) -> Web {
    Web::new(WebOptions {
        proxies: Proxies {
            http: server.url("/").replace("http://", "http://bob:s3cret@"),
            no: no.to_owned(),
            ..Proxies::default()
        },
        ..WebOptions::default()
    })
}

#[tokio::test]
async fn a_proxy_gets_the_whole_address_and_looks_names_up_itself() {
    let proxy = Server::new(|request, stream| html(stream, &format!("<p>{}", request.target)));
    let web = through(&proxy, "");
    assert_eq!(
        content(&web, "http://example.invalid/x").await,
        "http://example.invalid/x"
    );
    let login = proxy.requests()[0].header("proxy-authorization").map(str::to_owned);
    assert_eq!(login.as_deref(), Some("Basic Ym9iOnMzY3JldA=="));
}

#[tokio::test]
async fn what_is_written_as_private_is_refused_all_the_same() {
    let proxy = Server::new(|request, stream| match request.target.as_str() {
        "http://example.invalid/leads" => super::server::redirect(stream, "http://169.254.169.254/"),
        _ => html(stream, "<p>secret"),
    });
    let web = through(&proxy, "");
    for (url, word) in [
        ("http://127.0.0.1/", "loopback"),
        ("http://localhost/", "name of this machine"),
        ("http://10.0.0.1/", "private"),
        ("http://example.invalid/leads", "metadata"),
    ] {
        let why = refusal(&web, url).await;
        assert!(why.contains(word), "{url}: {why}");
    }
    assert_eq!(proxy.requests().len(), 1);
}

#[tokio::test]
async fn hosts_that_no_proxy_names_are_asked_directly_and_judged() {
    let proxy = Server::new(|_, stream| html(stream, "<p>by proxy"));
    let direct = Server::new(|_, stream| html(stream, "<p>directly"));
    let mut options = WebOptions::default();
    options.extract.allow_private = vec!["127.0.0.1".parse().unwrap()];
    options.proxies = Proxies {
        http: proxy.url("/"),
        no: "127.0.0.1,localhost".to_owned(),
        ..Proxies::default()
    };
    assert_eq!(content(&Web::new(options), direct.url("/")).await, "directly");
    let why = refusal(&through(&proxy, "localhost"), "http://localhost/").await;
    assert!(why.contains("name of this machine"), "{why}");
    assert_eq!(proxy.requests().len(), 0);
}

#[tokio::test]
async fn a_provider_on_this_machine_is_asked_directly() {
    let proxy = Server::new(|_, stream| html(stream, "<p>by proxy"));
    let searxng = Server::with("application/json", r#"{"results": []}"#);
    let mut options = search_options(SearchProvider::Searxng, &searxng, None);
    options.proxies.all = proxy.url("/");
    assert_eq!(Web::new(options).search("x", 5).await.unwrap(), []);
    assert_eq!(proxy.requests().len(), 0);
}

#[tokio::test]
async fn a_proxy_that_is_none_is_told_without_its_password() {
    let mut options = WebOptions::default();
    options.proxies.http = "http://bob:s3cret@[broken".to_owned();
    let why = refusal(&Web::new(options), "http://example.invalid/").await;
    assert!(why.contains("http_proxy") && !why.contains("s3cret"), "{why}");
}
