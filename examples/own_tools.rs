//! An agent that lends its own tools to its scripts.
//!
//! Run it with `cargo run --example own_tools`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use async_trait::async_trait;
use serde_json::{Value, json};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, SessionOptions};
use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};

/// A stock of parts, as an agent might keep it.
struct Warehouse {
    specs: Vec<ToolSpec>,
}

impl Warehouse {
    fn new() -> Self {
        Self {
            specs: vec![ToolSpec {
                name: "stock".to_owned(),
                doc: "How many of a part there are. Returns a dict: `part`, `count`.".to_owned(),
                schema: json!({
                    "type": "object",
                    "properties": {
                        "part": {"type": "string"},
                        "warehouse": {"type": "string", "default": "main"},
                    },
                    "required": ["part"],
                }),
            }],
        }
    }
}

#[async_trait]
impl ToolHost for Warehouse {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, call: ToolCall, _context: &CallContext) -> Value {
        match call.arguments.get("part").and_then(Value::as_str) {
            Some("bolt") => json!({"part": "bolt", "count": 1200}),
            Some("nut") => json!({"part": "nut", "count": 900}),
            other => json!({"error": format!("there is no part {other:?}; parts are bolt, nut")}),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = Broker::new(4);
    let mut options = SessionOptions::local(std::env::current_dir()?, Environment::of_this_process());
    options.host = std::sync::Arc::new(Warehouse::new());
    let session = broker.open(options)?;

    let first = session
        .execute(Cell::new(
            "from hermes_tools import stock\n\
             counts = {part: stock(part).get('count') for part in ('bolt', 'nut', 'washer')}\n\
             print(counts)",
        ))
        .await;
    let second = session
        .execute(Cell::new("print(sum(n for n in counts.values() if n))"))
        .await;
    for outcome in [first, second] {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    broker.close().await;
    Ok(())
}
