//! The terminal of a session: which shell runs a command, and how working directory and exported
//! variables pass from one command to the next.
//!
//! Every command is a shell of its own. When it exits, a trap writes its working directory and
//! `export -p` to a file; the next command starts by reading that back. Both are the shell's own
//! builtins, so what they write is what they read, whatever the values hold.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::workspace::CommandRequest;
use crate::environment::{Environment, PassRules};
use crate::link::RunJob;
use crate::place::Place;

/// Time that a login shell gets to say what it exports.
const LOGIN_LIMIT: Duration = Duration::from_secs(5);
/// Variables that name the program which shows long text page by page.
const PAGERS: [&str; 4] = ["PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER"];

/// `$1` the script, `$2` where the state goes, `$3` the folder. The command is evaluated here, so
/// that messages name the shell and not a file of ours; on the first line, so that they count its
/// lines. Nothing of ours shows under `set -x` and `set -v`. A trap of the command's own for EXIT
/// replaces ours: hence the save behind `eval`, and in bash an `exit` that saves first. The `cd` must
/// not change what `cd -` means.
const PROLOGUE: &str = concat!(
    r#"__talaria_state=$2; __talaria_folder=$3; "#,
    r#"__talaria_save() { __talaria_status=$?; set +v; [ "${BASH_SUBSHELL:-0}" = 0 ] && { command printf '%s\n\0' "$__talaria_start"; command pwd; "#,
    r#"command printf '\0'; command export -p; command printf '\0'; } >|"$__talaria_state" 2>/dev/null; "#,
    r#"return $__talaria_status; }; "#,
    r#"case ${BASH_VERSION-}:${SHELLOPTS-} in :*|*:posix*|*:*:posix*) ;; *) "#,
    r#"eval 'exit() { { __talaria_save; } 2>/dev/null; builtin exit "$@"; }';; esac; "#,
    r#". "$1" 2>/dev/null; __talaria_old=${OLDPWD-}; cd -- "$__talaria_folder" || exit 1; "#,
    r#"[ -z "$__talaria_old" ] || OLDPWD=$__talaria_old; __talaria_start=$PWD; "#,
    r#"trap '{ __talaria_save; } 2>/dev/null' EXIT; set --; "#,
    r#"eval "$__talaria_command"; { __talaria_save; } 2>/dev/null"#,
);

/// The terminal of one session.
pub struct Shell {
    place: Place,
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

/// A command whose state is to be kept.
pub struct StateTicket {
    /// Whether it started elsewhere than the session is.
    elsewhere: bool,
}

/// The question put to the login shell. Until it is answered, others that start wait; given up, the
/// next one asks again.
pub struct LoginTicket<'a>(tokio::sync::MutexGuard<'a, bool>);

impl Shell {
    /// A terminal that starts in the folder of the place.
    #[must_use]
    pub fn new(place: Place, rules: PassRules, default_timeout: Duration) -> Self {
        let initial = unpaged(place.terminal_environment(&rules).variables);
        let folder = place.folder.clone();
        Self {
            place,
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

    /// Where it runs.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
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

    /// The login shell to ask first, before the first command of the session. Waits while another
    /// command of the session is asking.
    pub async fn login_plan(&self) -> Option<(ShellPlan, LoginTicket<'_>)> {
        let asked = self.login.lock().await;
        if *asked {
            return None;
        }
        let shell = self.place.login_shell.clone()?;
        let state = self.lock();
        let plan = ShellPlan {
            argv: vec![shell.into_os_string().into_vec(), b"-l".to_vec(), b"-c".to_vec()],
            environment: pairs(&state.initial),
            folder: state.folder.clone().into_os_string().into_vec(),
            script: Vec::new(),
            timeout: LOGIN_LIMIT,
            login: true,
        };
        Some((plan, LoginTicket(asked)))
    }

    /// Takes what the login shell exported, under the same rules as the broker's own environment.
    pub fn take_login(&self, mut ticket: LoginTicket<'_>, exported: &[u8]) {
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
            let exported = self.place.login_environment(&variables, &self.rules).variables;
            self.lock().initial = unpaged(exported);
        }
        *ticket.0 = true;
    }

    /// Prepares a command from the state as it is now.
    #[must_use]
    pub fn plan(&self, request: &CommandRequest) -> (ShellPlan, StateTicket) {
        let state = self.lock();
        let folder = match &request.workdir {
            None => state.folder.clone(),
            Some(workdir) => state.folder.join(self.place.expand_home(workdir)),
        };
        // Neither shell reads start-up files.
        let (shell, flags): (PathBuf, &[&str]) = match &self.place.bash {
            Some(bash) => (bash.clone(), &["--noprofile", "--norc"]),
            None => (PathBuf::from("/bin/sh"), &[]),
        };
        let name = shell.file_name().unwrap_or(OsStr::new("sh")).as_bytes().to_vec();
        let mut argv = vec![shell.into_os_string().into_vec()];
        argv.extend(flags.iter().map(|flag| flag.as_bytes().to_vec()));
        argv.extend([b"-c".to_vec(), PROLOGUE.as_bytes().to_vec(), name]);
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
        let elsewhere = request.workdir.is_some();
        (plan, StateTicket { elsewhere })
    }

    /// Takes the state that a command left; the last one to end sets it. A command that started
    /// elsewhere moves the session only by a `cd` of its own.
    pub fn take_state(&self, ticket: &StateTicket, left: &[u8]) {
        let mut parts = left.splitn(3, |byte| *byte == 0);
        let (Some(start), Some(end), Some(exports)) = (parts.next(), parts.next(), parts.next()) else {
            return; // killed, or replaced by `exec`: the state stays what it was
        };
        let Some(exports) = exports.strip_suffix(b"\0") else {
            return; // cut short, by a full disk perhaps: half of it would be worse than none
        };
        let mut state = self.lock();
        if let Some(folder) = end.strip_suffix(b"\n").filter(|folder| folder.starts_with(b"/"))
            && !(ticket.elsewhere && start == end)
        {
            state.folder = PathBuf::from(OsStr::from_bytes(folder));
        }
        state.exports = Some(exports.to_vec());
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

    /// Where the command starts.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.folder))
    }

    /// The job, with its files in the session's folder.
    #[must_use]
    pub fn into_job(self, number: u64, session_folder: &str, output_cap: u64) -> RunJob {
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
            output_cap,
            folder: self.folder,
            argv,
            environment: self.environment,
            script_path,
            script: self.script,
            state_path,
        }
    }
}

/// Nobody is there to turn pages.
fn unpaged(mut variables: BTreeMap<OsString, OsString>) -> BTreeMap<OsString, OsString> {
    for name in PAGERS {
        variables.insert(name.into(), "cat".into());
    }
    variables
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs commands one after another, each in the shell given, as a supervisor does.
    fn session(shell: &str, commands: &[&str]) -> Vec<(i32, String)> {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::from_iter([("PATH", "/usr/bin:/bin")]);
        let terminal = Shell::new(Place::here(environment, "/".into()), PassRules::default(), LOGIN_LIMIT);
        std::fs::create_dir(folder.path().join("jobs")).unwrap();
        let run = |command: &&str| {
            let request = CommandRequest {
                command: (*command).to_owned(),
                timeout: None,
                workdir: None,
            };
            let (plan, ticket) = terminal.plan(&request);
            let job = plan.into_job(1, folder.path().to_str().unwrap(), 0);
            let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
            std::fs::write(path(&job.script_path), &job.script).unwrap();
            let arguments = job.argv.iter().skip_while(|argument| *argument != b"-c");
            let output = Command::new(shell)
                .args(arguments.map(|argument| OsStr::from_bytes(argument)))
                .env_clear()
                .envs(
                    job.environment
                        .iter()
                        .map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))),
                )
                .current_dir(path(&job.folder))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            terminal.take_state(&ticket, &std::fs::read(path(&job.state_path)).unwrap_or_default());
            let _ = std::fs::remove_file(path(&job.state_path));
            let text = [output.stdout, output.stderr].concat();
            (output.status.code().unwrap(), String::from_utf8(text).unwrap())
        };
        commands.iter().map(run).collect()
    }

    #[test]
    fn every_shell_keeps_the_state() {
        for shell in ["/bin/sh", "/bin/dash", "/bin/bash"] {
            if !Path::new(shell).exists() {
                continue;
            }
            let value = "a \"b\" it's `x` $y \\ \n\tz";
            let export = format!("export V='{}' W=; cd /usr", value.replace('\'', r"'\''"));
            let ended = session(
                shell,
                &[
                    &export,
                    "printf %s \"$V\"; pwd",
                    "cd /; unset V; exit 3",
                    "pwd; echo ${V-unset}${W-no}",
                    "trap 'echo bye' EXIT; cd /usr",
                    "pwd; set -x; cd -",
                    "set -v; pwd",
                ],
            );
            let codes: Vec<i32> = ended.iter().map(|(code, _)| *code).collect();
            assert_eq!(codes, [0, 0, 3, 0, 0, 0, 0], "{shell}: {ended:?}");
            let shown: Vec<&str> = ended.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(shown[1], format!("{value}/usr\n"), "{shell}");
            assert_eq!(shown[3..5], ["/\nunset\n", "bye\n"], "{shell}");
            assert!(shown[5].starts_with("/usr\n/\n"), "{shell}: {}", shown[5]);
            assert!(shown.iter().all(|text| !text.contains("talaria")), "{shell}: {shown:?}");
        }
    }

    #[test]
    fn a_state_that_was_cut_short_is_not_taken() {
        let place = Place::here(Environment::default(), "/".into());
        let terminal = Shell::new(place, PassRules::default(), LOGIN_LIMIT);
        let ticket = StateTicket { elsewhere: false };
        for left in [&b""[..], b"/usr\n\0", b"/\n\0/usr\n\0export A='x", b"/\n\0/us"] {
            terminal.take_state(&ticket, left);
            let state = terminal.lock();
            assert_eq!((state.folder.as_path(), &state.exports), (Path::new("/"), &None));
        }
        terminal.take_state(&ticket, b"/\n\0/usr\n\0export A='x'\n\0");
        assert_eq!(terminal.working_directory(), Path::new("/usr"));
    }
}
