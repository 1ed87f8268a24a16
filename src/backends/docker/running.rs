//! A container that runs already: commands run in it, and nothing else is done to it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{ContainerState, ContainerSummary};
use bollard::query_parameters::{InspectContainerOptions, ListContainersOptionsBuilder};

use super::compose::{ComposeService, Replica};
use super::engine::{Engine, EngineSources};
use super::exec::{self, ExecOptions};
use super::failure;
use crate::backends::{Backend, BackendError, Capabilities, Command, Phase, Process, Progress, Target, TargetState};
use crate::suggest::nearest;

/// Time in which an engine says what became of a container.
const STATE_LIMIT: Duration = Duration::from_secs(5);

/// How a running container is used. Plain data: who makes it has read the configuration.
#[derive(Clone, Debug)]
pub struct RunningOptions {
    /// The target as the user wrote it.
    pub target: String,
    /// Which container.
    pub which: Which,
    /// Which engine.
    pub engine: EngineSources,
    /// `USER[:GROUP]` of commands; the container's own when `None`.
    pub user: Option<String>,
    /// Where commands start (`terminal.cwd`); the container's own when `None`.
    pub folder: Option<String>,
    /// Variables that commands get beside the container's own. The engine shows them to everybody who may use it.
    pub environment: std::collections::BTreeMap<String, String>,
}

/// Which container is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// By name or identifier: `container:NAME`.
    Name(String),
    /// By service: `compose:[PROJECT/]SERVICE[#N]`.
    Service(ComposeService),
}

/// The backend of `container:NAME` and `compose:SERVICE`.
#[derive(Clone, Debug)]
pub struct DockerContainer {
    options: RunningOptions,
}

impl DockerContainer {
    /// The container that `options` say.
    #[must_use]
    pub fn new(options: RunningOptions) -> Self {
        Self { options }
    }
}

#[async_trait]
impl Backend for DockerContainer {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        let options = self.options.clone();
        progress.phase(Phase::Connect);
        let engine = options.engine.connect(&options.target).await?;
        let refused = |(reason, advice): (String, String)| BackendError::Refused {
            target: options.target.clone(),
            reason,
            advice,
        };
        let name = match &options.which {
            Which::Name(name) => name.clone(),
            Which::Service(service) => {
                let replicas = replicas(&engine, &options.target).await?;
                service.choose(&replicas).map_err(refused)?
            }
        };
        let (id, name) = find(&engine, &options.target, &name).await?;
        Ok(Arc::new(Running {
            options,
            engine,
            id,
            name,
        }))
    }
}

/// The identifier and the name of a container that runs.
async fn find(engine: &Engine, target: &str, wanted: &str) -> Result<(String, String), BackendError> {
    let refused = |reason: String, advice: String| BackendError::Refused {
        target: target.to_owned(),
        reason,
        advice,
    };
    let is_name = wanted.starts_with(|c: char| c.is_ascii_alphanumeric())
        && wanted
            .chars()
            .all(|c: char| c.is_ascii_alphanumeric() || "_.-".contains(c));
    let found = if is_name {
        engine
            .docker
            .inspect_container(wanted, None::<InspectContainerOptions>)
            .await
    } else {
        return Err(refused(
            format!("`{wanted}` is no name of a container"),
            "`docker ps` shows their names".to_owned(),
        ));
    };
    let found = match found {
        Ok(found) => found,
        Err(error) if failure::status(&error) == Some(404) => {
            let names = names(engine).await;
            let advice = match nearest(wanted, names.iter().map(String::as_str)) {
                Some(right) => format!("did you mean container:{right}?"),
                None if names.is_empty() => "none runs there; start it, or write docker:IMAGE for a new one".to_owned(),
                None => format!("those that run are {}", names.join(", ")),
            };
            return Err(refused(
                format!("there is no container {wanted} on {}", engine.address),
                advice,
            ));
        }
        Err(error) => return Err(failure::engine_failed(target, &engine.address, &error)),
    };
    let state = found.state.unwrap_or_default();
    let name = found
        .name
        .as_deref()
        .map_or(wanted, |name| name.trim_start_matches('/'))
        .to_owned();
    if state.paused == Some(true) {
        return Err(refused(
            format!("the container {name} is paused"),
            format!("let it go on with `docker unpause {name}`"),
        ));
    }
    if state.running != Some(true) {
        return Err(refused(
            format!("the container {name} does not run ({})", status(&state)),
            format!("start it with `docker start {name}`"),
        ));
    }
    Ok((found.id.unwrap_or_else(|| wanted.to_owned()), name))
}

fn status(state: &ContainerState) -> String {
    let status = state.status.map(|status| status.to_string()).unwrap_or_default();
    match state.exit_code {
        Some(code) if status == "exited" => format!("{status} with code {code}"),
        _ => status,
    }
}

async fn names(engine: &Engine) -> Vec<String> {
    let found = engine
        .docker
        .list_containers(Some(ListContainersOptionsBuilder::default().build()))
        .await;
    let mut names: Vec<String> = found.unwrap_or_default().iter().filter_map(name_of).collect();
    names.sort();
    names
}

fn name_of(summary: &ContainerSummary) -> Option<String> {
    Some(summary.names.as_ref()?.first()?.trim_start_matches('/').to_owned())
}

/// All containers that compose made.
async fn replicas(engine: &Engine, target: &str) -> Result<Vec<Replica>, BackendError> {
    let filters = std::collections::HashMap::from([("label", vec![super::compose::PROJECT])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let found = engine.docker.list_containers(Some(options)).await;
    let found = found.map_err(|error| failure::engine_failed(target, &engine.address, &error))?;
    Ok(found
        .into_iter()
        .filter_map(|summary| {
            let name = name_of(&summary)?;
            let state = summary.state.map(|state| state.to_string()).unwrap_or_default();
            Replica::read(name, &state, &summary.labels.unwrap_or_default())
        })
        .collect())
}

/// The state of a container; `None` where it is no longer there.
///
/// # Errors
/// As a sentence, when the engine does not say.
pub(super) async fn inspect(engine: &Engine, id: &str) -> Result<Option<ContainerState>, String> {
    let asked = engine.docker.inspect_container(id, None::<InspectContainerOptions>);
    match tokio::time::timeout(STATE_LIMIT, asked).await {
        Ok(Ok(container)) => Ok(Some(container.state.unwrap_or_default())),
        Ok(Err(error)) if failure::status(&error) == Some(404) => Ok(None),
        Ok(Err(error)) => Err(format!(
            "the container engine at {} does not answer: {}",
            engine.address,
            failure::words(&error)
        )),
        Err(_) => Err(format!(
            "the container engine at {} did not answer within {} s",
            engine.address,
            STATE_LIMIT.as_secs()
        )),
    }
}

/// What the state of a container that is there means, where it has not ended.
pub(super) fn state_of(state: &ContainerState) -> TargetState {
    if state.paused == Some(true) {
        TargetState::Paused
    } else if state.running == Some(true) {
        TargetState::Running {
            incarnation: state.started_at.clone().unwrap_or_default(),
            machine: String::new(),
        }
    } else {
        TargetState::Gone(status(state))
    }
}

struct Running {
    options: RunningOptions,
    engine: Engine,
    id: String,
    name: String,
}

#[async_trait]
impl Target for Running {
    fn capabilities(&self) -> Capabilities {
        super::CAPABILITIES
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let options = ExecOptions {
            user: self.options.user.clone(),
            folder: self.options.folder.clone(),
            environment: self
                .options
                .environment
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        };
        exec::start(
            &self.engine,
            &self.options.target,
            &self.id,
            &self.name,
            &options,
            command,
        )
        .await
    }

    async fn state(&self) -> TargetState {
        let name = &self.name;
        match inspect(&self.engine, &self.id).await {
            Ok(Some(state)) => match state_of(&state) {
                // Who restarts it wants it back: a moment later it runs again, anew.
                TargetState::Gone(_) if state.restarting == Some(true) => {
                    TargetState::Unreachable(format!("the container {name} is restarting"))
                }
                TargetState::Gone(how) if state.oom_killed == Some(true) => TargetState::Gone(format!(
                    "the container {name} ran out of memory ({how}); start it again with `docker start {name}`"
                )),
                TargetState::Gone(how) => TargetState::Gone(format!(
                    "the container {name} was stopped ({how}); start it again with `docker start {name}`"
                )),
                state => state,
            },
            Ok(None) => {
                let again = names(&self.engine).await.iter().any(|other| other == name);
                TargetState::Gone(if again {
                    format!(
                        "the container {name} was replaced by a new one of that name; the next cell runs in that one"
                    )
                } else {
                    format!("the container {name} was removed; make it again")
                })
            }
            Err(reason) => TargetState::Unreachable(reason),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}
