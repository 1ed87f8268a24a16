//! Who decides on a call where a rule says `ask`.

use async_trait::async_trait;
use serde_json::{Map, Value};

/// A call that waits for a decision.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The target as the user wrote it.
    pub target: String,
    /// The cell whose script makes the call.
    pub cell: u64,
    /// The tool's name.
    pub tool: String,
    /// Its arguments as the script gave them: nothing of them is to be shown without making control characters visible.
    pub arguments: Map<String, Value>,
    /// Where it acts: the session's working directory as it is now.
    pub folder: String,
    /// The files that it acts on, behind links, where they had to be known.
    pub files: Vec<String>,
    /// What a file would look like afterwards, as a diff, where that was cheap to find out.
    pub diff: Option<String>,
    /// The rules that say `ask`. They, for this tool, are what [`Decision::AllowForSession`] allows.
    pub rules: Vec<String>,
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It happens.
    AllowOnce,
    /// It happens, and so does in this session every call of this tool that the same rules would ask about.
    AllowForSession,
    /// It does not happen; the script is told why.
    Deny {
        /// In the words of whoever decided.
        reason: Option<String>,
    },
    /// Nobody can be asked, and so it does not happen.
    CannotAsk {
        /// Why, and what to do: it reads after a semicolon.
        reason: String,
    },
}

/// Decides on calls. One question of a session at a time is put to it.
///
/// It fails closed: where it panics, or takes longer than [`Policy::timeout`](super::Policy::timeout), the call does
/// not happen. While it takes its time, the cell's clock stands still.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Who decides, as the audit log is to call them: "the user at the terminal".
    fn who(&self) -> String;

    /// Decides on one call. Dropped, the question is withdrawn: the cell has ended, or its caller is gone.
    async fn ask(&self, request: ApprovalRequest) -> Decision;
}
