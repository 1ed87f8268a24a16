//! A sandbox is made: of the newer generation where that can be, else of the older one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::control::{CallFailed, Control};
use super::exec::secret_source;
use super::failure::{Asked, Wanted, ending};
use super::generation::{ASK_AGAIN, Generation, ask_task_id, task_id, terminate};
use super::retry::Policy;
use super::router::Access;
use super::sandbox::Sandbox;
use super::waiting::Wait;
use super::wire::client::{
    ObjectCreationType, Sandbox as Definition, SandboxCreateRequest, SandboxCreateV2Request, SandboxTag,
    SecretGetOrCreateRequest,
};
use crate::backends::BackendError;
use crate::environment::Secret;

/// Time after which a sandbox of the older generation that has no place to run will never have one.
const PLACE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What is made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) app: String,
    pub(super) environment: String,
    pub(super) definition: Definition,
    pub(super) tags: HashMap<String, String>,
    pub(super) variables: HashMap<String, String>,
}

impl Sandbox {
    /// Makes one, of the newer generation where that can be.
    pub(super) async fn create(control: Arc<Control>, asked: Asked<'_>, plan: &Plan) -> Result<Self, BackendError> {
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
        match Self::place(control.clone(), asked, &id, wanted).await {
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
        let (id, generation) = (made.sandbox_id, Generation::Newer);
        let reached = async {
            let task = match made.task_id {
                task if task.is_empty() => task_id(&control, &id, generation, token.as_ref()).await?,
                task => task,
            };
            Self::with(
                control.clone(),
                id.clone(),
                task,
                generation,
                token.clone(),
                access,
                since,
            )
            .await
        };
        match reached.await {
            Ok(sandbox) => Ok(sandbox),
            Err(failed) => {
                // Nobody will come for it any more.
                terminate(&control, &id, generation, token.as_ref()).await.ok();
                Err(failed)
            }
        }
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
            let wait = Wait::at_once("waiting for a place for the sandbox".to_owned());
            control.waits.pause(ASK_AGAIN, wait).await;
        }
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
