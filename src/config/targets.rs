//! Named targets, and the target that the agent's own settings mean.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::choice::{EnvPolicy, Mode, Transport};
use super::error::{ConfigError, Origin};
use super::file::Entry;
use super::keys::{target_advice, target_key};
use super::layers::Layers;
use super::section::Reader;
use super::value::Value;
use crate::suggest::nearest;
use crate::target::{TargetKind, TargetSpec};

/// An entry of `targets`: a target under a name, with what holds for it alone.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetOptions {
    /// The target itself; never another name.
    pub target: TargetSpec,
    /// Every option that the entry gives, `target` included, by name, with its origin.
    pub options: BTreeMap<String, (Value, Origin)>,
}

/// A target with everything that holds for a session on it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedTarget {
    /// The target as the user wrote it, which may be a configured name.
    pub name: String,
    /// What it is.
    pub spec: TargetSpec,
    /// The session's working directory there, as written; `None` is where a process starts by itself.
    pub cwd: Option<PathBuf>,
    /// The configured interpreter, as written: a path or a name to look for.
    pub python: Option<PathBuf>,
    /// Where scripts run and with which interpreter.
    pub mode: Mode,
    /// Exact names of variables that pass to scripts.
    pub env_passthrough: Vec<String>,
    /// What `terminal` sees of a target's own environment.
    pub env: EnvPolicy,
    /// How the directory there is reached.
    pub transport: Transport,
    /// The options of its kind that are set (`docker_volumes`, `ssh_port`, …): its own, else those of `terminal`.
    pub options: BTreeMap<&'static str, Value>,
    /// `--mount` of the command line, as written: what a container of ours has beside its `docker_volumes`.
    pub mounts: Vec<String>,
}

impl TargetOptions {
    /// The text under a key of the entry.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.options.get(name) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    /// The list under a key of the entry.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&[String]> {
        match self.options.get(name) {
            Some((Value::List(items), _)) => Some(items),
            _ => None,
        }
    }

    /// The `env` of the entry.
    #[must_use]
    pub fn env(&self) -> EnvPolicy {
        self.text("env").and_then(|word| word.parse().ok()).unwrap_or_default()
    }
}

/// Keys of an entry that mean something on this machine.
const LOCAL_KEYS: [&str; 5] = ["target", "cwd", "python", "mode", "env_passthrough"];

/// Whether an option of an entry means something on a target of this kind.
fn has_effect(option: &str, kind: &TargetKind) -> bool {
    let of_a_container = option.starts_with("docker_") || option.starts_with("container_");
    let of_a_host = option.starts_with("ssh_");
    let of_a_sandbox = option.starts_with("modal_");
    match kind {
        TargetKind::Local => LOCAL_KEYS.contains(&option),
        // Which host it is stands in the target.
        TargetKind::Ssh { .. } => !of_a_container && !of_a_sandbox && option != "ssh_host",
        TargetKind::Docker { .. } | TargetKind::Container { .. } | TargetKind::Compose { .. } => {
            !of_a_host && !of_a_sandbox
        }
        TargetKind::Exec { .. } => !of_a_container && !of_a_host && !of_a_sandbox,
        // Which image it is stands in the target, where it names one.
        TargetKind::Modal { image } => {
            !of_a_host && !option.starts_with("docker_") && (option != "modal_image" || image.is_none())
        }
        TargetKind::ModalSandbox { .. } => !of_a_container && !of_a_host && (!of_a_sandbox || option == "modal_mode"),
        TargetKind::Configured { .. } => true,
    }
}

/// Reads one entry of `targets`.
pub(super) fn read_target(reader: &mut Reader<'_>, entry: &Entry) -> Result<TargetOptions, ConfigError> {
    let name = entry.key.as_str();
    let place = format!("targets.{name}");
    let origin = reader.origin(entry.line);
    let bad = |key: &str, problem: String| ConfigError::Value {
        origin: origin.clone(),
        key: key.to_owned(),
        problem,
    };
    let is_free = matches!(
        TargetSpec::parse(name).map(|spec| spec.kind().clone()),
        Ok(TargetKind::Configured { .. })
    );
    if !is_free || name.trim() != name || name.contains([' ', '/']) {
        return Err(bad(
            &place,
            "is no name for a target; take one word without `:`, `/` and blanks that is no kind of target".into(),
        ));
    }
    let mut options = BTreeMap::new();
    for option in reader.entries(&entry.value, &place)? {
        let key = format!("{place}.{}", option.key);
        let Some(kind) = target_key(&option.key) else {
            reader.unknown(option.line, key, target_advice(&option.key))?;
            continue;
        };
        if let Some(value) = reader.value(&key, kind, &option.value)? {
            options.insert(option.key.clone(), (value, reader.origin(option.line)));
        }
    }
    let Some((Value::Text(text), written)) = options.get("target") else {
        return Err(bad(
            &place,
            "does not say which target it is; add `target: local` below it".into(),
        ));
    };
    let key = format!("{place}.target");
    let target = parsed(text, &key, written)?;
    if let TargetKind::Configured { name } = target.kind() {
        let problem = format!("is `{name}`, but must be a target itself (such as `local`), not another name");
        return Err(ConfigError::Value {
            origin: written.clone(),
            key,
            problem,
        });
    }
    for (option, (_, origin)) in &options {
        if !has_effect(option, target.kind()) {
            let what = match target.kind() {
                TargetKind::Local => "this machine",
                TargetKind::Ssh { .. } => "an SSH host that stands in its address",
                TargetKind::Exec { .. } => "behind a command",
                TargetKind::Modal { .. } => "a sandbox of Modal's",
                TargetKind::ModalSandbox { .. } => "a sandbox that exists",
                _ => "a container",
            };
            reader.warn(format!(
                "{origin}: `{place}.{option}` has no effect, since the target {name} is {what} (`target: {target}`)"
            ));
        }
    }
    Ok(TargetOptions { target, options })
}

/// The backends that the agent's `terminal.backend` may name here.
const BACKENDS: [&str; 4] = ["local", "docker", "ssh", "modal"];

/// The target that `terminal.backend` and the options beside it mean; `None` when no backend is set.
///
/// # Errors
/// A backend that there is no target for, and one that lacks the option it needs: nothing else is taken in its place.
pub(super) fn of_backend(layers: &Layers) -> Result<Option<(TargetSpec, Origin)>, ConfigError> {
    let Some((Value::Text(backend), origin)) = layers.get("terminal.backend") else {
        return Ok(None);
    };
    let bad = |problem: String| ConfigError::Value {
        origin: origin.clone(),
        key: "terminal.backend".into(),
        problem,
    };
    let needs = |key: &str| {
        layers.text(key).ok_or_else(|| {
            bad(format!(
                "is `{backend}`, which needs `{key}`; set it, or choose another target with --on or TALARIA_TARGET"
            ))
        })
    };
    let text = match backend.as_str() {
        "local" => "local".to_owned(),
        "docker" => format!("docker:{}", needs("terminal.docker_image")?),
        "ssh" => {
            let host = needs("terminal.ssh_host")?;
            let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
            let host = if is_bare_ipv6 {
                format!("[{host}]")
            } else {
                host.to_owned()
            };
            let user = layers
                .text("terminal.ssh_user")
                .map(|user| format!("{user}@"))
                .unwrap_or_default();
            match layers.get("terminal.ssh_port") {
                Some((Value::Count(port), _)) => format!("ssh://{user}{host}:{port}"),
                _ => format!("ssh:{user}{host}"),
            }
        }
        "modal" => match layers.text("terminal.modal_image") {
            Some(image) => format!("modal:{image}"),
            None => "modal".to_owned(),
        },
        other => {
            let advice = match nearest(other, BACKENDS) {
                Some(right) => format!("did you mean `{right}`?"),
                None => "choose a target with --on or TALARIA_TARGET".to_owned(),
            };
            return Err(bad(format!(
                "is `{other}`, which is not one of {}; {advice}",
                BACKENDS.join(", ")
            )));
        }
    };
    Ok(Some((parsed(&text, "terminal.backend", origin)?, origin.clone())))
}

/// The target that stands under `key`.
pub(super) fn parsed(text: &str, key: &str, origin: &Origin) -> Result<TargetSpec, ConfigError> {
    TargetSpec::parse(text).map_err(|source| ConfigError::Value {
        origin: origin.clone(),
        key: key.to_owned(),
        problem: format!("has a wrong value: {source}"),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::path::Path;

    use super::super::file::parse;
    use super::super::locate::Owner;
    use super::super::section::{FromFile, settings};
    use super::*;

    fn read(yaml: &str) -> Result<FromFile, String> {
        let path = Path::new("c.yaml");
        settings(&parse(yaml, path, true).unwrap(), path, Owner::Talaria).map_err(|error| error.to_string())
    }

    #[test]
    fn entries_are_read_without_loss() {
        let yaml = "targets:\n  rig:\n    target: docker:python:3.12\n    docker_env: {A: 1.10}\n    env: scrubbed\n    \
                    transport: polled\n    container_memory: 2048\n    env_passthrough: [X]\n";
        let rig = read(yaml).unwrap().targets.remove("rig").unwrap();
        assert_eq!(rig.target.as_str(), "docker:python:3.12");
        assert_eq!(
            (rig.env(), rig.text("transport")),
            (EnvPolicy::Scrubbed, Some("polled"))
        );
        assert_eq!(rig.text("container_memory"), Some("2048"));
        assert_eq!(rig.list("env_passthrough"), Some(&["X".to_owned()][..]));
        assert_eq!(
            rig.options["docker_env"].0,
            Value::Map(vec![("A".into(), "1.10".into())])
        );
    }

    #[test]
    fn wrong_entries_are_refused_with_their_line() {
        for (yaml, words) in [
            (
                "targets:\n  local:\n    target: local\n",
                ["c.yaml:2: `targets.local`", "no name for a target"],
            ),
            (
                "targets:\n  a:b:\n    target: local\n",
                ["c.yaml:2: `targets.a:b`", "no name for a target"],
            ),
            (
                "targets:\n  rig: {cwd: /x}\n",
                ["c.yaml:2: `targets.rig`", "target: local"],
            ),
            (
                "targets:\n  rig:\n    target: lcoal\n",
                ["c.yaml:3: `targets.rig.target`", "not another name"],
            ),
            ("targets:\n  rig: local\n", ["c.yaml:2: `targets.rig`", "mapping"]),
        ] {
            let message = read(yaml).unwrap_err();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }

    #[test]
    fn options_without_effect_on_this_machine_are_warned_of() {
        let options = "env: scrubbed\n    transport: polled\n    docker_env: {A: b}\n    cwd: /x\n    python: p\n    \
                       mode: strict\n    env_passthrough: [X]\n";
        let read_as = |target: &str| {
            read(&format!("targets:\n  rig:\n    target: {target}\n    {options}"))
                .unwrap()
                .warnings
        };
        assert_eq!(read_as("docker:python:3.12"), Vec::<String>::new());
        let warnings = read_as("ssh:build1");
        assert!(
            warnings.len() == 1 && warnings[0].contains("docker_env` has no effect"),
            "{warnings:#?}"
        );
        let there = read("targets:\n  rig: {target: 'ssh:build1', ssh_user: bob, ssh_host: other}\n").unwrap();
        assert!(there.warnings.len() == 1 && there.warnings[0].contains("ssh_host` has no effect"));
        let sandbox = |target: &str, options: &str| {
            let yaml = format!("targets:\n  rig: {{target: '{target}', {options}}}\n");
            read(&yaml).unwrap().warnings.len()
        };
        for (target, options, warnings) in [
            (
                "modal",
                "modal_image: x, modal_gpu: A100, container_memory: 512, modal_keep: on",
                0,
            ),
            ("modal:x", "modal_image: y", 1),
            ("modal:x", "docker_network: off, ssh_port: 22, modal_network: off", 2),
            (
                "modal://sb-1",
                "modal_gpu: A100, container_cpu: 2, modal_mode: direct",
                2,
            ),
            ("docker:x", "modal_gpu: A100", 1),
            ("ssh:h", "modal_gpu: A100", 1),
            ("exec:x", "modal_gpu: A100", 1),
        ] {
            assert_eq!(sandbox(target, options), warnings, "{target} {options}");
        }
        let warnings = read_as("local");
        assert_eq!(warnings.len(), 3, "{warnings:#?}");
        for (line, key) in [(4, "env"), (5, "transport"), (6, "docker_env")] {
            let start = format!("c.yaml:{line}: `targets.rig.{key}` has no effect, since the target rig");
            assert!(
                warnings.iter().any(|warning| warning.starts_with(&start)),
                "{warnings:#?}"
            );
        }
    }

    #[test]
    fn the_agents_backend_means_a_target() {
        for (yaml, expected) in [
            ("", None),
            ("backend: local", Some("local")),
            (
                "backend: docker\n  docker_image: python:3.12",
                Some("docker:python:3.12"),
            ),
            ("backend: ssh\n  ssh_host: h", Some("ssh:h")),
            (
                "backend: ssh\n  ssh_host: 10.0.0.7\n  ssh_user: bob\n  ssh_port: 2222",
                Some("ssh://bob@10.0.0.7:2222"),
            ),
            ("backend: ssh\n  ssh_host: '::1'", Some("ssh:[::1]")),
            (
                "backend: ssh\n  ssh_host: 'fd00::7'\n  ssh_port: 22",
                Some("ssh://[fd00::7]:22"),
            ),
            ("backend: modal", Some("modal")),
            ("backend: modal\n  modal_image: python:3.12", Some("modal:python:3.12")),
        ] {
            let values = read(&format!("terminal:\n  {yaml}\n")).unwrap().values;
            let text = of_backend(&values).unwrap().map(|(spec, _)| spec.to_string());
            assert_eq!(text.as_deref(), expected, "{yaml}");
        }
    }

    #[test]
    fn a_backend_that_cannot_be_is_never_another() {
        for (yaml, words) in [
            (
                "backend: docker",
                ["c.yaml:2: `terminal.backend`", "`terminal.docker_image`"],
            ),
            ("backend: ssh", ["c.yaml:2: `terminal.backend`", "`terminal.ssh_host`"]),
            ("backend: lcoal", ["`lcoal`", "did you mean `local`"]),
            ("backend: singularity", ["`singularity`", "--on"]),
        ] {
            let values = read(&format!("terminal:\n  {yaml}\n")).unwrap().values;
            let message = of_backend(&values).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
