//! The command line as a user's shell starts it.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::observe::wait_until;
use crate::rig::HANG;

/// The command line under test.
pub(crate) const TALARIA: &str = env!("CARGO_BIN_EXE_talaria");

/// A command to be, with a clean environment and nothing on its stdin.
pub(crate) struct Cli {
    command: Command,
    stdin: Vec<u8>,
}

impl Cli {
    pub(crate) fn new<S: Into<OsString>>(
        program: &str,
        arguments: impl IntoIterator<Item = S>,
        folder: &Path,
        variables: Vec<(OsString, OsString)>,
    ) -> Self {
        let mut command = Command::new(program);
        command
            .args(arguments.into_iter().map(Into::into))
            .env_clear()
            .envs(variables)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        Self {
            command,
            stdin: Vec::new(),
        }
    }

    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes a variable away.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Starts it through another program, which gets the command line as its last arguments.
    pub(crate) fn through<S: AsRef<OsStr>>(self, prefix: impl IntoIterator<Item = S>) -> Self {
        let program = self.command.get_program().to_owned();
        let prefix = prefix.into_iter().map(|word| word.as_ref().to_owned());
        let mut words = prefix.chain([program]);
        let first = words.next().unwrap();
        self.rebuilt(&first, words.collect())
    }

    /// Takes another copy of the program.
    pub(crate) fn program(self, program: &Path) -> Self {
        self.rebuilt(program.as_os_str(), Vec::new())
    }

    fn rebuilt(mut self, program: &OsStr, first: Vec<OsString>) -> Self {
        let mut outer = Command::new(program);
        outer.args(first).args(self.command.get_args()).env_clear();
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                outer.env(name, value);
            }
        }
        outer
            .current_dir(self.command.get_current_dir().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        self.command = outer;
        self
    }

    /// Gives it something to read.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Output {
        self.start().wait()
    }

    /// Starts it in a process group of its own.
    pub(crate) fn start(mut self) -> Started {
        let mut child = self.command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = self.stdin;
        // It may go without having read.
        std::thread::spawn(move || stdin.write_all(&bytes).is_ok());
        let stdout = Reading::of(child.stdout.take().unwrap());
        let stderr = Reading::of(child.stderr.take().unwrap());
        Started { child, stdout, stderr }
    }
}

/// What one stream has brought so far.
struct Reading {
    text: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Reading {
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let text = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = text.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(size @ 1..) = stream.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..size]);
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

/// A command line under way.
pub(crate) struct Started {
    child: Child,
    stdout: Reading,
    stderr: Reading,
}

impl Started {
    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to stdout so far.
    pub(crate) fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// Waits until stdout holds a text.
    pub(crate) fn wait_for(&self, text: &str) {
        assert!(
            wait_until(HANG, || self.stdout().contains(text)),
            "{text:?} never came; stdout: {:?}; stderr: {:?}",
            self.stdout(),
            self.stderr.so_far()
        );
    }

    /// Sends a signal to the process alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end and for the end of both streams, so a process that it leaves behind with
    /// one of them shows as a hang.
    pub(crate) fn wait(mut self) -> Output {
        let mut status = None;
        wait_until(HANG, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let Some(status) = status else {
            self.child.kill().unwrap();
            panic!(
                "it hangs; stdout: {:?}; stderr: {:?}",
                self.stdout(),
                self.stderr.so_far()
            );
        };
        let ended = wait_until(Duration::from_secs(20), || {
            self.stdout.reader.is_finished() && self.stderr.reader.is_finished()
        });
        let output = Output {
            status,
            stdout: self.stdout.so_far(),
            stderr: self.stderr.so_far(),
        };
        assert!(ended, "something that it left holds its streams: {output:?}");
        output
    }
}

/// What a command line came to.
#[derive(Debug)]
pub(crate) struct Output {
    /// How the process ended.
    pub(crate) status: ExitStatus,
    /// Everything it wrote.
    pub(crate) stdout: String,
    /// Everything it said.
    pub(crate) stderr: String,
}

impl Output {
    /// The exit code; 128 + signal where a signal ended it.
    pub(crate) fn code(&self) -> i32 {
        let signal = || 128 + self.status.signal().unwrap();
        self.status.code().unwrap_or_else(signal)
    }

    /// The outcomes of `--json`.
    pub(crate) fn outcomes(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}")))
            .collect()
    }
}
