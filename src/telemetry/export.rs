//! Spans on their way to a collector.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::TARGET;
use super::client::Client;
use super::settings::{BadSetting, Settings};
use crate::environment::Environment;
use crate::web::Proxies;

/// The most that sending the last spans may take at the end.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Spans that are exported. A thread sends them; nothing waits for it but the end.
pub struct Export {
    provider: SdkTracerProvider,
}

impl Export {
    /// Begins, where the variables ask for it.
    ///
    /// # Errors
    /// What they ask for cannot be done.
    pub fn start(environment: &Environment, proxies: Proxies) -> Result<Option<Self>, BadSetting> {
        let Some(settings) = Settings::of(environment)? else {
            return Ok(None);
        };
        let bad = |error: &dyn std::fmt::Display| BadSetting::because(error);
        let client = Client::new(proxies, settings.timeout).map_err(|error| bad(&error))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(settings.endpoint)
            .with_timeout(settings.timeout)
            .with_headers(settings.headers)
            // Spans are not worth waiting for at the end.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| bad(&error))?;
        let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let resource = if settings.is_unnamed {
            resource.with_service_name("talaria")
        } else {
            resource
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Some(Self { provider }))
    }

    /// What takes the spans of a program up.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(&self) -> impl Layer<S> + Send + Sync + 'static {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("talaria"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO))
    }

    /// Sends what is left, for two seconds at most.
    pub fn end(self) {
        // A collector that does not answer has been told of.
        let _ = self.provider.shutdown_with_timeout(LAST_SPANS);
    }
}
