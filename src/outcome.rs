//! The record that every cell ends with: one JSON object, the same on every target.

use serde::{Deserialize, Serialize};

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The cell ran to its end, or left with `sys.exit(0)`.
    Success,
    /// It raised, left with a code, lost its process, or was refused before it ran.
    Error,
    /// It ran longer than its limit and was killed.
    Timeout,
    /// The caller cancelled it.
    Interrupted,
}

/// Which kernel ran the cell and what became of its state. Absent when nothing ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// `session` (state is kept between cells) or `one-shot`.
    pub mode: KernelMode,
    /// Whether an earlier cell ran in the same kernel.
    pub reused: bool,
    /// Cells that this kernel has run, this one included.
    pub execution_count: u64,
    /// Whether this cell ended the kernel, and the state with it.
    pub state_lost: bool,
    /// `path (version)` of the interpreter.
    pub python: String,
    /// How messages travelled, for instance `unix-socket`.
    pub transport: String,
}

/// Whether state outlives a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelMode {
    /// A kernel that stays alive between the cells of a session.
    Session,
    /// Each cell is a standalone script.
    OneShot,
}

/// Seconds spent before the script began; none of them counts against its timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Waiting for an earlier cell of the same session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<f64>,
    /// Reaching the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<f64>,
    /// Fetching or building an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull: Option<f64>,
    /// Starting the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
}

impl Phases {
    /// Whether there is anything to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// What one cell came to. Fields that do not apply are absent from the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// On success stdout alone; otherwise stdout, then `--- stderr ---` and stderr if there is any.
    pub output: String,
    /// The exit code; `None` when nothing ran.
    pub exit_code: Option<i32>,
    /// Tool calls that were admitted (refused ones are free).
    pub tool_calls_made: u64,
    /// Seconds that the script alone took.
    pub duration_seconds: f64,
    /// Bytes that the script wrote to stdout, whether shown or not.
    pub stdout_bytes_total: u64,
    /// The target, as the user wrote it.
    pub target: String,
    /// The kernel that ran it.
    pub kernel: Option<KernelReport>,
    /// What a successful cell wrote to stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Time before the script began.
    #[serde(default, skip_serializing_if = "Phases::is_empty")]
    pub phases: Phases,
    /// What went wrong, for a model to act on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Something that the caller should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// A likely next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// `true` when `output` does not hold all of stdout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_truncated: Option<bool>,
    /// Bytes left out between head and tail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_bytes_omitted: Option<u64>,
    /// The file that holds the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_spill_path: Option<String>,
}

impl Outcome {
    /// The outcome of a cell that was refused before anything ran.
    #[must_use]
    pub fn refused(target: &str, error: impl Into<String>) -> Self {
        Self {
            status: Status::Error,
            output: String::new(),
            exit_code: None,
            tool_calls_made: 0,
            duration_seconds: 0.0,
            stdout_bytes_total: 0,
            target: target.to_owned(),
            kernel: None,
            stderr: None,
            phases: Phases::default(),
            error: Some(error.into()),
            notice: None,
            hint: None,
            stdout_truncated: None,
            stdout_bytes_omitted: None,
            stdout_spill_path: None,
        }
    }
}
