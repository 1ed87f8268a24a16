//! Addresses that pages are not fetched from, however one is led to them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use talaria_broker::web::{Lookup, Names, Web, WebOptions};

use super::server::{Server, html, redirect};
use super::{content, open, refusal};

/// Names as a test says: the next lookup of a name takes its next list of addresses; the last one stays.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>);

impl Table {
    fn of(names: &[(&str, &[&[&str]])]) -> Self {
        let lists = |lists: &[&[&str]]| {
            let list = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
            lists.iter().map(list).collect()
        };
        let names = names
            .iter()
            .map(|(name, addresses)| ((*name).to_owned(), lists(addresses)));
        Self(Arc::new(Mutex::new(names.collect())))
    }
}

impl Names for Table {
    fn lookup(&self, host: &str) -> Lookup {
        let mut names = self.0.lock().unwrap();
        let found = names.get_mut(host).map(|lists| {
            if lists.len() > 1 {
                lists.remove(0)
            } else {
                lists[0].clone()
            }
        });
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}

/// A web with names of its own in which only this is allowed.
fn with_names(table: &Table, allowed: &[&str]) -> Web {
    let mut options = WebOptions {
        names: Some(Arc::new(table.clone())),
        ..WebOptions::default()
    };
    options.extract.allow_private = allowed.iter().map(|host| host.parse().unwrap()).collect();
    options.extract.timeout = Duration::from_secs(20);
    Web::new(options)
}

#[tokio::test]
async fn private_addresses_are_refused_before_anything_is_sent() {
    let server = Server::new(|_, stream| html(stream, "<p>secret"));
    let port = server.address.port();
    let web = Web::new(WebOptions::default());
    for (host, word) in [
        ("127.0.0.1", "loopback"),
        ("127.1", "loopback"),
        ("2130706433", "loopback"),
        ("0x7f000001", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("[::1]", "loopback"),
        ("[::ffff:127.0.0.1]", "loopback"),
        ("[64:ff9b::7f00:1]", "loopback"),
        ("10.0.0.1", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "network"),
        ("localhost", "name of this machine"),
        ("LocalHost.", "name of this machine"),
        ("metadata.google.internal", "name of this machine"),
    ] {
        let why = refusal(&web, format!("http://{host}:{port}/")).await;
        assert!(
            why.contains(word) && why.contains("web.extract.allow_private") != host.contains("metadata"),
            "{host}: {why}"
        );
    }
    let why = refusal(&web, "http://169.254.169.254/").await;
    assert!(why.contains("metadata") && !why.contains("allow_private"), "{why}");
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn redirects_to_private_addresses_are_refused() {
    let inside = Server::new(|_, stream| html(stream, "<p>secret"));
    let port = inside.address.port();
    // The first server is allowed by its own address; where it leads is not.
    let outside = Server::at("127.0.0.2:0", move |request, stream| match request.path() {
        "/loopback" => redirect(stream, &format!("http://127.0.0.1:{port}/")),
        "/metadata" => redirect(stream, "http://169.254.169.254/latest/meta-data/iam/"),
        "/name" => redirect(stream, &format!("http://localhost:{port}/")),
        "/mapped" => redirect(stream, &format!("http://[::ffff:7f00:1]:{port}/")),
        "/file" => redirect(stream, "file:///etc/passwd"),
        "/login" => redirect(stream, "http://bob:pw@example.org/"),
        "/twice" => redirect(stream, "/loopback"),
        _ => html(
            stream,
            &format!("<meta http-equiv=refresh content='0; url=http://127.0.0.1:{port}/'><p>Wait"),
        ),
    });
    let web = with_names(&Table::default(), &["127.0.0.2"]);
    for (path, word) in [
        ("/loopback", "loopback"),
        ("/metadata", "metadata"),
        ("/name", "name of this machine"),
        ("/mapped", "loopback"),
        ("/file", "only http and https"),
        ("/login", "leave them out"),
        ("/twice", "loopback"),
        ("/refresh", "loopback"),
    ] {
        let why = refusal(&web, outside.url(path)).await;
        assert!(why.contains(word), "{path}: {why}");
        assert!(!why.contains("pw"), "{path}: {why}");
    }
    assert_eq!(inside.requests().len(), 0);
}

#[tokio::test]
async fn names_are_judged_by_the_addresses_that_they_have() {
    let server = Server::new(|_, stream| html(stream, "<p>inside"));
    let port = server.address.port();
    let table = Table::of(&[
        ("inside.example", &[&["127.0.0.1"]]),
        ("six.example", &[&["::1", "fd00::1"]]),
        ("cloud.example", &[&["169.254.169.254"]]),
        ("wiki.corp", &[&["127.0.0.1"]]),
    ]);
    let web = with_names(&table, &[]);
    for (host, words) in [
        ("inside.example", ["127.0.0.1", "loopback"]),
        ("six.example", ["fd00::1", "private"]),
        ("cloud.example", ["169.254.169.254", "metadata"]),
        ("unknown.example", ["no such name", "check the name of the host"]),
    ] {
        let why = refusal(&web, format!("http://{host}:{port}/")).await;
        assert!(words.iter().all(|word| why.contains(word)), "{host}: {why}");
    }
    assert_eq!(server.requests().len(), 0);
    let web = with_names(&table, &["wiki.corp"]);
    assert_eq!(content(&web, format!("http://wiki.corp:{port}/")).await, "inside");
    let why = refusal(&web, format!("http://inside.example:{port}/")).await;
    assert!(why.contains("loopback"), "{why}");
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_judged_at_each_connection() {
    let inside = Server::new(|_, stream| html(stream, "<p>secret"));
    let port = inside.address.port();
    // The same port at another address of this machine, which is the only one allowed.
    let outside = Server::at(&format!("127.0.0.2:{port}"), |request, stream| match request.path() {
        "/again" => redirect(stream, "/page"),
        _ => html(stream, "<p>harmless"),
    });
    let table = Table::of(&[
        ("rebind.example", &[&["127.0.0.2"], &["127.0.0.1"]]),
        ("mixed.example", &[&["127.0.0.1", "127.0.0.2"]]),
    ]);
    let web = with_names(&table, &["127.0.0.2"]);
    let why = refusal(&web, format!("http://rebind.example:{port}/again")).await;
    assert!(why.contains("127.0.0.1, a loopback address"), "{why}");
    // Of two addresses the forbidden one is not even tried.
    assert_eq!(content(&web, format!("http://mixed.example:{port}/")).await, "harmless");
    assert_eq!((inside.requests().len(), outside.requests().len()), (0, 2));
}

#[tokio::test]
async fn what_is_allowed_can_be_read() {
    let server = Server::new(|_, stream| html(stream, "<p>allowed"));
    let port = server.address.port();
    assert_eq!(content(&open(|_| ()), server.url("/")).await, "allowed");
    let web = with_names(&Table::of(&[("localhost", &[&["127.0.0.1"]])]), &["localhost"]);
    assert_eq!(content(&web, format!("http://localhost:{port}/")).await, "allowed");
    let why = refusal(&web, server.url("/")).await;
    assert!(why.contains("loopback"), "{why}");
}
