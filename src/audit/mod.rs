//! The audit log: one line of JSON per cell and per tool call, also of those that were refused.
//!
//! Who does something hands a [`Record`] over and goes on; a thread takes secrets out of it and appends it to the log.
//! `docs/audit.md` says what a line holds.

mod account;
mod clock;
mod digest;
mod files;
mod folder;
mod line;
mod record;
mod redact;
mod scripts;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

pub use account::account;
pub use clock::stamp;
pub use digest::of_bytes;
pub use files::{Follower, in_order};
pub use folder::default_folder;
pub use line::Line;
pub use record::{CallEnd, CallStart, CellEnd, Decision, Event, Origin, Record, Script};
pub use redact::harmless;
pub use scripts::find as find_script;
use writer::Writer;

/// Where the log is, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder.
    pub folder: PathBuf,
    /// Bytes above which a new file is begun.
    pub max_bytes: u64,
    /// Older files that are kept beside the one that is written.
    pub keep: usize,
    /// Age at which an older file is removed.
    pub max_age: Duration,
    /// Whether nothing runs that cannot be recorded.
    pub required: bool,
}

/// A log that is written. Cloning it copies a handle.
#[derive(Clone)]
pub struct Audit {
    writer: Arc<Writer>,
    required: bool,
}

/// The most that writing the rest may take at the end.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The logs that this process writes: sessions with the same settings share a thread.
static OPEN: Mutex<Vec<(Settings, Weak<Writer>)>> = Mutex::new(Vec::new());

impl Audit {
    /// The log with these settings. Its folder is made meanwhile; should that fail, [`Audit::failure`] says so.
    #[must_use]
    pub fn open(settings: &Settings) -> Self {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, writer)| writer.strong_count() > 0);
        let shared = open
            .iter()
            .find(|(other, _)| other == settings)
            .and_then(|(_, writer)| writer.upgrade());
        let writer = shared.unwrap_or_else(|| {
            let writer = Arc::new(Writer::start(settings.clone()));
            open.push((settings.clone(), Arc::downgrade(&writer)));
            writer
        });
        Self {
            writer,
            required: settings.required,
        }
    }

    /// Records something. Never waits: should the disk be so slow that thousands of records are waiting, this one is
    /// lost, and the log says how many were.
    pub fn record(&self, record: Record) {
        self.writer.hand_over(record);
    }

    /// Records that something is about to happen. Where the log is required, waits until that is written.
    ///
    /// # Errors
    /// The log is required and cannot be written: it must not happen.
    pub async fn announce(&self, record: Record) -> Result<(), String> {
        if self.required {
            return self.writer.write(record).await;
        }
        self.writer.hand_over(record);
        Ok(())
    }

    /// Why nothing can be written at present.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.writer.failure()
    }

    /// Why nothing may be done at present: the log is required and cannot be written.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.failure().filter(|_| self.required)
    }

    /// Waits until all is written that was recorded, for a few seconds at most.
    pub async fn flush(&self) {
        let _ = tokio::time::timeout(LAST_LINES, self.writer.flush()).await;
    }
}
