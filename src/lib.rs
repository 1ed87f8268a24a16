//! Talaria is an execution broker for AI agents. An agent hands over one Python script and says where
//! it runs; the script calls the agent's tools, the calls come home to the broker, and only what the
//! script prints goes back to the model. The Python kernel stays alive between calls.
//!
//! This crate is the library behind the command line `talaria`. Linux only; a session runs on this machine, in a
//! container, or behind any command that starts programs somewhere.
//!
//! # A session with the built-in tools
//!
//! ```
//! use talaria_broker::broker::Broker;
//! use talaria_broker::environment::Environment;
//! use talaria_broker::session::{Cell, SessionOptions};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::new(4); // kernels kept alive at once
//! let options = SessionOptions::local(std::env::temp_dir(), Environment::of_this_process());
//! let session = broker.open(options)?;
//!
//! session.execute(Cell::new("x = 41")).await;
//! let outcome = session.execute(Cell::new("print(x + 1)")).await;
//! assert_eq!(outcome.output, "42\n");
//!
//! broker.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Your own tools
//!
//! Whoever implements [`tools::ToolHost`] answers the scripts' calls: give names, JSON schemas and docs,
//! and the module `hermes_tools` that scripts import is generated from them.
//!
//! ```
//! use async_trait::async_trait;
//! use serde_json::{Value, json};
//! use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};
//! # use talaria_broker::{broker::Broker, environment::Environment, session::{Cell, SessionOptions}};
//!
//! struct Greeter(Vec<ToolSpec>);
//!
//! #[async_trait]
//! impl ToolHost for Greeter {
//!     fn tools(&self) -> &[ToolSpec] {
//!         &self.0
//!     }
//!
//!     async fn call(&self, call: ToolCall, _context: &CallContext) -> Value {
//!         match call.arguments.get("name").and_then(Value::as_str) {
//!             Some(name) => json!({"greeting": format!("hello, {name}")}),
//!             None => json!({"error": "whom to greet? give a name"}),
//!         }
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greet = ToolSpec {
//!     name: "greet".into(),
//!     doc: "Greets somebody. Returns a dict: `greeting`.".into(),
//!     schema: json!({
//!         "type": "object",
//!         "properties": {"name": {"type": "string"}},
//!         "required": ["name"],
//!     }),
//! };
//! # let broker = Broker::new(1);
//! let mut options = SessionOptions::local(std::env::temp_dir(), Environment::of_this_process());
//! options.host = std::sync::Arc::new(Greeter(vec![greet]));
//! let session = broker.open(options)?;
//! let code = "from hermes_tools import greet\nprint(greet('Ada')['greeting'])";
//! assert_eq!(session.execute(Cell::new(code)).await.output, "hello, Ada\n");
//! # broker.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! [`session`] is what a caller uses, [`outcome`] what it gets back, [`tools`] what scripts can call.
//! Below them: [`kernel`] (a session's supervisor and its kernel), [`link`], [`socket_rpc`], [`file_rpc`] and [`alone_rpc`] (how
//! messages travel), [`backends`] (how a process starts on a target), [`web`] (search and pages). Above them: [`mcp`], for clients that speak that protocol. `ARCHITECTURE.md` has the map.

pub mod alone_rpc;
pub mod approval;
pub mod audit;
pub mod backends;
pub mod broker;
pub mod bundle;
pub mod config;
pub mod conformance;
pub mod environment;
pub mod file_rpc;
pub mod interpreter;
pub mod kernel;
pub mod limits;
pub mod link;
pub mod mcp;
pub mod outcome;
pub mod output;
pub mod place;
pub mod privacy;
pub mod schema;
pub mod session;
pub mod socket_rpc;
mod suggest;
pub mod target;
pub mod telemetry;
pub mod tools;
pub mod web;
