//! The target side of a session while it lives: its supervisor, and the kernel that may come and go.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::environment::Built;
use crate::kernel::Agent;
use crate::link::{KernelStart, Link};
use crate::tools::{ToolHost, ToolSpec};

/// A supervisor and what is known of the kernel under it.
pub(super) struct Live {
    pub(super) agent: Arc<Agent>,
    pub(super) python: PathBuf,
    pub(super) version: String,
    pub(super) kernel: Option<LiveKernel>,
    /// Nothing of ours stays there beside a cell. What it took to find that out.
    pub(super) alone: Option<Duration>,
    generation: u64,
}

/// A kernel that takes cells: it is ready, or on its way.
pub(super) struct LiveKernel {
    /// Which kernel of the session.
    pub(super) generation: u64,
    /// Path of its interpreter.
    pub(super) python: String,
    /// Cells that it has run.
    pub(super) count: u64,
    /// What its `hermes_tools` was made from.
    pub(super) offer: Offer,
}

/// The tools that a stub shows. Held on to, so that another host is never taken for this one.
pub(super) struct Offer {
    host: Arc<dyn ToolHost>,
    names: Vec<String>,
}

impl Offer {
    pub(super) fn new(host: &Arc<dyn ToolHost>, specs: &[&ToolSpec]) -> Self {
        Self {
            host: host.clone(),
            names: specs.iter().map(|spec| spec.name.clone()).collect(),
        }
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.host, &other.host) && self.names == other.names
    }
}

impl Live {
    /// A supervisor that has begun. `python` runs its cells.
    pub(super) fn new(link: Arc<dyn Link>, python: PathBuf, version: String) -> Self {
        Self {
            python,
            version,
            agent: Arc::new(Agent::new(link)),
            kernel: None,
            alone: None,
            generation: 0,
        }
    }

    /// What a new kernel, or a standalone script, is started with.
    pub(super) fn start_of_kernel(&mut self, folder: &Path, built: &Built, stub: &str) -> KernelStart {
        self.generation += 1;
        let link = self.agent.link();
        let mut environment: BTreeMap<OsString, OsString> = built.variables.clone();
        let mut put_back: Vec<(Vec<u8>, Vec<u8>)> = link
            .variables()
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect();
        for (name, value) in &put_back {
            environment.insert(OsString::from_vec(name.clone()), OsString::from_vec(value.clone()));
        }
        environment.insert("HERMES_RPC_CELL".into(), "0".into());
        environment.insert("PYTHONUTF8".into(), "1".into());
        environment.entry("MPLBACKEND".into()).or_insert_with(|| "Agg".into());
        // The kernel applies it once its own modules are loaded.
        if let Some(path) = environment.remove(std::ffi::OsStr::new("PYTHONPATH")) {
            put_back.push((b"PYTHONPATH".to_vec(), path.into_vec()));
        }
        KernelStart {
            generation: self.generation,
            python: self.python.as_os_str().as_bytes().to_vec(),
            folder: folder.as_os_str().as_bytes().to_vec(),
            environment: environment
                .into_iter()
                .map(|(name, value)| (name.into_vec(), value.into_vec()))
                .collect(),
            session_folder: link.folder().as_bytes().to_vec(),
            stub: stub.to_owned(),
            link: put_back,
        }
    }

    /// Ends everything of the session on the target.
    pub(super) async fn close(self) {
        self.agent.close().await;
    }
}
