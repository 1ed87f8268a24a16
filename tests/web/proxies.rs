//! Requests that go through a proxy.

use talaria_broker::config::SearchProvider;
use talaria_broker::web::{Proxies, Web, WebOptions};

use super::providers::search_options;
use super::server::{Server, html, reply};
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

#[tokio::test]
async fn failures_through_a_proxy_name_its_variable() {
    let gone = Server::new(|_, stream| html(stream, ""));
    let mut options = WebOptions::default();
    options.proxies.http = gone.url("/").replace("http://", "http://bob:s3cret@");
    options.proxies.all.clone_from(&options.proxies.http);
    drop(gone);
    let web = Web::new(options.clone());
    let why = refusal(&web, "http://example.invalid/").await;
    assert!(
        why.contains("http_proxy (or HTTP_PROXY)") && !why.contains("s3cret"),
        "{why}"
    );
    let why = refusal(&web, "https://example.invalid/").await;
    assert!(why.contains("all_proxy") && !why.contains("s3cret"), "{why}");

    let server = Server::new(|_, stream| html(stream, ""));
    options.search = search_options(SearchProvider::Searxng, &server, None).search;
    let search = options.search.as_mut().unwrap();
    search.endpoint.url = "http://searx.invalid".to_owned();
    let why = Web::new(options).search("x", 1).await.unwrap_err().to_string();
    assert!(why.contains("http_proxy") && !why.contains("s3cret"), "{why}");

    let login = Server::new(|_, stream| reply(stream, "407 Proxy Authentication Required", &[], b""));
    let why = refusal(&through(&login, ""), "http://example.invalid/").await;
    assert!(why.contains("http_proxy") && why.contains("login"), "{why}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_says_what_to_check() {
    let gone = Server::new(|_, stream| html(stream, ""));
    let url = gone.url("/");
    drop(gone);
    let why = refusal(&super::open(|_| ()), url).await;
    assert!(why.contains("check the address and its port"), "{why}");
}
