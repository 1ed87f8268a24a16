//! The link as the kernel floor sees it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::ready::Facts;
use super::shared::Shared;
use super::start::{self, Start, StartError};
use crate::link::introduction::Introduction;
use crate::link::{Link, LinkCommand, LinkError, LinkEvent, Relinks};

/// A link over a directory on the target. When it is dropped the session there is told to end, as far as that can be
/// said within a few seconds; otherwise it ends when its lease runs out.
pub struct FileLink {
    shared: Arc<Shared>,
    dropped: CancellationToken,
    folder: String,
    calls_folder: String,
    transport: &'static str,
    facts: Facts,
    introduction: Introduction,
    rejected: Vec<(String, String)>,
}

impl FileLink {
    /// Starts a session's guard and supervisor on the target, with the first interpreter that is fit.
    ///
    /// # Errors
    /// When none is, when the place is unfit, or when the target cannot be reached.
    pub async fn start(start: Start) -> Result<Self, StartError> {
        start::start(start).await
    }

    pub(super) fn new(
        shared: Arc<Shared>,
        dropped: CancellationToken,
        folder: String,
        transport: &'static str,
        facts: Facts,
        introduction: Introduction,
        rejected: Vec<(String, String)>,
    ) -> Self {
        Self {
            shared,
            dropped,
            calls_folder: format!("{folder}/rpc"),
            folder,
            transport,
            facts,
            introduction,
            rejected,
        }
    }

    /// What the place is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// `3.11.7`, of the interpreter that runs the supervisor.
    #[must_use]
    pub fn python_version(&self) -> &str {
        &self.introduction.version
    }

    /// Path of that interpreter, as it knows itself.
    #[must_use]
    pub fn python(&self) -> &str {
        &self.introduction.python
    }

    /// Interpreters that were unfit for the supervisor, and what was found.
    #[must_use]
    pub fn rejected(&self) -> &[(String, String)] {
        &self.rejected
    }
}

impl Drop for FileLink {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.shared.send(&LinkCommand::Close);
        self.dropped.cancel();
    }
}

#[async_trait]
impl Link for FileLink {
    fn send(&self, command: LinkCommand) -> Result<(), LinkError> {
        self.shared.send(&command)
    }

    async fn next(&self) -> Result<LinkEvent, LinkError> {
        self.shared.next().await
    }

    async fn open_for_calls(&self) -> Result<(), LinkError> {
        // The supervisor sees to the directory.
        Ok(())
    }

    fn variables(&self) -> Vec<(String, String)> {
        vec![("HERMES_RPC_DIR".to_owned(), self.calls_folder.clone())]
    }

    fn token(&self) -> &str {
        self.shared.token()
    }

    fn folder(&self) -> &str {
        &self.folder
    }

    fn relinks(&self) -> Relinks {
        self.shared.lock().relinks.clone()
    }

    fn transport(&self) -> &'static str {
        self.transport
    }
}
