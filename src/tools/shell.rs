//! The terminal of a session: which shell runs a command, and how working directory and exported
//! variables pass from one command to the next.
//!
//! Every command is a shell of its own. When it exits, a trap writes its working directory and
//! `export -p` to a file; the next command starts by reading that back. Both are the shell's own
//! builtins, so what they write is what they read, whatever the values hold.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::workspace::{CommandRequest, WorkspaceError};
use crate::environment::{Environment, PassRules};
use crate::limits::MAX_TOOL_MESSAGE;
use crate::link::RunJob;

/// Time that a login shell gets to say what it exports.
const LOGIN_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of output kept in full; beyond them a tail of 64 KiB.
const OUTPUT_CAP: u64 = MAX_TOOL_MESSAGE - 256 * 1024;

/// `$1` the script, `$2` where the state goes, `$3` the folder. The command is evaluated here, so
/// that messages name the shell and not a file of ours.
const PROLOGUE: &str = r#"__talaria_state=$2
__talaria_folder=$3
__talaria_save() { { printf '%s\0' "$PWD"; export -p; } >|"$__talaria_state" 2>/dev/null; }
. "$1" 2>/dev/null
cd -- "$__talaria_folder" || exit 1
trap __talaria_save EXIT
set --
eval "$__talaria_command""#;

/// The terminal of one session.
pub struct Shell {
    environment: Environment,
    rules: PassRules,
    default_timeout: Duration,
    login: tokio::sync::Mutex<bool>,
    state: Mutex<State>,
}

struct State {
    folder: PathBuf,
    /// What a first command starts with.
    initial: BTreeMap<OsString, OsString>,
    /// What the last command exported, in the shell's own words.
    exports: Option<Vec<u8>>,
}

/// A command ready to be run as a job.
pub struct ShellPlan {
    argv: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    folder: Vec<u8>,
    script: Vec<u8>,
    timeout: Duration,
    login: bool,
}

/// Marks a command whose state is to be kept.
pub struct StateTicket(());

impl Shell {
    /// A terminal that starts in `folder`.
    #[must_use]
    pub fn new(environment: Environment, rules: PassRules, folder: PathBuf, default_timeout: Duration) -> Self {
        let initial = environment.terminal_environment(&rules).variables;
        Self {
            environment,
            rules,
            default_timeout,
            login: tokio::sync::Mutex::new(false),
            state: Mutex::new(State {
                folder,
                initial,
                exports: None,
            }),
        }
    }

    /// Where the next command starts.
    #[must_use]
    pub fn working_directory(&self) -> PathBuf {
        self.lock().folder.clone()
    }

    /// Moves the session.
    pub fn set_working_directory(&self, folder: PathBuf) {
        self.lock().folder = folder;
    }

    /// The login shell to ask first, before the first command of the session.
    pub async fn login_plan(&self) -> Option<ShellPlan> {
        let mut asked = self.login.lock().await;
        if *asked {
            return None;
        }
        *asked = true;
        let state = self.lock();
        let shell = login_shell(&self.environment)?;
        Some(ShellPlan {
            argv: vec![shell.into_os_string().into_vec(), b"-l".to_vec(), b"-c".to_vec()],
            environment: pairs(&state.initial),
            folder: state.folder.clone().into_os_string().into_vec(),
            script: Vec::new(),
            timeout: LOGIN_LIMIT,
            login: true,
        })
    }

    /// Takes what the login shell exported, under the same rules as the broker's own environment.
    pub fn take_login(&self, exported: &[u8]) {
        let variables: Environment = exported
            .split(|byte| *byte == 0)
            .filter_map(|entry| {
                let at = entry.iter().position(|byte| *byte == b'=')?;
                let name = OsString::from_vec(entry[..at].to_vec());
                let own = ["_", "PWD", "OLDPWD", "SHLVL"].contains(&name.to_str().unwrap_or(""));
                (at > 0 && !own).then(|| (name, OsString::from_vec(entry[at + 1..].to_vec())))
            })
            .collect();
        if variables.filled("PATH").is_some() {
            self.lock().initial = variables.terminal_environment(&self.rules).variables;
        }
    }

    /// Prepares a command from the state as it is now.
    ///
    /// # Errors
    /// When the folder that was asked for is none.
    pub fn plan(&self, request: &CommandRequest, home: &Path) -> Result<(ShellPlan, StateTicket), WorkspaceError> {
        let state = self.lock();
        let folder = match &request.workdir {
            None => state.folder.clone(),
            Some(workdir) => state.folder.join(expand_home(workdir, home)),
        };
        if !folder.is_dir() {
            return Err(WorkspaceError(format!(
                "the working directory {} does not exist or is no folder; give an existing one as workdir, or make it first",
                folder.display()
            )));
        }
        let path = state.initial.get(OsStr::new("PATH")).map(OsString::as_os_str);
        let (shell, flags) = find_shell(path);
        let mut argv = vec![shell.into_os_string().into_vec()];
        argv.extend(flags.iter().map(|flag| flag.as_bytes().to_vec()));
        argv.extend([b"-c".to_vec(), PROLOGUE.as_bytes().to_vec(), b"bash".to_vec()]);
        let mut script = Vec::new();
        let environment = match &state.exports {
            None => pairs(&state.initial),
            Some(exports) => {
                script.extend_from_slice(exports);
                Vec::new()
            }
        };
        script.extend_from_slice(b"\n__talaria_command='");
        script.extend_from_slice(request.command.replace('\'', r"'\''").as_bytes());
        script.extend_from_slice(b"'\n");
        let plan = ShellPlan {
            argv,
            environment,
            folder: folder.into_os_string().into_vec(),
            script,
            timeout: request.timeout.unwrap_or(self.default_timeout),
            login: false,
        };
        Ok((plan, StateTicket(())))
    }

    /// Takes the state that a command left; the last one to end sets it.
    pub fn take_state(&self, _ticket: StateTicket, left: &[u8]) {
        let Some(end) = left.iter().position(|byte| *byte == 0) else {
            return; // killed, or replaced by `exec`: the state stays what it was
        };
        let mut state = self.lock();
        if end > 0 {
            state.folder = PathBuf::from(OsString::from_vec(left[..end].to_vec()));
        }
        state.exports = Some(left[end + 1..].to_vec());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShellPlan {
    /// Time that the command may run.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The job, with its files in the session's folder.
    #[must_use]
    pub fn into_job(self, number: u64, session_folder: &str) -> RunJob {
        let script_path = format!("{session_folder}/jobs/{number}.sh").into_bytes();
        let state_path = format!("{session_folder}/jobs/{number}.state").into_bytes();
        let mut argv = self.argv;
        if self.login {
            let mut line = b"/usr/bin/env -0 >".to_vec();
            line.extend_from_slice(&single_quoted(&state_path));
            argv.push(line);
        } else {
            argv.extend([script_path.clone(), state_path.clone(), self.folder.clone()]);
        }
        RunJob {
            job: number,
            timeout: self.timeout.as_secs_f64(),
            output_cap: OUTPUT_CAP,
            folder: self.folder,
            argv,
            environment: self.environment,
            script_path,
            script: self.script,
            state_path,
        }
    }
}

fn pairs(variables: &BTreeMap<OsString, OsString>) -> Vec<(Vec<u8>, Vec<u8>)> {
    variables
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn single_quoted(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in text {
        if *byte == b'\'' {
            quoted.extend_from_slice(br"'\''");
        } else {
            quoted.push(*byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

fn expand_home(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

/// `bash` where there is one, else `sh`; neither reads start-up files.
fn find_shell(path: Option<&OsStr>) -> (PathBuf, &'static [&'static str]) {
    let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
    let standard = ["/bin", "/usr/bin"].map(PathBuf::from);
    folders
        .unwrap_or_default()
        .into_iter()
        .filter(|folder| folder.is_absolute())
        .chain(standard)
        .map(|folder| folder.join("bash"))
        .find(|bash| bash.is_file())
        .map_or_else(
            || (PathBuf::from("/bin/sh"), &[] as &[&str]),
            |bash| (bash, &["--noprofile", "--norc"]),
        )
}

/// The account's own shell where it takes `-l -c`, else `bash`, else `sh`.
fn login_shell(environment: &Environment) -> Option<PathBuf> {
    let fit = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
        path.is_absolute()
            && path.is_file()
            && ["bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "fish"].contains(&name)
    };
    environment
        .filled("SHELL")
        .map(PathBuf::from)
        .into_iter()
        .chain(["/bin/bash", "/usr/bin/bash", "/bin/sh"].map(PathBuf::from))
        .find(|path| fit(path))
}
