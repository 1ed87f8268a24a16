//! A sandbox: made or found, asked how it is, ended. Modal has two generations of them, whose calls differ.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tonic::Code;

use super::control::{CallFailed, Control};
use super::exec::secret_source;
use super::failure::{Asked, Wanted, ending};
use super::retry::Policy;
use super::router::{Access, Lookup, Router};
use super::wire::client::sandbox_get_command_router_access_request::Target as AccessTarget;
use super::wire::client::{
    GenericResult, ObjectCreationType, Sandbox as Definition, SandboxCreateRequest, SandboxCreateV2Request,
    SandboxGetCommandRouterAccessRequest, SandboxGetTaskIdRequest, SandboxTag, SandboxTerminateRequest,
    SandboxWaitRequest, SecretGetOrCreateRequest, TaskGetCommandRouterAccessRequest,
};
use super::wire::task_command_router::TaskSnapshotFilesystemRequest;
use crate::backends::{BackendError, Progress};
use crate::environment::Secret;

/// Time between two questions whether a sandbox of the older generation runs by now, and time after which it never will.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const PLACE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Time in which the files of a sandbox are kept for another one.
const SNAPSHOT: Policy = Policy {
    attempt: Duration::from_secs(110),
    total: Some(Duration::from_secs(120)),
    ..Policy::ROUTER
};

/// Time in which a sandbox is ended.
const TERMINATE: Policy = Policy {
    attempt: Duration::from_secs(10),
    total: Some(Duration::from_secs(20)),
    ..Policy::CONTROL
};

/// Which calls a sandbox answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    Older,
    Newer,
}

impl Generation {
    /// The generation of a sandbox, as its id shows it.
    pub(super) fn of(id: &str) -> Self {
        let rest = id.strip_prefix("sb-").unwrap_or(id);
        if rest.len() == 22 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Self::Older
        } else {
            Self::Newer
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Older => "older (V1)",
            Self::Newer => "newer (V2)",
        })
    }
}

/// What is made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) app: String,
    pub(super) environment: String,
    pub(super) definition: Definition,
    pub(super) tags: HashMap<String, String>,
    pub(super) variables: HashMap<String, String>,
}

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
    /// Makes one, of the newer generation where that can be.
    pub(super) async fn create(
        control: Arc<Control>,
        asked: Asked<'_>,
        plan: &Plan,
        progress: &dyn Progress,
    ) -> Result<Self, BackendError> {
        let resources = plan.definition.resources.as_ref();
        let gpu = resources.and_then(|resources| resources.gpu_config.as_ref());
        let regions = plan.definition.scheduler_placement.as_ref();
        let wanted = Wanted::Sandbox {
            regions: regions.map_or(&[], |placement| placement.regions.as_slice()),
            gpu: gpu.map(|gpu| gpu.gpu_type.as_str()),
        };
        // The newer generation has no graphics processors.
        if gpu.is_none() {
            match Self::create_newer(control.clone(), plan).await {
                Err(failed) if failed.code == Code::Unimplemented => {}
                made => return made.map_err(|failed| asked.failed(wanted, &failed)),
            }
        }
        let id = Self::create_older(&control, plan)
            .await
            .map_err(|failed| asked.failed(wanted, &failed))?;
        match Self::place(control.clone(), asked, &id, wanted, progress).await {
            Ok(sandbox) => Ok(sandbox),
            Err(error) => {
                // Nobody will come for it any more.
                terminate(&control, &id, Generation::Older, None).await.ok();
                Err(error)
            }
        }
    }

    async fn create_newer(control: Arc<Control>, plan: &Plan) -> Result<Self, CallFailed> {
        let request = SandboxCreateV2Request {
            app_id: plan.app.clone(),
            definition: Some(plan.definition.clone()),
            tags: tags(&plan.tags),
            secret_sources: secret_source(plan.variables.clone()),
        };
        let since = Instant::now();
        let made = control
            .call_v2(
                "SandboxCreateV2",
                Policy::CREATE,
                request,
                None,
                |mut client, request| async move { client.sandbox_create_v2(request).await },
            )
            .await?;
        let token = Some(made.sandbox_token)
            .filter(|token| !token.is_empty())
            .map(Secret::new);
        let access = made.command_router_access.map(|access| Access {
            url: access.url,
            token: Secret::new(access.jwt),
        });
        let generation = Generation::Newer;
        let task = match made.task_id {
            task if task.is_empty() => task_id(&control, &made.sandbox_id, generation, token.as_ref()).await?,
            task => task,
        };
        Self::with(control, made.sandbox_id, task, generation, token, access, since).await
    }

    async fn create_older(control: &Control, plan: &Plan) -> Result<String, CallFailed> {
        let mut definition = plan.definition.clone();
        if !plan.variables.is_empty() {
            let request = SecretGetOrCreateRequest {
                environment_name: plan.environment.clone(),
                // Without a name, so that it goes with its app.
                object_creation_type: ObjectCreationType::AnonymousOwnedByApp.into(),
                env_dict: plan.variables.clone(),
                app_id: plan.app.clone(),
                ..SecretGetOrCreateRequest::default()
            };
            let made = control.call(
                "SecretGetOrCreate",
                Policy::CONTROL,
                request,
                |mut client, request| async move { client.secret_get_or_create(request).await },
            );
            definition.secret_ids.push(made.await?.secret_id);
        }
        let request = SandboxCreateRequest {
            app_id: plan.app.clone(),
            definition: Some(definition),
            tags: tags(&plan.tags),
        };
        let made = control.call(
            "SandboxCreate",
            Policy::CREATE,
            request,
            |mut client, request| async move { client.sandbox_create(request).await },
        );
        Ok(made.await?.sandbox_id)
    }

    /// Waits until a sandbox of the older generation has a place to run.
    async fn place(
        control: Arc<Control>,
        asked: Asked<'_>,
        id: &str,
        wanted: Wanted<'_>,
        progress: &dyn Progress,
    ) -> Result<Self, BackendError> {
        let fails = |failed: CallFailed| asked.failed(wanted, &failed);
        let began = Instant::now();
        loop {
            let found = ask_task_id(&control, id, Generation::Older, None)
                .await
                .map_err(fails)?;
            if let Some(how) = found.1.as_ref().and_then(|result| ending(result, None, None)) {
                return Err(asked.gone(&format!("its sandbox {how}"), "try again"));
            }
            if let Some(task) = found.0 {
                let made = Self::with(control, id.to_owned(), task, Generation::Older, None, None, began);
                return made.await.map_err(fails);
            }
            if began.elapsed() > PLACE_LIMIT {
                let reason = format!(
                    "Modal found no place for its sandbox within {} min",
                    PLACE_LIMIT.as_secs() / 60
                );
                return Err(asked.error(
                    false,
                    reason,
                    "try again later, or ask for less (modal_gpu, modal_region)",
                ));
            }
            progress.note("waiting for a place for the sandbox");
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

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

    async fn with(
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

fn tags(tags: &HashMap<String, String>) -> Vec<SandboxTag> {
    let mut tags: Vec<SandboxTag> = tags
        .iter()
        .map(|(name, value)| SandboxTag {
            tag_name: name.clone(),
            tag_value: value.clone(),
        })
        .collect();
    tags.sort_by(|one, other| one.tag_name.cmp(&other.tag_name));
    tags
}

/// How a sandbox has ended, where it has.
async fn wait(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<Option<GenericResult>, CallFailed> {
    let request = SandboxWaitRequest {
        sandbox_id: id.to_owned(),
        timeout: 0.0,
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxWaitV2",
                    Policy::QUESTION,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_wait_v2(request).await },
                )
                .await?
        }
        Generation::Older => {
            control
                .call(
                    "SandboxWait",
                    Policy::QUESTION,
                    request,
                    |mut client, request| async move { client.sandbox_wait(request).await },
                )
                .await?
        }
    };
    Ok(answer.result)
}

/// Ends a sandbox. One that has ended is no error.
pub(super) async fn terminate(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<(), CallFailed> {
    let request = SandboxTerminateRequest {
        sandbox_id: id.to_owned(),
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxTerminateV2",
                    TERMINATE,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_terminate_v2(request).await },
                )
                .await
        }
        Generation::Older => {
            control
                .call(
                    "SandboxTerminate",
                    TERMINATE,
                    request,
                    |mut client, request| async move { client.sandbox_terminate(request).await },
                )
                .await
        }
    };
    match answer {
        Err(failed) if failed.code != Code::NotFound => Err(failed),
        _ => Ok(()),
    }
}

/// The task that a sandbox runs as, or how it has ended.
async fn ask_task_id(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<(Option<String>, Option<GenericResult>), CallFailed> {
    let request = SandboxGetTaskIdRequest {
        sandbox_id: id.to_owned(),
        timeout: None,
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxGetTaskIdV2",
                    Policy::CONTROL,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_get_task_id_v2(request).await },
                )
                .await?
        }
        Generation::Older => {
            control
                .call(
                    "SandboxGetTaskId",
                    Policy::CONTROL,
                    request,
                    |mut client, request| async move { client.sandbox_get_task_id(request).await },
                )
                .await?
        }
    };
    Ok((answer.task_id.filter(|task| !task.is_empty()), answer.task_result))
}

/// The task that a sandbox runs as, once it does.
async fn task_id(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<String, CallFailed> {
    let began = Instant::now();
    loop {
        match ask_task_id(control, id, generation, token).await? {
            (Some(task), _) => return Ok(task),
            (None, _) if began.elapsed() > TASK_LIMIT => {
                let late = tonic::Status::deadline_exceeded("its sandbox has no place to run yet");
                return Err(CallFailed::of(&late));
            }
            (None, _) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}

/// Time in which a sandbox that exists says what it runs as.
const TASK_LIMIT: Duration = Duration::from_secs(60);

/// Asks for access to the worker of a sandbox.
struct AccessOf {
    control: Arc<Control>,
    id: String,
    task: String,
    generation: Generation,
    token: Option<Secret>,
}

#[async_trait]
impl Lookup for AccessOf {
    async fn access(&self) -> Result<Access, CallFailed> {
        let (url, jwt) = match self.generation {
            Generation::Newer => {
                let request = SandboxGetCommandRouterAccessRequest {
                    target: Some(AccessTarget::SandboxId(self.id.clone())),
                };
                let token = self.token.as_ref();
                let asked = self.control.call_v2(
                    "SandboxGetCommandRouterAccess",
                    Policy::CONTROL,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_get_command_router_access(request).await },
                );
                let access = asked.await?;
                (access.url, access.jwt)
            }
            Generation::Older => {
                let request = TaskGetCommandRouterAccessRequest {
                    task_id: self.task.clone(),
                };
                let asked = self.control.call(
                    "TaskGetCommandRouterAccess",
                    Policy::CONTROL,
                    request,
                    |mut client, request| async move { client.task_get_command_router_access(request).await },
                );
                let access = asked.await?;
                (access.url, access.jwt)
            }
        };
        Ok(Access {
            url,
            token: Secret::new(jwt),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_shows_its_generation() {
        for (id, generation) in [
            ("sb-abcdefghijABCDEFGHIJ12", Generation::Older),
            ("sb-abcdefghijABCDEFGHIJ1", Generation::Newer),
            ("sb-abcdefghijABCDEFGHIJ123", Generation::Newer),
            ("sb-abcdefghij-BCDEFGHIJ12", Generation::Newer),
            ("sb-", Generation::Newer),
        ] {
            assert_eq!(Generation::of(id), generation, "{id}");
        }
    }
}
