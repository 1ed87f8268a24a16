//! What a test works with: a target, sessions on it, the command line, and a scratch folder.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libtest_mimic::Failed;
use talaria_broker::backends::command::{CommandBackend, CommandOptions};
use talaria_broker::broker::Broker;
use talaria_broker::config::Transport;
use talaria_broker::environment::Environment;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cell, Session, SessionOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::command::{Cli, TALARIA};
use crate::containers;
use crate::hosts;
use crate::observe::{self, wait_until};
use crate::sandboxes;

/// The longest that any single wait of a test lasts; it bounds a hang, it says nothing of speed.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A place where sessions run.
pub(crate) struct Target {
    /// What its tests are called after, and what chooses it.
    pub(crate) label: &'static str,
    /// As a user writes it.
    pub(crate) name: &'static str,
    /// How it is reached.
    pub(crate) kind: Kind,
    /// How its directory is carried, where calls go through one.
    transport: Transport,
}

impl Target {
    /// Whether sessions run on this machine as the contract means it: with a socket, and the broker's environment.
    pub(crate) fn is_here(&self) -> bool {
        self.kind == Kind::Here
    }

    /// Whether a process there may have open streams for long.
    pub(crate) fn has_streams(&self) -> bool {
        self.kind != Kind::Gateway
    }

    /// What outcomes say of how calls travel.
    pub(crate) fn transport_in_outcomes(&self) -> &'static str {
        match (self.kind, self.transport) {
            (Kind::Here, _) => "unix-socket",
            (Kind::Gateway, _) | (_, Transport::Polled) => "polled",
            _ => "stream",
        }
    }
}

/// What a target is to the suite. The files of a test lie under the same paths on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This machine, over a socket.
    Here,
    /// This machine as if it were another one: everything goes through the directory.
    Exec,
    /// Containers of an engine on this machine, with an interpreter and programs of their own.
    Docker,
    /// This machine behind a real `ssh` and a real `sshd`.
    Ssh,
    /// Sandboxes that a stand-in of Modal makes on this machine.
    Modal,
    /// The same behind the stand-in's gateway: without streams.
    Gateway,
}

/// The targets that the suite runs on: those that `TALARIA_TEST_TARGETS` names, else this machine in both ways (`local,exec:`).
pub(crate) fn targets() -> impl Iterator<Item = &'static Target> {
    let named = std::env::var("TALARIA_TEST_TARGETS").unwrap_or_else(|_| "local,exec:".to_owned());
    TARGETS
        .iter()
        .filter(move |target| named.split(',').any(|name| name == target.label))
        .filter(|target| match target.kind {
            Kind::Here | Kind::Exec => true,
            Kind::Docker => containers::are_there(),
            Kind::Ssh => hosts::are_there(),
            Kind::Modal | Kind::Gateway => sandboxes::are_there(),
        })
}

/// All targets that it can run on.
const TARGETS: &[Target] = &[
    target("local", "local", Kind::Here, Transport::Auto),
    target("exec:", "exec:/usr/bin/env", Kind::Exec, Transport::Auto),
    target("exec-polled", "exec:/usr/bin/env", Kind::Exec, Transport::Polled),
    target("docker", containers::TARGET, Kind::Docker, Transport::Auto),
    target("docker-polled", containers::TARGET, Kind::Docker, Transport::Polled),
    target("ssh", hosts::TARGET, Kind::Ssh, Transport::Auto),
    target("ssh-polled", hosts::TARGET, Kind::Ssh, Transport::Polled),
    target("modal", sandboxes::TARGET, Kind::Modal, Transport::Auto),
    target("modal-polled", sandboxes::TARGET, Kind::Modal, Transport::Polled),
    target("modal-managed", sandboxes::TARGET, Kind::Gateway, Transport::Auto),
];

const fn target(label: &'static str, name: &'static str, kind: Kind, transport: Transport) -> Target {
    Target {
        label,
        name,
        kind,
        transport,
    }
}

fn pairs<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> impl Iterator<Item = (String, String)> {
    let variables = variables.into_iter();
    variables.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// What one test gets.
pub(crate) struct Rig {
    /// The target.
    pub(crate) target: &'static Target,
    /// Whether its sessions keep a kernel; else each cell is a standalone script.
    pub(crate) keeps_state: bool,
    scratch: TempDir,
    aside: TempDir,
    kills_brokers: AtomicBool,
    /// The broker of its sessions.
    pub(crate) broker: Arc<Broker>,
}

/// Runs a test, clears up after it, and sees that nothing is left.
pub(crate) fn run(target: &'static Target, keeps_state: bool, case: impl FnOnce(&Rig)) -> Result<(), Failed> {
    let rig = Rig::new(target, keeps_state);
    let result = catch_unwind(AssertUnwindSafe(|| case(&rig)));
    let left = catch_unwind(AssertUnwindSafe(|| rig.close()));
    match (result, left) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(panic), _) | (Ok(()), Err(panic)) => Err(Failed::from(message(&*panic))),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}

/// The runtime of all sessions.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .unwrap()
    })
}

/// The interpreter of this machine under test: `TALARIA_TEST_PYTHON`, else the `python3` of PATH without whatever shim
/// stands before it.
pub(crate) fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let asked = std::env::var_os("TALARIA_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let said = Command::new(&asked)
            .args(["-I", "-S", "-c", "import sys; print(sys.executable)"])
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", asked.display()));
        assert!(said.status.success(), "{} does not run", asked.display());
        PathBuf::from(String::from_utf8(said.stdout).unwrap().trim_end())
    })
}

/// Minor version of [`python`].
fn python_minor() -> u32 {
    static MINOR: OnceLock<u32> = OnceLock::new();
    *MINOR.get_or_init(|| {
        let said = Command::new(python())
            .args(["-I", "-S", "-c", "import sys; print(sys.version_info[1])"])
            .output()
            .unwrap();
        String::from_utf8(said.stdout).unwrap().trim().parse().unwrap()
    })
}

/// An interpreter of this machine that every user can run.
fn interpreter_for_all() -> Option<&'static Path> {
    let is_fit = |python: &&str| {
        let asked = Command::new(python)
            .args(["-c", "import sys; sys.exit(sys.version_info < (3, 8))"])
            .status();
        asked.is_ok_and(|status| status.success())
    };
    let found = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(is_fit);
    found.map(Path::new)
}

impl Rig {
    fn new(target: &'static Target, keeps_state: bool) -> Self {
        let folder = match target.kind {
            Kind::Modal | Kind::Gateway => sandboxes::visible(),
            Kind::Here | Kind::Exec | Kind::Docker | Kind::Ssh => std::env::temp_dir(),
        };
        let scratch = tempfile::Builder::new().prefix("conf-").tempdir_in(folder).unwrap();
        for folder in ["home", "tmp", "work"] {
            std::fs::create_dir(scratch.path().join(folder)).unwrap();
        }
        let _inside = runtime().enter();
        Self {
            target,
            keeps_state,
            scratch,
            aside: tempfile::tempdir().unwrap(),
            kills_brokers: AtomicBool::new(false),
            broker: Arc::new(Broker::new(4)),
        }
    }

    /// The interpreter of all its sessions that do not look for one.
    pub(crate) fn python(&self) -> &'static Path {
        match self.target.kind {
            Kind::Here | Kind::Exec | Kind::Ssh | Kind::Modal | Kind::Gateway => python(),
            Kind::Docker => containers::python(),
        }
    }

    /// Minor version of [`Rig::python`].
    pub(crate) fn python_minor(&self) -> u32 {
        match self.target.kind {
            Kind::Here | Kind::Exec | Kind::Ssh | Kind::Modal | Kind::Gateway => python_minor(),
            Kind::Docker => containers::python_minor(),
        }
    }

    /// A folder that is this test's own. Its path is the test's mark: it stands in the environment
    /// and the working directory of every process of its sessions.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A folder for what is not part of a session, and does not bear the mark.
    pub(crate) fn aside(&self) -> &Path {
        self.aside.path()
    }

    /// HOME of its sessions.
    pub(crate) fn home(&self) -> PathBuf {
        self.scratch.path().join("home")
    }

    /// Their TMPDIR and XDG_RUNTIME_DIR; holds nothing but folders of sessions.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.scratch.path().join("tmp")
    }

    /// Their working directory.
    pub(crate) fn work(&self) -> PathBuf {
        self.scratch.path().join("work")
    }

    /// Puts a file below the working directory.
    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Gives the test's folders to a user that nobody else is. None where that cannot be: the tests do
    /// not run as root, the machine has no interpreter for all, or the engine listens to no group.
    pub(crate) fn other_user(&self) -> Option<OtherUser> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let (python, group) = match self.target.kind {
            Kind::Here | Kind::Exec => (interpreter_for_all()?, None),
            Kind::Docker => (containers::python(), Some(containers::group()?)),
            // It has no account to log into; a sandbox is seen by nobody else.
            Kind::Ssh | Kind::Modal | Kind::Gateway => return None,
        };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() % 1_000_000 * 100 + NEXT.fetch_add(1, Ordering::Relaxed);
        let user = 2_000_000_000 + number % 100_000_000;
        for folder in [self.scratch().to_owned(), self.home(), self.tmp(), self.work()] {
            std::os::unix::fs::chown(folder, Some(user), Some(user)).unwrap();
        }
        // Where it was built may be closed to others.
        let program = self.scratch().join("talaria");
        std::fs::copy(env!("CARGO_BIN_EXE_talaria"), &program).unwrap();
        Some(OtherUser {
            user,
            group,
            python,
            program,
        })
    }

    /// Variables of a broker with nothing of this machine's user in them, and more.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        vec![
            ("PATH".into(), path),
            ("HOME".into(), self.home().into()),
            ("TMPDIR".into(), self.tmp().into()),
            ("XDG_RUNTIME_DIR".into(), self.tmp().into()),
            ("LANG".into(), "C.UTF-8".into()),
        ]
    }

    /// The same as a broker's snapshot, and more.
    pub(crate) fn environment<'a>(&self, more: impl IntoIterator<Item = (&'a str, &'a str)>) -> Environment {
        let more = more.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.variables().into_iter().chain(more).collect()
    }

    /// Options of a session as [`Rig::session`] opens one.
    pub(crate) fn options(&self) -> SessionOptions {
        let mut options = self.options_among([]);
        options.transport = self.target.transport;
        options.python = Some(self.python().to_owned());
        options.limits.timeout = HANG;
        options.keep_kernel = self.keeps_state;
        options
    }

    /// Options of a session on a target whose processes have these variables too.
    fn options_among<'a>(&self, more: impl IntoIterator<Item = (&'a str, &'a str)>) -> SessionOptions {
        match self.target.kind {
            Kind::Here => SessionOptions::local(self.work(), self.environment(more)),
            Kind::Exec => {
                let there = self.environment(more);
                let options = CommandOptions {
                    target: self.target.name.to_owned(),
                    prefix: "/usr/bin/env".to_owned(),
                    environment: there.iter().map(|(name, value)| (name.into(), value.into())).collect(),
                    ..CommandOptions::default()
                };
                let backend = Arc::new(CommandBackend::new(options).unwrap());
                let mut options = SessionOptions::elsewhere(self.target.name, backend, self.environment([]));
                options.cwd = Some(self.work());
                options
            }
            Kind::Ssh => {
                let there = hosts::variables(self).chain(pairs(more)).collect();
                let backend = Arc::new(hosts::backend(self, &there));
                let mut options = SessionOptions::elsewhere(self.target.name, backend, self.environment([]));
                options.cwd = Some(self.work());
                options
            }
            Kind::Modal | Kind::Gateway => {
                let there = sandboxes::variables(self).chain(pairs(more)).collect();
                let backend = sandboxes::backend(self, there);
                let mut options = SessionOptions::elsewhere(self.target.name, backend, self.environment([]));
                options.cwd = Some(self.work());
                options
            }
            Kind::Docker => {
                let there = containers::variables(self).chain(pairs(more));
                let backend = Arc::new(containers::backend(self, there.collect()));
                let mut options = SessionOptions::elsewhere(self.target.name, backend, self.environment([]));
                options.cwd = Some(self.work());
                options
            }
        }
    }

    /// Changes a session's options: on its target, processes have these variables too.
    pub(crate) fn among<'a>(&self, options: &mut SessionOptions, more: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let there = self.options_among(more);
        options.environment = there.environment;
        options.backend = there.backend;
    }

    /// A session with the built-in tools.
    pub(crate) fn session(&self) -> TestSession {
        self.open(self.options())
    }

    /// A session whose options are changed first.
    pub(crate) fn session_with(&self, change: impl FnOnce(&mut SessionOptions)) -> TestSession {
        let mut options = self.options();
        change(&mut options);
        self.open(options)
    }

    /// A session of given options.
    pub(crate) fn open(&self, options: SessionOptions) -> TestSession {
        TestSession {
            session: self.broker.open(options).unwrap(),
        }
    }

    /// A command line with a clean environment; see [`Cli`].
    pub(crate) fn cli<S: Into<OsString>>(&self, arguments: impl IntoIterator<Item = S>) -> Cli {
        self.command(TALARIA, arguments)
    }

    fn command<S: Into<OsString>>(&self, program: &str, arguments: impl IntoIterator<Item = S>) -> Cli {
        let mut variables = self.variables();
        match self.target.kind {
            Kind::Here | Kind::Exec => {}
            Kind::Docker => variables.extend(containers::settings(self)),
            Kind::Ssh => variables.extend(hosts::settings(self)),
            Kind::Modal | Kind::Gateway => variables.extend(sandboxes::settings(self)),
        }
        if self.target.transport != Transport::Auto {
            let transport = self.target.transport.to_string();
            variables.push(("TALARIA_CODE_EXECUTION_TRANSPORT".into(), transport.into()));
        }
        Cli::new(program, arguments, &self.work(), variables)
            .env("TALARIA_TARGET", self.target.name)
            .env("TALARIA_CODE_EXECUTION_PYTHON", self.python())
            .env(
                "TALARIA_CODE_EXECUTION_KERNEL",
                if self.keeps_state { "on" } else { "off" },
            )
    }

    /// The same for a test that kills it: elsewhere nobody but the lease ends what is left then, so that is short.
    pub(crate) fn mortal_cli<S: Into<OsString>>(&self, arguments: impl IntoIterator<Item = S>) -> Cli {
        self.kills_brokers.store(true, Ordering::Relaxed);
        let cli = self.cli(arguments);
        match self.target.kind {
            Kind::Here => cli,
            Kind::Exec | Kind::Docker | Kind::Ssh | Kind::Modal | Kind::Gateway => cli
                .env("TALARIA_CODE_EXECUTION_LEASE", "3s")
                .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "1s")
                .env("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", "1s"),
        }
    }

    /// Whether command lines were made to be killed.
    pub(crate) fn kills_brokers(&self) -> bool {
        self.kills_brokers.load(Ordering::Relaxed)
    }

    /// The time after which nothing is left of a broker that was killed; more on a machine that is busy with other tests.
    pub(crate) fn left_behind(&self) -> Duration {
        Duration::from_secs(if self.target.is_here() { 10 } else { 30 })
    }

    /// Text for bash, in the same environment; `$TALARIA` is the command line.
    pub(crate) fn shell(&self, script: &str) -> Cli {
        self.command("bash", ["-c", script]).env("TALARIA", TALARIA)
    }

    /// Ends all sessions; nothing may be left of them.
    fn close(&self) {
        let closed = runtime().block_on(async { tokio::time::timeout(HANG, self.broker.close()).await });
        let mark = self.scratch().to_str().unwrap();
        let folders = || -> Vec<OsString> {
            let entries = std::fs::read_dir(self.tmp()).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name());
            names
                .filter(|name| name.to_string_lossy().starts_with("talaria-"))
                .collect()
        };
        // A sandbox whose broker was killed ends a while after its lease.
        let mut left_over = match self.target.kind {
            Kind::Modal | Kind::Gateway => sandboxes::take_what_is_left(self),
            Kind::Here | Kind::Exec | Kind::Ssh | Kind::Docker => Vec::new(),
        };
        // A guard lets nobody but root look at it; that its folder is gone shows that it is through.
        let clean = wait_until(Duration::from_secs(10), || {
            observe::with_mark(mark).is_empty() && folders().is_empty()
        });
        if self.target.kind == Kind::Docker {
            left_over = containers::take_what_is_left(self);
        }
        let left = observe::with_mark(mark);
        // They were started by this test, directly or not.
        observe::kill(&left);
        let folders = folders();
        assert!(closed.is_ok(), "the sessions could not be closed");
        assert!(clean, "processes are left: {left:#?}, or folders: {folders:?}");
        assert!(left_over.is_empty(), "containers or sandboxes are left: {left_over:?}");
    }
}

/// A user without any right of ours.
pub(crate) struct OtherUser {
    /// Its number.
    pub(crate) user: u32,
    /// Beside its own: the one that the engine listens to.
    group: Option<u32>,
    python: &'static Path,
    program: PathBuf,
}

impl OtherUser {
    /// What runs a command as that user.
    pub(crate) fn prefix(&self) -> Vec<String> {
        let user = self.user.to_string();
        let groups = match self.group {
            Some(group) => format!("--groups={group}"),
            None => "--clear-groups".to_owned(),
        };
        let words = ["setpriv", "--reuid", &user, "--regid", &user, &groups];
        words.map(str::to_owned).to_vec()
    }

    /// A command line that this user can run, once it goes through [`OtherUser::prefix`].
    pub(crate) fn cli<S: Into<OsString>>(&self, rig: &Rig, arguments: impl IntoIterator<Item = S>) -> Cli {
        rig.cli(arguments)
            .program(&self.program)
            .env("TALARIA_CODE_EXECUTION_PYTHON", self.python)
    }
}

/// A session, seen from a test that waits.
#[derive(Clone)]
pub(crate) struct TestSession {
    /// The session itself.
    pub(crate) session: Session,
}

impl TestSession {
    /// Runs a cell of text.
    pub(crate) fn cell(&self, code: impl Into<String>) -> Outcome {
        self.run(Cell::new(code))
    }

    /// Runs a cell of a file's bytes.
    pub(crate) fn file(&self, source: impl Into<Vec<u8>>) -> Outcome {
        self.run(Cell::from_file(source))
    }

    /// Runs a cell that ends at its limit.
    pub(crate) fn cell_for(&self, seconds: f64, code: &str) -> Outcome {
        let mut cell = Cell::new(code);
        cell.limits.timeout = Some(Duration::from_secs_f64(seconds));
        self.run(cell)
    }

    /// Runs a cell.
    pub(crate) fn run(&self, cell: Cell) -> Outcome {
        self.start(cell).wait()
    }

    /// Hands a cell over without waiting for it.
    pub(crate) fn start(&self, cell: Cell) -> Running {
        let session = self.session.clone();
        Running(runtime().spawn(async move { session.execute(cell).await }))
    }

    /// Runs a cell that must succeed; what it printed.
    pub(crate) fn ok(&self, code: &str) -> String {
        let outcome = self.cell(code);
        assert_eq!(outcome.status, Status::Success, "{code}\n{outcome:#?}");
        outcome.output
    }

    /// Runs a cell that must succeed and print JSON; its value.
    pub(crate) fn value(&self, code: &str) -> serde_json::Value {
        let printed = self.ok(code);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}\n{code}"))
    }

    /// Runs a cell that must succeed and print a process's number as its target counts; its number here.
    pub(crate) fn process(&self, code: &str) -> i32 {
        observe::number_here(&self.ok(&format!("{code}\n{PRINT_NAMESPACE}")))
    }

    /// A path of its target, as this machine sees it.
    pub(crate) fn as_seen_here(&self, path: &str) -> PathBuf {
        observe::seen_from(self.process("import os; print(os.getpid())"), path)
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        runtime().block_on(async { tokio::time::timeout(HANG, self.session.close()).await.unwrap() });
    }
}

/// Ends a cell that prints a process's number: in which namespace that is its number.
pub(crate) const PRINT_NAMESPACE: &str = "import os; print(os.readlink('/proc/self/ns/pid'))";

/// A cell under way. Dropped, it goes on.
pub(crate) struct Running(tokio::task::JoinHandle<Outcome>);

impl Running {
    /// Waits for its end.
    pub(crate) fn wait(self) -> Outcome {
        let waiting = async { tokio::time::timeout(2 * HANG, self.0).await };
        runtime().block_on(waiting).expect("the cell hangs").unwrap()
    }
}
