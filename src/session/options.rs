//! What a session is made of, and how a configuration says it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::SessionError;
use super::reach;
use super::web::{web_credentials, web_options};
use crate::approval::{Approver, Policy};
use crate::backends::Backend;
use crate::backends::local::Local;
use crate::config::{Config, EnvPolicy, Mode, ResolvedTarget, Rpc, Transport, Web};
use crate::environment::{Environment, PassRules};
use crate::limits::Limits;
use crate::output::spill_dir;
use crate::socket_rpc;
use crate::suggest::nearest;
use crate::target::TargetKind;
use crate::tools::{BuiltinTools, ToolHost, ToolSpec};

/// What a session is made of. [`SessionOptions::local`] gives the defaults.
#[derive(Clone)]
pub struct SessionOptions {
    /// The target as the user wrote it.
    pub target: String,
    /// How processes start there.
    pub backend: Arc<dyn Backend>,
    /// The working directory that the session starts in: absolute on this machine; elsewhere a path there, and where
    /// a process starts by itself when `None`.
    pub cwd: Option<PathBuf>,
    /// Whether it works in the project or apart from it.
    pub mode: Mode,
    /// The interpreter, instead of the one that the mode finds.
    pub python: Option<PathBuf>,
    /// Who answers tool calls.
    pub host: Arc<dyn ToolHost>,
    /// Tools of the host that are not offered.
    pub disabled_tools: Vec<String>,
    /// Which tool calls may happen.
    pub policy: Arc<Policy>,
    /// Who is asked where the rules say so; with nobody, the call does not happen.
    pub approver: Option<Arc<dyn Approver>>,
    /// The broker's variables.
    pub environment: Environment,
    /// Which of them pass.
    pub passes: PassRules,
    /// Limits of its cells.
    pub limits: Limits,
    /// Limit of a `terminal` command that names none.
    pub terminal_timeout: Duration,
    /// Whether the file tools refuse to write what lets the account in and its like ([`crate::tools::Protected`]).
    pub protect_files: bool,
    /// `false`: every cell is a standalone script.
    pub keep_kernel: bool,
    /// How tool calls travel on this machine.
    pub rpc: socket_rpc::Transport,
    /// How the directory on another target is reached.
    pub transport: Transport,
    /// What `terminal` on another target sees of the environment there.
    pub env: EnvPolicy,
    /// How long a lost link is tried again.
    pub reconnect_timeout: Duration,
    /// How long a target lives that hears nothing of the broker.
    pub lease: Duration,
    /// The log that cells and tool calls are recorded in, if they are.
    pub audit: Option<crate::audit::Settings>,
    /// Who asks, as the log names it; `None`: the account of this process.
    pub principal: Option<String>,
}

impl SessionOptions {
    /// A session on this machine with the built-in tools and default limits, in `cwd`.
    #[must_use]
    pub fn local(cwd: impl Into<PathBuf>, environment: Environment) -> Self {
        Self {
            target: "local".to_owned(),
            backend: Arc::new(Local),
            cwd: Some(cwd.into()),
            mode: Mode::Project,
            python: None,
            host: Arc::new(
                BuiltinTools::new(Some(spill_folder(&environment)))
                    .with_web(web_options(&Web::default(), &environment)),
            ),
            disabled_tools: Vec::new(),
            policy: Arc::default(),
            approver: None,
            environment,
            passes: PassRules::default(),
            limits: Limits::default(),
            terminal_timeout: Duration::from_secs(180),
            protect_files: true,
            keep_kernel: true,
            rpc: socket_rpc::Transport::Unix,
            transport: Transport::Auto,
            env: EnvPolicy::Normal,
            reconnect_timeout: Duration::from_secs(60),
            lease: Duration::from_secs(15 * 60),
            audit: None,
            principal: None,
        }
    }

    /// A session on another target, in the folder where processes start there; all else as [`SessionOptions::local`].
    /// `target` is what outcomes call it.
    #[must_use]
    pub fn elsewhere(target: impl Into<String>, backend: Arc<dyn Backend>, environment: Environment) -> Self {
        Self {
            target: target.into(),
            backend,
            cwd: None,
            ..Self::local("/", environment)
        }
    }

    /// A session as a configuration says, on a target that it resolved.
    ///
    /// # Errors
    /// When the working directory is none, or the target's options do not fit it.
    pub fn from_config(
        config: &Config,
        target: &ResolvedTarget,
        environment: &Environment,
    ) -> Result<Self, SessionError> {
        let (backend, implied) = reach::backend(config, target, environment)?;
        let cwd = match target.spec.kind() {
            TargetKind::Local => Some(working_directory(target.cwd.as_deref(), environment)?),
            _ => target.cwd.clone().or(implied),
        };
        Ok(Self {
            target: target.name.clone(),
            backend,
            cwd,
            mode: target.mode,
            python: target.python.clone(),
            host: Arc::new(
                BuiltinTools::new(Some(spill_folder(environment))).with_web(web_options(&config.web, environment)),
            ),
            disabled_tools: config.disabled_tools.clone(),
            policy: Arc::new(config.approval.clone()),
            passes: PassRules {
                env_passthrough: target.env_passthrough.clone(),
                protected: web_credentials(&config.web),
                ..PassRules::default()
            },
            limits: config.limits.clone(),
            terminal_timeout: config.terminal_timeout,
            protect_files: config.protect_files,
            keep_kernel: config.kernel,
            rpc: match config.rpc {
                Rpc::Unix => socket_rpc::Transport::Unix,
                Rpc::Tcp => socket_rpc::Transport::Tcp,
            },
            transport: target.transport,
            env: target.env,
            reconnect_timeout: config.reconnect_timeout,
            lease: config.lease,
            audit: config.audit.settings(environment),
            ..Self::local("/", environment.clone())
        })
    }

    /// The tools of a host that a session of these options offers.
    pub(super) fn offered<'a>(&self, tools: &'a [ToolSpec]) -> Vec<&'a ToolSpec> {
        let tools = tools.iter();
        tools.filter(|spec| !self.disabled_tools.contains(&spec.name)).collect()
    }

    /// Checks an allow-list before a session is opened.
    ///
    /// # Errors
    /// When it names what the session would not offer.
    pub fn check_allowed(&self, names: &[String]) -> Result<(), SessionError> {
        self.check_offered(names, self.host.tools())
    }

    /// Checks an allow-list against what is offered of a host's tools.
    pub(super) fn check_offered(&self, names: &[String], tools: &[ToolSpec]) -> Result<(), SessionError> {
        let offered = self.offered(tools);
        let offered: Vec<&str> = offered.iter().map(|spec| spec.name.as_str()).collect();
        let Some(name) = names.iter().find(|name| !offered.contains(&name.as_str())) else {
            return Ok(());
        };
        let advice = match nearest(name, offered.iter().copied()) {
            _ if self.disabled_tools.contains(name) => "; it is disabled (tools.disabled)".to_owned(),
            Some(right) => format!("; did you mean `{right}`?"),
            None => String::new(),
        };
        Err(SessionError::NotOffered {
            name: name.clone(),
            offered: offered.join(", "),
            advice,
        })
    }
}

/// Where output that is too long for an outcome is kept.
pub(crate) fn spill_folder(environment: &Environment) -> PathBuf {
    spill_dir(&|name| environment.get(name).map(std::ffi::OsStr::to_owned))
}

fn working_directory(asked: Option<&Path>, environment: &Environment) -> Result<PathBuf, SessionError> {
    let here = std::env::current_dir().map_err(|_| SessionError::WorkingDirectory(PathBuf::from(".")))?;
    let folder = match asked {
        // Where the user is, symlinks and all, if the shell says so truthfully.
        None => match environment.filled("PWD").map(PathBuf::from) {
            Some(named) if named.is_absolute() && same_folder(&named, &here) => named,
            _ => here,
        },
        Some(asked) => here.join(environment.expand_home(asked)),
    };
    if folder.is_dir() {
        Ok(folder)
    } else {
        Err(SessionError::WorkingDirectory(folder))
    }
}

fn same_folder(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
