//! The web tools against servers of the tests' own, over real connections.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod faults;
mod pages;
mod providers;
mod proxies;
mod refusals;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use talaria_broker::web::{Page, Web, WebOptions};

/// A web in which the servers of the tests may be read.
fn open(change: impl FnOnce(&mut WebOptions)) -> Web {
    let mut options = WebOptions::default();
    options.extract.allow_private = vec!["127.0.0.0/8".parse().unwrap()];
    options.extract.timeout = Duration::from_secs(30);
    options.extract.pdf_reader = Some(PathBuf::from(env!("CARGO_BIN_EXE_talaria")));
    change(&mut options);
    Web::new(options)
}

/// One page, or why not; never for longer than a test may hang.
async fn read(web: &Web, url: impl Into<String>) -> Result<Page, String> {
    let urls = [url.into()];
    let read = tokio::time::timeout(Duration::from_secs(60), web.extract(&urls));
    let mut pages = read.await.unwrap();
    assert_eq!(pages.len(), 1);
    pages.remove(0).map_err(|error| error.to_string())
}

/// Its text.
async fn content(web: &Web, url: impl Into<String>) -> String {
    read(web, url).await.unwrap().content
}

/// Why it cannot be read.
async fn refusal(web: &Web, url: impl Into<String>) -> String {
    read(web, url).await.unwrap_err()
}
