//! What is asked of the engine for a container of ours.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType,
};

use super::options::{DockerOptions, Network, Volume, VolumeSource};
use crate::backends::Command;

/// A place for the session's directory: in memory, and of a size that no script can exceed.
const SESSION_FOLDER: &str = "/run/talaria";

/// Executable, for what a session keeps there may be run; for everybody, as the image's user may be anybody.
const SESSION_FOLDER_OPTIONS: &str = "rw,exec,nosuid,nodev,size=256m,mode=1777";

/// What work on files needs, `apt-get` and `pip` as root included, and no more.
const CAPABILITIES: [&str; 7] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"];

/// How an engine maps the users of a container to those of its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum UserMap {
    /// Numbers are the same in both.
    #[default]
    Same,
    /// The engine is a user's own: its user is 0 in a container.
    Root,
    /// The same, and the engine can be asked for the user's own number instead.
    KeepId,
}

/// The request for a container with `command` as its first process.
pub(super) fn create_body(
    options: &DockerOptions,
    users: UserMap,
    command: &Command,
    labels: HashMap<String, String>,
) -> ContainerCreateBody {
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let mut environment = options.environment.clone();
    environment.extend(
        command
            .environment
            .iter()
            .map(|(name, value)| (text(name), text(value))),
    );
    let folder = command.folder.as_ref().map(|folder| text(folder.as_os_str()));
    ContainerCreateBody {
        image: Some(options.image.clone()),
        // An image's entry point would take our program for its argument, and its health check runs what nobody asked for.
        entrypoint: Some(vec![text(&command.program)]),
        cmd: Some(command.arguments.iter().map(|argument| text(argument)).collect()),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        user: match (options.host_user, users) {
            (None, _) => options.user.clone(),
            (Some(_), UserMap::Root) => Some("0:0".to_owned()),
            (Some((user, group)), UserMap::Same | UserMap::KeepId) => Some(format!("{user}:{group}")),
        },
        working_dir: folder.or_else(|| options.folder.clone()),
        env: Some(
            environment
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        labels: Some(labels),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When the connection ends, its first process learns it: one that waits for the bundle must not wait for ever.
        stdin_once: Some(true),
        // What the image names its own program may want; ours ends in order at this one.
        stop_signal: Some("SIGTERM".to_owned()),
        tty: Some(false),
        host_config: Some(host_config(options, users)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(options: &DockerOptions, users: UserMap) -> HostConfig {
    let memory = options.memory.and_then(|bytes| i64::try_from(bytes).ok());
    let (bound, mounted): (Vec<&Volume>, Vec<&Volume>) =
        options.volumes.iter().partition(|volume| volume.label.is_some());
    HostConfig {
        auto_remove: Some(true),
        init: Some(false),
        privileged: Some(false),
        publish_all_ports: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        // What its first process says is for us alone; the engine's log of it would fill a disk.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        memory,
        memory_swap: memory,
        #[expect(clippy::cast_possible_truncation, reason = "a number of CPUs is small")]
        nano_cpus: options.cpus.map(|cpus| (cpus * 1e9) as i64),
        pids_limit: Some(options.processes),
        shm_size: options.shm_size.and_then(|bytes| i64::try_from(bytes).ok()),
        network_mode: match &options.network {
            Network::On => None,
            Network::Off => Some("none".to_owned()),
            Network::Named(name) => Some(name.clone()),
        },
        userns_mode: (options.host_user.is_some() && users == UserMap::KeepId).then(|| "keep-id".to_owned()),
        tmpfs: Some(HashMap::from([(
            SESSION_FOLDER.to_owned(),
            SESSION_FOLDER_OPTIONS.to_owned(),
        )])),
        binds: Some(bound.iter().map(|volume| bind(volume)).collect()),
        mounts: Some(mounted.iter().map(|volume| mount(volume)).collect()),
        ..HostConfig::default()
    }
}

/// A mount, unlike a bind, fails when its source does not exist; a bind would make a folder there.
fn mount(volume: &Volume) -> Mount {
    let (typ, source) = match &volume.source {
        VolumeSource::Path(path) => (MountType::BIND, Some(path.to_string_lossy().into_owned())),
        VolumeSource::Named(name) => (MountType::VOLUME, Some(name.clone())),
        VolumeSource::Own => (MountType::VOLUME, None),
    };
    Mount {
        target: Some(volume.target.clone()),
        source,
        bind_options: (typ == MountType::BIND).then(MountBindOptions::default),
        typ: Some(typ),
        read_only: Some(volume.read_only),
        ..Mount::default()
    }
}

/// Only a bind can have what it shows labelled.
fn bind(volume: &Volume) -> String {
    let source = match &volume.source {
        VolumeSource::Path(path) => format!("{}:", path.display()),
        VolumeSource::Named(name) => format!("{name}:"),
        VolumeSource::Own => String::new(),
    };
    let access = if volume.read_only { "ro" } else { "rw" };
    let label = volume.label.map(|label| format!(",{label}")).unwrap_or_default();
    format!("{source}{}:{access}{label}", volume.target)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::backends::docker::EngineSources;

    fn command() -> Command {
        Command {
            program: "python3".into(),
            arguments: vec!["-I".into(), "-c".into(), "pass".into()],
            environment: BTreeMap::from([("A".into(), "of the command".into())]),
            folder: None,
            input: Default::default(),
        }
    }

    #[test]
    fn a_container_of_ours_is_confined_whatever_is_asked() {
        let mut options = DockerOptions::new("docker:x", "x", EngineSources::default());
        options.cpus = Some(1.5);
        options.environment = BTreeMap::from([("A".into(), "1".into()), ("B".into(), "2".into())]);
        let body = create_body(&options, UserMap::Same, &command(), HashMap::new());
        assert_eq!(body.entrypoint.unwrap(), ["python3"]);
        assert_eq!(body.cmd.unwrap(), ["-I", "-c", "pass"]);
        assert_eq!(body.env.unwrap(), ["A=of the command", "B=2"]);
        assert_eq!(body.tty, Some(false));
        assert!(body.exposed_ports.is_none());
        let host = body.host_config.unwrap();
        assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
        assert!(!host.cap_add.unwrap().iter().any(|one| one == "SYS_ADMIN"));
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
        assert_eq!((host.privileged, host.auto_remove), (Some(false), Some(true)));
        assert_eq!((host.memory, host.memory_swap), (Some(5_120 << 20), Some(5_120 << 20)));
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_500_000_000), Some(1024)));
        assert_eq!((host.network_mode, host.port_bindings), (None, None));
        assert!(host.tmpfs.unwrap()["/run/talaria"].contains("mode=1777"));
    }

    #[test]
    fn files_in_mounts_belong_to_the_user_by_the_engines_numbers() {
        let mut options = DockerOptions::new("docker:x", "x", EngineSources::default());
        options.user = Some("app".to_owned());
        let users = |options: &DockerOptions, users| {
            let body = create_body(options, users, &command(), HashMap::new());
            (body.user, body.host_config.unwrap().userns_mode)
        };
        assert_eq!(users(&options, UserMap::KeepId), (Some("app".to_owned()), None));
        options.host_user = Some((1000, 100));
        for (map, user, mode) in [
            (UserMap::Same, "1000:100", None),
            (UserMap::Root, "0:0", None),
            (UserMap::KeepId, "1000:100", Some("keep-id")),
        ] {
            assert_eq!(users(&options, map), (Some(user.to_owned()), mode.map(str::to_owned)));
        }
    }

    #[test]
    fn mounts_fail_without_a_source_and_labels_need_binds() {
        let mut options = DockerOptions::new("docker:x", "x", EngineSources::default());
        options.network = Network::Off;
        let volume = |text| Volume::parse(text, Path::new("/w"), None).unwrap();
        options.volumes = vec![volume("/a:/b:ro"), volume("data:/c"), volume("/d"), volume("/e:/f:Z")];
        let host = create_body(&options, UserMap::Same, &command(), HashMap::new())
            .host_config
            .unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.binds.unwrap(), ["/e:/f:rw,Z"]);
        let mounts = host.mounts.unwrap();
        let kinds: Vec<_> = mounts
            .iter()
            .map(|mount| (mount.typ.unwrap(), mount.source.as_deref(), mount.read_only))
            .collect();
        assert_eq!(
            kinds,
            [
                (MountType::BIND, Some("/a"), Some(true)),
                (MountType::VOLUME, Some("data"), Some(false)),
                (MountType::VOLUME, None, Some(false)),
            ]
        );
    }
}
