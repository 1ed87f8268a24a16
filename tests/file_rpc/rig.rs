//! A target that can be cut, stopped and taken away; a session on it; what its scripts called.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rustix::process::Pid;
use serde_json::{Value, json};
use talaria_broker::backends::command::{CommandBackend, CommandOptions};
use talaria_broker::backends::{
    Backend, BackendError, Capabilities, Command, Process, ProcessEnd, ProcessWait, Silent, Target, TargetState,
};
use talaria_broker::file_rpc::{FileLink, Interpreters, Start, StartError, Transport};
use talaria_broker::kernel::Agent;
use talaria_broker::link::{CallHandler, CellDone, IncomingCall, KernelStart, Link, RunCell};
use talaria_broker::tools::{CallPath, stub_source};
use tempfile::TempDir;

/// The longest that any wait lasts; it bounds a hang, it says nothing of speed.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// The stub has no function for the tools of these tests.
const CALL: &str = "\n\ndef call(tool, **arguments):\n    return _call(tool, arguments)\n";

type End = Arc<tokio::sync::Mutex<Box<dyn ProcessWait>>>;

/// The target under the link, and what is wrong with it.
pub(crate) struct Faulty {
    inner: Arc<dyn Target>,
    /// The process that was started last.
    last: Mutex<Option<End>>,
    pub(crate) spawned: AtomicU64,
    /// What `state` says in place of the truth.
    pub(crate) state: Mutex<Option<TargetState>>,
    /// What `spawn` says in place of starting something.
    pub(crate) refusal: Mutex<Option<BackendError>>,
}

impl Faulty {
    /// Kills the process that carries the directory.
    pub(crate) fn cut(&self) {
        if let Some(end) = &*self.last.lock().unwrap()
            && let Ok(mut end) = end.try_lock()
        {
            end.kill();
        }
    }
}

#[async_trait]
impl Target for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        if let Some(error) = &*self.refusal.lock().unwrap() {
            return Err(error.clone());
        }
        self.spawned.fetch_add(1, Ordering::Relaxed);
        let mut process = self.inner.spawn(command).await?;
        let end: End = Arc::new(tokio::sync::Mutex::new(process.end));
        *self.last.lock().unwrap() = Some(end.clone());
        process.end = Box::new(SharedEnd(end));
        Ok(process)
    }

    async fn state(&self) -> TargetState {
        let said = self.state.lock().unwrap().clone();
        match (said, self.inner.state().await) {
            (Some(state), _) => state,
            // Of its start it says nothing by itself.
            (None, TargetState::Running { .. }) => TargetState::Running {
                incarnation: "the first".to_owned(),
                machine: String::new(),
            },
            (None, state) => state,
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.inner.close().await
    }
}

struct SharedEnd(End);

#[async_trait]
impl ProcessWait for SharedEnd {
    async fn wait(&mut self) -> ProcessEnd {
        self.0.lock().await.wait().await
    }

    fn kill(&mut self) {
        if let Ok(mut end) = self.0.try_lock() {
            end.kill();
        }
    }
}

/// The tools: what was called, and how often.
#[derive(Default)]
pub(crate) struct Tools {
    pub(crate) calls: Mutex<BTreeMap<String, u64>>,
    pub(crate) cancelled: AtomicU64,
}

impl Tools {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.calls.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

#[async_trait]
impl CallHandler for Tools {
    async fn handle(&self, call: IncomingCall) -> Value {
        let name = call.arguments.get("name").and_then(Value::as_str).unwrap_or("");
        *self
            .calls
            .lock()
            .unwrap()
            .entry(format!("{} {name}", call.tool))
            .or_default() += 1;
        match call.tool.as_str() {
            "echo" => json!({"name": name}),
            "measure" => {
                let text = call.arguments["text"].as_str().unwrap();
                json!({"size": text.len(), "same": text.bytes().all(|byte| byte == b'x')})
            }
            "make" => json!({"text": "y".repeat(call.arguments["size"].as_u64().unwrap() as usize)}),
            "wait" => {
                let _cancelled = OnDrop(&self.cancelled);
                std::future::pending().await
            }
            "panic" => panic!("a tool that fails"),
            other => json!({"error": format!("no tool {other}")}),
        }
    }
}

struct OnDrop<'a>(&'a AtomicU64);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One session.
pub(crate) struct Rig {
    pub(crate) scratch: TempDir,
    pub(crate) target: Arc<Faulty>,
    pub(crate) tools: Arc<Tools>,
    pub(crate) link: Arc<FileLink>,
    pub(crate) agent: Agent,
    cells: AtomicU64,
}

/// The interpreter that tests run on.
pub(crate) fn python() -> OsString {
    std::env::var_os("TALARIA_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

fn environment() -> BTreeMap<OsString, OsString> {
    ["PATH", "HOME", "LANG"]
        .iter()
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
        .collect()
}

pub(crate) async fn target(prefix: &str) -> Arc<Faulty> {
    let backend = CommandBackend::new(CommandOptions {
        target: "exec:test".to_owned(),
        prefix: prefix.to_owned(),
        environment: environment(),
        folder: None,
    });
    Arc::new(Faulty {
        inner: backend.unwrap().open(&Silent).await.unwrap(),
        last: Mutex::default(),
        spawned: AtomicU64::new(0),
        state: Mutex::default(),
        refusal: Mutex::default(),
    })
}

/// What a session is started with; tests change some of it.
pub(crate) fn start(target: &Arc<Faulty>, tools: &Arc<Tools>, scratch: &Path, transport: Transport) -> Start {
    let work = scratch.join("work");
    std::fs::create_dir_all(&work).unwrap();
    Start {
        target: target.clone(),
        name: "exec:test".to_owned(),
        pythons: vec![python()],
        cwd: Some(work),
        work: false,
        interpreters: Interpreters::Own,
        bases: vec![scratch.to_owned()],
        lease: Duration::from_secs(120),
        first_lease: Duration::from_secs(60),
        reconnect_timeout: HANG,
        transport,
        window: None,
        handler: tools.clone(),
    }
}

impl Rig {
    pub(crate) async fn new(transport: Transport) -> Self {
        Self::with(transport, |_| {}).await.unwrap()
    }

    pub(crate) async fn with(transport: Transport, change: impl FnOnce(&mut Start)) -> Result<Self, StartError> {
        let scratch = TempDir::new().unwrap();
        let target = target("").await;
        let tools = Arc::new(Tools::default());
        let mut options = start(&target, &tools, scratch.path(), transport);
        change(&mut options);
        let link = Arc::new(FileLink::start(options).await?);
        let agent = Agent::new(link.clone());
        let rig = Self {
            scratch,
            target,
            tools,
            link,
            agent,
            cells: AtomicU64::new(0),
        };
        Ok(rig)
    }

    /// Starts the kernel.
    pub(crate) async fn kernel(self) -> Self {
        let facts = self.link.facts();
        let variables = self.link.variables();
        let mut environment: Vec<(Vec<u8>, Vec<u8>)> = facts
            .environment()
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect();
        let own: Vec<(Vec<u8>, Vec<u8>)> = variables
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect();
        environment.extend(own.clone());
        let start = KernelStart {
            generation: 1,
            python: bytes(facts.python()),
            folder: bytes(facts.cwd()),
            environment,
            session_folder: self.link.folder().into(),
            stub: stub_source(&[], self.link.token(), CallPath::Directory) + CALL,
            link: own,
        };
        let mut kernel = self.agent.start_kernel(start, HANG).unwrap();
        bounded(kernel.ready()).await.unwrap();
        self
    }

    /// Runs a cell: its stdout and how it ended.
    pub(crate) async fn run(&self, source: &str) -> (String, CellDone) {
        let cell = self.cells.fetch_add(1, Ordering::Relaxed) + 1;
        let run = RunCell {
            cell,
            timeout: HANG.as_secs_f64(),
            held: 0.0,
            stdout_cap: 1 << 26,
            folder: Vec::new(),
            stderr_cap: 1 << 20,
            name: format!("cell-{cell}.py"),
            arguments: Vec::new(),
            from_file: false,
            stub: None,
            source: source.as_bytes().to_vec(),
            standalone: false,
        };
        let mut stdout = Vec::new();
        let mut stderr = Vec::new();
        let ran = self.agent.run_cell(run, |is_stderr, data| {
            let output = if is_stderr { &mut stderr } else { &mut stdout };
            output.extend_from_slice(data);
        });
        let done = bounded(ran).await.unwrap();
        assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
        (String::from_utf8(stdout).unwrap(), done)
    }

    /// Runs a cell that the link does not survive: what is said of that.
    pub(crate) async fn run_to_error(&self, source: &str) -> String {
        let run = RunCell {
            cell: self.cells.fetch_add(1, Ordering::Relaxed) + 1,
            timeout: HANG.as_secs_f64(),
            held: 0.0,
            stdout_cap: 1 << 20,
            folder: Vec::new(),
            stderr_cap: 1 << 20,
            name: "cell.py".to_owned(),
            arguments: Vec::new(),
            from_file: false,
            stub: None,
            source: source.as_bytes().to_vec(),
            standalone: false,
        };
        bounded(self.agent.run_cell(run, |_, _| {}))
            .await
            .unwrap_err()
            .to_string()
    }

    /// Processes that carry the directory, but for the first one.
    pub(crate) fn relays(&self) -> Vec<Pid> {
        processes_with(OsStr::new(self.link.folder()), &["cmdline"])
    }

    /// Waits until a session whose link is lost has ended by itself.
    pub(crate) async fn expire(self) {
        let folder = PathBuf::from(self.link.folder());
        wait_until("the lease has run out", || !folder.exists()).await;
    }

    /// Ends the session; nothing of it may be left.
    pub(crate) async fn close(self) {
        bounded(self.agent.close()).await;
        let folder = PathBuf::from(self.link.folder());
        wait_until("nothing of the session is left", || {
            !folder.exists() && processes_with(folder.as_os_str(), &["cmdline", "environ"]).is_empty()
        })
        .await;
        let left: Vec<OsString> = std::fs::read_dir(self.scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "work")
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

pub(crate) fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Processes that name the folder in one of these files of theirs.
fn processes_with(folder: &OsStr, files: &[&str]) -> Vec<Pid> {
    let names = |path: PathBuf| {
        let found = std::fs::read(path).unwrap_or_default();
        found.windows(folder.len()).any(|part| part == folder.as_bytes())
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_string_lossy().parse().ok())
        .filter(|pid: &i32| files.iter().any(|file| names(format!("/proc/{pid}/{file}").into())))
        .filter_map(Pid::from_raw)
        .collect()
}

/// Fails a test that hangs.
pub(crate) async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.expect("it hangs")
}

pub(crate) async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANG, "{what}: not after {HANG:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
