//! From a resolved target to its backend: what the configuration says, in the terms of each kind of target.

mod modal;

pub use modal::gateway_sources;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::SessionError;
use crate::backends::Backend;
use crate::backends::command::{CommandBackend, CommandOptions};
use crate::backends::docker::{
    ComposeService, DockerContainer, DockerImage, DockerOptions, EngineSources, Network, ProjectSources,
    RunningOptions, Volume, Which, parse_cpus, parse_memory, parse_shm_size,
};
use crate::backends::local::Local;
use crate::backends::ssh::{SshBackend, SshOptions};
use crate::config::{Config, ResolvedTarget, Value};
use crate::environment::{Environment, PassRules};
use crate::target::{TargetError, TargetKind};

/// Where a container sees the working directory of the broker, when that is mounted.
const WORKSPACE: &str = "/workspace";

/// How processes start on a target, and the working directory there that its options imply.
pub(super) fn backend(
    config: &Config,
    target: &ResolvedTarget,
    environment: &Environment,
) -> Result<(Arc<dyn Backend>, Option<PathBuf>), SessionError> {
    let backend: Arc<dyn Backend> = match target.spec.kind() {
        TargetKind::Local => Arc::new(Local),
        TargetKind::Exec { command } => Arc::new(CommandBackend::new(command_options(target, command, environment))?),
        TargetKind::Docker { image } => {
            let mut options = DockerOptions::new(&target.name, image, EngineSources::of(environment));
            options.lease = config.lease;
            let folder = container(&mut options, target, environment)?;
            return Ok((Arc::new(DockerImage::new(options)), folder));
        }
        TargetKind::Container { name } => Arc::new(DockerContainer::new(running(
            target,
            Which::Name(name.clone()),
            environment,
        ))),
        TargetKind::Compose {
            project,
            service,
            index,
        } => {
            let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
            let service = ComposeService {
                project: project.clone(),
                service: service.clone(),
                index: *index,
                sources: ProjectSources::of(environment, folder),
            };
            Arc::new(DockerContainer::new(running(
                target,
                Which::Service(service),
                environment,
            )))
        }
        TargetKind::Ssh { destination, port } => {
            Arc::new(SshBackend::new(ssh(target, destination, *port, environment)?))
        }
        TargetKind::Modal { image } => modal::new(target, image.as_deref(), config.lease, environment)?,
        TargetKind::ModalSandbox { id } => modal::existing(target, id, environment)?,
        // What was resolved is never another name.
        TargetKind::Configured { name } => return Err(TargetError::unknown_name(name, [], Vec::new()).into()),
    };
    Ok((backend, None))
}

/// The command runs here, but what it starts may get its environment: so it has what a cell here would have, and what is
/// named to be passed.
fn command_options(target: &ResolvedTarget, command: &str, environment: &Environment) -> CommandOptions {
    let rules = PassRules {
        env_passthrough: target.env_passthrough.clone(),
        ..PassRules::default()
    };
    CommandOptions {
        target: target.name.clone(),
        prefix: command.to_owned(),
        environment: environment.cell_environment(&rules).variables,
        folder: None,
    }
}

/// `ssh` runs here as a command of the user's would; what travels is decided by the user's `SendEnv`.
fn ssh(
    target: &ResolvedTarget,
    destination: &str,
    port: Option<u16>,
    environment: &Environment,
) -> Result<SshOptions, SessionError> {
    let text = |name: &str| match target.options.get(name) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = |name: &str| text(name).map(|path| environment.expand_home(Path::new(path)));
    let destination = match text("ssh_user") {
        // A user before the host was put there for this target alone.
        Some(user) if !destination.contains('@') => format!("{user}@{destination}"),
        _ => destination.to_owned(),
    };
    let mut options = SshOptions::new(&target.name, destination);
    // A port beside the host was put there for this target alone.
    options.port = port;
    if let (None, Some(Value::Count(port))) = (port, target.options.get("ssh_port")) {
        options.port = Some(u16::try_from(*port).map_err(|_| SessionError::Option {
            target: target.name.clone(),
            name: "ssh_port".to_owned(),
            problem: format!("{port} is no port; it must be from 1 to 65535"),
        })?);
    }
    options.key = path("ssh_key");
    // `ssh` would go on with other keys, and get in with one that nobody meant.
    if let Some(key) = options
        .key
        .as_ref()
        .filter(|key| !key.exists() && !key.as_os_str().as_encoded_bytes().contains(&b'%'))
    {
        return Err(SessionError::Option {
            target: target.name.clone(),
            name: "ssh_key".to_owned(),
            problem: format!("there is no file {}; name one with a private key", key.display()),
        });
    }
    options.control = path("ssh_control_path");
    if let Some(Value::List(more)) = target.options.get("ssh_options") {
        options.extra.clone_from(more);
    }
    if let Some(Value::Duration(limit)) = target.options.get("ssh_connect_timeout") {
        options.connect_timeout = *limit;
    }
    options.accept_new = matches!(target.options.get("ssh_accept_new"), Some(Value::Switch(true)));
    if let Some(user) = text("ssh_become") {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if user.is_empty() || user.starts_with('-') || !user.chars().all(is_name) {
            return Err(SessionError::Option {
                target: target.name.clone(),
                name: "ssh_become".to_owned(),
                problem: format!("`{user}` is no name of an account"),
            });
        }
        options.r#become = Some(user.to_owned());
    }
    // Other processes of this user can read it as long as ssh runs.
    options.environment = environment.terminal_environment(&PassRules::default()).variables;
    Ok(options)
}

fn running(target: &ResolvedTarget, which: Which, environment: &Environment) -> RunningOptions {
    RunningOptions {
        target: target.name.clone(),
        which,
        engine: EngineSources::of(environment),
        user: None,
        folder: None,
        environment: std::collections::BTreeMap::new(),
    }
}

/// Fills in what the options of a target say of a container of ours; the working directory that they imply.
fn container(
    options: &mut DockerOptions,
    target: &ResolvedTarget,
    environment: &Environment,
) -> Result<Option<PathBuf>, SessionError> {
    let bad = |name: &str| {
        let target = target.name.clone();
        let name = name.to_owned();
        move |problem: String| SessionError::Option { target, name, problem }
    };
    let text = |name: &str| match target.options.get(name) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_on = |name: &str| matches!(target.options.get(name), Some(Value::Switch(true)));
    let list = |name: &str| match target.options.get(name) {
        Some(Value::List(items)) => items.as_slice(),
        _ => &[],
    };
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    for volume in list("docker_volumes").iter().chain(&target.mounts) {
        let volume = Volume::parse(volume, &here, environment.home()).map_err(bad("docker_volumes"))?;
        options.volumes.push(volume);
    }
    if let Some(network) = text("docker_network") {
        options.network = Network::parse(network);
    }
    if let Some(cpus) = text("container_cpu") {
        options.cpus = parse_cpus(cpus).map_err(bad("container_cpu"))?;
    }
    if let Some(memory) = text("container_memory") {
        options.memory = parse_memory(memory).map_err(bad("container_memory"))?;
    }
    if let Some(size) = text("docker_shm_size") {
        options.shm_size = Some(parse_shm_size(size).map_err(bad("docker_shm_size"))?);
    }
    for name in list("docker_forward_env") {
        if crate::environment::is_broker_credential(name) {
            return Err(bad("docker_forward_env")(format!(
                "`{name}` is a credential of the broker and is never passed to scripts"
            )));
        }
        if let Some(value) = environment.get(name) {
            let value = value.to_string_lossy().into_owned();
            options.environment.insert(name.clone(), value);
        }
    }
    if let Some(Value::Map(entries)) = target.options.get("docker_env") {
        options.environment.extend(entries.iter().cloned());
    }
    if is_on("docker_run_as_host_user") {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        options.host_user = Some((user.as_raw(), group.as_raw()));
    }
    if !is_on("docker_mount_cwd_to_workspace") {
        return Ok(None);
    }
    let mount = format!("{}:{WORKSPACE}", here.display());
    let volume = Volume::parse(&mount, &here, None).map_err(bad("docker_mount_cwd_to_workspace"))?;
    options.volumes.push(volume);
    Ok(Some(PathBuf::from(WORKSPACE)))
}
