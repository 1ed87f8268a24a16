//! Tools that behave as no tool should, and a place where calls meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};
use tokio::sync::Barrier;

/// Answers `panics`, `blocks`, `hangs`, `meet`, `deep`, `big` and `plain`.
pub(crate) struct OddTools {
    specs: Vec<ToolSpec>,
    meeting: Barrier,
    /// Calls begun, by whatever tool.
    pub(crate) begun: AtomicU64,
    /// Calls of `hangs` that were given up.
    pub(crate) dropped: AtomicU64,
}

/// Counts the end of a call that never returns.
struct Dropped<'a>(&'a AtomicU64);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl OddTools {
    /// `meet` answers once so many calls of it are open.
    pub(crate) fn meeting(callers: usize) -> Arc<Self> {
        let names = ["panics", "blocks", "hangs", "meet", "deep", "big", "plain"];
        let spec = |name: &str| ToolSpec {
            name: name.to_owned(),
            doc: "Behaves oddly.".to_owned(),
            schema: json!({"type": "object", "properties": {"value": {"default": null}}}),
        };
        Arc::new(Self {
            specs: names.map(spec).to_vec(),
            meeting: Barrier::new(callers),
            begun: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }
}

#[async_trait]
impl ToolHost for OddTools {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, mut call: ToolCall, _context: &CallContext) -> Value {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let value = call.arguments.remove("value").unwrap_or(Value::Null);
        match call.name.as_str() {
            // Without the message of the hook.
            "panics" => std::panic::resume_unwind(Box::new(format!("the host broke: {value}"))),
            "blocks" => {
                std::thread::sleep(Duration::from_secs_f64(value.as_f64().unwrap()));
                json!({"value": "late"})
            }
            "hangs" => {
                let _dropped = Dropped(&self.dropped);
                std::future::pending().await
            }
            "meet" => {
                self.meeting.wait().await;
                json!({"value": value})
            }
            "deep" => (0..value.as_u64().unwrap()).fold(json!(1), |inner, _| Value::Array(vec![inner])),
            "big" => json!({"value": "x".repeat(usize::try_from(value.as_u64().unwrap()).unwrap())}),
            _ => value,
        }
    }
}
