//! How a broker talks to the supervisor and the kernel of a session.
//!
//! A [`Link`] moves commands out and events in, and delivers the tool calls of scripts to a
//! [`CallHandler`]. It knows nothing of targets, tools or outcomes.

pub(crate) mod call;
pub(crate) mod introduction;
pub mod message;
mod reply;
pub(crate) mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

pub use message::{CellDone, JobDone, KernelStart, LinkCommand, LinkEvent, RunCell, RunJob, RunVerb, VerbDone};
pub use reply::Reply;

/// Why a link failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    /// The far side ended or closed its stream.
    #[error("the supervisor of the session is gone")]
    Gone,
    /// The far side sent what is no message.
    #[error("the supervisor of the session sent a malformed message ({0})")]
    Malformed(&'static str),
    /// The place where scripts connect could not be made.
    #[error("the socket for tool calls could not be made at {place}: {source}")]
    Bind {
        /// Path or address.
        place: String,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// The session on another target came to its end.
    #[error("the session on {target} has ended: {reason}")]
    Ended {
        /// The target as the user wrote it.
        target: String,
        /// How, and what to do.
        reason: String,
    },
    /// Another target did not come back.
    #[error(
        "the connection to {target} was lost and did not come back within {patience}: {reason}; what ran there may go on until its lease runs out, and ends then: look before you run it again"
    )]
    Lost {
        /// The target as the user wrote it.
        target: String,
        /// The time that was waited.
        patience: String,
        /// What was seen last.
        reason: String,
    },
}

/// How often a link was lost and made again, and why the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relinks {
    /// How often.
    pub count: u64,
    /// What had become of the one before.
    pub reason: String,
}

/// A tool call as a script sent it; nothing of it has been checked but its token.
#[derive(Debug)]
pub struct IncomingCall {
    /// The cell that it says it belongs to.
    pub cell: u64,
    /// The tool's name.
    pub tool: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// Its caller, where the target may answer it.
    pub reply: Option<Arc<Reply>>,
}

/// Answers the tool calls that arrive over a link.
#[async_trait]
pub trait CallHandler: Send + Sync {
    /// Answers one call; a refusal is an object with `error`. Dropped when the caller hangs up.
    async fn handle(&self, call: IncomingCall) -> Value;

    /// A request was refused before it could be a call: it was none, or carried no valid token.
    fn refused(&self, _reason: &str) {}
}

/// Commands to a session's supervisor, events from it.
#[async_trait]
pub trait Link: Send + Sync {
    /// Queues a command. It does not wait for the far side.
    ///
    /// # Errors
    /// [`LinkError::Gone`] when the far side has ended.
    fn send(&self, command: LinkCommand) -> Result<(), LinkError>;

    /// The next event, in order. One caller at a time.
    ///
    /// # Errors
    /// When the link has ended or broke.
    async fn next(&self) -> Result<LinkEvent, LinkError>;

    /// Makes sure that scripts can reach the broker: a cell may have removed the way.
    ///
    /// # Errors
    /// When the socket cannot be made again.
    async fn open_for_calls(&self) -> Result<(), LinkError>;

    /// The variables by which a script finds its way home.
    fn variables(&self) -> Vec<(String, String)>;

    /// The token that every call of this session carries.
    fn token(&self) -> &str;

    /// The folder of the session on the target.
    fn folder(&self) -> &str;

    /// How often it was lost and made again so far; nothing was lost with it.
    fn relinks(&self) -> Relinks {
        Relinks::default()
    }

    /// How messages travel, as outcomes name it.
    fn transport(&self) -> &'static str;
}
