//! The figures of SSH hosts: `ssh` on this very machine, over its loopback; with a delay, behind a line that has it
//! (`tests/rigs/delayed`).

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use talaria_broker::broker::Broker;
use talaria_broker::session::{Cell, Session};
use talaria_broker::tools::BuiltinTools;

use crate::host::{self, Host};
use crate::measure::{
    Driver, ECHO, Pipe, Result, SIXTEEN, compare, first_cell, line, median, numbers, run, say, timed, times_in_cell,
};

pub(crate) const FIGURES: [&str; 5] = ["ssh-call", "ssh-hermes", "ssh-cell", "ssh-first-cell", "ssh-delay"];

/// How far away the host is, there and back, in milliseconds.
const DISTANCES: [u32; 2] = [20, 100];

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    if !host::is_there() {
        return line("ssh: skipped, there is no sshd (apt-get install openssh-server)");
    }
    if wanted("ssh-call") {
        call().await?;
    }
    if wanted("ssh-hermes") {
        hermes().await?;
    }
    if wanted("ssh-cell") {
        warm_cell().await?;
    }
    if wanted("ssh-first-cell") {
        first_cells().await?;
    }
    if wanted("ssh-delay") {
        for distance in DISTANCES {
            delay(distance).await?;
        }
    }
    Ok(())
}

fn python() -> Result<std::ffi::OsString> {
    Ok(std::env::var_os("TALARIA_BENCH_PYTHON").ok_or("run this by benches/run")?)
}

/// Bytes that go to a process there and come back, over a master connection.
fn echo(host: &Host, socket: &std::path::Path) -> Result<Pipe> {
    let mut command = host.ssh(&["-S", &socket.display().to_string()]);
    // The login shell of the host reads it.
    command.arg(format!("python3 -I -S -c '{ECHO}'"));
    Pipe::start(command)
}

/// A call in the script to its result.
async fn call() -> Result<()> {
    let host = Host::start("")?;
    let disk = Host::start(&format!(
        "XDG_RUNTIME_DIR={}",
        std::env::current_dir()?.join("target").display()
    ))?;
    let (_master, socket) = host.master()?;
    let broker = Broker::new(4);
    let session = broker.open(host.session(&[], None))?;
    let on_disk = broker.open(disk.session(&[], None))?;
    let mut echo = echo(&host, &socket)?;
    let (port, key, known) = (host.port.to_string(), host.path("user"), host.path("known_hosts"));
    let words = [
        &port,
        &key.display().to_string(),
        &known.display().to_string(),
        "python3",
    ];
    let mut mitogen = Driver::start(python()?.as_ref(), "call_mitogen.py", &words)?;
    let (mut ours, mut slower, mut pipe, mut theirs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..21 {
        let mine = times_in_cell(&session, 200).await?;
        let disk = times_in_cell(&on_disk, 200).await?;
        let bare = echo.measure(200)?;
        let other = mitogen.measure(200)?;
        if round > 0 {
            ours.extend(mine);
            slower.extend(disk);
            pipe.extend(bare);
            theirs.extend(other);
        }
    }
    broker.close().await;
    say("ssh-call", &ours, "echo over a master connection", &pipe, 3.5)?;
    say("ssh-call", &ours, "mitogen call over SSH", &theirs, 1.0)?;
    say("ssh-call-disk", &slower, "our own on tmpfs", &ours, 1.4)
}

/// A command there, called by a script, beside the scripts of another agent.
async fn hermes() -> Result<()> {
    let host = Host::start("")?;
    let broker = Broker::new(4);
    let mut options = host.session(&[], None);
    options.host = Arc::new(BuiltinTools::new(None));
    let session = broker.open(options)?;
    let (port, key) = (host.port.to_string(), host.path("user"));
    let user = String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?;
    let words = [
        &port,
        &key.display().to_string(),
        user.trim(),
        &host.path("known_hosts").display().to_string(),
    ];
    let mut baseline = Driver::start(python()?.as_ref(), "terminal_hermes.py", &words)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        ours.extend(numbers(&session.execute(Cell::new(TERMINAL)).await)?);
        theirs.extend(baseline.measure(3)?);
    }
    broker.close().await;
    say("ssh-terminal", &ours, "hermes-agent, same host", &theirs, 0.1)
}

async fn warm_cell() -> Result<()> {
    let host = Host::start("")?;
    let (_master, socket) = host.master()?;
    let broker = Broker::new(4);
    let session = broker.open(host.session(&[], None))?;
    let mut echo = echo(&host, &socket)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..21 {
        let mut times = Vec::new();
        for _ in 0..50 {
            times.push(timed(&session, "pass").await?);
        }
        let other = echo.measure(50)?;
        if round > 0 {
            ours.extend(times);
            theirs.extend(other);
        }
    }
    broker.close().await;
    say("ssh-cell", &ours, "echo over a master connection", &theirs, 6.0)
}

/// From opening a session to the outcome of its first cell: with a login of its own, and over the user's.
async fn first_cells() -> Result<()> {
    let host = Host::start("")?;
    let (_master, socket) = host.master()?;
    let broker = Broker::new(4);
    let (mut cold, mut bare_cold) = (Vec::new(), Vec::new());
    let (mut warm, mut bare_warm) = (Vec::new(), Vec::new());
    for round in 0..21 {
        let times = [
            first_cell(&broker, host.session(&[], None)).await?,
            run(host.ssh(&[]).args(["python3", "-c", "pass"]))?,
            first_cell(&broker, host.session(&[], Some(socket.clone()))).await?,
            run(host
                .ssh(&["-S", &socket.display().to_string()])
                .args(["python3", "-c", "pass"]))?,
        ];
        if round > 0 {
            for (figure, time) in [&mut cold, &mut bare_cold, &mut warm, &mut bare_warm]
                .into_iter()
                .zip(times)
            {
                figure.push(time);
            }
        }
    }
    broker.close().await;
    say("ssh-first-cell", &cold, "ssh HOST python3 -c pass", &bare_cold, 1.3)?;
    let above = median(&warm).saturating_sub(median(&bare_warm));
    line(&format!(
        "{:<22} {:>10.1?}   {above:.1?} above the same command over that master connection; wanted <= 60 ms",
        "ssh-first-cell-warm",
        median(&warm)
    ))
}

/// Calls where the host is far away.
async fn delay(distance: u32) -> Result<()> {
    let host = Host::start("")?;
    let proxy = format!(
        "ProxyCommand={}/tests/rigs/delayed {distance} {} -i -f {}",
        env!("CARGO_MANIFEST_DIR"),
        host::SSHD,
        host.path("sshd.conf").display()
    );
    let mut command = host.ssh(&["-o", &proxy]);
    command.arg(format!("python3 -I -S -c '{ECHO}'"));
    let far = median(&Pipe::start(command)?.measure(20)?);
    let broker = Broker::new(4);
    let echoes = broker.open(host.session(std::slice::from_ref(&proxy), None))?;
    let mut options = host.session(&[proxy], None);
    options.host = Arc::new(BuiltinTools::new(None));
    let files = broker.open(options)?;
    let name = |what: &str| format!("ssh-{distance}ms-{what}");
    let shown = |what: &str, times: &[Duration]| {
        let above = median(times).saturating_sub(far);
        line(&format!(
            "{:<22} {:>10.1?}   {above:.2?} above an echo over the same line ({far:.1?}); wanted <= 1 ms",
            name(what),
            median(times)
        ))
    };
    times_in_cell(&echoes, 5).await?;
    let call = times_in_cell(&echoes, 20).await?;
    shown("call", &call)?;
    let mut sixteen = Vec::new();
    for _ in 0..10 {
        sixteen.extend(numbers(&echoes.execute(Cell::new(SIXTEEN)).await)?);
    }
    let one = median(&call);
    compare(&name("16-calls"), median(&sixteen), "one call", one, 1.1)?;
    for (tool, call) in FILE_TOOLS {
        let times = file_tool(&files, call).await?;
        shown(tool, &times)?;
    }
    broker.close().await;
    Ok(())
}

/// Tools that work on files, and a call of each.
const FILE_TOOLS: [(&str, &str); 3] = [
    ("read_file", "read_file(path)"),
    ("write_file", "write_file(path, 'text')"),
    ("search_files", "search_files('text', path=path)"),
];

async fn file_tool(session: &Session, call: &str) -> Result<Vec<Duration>> {
    let script = format!(
        "
import tempfile
from time import perf_counter_ns
from hermes_tools import *
with tempfile.TemporaryDirectory() as folder:
    path = folder + '/f'
    open(path, 'w').write('text')
    times = []
    for number in range(21):
        began = perf_counter_ns()
        assert 'error' not in {call}
        times.append(perf_counter_ns() - began)
print(*times[1:])"
    );
    numbers(&session.execute(Cell::new(script)).await)
}

const TERMINAL: &str = "
from time import perf_counter_ns
from hermes_tools import terminal
times = []
for _ in range(10):
    began = perf_counter_ns()
    assert terminal('true')['exit_code'] == 0
    times.append(perf_counter_ns() - began)
print(*times)";
