//! Why there is no kernel, and when one is tried again.

use std::time::{Duration, Instant};

/// What failed is tried again after so many times the time that it took: what prevents a kernel may pass (a disk that
/// is full, a limit of processes), and where it does not the attempts cost a tenth of the time at most.
const PATIENCE: u32 = 10;

/// Cells run as standalone scripts.
pub(super) struct Standalone {
    reason: String,
    /// `None`: nobody wants a kernel.
    try_again: Option<Instant>,
    /// Whether a cell ran so: at least the one that found it out does.
    was_used: bool,
}

impl Standalone {
    /// By configuration.
    pub(super) fn switched_off() -> Self {
        Self {
            reason: "the kernel is switched off (code_execution.kernel: off)".to_owned(),
            try_again: None,
            was_used: false,
        }
    }

    /// A kernel did not start; to find that out `took` so long.
    pub(super) fn failed(reason: &str, took: Duration) -> Self {
        Self {
            reason: format!("the Python kernel could not be started: {reason}"),
            try_again: Some(Instant::now() + took * PATIENCE),
            was_used: false,
        }
    }

    /// Whether it is time to try whether a kernel starts now.
    pub(super) fn is_over(&self) -> bool {
        self.was_used && self.try_again.is_some_and(|at| Instant::now() >= at)
    }

    /// A cell runs so: what its outcome says.
    pub(super) fn used(&mut self) -> String {
        self.was_used = true;
        format!(
            "{}; the cell ran as a standalone script, and nothing of it is kept for the next",
            self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_again_in_proportion_to_its_cost() {
        let is_over_after_one = |mut standalone: Standalone| {
            assert!(!standalone.is_over());
            standalone.used();
            standalone.is_over()
        };
        assert!(!is_over_after_one(Standalone::switched_off()));
        assert!(is_over_after_one(Standalone::failed("no room", Duration::ZERO)));
        assert!(!is_over_after_one(Standalone::failed(
            "not ready in 30 s",
            Duration::from_secs(30)
        )));
    }
}
