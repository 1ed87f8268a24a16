//! How long, and how often, it is tried to come back to a session.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::format_seconds;
use crate::link::LinkError;

/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Time between two looks at the clock while something is waited for. More than twice of it has not passed for us:
/// we were stopped, or asleep.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// Links in a row that broke before they brought anything on, from which on that is named as the reason.
const SHORT_LIVED: u32 = 5;

/// Why a link came to its end.
#[derive(Debug)]
pub(super) enum Lost {
    /// It broke; another one can be made.
    Broken(String),
    /// The session has ended.
    Ended(LinkError),
    /// It did not begin: the place lets no process start another.
    NoProcess(String),
    /// It did not begin: the interpreter there cannot unpack what is compressed.
    NoZlib,
}

impl Lost {
    /// Why another link is to be made.
    ///
    /// # Errors
    /// When the session has ended.
    pub(super) fn reason(self) -> Result<String, LinkError> {
        match self {
            Self::Broken(reason) | Self::NoProcess(reason) => Ok(reason),
            Self::NoZlib => Ok("its Python has no zlib".to_owned()),
            Self::Ended(error) => Err(error),
        }
    }
}

/// How long and how often it has been tried to come back.
pub(super) struct Attempts {
    left: Duration,
    whole: Duration,
    pause: Duration,
    short_lived: u32,
}

impl Attempts {
    pub(super) fn new(whole: Duration) -> Self {
        Self {
            left: whole,
            whole,
            pause: PAUSES.0,
            short_lived: 0,
        }
    }

    /// A link has ended that had stood. Only one that brought something on counts as having come back.
    pub(super) fn lost(&mut self, progress: bool) {
        if progress {
            *self = Self::new(self.whole);
        } else {
            self.short_lived += 1;
        }
    }

    /// Waits until it is time for the next attempt.
    ///
    /// # Errors
    /// When there is no time left.
    pub(super) async fn next(&mut self, target: &str, reason: &str) -> Result<(), LinkError> {
        if let Some(error) = self.give_up(target, reason) {
            return Err(error);
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSES.1);
        tokio::time::sleep(pause).await;
        self.left = self.left.saturating_sub(pause);
        Ok(())
    }

    /// Makes an attempt. `None`: it failed, and `reason` says why.
    ///
    /// # Errors
    /// When the session has ended.
    pub(super) async fn attempt<T>(
        &mut self,
        limit: Duration,
        reason: &mut String,
        attempt: impl Future<Output = Result<T, Lost>>,
    ) -> Result<Option<T>, LinkError> {
        let is_cut_short = self.left < limit;
        match self.bounded(limit.min(self.left), attempt).await {
            Some(Ok(done)) => return Ok(Some(done)),
            Some(Err(lost)) => *reason = lost.reason()?,
            // What was found before says more than that our time was over.
            None if is_cut_short => {}
            None => "it did not answer in time".clone_into(reason),
        }
        Ok(None)
    }

    /// Lets an attempt go on for `limit` at most, and charges it. Time in which this process did not run does not count.
    pub(super) async fn bounded<T>(&mut self, limit: Duration, attempt: impl Future<Output = T>) -> Option<T> {
        let mut attempt = pin!(attempt);
        let mut limit = limit;
        loop {
            let began = Instant::now();
            let result = tokio::time::timeout(TICK.min(limit), &mut attempt).await;
            let passed = began.elapsed().min(2 * TICK);
            self.left = self.left.saturating_sub(passed);
            limit = limit.saturating_sub(passed);
            match result {
                Ok(result) => return Some(result),
                Err(_) if limit.is_zero() => return None,
                Err(_) => {}
            }
        }
    }

    /// The end of all attempts, when that has come.
    fn give_up(&self, target: &str, reason: &str) -> Option<LinkError> {
        self.left.is_zero().then(|| LinkError::Lost {
            target: target.to_owned(),
            patience: format_seconds(self.whole),
            reason: if self.short_lived >= SHORT_LIVED {
                format!(
                    "a stream was opened {} times and broke at once each time, the last time because {reason}; `transport: polled` needs no stream that lasts",
                    self.short_lived
                )
            } else {
                reason.to_owned()
            },
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_links_that_bring_something_on_give_new_time() {
        let mut attempts = Attempts::new(Duration::from_secs(1));
        assert_eq!(
            attempts
                .bounded(Duration::from_millis(20), std::future::pending::<()>())
                .await,
            None
        );
        let left = attempts.left;
        assert!(left < Duration::from_secs(1));
        attempts.lost(false);
        assert_eq!(attempts.left, left);
        attempts.next("exec:x", "").await.unwrap();
        assert!(attempts.left < left);
        attempts.lost(true);
        assert_eq!(attempts.left, Duration::from_secs(1));
        assert_eq!(attempts.bounded(Duration::from_secs(1), async { 7 }).await, Some(7));
    }

    #[test]
    fn streams_that_break_at_once_are_named_as_the_reason() {
        let mut attempts = Attempts::new(Duration::from_secs(60));
        assert!(attempts.give_up("exec:x", "the relay ended").is_none());
        attempts.left = Duration::ZERO;
        let said = attempts.give_up("exec:x", "the relay ended").unwrap().to_string();
        assert!(said.contains("within 60s: the relay ended; what ran there"), "{said}");
        for _ in 0..SHORT_LIVED {
            attempts.lost(false);
        }
        let said = attempts.give_up("exec:x", "the relay ended").unwrap().to_string();
        assert!(said.contains("opened 5 times and broke at once"), "{said}");
        assert!(said.contains("`transport: polled`"), "{said}");
    }

    #[tokio::test]
    async fn what_became_of_an_attempt_is_kept() {
        let mut attempts = Attempts::new(Duration::from_secs(30));
        let mut reason = "it broke".to_owned();
        let limit = Duration::from_secs(1);
        let broken = async { Err::<(), _>(Lost::Broken("there is no way".to_owned())) };
        assert!(attempts.attempt(limit, &mut reason, broken).await.unwrap().is_none());
        assert_eq!(reason, "there is no way");
        let works = async { Ok(3) };
        assert_eq!(attempts.attempt(limit, &mut reason, works).await.unwrap(), Some(3));
        attempts.left = Duration::ZERO;
        let said = attempts.next("exec:x", &reason).await.unwrap_err().to_string();
        assert!(said.contains("there is no way"), "{said}");
    }
}
