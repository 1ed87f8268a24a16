//! How fast Talaria is beside what people use for the same purpose.
//!
//! Each figure is a median, and its baseline is measured in the same run: both sides take turns, so
//! that whatever else the machine does hits both. Nothing is asserted; the last column says what is
//! wanted. Run by `benches/run`, which installs the baselines.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cell, Session, SessionOptions};
use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What the command and the first cell are compared with.
const BARE_PYTHON: &str = "import json, socket, threading, ast";

fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let wanted = move |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    let bench = Bench::new()?;
    // In a task, as the callers of a broker are.
    let figures = runtime.spawn(async move {
        if wanted("tool-call") {
            bench.tool_call().await?;
        }
        if wanted("warm-cell") {
            bench.warm_cell().await?;
        }
        if wanted("first-cell") {
            bench.first_cell().await?;
        }
        if wanted("command") {
            bench.command()?;
        }
        if wanted("threads") {
            bench.threads().await?;
        }
        if wanted("memory") {
            bench.memory().await?;
        }
        Ok(())
    });
    runtime.block_on(figures)?
}

/// The interpreters, and a folder to work in.
struct Bench {
    /// Runs cells, and is the bare interpreter that a start is compared with.
    python: PathBuf,
    /// Has execnet and ipykernel.
    baselines: PathBuf,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Result<Self> {
        // The program itself: a version manager's launcher would count for both sides.
        let shown = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output()?;
        let python = PathBuf::from(String::from_utf8(shown.stdout)?.trim());
        let baselines = std::env::var_os("TALARIA_BENCH_PYTHON").ok_or("run this by benches/run")?;
        Ok(Self {
            python,
            baselines: baselines.into(),
            folder: tempfile::tempdir()?,
        })
    }

    fn options(&self) -> SessionOptions {
        let mut options = SessionOptions::local(self.folder.path(), Environment::of_this_process());
        options.python = Some(self.python.clone());
        options.host = Arc::new(Echo::new());
        options.limits.max_tool_calls = u64::MAX;
        options
    }

    /// From the call in the script to its result, through allow-list, budget, token and argument check.
    async fn tool_call(&self) -> Result<()> {
        let broker = Broker::new(4);
        let session = broker.open(self.options())?;
        let mut baseline = Driver::start(&self.baselines, "echo_execnet.py")?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..21 {
            let mine = times_in_cell(&session, 300).await?;
            let other = baseline.measure(300)?;
            if round > 0 {
                ours.extend(mine);
                theirs.extend(other);
            }
        }
        broker.close().await;
        say("tool-call", ours, "execnet echo", theirs, 0.6)
    }

    /// From `Session::execute` of `pass` to its outcome, in a kernel that is there.
    async fn warm_cell(&self) -> Result<()> {
        let broker = Broker::new(4);
        let session = broker.open(self.options())?;
        let mut baseline = Driver::start(&self.baselines, "cell_ipykernel.py")?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..21 {
            for _ in 0..50 {
                let began = Instant::now();
                let outcome = session.execute(Cell::new("pass")).await;
                let time = began.elapsed();
                succeeded(&outcome)?;
                if round > 0 {
                    ours.push(time);
                }
            }
            let other = baseline.measure(20)?;
            if round > 0 {
                theirs.extend(other);
            }
        }
        broker.close().await;
        say("warm-cell", ours, "jupyter_client + ipykernel", theirs, 1.0 / 15.0)
    }

    /// From opening a session to the outcome of its first cell.
    async fn first_cell(&self) -> Result<()> {
        let broker = Broker::new(4);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..41 {
            let began = Instant::now();
            let session = broker.open(self.options())?;
            let outcome = session.execute(Cell::new("pass")).await;
            let time = began.elapsed();
            succeeded(&outcome)?;
            session.close().await;
            let bare = self.bare_python()?;
            if round > 0 {
                ours.push(time);
                theirs.push(bare);
            }
        }
        broker.close().await;
        say("first-cell", ours, "python3 -c", theirs, 1.6)
    }

    /// `talaria run -c pass` from its start to its end.
    fn command(&self) -> Result<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..41 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
            command.args(["run", "-c", "pass", "--python"]).arg(&self.python);
            let time = run(command.current_dir(self.folder.path()))?;
            let bare = self.bare_python()?;
            if round > 0 {
                ours.push(time);
                theirs.push(bare);
            }
        }
        say("command", ours, "python3 -c", theirs, 1.6)
    }

    fn bare_python(&self) -> Result<Duration> {
        run(Command::new(&self.python)
            .args(["-c", BARE_PYTHON])
            .current_dir(self.folder.path()))
    }

    /// 16 threads that make 50 calls of 0.2 s each, against one call after another.
    async fn threads(&self) -> Result<()> {
        let broker = Broker::new(4);
        let session = broker.open(self.options())?;
        let script = "
import threading, time
from hermes_tools import pause
def work():
    for _ in range(50):
        assert pause(0.2) == {'slept': 0.2}
threads = [threading.Thread(target=work) for _ in range(16)]
began = time.perf_counter_ns()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter_ns() - began)";
        let times = numbers(&session.execute(Cell::new(script)).await)?;
        broker.close().await;
        let serial = Duration::from_millis(16 * 50 * 200);
        say("threads", times, "one after another", vec![serial], 1.0 / 12.0)
    }

    /// Resident memory before and after many cells and calls.
    async fn memory(&self) -> Result<()> {
        let broker = Broker::new(4);
        let session = broker.open(self.options())?;
        let show = async |when: &str| -> Result<()> {
            let sizes = session.execute(Cell::new(RESIDENT)).await;
            succeeded(&sizes)?;
            let broker = resident("/proc/self/status")?;
            line(&format!("memory {when}: broker {broker} KiB; {}", sizes.output.trim()))
        };
        for _ in 0..100 {
            succeeded(&session.execute(Cell::new("pass")).await)?;
        }
        times_in_cell(&session, 1000).await?;
        show("at first").await?;
        for _ in 0..10_000 {
            succeeded(&session.execute(Cell::new("pass")).await)?;
        }
        show("after 10,000 cells").await?;
        for _ in 0..100 {
            times_in_cell(&session, 1000).await?;
        }
        show("after 100,000 calls").await?;
        broker.close().await;
        Ok(())
    }
}

/// Shows what is above the kernel: reaper, supervisor, guard. A line of `Uid` would be an answer too.
const RESIDENT: &str = "
def status(pid):
    with open(f'/proc/{pid}/status') as file:
        return dict(line.split(':', 1) for line in file)
pid = 'self'
sizes = []
for name in ('kernel', 'reaper', 'supervisor', 'guard'):
    with open(f'/proc/{pid}/statm') as file:
        resident, shared = map(int, file.read().split()[1:3])
    sizes.append(f'{name} {4 * resident} KiB ({4 * (resident - shared)} its own)')
    pid = status(pid)['PPid'].strip()
print(', '.join(sizes))
";

fn resident(status: &str) -> Result<u64> {
    let text = std::fs::read_to_string(status)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = line.and_then(|line| line.split_whitespace().next());
    Ok(size.ok_or("no VmRSS")?.parse()?)
}

async fn times_in_cell(session: &Session, count: usize) -> Result<Vec<Duration>> {
    let script = format!(
        "
from time import perf_counter_ns
from hermes_tools import echo
times = []
for number in range({count}):
    began = perf_counter_ns()
    assert echo(number) == number
    times.append(perf_counter_ns() - began)
print(*times)"
    );
    numbers(&session.execute(Cell::new(script)).await)
}

fn succeeded(outcome: &Outcome) -> Result<()> {
    match outcome.status {
        Status::Success => Ok(()),
        _ => Err(format!("{outcome:?}").into()),
    }
}

fn numbers(outcome: &Outcome) -> Result<Vec<Duration>> {
    succeeded(outcome)?;
    nanoseconds(&outcome.output)
}

fn nanoseconds(text: &str) -> Result<Vec<Duration>> {
    let parse = |number: &str| Ok(Duration::from_nanos(number.parse()?));
    text.split_whitespace().map(parse).collect()
}

fn run(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let time = began.elapsed();
    if status.success() {
        Ok(time)
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn say(name: &str, ours: Vec<Duration>, against: &str, theirs: Vec<Duration>, wanted: f64) -> Result<()> {
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    line(&format!(
        "{name:<11} {ours:>12.1?}   {against:<27} {theirs:>12.1?}   ratio {ratio:.3}   wanted <= {wanted:.3}"
    ))
}

fn line(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// A Python program that measures its side when it is told to.
struct Driver {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Driver {
    fn start(python: &Path, script: &str) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("benches/baselines")
            .join(script);
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, orders, answers })
    }

    fn measure(&mut self, count: usize) -> Result<Vec<Duration>> {
        writeln!(self.orders.as_mut().ok_or("no pipe")?, "{count}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let times = nanoseconds(&answer)?;
        if times.len() == count {
            Ok(times)
        } else {
            Err("the baseline ended early".into())
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It leaves at the end of its orders.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Answers with the argument, or after a pause.
struct Echo(Vec<ToolSpec>);

impl Echo {
    fn new() -> Self {
        let spec = |name: &str, kind: &str| ToolSpec {
            name: name.to_owned(),
            doc: String::new(),
            schema: json!({"type": "object", "required": ["value"], "properties": {"value": {"type": kind}}}),
        };
        Self(vec![spec("echo", "integer"), spec("pause", "number")])
    }
}

#[async_trait]
impl ToolHost for Echo {
    fn tools(&self) -> &[ToolSpec] {
        &self.0
    }

    async fn call(&self, mut call: ToolCall, _context: &CallContext) -> Value {
        let value = call.arguments.remove("value").unwrap_or_default();
        if call.name == "echo" {
            return value;
        }
        tokio::time::sleep(Duration::from_secs_f64(value.as_f64().unwrap_or_default())).await;
        json!({ "slept": value })
    }
}
