//! How figures are taken and shown, and what answers calls.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use talaria_broker::broker::Broker;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cell, Session, SessionOptions};
use talaria_broker::tools::{CallContext, ToolCall, ToolHost, ToolSpec};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) async fn times_in_cell(session: &Session, count: usize) -> Result<Vec<Duration>> {
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

pub(crate) fn succeeded(outcome: &Outcome) -> Result<()> {
    match outcome.status {
        Status::Success => Ok(()),
        _ => Err(format!("{outcome:?}").into()),
    }
}

pub(crate) fn numbers(outcome: &Outcome) -> Result<Vec<Duration>> {
    succeeded(outcome)?;
    nanoseconds(&outcome.output)
}

pub(crate) fn nanoseconds(text: &str) -> Result<Vec<Duration>> {
    let parse = |number: &str| Ok(Duration::from_nanos(number.parse()?));
    text.split_whitespace().map(parse).collect()
}

pub(crate) fn run(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let time = began.elapsed();
    if status.success() {
        Ok(time)
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

pub(crate) fn median(times: &[Duration]) -> Duration {
    quantile(times, 0.5)
}

/// The time that a share of them does not exceed.
pub(crate) fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = (times.len() as f64 * share) as usize;
    times.get(index).or(times.last()).copied().unwrap_or_default()
}

/// Shows a figure: the medians of both sides, and how often theirs goes into ours.
pub(crate) fn say(name: &str, ours: &[Duration], against: &str, theirs: &[Duration], wanted: f64) -> Result<()> {
    compare(name, median(ours), against, median(theirs), wanted)
}

/// Shows two times beside each other.
pub(crate) fn compare(name: &str, ours: Duration, against: &str, theirs: Duration, wanted: f64) -> Result<()> {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    line(&format!(
        "{name:<22} {ours:>10.1?}   {against:<30} {theirs:>10.1?}   ratio {ratio:.3}   wanted <= {wanted:.3}"
    ))
}

pub(crate) fn line(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// A Python program that measures its side when it is told to.
pub(crate) struct Driver {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Driver {
    pub(crate) fn start(python: &Path, script: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(python, script, arguments, &[])
    }

    /// With more variables than ours.
    pub(crate) fn start_with(
        python: &Path,
        script: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("benches/baselines")
            .join(script);
        let mut child = Command::new(python)
            .arg(script)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, orders, answers })
    }

    pub(crate) fn measure(&mut self, count: usize) -> Result<Vec<Duration>> {
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

/// Answers with the argument, after a pause, or with or about text of a size.
pub(crate) struct Echo(Vec<ToolSpec>);

impl Echo {
    pub(crate) fn new() -> Self {
        let spec = |name: &str, kind: &str| ToolSpec {
            name: name.to_owned(),
            doc: String::new(),
            schema: json!({"type": "object", "required": ["value"], "properties": {"value": {"type": kind}}}),
        };
        Self(vec![
            spec("echo", "integer"),
            spec("pause", "number"),
            spec("size", "string"),
            spec("text", "integer"),
        ])
    }
}

#[async_trait]
impl ToolHost for Echo {
    fn tools(&self) -> &[ToolSpec] {
        &self.0
    }

    async fn call(&self, mut call: ToolCall, _context: &CallContext) -> Value {
        let value = call.arguments.remove("value").unwrap_or_default();
        match call.name.as_str() {
            "pause" => {
                tokio::time::sleep(Duration::from_secs_f64(value.as_f64().unwrap_or_default())).await;
                json!({ "slept": value })
            }
            "size" => json!(value.as_str().map(str::len)),
            "text" => json!("x".repeat(usize::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default())),
            _ => value,
        }
    }
}

/// Gives back what it gets, as a relay would have to at least.
pub(crate) const ECHO: &str = "
import os
while True:
    data = os.read(0, 65536)
    if not data:
        break
    os.write(1, data)";

pub(crate) const SIXTEEN: &str = "
import threading
from time import perf_counter_ns
from hermes_tools import echo
threads = [threading.Thread(target=echo, args=(n,)) for n in range(16)]
began = perf_counter_ns()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(perf_counter_ns() - began)";

/// How long a cell takes.
pub(crate) async fn timed(session: &Session, code: &str) -> Result<Duration> {
    let began = Instant::now();
    let outcome = session.execute(Cell::new(code)).await;
    let time = began.elapsed();
    succeeded(&outcome)?;
    Ok(time)
}

pub(crate) async fn first_cell(broker: &Broker, options: SessionOptions) -> Result<Duration> {
    let began = Instant::now();
    let session = broker.open(options)?;
    let outcome = session.execute(Cell::new("pass")).await;
    let time = began.elapsed();
    succeeded(&outcome)?;
    session.close().await;
    Ok(time)
}

pub(crate) fn elsewhere(mut options: SessionOptions) -> SessionOptions {
    options.host = Arc::new(Echo::new());
    options.limits.max_tool_calls = u64::MAX;
    options
}

/// A process elsewhere that gives back what it gets, behind a command that runs [`ECHO`].
pub(crate) struct Pipe(Child);

impl Pipe {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut pipe = Self(child);
        pipe.measure(10)?;
        Ok(pipe)
    }

    pub(crate) fn measure(&mut self, count: usize) -> Result<Vec<Duration>> {
        let (Some(stdin), Some(stdout)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err("no pipe".into());
        };
        let mut buffer = [0; 64];
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            stdin.write_all(&[b'x'; 64])?;
            stdout.read_exact(&mut buffer)?;
            times.push(began.elapsed());
        }
        Ok(times)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.0.stdin = None;
        let _ = self.0.wait();
    }
}
