//! The session itself: its handle, its queue, and the end of what it holds.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tracing::{Instrument, debug, warn};

use super::approval::Grants;
use super::authority::Gate;
use super::cell::Cell;
use super::error::SessionError;
use super::journal::{CellEntry, Journal};
use super::live::Live;
use super::options::SessionOptions;
use super::report;
use super::slots::Slots;
use super::spans;
use super::standalone::Standalone;
use super::workspace::SessionWorkspace;
use crate::backends::Target;
use crate::environment::Built;
use crate::kernel::{AgentError, KernelStarting};
use crate::outcome::{Outcome, Phases};
use crate::output::Masker;
use crate::place::Place;
use crate::tools::{ToolHost, ToolSpec, check_specs};

/// Waits below this are not worth a phase.
const WORTH_A_PHASE: Duration = Duration::from_millis(1);

/// What is said to who uses a session that has ended.
pub(super) const CLOSED: &str = "the session is closed; open another";

/// One caller's line of cells on one target. Cloning it copies a handle.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(super) options: SessionOptions,
    pub(super) workspace: Arc<SessionWorkspace>,
    pub(super) gate: Arc<Gate>,
    journal: Arc<Journal>,
    pub(super) grants: Arc<Grants>,
    pub(super) slots: Arc<Slots>,
    pub(super) state: Arc<tokio::sync::Mutex<State>>,
    pub(super) has_kernel: AtomicBool,
    last_used: Mutex<Instant>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) target: Option<Arc<dyn Target>>,
    pub(super) live: Option<Live>,
    /// What is known of the place that the target is.
    pub(super) place: Option<Place>,
    pub(super) built: Built,
    pub(super) masker: Masker,
    /// Why the next cell finds a fresh kernel.
    pub(super) lost: Option<String>,
    /// That cells run as standalone scripts, and why.
    pub(super) standalone: Option<Standalone>,
    pub(super) closed: bool,
}

impl State {
    /// Whether the session is known to run on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.place.as_ref().is_some_and(Place::is_here)
    }
}

/// A cell's place in the queue of its session.
type Turn = Pin<Box<dyn Future<Output = OwnedMutexGuard<State>> + Send>>;

/// A cell that never began.
pub(super) enum Unbegun {
    /// Its kernel had died before; what there is to tell of that.
    KernelGone(Box<Outcome>),
    /// Its kernel did not start; what it took to find that out.
    NoKernel(AgentError, Duration),
    /// The working directory is gone.
    FolderGone,
}

/// What `prepare` found and the outcome tells, and what it has begun.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) notices: Vec<String>,
    /// The kernel of this cell, where it is new.
    pub(super) starting: Option<Starting>,
}

/// A kernel that is on its way. Its first cell follows it at once, which saves a round trip to the target.
pub(super) struct Starting {
    pub(super) kernel: KernelStarting,
    /// When it was asked for.
    pub(super) since: Instant,
    /// What was lost with the one before it: not yet told, should this one not start.
    pub(super) lost: Option<String>,
    /// Ends when the start has.
    pub(super) _span: tracing::Span,
}

impl Session {
    pub(crate) fn new(options: SessionOptions, slots: Arc<Slots>) -> Result<Self, SessionError> {
        check_specs(options.host.tools())?;
        let workspace = Arc::new(SessionWorkspace::default());
        let journal = Arc::new(Journal::new(&options));
        let state = State {
            standalone: (!options.keep_kernel).then(Standalone::switched_off),
            ..State::default()
        };
        Ok(Self {
            inner: Arc::new(Inner {
                gate: Arc::new(Gate::new(workspace.clone(), journal.clone())),
                journal,
                grants: Arc::default(),
                workspace,
                slots,
                state: Arc::new(tokio::sync::Mutex::new(state)),
                has_kernel: AtomicBool::new(false),
                last_used: Mutex::new(Instant::now()),
                options,
            }),
        })
    }

    /// Runs a cell after those that were handed over before it. Never fails: what goes wrong is in
    /// the outcome. Dropping the future cancels the cell.
    pub async fn execute(&self, cell: Cell) -> Outcome {
        let guard = CancelOnDrop(Some(cell.cancel.clone()));
        let inner = self.inner.clone();
        let queued = Instant::now();
        let mut turn: Turn = Box::pin(tokio::task::unconstrained(inner.state.clone().lock_owned()));
        // It takes its place in the queue here, not when the task gets to run.
        let turn: Turn = match std::future::poll_fn(|context| Poll::Ready(turn.as_mut().poll(context))).await {
            Poll::Ready(state) => Box::pin(std::future::ready(state)),
            Poll::Pending => turn,
        };
        let entry = Arc::new(inner.journal.cell(&cell));
        let of_task = entry.clone();
        let span = spans::cell(&cell, inner.journal.session(), entry.number, &inner.options.target);
        let in_span = span.clone();
        // Recorded by the task: it ends also where nobody waits for it any more.
        let course = async move {
            let mut outcome = inner.execute(cell, turn, queued, &of_task).await;
            of_task.end(&mut outcome);
            spans::cell_ended(&in_span, &outcome);
            outcome
        };
        let task = tokio::spawn(course.instrument(span));
        let outcome = task.await;
        guard.disarm();
        outcome.unwrap_or_else(|error| {
            let mut outcome = report::refused(
                &self.inner.options.target,
                Phases::default(),
                format!("the broker failed while it ran the cell ({error}); this is a bug of Talaria"),
            );
            entry.end(&mut outcome);
            outcome
        })
    }

    /// The session's name in the audit log. It gives no access to the session.
    #[must_use]
    pub fn name_in_log(&self) -> &str {
        self.inner.journal.session()
    }

    /// Discards the kernel's state; the next cell finds a fresh one.
    pub async fn reset(&self) {
        let mut state = self.inner.state.lock().await;
        self.inner.discard_kernel(&mut state).await;
        state.lost = None;
    }

    /// Ends the session: its kernel, what its commands left in the background, and its files. Waits
    /// for a running cell; cancel that first.
    pub async fn close(&self) {
        let mut state = self.inner.state.lock().await;
        state.closed = true;
        self.inner.abandon(&mut state).await;
        self.inner.leave(&mut state).await;
        self.inner.options.backend.settle().await;
        self.inner.journal.flush().await;
    }

    /// How its target was reached, in lines for whoever wants to know; nothing before the first cell.
    pub async fn about_target(&self) -> Vec<(&'static str, String)> {
        let target = self.inner.state.lock().await.target.clone();
        target.map(|target| target.about()).unwrap_or_default()
    }

    /// Where the target ends what a connection has started once that is gone, so that no cell outlives it: that it does,
    /// and what to do. Asks the target; `None` before the first cell.
    pub async fn ends_at_logout(&self) -> Option<String> {
        let target = self.inner.state.lock().await.target.clone();
        target?.ends_at_logout().await
    }

    /// The working directory, as the last command left it; `None` before the first cell.
    #[must_use]
    pub fn working_directory(&self) -> Option<PathBuf> {
        self.inner.workspace.working_directory()
    }
}

struct CancelOnDrop(Option<super::Cancel>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = &self.0 {
            cancel.cancel("the caller went away");
        }
    }
}

impl Inner {
    /// Whether a kernel of this session is alive.
    pub(super) fn has_kernel(&self) -> bool {
        self.has_kernel.load(Ordering::Acquire)
    }

    /// When it was last used.
    pub(super) fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limit of its idle time.
    pub(super) fn idle_limit(&self) -> Duration {
        self.options.limits.kernel_idle_timeout
    }

    /// Ends the kernel if no cell runs or waits. Whether it did.
    pub(super) async fn evict(&self, reason: &str) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        if state.live.as_ref().is_none_or(|live| live.kernel.is_none()) {
            self.has_kernel.store(false, Ordering::Release);
            return false;
        }
        debug!(%reason, "a kernel is ended");
        self.discard_kernel(&mut state).await;
        state.lost = Some(reason.to_owned());
        // A supervisor without a kernel stays only for what commands left in the background; elsewhere also for the
        // target itself, which may end with it.
        if state.is_here() && state.live.as_ref().is_some_and(|live| live.agent.remaining() == 0) {
            self.abandon(&mut state).await;
        }
        true
    }

    pub(super) async fn discard_kernel(&self, state: &mut State) {
        if let Some(live) = &mut state.live
            && live.kernel.take().is_some()
        {
            live.agent.end_kernel().await;
        }
        self.has_kernel.store(false, Ordering::Release);
        if self.options.keep_kernel {
            state.standalone = None;
        }
    }

    pub(super) async fn abandon(&self, state: &mut State) {
        self.workspace.detach();
        self.has_kernel.store(false, Ordering::Release);
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }

    /// Gives the target back.
    pub(super) async fn leave(&self, state: &mut State) {
        state.place = None;
        if let Some(target) = state.target.take()
            && let Err(error) = target.close().await
        {
            warn!(%error, "the target could not be given back whole");
        }
    }

    async fn execute(self: Arc<Self>, cell: Cell, turn: Turn, queued: Instant, entry: &CellEntry) -> Outcome {
        let target = &self.options.target;
        let mut phases = Phases::default();
        if let Err(error) = self.check(&cell) {
            return report::refused(target, phases, error);
        }
        let mut state = tokio::select! {
            biased;
            () = cell.cancel.cancelled() => {
                return report::cancelled_early(target, phases, &cell.cancel.reason());
            }
            state = turn => state,
        };
        phases.queue = phase(queued.elapsed());
        if state.closed {
            return report::refused(target, phases, CLOSED);
        }
        let mut again = true;
        let mut notices = Vec::new();
        let outcome = loop {
            let prepared = tokio::select! {
                biased;
                () = cell.cancel.cancelled() => None,
                prepared = self.prepare(&mut state, &cell, &mut phases) => Some(prepared),
            };
            break match prepared {
                None => {
                    // It may have stopped half way through a start.
                    self.abandon(&mut state).await;
                    if !state.is_here() {
                        self.leave(&mut state).await;
                    }
                    report::cancelled_early(target, phases, &cell.cancel.reason())
                }
                Some(Err(error)) => {
                    // What was made on the target for this start is not left there.
                    if state.live.is_none() && !state.is_here() {
                        self.leave(&mut state).await;
                    }
                    report::refused(target, phases, error.to_string())
                }
                Some(Ok(mut prepared)) => {
                    prepared.notices.splice(0..0, notices.clone());
                    match self.run(&mut state, &cell, entry, prepared, &mut phases).await {
                        // The kernel had died unnoticed, and nothing of the cell ran.
                        Err(Unbegun::KernelGone(_)) if again => {
                            again = false;
                            continue;
                        }
                        Err(Unbegun::NoKernel(error, took)) => match self.no_kernel(&mut state, error, took).await {
                            Ok(()) => continue,
                            Err(error) => report::refused(target, phases, error.to_string()),
                        },
                        Err(Unbegun::FolderGone) => match self.folder_gone(&state) {
                            Ok(notice) => {
                                notices.push(notice);
                                continue;
                            }
                            Err(error) => report::refused(target, phases, error.to_string()),
                        },
                        Err(Unbegun::KernelGone(outcome)) => *outcome,
                        Ok(outcome) => outcome,
                    }
                }
            };
        };
        self.touch();
        outcome
    }

    /// Notes that it is used now.
    pub(super) fn touch(&self) {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// What can be said against a cell before anything is started for it.
    fn check(&self, cell: &Cell) -> Result<(), String> {
        let blank = |c: char| c.is_whitespace() || c == '\u{feff}';
        if cell.source.lossy().trim_matches(blank).is_empty() {
            return Err("there is no code to run: give Python source".to_owned());
        }
        let limits = self.options.limits.with(&cell.limits);
        if limits.timeout.is_zero() {
            return Err("the timeout is zero; give a time greater than zero, such as 90s or 5m".to_owned());
        }
        if let Some(host) = &cell.host {
            check_specs(host.tools()).map_err(|error| error.to_string())?;
        }
        if let Some(names) = &cell.allowed_tools {
            self.options
                .check_offered(names, self.host(cell).tools())
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(super) fn host<'a>(&'a self, cell: &'a Cell) -> &'a Arc<dyn ToolHost> {
        cell.host.as_ref().unwrap_or(&self.options.host)
    }

    /// The tools that the session offers to this cell.
    pub(super) fn offered<'a>(&'a self, cell: &'a Cell) -> Vec<&'a ToolSpec> {
        self.options.offered(self.host(cell).tools())
    }

    pub(super) fn allowed<'a>(&'a self, cell: &'a Cell) -> Vec<&'a ToolSpec> {
        let mut specs = self.offered(cell);
        if let Some(names) = &cell.allowed_tools {
            specs.retain(|spec| names.contains(&spec.name));
        }
        specs
    }
}

pub(super) fn phase(elapsed: Duration) -> Option<f64> {
    (elapsed >= WORTH_A_PHASE).then_some(elapsed.as_secs_f64())
}
