//! What must be there before a cell can run: the supervisor, the kernel, and the truth about what was lost.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::debug;

use super::cell::Cell;
use super::error::SessionError;
use super::handle::{Inner, Prepared, State, phase};
use super::live::{Live, LiveKernel, Offer};
use crate::config::Mode;
use crate::kernel::AgentError;
use crate::outcome::Phases;
use crate::output::Masker;
use crate::tools::{CallPath, stub_source};

impl Inner {
    /// Sees that a supervisor is there, and a kernel where one is kept.
    pub(super) async fn prepare(
        &self,
        state: &mut State,
        cell: &Cell,
        phases: &mut Phases,
    ) -> Result<Prepared, SessionError> {
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
            return match rustix::fs::access(&folder, rustix::fs::Access::EXEC_OK) {
                Ok(()) => Ok(folder),
                Err(_) => Err(SessionError::WorkingDirectoryClosed(folder)),
            };
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
                let target = self.options.backend.open(&crate::backends::Silent).await?;
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
        let specs = self.allowed(cell);
        let offer = Offer::new(self.host(cell), &specs);
        let link = live.agent.link();
        let stub = stub_source(&specs, link.token(), CallPath::of(&link.variables()));
        let start = live.start_of_kernel(&folder, &state.built, &stub);
        match live.agent.start_kernel(start).await {
            Ok(info) => {
                live.kernel = Some(LiveKernel { info, count: 0, offer });
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
}
