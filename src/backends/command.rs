//! Any command that runs a program somewhere (`exec:kubectl exec -i POD --`, `exec:sudo -n -u bob --`): program and
//! arguments are put behind it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::{
    Backend, BackendError, Capabilities, Command, Process, ProcessEnd, ProcessWait, Progress, Target, TargetState,
};

/// Bytes that may wait unread: pipes to a process of ours, which harm nobody.
const WINDOW: u32 = 4 << 20;

/// What an `exec:` target is.
#[derive(Clone, Debug, Default)]
pub struct CommandOptions {
    /// The target as the user wrote it, for messages.
    pub target: String,
    /// The command in front, with the shell's quoting; may be empty.
    pub prefix: String,
    /// The whole environment of the command on this machine. Nothing of it is a target's.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where it starts on this machine.
    pub folder: Option<PathBuf>,
}

/// The backend of targets that a command reaches.
#[derive(Clone, Debug)]
pub struct CommandBackend {
    options: CommandOptions,
    words: Vec<OsString>,
}

impl CommandBackend {
    /// Reads the command.
    ///
    /// # Errors
    /// When its quotes do not match.
    pub fn new(options: CommandOptions) -> Result<Self, BackendError> {
        match shell_words::split(&options.prefix) {
            Ok(words) => Ok(Self {
                words: words.into_iter().map(OsString::from).collect(),
                options,
            }),
            Err(_) => Err(BackendError::Refused {
                target: options.target,
                reason: "a quote in its command is never closed".to_owned(),
                advice: "write the command as in a shell".to_owned(),
            }),
        }
    }

    /// The path of a program of this machine, as the command's own `PATH` has it.
    fn find(&self, program: &OsStr) -> Option<PathBuf> {
        let is_program = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        let start = self.options.folder.clone().unwrap_or_default();
        if program.as_encoded_bytes().contains(&b'/') {
            return Some(PathBuf::from(program)).filter(|path| is_program(&start.join(path)));
        }
        let path = self.options.environment.get(OsStr::new("PATH"))?;
        std::env::split_paths(path)
            .map(|folder| start.join(folder).join(program))
            .find(|path| is_program(path))
    }

    /// What is wrong with the command itself.
    fn missing(&self) -> Option<String> {
        let program = self.words.first()?;
        match self.find(program) {
            Some(_) => None,
            None => Some(format!(
                "there is no program {} on this machine",
                program.to_string_lossy()
            )),
        }
    }

    fn refused(&self, reason: String) -> BackendError {
        BackendError::Refused {
            target: self.options.target.clone(),
            reason,
            advice: "install it, or write its whole path".to_owned(),
        }
    }
}

#[async_trait]
impl Backend for CommandBackend {
    async fn open(&self, _: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        match self.missing() {
            Some(reason) => Err(self.refused(reason)),
            None => Ok(Arc::new(self.clone())),
        }
    }
}

#[async_trait]
impl Target for CommandBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::elsewhere(WINDOW)
    }

    async fn state(&self) -> TargetState {
        match self.missing() {
            Some(reason) => TargetState::Unreachable(reason),
            None => TargetState::Running {
                incarnation: String::new(),
                machine: String::new(),
            },
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let mut words = self.words.clone();
        words.extend(there(&command));
        let no_program = |reason: String| BackendError::NoProgram {
            target: self.options.target.clone(),
            program: command.program.to_string_lossy().into_owned(),
            reason,
        };
        let Some((first, rest)) = words.split_first() else {
            return Err(no_program("it has no name".to_owned()));
        };
        let Some(program) = self.find(first) else {
            return Err(match self.missing() {
                Some(reason) => self.refused(reason),
                None => no_program("it is not on the PATH".to_owned()),
            });
        };
        let failed = |reason: String| BackendError::Command {
            target: self.options.target.clone(),
            program: first.to_string_lossy().into_owned(),
            reason,
        };
        let mut builder = tokio::process::Command::new(program);
        builder
            .args(rest)
            .env_clear()
            .envs(&self.options.environment)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = &self.options.folder {
            builder.current_dir(folder);
        }
        let mut child = builder.spawn().map_err(|error| failed(error.to_string()))?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok(Process {
                stdin: Box::new(stdin),
                stdout: Box::new(stdout),
                stderr: Box::new(stderr),
                end: Box::new(CommandEnd { child, group }),
                wake: Arc::new(|| {}),
            }),
            _ => Err(failed("its standard streams could not be opened".to_owned())),
        }
    }
}

/// Program and arguments as the far side needs them: what a command in front cannot say, `env` and a shell say there.
fn there(command: &Command) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(folder) = &command.folder {
        words.extend(["sh", "-c", "cd -- \"$1\" && shift && exec \"$@\"", "sh"].map(OsString::from));
        words.push(folder.as_os_str().to_owned());
    }
    if !command.environment.is_empty() {
        words.push("env".into());
        for (name, value) in &command.environment {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            words.push(entry);
        }
    }
    words.push(command.program.clone());
    words.extend(command.arguments.iter().cloned());
    words
}

/// The process, and with it all that it started and that stayed in its group.
struct CommandEnd {
    child: Child,
    /// `None` once the process was waited for: the number may belong to somebody else.
    group: Option<Pid>,
}

#[async_trait]
impl ProcessWait for CommandEnd {
    fn kill(&mut self) {
        if let Some(group) = self.group {
            // It may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    async fn wait(&mut self) -> ProcessEnd {
        use std::os::unix::process::ExitStatusExt;
        let ended = self.child.wait().await;
        self.group = None;
        match ended.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => ProcessEnd::Code(code),
            Ok((None, Some(signal))) => ProcessEnd::Signal(signal),
            _ => ProcessEnd::Lost,
        }
    }
}

impl Drop for CommandEnd {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::backends::Silent;

    fn backend(prefix: &str) -> Result<CommandBackend, BackendError> {
        CommandBackend::new(CommandOptions {
            target: format!("exec:{prefix}"),
            prefix: prefix.to_owned(),
            environment: BTreeMap::from([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]),
            folder: None,
        })
    }

    fn command(program: &str, arguments: &[&str]) -> Command {
        Command {
            program: program.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: BTreeMap::new(),
            folder: None,
            input: Default::default(),
        }
    }

    async fn output(prefix: &str, command: Command) -> (String, ProcessEnd) {
        let target = backend(prefix).unwrap().open(&Silent).await.unwrap();
        let mut process = target.spawn(command).await.unwrap();
        let mut text = String::new();
        // It may have ended without having read it.
        let _ = process.stdin.write_all(b"in").await;
        let _ = process.stdin.shutdown().await;
        drop(process.stdin);
        process.stdout.read_to_string(&mut text).await.unwrap();
        (text, process.end.wait().await)
    }

    #[tokio::test]
    async fn program_and_arguments_stand_behind_the_command() {
        for prefix in ["", "env", "env 'A=b c'", "nice -n 0 env \"A=b c\""] {
            let (text, end) = output(prefix, command("printf", &["%s|", "a b", "$x", "'\"", ""])).await;
            assert_eq!(text, "a b|$x|'\"||", "{prefix}");
            assert_eq!(end, ProcessEnd::Code(0));
        }
        let (text, _) = output("env 'A=b c'", command("sh", &["-c", "cat; printf %s \"$A\""])).await;
        assert_eq!(text, "inb c");
        let (_, end) = output("", command("sh", &["-c", "exit 7"])).await;
        assert_eq!(end, ProcessEnd::Code(7));
        let (_, end) = output("", command("sh", &["-c", "kill -9 $$"])).await;
        assert_eq!(end, ProcessEnd::Signal(9));
    }

    #[tokio::test]
    async fn environment_and_folder_of_a_command_are_those_over_there() {
        let mut there = command("sh", &["-c", "pwd; printf %s \"$X\""]);
        there.folder = Some("/usr".into());
        there.environment.insert("X".into(), "a b'\"$".into());
        assert_eq!(output("env A=1", there).await.0, "/usr\na b'\"$");
    }

    #[tokio::test]
    async fn what_cannot_be_found_says_what_to_do() {
        assert!(matches!(backend("a 'b"), Err(BackendError::Refused { .. })));
        let Err(error) = backend("no-such-command --").unwrap().open(&Silent).await else {
            panic!("it was found");
        };
        assert_eq!(
            error.to_string(),
            "exec:no-such-command -- cannot be used: there is no program no-such-command on this machine; install it, or write its whole path"
        );
        let target = backend("").unwrap().open(&Silent).await.unwrap();
        let missing = target.spawn(command("no-such-python", &[])).await;
        assert!(matches!(missing, Err(BackendError::NoProgram { .. })));
    }

    #[tokio::test]
    async fn what_it_started_ends_with_it() {
        let target = backend("").unwrap().open(&Silent).await.unwrap();
        let mut process = target
            .spawn(command("sh", &["-c", "sleep 300 & echo $!; wait"]))
            .await
            .unwrap();
        let mut text = String::new();
        while !text.ends_with('\n') {
            let mut byte = [0];
            process.stdout.read_exact(&mut byte).await.unwrap();
            text.push(char::from(byte[0]));
        }
        let proc = format!("/proc/{}/stat", text.trim());
        let lives = || std::fs::read_to_string(&proc).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(lives());
        drop(process);
        for _ in 0..500 {
            if !lives() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("it still runs");
    }
}
