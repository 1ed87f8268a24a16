//! Tools whose answers and calls a test knows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use talaria_broker::tools::{BuiltinTools, CallContext, ToolCall, ToolHost, ToolSpec};

/// Answers `echo`, `slow`, `count` and `fail`, and keeps what it was asked.
pub(crate) struct TestTools {
    specs: Vec<ToolSpec>,
    calls: Mutex<Vec<ToolCall>>,
}

impl TestTools {
    pub(crate) fn new() -> Arc<Self> {
        let spec = |name: &str, doc: &str, properties: Value, required: &[&str]| ToolSpec {
            name: name.to_owned(),
            doc: doc.to_owned(),
            schema: json!({"type": "object", "properties": properties, "required": required}),
        };
        Arc::new(Self {
            specs: vec![
                spec("echo", "Gives back what it is given.", json!({"value": {}}), &["value"]),
                spec(
                    "slow",
                    "Answers after a while.",
                    json!({"seconds": {"type": "number"}, "value": {"default": null}}),
                    &["seconds"],
                ),
                spec("count", "Says how often it was called.", json!({}), &[]),
                spec("fail", "Always fails.", json!({}), &[]),
            ],
            calls: Mutex::default(),
        })
    }

    /// Arguments of every call of one tool so far.
    pub(crate) fn calls(&self, name: &str) -> Vec<Map<String, Value>> {
        let calls = self.calls.lock().unwrap();
        let of_name = calls.iter().filter(|call| call.name == name);
        of_name.map(|call| call.arguments.clone()).collect()
    }
}

#[async_trait]
impl ToolHost for TestTools {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, mut call: ToolCall, _context: &CallContext) -> Value {
        self.calls.lock().unwrap().push(call.clone());
        let value = call.arguments.remove("value").unwrap_or(Value::Null);
        match call.name.as_str() {
            "slow" => {
                let seconds = call.arguments["seconds"].as_f64().unwrap();
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                json!({"value": value})
            }
            "count" => json!({"count": self.calls("count").len()}),
            "fail" => json!({"error": "it failed, as asked; call another tool"}),
            _ => json!({"value": value}),
        }
    }
}

/// The built-in tools, and what they answered; or, not passing that on, something else.
pub(crate) struct Watched {
    tools: BuiltinTools,
    passes_on: bool,
    calls: Mutex<Vec<(String, Option<Value>)>>,
}

impl Watched {
    pub(crate) fn new(passes_on: bool) -> Arc<Self> {
        Arc::new(Self {
            tools: BuiltinTools::new(None),
            passes_on,
            calls: Mutex::default(),
        })
    }

    /// The calls in the order in which they began, and their answers.
    pub(crate) fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.calls.lock().unwrap();
        let done = calls.iter().map(|(call, answer)| (call.clone(), answer.clone()));
        done.map(|(call, answer)| (call, answer.expect("an answer"))).collect()
    }
}

#[async_trait]
impl ToolHost for Watched {
    fn tools(&self) -> &[ToolSpec] {
        self.tools.tools()
    }

    async fn call(&self, call: ToolCall, context: &CallContext) -> Value {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push((format!("{call:?}"), None));
            calls.len() - 1
        };
        let answer = self.tools.call(call, context).await;
        self.calls.lock().unwrap()[number].1 = Some(answer.clone());
        if self.passes_on {
            answer
        } else {
            json!({"error": "withheld"})
        }
    }

    fn passes_answers_on(&self) -> bool {
        self.passes_on
    }
}
