//! What of ours is alive elsewhere: containers on an engine, sandboxes of a Modal account, and those behind the gateway to
//! Modal that were made on this machine.

use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::backends::BackendError;
use talaria_broker::backends::docker::ours::{self, OurContainer};
use talaria_broker::backends::docker::{Engine, EngineSources};
use talaria_broker::backends::modal::gateway::GatewayRecords;
use talaria_broker::backends::modal::{ModalAccount, ModalSources, OurSandbox};
use talaria_broker::backends::owner::{Fate, Owner};
use talaria_broker::environment::Environment;
use talaria_broker::session::{gateway_sources, proxies};

use super::{exit, say};

/// Where things of ours may be, as far as it can be reached.
pub(super) struct Holdings {
    engine: Option<Engine>,
    account: Option<ModalAccount>,
    gateway: Option<GatewayRecords>,
    /// Whether something is said to be there and cannot be reached, or does not answer.
    has_failed: bool,
}

/// One of them.
pub(super) enum Holding {
    /// A container.
    Container(OurContainer),
    /// A sandbox.
    Sandbox(OurSandbox),
    /// One behind the gateway.
    Managed(OurSandbox),
}

impl Holdings {
    /// Reaches all places that are used here; says which cannot be reached.
    pub(super) async fn open(environment: &Environment) -> Self {
        let mut all = Self {
            engine: None,
            account: None,
            gateway: GatewayRecords::open(&gateway_sources(environment)),
            has_failed: false,
        };
        let sources = EngineSources::of(environment);
        if sources.is_named() || sources.sockets.iter().any(|socket| socket.exists()) {
            let engine = sources.connect("docker").await;
            all.engine = all.take(engine);
        }
        let sources = ModalSources::of(environment, proxies(environment));
        if sources.are_there() {
            let account = ModalAccount::open(&sources).await;
            all.account = all.take(account);
        }
        if all.engine.is_none() && all.account.is_none() && all.gateway.is_none() && !all.has_failed {
            say(
                "note: there is no container engine on this machine, DOCKER_HOST names none, and there is no token for Modal",
            );
        }
        all
    }

    /// All of them, the oldest of each place first.
    pub(super) async fn list(&mut self) -> Vec<Holding> {
        let mut found = Vec::new();
        if let Some(engine) = &self.engine {
            let containers = ours::list(engine).await;
            found.extend(self.take(containers).into_iter().flatten().map(Holding::Container));
        }
        if let Some(account) = &self.account {
            let sandboxes = account.list().await;
            found.extend(self.take(sandboxes).into_iter().flatten().map(Holding::Sandbox));
        }
        let managed = self.gateway.as_ref().map(GatewayRecords::list);
        found.extend(managed.into_iter().flatten().map(Holding::Managed));
        found
    }

    /// Removes one.
    ///
    /// # Errors
    /// When whoever holds it refuses.
    pub(super) async fn remove(&self, holding: &Holding) -> Result<(), BackendError> {
        match (holding, &self.engine, &self.account, &self.gateway) {
            (Holding::Container(container), Some(engine), _, _) => ours::remove(engine, &container.id).await,
            (Holding::Sandbox(sandbox), _, Some(account), _) => account.terminate(&sandbox.id).await,
            (Holding::Managed(sandbox), _, _, Some(gateway)) => gateway.terminate(&sandbox.id).await,
            _ => Ok(()),
        }
    }

    /// The places that were reached, to stand after "nothing of ours is"; `None` where there are none.
    pub(super) fn places(&self) -> Option<String> {
        let engine = self.engine.as_ref();
        let engine = engine.map(|engine| format!("on the container engine at {}", engine.address));
        let account = self.account.as_ref();
        let account = account.map(|account| format!("at Modal ({})", account.server()));
        let gateway = self.gateway.as_ref();
        let gateway = gateway.map(|gateway| format!("behind the gateway at {}", gateway.server()));
        let places: Vec<String> = engine.into_iter().chain(account).chain(gateway).collect();
        (!places.is_empty()).then(|| places.join(" or "))
    }

    /// What says where a holding is, as a JSON object does.
    pub(super) fn object(&self, holding: &Holding) -> Value {
        let owner = holding.owner();
        let mut object = match holding {
            Holding::Container(container) => json!({
                "kind": "container",
                "engine": self.engine.as_ref().map(|engine| &engine.address.host),
                "id": container.id,
                "name": container.name,
                "image": container.image,
                "state": container.state,
                "age_seconds": container.age.as_secs(),
                "version": container.version,
            }),
            Holding::Sandbox(sandbox) | Holding::Managed(sandbox) => json!({
                "kind": "sandbox",
                "server": match holding {
                    Holding::Managed(_) => self.gateway.as_ref().map(GatewayRecords::server),
                    _ => self.account.as_ref().map(ModalAccount::server),
                },
                "id": sandbox.id,
                "name": sandbox.name,
                "state": holding.state(),
                "kept": sandbox.is_kept,
                "age_seconds": sandbox.age.as_secs(),
                "version": sandbox.version,
            }),
        };
        object["owner"] = json!({
            "host": owner.map(|owner| &owner.host),
            "pid": owner.map(|owner| owner.pid),
            "state": holding.fate().to_string(),
        });
        object["orphan"] = json!(holding.is_orphan());
        object
    }

    /// The exit code of a verb that did all it could with them.
    pub(super) fn code(&self) -> u8 {
        if self.has_failed { exit::BROKER } else { 0 }
    }

    /// What somebody answered; says why where nobody did.
    fn take<T>(&mut self, answer: Result<T, BackendError>) -> Option<T> {
        answer
            .inspect_err(|error| {
                say(&format!("error: {error}"));
                self.has_failed = true;
            })
            .ok()
    }
}

impl Holding {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Container(container) => &container.name,
            // By its name it can be found only as long as it runs, and at Modal ids are what tools take.
            Self::Sandbox(sandbox) | Self::Managed(sandbox) => &sandbox.id,
        }
    }

    /// What it was made from, or what it is.
    pub(super) fn what(&self) -> &str {
        match self {
            Self::Container(container) => &container.image,
            Self::Sandbox(_) => "Modal sandbox",
            Self::Managed(_) => "Modal sandbox (gateway)",
        }
    }

    pub(super) fn state(&self) -> &str {
        match self {
            Self::Container(container) => &container.state,
            Self::Sandbox(sandbox) | Self::Managed(sandbox) if sandbox.is_kept => "kept",
            Self::Sandbox(_) => "running",
            // The gateway does not say what has ended by itself.
            Self::Managed(sandbox) if sandbox.fate() == Fate::Alive => "running",
            Self::Managed(_) => "unknown",
        }
    }

    pub(super) fn age(&self) -> Duration {
        match self {
            Self::Container(container) => container.age,
            Self::Sandbox(sandbox) | Self::Managed(sandbox) => sandbox.age,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Container(container) => container.owner.as_ref(),
            Self::Sandbox(sandbox) | Self::Managed(sandbox) => sandbox.owner.as_ref(),
        }
    }

    fn fate(&self) -> Fate {
        match self {
            Self::Container(container) => container.fate(),
            Self::Sandbox(sandbox) | Self::Managed(sandbox) => sandbox.fate(),
        }
    }

    /// Whether nobody can need it any more.
    pub(super) fn is_orphan(&self) -> bool {
        match self {
            Self::Container(container) => container.is_orphan(),
            Self::Sandbox(sandbox) | Self::Managed(sandbox) => sandbox.is_orphan(),
        }
    }

    /// Whose it is, in words.
    pub(super) fn whose(&self) -> String {
        let Some(owner) = self.owner() else {
            return "unknown (made by another version)".to_owned();
        };
        let process = format!("process {} on {}", owner.pid, owner.host);
        match self.fate() {
            Fate::Alive => process,
            Fate::Ended => format!("{process} (ended)"),
            Fate::Elsewhere => format!("{process} (cannot be seen from here)"),
        }
    }
}
