//! The web as the tools `web_search` and `web_extract` see it: search through a provider, and pages as text.
//!
//! All of it happens in the broker, never on a target. Where a script may name any address, the network around the broker
//! is kept out of its reach: [`WebOptions`] says which private hosts are allowed, and every other address is refused when
//! a connection to it would be made, however a name or a redirect led to it. Providers are the user's own choice and may
//! be anywhere.
//!
//! | part | does |
//! | --- | --- |
//! | `search`, `extract`, `providers/` | ask a provider, each in its own way; one shape of result |
//! | `fetch`, `client`, `guard`, `address` | fetch a page: redirects, proxies, what may be connected to |
//! | `failure`, `body` | what is tried again; how much of an answer is read |
//! | `page`, `kind`, `charset`, `html`, `content`, `plain`, `pdf` | from bytes to text |

mod address;
mod body;
mod charset;
mod client;
mod content;
mod extract;
mod failure;
mod fetch;
mod guard;
mod html;
mod kind;
mod options;
mod page;
mod pdf;
mod plain;
mod providers;
mod search;
mod thread;

use tokio::sync::OnceCell;

use client::Clients;
pub(crate) use client::api_client;
pub use options::{
    Endpoint, ExtractOptions, Key, Lookup, NO_PROVIDER, Names, Proxies, Reader, SearchOptions, Unusable, WebOptions,
};
use page::PageReader;
pub use pdf::{PDF_VERB, read_standard_input};

/// Why something on the web was not found or read: a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WebError(pub String);

/// One result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its address.
    pub url: String,
    /// The page's title.
    pub title: String,
    /// A sentence or two from it, or about it.
    pub description: String,
}

/// A page as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its title; empty where it has none.
    pub title: String,
    /// Its content as markdown, or the text itself of what is no page of HTML.
    pub content: String,
}

/// Searches, and reads pages.
pub struct Web {
    options: WebOptions,
    reader: PageReader,
    clients: OnceCell<Clients>,
}

impl Web {
    /// Nothing is opened or read before the first request.
    #[must_use]
    pub fn new(options: WebOptions) -> Self {
        Self {
            reader: PageReader::new(options.extract.clone()),
            options,
            clients: OnceCell::new(),
        }
    }

    /// What this works with.
    #[must_use]
    pub fn options(&self) -> &WebOptions {
        &self.options
    }

    async fn clients(&self) -> Result<&Clients, WebError> {
        self.clients
            .get_or_try_init(|| async {
                let options = self.options.clone();
                thread::run("web", 1024 * 1024, move || Clients::new(&options))
                    .await
                    .map_err(|error| error.to_string())?
            })
            .await
            .map_err(WebError)
    }
}
