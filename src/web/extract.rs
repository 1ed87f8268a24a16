//! Reading pages, by whoever is configured.

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::client::Clients;
use super::guard;
use super::options::{Endpoint, Reader};
use super::providers::{Asking, read_page};
use super::{Page, Web, WebError};
use crate::config::ExtractProvider;

/// Pages that are read side by side.
const SIDE_BY_SIDE: usize = 8;

impl Web {
    /// Reads pages side by side; the results stand in the order of `urls`.
    pub async fn extract(&self, urls: &[String]) -> Vec<Result<Page, WebError>> {
        let reads: Vec<_> = urls.iter().map(|url| self.extract_one(url)).collect();
        stream::iter(reads).buffered(SIDE_BY_SIDE).collect().await
    }

    async fn extract_one(&self, url: &str) -> Result<Page, WebError> {
        let reader = self
            .options
            .extract
            .reader
            .as_ref()
            .map_err(|sentence| WebError(sentence.clone()))?;
        let url = parsed(url).map_err(WebError)?;
        let clients = self.clients().await?;
        let page = match reader {
            Reader::Builtin => self.reader.read(clients, url.clone()).await,
            Reader::Provider(provider, endpoint) => self.by_provider(clients, *provider, endpoint, &url).await,
        };
        page.map_err(WebError)
    }

    async fn by_provider(
        &self,
        clients: &Clients,
        provider: ExtractProvider,
        endpoint: &Endpoint,
        url: &Url,
    ) -> Result<Page, String> {
        // What is private is none of a provider's business, even if it could reach it.
        clients.guard.check(url)?;
        let timeout = self.options.extract.timeout;
        let deadline = Instant::now() + timeout;
        let asking = Asking {
            name: provider.as_str(),
            section: "web.extract",
            client: &clients.provider,
            proxy: clients.provider_proxy(&endpoint.url),
            endpoint,
            deadline,
        };
        timeout_at(deadline, read_page(provider, &asking, url))
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "{provider} did not answer within {} s (web.extract.timeout); try again later",
                    timeout.as_secs_f64()
                ))
            })
    }
}

/// An address as a script writes it.
fn parsed(text: &str) -> Result<Url, String> {
    let text = text.trim();
    match Url::parse(text) {
        Ok(url) if url.has_host() || url.scheme() == "file" => Ok(url),
        // `example.org:80/x` reads as a scheme.
        Ok(url) if !has_port(text, &url) => Err(guard::other_scheme(url.scheme())),
        _ if text.starts_with("//") && text.trim_matches('/').contains(char::is_alphanumeric) => Err(format!(
            "this is no whole address; write https://{}",
            shortened(text.trim_start_matches('/'))
        )),
        _ if text.starts_with(['/', '.', '~']) => Err(
            "this is a path, not an address; write one such as https://example.org/page (files are read with read_file())"
                .to_owned(),
        ),
        _ if !text.is_empty() && !text.contains("://") && Url::parse(&format!("https://{text}")).is_ok() => {
            Err(format!("this is no whole address; write https://{}", shortened(text)))
        }
        Ok(_) => Err("this is no address; write one such as https://example.org/page".to_owned()),
        Err(error) => Err(format!(
            "this is no address ({error}); write one such as https://example.org/page"
        )),
    }
}

/// Schemes of what no server gives.
const NO_SERVER: [&str; 8] = [
    "about",
    "blob",
    "data",
    "javascript",
    "mailto",
    "tel",
    "urn",
    "vbscript",
];

/// Whether what reads as a scheme is a host, and the rest begins with its port.
fn has_port(text: &str, url: &Url) -> bool {
    let rest = text.split_once(':').map_or("", |(_, rest)| rest);
    let port = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_number && !NO_SERVER.contains(&url.scheme())
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_says_how_one_is_written() {
        for (text, word) in [
            ("", "such as https://example.org/page"),
            ("example.org/a", "write https://example.org/a"),
            ("example.org:80/a", "write https://example.org:80/a"),
            ("localhost:80", "write https://localhost:80"),
            ("/a/b", "a path"),
            ("//10.0.0.1/x", "write https://10.0.0.1/x"),
            ("//", "a path"),
            ("javascript:1", "this one is javascript:; "),
            ("mailto:a@b.org", "this one is mailto:; "),
            ("data:text/html,x", "this one is data:; "),
            ("http://", "no address"),
            ("http://[1", "no address"),
        ] {
            let error = parsed(text).map(|url| url.to_string());
            assert!(
                error.as_ref().is_err_and(|error| error.contains(word)),
                "{text}: {error:?}"
            );
            assert!(!error.is_err_and(|error| error.contains("https:///")), "{text}");
        }
        assert!(parsed(" https://example.org/ü ").is_ok());
    }
}
