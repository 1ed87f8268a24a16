//! The end of a sandbox: when it is in sight, and how one of ours is ended.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::options::ModalOptions;
use super::sandbox::Sandbox;
use super::snapshots::{self, Snapshot};
use crate::backends::BackendError;
use crate::limits::format_duration;

/// From which part of its life on outcomes say when a sandbox will end.
const LATE: f64 = 0.8;

/// The time in which a close must have kept files and ended the sandbox.
const CLOSE_LIMIT: Duration = Duration::from_secs(150);

/// The end of a sandbox of ours: once, whoever asks for it.
#[derive(Clone)]
pub(super) struct End {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) options: Arc<ModalOptions>,
    pub(super) is_under_way: Arc<AtomicBool>,
}

impl End {
    /// Ends it when nobody holds it any more and it was not closed.
    pub(super) async fn when(self, dropped: CancellationToken) {
        dropped.cancelled().await;
        if let Err(left) = self.now().await {
            warn!("{left}");
        }
    }

    /// Ends it, unless that is under way or it is to stay.
    pub(super) async fn now(self) -> Result<(), BackendError> {
        if self.is_under_way.swap(true, Ordering::AcqRel) || self.options.keep {
            return Ok(());
        }
        let end = async {
            if let Some(file) = &self.options.snapshots {
                self.keep_files(file).await;
            }
            let ended = self.sandbox.terminate().await;
            ended.map_err(|failed| self.left(&failed.message))
        };
        match tokio::time::timeout(CLOSE_LIMIT, end).await {
            Ok(ended) => ended,
            Err(_) => Err(self.left("it took too long")),
        }
    }

    /// Keeps the files for the next session. What fails here fails nothing else.
    async fn keep_files(&self, file: &Path) {
        let sandbox = &self.sandbox.id;
        match self.sandbox.snapshot().await {
            Ok(image) => {
                let snapshot = Snapshot {
                    image,
                    of: self.options.image.clone(),
                };
                match snapshots::write(file, &snapshot) {
                    Ok(()) => info!(sandbox, image = snapshot.image, "the files of a sandbox were kept"),
                    Err(error) => {
                        warn!(sandbox, image = snapshot.image, file = %file.display(), %error, "it cannot be written down where the files of a sandbox are kept");
                    }
                }
            }
            Err(failed) => warn!(
                sandbox,
                message = failed.message,
                "the files of a sandbox could not be kept"
            ),
        }
    }

    fn left(&self, reason: &str) -> BackendError {
        BackendError::Unreachable {
            target: self.options.target.clone(),
            reason: format!("its sandbox {} could not be ended: {reason}", self.sandbox.id),
            advice: "it ends by itself once nothing runs in it any more (modal_idle_timeout); https://modal.com/apps shows it"
                .to_owned(),
        }
    }
}

/// What outcomes say of a sandbox that will end soon.
pub(super) fn end_in_sight(id: &str, passed: Duration, lifetime: Duration) -> Option<String> {
    if passed < lifetime.mul_f64(LATE) {
        return None;
    }
    let left = Duration::from_secs(lifetime.saturating_sub(passed).as_secs());
    Some(format!(
        "the sandbox {id} ends in {}, at the end of its life of {} (modal_lifetime); what is in memory and on its disk \
         is lost then",
        format_duration(left),
        format_duration(lifetime)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_told_of_from_four_fifths_of_a_life_on() {
        let life = Duration::from_secs(3600);
        for (passed, words) in [
            (0, None),
            (2879, None),
            (2880, Some("ends in 12m, at the end of its life of 1h (modal_lifetime)")),
            (3541, Some("ends in 59s")),
            (4000, Some("ends in 0s")),
        ] {
            let said = end_in_sight("sb-1", Duration::from_secs(passed), life);
            assert_eq!(said.is_some(), words.is_some(), "{passed}: {said:?}");
            let said = said.unwrap_or_default();
            assert!(words.is_none_or(|words| said.contains(words)), "{passed}: {said}");
        }
    }
}
