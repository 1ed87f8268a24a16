//! The configuration in force.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::approval::{Rules, policy};
use super::audit::AuditLog;
use super::choice::{Mode, Rpc, Transport};
use super::error::{ConfigError, Origin};
use super::file;
use super::keys::{KEYS, find, kind_options};
use super::layers::{Flags, Layers, unknown_variables};
use super::locate::{Located, Owner, locate};
use super::section::{FromFile, settings};
use super::targets::{ResolvedTarget, TargetOptions, of_backend, parsed};
use super::value::Value;
use super::web::Web;
use crate::approval::Policy;
use crate::environment::Environment;
use crate::limits::Limits;
use crate::target::{TargetError, TargetKind, TargetSpec};

/// Where a configuration is put together from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`: the file to read instead of the usual ones.
    pub file: Option<PathBuf>,
    /// The broker's environment.
    pub environment: Environment,
    /// What the command line gives.
    pub flags: Flags,
}

/// Everything that is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The target of a run that names none; may be a configured name.
    pub target: TargetSpec,
    /// Where scripts run and with which interpreter.
    pub mode: Mode,
    /// The configured interpreter, as written: a path or a name to look for.
    pub python: Option<PathBuf>,
    /// Whether a session keeps a kernel; without one, every cell is a script of its own.
    pub kernel: bool,
    /// Whether the file tools refuse to write what lets the account in, and its like.
    pub protect_files: bool,
    /// How messages travel on this machine.
    pub rpc: Rpc,
    /// What a cell may use.
    pub limits: Limits,
    /// The time after which `terminal` gives up on a command that names no timeout.
    pub terminal_timeout: Duration,
    /// The session's working directory, as written; `None` is the broker's own.
    pub cwd: Option<PathBuf>,
    /// Exact names of variables that pass to scripts.
    pub env_passthrough: Vec<String>,
    /// Tools that no script gets.
    pub disabled_tools: Vec<String>,
    /// How the directory on a target other than this machine is reached.
    pub transport: Transport,
    /// How long a lost link is tried again.
    pub reconnect_timeout: Duration,
    /// How long a target lives that hears nothing of the broker; longer than `reconnect_timeout`.
    pub lease: Duration,
    /// The named targets.
    pub targets: BTreeMap<String, TargetOptions>,
    /// Which tool calls may happen.
    pub approval: Policy,
    /// What the web tools work with.
    pub web: Web,
    /// What is recorded, and where.
    pub audit: AuditLog,
    /// Sentences for the user about what was passed over.
    pub warnings: Vec<String>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    layers: Layers,
    rules: Rules,
    target_origin: Origin,
}

/// One line of what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The key's whole path.
    pub key: String,
    /// The value, with secrets hidden; `None` where it is unset.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: Origin,
}

/// A configuration file with every key and its default, and what each is for.
#[must_use]
pub fn template() -> &'static str {
    include_str!("template.yaml")
}

impl Config {
    /// Puts the layers together: default, file, environment, flags.
    ///
    /// # Errors
    /// A file that is named and missing, unreadable or no YAML; a key that does not exist; a value that its key does
    /// not take, in whichever layer; a default target that cannot be made out.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let Located {
            file: located,
            warnings: passed_over,
        } = locate(sources.file.as_deref(), &sources.environment)?;
        let FromFile {
            values: mut layers,
            targets,
            rules,
            mut warnings,
        } = match &located {
            Some((path, owner)) => settings(&file::read(path, *owner == Owner::Talaria)?, path, *owner)?,
            None => FromFile::default(),
        };
        layers.add_variables(&sources.environment)?;
        layers.add_flags(&sources.flags)?;
        warnings.splice(0..0, passed_over);
        warnings.extend(unknown_variables(&sources.environment));
        let (target, target_origin) = default_target(&layers)?;
        let config = Self {
            target,
            mode: word(&layers, "code_execution.mode"),
            python: layers.text("code_execution.python").map(PathBuf::from),
            kernel: matches!(effective(&layers, "code_execution.kernel"), Some(Value::Switch(true))),
            protect_files: matches!(
                effective(&layers, "code_execution.protect_files"),
                Some(Value::Switch(true))
            ),
            rpc: word(&layers, "code_execution.rpc"),
            limits: limits(&layers),
            terminal_timeout: duration(&layers, "terminal.timeout"),
            cwd: layers.text("terminal.cwd").map(PathBuf::from),
            env_passthrough: list(&layers, "terminal.env_passthrough"),
            disabled_tools: list(&layers, "tools.disabled"),
            transport: word(&layers, "code_execution.transport"),
            reconnect_timeout: duration(&layers, "code_execution.reconnect_timeout"),
            lease: duration(&layers, "code_execution.lease"),
            targets,
            approval: policy(&layers, &rules)?,
            web: Web::of(&layers),
            audit: AuditLog::of(&layers),
            warnings,
            file: located.map(|(path, _)| path),
            layers,
            rules,
            target_origin,
        };
        config.check_default_target()?;
        config.check_lease()?;
        Ok(config)
    }

    /// The value of any key by its path (`terminal.docker_image`): what somebody set, else the default.
    #[must_use]
    pub fn setting(&self, path: &str) -> Option<Value> {
        effective(&self.layers, path)
    }

    /// Every key with its value and where it came from, in a fixed order.
    #[must_use]
    pub fn explain(&self) -> Vec<Explained> {
        let line = |key: &str, value: &Value, origin: &Origin| Explained {
            key: key.to_owned(),
            value: Some(value.shown()),
            origin: origin.clone(),
        };
        let mut lines: Vec<_> = KEYS
            .iter()
            .map(|key| match self.layers.get(key.path) {
                _ if key.path == "target" => Explained {
                    key: key.path.to_owned(),
                    value: Some(self.target.to_string()),
                    origin: self.target_origin.clone(),
                },
                Some((value, origin)) => line(key.path, value, origin),
                None => Explained {
                    key: key.path.to_owned(),
                    value: (key.default)().map(|value| value.shown()),
                    origin: Origin::Default,
                },
            })
            .collect();
        lines.extend(
            self.rules
                .lines()
                .map(|(key, value, origin)| line(&key, &value, origin)),
        );
        for (name, target) in &self.targets {
            let options = target.options.iter();
            lines.extend(options.map(|(key, (value, origin))| line(&format!("targets.{name}.{key}"), value, origin)));
        }
        lines
    }

    /// Looks a target up and puts together what holds for a session on it. A flag or a variable beats the target's own
    /// entry in the file, which beats the file's general settings.
    ///
    /// # Errors
    /// A name that is not configured, and a target that this version cannot open; neither is ever replaced by another.
    pub fn resolve(&self, asked: &TargetSpec) -> Result<ResolvedTarget, TargetError> {
        let (spec, entry) = match asked.kind() {
            TargetKind::Configured { name } => {
                let entry = self.targets.get(name).ok_or_else(|| {
                    TargetError::unknown_name(
                        name,
                        self.targets.keys().map(String::as_str),
                        self.targets.keys().cloned().collect(),
                    )
                })?;
                (&entry.target, Some(entry))
            }
            _ => (asked, None),
        };
        let is_overridden =
            |path: &str| matches!(self.layers.get(path), Some((_, Origin::Flag(_) | Origin::Variable(_))));
        let own_text = |path: &str, name: &str| {
            entry
                .filter(|_| !is_overridden(path))
                .and_then(|entry| entry.text(name))
        };
        let own_path = |path: &str, name: &str| own_text(path, name).map(PathBuf::from);
        let options = kind_options().filter_map(|(name, path)| {
            let own = entry
                .filter(|_| !is_overridden(path))
                .and_then(|entry| entry.options.get(name))
                .map(|(value, _)| value.clone());
            Some((name, own.or_else(|| effective(&self.layers, path))?))
        });
        Ok(ResolvedTarget {
            name: asked.to_string(),
            spec: spec.clone(),
            transport: own_text("code_execution.transport", "transport")
                .and_then(|word| word.parse().ok())
                .unwrap_or(self.transport),
            options: options.collect(),
            mounts: Vec::new(),
            cwd: own_path("terminal.cwd", "cwd").or_else(|| self.cwd.clone()),
            python: own_path("code_execution.python", "python").or_else(|| self.python.clone()),
            mode: own_text("code_execution.mode", "mode")
                .and_then(|word| word.parse().ok())
                .unwrap_or(self.mode),
            env_passthrough: entry
                .filter(|_| !is_overridden("terminal.env_passthrough"))
                .and_then(|entry| entry.list("env_passthrough"))
                .map_or_else(|| self.env_passthrough.clone(), <[String]>::to_vec),
            env: entry.map(TargetOptions::env).unwrap_or_default(),
        })
    }

    /// A name in the file that the same file does not define is a slip of the file, and told as one. What a variable or
    /// a flag names is looked up when it is used.
    fn check_default_target(&self) -> Result<(), ConfigError> {
        if !matches!(self.target_origin, Origin::File { .. }) {
            return Ok(());
        }
        match self.resolve(&self.target) {
            Err(error @ TargetError::UnknownName { .. }) => Err(ConfigError::Value {
                origin: self.target_origin.clone(),
                key: "target".to_owned(),
                problem: format!("has a wrong value: {error}"),
            }),
            _ => Ok(()),
        }
    }

    /// A target must outlive the attempts to reach it, else it is gone when the link is back.
    fn check_lease(&self) -> Result<(), ConfigError> {
        if self.lease > self.reconnect_timeout {
            return Ok(());
        }
        let set = ["code_execution.lease", "code_execution.reconnect_timeout"]
            .into_iter()
            .find_map(|key| self.layers.get(key).map(|(_, origin)| (key, origin)));
        let (key, origin) = set.unwrap_or(("code_execution.lease", &Origin::Default));
        Err(ConfigError::Value {
            origin: origin.clone(),
            key: key.to_owned(),
            problem: format!(
                "does not fit: the lease ({}) must be longer than reconnect_timeout ({}); raise the one or lower the other",
                Value::Duration(self.lease).shown(),
                Value::Duration(self.reconnect_timeout).shown()
            ),
        })
    }
}

/// The default target: what is set under `target`, else what the agent's backend means, else this machine.
fn default_target(layers: &Layers) -> Result<(TargetSpec, Origin), ConfigError> {
    if let Some((Value::Text(text), origin)) = layers.get("target") {
        return Ok((parsed(text, "target", origin)?, origin.clone()));
    }
    Ok(of_backend(layers)?.unwrap_or_else(|| (TargetSpec::local(), Origin::Default)))
}

pub(super) fn effective(layers: &Layers, path: &str) -> Option<Value> {
    match layers.get(path) {
        Some((value, _)) => Some(value.clone()),
        None => find(path).and_then(|key| (key.default)()),
    }
}

pub(super) fn word<T: std::str::FromStr + Default>(layers: &Layers, path: &str) -> T {
    layers.text(path).and_then(|word| word.parse().ok()).unwrap_or_default()
}

pub(super) fn duration(layers: &Layers, path: &str) -> Duration {
    match effective(layers, path) {
        Some(Value::Duration(duration)) => duration,
        _ => Duration::ZERO,
    }
}

pub(super) fn list(layers: &Layers, path: &str) -> Vec<String> {
    match effective(layers, path) {
        Some(Value::List(items)) => items,
        _ => Vec::new(),
    }
}

fn limits(layers: &Layers) -> Limits {
    let count = |name: &str| match effective(layers, &format!("code_execution.{name}")) {
        Some(Value::Count(count)) => count,
        _ => 0,
    };
    let size = |name: &str| usize::try_from(count(name)).unwrap_or(usize::MAX);
    Limits {
        timeout: duration(layers, "code_execution.timeout"),
        max_tool_calls: count("max_tool_calls"),
        kernel_idle_timeout: duration(layers, "code_execution.kernel_idle_timeout"),
        max_session_kernels: size("max_session_kernels"),
        max_stdout_bytes: size("max_stdout_bytes"),
        max_stderr_bytes: size("max_stderr_bytes"),
        max_spill_bytes: count("max_spill_bytes"),
    }
}
