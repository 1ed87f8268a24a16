//! The handle of a session's supervisor: one pump takes its events to whoever waits for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use super::ending::signal_name;
use super::jobs::{JobHandle, Running};
use super::starting::KernelStarting;
use crate::link::{
    CellDone, JobDone, KernelStart, Link, LinkCommand, LinkError, LinkEvent, Reply, RunCell, RunJob, RunVerb, VerbDone,
};

/// Chunks of output (64 KiB each) that wait for whoever collects a cell or a job.
const QUEUE: usize = 32;

/// Why the target side could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The kernel did not start.
    #[error("the Python kernel did not start: {0}")]
    KernelStart(String),
    /// The supervisor is there, but does not do what it is told.
    #[error("the supervisor of the session did not answer")]
    Silent,
    /// The supervisor is gone.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A kernel that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Which kernel of the session.
    pub generation: u64,
    /// Path of its interpreter.
    pub python: String,
    /// `3.11.7`.
    pub version: String,
}

/// How a kernel came to its end while no cell ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEnd {
    /// Which kernel.
    pub generation: u64,
    /// In words.
    pub reason: String,
    /// Processes that are left of the session: what commands started in the background, and what watches it.
    pub remaining: u64,
}

pub(super) enum CellEvent {
    Output { stderr: bool, data: Bytes },
    Done(Box<CellDone>),
}

pub(super) enum JobEvent {
    Output(Bytes),
    Done(Box<JobDone>),
    Verb(VerbDone),
}

/// Whoever waits for a job or a file operation.
struct Route {
    sender: mpsc::Sender<JobEvent>,
    reply: Option<Arc<Reply>>,
}

#[derive(Default)]
pub(super) struct Routes {
    starting: Option<oneshot::Sender<Result<KernelInfo, String>>>,
    ending: Option<oneshot::Sender<()>>,
    cell: Option<(u64, mpsc::Sender<CellEvent>)>,
    jobs: HashMap<u64, Route>,
    lost: Option<KernelEnd>,
    remaining: u64,
    /// Why the link ended.
    pub(super) gone: Option<LinkError>,
}

/// Guard and supervisor of one session.
pub struct Agent {
    link: Arc<dyn Link>,
    routes: Arc<Mutex<Routes>>,
    cells: AtomicU64,
    jobs: AtomicU64,
    pump: tokio::sync::Mutex<tokio::task::JoinHandle<()>>,
    abort: tokio::task::AbortHandle,
}

impl Agent {
    /// Takes over a link whose far side has begun.
    #[must_use]
    pub fn new(link: Arc<dyn Link>) -> Self {
        let routes = Arc::new(Mutex::new(Routes::default()));
        let pump = tokio::spawn(pump(link.clone(), routes.clone()));
        Self {
            link,
            routes,
            cells: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
            abort: pump.abort_handle(),
            pump: tokio::sync::Mutex::new(pump),
        }
    }

    /// The link, for what it knows of itself.
    #[must_use]
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Whether the far side has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.routes().gone.is_some()
    }

    /// Why the link ended.
    #[must_use]
    pub fn end(&self) -> LinkError {
        self.routes().gone.clone().unwrap_or(LinkError::Gone)
    }

    /// Starts a kernel. The supervisor bounds the time until it is ready (30 s); one that answers nothing at all within
    /// `limit` counts as lost.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub fn start_kernel(&self, start: KernelStart, limit: Duration) -> Result<KernelStarting, AgentError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut routes = self.routes();
            if let Some(error) = &routes.gone {
                return Err(error.clone().into());
            }
            routes.starting = Some(sender);
            routes.lost = None;
        }
        self.link.send(LinkCommand::StartKernel(start))?;
        Ok(KernelStarting::new(receiver, self.routes.clone(), limit))
    }

    /// Says how standalone scripts are started.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub fn prepare_standalone(&self, start: KernelStart) -> Result<(), AgentError> {
        Ok(self.link.send(LinkCommand::Prepare(start))?)
    }

    /// The number that the next cell will have.
    pub fn next_cell(&self) -> u64 {
        self.cells.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Runs a cell, which is sent before this returns: what stops it must not overtake it. Output goes to `output` as it
    /// comes; the future is ready when the cell has ended. Dropping it does not stop the cell: see [`Agent::stop_cell`].
    ///
    /// # Errors
    /// When the supervisor ends before the cell does.
    pub fn run_cell(
        &self,
        run: RunCell,
        mut output: impl FnMut(bool, &[u8]),
    ) -> impl Future<Output = Result<CellDone, AgentError>> {
        let sent = self.send_cell(run);
        async move {
            let mut receiver = sent?;
            while let Some(event) = receiver.recv().await {
                match event {
                    CellEvent::Output { stderr, data } => output(stderr, &data),
                    CellEvent::Done(done) => return Ok(*done),
                }
            }
            Err(self.end().into())
        }
    }

    fn send_cell(&self, run: RunCell) -> Result<mpsc::Receiver<CellEvent>, AgentError> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        {
            let mut routes = self.routes();
            if let Some(error) = &routes.gone {
                return Err(error.clone().into());
            }
            routes.cell = Some((run.cell, sender));
        }
        self.link.send(LinkCommand::RunCell(run))?;
        Ok(receiver)
    }

    /// Ends a running cell, and its kernel with it. A cell that has ended is left alone.
    pub fn stop_cell(&self, cell: u64, at_once: bool) {
        // A supervisor that is gone has no cell to stop.
        let _ = self.link.send(LinkCommand::StopCell { cell, at_once });
    }

    /// Stops the clock of a running cell for so long at most, or lets it go on (zero). One that has ended is left alone.
    pub fn hold_cell(&self, cell: u64, at_most: Duration) {
        // A supervisor that is gone judges nothing.
        let _ = self.link.send(LinkCommand::HoldCell { cell, at_most });
    }

    /// Ends an idle kernel and waits until nothing is left of it.
    pub async fn end_kernel(&self) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut routes = self.routes();
            if routes.gone.is_some() || routes.lost.as_ref().is_some() {
                return;
            }
            routes.ending = Some(sender);
        }
        if self.link.send(LinkCommand::EndKernel).is_ok() {
            let _ = receiver.await;
        }
    }

    /// How the last kernel ended, if it did so while no cell ran. Asked once.
    pub fn take_lost(&self) -> Option<KernelEnd> {
        self.routes().lost.take()
    }

    /// Processes that were left of the session when its last kernel ended.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.routes().remaining
    }

    /// Starts a job; `make` fills in its number.
    ///
    /// # Errors
    /// When the supervisor is gone.
    pub fn run_job(&self, make: impl FnOnce(u64) -> RunJob) -> Result<JobHandle, AgentError> {
        self.begin(None, |number| LinkCommand::RunJob(make(number)))
            .map(JobHandle::new)
    }

    /// Does a file operation on the target: its results, or a sentence for the script. Dropped, it is forgotten over
    /// there; what it does to a file may still happen. With `reply` the target may answer that call itself.
    ///
    /// # Errors
    /// When the supervisor ends first.
    pub async fn run_verb(
        &self,
        verb: &'static str,
        folder: Vec<u8>,
        home: Vec<u8>,
        arguments: Vec<Bytes>,
        reply: Option<&Arc<Reply>>,
    ) -> Result<Result<Vec<Bytes>, String>, AgentError> {
        let mut running = self.begin(reply, |number| {
            LinkCommand::RunVerb(RunVerb {
                number,
                verb,
                folder,
                home,
                reply: reply.cloned(),
                arguments,
            })
        })?;
        loop {
            if let JobEvent::Verb(VerbDone { ok, mut fields, .. }) = running.next().await? {
                running.ended();
                return Ok(if ok {
                    Ok(fields)
                } else {
                    let sentence = fields.pop().unwrap_or_default();
                    Err(String::from_utf8_lossy(&sentence).into_owned())
                });
            }
        }
    }

    fn begin(&self, reply: Option<&Arc<Reply>>, make: impl FnOnce(u64) -> LinkCommand) -> Result<Running, AgentError> {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = mpsc::channel(QUEUE);
        {
            let mut routes = self.routes();
            if let Some(error) = &routes.gone {
                return Err(error.clone().into());
            }
            let reply = reply.cloned();
            if let Some(reply) = &reply {
                reply.promise();
            }
            routes.jobs.insert(number, Route { sender, reply });
        }
        self.link.send(make(number))?;
        Ok(Running::new(self.link.clone(), number, receiver))
    }

    /// Ends the session on the target and waits until the supervisor has gone.
    pub async fn close(&self) {
        if self.link.send(LinkCommand::Close).is_ok() {
            let limit = std::time::Duration::from_secs(20);
            let mut pump = self.pump.lock().await;
            if !pump.is_finished() && tokio::time::timeout(limit, &mut *pump).await.is_err() {
                debug!("the supervisor did not end in time; its guard will see to it");
                pump.abort();
            }
        }
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The link closes with its last holder, and the far side ends with the link.
        self.abort.abort();
    }
}

pub(super) fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn pump(link: Arc<dyn Link>, routes: Arc<Mutex<Routes>>) {
    loop {
        match link.next().await {
            Ok(event) => deliver(&routes, event).await,
            Err(error) => {
                debug!(%error, "the session's link ended");
                let mut routes = lock(&routes);
                // Whoever waits sees its sender dropped.
                *routes = Routes {
                    gone: Some(error),
                    lost: routes.lost.take(),
                    ..Routes::default()
                };
                return;
            }
        }
    }
}

async fn deliver(routes: &Mutex<Routes>, event: LinkEvent) {
    match event {
        LinkEvent::Hello(_) => debug!("a second greeting"),
        LinkEvent::KernelReady {
            generation,
            version,
            python,
        } => {
            let info = KernelInfo {
                generation,
                python,
                version,
            };
            if let Some(sender) = lock(routes).starting.take() {
                let _ = sender.send(Ok(info));
            }
        }
        LinkEvent::KernelFailed { status, detail, .. } => {
            if let Some(sender) = lock(routes).starting.take() {
                let _ = sender.send(Err(describe(status, &detail)));
            }
        }
        LinkEvent::KernelLost {
            generation,
            status,
            detail,
            remaining,
        } => {
            let mut routes = lock(routes);
            if let Some(sender) = routes.ending.take() {
                let _ = sender.send(());
            }
            let reason = describe(status, &detail);
            debug!(generation, %reason, "the kernel ended");
            routes.remaining = remaining;
            routes.lost = Some(KernelEnd {
                generation,
                reason,
                remaining,
            });
        }
        LinkEvent::CellOutput { cell, stderr, data } => {
            let sender = cell_route(routes, cell, false);
            if let Some(sender) = sender {
                let _ = sender.send(CellEvent::Output { stderr, data }).await;
            }
        }
        LinkEvent::CellDone(done) => {
            let sender = cell_route(routes, done.cell, true);
            if let Some(sender) = sender {
                let _ = sender.send(CellEvent::Done(Box::new(done))).await;
            }
        }
        LinkEvent::JobOutput { job, data } => {
            let sender = lock(routes).jobs.get(&job).map(|route| route.sender.clone());
            if let Some(sender) = sender {
                let _ = sender.send(JobEvent::Output(data)).await;
            }
        }
        LinkEvent::JobDone(done) => {
            let route = lock(routes).jobs.remove(&done.job);
            if let Some(Route { sender, .. }) = route {
                let _ = sender.send(JobEvent::Done(Box::new(done))).await;
            }
        }
        LinkEvent::VerbDone(done) => {
            let route = lock(routes).jobs.remove(&done.number);
            if let Some(Route { sender, reply }) = route {
                // Here and not where it is waited for: the record of its cell may come next.
                if let Some(reply) = reply {
                    reply.settle(done.answered);
                }
                let _ = sender.send(JobEvent::Verb(done)).await;
            }
        }
    }
}

fn cell_route(routes: &Mutex<Routes>, cell: u64, last: bool) -> Option<mpsc::Sender<CellEvent>> {
    let mut routes = lock(routes);
    match &routes.cell {
        Some((number, _)) if *number == cell => {
            if last {
                routes.cell.take().map(|(_, sender)| sender)
            } else {
                routes.cell.as_ref().map(|(_, sender)| sender.clone())
            }
        }
        _ => None,
    }
}

fn describe(status: Option<i32>, detail: &str) -> String {
    let end = status.map(|status| {
        let signal = status & 0x7f;
        if signal == 0 {
            format!("it exited with {}", (status >> 8) & 0xff)
        } else {
            format!("it was ended by {}", signal_name(signal))
        }
    });
    match (end, detail.is_empty()) {
        (Some(end), true) => end,
        (Some(end), false) => format!("{detail}; {end}"),
        (None, false) => detail.to_owned(),
        (None, true) => "nothing is known of its end".to_owned(),
    }
}
