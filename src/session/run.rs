//! The session itself: its queue, its life, and the course of one cell.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::authority::{Authority, Gate};
use super::cell::Cell;
use super::hints;
use super::live::{Live, LiveKernel};
use super::options::{SessionOptions, check_offered, spill_folder};
use super::report::{self, Facts, Verdict};
use super::slots::Slots;
use super::workspace::SessionWorkspace;
use crate::backends::{BackendError, Target};
use crate::config::Mode;
use crate::environment::Built;
use crate::interpreter::InterpreterError;
use crate::kernel::AgentError;
use crate::link::message::CellResult;
use crate::link::{CellDone, RunCell};
use crate::outcome::{KernelMode, KernelReport, Outcome, Phases};
use crate::output::{Collector, Masker, Stream};
use crate::tools::{Shell, SpecError, ToolHost, ToolSpec, check_specs, stub_source};

/// Bytes of stderr that are carried; an outcome shows far fewer.
const STDERR_CARRIED: u64 = 1 << 20;
/// Time beyond a cell's limit after which its supervisor counts as lost: the grace, a kill walk, and
/// some for a loaded machine.
const SUPERVISOR_LATE: Duration = Duration::from_secs(30);
/// Waits below this are not worth a phase.
const WORTH_A_PHASE: Duration = Duration::from_millis(1);

/// Why a session could not be opened, or its target side not be started.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The target.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No interpreter there is fit.
    #[error(transparent)]
    Interpreter(#[from] InterpreterError),
    /// The supervisor did not begin.
    #[error("the session could not be started: {0}")]
    Start(String),
    /// The tools of the host cannot be offered.
    #[error(transparent)]
    Tools(#[from] SpecError),
    /// The values to be masked are too many.
    #[error("the withheld variables cannot be masked: {0}")]
    Mask(#[from] crate::output::MaskError),
    /// A tool that the configuration disables does not exist.
    #[error("tools.disabled names {name}, which is no tool; tools are {known}")]
    UnknownTool {
        /// The name.
        name: String,
        /// What there is.
        known: String,
    },
    /// A tool that a caller allows is not among those that the session offers.
    #[error("the tool {name} is not offered; offered: {offered}")]
    NotOffered {
        /// The name.
        name: String,
        /// What is.
        offered: String,
    },
    /// The working directory.
    #[error("the working directory {0} does not exist or is no folder; give an existing one")]
    WorkingDirectory(PathBuf),
}

/// One caller's line of cells on one target. Cloning it copies a handle.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    options: SessionOptions,
    workspace: Arc<SessionWorkspace>,
    gate: Arc<Gate>,
    slots: Arc<Slots>,
    state: Arc<tokio::sync::Mutex<State>>,
    has_kernel: AtomicBool,
    last_used: Mutex<Instant>,
}

#[derive(Default)]
struct State {
    target: Option<Arc<dyn Target>>,
    live: Option<Live>,
    built: Built,
    masker: Masker,
    /// Why the next cell finds a fresh kernel.
    lost: Option<String>,
    /// Why cells run as standalone scripts.
    standalone: Option<String>,
    closed: bool,
}

/// A cell's place in the queue of its session.
type Turn = Pin<Box<dyn Future<Output = OwnedMutexGuard<State>> + Send>>;

/// A cell that its kernel never began, and what there is to tell of that.
struct Unbegun(Outcome);

/// What `prepare` found and the outcome tells.
#[derive(Default)]
struct Prepared {
    notices: Vec<String>,
}

impl Session {
    pub(crate) fn new(options: SessionOptions, slots: Arc<Slots>) -> Result<Self, SessionError> {
        check_specs(options.host.tools())?;
        let home = options
            .environment
            .home()
            .map_or_else(|| PathBuf::from("/"), std::path::Path::to_path_buf);
        let shell = Shell::new(
            options.environment.clone(),
            options.passes.clone(),
            options.cwd.clone(),
            options.terminal_timeout,
        );
        let workspace = Arc::new(SessionWorkspace::new(home, shell));
        let state = State {
            standalone: (!options.keep_kernel)
                .then(|| "the kernel is switched off (code_execution.kernel: off)".to_owned()),
            ..State::default()
        };
        Ok(Self {
            inner: Arc::new(Inner {
                gate: Arc::new(Gate::new(workspace.clone())),
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
        let task = tokio::spawn(async move { inner.execute(cell, turn, queued).await });
        let outcome = task.await;
        guard.disarm();
        outcome.unwrap_or_else(|error| {
            report::refused(
                &self.inner.options.target,
                Phases::default(),
                format!("the broker failed while it ran the cell ({error}); this is a bug of Talaria"),
            )
        })
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
    }

    /// The working directory, as the last command left it.
    #[must_use]
    pub fn working_directory(&self) -> PathBuf {
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
        // A supervisor without a kernel stays only for what commands left in the background.
        if state.live.as_ref().is_some_and(|live| live.agent.remaining() == 0) {
            self.abandon(&mut state).await;
        }
        true
    }

    async fn discard_kernel(&self, state: &mut State) {
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

    async fn abandon(&self, state: &mut State) {
        self.workspace.detach();
        self.has_kernel.store(false, Ordering::Release);
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }

    async fn execute(self: Arc<Self>, cell: Cell, turn: Turn, queued: Instant) -> Outcome {
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
        phases.queue = phase(queued);
        if state.closed {
            return report::refused(target, phases, "the session is closed; open another");
        }
        let mut again = true;
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
                    report::cancelled_early(target, phases, &cell.cancel.reason())
                }
                Some(Err(error)) => report::refused(target, phases, error.to_string()),
                Some(Ok(prepared)) => match self.run(&mut state, &cell, prepared, phases).await {
                    // The kernel had died unnoticed, and nothing of the cell ran.
                    Err(Unbegun(_)) if again => {
                        again = false;
                        continue;
                    }
                    Err(Unbegun(outcome)) | Ok(outcome) => outcome,
                },
            };
        };
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        outcome
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
            check_offered(names, &self.offered(cell)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn host<'a>(&'a self, cell: &'a Cell) -> &'a Arc<dyn ToolHost> {
        cell.host.as_ref().unwrap_or(&self.options.host)
    }

    /// The tools that the session offers to this cell.
    fn offered<'a>(&'a self, cell: &'a Cell) -> Vec<&'a ToolSpec> {
        self.options.offered(self.host(cell).tools())
    }

    /// Sees that a supervisor is there, and a kernel where one is kept.
    async fn prepare(&self, state: &mut State, cell: &Cell, phases: &mut Phases) -> Result<Prepared, SessionError> {
        let mut prepared = Prepared::default();
        if cell.reset {
            self.discard_kernel(state).await;
            state.lost = None;
        }
        self.notice_losses(state).await;
        let folder = self.working_folder(&mut prepared)?;
        if state.live.is_none() {
            let began = Instant::now();
            self.start(state, &folder).await?;
            phases.connect = phase(began);
        }
        if let Some(reason) = &state.standalone {
            prepared.notices.push(format!(
                "{reason}; the cell ran as a standalone script, and nothing of it is kept for the next"
            ));
            return Ok(prepared);
        }
        if state.live.as_ref().is_some_and(|live| live.kernel.is_some()) {
            return Ok(prepared);
        }
        let began = Instant::now();
        self.slots.make_room(self).await;
        self.has_kernel.store(true, Ordering::Release);
        self.start_kernel(state, cell, &mut prepared).await?;
        phases.start = phase(began);
        if let Some(reason) = state.lost.take() {
            prepared.notices.push(format!(
                "variables and imports of earlier cells are lost ({reason}); this cell ran in a fresh kernel"
            ));
        }
        Ok(prepared)
    }

    /// Takes note of a kernel or supervisor that ended since the last cell.
    async fn notice_losses(&self, state: &mut State) {
        let Some(live) = &mut state.live else { return };
        let had_kernel = live.kernel.is_some();
        if live.agent.is_gone() {
            if had_kernel {
                state.lost = Some("the supervisor of the session was killed".to_owned());
            }
            self.abandon(state).await;
        } else if let Some(end) = live.agent.take_lost()
            && live
                .kernel
                .as_ref()
                .is_some_and(|kernel| kernel.info.generation == end.generation)
        {
            live.kernel = None;
            self.has_kernel.store(false, Ordering::Release);
            state.lost = Some(format!("the kernel ended between cells: {}", end.reason));
        }
    }

    /// The session's working directory, or the one that it began with where that is gone.
    fn working_folder(&self, prepared: &mut Prepared) -> Result<PathBuf, SessionError> {
        let folder = self.workspace.working_directory();
        if folder.is_dir() {
            return Ok(folder);
        }
        let first = &self.options.cwd;
        if !first.is_dir() {
            return Err(SessionError::WorkingDirectory(folder));
        }
        prepared.notices.push(format!(
            "the working directory {} is gone; the session went back to {}",
            folder.display(),
            first.display()
        ));
        self.workspace.set_working_directory(first.clone());
        Ok(first.clone())
    }

    async fn start(&self, state: &mut State, folder: &std::path::Path) -> Result<(), SessionError> {
        let target = match &state.target {
            Some(target) => target.clone(),
            None => {
                let target = self.options.backend.open(&CancellationToken::new()).await?;
                state.target.insert(target).clone()
            }
        };
        self.build_environment(state)?;
        let live = Live::open(&self.options, &*target, folder, &state.built, self.gate.clone()).await?;
        if self.options.mode == Mode::Strict {
            let work = PathBuf::from(live.agent.link().folder()).join("work");
            std::fs::create_dir(&work)
                .map_err(|error| SessionError::Start(format!("{} cannot be made: {error}", work.display())))?;
            self.workspace.set_working_directory(work);
        }
        self.workspace.attach(&live.agent);
        state.live = Some(live);
        Ok(())
    }

    fn build_environment(&self, state: &mut State) -> Result<(), SessionError> {
        let environment = &self.options.environment;
        let built = environment.cell_environment(&self.options.passes);
        if built.dropped_hermes != state.built.dropped_hermes
            && let Some(line) = built.dropped_hermes_line()
        {
            debug!("{line}");
        }
        let terminal = environment.terminal_environment(&self.options.passes);
        state.masker = Masker::new(environment.masked_values(&[&built, &terminal]))?;
        state.built = built;
        Ok(())
    }

    async fn start_kernel(&self, state: &mut State, cell: &Cell, prepared: &mut Prepared) -> Result<(), SessionError> {
        self.build_environment(state)?;
        let folder = self.workspace.working_directory();
        let Some(live) = &mut state.live else { return Ok(()) };
        let stub = stub_source(&self.allowed(cell), live.agent.link().token());
        let start = live.start_of_kernel(&folder, &state.built, &stub);
        match live.agent.start_kernel(start).await {
            Ok(info) => {
                live.kernel = Some(LiveKernel { info, count: 0, stub });
                Ok(())
            }
            Err(AgentError::KernelStart(reason)) => {
                self.has_kernel.store(false, Ordering::Release);
                let reason = format!("the Python kernel could not be started: {reason}");
                prepared.notices.push(format!(
                    "{reason}; the cell ran as a standalone script, and nothing of it is kept for the next"
                ));
                state.standalone = Some(reason);
                Ok(())
            }
            Err(error) => {
                self.has_kernel.store(false, Ordering::Release);
                Err(SessionError::Start(error.to_string()))
            }
        }
    }

    fn allowed<'a>(&'a self, cell: &'a Cell) -> Vec<&'a ToolSpec> {
        let mut specs = self.offered(cell);
        if let Some(names) = &cell.allowed_tools {
            specs.retain(|spec| names.contains(&spec.name));
        }
        specs
    }

    async fn run(
        &self,
        state: &mut State,
        cell: &Cell,
        prepared: Prepared,
        phases: Phases,
    ) -> Result<Outcome, Unbegun> {
        let masker = state.masker.clone();
        let Some(live) = &mut state.live else {
            return Ok(report::refused(&self.options.target, phases, "the session has ended"));
        };
        let limits = self.options.limits.with(&cell.limits);
        let specs = self.allowed(cell);
        let agent = live.agent.clone();
        let stub = stub_source(&specs, agent.link().token());
        let number = agent.next_cell();
        let run = RunCell {
            cell: number,
            timeout: limits.timeout.as_secs_f64(),
            stdout_cap: limits.max_spill_bytes.max(limits.max_stdout_bytes as u64),
            stderr_cap: STDERR_CARRIED.max(limits.max_stderr_bytes as u64),
            name: cell.file_name(number),
            arguments: cell.arguments.clone(),
            from_file: matches!(cell.source, super::CellSource::File(_)),
            stub: match &live.kernel {
                Some(kernel) if kernel.stub == stub => None,
                _ => Some(stub.clone()),
            },
            source: cell.source.bytes().to_vec(),
            standalone: live.kernel.is_none(),
        };
        let python = match &live.kernel {
            Some(kernel) => kernel.info.python.clone(),
            None => live.python.display().to_string(),
        };
        if live.kernel.is_none() {
            let folder = self.workspace.working_directory();
            let start = live.start_of_kernel(&folder, &state.built, &stub);
            if let Err(error) = agent.prepare_standalone(start) {
                return Ok(report::refused(&self.options.target, phases, error.to_string()));
            }
        }
        if let Err(error) = agent.link().open_for_calls().await {
            // Its folder is another's now: a session with another name takes over.
            self.abandon(state).await;
            state.lost = Some(error.to_string());
            return Err(Unbegun(report::refused(
                &self.options.target,
                phases,
                error.to_string(),
            )));
        }
        let authority = Arc::new(Authority {
            cell: number,
            host: self.host(cell).clone(),
            allowed: specs.iter().map(|spec| spec.name.clone()).collect(),
            budget: limits.max_tool_calls,
            made: AtomicU64::new(0),
            cancel: CancellationToken::new(),
            sink: cell.sink.clone(),
        });
        let spill = spill_folder(&self.options.environment);
        let mut collector = Collector::new((&limits).into(), spill, masker.clone());
        self.gate.open(authority.clone());
        if let Some(sink) = &cell.sink {
            sink.started();
        }
        let began = Instant::now();
        let done = self.drive(&agent, cell, run, limits.timeout, &mut collector).await;
        self.gate.shut();

        if let Some(kernel) = &mut live.kernel {
            kernel.stub = stub;
            kernel.count += 1;
        }
        let keeps_state = live.kernel.is_some();
        let (verdict, done) = match done {
            Ok(mut done) => {
                self.skipped(cell, &mut collector, &mut done);
                (
                    report::judge(&done, limits.timeout, &cell.cancel.reason(), keeps_state),
                    Some(done),
                )
            }
            Err(reason) => (report::supervisor_lost(&reason, keeps_state), None),
        };
        let collected = collector.finish();
        if let Some(sink) = &cell.sink {
            let (stdout, stderr) = &collected.live_rest;
            for (stream, text) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
                if !text.is_empty() {
                    sink.write(stream, text);
                }
            }
        }
        let result = done.as_ref().and_then(|done| done.result.as_ref());
        let hint =
            result.and_then(|result| self.hint(cell, result, &authority, &python, collected.stdout_bytes_total > 0));
        let count = live.kernel.as_ref().map_or(1, |kernel| kernel.count);
        let facts = Facts {
            target: self.options.target.clone(),
            kernel: KernelReport {
                mode: if live.kernel.is_some() {
                    KernelMode::Session
                } else {
                    KernelMode::OneShot
                },
                reused: count > 1,
                execution_count: count,
                state_lost: verdict.kernel_ended,
                python: format!("{python} ({})", live.version),
                transport: agent.link().transport().to_owned(),
            },
            phases,
            seconds: done
                .as_ref()
                .map_or_else(|| began.elapsed().as_secs_f64(), |done| done.seconds),
            tool_calls: authority.made.load(Ordering::Acquire),
            notice: (!prepared.notices.is_empty()).then(|| prepared.notices.join(" · ")),
            hint,
        };
        let unbegun = done.as_ref().is_some_and(|done| done.why == "unbegun");
        self.after(state, &verdict, done.is_some()).await;
        if unbegun && let Some(end) = agent.take_lost() {
            state.lost = Some(format!("the kernel ended between cells: {}", end.reason));
        }
        let outcome = report::outcome(verdict, collected, &masker, facts);
        if unbegun { Err(Unbegun(outcome)) } else { Ok(outcome) }
    }

    /// Runs a cell to its end, passing on its output and the caller's wish to stop.
    async fn drive(
        &self,
        agent: &crate::kernel::Agent,
        cell: &Cell,
        run: RunCell,
        timeout: Duration,
        collector: &mut Collector,
    ) -> Result<CellDone, String> {
        let number = run.cell;
        let sink = cell.sink.clone();
        let running = agent.run_cell(run, |stderr, data| {
            let stream = if stderr { Stream::Stderr } else { Stream::Stdout };
            let text = collector.push(stream, data);
            if let Some(sink) = &sink
                && !text.is_empty()
            {
                sink.write(stream, &text);
            }
        });
        tokio::pin!(running);
        let late = tokio::time::sleep(timeout + SUPERVISOR_LATE);
        tokio::pin!(late);
        let (mut asked, mut at_once) = (false, false);
        loop {
            tokio::select! {
                done = &mut running => return done.map_err(|error| error.to_string()),
                () = cell.cancel.cancelled(), if !asked => {
                    asked = true;
                    agent.stop_cell(number, false);
                }
                () = cell.cancel.cancelled_at_once(), if !at_once => {
                    at_once = true;
                    agent.stop_cell(number, true);
                }
                () = &mut late => return Err("the supervisor of the session did not answer".to_owned()),
            }
        }
    }

    /// Accounts for output that the supervisor did not send.
    fn skipped(&self, cell: &Cell, collector: &mut Collector, done: &mut CellDone) {
        let parts = [
            (Stream::Stdout, &done.stdout_skipped),
            (Stream::Stderr, &done.stderr_skipped),
        ];
        for (stream, (bytes, tail)) in parts {
            if *bytes > 0 {
                let text = collector.skip(stream, bytes.saturating_sub(tail.len() as u64), tail);
                if let Some(sink) = &cell.sink {
                    sink.write(stream, &text);
                }
            }
        }
    }

    fn hint(
        &self,
        cell: &Cell,
        result: &CellResult,
        authority: &Authority,
        python: &str,
        printed: bool,
    ) -> Option<String> {
        let withheld: Vec<String> = self
            .host(cell)
            .tools()
            .iter()
            .map(|spec| spec.name.clone())
            .filter(|name| !authority.allowed.contains(name))
            .collect();
        hints::hint(&hints::Facts {
            result,
            source: &cell.source.lossy(),
            python,
            allowed: &authority.allowed,
            withheld: &withheld,
            printed,
        })
    }

    /// Remembers what a cell's end means for the next one.
    async fn after(&self, state: &mut State, verdict: &Verdict, supervisor_answered: bool) {
        if verdict.kernel_ended {
            if let Some(live) = &mut state.live {
                live.kernel = None;
            }
            self.has_kernel.store(false, Ordering::Release);
            state.lost = Some(verdict.lost_because.clone());
        }
        if !supervisor_answered {
            self.abandon(state).await;
        }
    }
}

fn phase(since: Instant) -> Option<f64> {
    let elapsed = since.elapsed();
    (elapsed >= WORTH_A_PHASE).then_some(elapsed.as_secs_f64())
}
