//! Traces: spans for cells, tool calls and what comes before a cell, and their export over OTLP.
//!
//! The library makes `tracing` spans of the target [`TARGET`] and nothing more: an embedding program collects them with
//! whatever layer it has. The command line exports them where the usual `OTEL_*` variables say so ([`Export`]).

mod client;
mod export;
mod settings;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub use export::Export;
pub use settings::BadSetting;

use crate::environment::Environment;

/// The target of all spans that are exported.
pub const TARGET: &str = "talaria::trace";

/// The trace that a caller is in, as W3C headers say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `00-TRACE-PARENT-FLAGS`
    pub traceparent: String,
    /// What the systems that it came through keep in it; may be empty.
    pub tracestate: String,
}

impl TraceContext {
    /// The one that `TRACEPARENT` and `TRACESTATE` name.
    #[must_use]
    pub fn of_environment(environment: &Environment) -> Option<Self> {
        let text = |name: &str| Some(environment.filled(name)?.to_str()?.to_owned());
        Some(Self {
            traceparent: text("TRACEPARENT")?,
            tracestate: text("TRACESTATE").unwrap_or_default(),
        })
    }

    /// Makes a span a part of the caller's trace. A context that is none, and a program that exports nothing, leave it as
    /// it is. To be called before the span is entered.
    pub fn adopt(&self, span: &Span) {
        if span.is_disabled() {
            return;
        }
        let headers = HashMap::from([
            ("traceparent".to_owned(), self.traceparent.clone()),
            ("tracestate".to_owned(), self.tracestate.clone()),
        ]);
        let parent = TraceContextPropagator::new().extract(&headers);
        if parent.span().span_context().is_valid() {
            // Without a layer that exports there is nobody to tell.
            let _ = span.set_parent(parent);
        }
    }
}
