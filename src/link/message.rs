//! Commands and events. Their form on the wire is `wire.rs`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Reply;

/// How a kernel is started.
#[derive(Clone, Debug)]
pub struct KernelStart {
    /// Rises with each kernel of a session.
    pub generation: u64,
    /// Absolute path of the interpreter.
    pub python: Vec<u8>,
    /// Where it starts.
    pub folder: Vec<u8>,
    /// Its whole environment but `PYTHONPATH`.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The session's folder on the target.
    pub session_folder: Vec<u8>,
    /// Source of `hermes_tools`.
    pub stub: String,
    /// Variables that are put back before each cell, and the user's `PYTHONPATH`.
    pub link: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct RunCell {
    /// 1, 2, 3, … within a session.
    pub cell: u64,
    /// Seconds it may run.
    pub timeout: f64,
    /// Seconds that its clock may stand still in all ([`LinkCommand::HoldCell`]); for links on which something else than
    /// a supervisor sees to its end, should nobody else do.
    pub held: f64,
    /// Bytes of stdout that are sent; the rest is counted.
    pub stdout_cap: u64,
    /// Bytes of stderr that are sent.
    pub stderr_cap: u64,
    /// The session's working directory: where it cannot be entered, the cell does not begin. Empty: nobody looks.
    pub folder: Vec<u8>,
    /// File name of the source in the session's folder.
    pub name: String,
    /// `sys.argv[1:]`.
    pub arguments: Vec<Vec<u8>>,
    /// Whether the source is a file's bytes (its coding comment counts) or text.
    pub from_file: bool,
    /// Source of `hermes_tools` when it differs from the last one sent.
    pub stub: Option<String>,
    /// The source.
    pub source: Vec<u8>,
    /// Run it as a standalone script.
    pub standalone: bool,
}

/// One command beside the kernel.
#[derive(Clone, Debug)]
pub struct RunJob {
    /// 1, 2, 3, … within a session.
    pub job: u64,
    /// Seconds it may run.
    pub timeout: f64,
    /// Bytes of output that are sent.
    pub output_cap: u64,
    /// Where it starts.
    pub folder: Vec<u8>,
    /// Program (absolute) and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its whole environment.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the script is put for the job's life.
    pub script_path: Vec<u8>,
    /// The script.
    pub script: Vec<u8>,
    /// A file that the job may write and that comes back with its record.
    pub state_path: Vec<u8>,
}

/// One file operation.
#[derive(Clone, Debug)]
pub struct RunVerb {
    /// Of the same series as the numbers of jobs.
    pub number: u64,
    /// `read` or `write`: see `remote_agent/workspace.py`.
    pub verb: &'static str,
    /// The folder at which relative paths start.
    pub folder: Vec<u8>,
    /// What `~` stands for; empty where that is not known.
    pub home: Vec<u8>,
    /// The caller of a tool that the target is to answer: by the verb's result, in the shape that the tool of this
    /// kind gives it.
    pub reply: Option<Arc<Reply>>,
    /// The verb's own.
    pub arguments: Vec<Bytes>,
}

/// What the broker asks of a supervisor.
#[derive(Clone, Debug)]
pub enum LinkCommand {
    /// Start a kernel.
    StartKernel(KernelStart),
    /// Only remember how: cells will be standalone scripts.
    Prepare(KernelStart),
    /// Run a cell.
    RunCell(RunCell),
    /// End a running cell and its kernel, with or without the grace.
    StopCell {
        /// Its number.
        cell: u64,
        /// Whether to kill without grace.
        at_once: bool,
    },
    /// Stop a running cell's clock, or let it go on.
    HoldCell {
        /// Its number.
        cell: u64,
        /// The longest that it stands still; zero: it goes on now. A later one counts from when it comes.
        at_most: Duration,
    },
    /// End an idle kernel.
    EndKernel,
    /// Run a job.
    RunJob(RunJob),
    /// End a job, or forget a file operation.
    StopJob(u64),
    /// Do a file operation.
    RunVerb(RunVerb),
    /// End the session.
    Close,
}

/// How a cell ended, as the supervisor judged it.
#[derive(Clone, Debug)]
pub struct CellDone {
    /// Its number.
    pub cell: u64,
    /// `done`, `gone`, `timeout` or `interrupted`.
    pub why: String,
    /// The kernel's wait status, where it ended.
    pub status: Option<i32>,
    /// What else is known of a kernel's end.
    pub detail: String,
    /// Seconds that the cell ran.
    pub seconds: f64,
    /// Bytes of stdout that were not sent, and their tail.
    pub stdout_skipped: (u64, Bytes),
    /// The same for stderr.
    pub stderr_skipped: (u64, Bytes),
    /// What the kernel reported: kind, code, error, missing name, unprinted value.
    pub result: Option<CellResult>,
}

/// What the kernel itself reported of a cell.
#[derive(Clone, Debug, Default)]
pub struct CellResult {
    /// `ok`, `raised` or `exit`.
    pub kind: String,
    /// The exit code.
    pub code: i32,
    /// The exception's last line, or the text given to `sys.exit`.
    pub error: String,
    /// The name that an import or name error could not find; of a syntax error in the cell, its line.
    pub missing: String,
    /// Whether the last line was an expression with a value.
    pub unprinted: bool,
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct JobDone {
    /// Its number.
    pub job: u64,
    /// `exit`, `timeout`, `stopped` or `failed`.
    pub why: String,
    /// The shell's wait status.
    pub status: Option<i32>,
    /// Why it failed.
    pub detail: String,
    /// Bytes of output that were not sent, and their tail.
    pub skipped: (u64, Bytes),
    /// What it wrote to its state file.
    pub state: Bytes,
}

/// What a file operation came to.
#[derive(Clone, Debug)]
pub struct VerbDone {
    /// Its number.
    pub number: u64,
    /// Whether it was done.
    pub ok: bool,
    /// Whether the call that it was for has been answered over there.
    pub answered: bool,
    /// Its results; or one sentence that says what went wrong.
    pub fields: Vec<Bytes>,
}

/// What a supervisor tells.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// It has begun; the folders it made, the session's own first.
    Hello(Vec<String>),
    /// A kernel is ready.
    KernelReady {
        /// Which.
        generation: u64,
        /// `3.11.7`.
        version: String,
        /// Path of its interpreter.
        python: String,
    },
    /// A kernel could not be started.
    KernelFailed {
        /// Which.
        generation: u64,
        /// Its wait status, where it had one.
        status: Option<i32>,
        /// What is known.
        detail: String,
    },
    /// A kernel ended while no cell ran.
    KernelLost {
        /// Which.
        generation: u64,
        /// Its wait status.
        status: Option<i32>,
        /// What is known.
        detail: String,
        /// Processes that are left of the session.
        remaining: u64,
    },
    /// Output of a cell.
    CellOutput {
        /// Its number.
        cell: u64,
        /// Whether it is stderr.
        stderr: bool,
        /// The bytes.
        data: Bytes,
    },
    /// A cell ended.
    CellDone(CellDone),
    /// Output of a job.
    JobOutput {
        /// Its number.
        job: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A job ended.
    JobDone(JobDone),
    /// A file operation ended.
    VerbDone(VerbDone),
}
