//! A sandbox as the target of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio_util::sync::DropGuard;
use tonic::Code;

use super::CAPABILITIES;
use super::end::{End, end_in_sight};
use super::exec::{self, Unstarted};
use super::failure::{Asked, Wanted};
use super::options::ModalOptions;
use super::reached::Reached;
use super::sandbox::{Health, Sandbox};
use crate::backends::{BackendError, Capabilities, Command, Process, Target, TargetState};
use crate::limits::format_duration;

/// A sandbox, for as long as a session uses it.
pub(super) struct Session {
    pub(super) reached: Reached,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) target: String,
    pub(super) kind: Kind,
}

/// Whose it is.
pub(super) enum Kind {
    /// It was made for the session.
    Ours {
        options: Arc<ModalOptions>,
        /// Whether it was said that it stays.
        has_told: AtomicBool,
        end: End,
        /// The end comes when it is gone.
        _dropped: DropGuard,
    },
    /// It exists without us.
    Foreign,
}

#[async_trait]
impl Target for Session {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let failed = match exec::start(&self.sandbox.router, &self.sandbox.task, &command).await {
            Ok(process) => return Ok(process),
            Err(Unstarted::Command(reason)) => return Err(self.unstarted(&command, reason)),
            Err(Unstarted::Call(failed)) => failed,
        };
        if let Health::Ended(how) = self.health().await {
            let reason = format!("its sandbox {how}");
            return Err(self.asked().gone(&reason, self.advice()));
        }
        Err(match failed.code {
            _ if failed.unanswered => self.asked().failed(Wanted::Inside, &failed),
            _ if says_missing(&failed.message) => BackendError::NoProgram {
                target: self.target.clone(),
                program: command.program.to_string_lossy().into_owned(),
                reason: "is not there, or cannot be executed".to_owned(),
            },
            Code::InvalidArgument => self.unstarted(&command, failed.message),
            _ => self.asked().failed(Wanted::Inside, &failed),
        })
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        let mut about = vec![
            (
                "modal",
                format!(
                    "{} (the token of {})",
                    self.reached.server, self.reached.account.said_by
                ),
            ),
            ("sandbox", format!("{}, {}", self.sandbox.id, self.sandbox.generation)),
            ("worker", self.sandbox.router.shown().unwrap_or_default()),
        ];
        if let Kind::Ours { options, .. } = &self.kind {
            let environment = options
                .environment
                .as_ref()
                .unwrap_or(&self.reached.account.environment);
            let environment = match environment.as_str() {
                "" => "the account's default environment".to_owned(),
                name => format!("environment {name}"),
            };
            about.extend([
                ("app", format!("{}, {environment}", options.app)),
                ("image", options.image.clone()),
                ("life", life(options)),
            ]);
        }
        about
    }

    fn notice(&self) -> Option<String> {
        let Kind::Ours { options, has_told, .. } = &self.kind else {
            return None;
        };
        let id = &self.sandbox.id;
        let mut notices = Vec::new();
        if options.keep && !has_told.swap(true, Ordering::AcqRel) {
            notices.push(format!(
                "the sandbox {id} stays when this session ends; modal://{id} is the way back to it"
            ));
        }
        let passed = self.sandbox.since.elapsed();
        notices.extend(end_in_sight(id, passed, options.lifetime));
        (!notices.is_empty()).then(|| notices.join(" · "))
    }

    async fn state(&self) -> TargetState {
        match self.health().await {
            Health::Runs => TargetState::Running {
                incarnation: self.sandbox.task.clone(),
                machine: String::new(),
            },
            Health::Ended(how) => TargetState::Gone(format!("its sandbox {how}; {}", self.advice())),
            Health::Unknown(failed) => TargetState::Unreachable(failed.message),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        match &self.kind {
            Kind::Ours { end, .. } => end.clone().now().await,
            Kind::Foreign => Ok(()),
        }
    }
}

impl Session {
    async fn health(&self) -> Health {
        let (lifetime, idle) = match &self.kind {
            Kind::Ours { options, .. } => (Some(options.lifetime), Some(options.idle_timeout)),
            Kind::Foreign => (None, None),
        };
        self.sandbox.health(lifetime, idle).await
    }

    fn asked(&self) -> Asked<'_> {
        self.reached.asked(&self.target)
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            Kind::Ours { .. } => "the next cell starts a new one",
            Kind::Foreign => "`modal:IMAGE` makes a new one",
        }
    }

    fn unstarted(&self, command: &Command, reason: String) -> BackendError {
        BackendError::Command {
            target: self.target.clone(),
            program: command.program.to_string_lossy().into_owned(),
            reason,
        }
    }
}

/// Whether a worker says that there is no such program. Its words are all that there is.
fn says_missing(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "no such file or directory",
        "not found in $path",
        "command not found",
        "permission denied",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// How long a sandbox lives, in words.
fn life(options: &ModalOptions) -> String {
    let (whole, idle) = (format_duration(options.lifetime), format_duration(options.idle_timeout));
    format!("{whole} at most, {idle} with nothing running")
}
