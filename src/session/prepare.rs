//! What must be there before a cell can run: the supervisor, the kernel, and the truth about what was lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::{Instrument, debug};

use super::cell::Cell;
use super::error::SessionError;
use super::handle::{Inner, Prepared, Starting, State};
use super::live::{Live, LiveKernel, Offer};
use super::options::spill_folder;
use super::phases::PhaseClock;
use super::spans;
use super::standalone::Standalone;
use super::terminal_output::TerminalOutput;
use super::{elsewhere, here};
use crate::backends::{BackendError, Target};
use crate::config::Mode;
use crate::kernel::{AgentError, KernelStarting};
use crate::link::LinkError;
use crate::outcome::Phases;
use crate::output::Masker;
use crate::place::Place;
use crate::tools::{CallPath, Protected, Shell, stub_source};

/// How the target side says that a fork failed: `remote_agent/scarce.py`.
const NO_PROCESS: &str = "no process can be started";

/// Time in which a supervisor must say what became of a kernel, beside that in which a link may be made again: its own
/// limit, and some for a loaded machine.
const KERNEL_SILENT: Duration = Duration::from_secs(60);

impl Inner {
    /// Sees that a supervisor is there, and a kernel where one is kept.
    pub(super) async fn prepare(
        &self,
        state: &mut State,
        cell: &Cell,
        phases: &mut Phases,
    ) -> Result<Prepared, SessionError> {
        if cell.reset {
            self.discard_kernel(state).await;
            state.lost = None;
        }
        let mut prepared = self.prepare_place(state, cell, phases).await?;
        if runs_alone(state, &mut prepared) || state.live.as_ref().is_some_and(|live| live.kernel.is_some()) {
            return Ok(prepared);
        }
        let began = Instant::now();
        self.slots.make_room(self).await;
        self.has_kernel.store(true, Ordering::Release);
        let span = spans::phase("start kernel");
        let mut kernel = self.start_kernel(state, cell).await?;
        // Where nothing is left running there is nobody to keep a cell until its kernel is ready.
        let is_alone = state.live.as_ref().is_some_and(|live| live.alone.is_some());
        if is_alone && let Err(error) = kernel.ready().await {
            self.no_kernel(state, error, began.elapsed()).await?;
            runs_alone(state, &mut prepared);
            return Ok(prepared);
        }
        let lost = state.lost.take();
        if let Some(reason) = &lost {
            prepared
                .notices
                .push(format!("{}; this cell ran in a fresh kernel", loss(reason)));
        }
        prepared.starting = Some(Starting {
            kernel,
            since: began,
            lost,
            _span: span,
        });
        Ok(prepared)
    }

    /// Sees that a supervisor is there, with which files can be reached and commands be run.
    pub(super) async fn prepare_place(
        &self,
        state: &mut State,
        cell: &Cell,
        phases: &mut Phases,
    ) -> Result<Prepared, SessionError> {
        let mut prepared = Prepared::default();
        self.notice_losses(state).await;
        self.try_for_more(state).await;
        if state.live.is_none() {
            self.reach(state, cell, phases)
                .instrument(spans::phase("reach target"))
                .await?;
        }
        let folder = self.working_folder(state, &mut prepared)?;
        if state.live.is_none() {
            let clock = PhaseClock::start(cell.sink.clone());
            let starting = self.start(state, folder.as_deref(), &clock, &mut prepared);
            starting.instrument(spans::phase("start session")).await?;
            clock.stop(phases);
        }
        Ok(prepared)
    }

    /// Whether the target outlives the session's first process, and is another than this machine.
    fn may_be_alone(&self, state: &State) -> bool {
        state.target.as_ref().is_some_and(|target| {
            let can = target.capabilities();
            !can.is_here && !can.ends_with_session
        })
    }

    /// Takes note of a kernel or supervisor that ended since the last cell.
    async fn notice_losses(&self, state: &mut State) {
        let Some(live) = &mut state.live else { return };
        let had_kernel = live.kernel.is_some();
        if live.agent.is_gone() {
            if had_kernel {
                state.lost = Some(match live.agent.end() {
                    LinkError::Gone => "the supervisor of the session was killed".to_owned(),
                    error => error.to_string(),
                });
            }
            self.abandon(state).await;
        } else if let Some(end) = live.agent.take_lost()
            && live
                .kernel
                .as_ref()
                .is_some_and(|kernel| kernel.generation == end.generation)
        {
            live.kernel = None;
            self.has_kernel.store(false, Ordering::Release);
            state.lost = Some(format!("the kernel ended between cells: {}", end.reason));
        }
    }

    /// Where there was no room for a supervisor there may be some now.
    async fn try_for_more(&self, state: &mut State) {
        let is_alone = state.live.as_ref().is_some_and(|live| live.alone.is_some());
        if is_alone && state.standalone.as_ref().is_some_and(Standalone::is_over) {
            self.abandon(state).await;
        }
    }

    /// Goes on without a supervisor, on a target where there is room for that one alone.
    async fn go_alone(&self, state: &mut State, reason: &str, began: Instant) -> Result<(), SessionError> {
        let Some(target) = state.target.clone() else {
            return Ok(());
        };
        self.abandon(state).await;
        let folder = match self.options.mode {
            // Its private folder went with the supervisor.
            Mode::Strict => self.options.cwd.clone(),
            Mode::Project => self.workspace.working_directory(),
        };
        let handler = self.gate.clone();
        let (live, place) = elsewhere::alone(
            &self.options,
            target,
            folder.as_deref(),
            handler,
            reason.to_owned(),
            began,
        )
        .await?;
        if self.options.mode == Mode::Strict {
            self.workspace.set_working_directory(place.folder.clone());
            state.place = Some(place);
        }
        self.workspace.attach(&live.agent);
        state.live = Some(live);
        Ok(())
    }

    /// Sees that there is a target.
    async fn reach(&self, state: &mut State, cell: &Cell, phases: &mut Phases) -> Result<(), SessionError> {
        if state.target.is_some() {
            return Ok(());
        }
        let clock = PhaseClock::start(cell.sink.clone());
        let target = self.options.backend.open(&clock).await?;
        clock.stop(phases);
        if target.capabilities().is_here {
            let folder = self.options.cwd.clone().unwrap_or_else(|| PathBuf::from("/"));
            self.settle(state, Place::here(self.options.environment.clone(), folder));
        }
        state.target = Some(target);
        Ok(())
    }

    /// Takes up a place that the session has not been to.
    fn settle(&self, state: &mut State, place: Place) {
        let options = &self.options;
        let shell = Shell::new(place.clone(), options.passes.clone(), options.terminal_timeout);
        let spill = spill_folder(&options.environment);
        let mut protected = Protected::default();
        if options.protect_files {
            let home = place.home.as_ref();
            let real = home.and_then(|home| place.is_here().then(|| home.canonicalize().ok()).flatten());
            protected = Protected::of_account(real.or(home.cloned()).as_deref());
            if place.is_here() {
                protected.add_folder(&spill);
                if let Some(audit) = &options.audit {
                    protected.add_folder(&audit.folder);
                }
            }
        }
        self.workspace
            .settle(shell, TerminalOutput::new(spill, &options.limits), protected);
        state.place = Some(place);
    }

    /// The session's working directory, or the one that it began with where that is gone. Elsewhere nobody looks: it
    /// shows when something starts there. `None` before the place is known.
    fn working_folder(&self, state: &State, prepared: &mut Prepared) -> Result<Option<PathBuf>, SessionError> {
        let (Some(place), Some(folder)) = (&state.place, self.workspace.working_directory()) else {
            return Ok(self.options.cwd.clone());
        };
        if !place.is_here() {
            return Ok(Some(folder));
        }
        if folder.is_dir() {
            return match rustix::fs::access(&folder, rustix::fs::Access::EXEC_OK) {
                Ok(()) => Ok(Some(folder)),
                Err(_) => Err(SessionError::WorkingDirectoryClosed(folder)),
            };
        }
        if !place.folder.is_dir() {
            return Err(SessionError::WorkingDirectory(folder));
        }
        self.go_back(place, &folder, prepared);
        Ok(Some(place.folder.clone()))
    }

    /// What to do about a working directory elsewhere that is gone: the one that the session began with takes its place,
    /// unless that is the one.
    pub(super) fn folder_gone(&self, state: &State) -> Result<String, SessionError> {
        let folder = self.workspace.working_directory().unwrap_or_default();
        match &state.place {
            Some(place) if place.folder != folder => {
                let mut prepared = Prepared::default();
                self.go_back(place, &folder, &mut prepared);
                Ok(prepared.notices.concat())
            }
            _ => Err(SessionError::WorkingDirectory(folder)),
        }
    }

    /// Returns to the working directory that the session began with.
    fn go_back(&self, place: &Place, folder: &Path, prepared: &mut Prepared) {
        prepared.notices.push(format!(
            "the working directory {} is gone; the session went back to {}",
            folder.display(),
            place.folder.display()
        ));
        self.workspace.set_working_directory(place.folder.clone());
    }

    async fn start(
        &self,
        state: &mut State,
        folder: Option<&Path>,
        clock: &PhaseClock,
        prepared: &mut Prepared,
    ) -> Result<(), SessionError> {
        let Some(target) = state.target.clone() else {
            return Err(SessionError::Start("there is no target".to_owned()));
        };
        let live = if target.capabilities().is_here {
            self.build_environment(state)?;
            let folder = folder.unwrap_or(Path::new("/"));
            let live = here::open(&self.options, &*target, folder, &state.built, self.gate.clone()).await?;
            if self.options.mode == Mode::Strict {
                let work = PathBuf::from(live.agent.link().folder()).join("work");
                std::fs::create_dir(&work)
                    .map_err(|error| SessionError::Start(format!("{} cannot be made: {error}", work.display())))?;
                self.workspace.set_working_directory(work);
            }
            live
        } else {
            self.start_elsewhere(state, target, folder, clock, prepared).await?
        };
        self.workspace.attach(&live.agent);
        state.live = Some(live);
        Ok(())
    }

    /// Starts a supervisor on another target; on a new one, should this one be gone since it was last used.
    async fn start_elsewhere(
        &self,
        state: &mut State,
        target: Arc<dyn Target>,
        folder: Option<&Path>,
        clock: &PhaseClock,
        prepared: &mut Prepared,
    ) -> Result<Live, SessionError> {
        let was_used = state.place.is_some();
        let opened = if was_used && target.capabilities().ends_with_session {
            Err(SessionError::Backend(BackendError::Gone {
                target: self.options.target.clone(),
                reason: "it ended with what ran there".to_owned(),
                advice: "run the cell again".to_owned(),
            }))
        } else {
            elsewhere::open(&self.options, target, folder, self.gate.clone()).await
        };
        let (live, place) = match opened {
            Err(SessionError::Backend(BackendError::Gone { reason, .. })) if was_used => {
                self.leave(state).await;
                prepared.notices.push(format!(
                    "the target was opened anew ({reason}): files that earlier cells left there are lost, but for those in mounts"
                ));
                let target = self.options.backend.open(clock).await?;
                state.target = Some(target.clone());
                let cwd = self.options.cwd.as_deref();
                elsewhere::open(&self.options, target, cwd, self.gate.clone()).await
            }
            opened => opened,
        }
        .inspect_err(|error| debug!(%error, "the session did not begin"))?;
        if state.place.is_none() {
            self.settle(state, place);
        } else if self.options.mode == Mode::Strict {
            // Its private folder went with the last supervisor.
            self.workspace.set_working_directory(place.folder.clone());
            state.place = Some(place);
        }
        self.build_environment(state)?;
        Ok(live)
    }

    fn build_environment(&self, state: &mut State) -> Result<(), SessionError> {
        let Some(place) = &state.place else { return Ok(()) };
        let built = place.cell_environment(&self.options.passes);
        if built.dropped_hermes != state.built.dropped_hermes
            && let Some(line) = built.dropped_hermes_line()
        {
            debug!("{line}");
        }
        let terminal = place.terminal_environment(&self.options.passes);
        state.masker = Masker::new(place.masked_values(&built, &terminal, &self.options.passes))?;
        state.built = built;
        Ok(())
    }

    async fn start_kernel(&self, state: &mut State, cell: &Cell) -> Result<KernelStarting, SessionError> {
        self.build_environment(state)?;
        let Some(live) = &mut state.live else {
            return Err(SessionError::Start("there is no supervisor".to_owned()));
        };
        let specs = self.allowed(cell);
        let offer = Offer::new(self.host(cell), &specs);
        let link = live.agent.link();
        let stub = stub_source(&specs, link.token(), CallPath::of(&link.variables()));
        let folder = self.workspace.working_directory().unwrap_or_default();
        let start = live.start_of_kernel(&folder, &state.built, &stub);
        let limit = KERNEL_SILENT + 2 * self.options.reconnect_timeout;
        let kernel = LiveKernel {
            generation: start.generation,
            python: live.python.display().to_string(),
            count: 0,
            offer,
        };
        match live.agent.start_kernel(start, limit) {
            Ok(starting) => {
                live.kernel = Some(kernel);
                Ok(starting)
            }
            Err(error) => {
                self.has_kernel.store(false, Ordering::Release);
                Err(SessionError::Start(error.to_string()))
            }
        }
    }

    /// A kernel did not start, and to find that out took so long: sees to how the cell can run all the same.
    pub(super) async fn no_kernel(
        &self,
        state: &mut State,
        error: AgentError,
        took: Duration,
    ) -> Result<(), SessionError> {
        self.has_kernel.store(false, Ordering::Release);
        if let Some(live) = &mut state.live {
            live.kernel = None;
        }
        let AgentError::KernelStart(reason) = &error else {
            if matches!(error, AgentError::Silent) {
                self.abandon(state).await;
            }
            return Err(SessionError::Start(error.to_string()));
        };
        let alone = state.live.as_ref().and_then(|live| live.alone);
        let mut cost = took + alone.unwrap_or_default();
        // A script under a supervisor needs as many processes as a kernel.
        if alone.is_none() && reason.contains(NO_PROCESS) && self.may_be_alone(state) {
            let began = Instant::now();
            self.go_alone(state, reason, began.checked_sub(took).unwrap_or(began))
                .await?;
            cost += began.elapsed();
        }
        state.standalone = Some(Standalone::failed(reason, cost));
        Ok(())
    }
}

/// Whether cells run as standalone scripts for now; the outcome will say so.
fn runs_alone(state: &mut State, prepared: &mut Prepared) -> bool {
    let Some(standalone) = state.standalone.as_mut().filter(|standalone| !standalone.is_over()) else {
        return false;
    };
    prepared.notices.push(standalone.used());
    prepared.notices.extend(state.lost.take().as_deref().map(loss));
    true
}

fn loss(reason: &str) -> String {
    format!("variables and imports of earlier cells are lost ({reason})")
}
