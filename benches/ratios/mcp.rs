//! What it costs to go through the MCP server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, SessionOptions};

use crate::measure::{Result, line, median, succeeded};

pub(crate) const FIGURES: [&str; 3] = ["mcp-cell", "mcp-side-by-side", "mcp-memory"];

/// What a cell through the server may cost more than one of the library.
const WANTED: Duration = Duration::from_micros(1500);

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    if wanted("mcp-cell") {
        cell().await?;
    }
    if wanted("mcp-side-by-side") {
        side_by_side()?;
    }
    if wanted("mcp-memory") {
        memory()?;
    }
    Ok(())
}

/// `execute_code` of `pass` in a kernel that is there, from the request's line to the answer's; beside the same of the
/// library.
async fn cell() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let broker = Broker::new(4);
    let session = broker.open(SessionOptions::local(folder.path(), Environment::of_this_process()))?;
    let mut client = Client::start(folder.path())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..21 {
        for _ in 0..50 {
            let began = Instant::now();
            let outcome = session.execute(Cell::new("pass")).await;
            let library = began.elapsed();
            succeeded(&outcome)?;
            let began = Instant::now();
            client.execute(json!({"code": "pass"}))?;
            let through = began.elapsed();
            if round > 0 {
                theirs.push(library);
                ours.push(through);
            }
        }
    }
    broker.close().await;
    let (ours, theirs) = (median(&ours), median(&theirs));
    let more = ours.saturating_sub(theirs);
    line(&format!(
        "{:<22} {ours:>10.1?}   {:<30} {theirs:>10.1?}   more {more:.1?}   wanted <= {WANTED:.1?}",
        "mcp-cell", "the library's warm cell"
    ))
}

/// Fifty scripts, of which none ends before all run.
fn side_by_side() -> Result<()> {
    const COUNT: u64 = 50;
    let folder = tempfile::tempdir()?;
    let mut client = Client::start(folder.path())?;
    let code = format!(
        "import os, time\nopen('here-%d' % os.getpid(), 'w')\n\
         while sum(name.startswith('here-') for name in os.listdir('.')) < {COUNT}: time.sleep(.05)"
    );
    let began = Instant::now();
    let mut open = BTreeSet::new();
    for _ in 0..COUNT {
        open.insert(client.send(&json!({"code": code, "wait": 600}))?);
    }
    while !open.is_empty() {
        let answer = client.receive()?;
        if answer["result"]["structuredContent"]["status"] != "success" {
            return Err(format!("{answer}").into());
        }
        open.retain(|id| answer["id"] != *id);
    }
    line(&format!(
        "{:<22} {COUNT} scripts ran at once, begun and ended in {:.1?}",
        "mcp-side-by-side",
        began.elapsed()
    ))
}

/// Memory and descriptors of the server after 1,000 calls and after 10,000.
fn memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut client = Client::start(folder.path())?;
    let mut seen = Vec::new();
    for number in 1..=10_000 {
        client.execute(
            json!({"code": format!("print('x' * 1000, {number})"), "idempotency_key": format!("key-{number}")}),
        )?;
        if number == 1_000 || number == 10_000 {
            let pid = client.child.id();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let resident = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))
                .ok_or("no VmRSS")?;
            let kibibytes: i64 = resident.trim().trim_end_matches(" kB").parse()?;
            seen.push((kibibytes, std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()));
        }
    }
    let ((before, few), (after, many)) = (seen[0], seen[1]);
    line(&format!(
        "{:<22} {before} KiB after 1,000 calls, {after} KiB after 10,000: {} KiB more   wanted < 5120; descriptors {few}, {many}",
        "mcp-memory",
        after - before
    ))
}

/// A client that knows nothing but lines.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    asked: u64,
}

impl Client {
    fn start(folder: &Path) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_talaria"))
            .arg("mcp")
            .current_dir(folder)
            .env("PWD", folder)
            .env("HERMES_HOME", folder.join("hermes"))
            // Nor does the library's session keep a log.
            .env("TALARIA_AUDIT_ENABLED", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut client = Self {
            child,
            input,
            output,
            asked: 0,
        };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}});
        client.request("initialize", &hello)?;
        client.receive()?;
        Ok(client)
    }

    fn request(&mut self, method: &str, params: &Value) -> Result<u64> {
        self.asked += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        self.input.write_all(format!("{message}\n").as_bytes())?;
        Ok(self.asked)
    }

    fn send(&mut self, arguments: &Value) -> Result<u64> {
        self.request("tools/call", &json!({"name": "execute_code", "arguments": arguments}))
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn execute(&mut self, arguments: Value) -> Result<()> {
        self.send(&arguments)?;
        let answer = self.receive()?;
        match answer["result"]["isError"].as_bool() {
            Some(false) => Ok(()),
            _ => Err(format!("{answer}").into()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It ends by itself when its input ends, which is dropped after this.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        let _ = self.child.wait();
    }
}
