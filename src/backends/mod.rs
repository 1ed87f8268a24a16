//! How a process starts on a target. A backend knows only that; it has never heard of Python,
//! cells or tools.

pub mod local;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
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
    /// Its whole environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where it starts.
    pub folder: Option<PathBuf>,
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

/// A place where processes start: this host, a container, an SSH session, a sandbox.
#[async_trait]
pub trait Target: Send + Sync {
    /// Starts a process.
    ///
    /// # Errors
    /// When it cannot be started.
    async fn spawn(&self, command: Command) -> Result<Process, BackendError>;
}

/// A recipe for a target; cheap to hold.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Reaches the target.
    ///
    /// # Errors
    /// When that fails. The future may be dropped before it is done.
    async fn open(&self) -> Result<Arc<dyn Target>, BackendError>;
}
