//! Who answers the calls of the suite: the built-in tools, and beside them a few whose answers a case knows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::tools::{BuiltinTools, CallContext, ToolCall, ToolHost, ToolSpec};

/// The tools of the contract.
pub(super) const BUILTIN: &[&str] = &[
    "read_file",
    "write_file",
    "search_files",
    "patch",
    "terminal",
    "web_search",
    "web_extract",
];

/// The tools of the suite itself.
pub(super) const PROBES: &[&str] = &["echo", "fail", "meet", "wait"];

/// The longest that a call waits for others.
const MEETING: Duration = Duration::from_secs(60);

/// Answers the built-in tools as ever, and `echo` (what it is given), `fail` (an error), `meet` (once as many calls are
/// open as its argument says) and `wait` (never).
pub(super) struct SuiteTools {
    builtin: BuiltinTools,
    specs: Vec<ToolSpec>,
    made: Mutex<BTreeMap<String, u64>>,
    waiting: Mutex<u64>,
    met: Notify,
}

impl SuiteTools {
    pub(super) fn new(builtin: BuiltinTools) -> Self {
        let probe = |name: &&str| ToolSpec {
            name: (*name).to_owned(),
            doc: "Belongs to the suite that checks a target.".to_owned(),
            schema: json!({"type": "object", "properties": {"value": {"default": null}, "callers": {"type": "integer", "default": 1}}}),
        };
        Self {
            specs: builtin
                .tools()
                .iter()
                .cloned()
                .chain(PROBES.iter().map(probe))
                .collect(),
            builtin,
            made: Mutex::default(),
            waiting: Mutex::default(),
            met: Notify::new(),
        }
    }

    /// How often a tool of the suite was called since the last case began.
    pub(super) fn calls(&self, name: &str) -> u64 {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.get(name).copied().unwrap_or_default()
    }

    /// Forgets what was called.
    pub(super) fn begin(&self) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    /// Waits until as many are here; whether they came.
    async fn meet(&self, callers: u64) -> bool {
        let all_are_here = self.met.notified();
        tokio::pin!(all_are_here);
        all_are_here.as_mut().enable();
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            *waiting += 1;
            if *waiting >= callers {
                self.met.notify_waiters();
            }
        }
        tokio::time::timeout(MEETING, all_are_here).await.is_ok()
    }
}

#[async_trait]
impl ToolHost for SuiteTools {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, mut call: ToolCall, context: &CallContext) -> Value {
        if !PROBES.contains(&call.name.as_str()) {
            return self.builtin.call(call, context).await;
        }
        {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            *made.entry(call.name.clone()).or_default() += 1;
        }
        let value = call.arguments.remove("value").unwrap_or(Value::Null);
        match call.name.as_str() {
            "fail" => json!({"error": "it failed, as asked; call another tool"}),
            "wait" => std::future::pending().await,
            "meet" => {
                let callers = call.arguments.get("callers").and_then(Value::as_u64).unwrap_or(1);
                if self.meet(callers).await {
                    json!({"value": value})
                } else {
                    json!({"error": "the calls that were to be open at once did not all come; the target does not carry them side by side"})
                }
            }
            _ => json!({"value": value}),
        }
    }

    fn passes_answers_on(&self) -> bool {
        self.builtin.passes_answers_on()
    }
}
