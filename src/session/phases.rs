//! How long the steps before a cell took.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::cell::OutputSink;
use super::handle::phase;
use crate::backends::{Phase, Progress};
use crate::outcome::Phases;

/// Times the phases of a target's opening and passes notes on.
pub(super) struct PhaseClock {
    sink: Option<Arc<dyn OutputSink>>,
    state: Mutex<State>,
}

struct State {
    running: (Phase, Instant),
    phases: Phases,
}

impl PhaseClock {
    /// The clock runs for [`Phase::Connect`] from here on.
    pub(super) fn start(sink: Option<Arc<dyn OutputSink>>) -> Self {
        Self {
            sink,
            state: Mutex::new(State {
                running: (Phase::Connect, Instant::now()),
                phases: Phases::default(),
            }),
        }
    }

    /// Ends the running phase and adds all of them up.
    pub(super) fn stop(self, phases: &mut Phases) {
        let mut state = self.lock();
        state.end();
        let add = |total: &mut Option<f64>, more: Option<f64>| {
            if let Some(more) = more {
                *total = Some(total.unwrap_or(0.0) + more);
            }
        };
        add(&mut phases.connect, state.phases.connect);
        add(&mut phases.pull, state.phases.pull);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end(&mut self) {
        let (running, since) = self.running;
        let total = match running {
            Phase::Connect => &mut self.phases.connect,
            Phase::Pull => &mut self.phases.pull,
        };
        if let Some(seconds) = phase(since.elapsed()) {
            *total = Some(total.unwrap_or(0.0) + seconds);
        }
    }
}

impl Progress for PhaseClock {
    fn phase(&self, phase: Phase) {
        let mut state = self.lock();
        state.end();
        state.running = (phase, Instant::now());
    }

    fn note(&self, line: &str) {
        if let Some(sink) = &self.sink {
            sink.progress(line);
        }
    }
}
