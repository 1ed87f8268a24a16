//! A stand-in of a test's own, and a broker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::backends::modal::{ModalImage, ModalOptions, ModalSandbox, ModalSources};
use talaria_broker::backends::{Backend, BackendError, Progress, Silent, Target};
use talaria_broker::broker::Broker;
use talaria_broker::environment::{Environment, Secret};
use talaria_broker::session::SessionOptions;
use talaria_broker::web::Proxies;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::sessions::{LIMIT, Live, broker, close, limited, wait};
use crate::stand_in::StandIn;

/// The target as a user writes it, and its image.
pub(crate) const TARGET: &str = "modal:python:3.12";
const IMAGE: &str = "python:3.12";

/// All of it goes when this is dropped, whatever became of the test.
pub(crate) struct Rig {
    pub(crate) runtime: Runtime,
    pub(crate) broker: Broker,
    pub(crate) modal: StandIn,
    /// What sandboxes see of this machine.
    pub(crate) shared: TempDir,
}

impl Rig {
    /// `None` where there is no stand-in.
    pub(crate) fn new() -> Option<Self> {
        if !crate::stand_in::can_be() {
            return None;
        }
        let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (runtime, broker) = broker();
        Some(Self {
            runtime,
            broker,
            modal: StandIn::start(shared.path()),
            shared,
        })
    }

    /// Whose account is used.
    pub(crate) fn sources(&self) -> ModalSources {
        ModalSources {
            patience: Some(Duration::from_secs(1)),
            ..ModalSources::of(&Environment::from_iter(self.modal.variables()), Proxies::default())
        }
    }

    pub(crate) fn options(&self) -> ModalOptions {
        ModalOptions::new(TARGET, IMAGE, self.sources())
    }

    /// Options of a session on a sandbox that is made like this.
    pub(crate) fn session_on(&self, options: ModalOptions) -> SessionOptions {
        self.session_by(Arc::new(ModalImage::new(options)))
    }

    pub(crate) fn session_by(&self, backend: Arc<dyn Backend>) -> SessionOptions {
        limited(SessionOptions::elsewhere(TARGET, backend, Environment::default()))
    }

    /// A session on a sandbox of its own.
    pub(crate) fn session(&self) -> Live<'_> {
        self.session_with(|_| ())
    }

    pub(crate) fn session_with(&self, change: impl FnOnce(&mut SessionOptions)) -> Live<'_> {
        let mut options = self.session_on(self.options());
        change(&mut options);
        Live::open(&self.broker, &self.runtime, options)
    }

    /// Makes a sandbox.
    pub(crate) fn open(&self, options: ModalOptions) -> Result<Arc<dyn Target>, BackendError> {
        self.open_with(options, &Silent)
    }

    pub(crate) fn open_with(
        &self,
        options: ModalOptions,
        progress: &dyn Progress,
    ) -> Result<Arc<dyn Target>, BackendError> {
        self.wait_for(ModalImage::new(options).open(progress))
    }

    /// Finds a sandbox that exists.
    pub(crate) fn attach(&self, id: &str) -> Result<Arc<dyn Target>, BackendError> {
        let backend = ModalSandbox::new(format!("modal://{id}"), id, self.sources());
        self.wait_for(backend.open(&Silent))
    }

    /// Waits for something that has an end.
    pub(crate) fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { tokio::time::timeout(LIMIT, future).await })
            .expect("it hangs")
    }

    /// What a sandbox cannot be made with: the sentence.
    pub(crate) fn refusal(&self, change: impl FnOnce(&mut ModalOptions)) -> String {
        let mut options = self.options();
        change(&mut options);
        match self.open(options) {
            Ok(_) => panic!("a sandbox was made"),
            Err(error) => error.to_string(),
        }
    }

    /// Ends all sessions; no sandbox may be left.
    pub(crate) fn end(self) {
        close(&self.runtime, &self.broker);
        self.modal.faults(json!([]));
        wait("the sandboxes to end", || self.modal.alive().is_empty());
    }
}

impl StandIn {
    /// From now on these go wrong (`tests/rigs/modal/faults.py`).
    pub(crate) fn faults(&self, faults: Value) {
        self.ask("POST", "/faults", Some(faults));
    }

    /// What was logged of a method.
    pub(crate) fn calls(&self, method: &str) -> Vec<Value> {
        let calls = self.ask("GET", &format!("/calls?method={method}"), None);
        calls.as_array().unwrap().clone()
    }

    /// The sandboxes that were made, alive or not.
    pub(crate) fn sandboxes(&self) -> Vec<Value> {
        self.ask("GET", "/sandboxes", None).as_array().unwrap().clone()
    }

    /// The ids of those that live.
    pub(crate) fn alive(&self) -> Vec<String> {
        let id = |sandbox: Value| sandbox["id"].as_str().unwrap().to_owned();
        self.living().into_iter().map(id).collect()
    }

    /// Ends a sandbox in this way.
    pub(crate) fn end(&self, sandbox: &str, how: &str) {
        self.ask("POST", &format!("/sandboxes/{sandbox}/end"), Some(json!({"how": how})));
    }
}

/// A fault: this method fails with this code, so often.
pub(crate) fn fails(method: &str, code: &str, count: u32) -> Value {
    json!({"fault": "status", "method": method, "code": code, "count": count})
}

/// Sources with another token.
pub(crate) fn with_token(sources: &ModalSources, id: &str, secret: &str) -> ModalSources {
    ModalSources {
        token_id: Some(Secret::new(id)),
        token_secret: Some(Secret::new(secret)),
        ..sources.clone()
    }
}

/// A short while.
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
