//! Requests to the gateway and what becomes of them.

use std::time::{Duration, SystemTime};

use http::Uri;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use super::super::dialing::ProxyOf;
use super::super::trouble::{Proxy, Trouble, deepest};
use super::super::waiting::{Wait, Waits};
use super::credentials::Gateway;

/// The header that makes the same request the same thing.
const IDEMPOTENCY_KEY: &str = "x-idempotency-key";

/// Bytes of an answer that are taken.
const LONGEST: usize = 64 << 20;

/// The first and the longest pause before a request is made again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// The longest message of the gateway's that is repeated, in characters.
const LONGEST_MESSAGE: usize = 600;

/// Asks the gateway.
pub(super) struct Client {
    http: reqwest::Client,
    origin: String,
    address: Uri,
    /// Through which it is asked.
    proxy: Option<Proxy>,
    /// Where the token came from.
    pub(super) said_by: String,
    /// What its requests wait for.
    pub(super) waits: Waits,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Option<Vec<u8>>,
    /// What makes it the same request when it is made again, where its path does not.
    pub(super) key: Option<String>,
}

impl Request {
    pub(super) fn get(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            key: None,
        }
    }

    pub(super) fn post(path: String, body: &Value) -> Self {
        Self {
            method: Method::POST,
            path,
            body: Some(body.to_string().into_bytes()),
            key: None,
        }
    }
}

/// How long an answer is waited for, and how long it is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) attempt: Duration,
    pub(super) total: Duration,
}

/// Why there is no answer that is fit.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// The request did not leave.
    Unsent(Trouble),
    /// Nobody knows whether it arrived, or what came of it.
    Unanswered(String),
    /// It was refused, or failed there.
    Answered(Refusal),
}

/// An answer that is an error.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal {
    pub(super) code: u16,
    /// What the gateway says, and its word for it.
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    /// Whether it is for want of credit.
    pub(super) is_quota: bool,
}

impl Failed {
    /// Whether the same request may do better.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unsent(trouble) => trouble.may_pass,
            Self::Unanswered(_) => true,
            Self::Answered(refusal) => {
                !refusal.is_quota && (matches!(refusal.code, 408 | 409 | 425 | 429 | 500 | 502..=599))
            }
        }
    }

    /// Whether what was asked for may have been done.
    pub(super) fn may_have_arrived(&self) -> bool {
        match self {
            Self::Unsent(_) => false,
            Self::Unanswered(_) => true,
            Self::Answered(refusal) => matches!(refusal.code, 408 | 409 | 500..=599),
        }
    }

    /// Whether what was asked for is not there.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Answered(refusal) if matches!(refusal.code, 404 | 410))
    }

    /// What happened in a few words.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Unsent(trouble) => format!("the gateway does not answer: {trouble}"),
            Self::Unanswered(reason) => format!("the gateway does not answer: {reason}"),
            Self::Answered(Refusal { code: 429, message, .. }) => {
                format!("the gateway asks for patience (rate limit): {message}")
            }
            Self::Answered(Refusal { code, message, .. }) => format!("the gateway says: {message} ({code})"),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answered(refusal) => refusal.retry_after,
            _ => None,
        }
    }
}

/// When a request is made again.
pub(super) struct Again<'a> {
    until: Instant,
    pause: Duration,
    waits: &'a Waits,
    /// Whether all attempts were turned away before anything was done.
    was_turned_away: bool,
}

impl<'a> Again<'a> {
    pub(super) fn new(total: Duration, waits: &'a Waits) -> Self {
        Self {
            until: Instant::now() + total,
            pause: PAUSES.0,
            waits,
            was_turned_away: true,
        }
    }

    /// Waits for the next attempt after this failure.
    ///
    /// # Errors
    /// The failure itself, where it stays, or there is no time left.
    pub(super) async fn after(&mut self, failed: Failed) -> Result<(), Failed> {
        let Some(pause) = self.next(&failed, Instant::now()) else {
            return Err(failed);
        };
        debug!(?failed, ?pause, "a request to the gateway is made again");
        self.was_turned_away &= !failed.may_have_arrived();
        let line = format!("{}; trying again", failed.line());
        let wait = match self.was_turned_away {
            true => Wait::leaving_nothing(line),
            false => Wait::telling(line),
        };
        self.waits.pause(pause, wait).await;
        Ok(())
    }

    fn next(&mut self, failed: &Failed, now: Instant) -> Option<Duration> {
        let pause = failed.retry_after().unwrap_or(self.pause);
        self.pause = (2 * self.pause).min(PAUSES.1);
        let is_late = now.checked_add(pause).is_none_or(|then| then > self.until);
        (failed.may_pass() && !is_late).then_some(pause)
    }
}

impl Client {
    /// # Errors
    /// Where no request can be made at all.
    pub(super) fn new(gateway: &Gateway) -> Result<Self, Trouble> {
        let bearer = format!("Bearer {}", gateway.token.reveal());
        let mut bearer = HeaderValue::from_str(&bearer)
            .map_err(|_| Trouble::lasting("the token cannot be sent".to_owned(), "copy it again"))?;
        bearer.set_sensitive(true);
        let headers = HeaderMap::from_iter([
            (AUTHORIZATION, bearer),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ]);
        let address: Uri = gateway.origin.parse().unwrap_or_default();
        let http = crate::web::api_client(&gateway.proxies, headers)
            .map_err(|reason| Trouble::lasting(reason, "correct that, or install the system's certificates"));
        Ok(Self {
            proxy: ProxyOf::new(&gateway.proxies)?.named(&address),
            http: http?,
            address,
            origin: gateway.origin.clone(),
            said_by: gateway.said_by.clone(),
            waits: Waits::new(),
        })
    }

    /// Where the gateway is.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// The same for messages.
    pub(super) fn server(&self) -> &str {
        self.origin.split_once("://").map_or(&*self.origin, |(_, rest)| rest)
    }

    /// Makes a request until it is answered. It must be one that may be made twice.
    pub(super) async fn ask(&self, request: &Request, patience: Patience) -> Result<Value, Failed> {
        let mut again = Again::new(patience.total, &self.waits);
        loop {
            match self.once(request, patience.attempt).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => again.after(failed).await?,
            }
        }
    }

    /// Makes a request once.
    pub(super) async fn once(&self, request: &Request, limit: Duration) -> Result<Value, Failed> {
        let answered = tokio::time::timeout(limit, self.send(request)).await;
        answered.unwrap_or_else(|_| Err(Failed::Unanswered(format!("no answer within {} s", limit.as_secs()))))
    }

    async fn send(&self, request: &Request) -> Result<Value, Failed> {
        let url = format!("{}{}", self.origin, request.path);
        let mut builder = self.http.request(request.method.clone(), url);
        if let Some(key) = &request.key {
            builder = builder.header(IDEMPOTENCY_KEY, key);
        }
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        let response = builder.send().await.map_err(|error| {
            if error.is_connect() || error.is_builder() {
                let server = super::super::connection::named(&self.address);
                Failed::Unsent(Trouble::of(&error, &server, self.proxy.as_ref()))
            } else {
                Failed::Unanswered(deepest(&error))
            }
        })?;
        let (code, retry_after) = (response.status(), retry_after(response.headers()));
        debug!(method = %request.method, path = request.path, code = code.as_u16(), "the gateway answers");
        let body = read(response).await?;
        if code.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|_| Failed::Unanswered("its answer is no JSON: is this a gateway?".to_owned()));
        }
        Err(Failed::Answered(refusal(code.as_u16(), &body, retry_after)))
    }
}

async fn read(mut response: Response) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) if body.len() + piece.len() <= LONGEST => body.extend_from_slice(&piece),
            Ok(Some(_)) => return Err(Failed::Unanswered(format!("its answer is longer than {LONGEST} bytes"))),
            Ok(None) => return Ok(body),
            Err(error) => return Err(Failed::Unanswered(deepest(&error))),
        }
    }
}

fn refusal(code: u16, body: &[u8], retry_after: Option<Duration>) -> Refusal {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default().trim();
    // An error may be an object of its own.
    let inner = json
        .pointer("/error/message")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let word = text("code");
    let mut message = [text("error"), inner, text("message"), word]
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default()
        .to_owned();
    if message.is_empty() {
        message = String::from_utf8_lossy(body).trim().to_owned();
        // A page of whoever stands before the gateway says nothing.
        if message.is_empty() || message.starts_with('<') {
            message = format!("HTTP status {code}");
        }
    }
    let said = format!("{word} {message}").to_ascii_lowercase();
    let is_quota = code == 402
        || matches!(code, 403 | 429)
            && ["quota", "credit", "billing", "payment", "insufficient"]
                .iter()
                .any(|word| said.contains(word));
    if message.chars().count() > LONGEST_MESSAGE {
        message = message.chars().take(LONGEST_MESSAGE).chain(['…']).collect();
    }
    Refusal {
        code,
        message,
        retry_after,
        is_quota,
    }
}

/// How long the gateway wants to be left alone: seconds, or a moment.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let moment = httpdate::parse_http_date(text).ok()?;
    Some(moment.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_says_is_found() {
        for (code, body, message, is_quota) in [
            (
                401,
                r#"{"error": "bad token", "code": "unauthorized"}"#,
                "bad token",
                false,
            ),
            (400, r#"{"message": "no image"}"#, "no image", false),
            (400, r#"{"code": "bad_image"}"#, "bad_image", false),
            (400, r#"{"error": {"message": "inside"}}"#, "inside", false),
            (402, "{}", "{}", true),
            (429, r#"{"error": "slow down"}"#, "slow down", false),
            (429, r#"{"error": "no", "code": "quota_exceeded"}"#, "no", true),
            (
                403,
                r#"{"error": "insufficient credits"}"#,
                "insufficient credits",
                true,
            ),
            (502, "<html>bad gateway</html>", "HTTP status 502", false),
            (500, "plain words", "plain words", false),
            (503, "", "HTTP status 503", false),
        ] {
            let found = refusal(code, body.as_bytes(), None);
            assert_eq!(
                (found.message.as_str(), found.is_quota),
                (message, is_quota),
                "{code} {body}"
            );
        }
        assert!(refusal(500, &[b'x'; 5000], None).message.len() < 1000);
    }

    #[test]
    fn what_is_tried_again_and_what_may_have_been_done() {
        let answered = |code, is_quota| {
            Failed::Answered(Refusal {
                code,
                is_quota,
                ..Refusal::default()
            })
        };
        for (failed, may_pass, may_have_arrived) in [
            (Failed::Unsent(Trouble::passing(String::new(), "")), true, false),
            (Failed::Unsent(Trouble::lasting(String::new(), "")), false, false),
            (Failed::Unanswered(String::new()), true, true),
            (answered(400, false), false, false),
            (answered(401, false), false, false),
            (answered(402, true), false, false),
            (answered(404, false), false, false),
            (answered(409, false), true, true),
            (answered(429, false), true, false),
            (answered(429, true), false, false),
            (answered(500, false), true, true),
            (answered(501, false), false, true),
            (answered(503, false), true, true),
        ] {
            assert_eq!(failed.may_pass(), may_pass, "{failed:?}");
            assert_eq!(failed.may_have_arrived(), may_have_arrived, "{failed:?}");
        }
    }

    #[test]
    fn a_time_to_wait_is_read_in_both_forms() {
        let read =
            |text: &'static str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]));
        assert_eq!(read("2"), Some(Duration::from_secs(2)));
        assert_eq!(read("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(read("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert!(read("Tue, 01 Jan 2999 00:00:00 GMT") > Some(Duration::from_secs(86_400)));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn no_request_is_made_for_longer_than_it_may() {
        let (total, waits) = (Duration::from_secs(20), Waits::new());
        let began = Instant::now();
        let (mut again, mut now, mut attempts) = (Again::new(total, &waits), began, 1);
        while let Some(pause) = again.next(&Failed::Unanswered(String::new()), now) {
            now += pause;
            attempts += 1;
        }
        assert!(now <= again.until && (8..15).contains(&attempts), "{attempts}");
        let asked = |seconds| {
            Failed::Answered(Refusal {
                code: 429,
                retry_after: Some(Duration::from_secs(seconds)),
                ..Refusal::default()
            })
        };
        let mut again = Again::new(total, &waits);
        let pauses =
            [7, 12, 40, u64::MAX].map(|seconds| again.next(&asked(seconds), began).map(|pause| pause.as_secs()));
        assert_eq!(pauses, [Some(7), Some(12), None, None]);
    }
}
