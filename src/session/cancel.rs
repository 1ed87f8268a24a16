//! Cancelling a cell: with the grace that its processes get, or at once.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// A switch that a caller keeps while its cell runs.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    asked: CancellationToken,
    at_once: CancellationToken,
    reason: Arc<Mutex<Option<String>>>,
}

impl Cancel {
    /// A switch that is off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the cell: SIGTERM to its processes, SIGKILL after 5 s. The first reason given is the one
    /// that the outcome names.
    pub fn cancel(&self, reason: impl Into<String>) {
        self.slot().get_or_insert_with(|| reason.into());
        self.asked.cancel();
    }

    /// Ends the cell without the grace.
    pub fn cancel_at_once(&self, reason: impl Into<String>) {
        self.cancel(reason);
        self.at_once.cancel();
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.asked.is_cancelled()
    }

    pub(super) async fn cancelled(&self) {
        self.asked.cancelled().await;
    }

    pub(super) async fn cancelled_at_once(&self) {
        self.at_once.cancelled().await;
    }

    pub(super) fn reason(&self) -> String {
        self.slot()
            .clone()
            .unwrap_or_else(|| "user sent a new message".to_owned())
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
