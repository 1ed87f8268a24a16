//! Sessions as tests see them that harm what is below: they drive the library as an agent does, and wait.

use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use talaria_broker::broker::Broker;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cell, Session, SessionOptions};
use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};
use tokio::runtime::Runtime;

/// Time within which whatever must happen happens, on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// What drives the sessions of a test, and a broker of its own.
pub(crate) fn broker() -> (Runtime, Broker) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let broker = {
        let _inside = runtime.enter();
        Broker::new(4)
    };
    (runtime, broker)
}

/// Limits that no test meets unless it means to.
pub(crate) fn limited(mut options: SessionOptions) -> SessionOptions {
    options.limits.timeout = LIMIT;
    options.limits.max_tool_calls = 10_000;
    options
}

/// Ends all sessions of a broker.
pub(crate) fn close(runtime: &Runtime, broker: &Broker) {
    let closing = async { tokio::time::timeout(LIMIT, broker.close()).await };
    assert!(runtime.block_on(closing).is_ok(), "the sessions could not be closed");
}

/// A session, seen from a test that waits.
pub(crate) struct Live<'a> {
    pub(crate) session: Session,
    pub(crate) runtime: &'a Runtime,
}

impl<'a> Live<'a> {
    /// Opens one.
    pub(crate) fn open(broker: &Broker, runtime: &'a Runtime, options: SessionOptions) -> Self {
        let _inside = runtime.enter();
        Self {
            session: broker.open(options).unwrap(),
            runtime,
        }
    }

    /// Hands a cell over without waiting for it.
    pub(crate) fn start(&self, cell: Cell) -> Running<'a> {
        let session = self.session.clone();
        let task = self.runtime.spawn(async move { session.execute(cell).await });
        Running {
            task,
            runtime: self.runtime,
        }
    }

    /// Runs a cell to its end.
    pub(crate) fn run(&self, cell: Cell) -> Outcome {
        self.start(cell).wait()
    }

    /// Runs a cell of text.
    pub(crate) fn cell(&self, code: &str) -> Outcome {
        self.run(Cell::new(code))
    }

    /// Runs a cell that must succeed; what it printed.
    pub(crate) fn ok(&self, code: &str) -> String {
        succeeded(self.cell(code))
    }
}

/// What a cell printed that must have succeeded.
pub(crate) fn succeeded(outcome: Outcome) -> String {
    assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
    outcome.output
}

/// A cell under way.
pub(crate) struct Running<'a> {
    task: tokio::task::JoinHandle<Outcome>,
    runtime: &'a Runtime,
}

impl Running<'_> {
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for its end.
    pub(crate) fn wait(self) -> Outcome {
        let waiting = async { tokio::time::timeout(2 * LIMIT, self.task).await };
        self.runtime.block_on(waiting).unwrap().unwrap()
    }
}

/// One tool, `note(value)`, that remembers every call and gives the value back.
pub(crate) struct Notes {
    specs: Vec<ToolSpec>,
    noted: Mutex<Vec<Value>>,
}

impl Notes {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            specs: vec![ToolSpec {
                name: "note".to_owned(),
                doc: "Remembers a value.".to_owned(),
                schema: json!({"type": "object", "properties": {"value": {}}, "required": ["value"]}),
            }],
            noted: Mutex::default(),
        })
    }

    /// What it was called with, sorted.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let noted = self.noted.lock().unwrap();
        let mut numbers: Vec<u64> = noted.iter().map(|value| value.as_u64().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }
}

#[async_trait]
impl ToolHost for Notes {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, mut call: ToolCall, _context: &CallContext) -> Value {
        let value = call.arguments.remove("value").unwrap_or(Value::Null);
        self.noted.lock().unwrap().push(value.clone());
        json!({"value": value})
    }
}

/// Prints numbered lines and makes numbered calls, side by side, for a few seconds.
pub(crate) const BUSY: &str = r#"
import time
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import note
def call(n):
    time.sleep(0.02)
    answer = note(n)
    assert answer == {"value": n}, answer
with ThreadPoolExecutor(4) as pool:
    answers = [pool.submit(call, n) for n in range(400)]
    for n in range(4000):
        print("line", n)
        if n % 100 == 0: time.sleep(0.1)
    for answer in answers: answer.result()
"#;

/// Checks the outcome of [`BUSY`], and what the tool was called with.
pub(crate) fn nothing_was_lost(outcome: Outcome, notes: &Notes) {
    assert_eq!(outcome.tool_calls_made, 400, "{:?}", outcome.error);
    let output = succeeded(outcome);
    let expected: String = (0..4000).map(|n| format!("line {n}\n")).collect();
    assert!(output == expected, "{} bytes of {}", output.len(), expected.len());
    assert_eq!(notes.numbers(), (0..400).collect::<Vec<_>>());
}

/// Has a session call such a tool, and print as much as [`BUSY`] does.
pub(crate) fn noting(options: &mut SessionOptions) -> Arc<Notes> {
    let notes = Notes::new();
    options.host = notes.clone();
    options.limits.max_stdout_bytes = 1 << 20;
    notes
}

/// A broker of its own: the command line, with a cell that goes on for long.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        // A stopped process takes this too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What such a broker runs: its kernel, and what that starts and detaches, which has a name of its own.
pub(crate) const LASTING: &str = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '777'])\n\
    while True: time.sleep(0.1); print('on', flush=True)";

/// Whether that runs among these.
pub(crate) fn lasts<'a>(commands: impl IntoIterator<Item = &'a String>) -> bool {
    commands.into_iter().any(|command| command.contains("sleep 777"))
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: i32, name: &str) -> bool {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .output();
    sent.unwrap().status.success()
}

/// Waits until something holds.
pub(crate) fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
