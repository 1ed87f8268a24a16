//! Files of a session's target, for its caller.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

use super::cell::Cell;
use super::handle::{CLOSED, Inner, Session, State};
use crate::outcome::Phases;
use crate::tools::{ChangeError, Fetched, FileChange, Splice, Workspace, WorkspaceError};

/// How often is looked whether a start has come so far that files can be reached.
const LOOK: Duration = Duration::from_millis(20);

/// Times that a file is written anew which something else changes meanwhile.
const ATTEMPTS: usize = 3;

impl Session {
    /// Reads a file of the target: `path` is absolute, `~/…`, or relative to the session's working directory. Waits for
    /// no cell that runs; starts what must be there first, if it is not yet.
    ///
    /// # Errors
    /// The target cannot be reached, or there is no such file, or it cannot be read or moved whole (64 MiB).
    pub async fn read_file(&self, path: &str) -> Result<Bytes, WorkspaceError> {
        let _still = self.attached().await?;
        let found = self.inner.workspace.look_at(vec![path.to_owned()]).await?;
        match found.into_iter().next() {
            Some(Fetched::File(file)) => Ok(file.content),
            Some(Fetched::Missing { reason, .. } | Fetched::Link { reason, .. }) => Err(WorkspaceError(reason)),
            None => Err(WorkspaceError(format!("{path} could not be read"))),
        }
    }

    /// Writes a file of the target, whole or not at all, making the folders that are missing; the path that it is found
    /// under. What tools may not write, this does not either.
    ///
    /// # Errors
    /// The target cannot be reached, or the file cannot be written.
    pub async fn write_file(&self, path: &str, content: &Bytes) -> Result<String, WorkspaceError> {
        let _still = self.attached().await?;
        let mut attempts = 1;
        loop {
            let found = self
                .inner
                .workspace
                .fetch(vec![path.to_owned()])
                .await?
                .into_iter()
                .next();
            let (place, change) = match found {
                Some(Fetched::File(found)) => {
                    let whole = Splice {
                        range: 0..found.content.len(),
                        bytes: content.clone(),
                    };
                    let splices = vec![whole];
                    (found.place.clone(), FileChange::Edit { found, splices })
                }
                Some(Fetched::Missing { place, .. }) => {
                    let content = content.clone();
                    let like = None;
                    (place.clone(), FileChange::Create { place, content, like })
                }
                Some(Fetched::Link { reason, .. }) => return Err(WorkspaceError(reason)),
                None => return Err(WorkspaceError(format!("{path} could not be looked at"))),
            };
            match self.inner.workspace.change(vec![change], None).await {
                Ok(()) => return Ok(String::from_utf8_lossy(&place).into_owned()),
                Err(ChangeError::Conflict(_)) if attempts < ATTEMPTS => attempts += 1,
                Err(ChangeError::Conflict(sentence)) => return Err(WorkspaceError(sentence)),
                Err(ChangeError::Failed(error)) => return Err(error),
            }
        }
    }

    /// See [`Inner::attached`]. A start that has begun is brought to its end, whether the caller still waits or not.
    async fn attached(&self) -> Result<Option<OwnedMutexGuard<State>>, WorkspaceError> {
        let inner = self.inner.clone();
        tokio::spawn(async move { inner.attached().await })
            .await
            .map_err(|error| WorkspaceError(format!("the broker failed ({error}); this is a bug of Talaria")))?
    }
}

impl Inner {
    /// Waits until files can be reached.
    async fn attaching(&self) {
        while !self.workspace.is_attached() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sees that files can be reached. As long as the guard is held, what they are reached by does not go; there is none
    /// while a cell runs, which keeps it.
    async fn attached(&self) -> Result<Option<OwnedMutexGuard<State>>, WorkspaceError> {
        let mut state = match self.state.clone().try_lock_owned() {
            Ok(state) => state,
            Err(_) if self.workspace.is_attached() => return Ok(None),
            // A cell has been handed over and will have what files are reached by, before it begins.
            Err(_) => tokio::select! {
                state = self.state.clone().lock_owned() => state,
                () = self.attaching() => return Ok(None),
            },
        };
        if state.closed {
            return Err(WorkspaceError(CLOSED.to_owned()));
        }
        let prepared = self
            .prepare_place(&mut state, &Cell::new(""), &mut Phases::default())
            .await;
        self.touch();
        match prepared {
            Ok(_) => Ok(Some(state)),
            Err(error) => {
                // What was made on the target for this start is not left there.
                if state.live.is_none() && !state.is_here() {
                    self.leave(&mut state).await;
                }
                Err(WorkspaceError(error.to_string()))
            }
        }
    }
}
