//! The figures of containers. What stands before the name is where: `tmpfs`, a container of the user's own whose
//! session lives in memory; `overlay`, one where it lives on the container's disk; `image`, a container of ours.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use talaria_broker::backends::docker::{
    DockerContainer, DockerImage, DockerOptions, EngineSources, RunningOptions, Which,
};
use talaria_broker::broker::Broker;
use talaria_broker::config::Transport;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, SessionOptions};
use talaria_broker::tools::BuiltinTools;

use crate::measure::{
    Driver, ECHO, Pipe, Result, SIXTEEN, compare, elsewhere, first_cell, line, median, numbers, quantile, run, say,
    succeeded, timed, times_in_cell,
};

pub(crate) const FIGURES: [&str; 10] = [
    "container-call",
    "container-terminal",
    "container-cell",
    "container-first-cell",
    "image-first-cell",
    "container-polled",
    "container-large",
    "container-relink",
    "container-stopped",
    "container-idle",
];

/// The image of the tests (`tests/rigs/docker up`); any with Python 3.8 will do.
const IMAGE: &str = "talaria-test:base";

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    let image = std::env::var("TALARIA_BENCH_IMAGE").unwrap_or_else(|_| IMAGE.to_owned());
    if !docker(&["image", "inspect", &image])?.success() {
        return line(&format!(
            "containers: skipped, {image} is not there (tests/rigs/docker up makes it)"
        ));
    }
    let bench = Bench { image };
    if wanted("container-call") {
        bench.call("tmpfs-call", &[], 3.0).await?;
        // Without room in memory it goes to the container's disk.
        bench.call("overlay-call", &["--shm-size", "65536"], 4.0).await?;
    }
    if wanted("container-terminal") {
        bench.terminal().await?;
    }
    if wanted("container-cell") {
        bench.warm_cell().await?;
    }
    if wanted("container-first-cell") {
        bench.first_cell().await?;
    }
    if wanted("image-first-cell") {
        bench.first_cell_of_an_image().await?;
    }
    if wanted("container-polled") {
        bench.polled().await?;
    }
    if wanted("container-large") {
        bench.large().await?;
    }
    if wanted("container-relink") {
        bench.relink().await?;
    }
    if wanted("container-stopped") {
        bench.stopped()?;
    }
    if wanted("container-idle") {
        bench.idle().await?;
    }
    Ok(())
}

struct Bench {
    image: String,
}

impl Bench {
    /// A container that does nothing, as a user has one.
    fn container(&self, more: &[&str]) -> Result<Container> {
        let words = [
            &["run", "-d", "--rm", "--init"][..],
            more,
            &[&self.image, "sleep", "3600"],
        ]
        .concat();
        let output = Command::new("docker").args(words).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(Container(String::from_utf8(output.stdout)?.trim().to_owned()))
    }

    /// A call in the script to its result, against bytes that go to a process there and come back.
    async fn call(&self, name: &str, more: &[&str], wanted: f64) -> Result<()> {
        let container = self.container(more)?;
        let broker = Broker::new(4);
        let session = broker.open(container.options())?;
        let mut echo = container.echo()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..31 {
            let mine = times_in_cell(&session, 200).await?;
            let other = echo.measure(200)?;
            if round > 0 {
                ours.extend(mine);
                theirs.extend(other);
            }
        }
        broker.close().await;
        say(name, &ours, "echo by docker exec -i", &theirs, wanted)?;
        let spread = format!("{name}-p99");
        compare(&spread, quantile(&ours, 0.99), "its median", median(&ours), 2.5)
    }

    /// A command in the container, called by a script there, against the same of an agent that has such scripts.
    async fn terminal(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let mut options = container.options();
        options.host = Arc::new(BuiltinTools::new(None));
        let session = broker.open(options)?;
        let python = std::env::var_os("TALARIA_BENCH_PYTHON").ok_or("run this by benches/run")?;
        let mut baseline = Driver::start(python.as_ref(), "terminal_hermes.py", &[&self.image])?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..4 {
            let mine = numbers(&session.execute(Cell::new(TERMINAL)).await)?;
            let other = baseline.measure(5)?;
            if round > 0 {
                ours.extend(mine);
                theirs.extend(other);
            }
        }
        broker.close().await;
        say("terminal", &ours, "hermes-agent, same image", &theirs, 0.1)
    }

    async fn warm_cell(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let session = broker.open(container.options())?;
        let mut echo = container.echo()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..21 {
            for _ in 0..50 {
                let time = timed(&session, "pass").await?;
                if round > 0 {
                    ours.push(time);
                }
            }
            let other = echo.measure(50)?;
            if round > 0 {
                theirs.extend(other);
            }
        }
        broker.close().await;
        say("tmpfs-cell", &ours, "echo by docker exec -i", &theirs, 5.0)
    }

    /// From opening a session to the outcome of its first cell.
    async fn first_cell(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..31 {
            let time = first_cell(&broker, container.options()).await?;
            let bare = run(Command::new("docker").args(["exec", &container.0, "python3", "-c", "pass"]))?;
            if round > 0 {
                ours.push(time);
                theirs.push(bare);
            }
        }
        broker.close().await;
        let above = median(&ours).saturating_sub(median(&theirs));
        say(
            "tmpfs-first-cell",
            &ours,
            "docker exec python3 -c pass",
            &theirs,
            f64::INFINITY,
        )?;
        line(&format!("{:<22} {above:>10.1?}   above that; wanted <= 60 ms", ""))
    }

    async fn first_cell_of_an_image(&self) -> Result<()> {
        let broker = Broker::new(4);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..21 {
            let time = first_cell(&broker, self.of_image()).await?;
            let bare = run(Command::new("docker").args(["run", "--rm", &self.image, "python3", "-c", "pass"]))?;
            if round > 0 {
                ours.push(time);
                theirs.push(bare);
            }
        }
        broker.close().await;
        say("image-first-cell", &ours, "docker run --rm … -c pass", &theirs, 1.15)
    }

    fn of_image(&self) -> SessionOptions {
        let environment = Environment::of_this_process();
        let target = format!("docker:{}", self.image);
        let options = DockerOptions::new(&target, &self.image, EngineSources::of(&environment));
        elsewhere(SessionOptions::elsewhere(
            target,
            Arc::new(DockerImage::new(options)),
            environment,
        ))
    }

    /// Calls by looks, one after another and side by side.
    async fn polled(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let mut options = container.options();
        options.transport = Transport::Polled;
        let session = broker.open(options)?;
        let (mut ours, mut sixteen, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..6 {
            let mine = times_in_cell(&session, 10).await?;
            let together = numbers(&session.execute(Cell::new(SIXTEEN)).await)?;
            for _ in 0..5 {
                let bare = run(Command::new("docker").args(["exec", &container.0, "true"]))?;
                if round > 0 {
                    theirs.push(bare);
                }
            }
            if round > 0 {
                ours.extend(mine);
                sixteen.extend(together);
            }
        }
        broker.close().await;
        say("polled-call", &ours, "docker exec true", &theirs, 3.0)?;
        say("polled-16-calls", &sixteen, "one polled call", &ours, 1.5)
    }

    /// Small calls while 64 MiB go either way.
    async fn large(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let session = broker.open(container.options())?;
        for (name, call) in [("argument", "size('x' * (64 << 20))"), ("result", "text(64 << 20)")] {
            let script = LARGE.replace("CALL", call);
            let mut times = Vec::new();
            for _ in 0..3 {
                times.extend(numbers(&session.execute(Cell::new(&*script)).await)?);
            }
            let p99 = quantile(&times, 0.99);
            line(&format!(
                "{:<22} {p99:>10.1?}   p99 of {} small calls beside 64 MiB (median {:.1?}); wanted <= 10 ms",
                format!("large-{name}"),
                times.len(),
                median(&times)
            ))?;
        }
        broker.close().await;
        Ok(())
    }

    /// The slowest call, and how long the next one takes, when the relay is killed again and again.
    async fn relink(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let session = broker.open(container.options())?;
        succeeded(&session.execute(Cell::new("pass")).await)?;
        let killing = {
            let container = container.0.clone();
            tokio::task::spawn_blocking(move || {
                let kill = "kill -9 $(cut -d ' ' -f 3 /dev/shm/talaria-*/fence)";
                for _ in 0..15 {
                    std::thread::sleep(Duration::from_millis(400));
                    // There may be none just now.
                    let _ = Command::new("docker")
                        .args(["exec", &container, "sh", "-c", kill])
                        .output();
                }
            })
        };
        let mut slowest = Vec::new();
        while !killing.is_finished() {
            let times = times_in_cell(&session, 300).await?;
            slowest.extend(times.into_iter().filter(|time| *time > Duration::from_millis(20)));
        }
        killing.await?;
        broker.close().await;
        line(&format!(
            "{:<22} {:>10.1?}   median of {} calls that a relay's death held up, the slowest {:.1?}; wanted <= 100 ms, 250 ms",
            "relink",
            median(&slowest),
            slowest.len(),
            quantile(&slowest, 1.0)
        ))
    }

    /// The user's own command in the container while the broker stands still in the midst of output.
    fn stopped(&self) -> Result<()> {
        let container = self.container(&[])?;
        let mut broker = Command::new(env!("CARGO_BIN_EXE_talaria"))
            .args(["run", "--on", &format!("container:{}", container.0), "-c"])
            .arg("while True: print('x' * 1000)")
            .env("TALARIA_AUDIT_ENABLED", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_secs(2));
        let signal = |name: &str, pid: u32| Command::new("kill").args([name, &pid.to_string()]).status();
        let bare = || run(Command::new("docker").args(["exec", &container.0, "true"]));
        signal("-STOP", broker.id())?;
        std::thread::sleep(Duration::from_secs(2));
        let beside = (0..10).map(|_| bare()).collect::<Result<Vec<_>>>()?;
        signal("-CONT", broker.id())?;
        signal("-INT", broker.id())?;
        broker.wait()?;
        let alone = (0..10).map(|_| bare()).collect::<Result<Vec<_>>>()?;
        say("exec-while-stopped", &beside, "docker exec true alone", &alone, 1.5)
    }

    /// What a session costs that does nothing, in a minute, of the processor.
    async fn idle(&self) -> Result<()> {
        let container = self.container(&[])?;
        let broker = Broker::new(4);
        let session = broker.open(container.options())?;
        succeeded(&session.execute(Cell::new("pass")).await)?;
        let there = container.processes()?;
        let spent = || -> Result<Duration> {
            let own = cpu(std::process::id())?;
            there.iter().try_fold(own, |sum, pid| Ok(sum + cpu(*pid)?))
        };
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = spent()?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let minute = spent()?.saturating_sub(before);
        broker.close().await;
        line(&format!(
            "{:<22} {minute:>10.1?}   of processor time in an idle minute, broker and {} processes there; wanted <= 20 ms",
            "idle",
            there.len()
        ))
    }
}

const TERMINAL: &str = "
from time import perf_counter_ns
from hermes_tools import terminal
times = []
for _ in range(20):
    began = perf_counter_ns()
    assert terminal('true')['exit_code'] == 0
    times.append(perf_counter_ns() - began)
print(*times)";

const LARGE: &str = "
import threading
from time import perf_counter_ns
from hermes_tools import echo, size, text
large = threading.Thread(target=lambda: CALL)
times = []
large.start()
while large.is_alive():
    began = perf_counter_ns()
    assert echo(1) == 1
    times.append(perf_counter_ns() - began)
print(*times)";

fn docker(arguments: &[&str]) -> Result<std::process::ExitStatus> {
    let mut command = Command::new("docker");
    Ok(command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?)
}

/// A container that runs, and is removed when this is dropped.
struct Container(String);

impl Container {
    fn options(&self) -> SessionOptions {
        let environment = Environment::of_this_process();
        let options = RunningOptions {
            target: format!("container:{}", self.0),
            which: Which::Name(self.0.clone()),
            engine: EngineSources::of(&environment),
            user: None,
            folder: None,
            environment: [].into(),
        };
        let target = options.target.clone();
        elsewhere(SessionOptions::elsewhere(
            target,
            Arc::new(DockerContainer::new(options)),
            environment,
        ))
    }

    /// A process in it that gives back what it gets.
    fn echo(&self) -> Result<Pipe> {
        let mut command = Command::new("docker");
        command.args(["exec", "-i", &self.0, "python3", "-I", "-S", "-c", ECHO]);
        Pipe::start(command)
    }

    /// Its processes, by their numbers on this machine, without its own two.
    fn processes(&self) -> Result<Vec<u32>> {
        let output = Command::new("docker")
            .args(["top", &self.0, "-eo", "pid,args"])
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let ours = text.lines().skip(1).filter(|line| !line.contains("sleep 3600"));
        ours.map(|line| Ok(line.split_whitespace().next().unwrap_or_default().parse()?))
            .collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // What cannot be removed is the engine's to tell.
        let _ = docker(&["rm", "-f", "-v", &self.0]);
    }
}

/// The processor time of a process, in the kernel's ticks of 10 ms, more exactly where it says so.
fn cpu(pid: u32) -> Result<Duration> {
    let mut whole = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // The first number is the time on a processor, in nanoseconds.
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        whole += Duration::from_nanos(text.split_whitespace().next().unwrap_or_default().parse()?);
    }
    Ok(whole)
}
