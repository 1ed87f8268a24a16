//! A broker, sessions that are recorded, and their log.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use talaria_broker::audit::{Line, Settings, in_order};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::outcome::Outcome;
use talaria_broker::session::{Cell, Session, SessionOptions};

/// Time within which whatever must happen happens, on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// The value of a variable that is withheld.
pub(crate) const SECRET: &str = "v3ry-s3cret-value-of-the-broker";

pub(crate) struct Rig {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) broker: Broker,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            broker: Broker::new(4),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            folder: self.path("audit"),
            max_bytes: 1 << 20,
            keep: 10,
            max_age: Duration::from_secs(3600),
            required: false,
        }
    }

    pub(crate) fn environment(&self) -> Environment {
        let path = std::env::var("PATH").unwrap();
        let home = self.folder.path().display().to_string();
        Environment::from_iter([("PATH", path.as_str()), ("HOME", &home), ("BUILD_TOKEN", SECRET)])
    }

    /// Options of a session on this machine.
    pub(crate) fn options(&self) -> SessionOptions {
        let mut options = SessionOptions::local(self.folder.path(), self.environment());
        options.audit = Some(self.settings());
        options.limits.timeout = LIMIT;
        options
    }

    pub(crate) fn open(&self, options: SessionOptions) -> Session {
        self.broker.open(options).unwrap()
    }

    /// Ends all sessions; what was recorded.
    pub(crate) async fn lines(&self) -> Vec<Line> {
        tokio::time::timeout(LIMIT, self.broker.close()).await.unwrap();
        lines(&self.path("audit"))
    }

    /// The command line, with nothing of this process's environment.
    pub(crate) fn talaria(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .envs(self.environment().iter())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn says(&self, arguments: &[&str]) -> (String, String) {
        texts(&self.talaria(arguments).output().unwrap())
    }
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// All lines of a log, every one of which can be read.
pub(crate) fn lines(folder: &Path) -> Vec<Line> {
    let text = text(folder);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn text(folder: &Path) -> String {
    let files = in_order(folder).unwrap();
    files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

pub(crate) async fn run(session: &Session, code: &str) -> Outcome {
    tokio::time::timeout(LIMIT, session.execute(Cell::new(code)))
        .await
        .unwrap()
}

/// What happened, by tool or event, with what was decided.
pub(crate) fn story(lines: &[Line]) -> Vec<String> {
    let told = |line: &Line| {
        let decision = line.decision.as_deref().unwrap_or_default();
        let decision = decision.split_once(':').map_or(decision, |(word, _)| word);
        let what = line.tool.as_deref().unwrap_or(&line.event);
        let cell = line.cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string());
        format!("{cell} {what} {decision}").trim_end().to_owned()
    };
    lines.iter().map(told).collect()
}
