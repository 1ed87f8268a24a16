//! The broker: sessions, and the kernels that they share a limit for.
//!
//! What a server needs beside them: sessions that belong to a principal ([`OwnedSessions`]), and executions
//! ([`Executions`]), which are addressed by a handle.

mod executions;
mod handle;
mod owned;
mod watched;

use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::output::prune;
use crate::session::{Session, SessionError, SessionOptions, Slots, spill_folder};

pub use executions::{Attached, Ended, Execution, Executions, Request, StartError, fingerprint};
pub use handle::NoRandom;
pub use owned::{InUse, OpenError, OwnedSession, OwnedSessions};
pub use watched::{Progress, Stage};

/// Age at which output that was kept for `read_file` is removed.
const SPILL_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Opens sessions and keeps the number of their kernels within a limit.
pub struct Broker {
    slots: Arc<Slots>,
    /// Where sessions live, wherever they are opened from.
    runtime: Handle,
    reaper: tokio::task::JoinHandle<()>,
    pruned: Once,
}

impl Broker {
    /// A broker that keeps at most `max_session_kernels` kernels alive. Must be called within a
    /// tokio runtime.
    #[must_use]
    pub fn new(max_session_kernels: usize) -> Self {
        let slots = Arc::new(Slots::new(max_session_kernels));
        let reaper = tokio::spawn(slots.clone().reap_idle());
        Self {
            slots,
            runtime: Handle::current(),
            reaper,
            pruned: Once::new(),
        }
    }

    /// Opens a session. Nothing is started before its first cell.
    ///
    /// # Errors
    /// When the tools of its host cannot be offered to scripts.
    pub fn open(&self, options: SessionOptions) -> Result<Session, SessionError> {
        self.pruned.call_once(|| {
            let folder = spill_folder(&options.environment);
            self.runtime.spawn_blocking(move || prune(&folder, SPILL_KEPT));
        });
        let session = Session::new(options, self.slots.clone())?;
        self.slots.add(&session.inner);
        Ok(session)
    }

    /// Ends all sessions, side by side. Waits for cells that run; cancel those first.
    pub async fn close(&self) {
        let sessions = self.slots.all().into_iter();
        let mut closing: JoinSet<()> = sessions
            .map(|inner| async move { Session { inner }.close().await })
            .collect();
        while closing.join_next().await.is_some() {}
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.reaper.abort();
    }
}
