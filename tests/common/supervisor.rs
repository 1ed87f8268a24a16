//! A session's supervisor on this machine, whose worker does file operations for tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use serde_json::Value;
use talaria_broker::backends::local::Local;
use talaria_broker::environment::Environment;
use talaria_broker::kernel::Agent;
use talaria_broker::link::{CallHandler, IncomingCall};
use talaria_broker::socket_rpc::{SocketLink, Start, Transport};
use tokio::runtime::Runtime;

/// Nobody calls tools.
struct NoCalls;

#[async_trait]
impl CallHandler for NoCalls {
    async fn handle(&self, _: IncomingCall) -> Value {
        Value::Null
    }
}

fn python() -> PathBuf {
    let path = std::env::var_os("TALARIA_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(path)
        .args(["-I", "-S", "-c", "import sys; print(sys.executable)"])
        .output()
        .unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// What drives all of them.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap())
}

/// Starts one.
pub(crate) async fn start() -> Agent {
    let bases = [std::env::temp_dir()];
    let start = Start {
        target: &Local,
        python: &python(),
        bases: &bases,
        cache: None,
        environment: Environment::of_this_process()
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        folder: None,
        transport: Transport::Unix,
        handler: Arc::new(NoCalls),
    };
    Agent::new(Arc::new(SocketLink::start(start).await.unwrap()))
}
