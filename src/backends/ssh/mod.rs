//! Hosts that SSH reaches, through the system's own `ssh`: `~/.ssh/config`, agents, keys, jumps and known hosts are the
//! user's. One login per session (`master.rs`); commands go over it by the multiplexing protocol (crate `openssh`).

mod failure;
mod first;
mod line;
mod master;
mod options;
mod process;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use openssh::Session;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::master::Master;
pub use self::options::{CONNECT_TIMEOUT, SshOptions};
use super::{Backend, BackendError, Capabilities, Command, Phase, Process, Progress, Target, TargetState};

/// Bytes that may wait unread: each command has a window of its own, and holds up nobody else.
const WINDOW: u32 = 1 << 20;
/// How long a command over a connection that is up may take to begin.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The backend of SSH targets.
#[derive(Clone, Debug)]
pub struct SshBackend {
    options: Arc<SshOptions>,
}

impl SshBackend {
    /// Nothing is reached yet.
    #[must_use]
    pub fn new(options: SshOptions) -> Self {
        Self {
            options: Arc::new(options),
        }
    }
}

#[async_trait]
impl Backend for SshBackend {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        progress.phase(Phase::Connect);
        progress.note(&format!("connecting to {}", self.options.destination));
        let master = Master::connect(&self.options).await?;
        Ok(Arc::new(SshTarget {
            options: self.options.clone(),
            master: Mutex::new(Some(Arc::new(master))),
            has_run: AtomicBool::new(false),
        }))
    }
}

struct SshTarget {
    options: Arc<SshOptions>,
    /// `None` once it was closed, and while it is down.
    master: Mutex<Option<Arc<Master>>>,
    /// Whether a command has begun there.
    has_run: AtomicBool,
}

impl SshTarget {
    /// The connection, made anew where it is down.
    async fn master(&self) -> Result<Arc<Master>, BackendError> {
        let mut held = self.master.lock().await;
        if let Some(master) = &*held {
            if master.is_up().await {
                return Ok(master.clone());
            }
            *held = None;
        }
        let master = Arc::new(Master::connect(&self.options).await?);
        *held = Some(master.clone());
        Ok(master)
    }
}

#[async_trait]
impl Target for SshTarget {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            is_here: false,
            ends_with_session: false,
            has_streams: true,
            window: WINDOW,
        }
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let master = self.master().await?;
        let r#become = self.options.r#become.as_deref();
        let starting = process::start(master.clone(), &command, r#become.map(str::to_owned));
        let started = match timeout(START_LIMIT, starting).await {
            Ok(Ok(started)) => started,
            Ok(Err(reason)) => {
                return Err(BackendError::Command {
                    target: self.options.target.clone(),
                    program: command.program.to_string_lossy().into_owned(),
                    reason,
                });
            }
            Err(_) => {
                return Err(self.options.attempt().unreachable(
                    &format!("it did not begin a command within {} s", START_LIMIT.as_secs()),
                    "check the host's load and the network",
                ));
            }
        };
        if self.has_run.load(Ordering::Acquire) {
            return Ok(started.process);
        }
        let limit = START_LIMIT.min(self.options.connect_timeout);
        let process = first::begun(started, limit, &self.options.attempt(), r#become, &master).await?;
        self.has_run.store(true, Ordering::Release);
        Ok(process)
    }

    async fn state(&self) -> TargetState {
        let boot = async {
            let master = self.master().await.map_err(|error| error.to_string())?;
            let mut command = Session::to_raw_command(master.session(), line::BOOT_ID);
            command.output().await.map_err(|error| process::reason(&error))
        };
        match timeout(self.options.connect_timeout, boot).await {
            Ok(Ok(output)) => TargetState::Running {
                incarnation: line::boot_id(&String::from_utf8_lossy(&output.stdout)),
            },
            Ok(Err(reason)) => TargetState::Unreachable(reason),
            Err(_) => TargetState::Unreachable("it does not answer".to_owned()),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        let Some(master) = self.master.lock().await.take() else {
            return Ok(());
        };
        if master.end().await {
            return Ok(());
        }
        Err(self.options.attempt().unreachable(
            "its connection did not end within 5 s",
            "it ends with this process; until then `ssh` may be seen among your processes",
        ))
    }
}
