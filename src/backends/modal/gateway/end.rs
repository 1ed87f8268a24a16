//! The end of a sandbox that was made here: when its session closes it, or, for want of that, when nobody holds it any more.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::client::{Patience, Request};
use super::exec::Place;
use super::records;
use crate::backends::BackendError;
use crate::limits::format_duration;

/// Ending a sandbox may mean keeping its files.
const TERMINATE: Patience = Patience {
    attempt: Duration::from_secs(90),
    total: Duration::from_secs(120),
};

/// What ends it.
#[derive(Clone)]
pub(super) struct End {
    pub(super) place: Arc<Place>,
    pub(super) target: String,
    /// Whether its files are kept.
    pub(super) snapshot: bool,
    /// The time after which it ends when nothing runs in it.
    pub(super) idle_timeout: Duration,
    /// The file in which it is written down.
    pub(super) record: Option<PathBuf>,
    pub(super) is_under_way: Arc<AtomicBool>,
}

impl End {
    /// The end comes at the latest when the guard is dropped.
    pub(super) fn with_guard(&self) -> DropGuard {
        let (end, dropped) = (self.clone(), CancellationToken::new());
        let guard = dropped.clone().drop_guard();
        tokio::spawn(async move {
            dropped.cancelled().await;
            if let Err(error) = end.now().await {
                warn!(%error, "a sandbox that nobody holds may be left");
            }
        });
        guard
    }

    /// Ends it, unless that is under way.
    pub(super) async fn now(&self) -> Result<(), BackendError> {
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let body = json!({"snapshotBeforeTerminate": self.snapshot});
        let request = Request::post(self.place.path("/terminate"), &body);
        match self.place.client.ask(&request, TERMINATE).await {
            Err(failed) if !failed.is_missing() => {
                let (id, why) = (&self.place.id, failed.line());
                Err(BackendError::Unreachable {
                    target: self.target.clone(),
                    reason: format!("its sandbox {id} could not be ended: {why}"),
                    advice: format!(
                        "it ends by itself when nothing runs in it for {}",
                        format_duration(self.idle_timeout)
                    ),
                })
            }
            _ => {
                if let Some(record) = &self.record {
                    records::remove(record);
                }
                Ok(())
            }
        }
    }
}
