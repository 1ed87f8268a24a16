//! The link as the kernel floor sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::cell::Cell;
use super::command::Site;
use super::job;
use crate::file_rpc::{Facts, Start, StartError, random_hex};
use crate::link::introduction::Introduction;
use crate::link::{CallHandler, KernelStart, Link, LinkCommand, LinkError, LinkEvent};

/// Events that wait for whoever takes them.
const QUEUE: usize = 32;

/// A link to a place where no process can be started beside another. When it is dropped what runs there is ended, as
/// far as that can be said.
pub struct AloneLink {
    site: Arc<Site>,
    folder: String,
    facts: Facts,
    introduction: Introduction,
    handler: Arc<dyn CallHandler>,
    token: Arc<str>,
    /// Why there is no supervisor.
    reason: String,
    /// A session may be dropped anywhere, and is cleared up after all the same.
    runtime: Handle,
    state: Mutex<State>,
    events: tokio::sync::Mutex<mpsc::Receiver<LinkEvent>>,
}

/// A cell under way.
struct Running {
    cell: u64,
    stop: CancellationToken,
    hold: mpsc::UnboundedSender<(Instant, Duration)>,
}

struct State {
    /// `None` once the link closes: with the last of its copies the events end.
    events: Option<mpsc::Sender<LinkEvent>>,
    start: Option<KernelStart>,
    cell: Option<Running>,
    jobs: HashMap<u64, CancellationToken>,
    /// Ends all.
    closing: CancellationToken,
}

impl AloneLink {
    /// Finds the first interpreter that is fit, and what the place is. `reason` is why there is no supervisor.
    ///
    /// # Errors
    /// When none is fit, when no folder can be made, or when the target cannot be reached.
    pub async fn start(start: Start, reason: String) -> Result<Self, StartError> {
        let handler = start.handler.clone();
        let (site, facts, introduction) = Site::find(start).await?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        Ok(Self {
            folder: site.folder(),
            site: Arc::new(site),
            facts,
            introduction,
            handler,
            token: random_hex()?.into(),
            reason,
            runtime: Handle::current(),
            state: Mutex::new(State {
                events: Some(sender),
                start: None,
                cell: None,
                jobs: HashMap::new(),
                closing: CancellationToken::new(),
            }),
            events: tokio::sync::Mutex::new(receiver),
        })
    }

    /// What the place is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Path of the interpreter that takes the orders, as it knows itself.
    #[must_use]
    pub fn python(&self) -> &str {
        &self.introduction.python
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut state = self.lock();
        let Some(events) = state.events.take() else { return };
        state.closing.cancel();
        let site = self.site.clone();
        self.runtime.spawn(async move {
            if let Err(reason) = site.ask(b'X', &[]).await {
                debug!(%reason, "the folder of a session could not be removed");
            }
            drop(events);
        });
    }
}

impl Drop for AloneLink {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Link for AloneLink {
    fn send(&self, command: LinkCommand) -> Result<(), LinkError> {
        if matches!(command, LinkCommand::Close) {
            self.close();
            return Ok(());
        }
        let mut state = self.lock();
        let Some(events) = state.events.clone() else {
            return Err(LinkError::Gone);
        };
        let site = self.site.clone();
        match command {
            LinkCommand::StartKernel(start) => {
                let failed = LinkEvent::KernelFailed {
                    generation: start.generation,
                    status: None,
                    detail: self.reason.clone(),
                };
                tokio::spawn(async move { events.send(failed).await });
            }
            LinkCommand::Prepare(start) => state.start = Some(start),
            LinkCommand::RunCell(run) => {
                let Some(start) = state.start.clone() else {
                    return Err(LinkError::Malformed("a cell came before it was said how it is started"));
                };
                let stop = state.closing.child_token();
                let (hold, holds) = mpsc::unbounded_channel();
                state.cell = Some(Running {
                    cell: run.cell,
                    stop: stop.clone(),
                    hold,
                });
                let cell = Cell {
                    site,
                    handler: self.handler.clone(),
                    token: self.token.clone(),
                    events,
                    stop,
                };
                tokio::spawn(cell.run(start, run, holds));
            }
            LinkCommand::StopCell { cell, .. } => {
                if let Some(running) = state.cell.as_ref().filter(|running| running.cell == cell) {
                    running.stop.cancel();
                }
            }
            LinkCommand::HoldCell { cell, at_most } => {
                if let Some(running) = state.cell.as_ref().filter(|running| running.cell == cell) {
                    // One that has ended takes none.
                    let _ = running.hold.send((Instant::now(), at_most));
                }
            }
            LinkCommand::RunJob(job) => {
                let stop = state.begin(job.job);
                tokio::spawn(job::run(site, job, events, stop));
            }
            LinkCommand::RunVerb(verb) => {
                let stop = state.begin(verb.number);
                tokio::spawn(job::perform(site, verb, events, stop));
            }
            LinkCommand::StopJob(number) => {
                if let Some(stop) = state.jobs.remove(&number) {
                    stop.cancel();
                }
            }
            LinkCommand::EndKernel | LinkCommand::Close => {}
        }
        Ok(())
    }

    async fn next(&self) -> Result<LinkEvent, LinkError> {
        let event = self.events.lock().await.recv().await.ok_or(LinkError::Gone)?;
        match &event {
            LinkEvent::JobDone(done) => drop(self.lock().jobs.remove(&done.job)),
            LinkEvent::VerbDone(done) => drop(self.lock().jobs.remove(&done.number)),
            _ => {}
        }
        Ok(event)
    }

    async fn open_for_calls(&self) -> Result<(), LinkError> {
        // The process of a cell has its own way.
        Ok(())
    }

    fn variables(&self) -> Vec<(String, String)> {
        vec![
            // By this what a session has left is known: `remote_agent/fence.py`.
            ("HERMES_RPC_DIR".to_owned(), format!("{}/rpc", self.folder)),
            ("HERMES_RPC_ALONE".to_owned(), "1".to_owned()),
        ]
    }

    fn token(&self) -> &str {
        &self.token
    }

    fn folder(&self) -> &str {
        &self.folder
    }

    fn transport(&self) -> &'static str {
        "alone"
    }
}

impl State {
    fn begin(&mut self, number: u64) -> CancellationToken {
        let stop = self.closing.child_token();
        self.jobs.insert(number, stop.clone());
        stop
    }
}
