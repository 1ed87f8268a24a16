//! A search, through whichever provider.

use std::collections::HashSet;

use tokio::time::{Instant, timeout_at};

use super::providers::{Asking, search_pages};
use super::{Hit, Web, WebError};

impl Web {
    /// Searches; at most `limit` results, fewer where the provider has no more.
    ///
    /// # Errors
    /// When no provider is configured, and when it does not answer as it should.
    pub async fn search(&self, query: &str, limit: usize) -> Result<Vec<Hit>, WebError> {
        let options = self
            .options
            .search
            .as_ref()
            .map_err(|sentence| WebError(sentence.clone()))?;
        let clients = self.clients().await?;
        let deadline = Instant::now() + options.timeout;
        let asking = Asking {
            name: options.provider.as_str(),
            section: "web.search",
            client: &clients.provider,
            proxy: clients.provider_proxy(&options.endpoint.url),
            endpoint: &options.endpoint,
            deadline,
        };
        let found = timeout_at(deadline, search_pages(options.provider, &asking, query, limit)).await;
        let found = found.unwrap_or_else(|_| {
            Err(format!(
                "{} did not answer within {} s (web.search.timeout); try again later",
                options.provider,
                options.timeout.as_secs_f64()
            ))
        });
        let mut seen = HashSet::new();
        Ok(found
            .map_err(WebError)?
            .into_iter()
            .filter(|hit| !hit.url.is_empty() && seen.insert(hit.url.clone()))
            .take(limit)
            .collect())
    }
}
