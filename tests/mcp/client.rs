//! A client that speaks the protocol line by line, so that a test sees every byte of it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Bounds a hang; says nothing of speed.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The server's command, in a world of its own: nothing of the machine's configuration counts.
pub(crate) fn server(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
    command
        .arg("mcp")
        .current_dir(folder)
        .env("PWD", folder)
        .env("HERMES_HOME", folder.join("hermes"))
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env_remove("TALARIA_CONFIG")
        .env_remove("TALARIA_TARGET");
    command
}

/// A client with its server.
pub(crate) struct Client {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Messages that nobody has asked for yet.
    pub(crate) unasked: VecDeque<Value>,
    next: u64,
    folder: tempfile::TempDir,
}

impl Client {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    /// With a server whose command was changed.
    pub(crate) fn with(change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = server(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
            unasked: VecDeque::new(),
            next: 0,
            folder,
        }
    }

    /// One that has said who it is.
    pub(crate) fn ready() -> Self {
        let mut client = Self::start();
        client.initialize("2025-11-25");
        client
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub(crate) fn initialize(&mut self, version: &str) -> Value {
        let told = self.ask(
            "initialize",
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        self.notify("notifications/initialized", json!({}));
        told["result"].clone()
    }

    fn write(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Answers a request of the server's.
    pub(crate) fn reply(&mut self, id: &Value, result: &Value) {
        self.write(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request; its id.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}));
        self.next
    }

    /// The next message. Every line must be one.
    pub(crate) fn next_message(&mut self) -> Value {
        let line = self.lines.recv_timeout(LIMIT).expect("the server says nothing");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message
    }

    /// The answer to a request.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        if let Some(at) = self.unasked.iter().position(|message| message["id"] == id) {
            return self.unasked.remove(at).unwrap();
        }
        loop {
            let message = self.next_message();
            if message["id"] == id {
                return message;
            }
            self.unasked.push_back(message);
        }
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Sends a call of a tool; its id.
    pub(crate) fn send_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.send("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The result of a call.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.send_call(tool, arguments);
        result(self.answer(id))
    }

    /// The structured answer of `execute_code`.
    pub(crate) fn execute(&mut self, arguments: Value) -> Value {
        self.call("execute_code", arguments)["structuredContent"].clone()
    }

    /// What a script prints that must succeed.
    pub(crate) fn print(&mut self, code: &str) -> String {
        let outcome = self.execute(json!({"code": code}));
        assert_eq!(outcome["status"], "success", "{outcome:#}");
        outcome["output"].as_str().unwrap().to_owned()
    }

    /// Goes away, as a client does that ends; how the server ended.
    pub(crate) fn leave(mut self) -> (Option<i32>, tempfile::TempDir) {
        drop(self.input.take());
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (
                    status.code(),
                    std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap()),
                );
            }
            assert!(began.elapsed() < LIMIT, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of an answer that must be none of a protocol error.
pub(crate) fn result(answer: Value) -> Value {
    assert!(answer.get("error").is_none(), "{answer:#}");
    answer["result"].clone()
}

static MARKS: AtomicU64 = AtomicU64::new(0);

/// A number of seconds that no other `sleep` of this machine sleeps.
pub(crate) fn mark() -> String {
    let number = MARKS.fetch_add(1, Ordering::Relaxed);
    format!("3600.{}{number:04}", std::process::id())
}

/// Whether a process runs that sleeps that long.
pub(crate) fn sleeps(mark: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    })
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A script that sleeps in a child of its own.
pub(crate) fn sleeper(mark: &str) -> String {
    format!("import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '{mark}'])")
}
