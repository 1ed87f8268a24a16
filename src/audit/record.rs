//! What happened, as it is handed to the writer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::digest;
use super::redact::Preview;
use crate::outcome::{Phases, Status};
use crate::output::Masker;

/// Whose session, and where it runs.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Who asked: the account on the command line, the client's principal on a server.
    pub who: String,
    /// The session's name in the log; gives no access to it.
    pub session: String,
    /// The target, as the user wrote it.
    pub target: String,
}

/// One line to be.
#[derive(Debug)]
pub struct Record {
    /// When it happened.
    pub at: SystemTime,
    /// Where from.
    pub origin: Arc<Origin>,
    /// The number of its cell in the session; `None`: of none that runs.
    pub cell: Option<u64>,
    /// What must not be written.
    pub masker: Masker,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A cell is about to run.
    Start(Script),
    /// A cell has ended, or never ran.
    Cell(Box<CellEnd>),
    /// A tool call was answered.
    Call(Box<CallEnd>),
}

/// The source of a cell.
#[derive(Clone)]
pub struct Script(pub Arc<[u8]>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} bytes)", self.0.len())
    }
}

/// How a cell ended.
#[derive(Debug)]
pub struct CellEnd {
    /// Its source.
    pub script: Script,
    /// Whether it ran at all.
    pub ran: bool,
    /// Of its outcome.
    pub status: Status,
    /// Of its outcome.
    pub exit_code: Option<i32>,
    /// Seconds that the script alone took.
    pub seconds: f64,
    /// Time before it began.
    pub phases: Phases,
    /// Tool calls that were admitted.
    pub tool_calls: u64,
    /// Tool calls that were not, whether they have a line or not.
    pub refused_calls: u64,
    /// Bytes that it printed.
    pub printed: u64,
    /// What went wrong.
    pub error: Option<String>,
}

/// What was decided of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// It was let through without being asked about.
    #[default]
    Allowed,
    /// Somebody was asked.
    Asked {
        /// What they said.
        allowed: bool,
        /// Who they are, or why nobody could be asked.
        by: String,
    },
    /// A rule denies it.
    Denied(String),
    /// It could not be let through: no such tool, wrong arguments, no budget left, no cell.
    Refused(String),
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("allowed"),
            Self::Asked { allowed: true, by } => write!(f, "asked: allowed by {by}"),
            Self::Asked { allowed: false, by } => write!(f, "asked: denied by {by}"),
            Self::Denied(why) => write!(f, "denied: {why}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

/// A call that has come, as much of it as will be written down.
#[derive(Debug)]
pub struct CallStart {
    pub(super) tool: String,
    pub(super) digest: String,
    pub(super) preview: Preview,
    pub(super) bytes: u64,
}

/// Characters of a tool's name that are kept: one that is made up may be of any length.
const NAME: usize = 100;

impl CallStart {
    /// Takes note of a call's arguments. The time that it takes grows with their length.
    #[must_use]
    pub fn of(tool: &str, arguments: &Map<String, Value>, masker: &Masker) -> Self {
        Self {
            tool: tool.chars().take(NAME).collect(),
            digest: digest::of_arguments(arguments),
            preview: Preview::of(arguments, masker),
            bytes: digest::map_bytes(arguments),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub struct CallEnd {
    /// What was called; `None`: nobody could read it.
    pub call: Option<CallStart>,
    /// What was decided.
    pub decision: Decision,
    /// The time until it was answered.
    pub duration: Duration,
    /// Bytes of text in the answer.
    pub bytes_out: u64,
    /// The answer's `error`.
    pub error: Option<String>,
    /// The answer's `exit_code`.
    pub exit_code: Option<i64>,
}

impl CallEnd {
    /// An answer.
    #[must_use]
    pub fn answered(call: Option<CallStart>, decision: Decision, duration: Duration, answer: &Value) -> Self {
        let error = answer.get("error").and_then(Value::as_str);
        Self {
            call,
            decision,
            duration,
            bytes_out: digest::text_bytes(answer),
            error: error.map(beginning),
            exit_code: answer.get("exit_code").and_then(Value::as_i64),
        }
    }
}

/// Bytes of an error that are handed on; a line shows fewer.
const ERROR: usize = 64 * 1024;

fn beginning(text: &str) -> String {
    text[..text.floor_char_boundary(ERROR)].to_owned()
}
