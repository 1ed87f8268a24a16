//! Hosts that SSH reaches, through the system's own `ssh`: `~/.ssh/config`, agents, keys, jumps and known hosts are the
//! user's. One login per session (`master.rs`); commands go over it by the multiplexing protocol (crate `openssh`).

mod failure;
mod first;
mod line;
mod logout;
mod master;
mod options;
mod process;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use openssh::Session;
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::master::Master;
pub use self::options::{CONNECT_TIMEOUT, SshOptions};
use self::process::Unbegun;
use super::{Backend, BackendError, Capabilities, Command, Phase, Process, Progress, Target, TargetState};

/// Bytes that may wait unread: each command has a window of its own, and holds up nobody else.
const WINDOW: u32 = 1 << 20;
/// How long the host may take to say that it is there, before a connection counts as dead.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A host that is there, and says nothing of when it started.
const UNKNOWN: TargetState = TargetState::Running {
    incarnation: String::new(),
    machine: String::new(),
};
const NO_ANSWER: &str = "it does not answer";

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
        let about = master.about().await;
        Ok(Arc::new(SshTarget {
            options: self.options.clone(),
            masters: Mutex::new(Masters {
                current: Some(Arc::new(master)),
                full: Vec::new(),
            }),
            about,
            has_run: AtomicBool::new(false),
        }))
    }
}

struct SshTarget {
    options: Arc<SshOptions>,
    masters: Mutex<Masters>,
    /// How the first of them was made.
    about: Vec<(&'static str, String)>,
    /// Whether a command has begun there.
    has_run: AtomicBool,
}

/// Connections of a target.
#[derive(Default)]
struct Masters {
    /// What commands go over; `None` once it was closed, and while it is down.
    current: Option<Arc<Master>>,
    /// Full ones, which stay for as long as commands run over them.
    full: Vec<Weak<Master>>,
}

impl SshTarget {
    /// The connection, made anew where it is down.
    async fn master(&self) -> Result<Arc<Master>, BackendError> {
        let mut masters = self.masters.lock().await;
        if let Some(master) = &masters.current {
            if master.is_up().await {
                return Ok(master.clone());
            }
            master.discard();
            masters.current = None;
        }
        let master = Arc::new(Master::connect(&self.options).await?);
        masters.current = Some(master.clone());
        Ok(master)
    }

    /// Another connection, for one that is full.
    async fn another(&self, full: &Arc<Master>) -> Result<Arc<Master>, BackendError> {
        let mut masters = self.masters.lock().await;
        let master = Arc::new(Master::connect(&self.options).await?);
        masters.full.retain(|one| one.strong_count() > 0);
        masters.full.push(Arc::downgrade(full));
        masters.current = Some(master.clone());
        Ok(master)
    }
}

#[async_trait]
impl Target for SshTarget {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reaching: self.options.connect_timeout,
            ..Capabilities::elsewhere(WINDOW)
        }
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        self.about.clone()
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let r#become = self.options.r#become.as_deref();
        let mut master = self.master().await?;
        let mut started = process::start(master.clone(), &command, r#become).await;
        if matches!(started, Err(Unbegun::Full)) && self.options.control.is_none() {
            master = self.another(&master).await?;
            started = process::start(master.clone(), &command, r#become).await;
        }
        let started = match started {
            Ok(started) => started,
            Err(Unbegun::Late) => {
                master.discard();
                return Err(self.options.attempt().unreachable(
                    &format!("it did not begin a command within {} s", process::START_LIMIT.as_secs()),
                    "check the host's load and the network",
                ));
            }
            Err(Unbegun::Full) => return Err(self.options.attempt().full()),
            Err(Unbegun::Other(reason)) => {
                return Err(BackendError::Command {
                    target: self.options.target.clone(),
                    program: command.program.to_string_lossy().into_owned(),
                    reason,
                });
            }
        };
        if self.has_run.load(Ordering::Acquire) {
            return Ok(started.process);
        }
        let limit = self.options.connect_timeout;
        let process = first::begun(started, limit, &self.options.attempt(), r#become, &master).await?;
        self.has_run.store(true, Ordering::Release);
        Ok(process)
    }

    async fn state(&self) -> TargetState {
        let master = match timeout(self.options.connect_timeout, self.master()).await {
            Ok(Ok(master)) => master,
            Ok(Err(error)) => return TargetState::Unreachable(error.to_string()),
            Err(_) => return TargetState::Unreachable(NO_ANSWER.to_owned()),
        };
        let mut command = Session::to_raw_command(master.session(), line::BOOT_ID);
        match timeout(ANSWER_LIMIT, command.output()).await {
            Ok(Ok(output)) if output.status.code() != Some(255) => {
                let (incarnation, machine) = line::boot_id(&String::from_utf8_lossy(&output.stdout));
                TargetState::Running { incarnation, machine }
            }
            // Something ran, if only a shell that has not found what it was to run.
            Ok(Err(openssh::Error::Remote(_))) => UNKNOWN,
            Ok(Ok(_)) => TargetState::Unreachable("the connection was lost".to_owned()),
            Ok(Err(error)) => match Unbegun::of(&error) {
                // It is there all the same.
                Unbegun::Full => UNKNOWN,
                Unbegun::Other(reason) => TargetState::Unreachable(reason),
                Unbegun::Late => TargetState::Unreachable(NO_ANSWER.to_owned()),
            },
            Err(_) => {
                // Whoever changes network, or sleeps for long, is told nothing of the end of a connection. A new one shows
                // whether it is the host.
                master.discard();
                TargetState::Unreachable(NO_ANSWER.to_owned())
            }
        }
    }

    async fn ends_at_logout(&self) -> Option<String> {
        let asked = async {
            let master = self.master().await.ok()?;
            let ask = |master: &Master| {
                let mut command = Session::to_raw_command(master.session(), logout::ASK);
                async move { command.output().await }
            };
            match ask(&master).await {
                Err(error) if matches!(Unbegun::of(&error), Unbegun::Full) && self.options.control.is_none() => {
                    let another = self.another(&master).await.ok()?;
                    ask(&another).await.ok()
                }
                said => said.ok(),
            }
        };
        let limit = ANSWER_LIMIT + self.options.connect_timeout;
        let said = timeout(limit, asked).await.ok()??;
        logout::warning(&self.options, &String::from_utf8_lossy(&said.stdout))
    }

    async fn close(&self) -> Result<(), BackendError> {
        let Masters { current, full } = std::mem::take(&mut *self.masters.lock().await);
        let mut is_left = false;
        for master in current.into_iter().chain(full.iter().filter_map(Weak::upgrade)) {
            is_left |= !master.end().await;
        }
        if !is_left {
            return Ok(());
        }
        Err(self.options.attempt().unreachable(
            "its connection did not end within 5 s",
            "it ends with this process; until then `ssh` may be seen among your processes",
        ))
    }
}
