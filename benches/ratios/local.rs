//! The figures of this machine.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, SessionOptions};

use crate::measure::{Driver, Echo, Result, line, numbers, run, say, succeeded, times_in_cell};

pub(crate) const FIGURES: [&str; 6] = ["tool-call", "warm-cell", "first-cell", "command", "threads", "memory"];

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    let bench = Bench::new()?;
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
}

/// What the command and the first cell are compared with.
const BARE_PYTHON: &str = "import json, socket, threading, ast";

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
        let mut baseline = Driver::start(&self.baselines, "echo_execnet.py", &[])?;
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
        say("tool-call", &ours, "execnet echo", &theirs, 0.6)
    }

    /// From `Session::execute` of `pass` to its outcome, in a kernel that is there.
    async fn warm_cell(&self) -> Result<()> {
        let broker = Broker::new(4);
        let session = broker.open(self.options())?;
        let mut baseline = Driver::start(&self.baselines, "cell_ipykernel.py", &[])?;
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
        say("warm-cell", &ours, "jupyter_client + ipykernel", &theirs, 1.0 / 15.0)
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
        say("first-cell", &ours, "python3 -c", &theirs, 1.6)
    }

    /// `talaria run -c pass` from its start to its end.
    fn command(&self) -> Result<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..41 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
            command.args(["run", "-c", "pass", "--python"]).arg(&self.python);
            command.env("TALARIA_AUDIT_FOLDER", self.folder.path().join("audit"));
            let time = run(command.current_dir(self.folder.path()))?;
            let bare = self.bare_python()?;
            if round > 0 {
                ours.push(time);
                theirs.push(bare);
            }
        }
        say("command", &ours, "python3 -c", &theirs, 1.6)
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
        say("threads", &times, "one after another", &[serial], 1.0 / 12.0)
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
