//! The figures of Modal sandboxes, on the stand-in (`tests/rigs/modal`): what they say of Modal itself is how often we
//! wait for it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use talaria_broker::backends::modal::{ModalImage, ModalOptions, ModalSources};
use talaria_broker::backends::{Backend, BackendError, Progress, Silent, Target};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::SessionOptions;
use talaria_broker::web::Proxies;

use crate::measure::{Driver, Result, elsewhere, line, median, run, say, times_in_cell};

pub(crate) const FIGURES: [&str; 2] = ["modal-call", "modal-first-cell"];

/// How far away the stand-in is for a first cell, there and back.
const DISTANCE: Duration = Duration::from_millis(50);

const TOKEN: [(&str, &str); 2] = [("MODAL_TOKEN_ID", "ak-bench"), ("MODAL_TOKEN_SECRET", "as-bench")];

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    if wanted("modal-call") {
        call().await?;
    }
    if wanted("modal-first-cell") {
        first_cell().await?;
    }
    Ok(())
}

/// A stand-in, which goes with this.
struct StandIn {
    process: Child,
    control: String,
    python: PathBuf,
}

impl StandIn {
    fn start(distance: Duration) -> Result<Self> {
        let python = PathBuf::from(std::env::var_os("TALARIA_BENCH_PYTHON").ok_or("run this by benches/run")?);
        let mut process = Command::new(&python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rigs/modal"))
            .args(["--token-id", TOKEN[0].1, "--token-secret", TOKEN[1].1])
            .args(["--delay", &distance.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        BufReader::new(process.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
        let places: Value = serde_json::from_str(&said)?;
        let control = places["control"].as_str().ok_or("it said no address")?.to_owned();
        Ok(Self {
            process,
            control,
            python,
        })
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        let [id, secret] = TOKEN;
        vec![("MODAL_SERVER_URL", &self.control), id, secret]
    }

    fn backend(&self) -> ModalImage {
        let environment: Environment = self.variables().into_iter().collect();
        let sources = ModalSources::of(&environment, Proxies::default());
        ModalImage::new(ModalOptions::new("modal", "python:3.12", sources))
    }
}

/// A sandbox that is there.
struct Opened(Arc<dyn Target>);

#[async_trait]
impl Backend for Opened {
    async fn open(&self, _: &dyn Progress) -> std::result::Result<Arc<dyn Target>, BackendError> {
        Ok(self.0.clone())
    }
}

fn session(backend: impl Backend + 'static) -> SessionOptions {
    elsewhere(SessionOptions::elsewhere(
        "modal",
        Arc::new(backend),
        Environment::default(),
    ))
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It ends when its standard input does.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A call in the script to its result.
async fn call() -> Result<()> {
    let modal = StandIn::start(Duration::ZERO)?;
    let broker = Broker::new(4);
    let session = broker.open(session(modal.backend()))?;
    let mut echo = Driver::start_with(&modal.python, "echo_modal.py", &[], &modal.variables())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..21 {
        let mine = times_in_cell(&session, 100).await?;
        let other = echo.measure(100)?;
        if round > 0 {
            ours.extend(mine);
            theirs.extend(other);
        }
    }
    broker.close().await;
    say("modal-call", &ours, "echo by Modal's own client", &theirs, 4.0)
}

/// From a sandbox that is there to the outcome of the first cell in it.
async fn first_cell() -> Result<()> {
    let modal = StandIn::start(DISTANCE)?;
    let broker = Broker::new(4);
    let (mut ours, mut python) = (Vec::new(), Vec::new());
    for round in 0..11 {
        let target = modal.backend().open(&Silent).await?;
        let time = crate::measure::first_cell(&broker, session(Opened(target))).await?;
        let bare = run(Command::new("python3").args(["-I", "-S", "-c", "pass"]))?;
        if round > 0 {
            ours.push(time);
            python.push(bare);
        }
    }
    broker.close().await;
    let (ours, python) = (median(&ours), median(&python));
    let least = 2 * DISTANCE + python;
    line(&format!(
        "{:<22} {ours:>10.1?}   until its first cell has ended, in a sandbox that is there; two round trips of {DISTANCE:.0?} and \
         Python's start ({python:.1?}) are {least:.1?}: {:.1?} above",
        "modal-first-cell",
        ours.saturating_sub(least)
    ))
}
