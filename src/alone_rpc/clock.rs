//! The clock of a cell that stands alone, and that it may stand still.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// When a clock is to stand still, and for how long at most; zero: that it goes on.
pub(super) type Holds = mpsc::UnboundedReceiver<(Instant, Duration)>;

/// The clock of a cell: how long it may run on.
pub(super) struct Clock {
    deadline: Option<Instant>,
    /// What is left, and since when it stands still.
    standing: Option<(Duration, Instant)>,
    /// How long it stood still.
    pub(super) stood: Duration,
}

impl Clock {
    /// One that runs until then.
    pub(super) fn until(deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            standing: None,
            stood: Duration::ZERO,
        }
    }

    /// Stops it for so long at most, or lets it go on (zero).
    pub(super) fn hold(&mut self, at: Instant, at_most: Duration) {
        let Some(deadline) = self.deadline else { return };
        if at_most.is_zero() {
            self.go_on(at);
        } else {
            if self.standing.is_none() {
                self.standing = Some((deadline.saturating_duration_since(at), at));
            }
            self.deadline = at.checked_add(at_most);
        }
    }

    /// Lets it go on, if it stands still.
    pub(super) fn go_on(&mut self, now: Instant) {
        if let Some((left, since)) = self.standing.take() {
            self.stood += now.saturating_duration_since(since);
            self.deadline = now.checked_add(left);
        }
    }

    /// Its deadline has come: whether it is the cell's own, and not that of a clock that stands still.
    pub(super) fn has_run_out(&mut self, now: Instant) -> bool {
        let stands = self.standing.is_some();
        self.go_on(now);
        !stands
    }

    /// The deadline; a far one where there is none.
    pub(super) fn wakes_at(&self, began: Instant) -> Instant {
        self.deadline.unwrap_or(began + Duration::from_secs(86_400 * 365))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_that_it_stands_still_does_not_count() {
        let began = Instant::now();
        let mut clock = Clock::until(Some(began + 2 * SECOND));
        clock.hold(began + SECOND, 60 * SECOND);
        assert_eq!(clock.wakes_at(began), began + 61 * SECOND);
        // Another question, while the first one waits.
        clock.hold(began + 5 * SECOND, 60 * SECOND);
        assert_eq!(clock.wakes_at(began), began + 65 * SECOND);
        clock.hold(began + 9 * SECOND, Duration::ZERO);
        assert_eq!(clock.wakes_at(began), began + 10 * SECOND);
        assert_eq!(clock.stood, 8 * SECOND);
        // It goes already.
        clock.hold(began + 9 * SECOND, Duration::ZERO);
        assert_eq!((clock.wakes_at(began), clock.stood), (began + 10 * SECOND, 8 * SECOND));
        assert!(clock.has_run_out(began + 10 * SECOND));
    }

    #[test]
    fn it_does_not_stand_still_for_ever() {
        let began = Instant::now();
        let mut clock = Clock::until(Some(began + 2 * SECOND));
        clock.hold(began, 60 * SECOND);
        assert!(!clock.has_run_out(began + 60 * SECOND));
        assert_eq!(clock.wakes_at(began), began + 62 * SECOND);
        assert!(clock.has_run_out(began + 62 * SECOND));
    }
}
