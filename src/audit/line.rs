//! One line of the log, as it is written and read.

use serde::{Deserialize, Serialize};

use super::clock::stamp;
use super::record::{CallEnd, CellEnd, Event, Record};
use super::{digest, redact};
use crate::outcome::{Phases, Status};

/// Characters of an error, of the reason of a decision, and of a name.
const ERROR: usize = 500;
const REASON: usize = 200;
const NAME: usize = 200;

/// A line. What does not apply is absent; a reader takes what it knows and passes over the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// When it was written down: RFC 3339, UTC, milliseconds. What lasted ended then.
    pub time: String,
    /// `start` of a cell that is about to run, `cell` that has ended, `call` that was answered, `gap` where lines were
    /// lost.
    pub event: String,
    /// Who asked.
    pub who: String,
    /// The machine of the broker.
    pub host: String,
    /// The broker's process.
    pub pid: u32,
    /// Its random name, which no other process has.
    pub broker: String,
    /// The session.
    pub session: String,
    /// Where it runs.
    pub target: String,
    /// The number of the cell in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u64>,
    /// SHA-256 of the cell's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Of a cell: whether it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<bool>,
    /// Of a cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The tool that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// SHA-256 of its arguments as canonical JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_sha256: Option<String>,
    /// What may be shown of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// What was decided of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Of a cell, or of what a tool tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// Seconds before a cell began.
    #[serde(skip_serializing_if = "Phases::is_empty")]
    pub phases: Phases,
    /// Calls of a cell that were admitted, and that were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_calls: Option<u64>,
    /// Bytes of a cell's source, or of text in a call's arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_in: Option<u64>,
    /// Bytes that a cell printed, or of text in an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of a gap: lines that were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

impl Line {
    /// A record as it is written, secrets taken out.
    pub(super) fn of(record: &Record) -> Self {
        let text = |text: &str, characters| redact::text(text, &record.masker, characters);
        let origin = &record.origin;
        let line = Self {
            time: stamp(record.at),
            who: text(&origin.who, NAME),
            session: origin.session.clone(),
            target: text(&origin.target, NAME),
            cell: record.cell,
            ..Self::default()
        };
        let script = |source: &[u8]| (Some(digest::of_bytes(source)), Some(source.len() as u64));
        match &record.event {
            Event::Start(source) => {
                let (script, bytes_in) = script(&source.0);
                Self {
                    event: "start".to_owned(),
                    script,
                    bytes_in,
                    ..line
                }
            }
            Event::Cell(end) => {
                let (script, bytes_in) = script(&end.script.0);
                let CellEnd { error, .. } = &**end;
                Self {
                    event: "cell".to_owned(),
                    script,
                    bytes_in,
                    ran: Some(end.ran),
                    status: Some(end.status),
                    exit_code: end.exit_code.map(i64::from),
                    duration: Some(rounded(end.seconds)),
                    phases: Phases {
                        queue: end.phases.queue.map(rounded),
                        connect: end.phases.connect.map(rounded),
                        pull: end.phases.pull.map(rounded),
                        start: end.phases.start.map(rounded),
                    },
                    tool_calls: Some(end.tool_calls),
                    refused_calls: Some(end.refused_calls).filter(|calls| *calls > 0),
                    bytes_out: Some(end.printed),
                    error: error.as_deref().map(|error| text(error, ERROR)),
                    ..line
                }
            }
            Event::Call(end) => {
                let CallEnd { call, error, .. } = &**end;
                Self {
                    event: "call".to_owned(),
                    tool: call.as_ref().map(|call| text(&call.tool, NAME)),
                    arguments_sha256: call.as_ref().map(|call| call.digest.clone()),
                    arguments: call.as_ref().map(|call| call.preview.render(&record.masker)),
                    decision: Some(text(&end.decision.to_string(), REASON)),
                    exit_code: end.exit_code,
                    duration: Some(rounded(end.duration.as_secs_f64())),
                    bytes_in: call.as_ref().map(|call| call.bytes),
                    bytes_out: Some(end.bytes_out),
                    error: error.as_deref().map(|error| text(error, ERROR)),
                    ..line
                }
            }
        }
    }

    /// Whether it tells of something that did not go well.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        let is_denied = |decision: &String| decision != "allowed" && !decision.starts_with("asked: allowed");
        self.error.is_some()
            || self.lost.is_some()
            || self.exit_code.is_some_and(|code| code != 0)
            || self.status.is_some_and(|status| status != Status::Success)
            || self.decision.as_ref().is_some_and(is_denied)
    }
}

/// Seconds to the microsecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}
