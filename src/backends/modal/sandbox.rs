//! A sandbox: found by its id, asked how it is, its files kept, ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::control::{CallFailed, Control};
use super::failure::{Asked, Wanted, ending};
use super::generation::{AccessOf, Generation, task_id, terminate, wait};
use super::retry::Policy;
use super::router::{Access, Router};
use super::wire::task_command_router::TaskSnapshotFilesystemRequest;
use crate::backends::BackendError;
use crate::environment::Secret;

/// Time in which the files of a sandbox are kept for another one.
const SNAPSHOT: Policy = Policy {
    attempt: Duration::from_secs(110),
    total: Some(Duration::from_secs(120)),
    ..Policy::ROUTER
};

/// A sandbox.
pub(super) struct Sandbox {
    control: Arc<Control>,
    pub(super) id: String,
    pub(super) task: String,
    pub(super) generation: Generation,
    pub(super) router: Arc<Router>,
    /// What the calls of this one carry beside, where Modal gave it.
    token: Option<Secret>,
    /// When it was made, as far as that is known.
    pub(super) since: Instant,
}

/// What became of a sandbox that is asked how it is.
pub(super) enum Health {
    Runs,
    /// It has ended: how, as a phrase behind "its sandbox".
    Ended(String),
    /// Nobody knows.
    Unknown(CallFailed),
}

impl Sandbox {
    /// Finds one that exists.
    pub(super) async fn attach(control: Arc<Control>, asked: Asked<'_>, id: &str) -> Result<Self, BackendError> {
        let generation = Generation::of(id);
        let wanted = Wanted::Existing(id);
        let fails = |failed: CallFailed| asked.failed(wanted, &failed);
        let result = wait(&control, id, generation, None).await.map_err(fails)?;
        if let Some(how) = result.as_ref().and_then(|result| ending(result, None, None)) {
            return Err(asked.gone(&format!("the sandbox {id} {how}"), "`modal:IMAGE` makes a new one"));
        }
        let task = task_id(&control, id, generation, None).await.map_err(fails)?;
        Self::with(control, id.to_owned(), task, generation, None, None, Instant::now())
            .await
            .map_err(fails)
    }

    /// One that runs as this task.
    pub(super) async fn with(
        control: Arc<Control>,
        id: String,
        task: String,
        generation: Generation,
        token: Option<Secret>,
        access: Option<Access>,
        since: Instant,
    ) -> Result<Self, CallFailed> {
        let lookup = AccessOf {
            control: control.clone(),
            id: id.clone(),
            task: task.clone(),
            generation,
            token: token.clone(),
        };
        let router = Router::new(control.connector.clone(), Box::new(lookup), control.is_here());
        if let Some(access) = access {
            router.take(access).await?;
        }
        Ok(Self {
            control,
            id,
            task,
            generation,
            router,
            token,
            since,
        })
    }

    /// Asks how it is; in seconds.
    pub(super) async fn health(&self, lifetime: Option<Duration>, idle: Option<Duration>) -> Health {
        match wait(&self.control, &self.id, self.generation, self.token.as_ref()).await {
            Ok(result) => match result.and_then(|result| ending(&result, lifetime, idle)) {
                Some(how) => Health::Ended(how),
                None => Health::Runs,
            },
            Err(failed) if failed.code == Code::NotFound => Health::Ended("is not known to Modal any more".to_owned()),
            Err(failed) => Health::Unknown(failed),
        }
    }

    /// Ends it. One that has ended is no error.
    pub(super) async fn terminate(&self) -> Result<(), CallFailed> {
        terminate(&self.control, &self.id, self.generation, self.token.as_ref()).await
    }

    /// Keeps its files as an image: the id.
    pub(super) async fn snapshot(&self) -> Result<String, CallFailed> {
        let request = TaskSnapshotFilesystemRequest {
            task_id: self.task.clone(),
            snapshot_id: super::unique(),
        };
        let taken = self.router.call(
            "TaskSnapshotFilesystem",
            SNAPSHOT,
            request,
            |mut client, request| async move { client.task_snapshot_filesystem(request).await },
        );
        Ok(taken.await?.image_id)
    }
}
