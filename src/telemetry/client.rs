//! How spans are sent: by the client that all services of a user are asked with.

use std::fmt;
use std::sync::Once;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tracing::info;

use crate::web::{Proxies, api_client};

/// Sends from the exporter's own thread, in a runtime of its own: it outlives the sessions.
pub(super) struct Client {
    runtime: Runtime,
    client: OnceCell<reqwest::Client>,
    proxies: Proxies,
    timeout: Duration,
    /// That the collector cannot be reached is said once.
    told: Once,
}

impl Client {
    pub(super) fn new(proxies: Proxies, timeout: Duration) -> std::io::Result<Self> {
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            client: OnceCell::new(),
            proxies,
            timeout,
            told: Once::new(),
        })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Made with the first request: reading the system's certificates takes a while.
        let made = || async { api_client(&self.proxies, HeaderMap::new()) };
        let client = self.client.get_or_try_init(made).await?;
        let answer = client
            .execute(request.try_into()?)
            .await
            .map_err(reqwest::Error::without_url)?;
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            headers.clone_from(answer.headers());
        }
        Ok(response.body(answer.bytes().await.map_err(reqwest::Error::without_url)?)?)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The thread that asks does nothing else and is in no runtime.
        let sent = self
            .runtime
            .block_on(async { tokio::time::timeout(self.timeout, self.send(request)).await })
            .unwrap_or_else(|_| Err("the collector does not answer".into()));
        let failure = match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the collector answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failure) = failure {
            self.told.call_once(|| info!("traces cannot be exported: {failure}"));
        }
        sent
    }
}
