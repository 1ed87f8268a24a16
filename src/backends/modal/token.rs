//! Short-lived tokens: when they end, and when to ask for the next one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use crate::environment::Secret;

/// How long a token counts as good that does not say.
const UNSAID: Duration = Duration::from_secs(20 * 60);

/// The shortest and the longest pause after an attempt to renew it that failed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// A token, and the time in which it is good.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) value: Secret,
    ends: Instant,
    due: Instant,
    pause: Duration,
}

/// What to do with a token before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    Good,
    /// It is good, and it is time for the next one.
    Due,
    /// It is not good any more.
    Ended,
}

impl Token {
    /// A token that came now.
    pub(super) fn new(value: Secret, chance: f64) -> Self {
        let left = match expiry(value.reveal()) {
            Some(ends) => ends.saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            None => UNSAID,
        };
        Self::lasting(value, left, Instant::now(), chance)
    }

    /// It is renewed at half of its life, or a little later.
    fn lasting(value: Secret, left: Duration, now: Instant, chance: f64) -> Self {
        Self {
            value,
            ends: now + left,
            due: now + left.mul_f64(0.5 + chance / 10.0),
            pause: PAUSES.0,
        }
    }

    pub(super) fn worth(&self, now: Instant) -> Worth {
        match now {
            _ if now >= self.ends => Worth::Ended,
            _ if now >= self.due => Worth::Due,
            _ => Worth::Good,
        }
    }

    /// The next one could not be had: this one has to do for a while.
    pub(super) fn renewal_failed(&mut self, now: Instant) {
        self.due = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSES.1);
    }
}

/// When a token ends, since 1970; `None` where it does not say.
fn expiry(token: &str) -> Option<Duration> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_when_it_ends() {
        for (text, ends) in [
            (token(r#"{"exp": 1800000000}"#), Some(1_800_000_000.0)),
            (token(r#"{"exp": 1.5}"#), Some(1.5)),
            (token("{}"), None),
            (token(r#"{"exp": "soon"}"#), None),
            (token(r#"{"exp": -1}"#), None),
            (token("no json"), None),
            ("opaque".to_owned(), None),
            (String::new(), None),
            ("a.%%%.b".to_owned(), None),
        ] {
            assert_eq!(expiry(&text).map(|ends| ends.as_secs_f64()), ends, "{text}");
        }
        let padded = format!("{}==", token(r#"{"exp":12}"#).replace(".c2ln", ""));
        assert_eq!(expiry(&padded).unwrap(), Duration::from_secs(12));
    }

    #[test]
    fn it_is_renewed_at_half_of_its_life() {
        let now = Instant::now();
        let life = Duration::from_secs(100);
        for (chance, at) in [(0.0, 50), (1.0, 60)] {
            let token = Token::lasting(Secret::new("t"), life, now, chance);
            for (second, worth) in [
                (0, Worth::Good),
                (at - 1, Worth::Good),
                (at, Worth::Due),
                (99, Worth::Due),
                (100, Worth::Ended),
            ] {
                assert_eq!(
                    token.worth(now + Duration::from_secs(second)),
                    worth,
                    "{chance} {second}"
                );
            }
        }
        // One that has ended by our clock is asked for anew each time, and used all the same when it has just come.
        let ended = Token::new(Secret::new(token(r#"{"exp": 5}"#)), 0.5);
        assert_eq!(ended.worth(Instant::now()), Worth::Ended);
    }

    #[test]
    fn a_renewal_that_fails_is_tried_again_with_patience() {
        let now = Instant::now();
        let mut token = Token::lasting(Secret::new("t"), Duration::from_secs(1000), now, 0.0);
        let mut at = now + Duration::from_secs(500);
        for pause in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            assert_eq!(token.worth(at), Worth::Due);
            token.renewal_failed(at);
            assert_eq!(token.worth(at + Duration::from_millis(1)), Worth::Good);
            at += Duration::from_secs_f64(pause);
        }
    }

    #[test]
    fn it_is_never_shown() {
        let shown = format!("{:?}", Token::new(Secret::new("hunter2"), 0.5));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
