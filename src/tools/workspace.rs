//! Files and commands of a target: the seam under the built-in tools.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Found, SearchRequest};
use crate::approval::Names;
use crate::link::Reply;
use crate::output::Truncation;

/// What `read_file` asks of a target.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The path as the script gave it: absolute, `~/…`, or relative to the working directory.
    pub path: String,
    /// The first line (1-indexed), or an opaque `next_offset` of an earlier page.
    pub offset: String,
    /// Lines at most.
    pub limit: u64,
    /// Whether lines are given without their numbers.
    pub raw: bool,
}

/// One page of a file.
#[derive(Clone, Debug)]
pub struct Page {
    /// Lines as `N|text`, or the text alone when raw.
    pub content: String,
    /// Lines in the file; `None` for a file over 256 MiB whose end was not reached.
    pub total_lines: Option<u64>,
    /// Size in bytes.
    pub file_size: u64,
    /// Where the next page starts; present when there is more.
    pub next_offset: Option<String>,
}

/// What `write_file` did.
#[derive(Clone, Debug)]
pub struct Written {
    /// Bytes that the file now holds.
    pub bytes_written: u64,
    /// Folders that had to be made, outermost first.
    pub dirs_created: Vec<String>,
    /// The absolute path, with `~` and symlinks resolved.
    pub resolved_path: String,
}

/// A file as it was found, for whoever wants to change it.
#[derive(Clone, Debug)]
pub struct FetchedFile {
    /// The absolute path, symlinks and `..` left as they are.
    pub place: Bytes,
    /// The file behind all links: the same for two paths that lead to one file.
    pub file: Bytes,
    /// Where the last part of the path leads, as it says itself, when that is a symlink.
    pub link: Option<Bytes>,
    /// What it holds.
    pub content: Bytes,
    /// What tells this content from any other; the target's own affair.
    pub version: Bytes,
}

/// What there is under a path.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// A file.
    File(FetchedFile),
    /// Nothing; or a symlink that leads to nothing.
    Missing {
        /// As in [`FetchedFile`].
        place: Bytes,
        /// As in [`FetchedFile`].
        file: Bytes,
        /// As in [`FetchedFile`].
        link: Option<Bytes>,
        /// A sentence that says what there is instead.
        reason: String,
    },
    /// A symlink that leads to something else than a file that can be changed: a folder, a device, itself.
    Link {
        /// As in [`FetchedFile`].
        place: Bytes,
        /// The link itself, in its real folder.
        file: Bytes,
        /// As in [`FetchedFile`].
        link: Bytes,
        /// A sentence that says what is behind it.
        reason: String,
    },
}

impl Fetched {
    /// As in [`FetchedFile`].
    #[must_use]
    pub fn place(&self) -> &Bytes {
        match self {
            Self::File(FetchedFile { place, .. }) | Self::Missing { place, .. } | Self::Link { place, .. } => place,
        }
    }

    /// What tells it from others: the file behind all links, or where none is, the place for one.
    #[must_use]
    pub fn file(&self) -> &Bytes {
        match self {
            Self::File(FetchedFile { file, .. }) | Self::Missing { file, .. } | Self::Link { file, .. } => file,
        }
    }

    /// As in [`FetchedFile`].
    #[must_use]
    pub fn link(&self) -> Option<&Bytes> {
        match self {
            Self::File(FetchedFile { link, .. }) | Self::Missing { link, .. } => link.as_ref(),
            Self::Link { link, .. } => Some(link),
        }
    }
}

/// What stands in a range of a file becomes something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Bytes of the file as it was found.
    pub range: Range<usize>,
    /// What comes there.
    pub bytes: Bytes,
}

/// One of several changes that are made together. Each is made only where the file is as it was found.
#[derive(Clone, Debug)]
pub enum FileChange {
    /// A file where there is none.
    Create {
        /// Where.
        place: Bytes,
        /// What it holds.
        content: Bytes,
        /// The place of a file whose mode bits and owner it gets.
        like: Option<Bytes>,
    },
    /// Splices that are in order and do not overlap.
    Edit {
        /// The file as it was.
        found: FetchedFile,
        /// What changes.
        splices: Vec<Splice>,
    },
    /// The file goes.
    Remove {
        /// The file as it was.
        found: FetchedFile,
    },
    /// A symlink goes; what it leads to stays as it is.
    Unlink {
        /// The link.
        place: Bytes,
        /// Where it leads, as it says itself.
        link: Bytes,
    },
}

/// Why changes were not made. None was then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// A file is no longer as it was found: fetched again, it may work.
    #[error("{0}")]
    Conflict(String),
    /// Anything else.
    #[error("{0}")]
    Failed(#[from] WorkspaceError),
}

/// What `terminal` asks of a target.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// Shell text, as the script gave it.
    pub command: String,
    /// Time that it may run; the session's default when `None`.
    pub timeout: Option<Duration>,
    /// Where it starts; the session's working directory when `None`.
    pub workdir: Option<String>,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// stdout and stderr in the order in which they were written, as a terminal shows them.
    pub output: String,
    /// That it was too long to be shown whole: a line in it says how much is left out.
    pub truncation: Option<Truncation>,
    /// The shell's exit code; 128 + signal when a signal ended it; 124 after a timeout.
    pub exit_code: i32,
    /// What went wrong beside the exit code.
    pub error: Option<String>,
}

/// Why a target could not do what it was asked: a sentence for the model that must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkspaceError(pub String);

/// Files and commands of one session on its target. Relative paths start at the session's
/// working directory, `~` is the target user's home.
///
/// Where `reply` is given, the target may answer that call itself, as the built-in tool of this kind would: give it only
/// where that is the answer.
#[async_trait]
pub trait Workspace: Send + Sync {
    /// The session's working directory as it is now; `None` before the place is known.
    fn folder(&self) -> Option<PathBuf>;
    /// Reads one page of a file.
    async fn read_page(&self, request: ReadRequest, reply: Option<&Arc<Reply>>) -> Result<Page, WorkspaceError>;
    /// Writes a file whole or not at all, making the folders that are missing.
    async fn write(&self, path: &str, content: &str, reply: Option<&Arc<Reply>>) -> Result<Written, WorkspaceError>;
    /// Searches files, or for them. Dropped, it ends soon.
    async fn search(&self, request: SearchRequest, reply: Option<&Arc<Reply>>) -> Result<Found, WorkspaceError>;
    /// What some paths are called on the target, links and all, whether or not something is there. `roots` are such as
    /// begin rules: their relative paths start where the session started.
    async fn names(&self, roots: Vec<String>, paths: Vec<String>) -> Result<(Vec<Names>, Vec<Names>), WorkspaceError>;
    /// What there is under some paths.
    async fn fetch(&self, paths: Vec<String>) -> Result<Vec<Fetched>, WorkspaceError>;
    /// Makes all changes or none. No file is ever to be seen half written. With a reply comes what it is when they are
    /// made.
    async fn change(&self, changes: Vec<FileChange>, reply: Option<(&Arc<Reply>, &Value)>) -> Result<(), ChangeError>;
    /// Runs a shell command in the session's terminal state; killed when `cancel` fires.
    async fn run(&self, request: CommandRequest, cancel: &CancellationToken) -> Result<CommandOutput, WorkspaceError>;
}
