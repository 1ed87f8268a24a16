//! Attempts that failed, and whether another may succeed.

use std::error::Error;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::Instant;

use super::guard::Refused;

/// Waits before the second and third attempt.
const PAUSES: [Duration; 2] = [Duration::from_millis(400), Duration::from_millis(1600)];

/// The longest time that a server may make us wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// What to say of it.
    pub(super) sentence: String,
    /// Whether another attempt makes sense.
    pub(super) again: Again,
}

/// Whether another attempt makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It would end the same.
    No,
    /// After a moment.
    Soon,
    /// After a time that the server named.
    After(Duration),
}

impl Failure {
    pub(super) fn last(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            again: Again::No,
        }
    }

    /// A request for a page that got no answer, by way of the proxy of a variable or directly.
    pub(super) fn of_page(error: &reqwest::Error, proxy: Option<&str>) -> Self {
        let mut failure = Self::of_transport(error);
        if !error.is_connect() {
            return failure;
        }
        let advice = match proxy {
            Some(variable) => format!("the way there leads through {}; check that", proxy_of(variable)),
            // Such a failure says already what to do.
            None if failure.again == Again::No => return failure,
            None if failure.sentence.contains("lookup") || failure.sentence.contains("name") => {
                "check the name of the host, and whether names can be looked up here".to_owned()
            }
            None => "check the address and its port, or try again later".to_owned(),
        };
        failure.sentence = format!("{}; {advice}", failure.sentence);
        failure
    }

    /// A request that got no answer, or whose answer broke off.
    pub(super) fn of_transport(error: &reqwest::Error) -> Self {
        let mut source: Option<&(dyn Error + 'static)> = Some(error);
        let mut deepest = String::new();
        let mut is_damaged = false;
        while let Some(current) = source {
            if let Some(refused) = current.downcast_ref::<Refused>() {
                return Self::last(refused.to_string());
            }
            is_damaged |= current
                .downcast_ref::<io::Error>()
                .is_some_and(|error| matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput));
            deepest = current.to_string();
            source = current.source();
        }
        let deepest = deepest.trim_end_matches('.').to_owned();
        if error.is_timeout() {
            let stage = if error.is_connect() { "connection" } else { "answer" };
            // It has had its time; another attempt would double it.
            return Self::last(format!("there was no {stage} in time; try again later"));
        }
        if error.is_connect() {
            if deepest.contains("certificate") {
                return Self::last(format!(
                    "no connection can be made: {deepest}; if the host is to be trusted, SSL_CERT_FILE names the \
                     certificates that are"
                ));
            }
            return Self {
                sentence: format!("no connection can be made: {deepest}"),
                again: Again::Soon,
            };
        }
        // The client calls it decoding, too, when what it decodes breaks off.
        if error.is_decode() && is_damaged {
            return Self::last(format!("the answer cannot be decoded: {deepest}"));
        }
        if error.is_builder() {
            return Self::last(format!("the request cannot be made: {deepest}"));
        }
        Self {
            sentence: format!("the connection broke off: {deepest}"),
            again: Again::Soon,
        }
    }
}

/// How a message names the proxy of a variable; its address may hold a password.
pub(super) fn proxy_of(variable: &str) -> String {
    format!(
        "the proxy in the variable {variable} (or {})",
        variable.to_ascii_uppercase()
    )
}

/// Whether another attempt makes sense after an answer of that status.
pub(super) fn again_after(status: StatusCode, headers: &HeaderMap) -> Again {
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() || status == StatusCode::NOT_IMPLEMENTED {
        return Again::No;
    }
    match headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
        Some(text) => retry_after(text, SystemTime::now()).map_or(Again::Soon, Again::After),
        None => Again::Soon,
    }
}

/// The time that a `Retry-After` stands for: seconds, or a date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The wait before attempt number `next` (from 1); `None` when there is to be none, or none that the deadline leaves.
fn pause(again: Again, next: usize, left: Duration) -> Option<Duration> {
    let usual = *PAUSES.get(next.checked_sub(1)?)?;
    let pause = match again {
        Again::No => return None,
        Again::Soon => usual,
        Again::After(asked) if asked > LONGEST_PAUSE => return None,
        Again::After(asked) => asked.max(Duration::from_millis(50)),
    };
    (pause < left).then_some(pause)
}

/// Tries until an attempt succeeds or no other makes sense. Only for what may be done twice.
pub(super) async fn with_attempts<T, F: Future<Output = Result<T, Failure>>>(
    deadline: Instant,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Failure> {
    let mut number = 1;
    loop {
        let mut failure = match attempt().await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(pause) = pause(failure.again, number, left) else {
            if let Again::After(asked) = failure.again {
                failure.sentence = format!("{} (it asks to wait {} s)", failure.sentence, asked.as_secs());
            }
            return Err(failure);
        };
        tracing::debug!(failure = failure.sentence, ?pause, "a web request is tried again");
        tokio::time::sleep(pause).await;
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, expected) in [
            ("3", Some(3)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(retry_after(text, now), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn attempts_are_few_and_waits_are_short() {
        let hour = Duration::from_secs(3600);
        let seconds = Duration::from_secs;
        for (again, next, left, expected) in [
            (Again::No, 1, hour, None),
            (Again::Soon, 1, hour, Some(PAUSES[0])),
            (Again::Soon, 2, hour, Some(PAUSES[1])),
            (Again::Soon, 3, hour, None),
            (Again::Soon, 1, Duration::from_millis(100), None),
            (Again::After(seconds(5)), 1, hour, Some(seconds(5))),
            (Again::After(seconds(0)), 1, hour, Some(Duration::from_millis(50))),
            (Again::After(seconds(21)), 1, hour, None),
            (Again::After(seconds(5)), 1, seconds(4), None),
        ] {
            assert_eq!(pause(again, next, left), expected, "{again:?} {next} {left:?}");
        }
    }

    #[test]
    fn only_passing_trouble_is_tried_again() {
        let mut headers = HeaderMap::new();
        for (status, expected) in [
            (200, Again::No),
            (404, Again::No),
            (401, Again::No),
            (429, Again::Soon),
            (500, Again::Soon),
            (501, Again::No),
            (503, Again::Soon),
        ] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            assert_eq!(again_after(status, &headers), expected, "{status}");
        }
        headers.insert(RETRY_AFTER, reqwest::header::HeaderValue::from_static("7"));
        let after = again_after(StatusCode::TOO_MANY_REQUESTS, &headers);
        assert_eq!(after, Again::After(Duration::from_secs(7)));
    }
}
