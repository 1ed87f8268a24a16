//! Reading a page: fetched here, and brought into a text.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::charset::decode;
use super::client::Clients;
use super::fetch::{Fetched, fetch, no_text};
use super::html::{self, Readable};
use super::kind::{ContentType, Kind, sniff};
use super::options::ExtractOptions;
use super::{Page, pdf, thread};

/// The stack of a thread that reads a page; the depth of its tree is bounded.
const STACK: usize = 16 * 1024 * 1024;

/// Reads pages that this process fetches.
pub(super) struct PageReader {
    options: ExtractOptions,
    /// Pages that are worked on at once; work that hangs keeps its place.
    workers: Arc<Semaphore>,
}

impl PageReader {
    pub(super) fn new(options: ExtractOptions) -> Self {
        Self {
            options,
            workers: Arc::new(Semaphore::new(4)),
        }
    }

    /// # Errors
    /// A sentence that reads after the page's address.
    pub(super) async fn read(&self, clients: &Clients, url: Url) -> Result<Page, String> {
        let deadline = Instant::now() + self.options.timeout;
        let seconds = self.options.timeout.as_secs_f64();
        timeout_at(deadline, self.read_until(clients, url, deadline))
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "it did not come within {seconds} s (web.extract.timeout); try again later, or another page"
                ))
            })
    }

    async fn read_until(&self, clients: &Clients, url: Url, deadline: Instant) -> Result<Page, String> {
        let cap = self.options.max_bytes;
        let fetched = fetch(clients, url, cap, deadline).await?;
        let (page, refresh) = self.text_of(fetched, deadline).await?;
        let Some(next) = refresh else {
            return Ok(page);
        };
        // Once: pages that send their reader round and round are read where they are.
        let (page, _) = self
            .text_of(fetch(clients, next, cap, deadline).await?, deadline)
            .await?;
        Ok(page)
    }

    /// The text of what was fetched, and where the page sends its reader by itself.
    async fn text_of(&self, fetched: Fetched, deadline: Instant) -> Result<(Page, Option<Url>), String> {
        let Fetched {
            url,
            content_type,
            body,
        } = fetched;
        let said = ContentType::parse(content_type.as_deref());
        let size = body.bytes.len();
        let kind = sniff(said.kind(), &body.bytes);
        let charset = said.charset.map(str::to_owned);
        let mut refresh = None;
        let (title, mut content) = match kind {
            Kind::Html => {
                let at = url.clone();
                let bytes = body.bytes;
                let page = self
                    .work(move || html::read(&decode(&bytes, charset.as_deref(), true), &at))
                    .await?;
                refresh = elsewhere(&page, &url);
                if page.markdown.is_empty() && refresh.is_none() {
                    return Err(
                        "the page holds no text (it is made by scripts, perhaps); try another source".to_owned(),
                    );
                }
                (page.title, page.markdown)
            }
            Kind::Pdf if body.is_cut => {
                return Err(format!(
                    "it is a PDF of more than {size} bytes (web.extract.max_bytes); download it with terminal()"
                ));
            }
            Kind::Pdf => {
                let left = deadline.saturating_duration_since(Instant::now());
                // A little before the page's own time, so that the error tells which part took it.
                let left = left.saturating_sub(Duration::from_millis(200));
                let _place = self.workers.acquire().await.map_err(|error| error.to_string())?;
                let (title, text) = pdf::text(self.options.pdf_reader.as_deref(), body.bytes, left).await?;
                (if title.is_empty() { file_name(&url) } else { title }, text)
            }
            Kind::Text | Kind::Unknown => (file_name(&url), decode(&body.bytes, charset.as_deref(), false)),
            Kind::Binary(what) => {
                let size = (!body.is_cut).then_some(size as u64);
                return Err(no_text(what, &said.essence, size));
            }
        };
        if body.is_cut {
            content.push_str(&format!(
                "\n\n[The page is longer than {size} bytes (web.extract.max_bytes); the rest was not fetched.]"
            ));
        }
        Ok((Page { title, content }, refresh))
    }

    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        let place = self
            .workers
            .clone()
            .acquire_owned()
            .await
            .map_err(|error| error.to_string())?;
        let done = thread::run("page", STACK, move || {
            let _place = place;
            work()
        });
        done.await.map_err(|error| format!("the page cannot be read: {error}"))
    }
}

/// Where a page sends its reader, if that is another page.
fn elsewhere(page: &Readable, url: &Url) -> Option<Url> {
    let mut next = url.join(page.refresh.as_deref()?).ok()?;
    next.set_fragment(None);
    (next != *url).then_some(next)
}

/// The last part of an address's path, as the title of a file.
fn file_name(url: &Url) -> String {
    url.path_segments()
        .and_then(|mut parts| parts.next_back().map(str::to_owned))
        .unwrap_or_default()
}
