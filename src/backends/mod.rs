//! How a process starts on a target. A backend knows only that; it has never heard of Python,
//! cells or tools.

pub mod command;
pub mod docker;
pub mod local;
pub mod modal;
pub mod owner;
pub mod ssh;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a backend could not do what it was asked. Each is a sentence with what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// The target does not answer now; it may later.
    #[error("{target} cannot be reached: {reason}; {advice}")]
    Unreachable {
        /// The target as the user wrote it.
        target: String,
        /// What was seen.
        reason: String,
        /// What to do.
        advice: String,
    },
    /// The target has ended and will not come back.
    #[error("{target} is gone: {reason}; {advice}")]
    Gone {
        /// The target as the user wrote it.
        target: String,
        /// How it ended.
        reason: String,
        /// What to do.
        advice: String,
    },
    /// The target, or whoever owns it, does not let us.
    #[error("{target} cannot be used: {reason}; {advice}")]
    Refused {
        /// The target as the user wrote it.
        target: String,
        /// What was seen.
        reason: String,
        /// What to do.
        advice: String,
    },
    /// There is no such program there, or it cannot be executed. Another one may be there.
    #[error("there is no {program} on {target}: {reason}")]
    NoProgram {
        /// The target as the user wrote it.
        target: String,
        /// The program.
        program: String,
        /// What was seen.
        reason: String,
    },
    /// A command could not be started there.
    #[error("{program} cannot be started on {target}: {reason}")]
    Command {
        /// The target as the user wrote it.
        target: String,
        /// The program.
        program: String,
        /// What was seen.
        reason: String,
    },
}

/// A command to be started on a target.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program: an absolute path, or a name to be found on the target's `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// On this machine its whole environment, elsewhere what it gets beside the target's own. Never a secret: a target
    /// may pass it on a command line.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where it starts; the target's own choice when `None`.
    pub folder: Option<PathBuf>,
    /// What its standard input begins with, for a target that takes it ([`Capabilities::takes_input`]); without streams
    /// that is all of it. Nobody else looks at it.
    pub input: Bytes,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Nobody knows: the connection to it was lost.
    Lost,
}

/// Waits for the end of a process.
#[async_trait]
pub trait ProcessWait: Send {
    /// Returns when it has ended.
    async fn wait(&mut self) -> ProcessEnd;
    /// Kills it, if it has not ended. Does not wait.
    fn kill(&mut self);
    /// It has become what others depend on (the first process of a container): from here on `kill` leaves it alone.
    fn detach(&mut self) {}
}

/// A process on a target. Its standard streams are open until they are dropped.
pub struct Process {
    /// Its standard input.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Its standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Its standard error.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Its end.
    pub end: Box<dyn ProcessWait>,
    /// Lets it go on, should somebody have stopped it.
    pub wake: Wake,
}

/// Lets a process go on that was stopped. Does nothing where that cannot be, or when it has ended.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What a target can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its processes, files and sockets are this machine's and this user's.
    pub is_here: bool,
    /// It is made for one session: it ends when the first process does, and another session needs another target.
    pub ends_with_session: bool,
    /// A process may live long, with its standard streams open. Where it may not, it reads what its [`Command`] brings,
    /// and what it writes comes when it has ended.
    pub has_streams: bool,
    /// It takes a command and what it reads first at once, which saves a round trip.
    pub takes_input: bool,
    /// Programs are started without a shell or another command in between, which might read what is written to them.
    pub is_direct: bool,
    /// Bytes of a process's output that may wait unread without harm to anybody else there.
    pub window: u32,
    /// How long it may take to reach it anew before a process starts there.
    pub reaching: Duration,
}

impl Capabilities {
    /// Those of a place that is not here and outlives a session, reached without delay.
    pub(crate) const fn elsewhere(window: u32) -> Self {
        Self {
            is_here: false,
            ends_with_session: false,
            has_streams: true,
            takes_input: false,
            is_direct: false,
            window,
            reaching: Duration::ZERO,
        }
    }

    /// The same, where nothing is between us and a program.
    pub(crate) const fn directly(window: u32) -> Self {
        Self {
            is_direct: true,
            ..Self::elsewhere(window)
        }
    }
}

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// It runs. The incarnation changes when it was started anew and its processes are gone.
    Running {
        /// Start time, boot id or their like; empty where nothing is known.
        incarnation: String,
        /// Which machine it is, where one name may lead to several; empty where nothing is known.
        machine: String,
    },
    /// It stands still and may go on.
    Paused,
    /// It has ended: how, and what to do.
    Gone(String),
    /// It does not answer: what was seen.
    Unreachable(String),
}

/// A place where processes start: this host, a container, an SSH session, a sandbox.
#[async_trait]
pub trait Target: Send + Sync {
    /// What it can do. Constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// Starts a process.
    ///
    /// # Errors
    /// When it cannot be started: [`BackendError::NoProgram`] where another program may do. A program that is missing
    /// may also show in the end of the process (exit codes 126 and 127).
    async fn spawn(&self, command: Command) -> Result<Process, BackendError>;

    /// How it was reached, in lines for whoever wants to know: what, and what was found.
    fn about(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What whoever uses it should know of it now, beside what its cells come to: that it will end soon, and the like.
    fn notice(&self) -> Option<String> {
        None
    }

    /// What became of it. Bounded in time (seconds).
    async fn state(&self) -> TargetState;

    /// Where the target ends what a connection has started once that is gone: that it does, and what to do. Asks it, in
    /// seconds.
    async fn ends_at_logout(&self) -> Option<String> {
        None
    }

    /// Gives back what was made for it, and nothing else. Called once, when nobody needs it any more.
    ///
    /// # Errors
    /// When something may be left behind: what, and how to remove it.
    async fn close(&self) -> Result<(), BackendError>;
}

/// What takes time while a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reaching it.
    Connect,
    /// Fetching or building an image.
    Pull,
}

/// Is told how far the opening of a target is.
pub trait Progress: Send + Sync {
    /// A phase begins, and the one before has ended.
    fn phase(&self, phase: Phase);
    /// One line for whoever waits; the next one replaces it.
    fn note(&self, line: &str);
}

/// Nobody wants to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _: Phase) {}
    fn note(&self, _: &str) {}
}

/// A recipe for a target; cheap to hold.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Reaches the target.
    ///
    /// # Errors
    /// When that fails. The future may be dropped before it is done.
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError>;

    /// Waits until what an [`Backend::open`] that was dropped had begun is given back. Bounded in time (seconds).
    async fn settle(&self) {}
}

/// A name that nobody guesses: 12 hex digits.
fn random_name() -> String {
    let mut bytes = [0; 6];
    if getrandom::fill(&mut bytes).is_err() {
        // Nothing secret hangs on it; a name that is taken is refused.
        bytes.copy_from_slice(&std::process::id().to_be_bytes().repeat(2)[..6]);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
