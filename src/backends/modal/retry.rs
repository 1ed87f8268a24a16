//! When a call that failed is made again. Pure: told what happened and how long it took, it says what to do.

use std::time::Duration;

use tonic::Code;

/// How often and how patiently calls of one kind are made again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Attempts beyond the first that may fail in a row; `None`: any number.
    pub(super) retries: Option<u32>,
    /// The pause before the first of them. Each further one is twice as long, up to `longest`.
    pub(super) first: Duration,
    pub(super) longest: Duration,
    /// The time of one attempt.
    pub(super) attempt: Duration,
    /// The time of all, pauses included; `None`: as long as it takes.
    pub(super) total: Option<Duration>,
}

impl Policy {
    /// Calls of the control plane.
    pub(super) const CONTROL: Self = Self {
        retries: Some(3),
        first: Duration::from_millis(100),
        longest: Duration::from_secs(1),
        attempt: Duration::from_secs(20),
        total: Some(Duration::from_secs(60)),
    };
    /// Calls that the control plane answers once a sandbox has a place to run.
    pub(super) const CREATE: Self = Self {
        attempt: Duration::from_secs(180),
        total: Some(Duration::from_secs(300)),
        ..Self::CONTROL
    };
    /// Questions whose answer is wanted soon or not at all.
    pub(super) const QUESTION: Self = Self {
        attempt: Duration::from_secs(5),
        total: Some(Duration::from_secs(8)),
        ..Self::CONTROL
    };
    /// Calls of a worker.
    pub(super) const ROUTER: Self = Self {
        retries: Some(10),
        first: Duration::from_millis(10),
        longest: Duration::from_secs(2),
        attempt: Duration::from_secs(20),
        total: Some(Duration::from_secs(60)),
    };
    /// Streams that stay open for as long as there is something to carry.
    pub(super) const STREAM: Self = Self {
        total: None,
        ..Self::ROUTER
    };
    /// Waits for an end that may be far away.
    pub(super) const WAIT: Self = Self {
        retries: None,
        first: Duration::from_secs(1),
        longest: Duration::from_secs(1),
        attempt: Duration::from_secs(60),
        total: None,
    };
}

/// What became of an attempt, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) code: Code,
    /// The server wants nothing of us for so long.
    pub(super) retry_after: Option<Duration>,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The same again, after this time.
    After(Duration),
    /// The same again, once access was asked for anew.
    Renewed,
    /// Nothing.
    GiveUp,
}

/// The attempts of one call, or of one stream that is opened again and again.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    policy: Policy,
    /// Attempts that failed in a row, but for those that the server told to wait.
    pub(super) failed: u32,
    /// Attempts that the server told to wait.
    pub(super) throttled: u32,
    pause: Duration,
    renewed: bool,
}

/// The least time that is waited when the server asks for patience.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

impl Retry {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            failed: 0,
            throttled: 0,
            pause: policy.first,
            renewed: false,
        }
    }

    /// Something was brought on: what failed before does not count any more.
    pub(super) fn progress(&mut self) {
        self.failed = 0;
        self.pause = self.policy.first;
        self.renewed = false;
    }

    /// The time that is left for the next attempt when `elapsed` has passed since the first one began.
    pub(super) fn time(&self, elapsed: Duration) -> Duration {
        let left = self.policy.total.map(|total| total.saturating_sub(elapsed));
        left.map_or(self.policy.attempt, |left| left.min(self.policy.attempt))
    }

    /// An attempt failed, `elapsed` after the first one began. `chance`, from 0 to 1, keeps many clients from coming back at once.
    pub(super) fn next(&mut self, failure: Failed, elapsed: Duration, chance: f64) -> Next {
        let fits = |pause: Duration| self.policy.total.is_none_or(|total| elapsed + pause < total);
        if let Some(patience) = failure.retry_after {
            let pause = patience.max(LEAST_PATIENCE).mul_f64(1.0 + chance / 10.0);
            if !fits(pause) {
                return Next::GiveUp;
            }
            self.throttled += 1;
            return Next::After(pause);
        }
        if failure.code == Code::Unauthenticated && !self.renewed {
            self.renewed = true;
            return Next::Renewed;
        }
        let may_pass = matches!(
            failure.code,
            Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Internal | Code::Unavailable
        );
        let is_over = self.policy.retries.is_some_and(|retries| self.failed >= retries);
        let pause = self.pause.mul_f64(0.8 + chance * 0.4);
        if !may_pass || is_over || !fits(pause) {
            return Next::GiveUp;
        }
        self.failed += 1;
        self.pause = (2 * self.pause).min(self.policy.longest);
        Next::After(pause)
    }
}

/// A number from 0 to 1.
pub(super) fn chance() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers nobody spreads out, and nothing else is lost.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::ZERO;

    fn failed(code: Code) -> Failed {
        Failed {
            code,
            retry_after: None,
        }
    }

    fn wait(seconds: f64) -> Failed {
        Failed {
            code: Code::ResourceExhausted,
            retry_after: Some(Duration::from_secs_f64(seconds)),
        }
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (code, again) in [
            (Code::Cancelled, true),
            (Code::Unknown, true),
            (Code::DeadlineExceeded, true),
            (Code::Internal, true),
            (Code::Unavailable, true),
            (Code::InvalidArgument, false),
            (Code::NotFound, false),
            (Code::AlreadyExists, false),
            (Code::PermissionDenied, false),
            (Code::ResourceExhausted, false),
            (Code::FailedPrecondition, false),
            (Code::Aborted, false),
            (Code::OutOfRange, false),
            (Code::Unimplemented, false),
            (Code::DataLoss, false),
        ] {
            for policy in [Policy::CONTROL, Policy::ROUTER, Policy::WAIT] {
                let next = Retry::new(policy).next(failed(code), ZERO, 0.5);
                assert_eq!(matches!(next, Next::After(_)), again, "{code:?}");
                assert_eq!(next == Next::GiveUp, !again, "{code:?}");
            }
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_the_attempts() {
        for (policy, pauses) in [
            (Policy::CONTROL, &[100, 200, 400][..]),
            (Policy::ROUTER, &[10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000]),
        ] {
            let mut retry = Retry::new(policy);
            for pause in pauses {
                let next = retry.next(failed(Code::Unavailable), ZERO, 0.5);
                assert_eq!(next, Next::After(Duration::from_millis(*pause)));
            }
            assert_eq!(retry.next(failed(Code::Unavailable), ZERO, 0.5), Next::GiveUp);
        }
        let mut endless = Retry::new(Policy::WAIT);
        for _ in 0..1000 {
            let next = endless.next(failed(Code::DeadlineExceeded), Duration::from_secs(9999), 0.5);
            assert_eq!(next, Next::After(Duration::from_secs(1)));
        }
    }

    #[test]
    fn clients_spread_out_within_bounds() {
        let pause = |chance| Retry::new(Policy::CONTROL).next(failed(Code::Internal), ZERO, chance);
        assert_eq!(pause(0.0), Next::After(Duration::from_millis(80)));
        assert_eq!(pause(1.0), Next::After(Duration::from_millis(120)));
        for _ in 0..100 {
            assert!((0.0..=1.0).contains(&chance()));
        }
    }

    #[test]
    fn what_was_brought_on_gives_new_attempts() {
        let mut retry = Retry::new(Policy::STREAM);
        for _ in 0..1000 {
            for _ in 0..10 {
                assert!(matches!(
                    retry.next(failed(Code::Unavailable), ZERO, 0.5),
                    Next::After(_)
                ));
            }
            retry.progress();
        }
        assert_eq!(
            retry.next(failed(Code::Unavailable), ZERO, 0.5),
            Next::After(Duration::from_millis(10))
        );
    }

    #[test]
    fn patience_that_is_asked_for_is_no_attempt_and_has_an_end() {
        let mut retry = Retry::new(Policy::CONTROL);
        for _ in 0..50 {
            assert_eq!(retry.next(wait(2.0), ZERO, 0.0), Next::After(Duration::from_secs(2)));
        }
        assert_eq!((retry.failed, retry.throttled), (0, 50));
        // It comes never sooner than it is asked to, and never at once.
        assert_eq!(
            retry.next(wait(2.0), ZERO, 1.0),
            Next::After(Duration::from_millis(2200))
        );
        assert_eq!(retry.next(wait(0.0), ZERO, 0.0), Next::After(LEAST_PATIENCE));
        assert_eq!(retry.next(wait(2.0), Duration::from_secs(59), 0.0), Next::GiveUp);
        assert_eq!(retry.next(wait(3600.0), ZERO, 0.0), Next::GiveUp);
    }

    #[test]
    fn access_is_asked_for_anew_once_for_each_refusal() {
        let mut retry = Retry::new(Policy::STREAM);
        assert_eq!(retry.next(failed(Code::Unauthenticated), ZERO, 0.5), Next::Renewed);
        assert_eq!(retry.next(failed(Code::Unauthenticated), ZERO, 0.5), Next::GiveUp);
        retry.progress();
        assert_eq!(retry.next(failed(Code::Unauthenticated), ZERO, 0.5), Next::Renewed);
    }

    #[test]
    fn all_attempts_together_are_bounded() {
        let mut retry = Retry::new(Policy::CONTROL);
        assert_eq!(retry.time(ZERO), Duration::from_secs(20));
        assert_eq!(retry.time(Duration::from_secs(55)), Duration::from_secs(5));
        assert_eq!(retry.time(Duration::from_secs(70)), ZERO);
        let late = Duration::from_secs(60);
        assert_eq!(retry.next(failed(Code::Unavailable), late, 0.5), Next::GiveUp);
        assert_eq!(Retry::new(Policy::WAIT).time(late), Duration::from_secs(60));
    }
}
