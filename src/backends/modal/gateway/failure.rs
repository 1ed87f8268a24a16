//! What the gateway says when it fails, as errors with what to do.

use super::super::trouble;
use super::client::{Client, Failed};
use crate::backends::BackendError;
use crate::limits::format_duration;

/// What was wanted of the gateway when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A new sandbox.
    Sandbox,
    /// Something in one of ours.
    Inside,
}

impl Wanted {
    fn phrase(self) -> &'static str {
        match self {
            Self::Sandbox => "make the sandbox",
            Self::Inside => "work in the sandbox",
        }
    }
}

const NETWORK: &str = "check the network, the proxy and MODAL_GATEWAY_URL";

/// A request came to nothing.
pub(super) fn failed(target: &str, client: &Client, wanted: Wanted, failed: &Failed) -> BackendError {
    let (reason, advice, refused) = words(client.server(), &client.said_by, wanted, failed);
    let target = target.to_owned();
    match refused {
        true => BackendError::Refused { target, reason, advice },
        false => BackendError::Unreachable { target, reason, advice },
    }
}

/// What happened, what to do, and whether it was a refusal.
fn words(server: &str, said_by: &str, wanted: Wanted, failed: &Failed) -> (String, String, bool) {
    let what = wanted.phrase();
    let refusal = match failed {
        Failed::Unsent(trouble) => {
            let advice = match trouble.advice.as_str() {
                // Of Modal's own state nothing is known behind the gateway.
                trouble::NETWORK => NETWORK,
                advice => advice,
            };
            let reason = format!("the gateway does not answer: {trouble}");
            return (reason, advice.to_owned(), false);
        }
        Failed::Unanswered(reason) => {
            return (
                format!("the gateway at {server} does not answer: {reason}"),
                NETWORK.to_owned(),
                false,
            );
        }
        Failed::Answered(refusal) => refusal,
    };
    let message = &refusal.message;
    if refusal.is_quota {
        return (
            format!("the quota of its account is used up, so the gateway does not {what}: {message}"),
            "end sandboxes that nobody needs, add credit, or use an account of Modal's (modal_mode: direct)".to_owned(),
            true,
        );
    }
    let (reason, advice, refused) = match refusal.code {
        401 => (
            format!("the gateway does not accept the token of {said_by}: {message}"),
            "sign in again with Hermes, or correct MODAL_GATEWAY_TOKEN",
            true,
        ),
        403 => (
            format!("its account may not {what}: {message}"),
            "use an account that may, or one of Modal's (modal_mode: direct)",
            true,
        ),
        429 => {
            let wait = match refusal.retry_after {
                Some(wait) => format!("wait {}", format_duration(wait)),
                None => "wait a little".to_owned(),
            };
            let reason = format!("the gateway asks for patience (rate limit): {message}");
            return (reason, format!("{wait}, and start fewer sandboxes at once"), false);
        }
        300..=399 | 404 | 405 if wanted == Wanted::Sandbox => (
            format!("there is no gateway at {server}: {message}"),
            "correct MODAL_GATEWAY_URL",
            true,
        ),
        400..=499 if wanted == Wanted::Sandbox => (
            format!("the gateway could not {what}: {message}"),
            "correct the image's name, container_cpu, container_memory or modal_lifetime, whichever is named",
            true,
        ),
        400..=499 => (format!("the gateway could not {what}: {message}"), "try again", true),
        code => (
            format!("the gateway failed to {what} ({code}): {message}"),
            "try again a little later",
            false,
        ),
    };
    (reason, advice.to_owned(), refused)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::client::Refusal;
    use super::*;

    #[test]
    fn each_failure_is_an_error_of_its_own_with_what_to_do() {
        let answered = |code, is_quota| {
            Failed::Answered(Refusal {
                code,
                message: "because".to_owned(),
                retry_after: (code == 429).then(|| Duration::from_secs(90)),
                is_quota,
            })
        };
        for (failed, wanted, refused, expected) in [
            (
                Failed::Unsent(trouble::Trouble::passing("refused".into(), trouble::NETWORK)),
                Wanted::Sandbox,
                false,
                ["does not answer: refused", "MODAL_GATEWAY_URL"],
            ),
            (
                Failed::Unanswered("reset".into()),
                Wanted::Inside,
                false,
                ["gate.example does not answer", "network"],
            ),
            (
                answered(401, false),
                Wanted::Sandbox,
                true,
                ["token of MODAL_GATEWAY_TOKEN: because", "sign in"],
            ),
            (
                answered(402, true),
                Wanted::Sandbox,
                true,
                ["quota of its account", "add credit"],
            ),
            (
                answered(429, true),
                Wanted::Sandbox,
                true,
                ["quota of its account", "modal_mode: direct"],
            ),
            (
                answered(403, false),
                Wanted::Sandbox,
                true,
                ["may not make the sandbox", "account that may"],
            ),
            (
                answered(429, false),
                Wanted::Sandbox,
                false,
                ["asks for patience", "wait 1m30s"],
            ),
            (
                answered(404, false),
                Wanted::Sandbox,
                true,
                ["there is no gateway", "MODAL_GATEWAY_URL"],
            ),
            (
                answered(302, false),
                Wanted::Sandbox,
                true,
                ["there is no gateway", "MODAL_GATEWAY_URL"],
            ),
            (
                answered(422, false),
                Wanted::Sandbox,
                true,
                ["could not make the sandbox: because", "image"],
            ),
            (
                answered(400, false),
                Wanted::Inside,
                true,
                ["could not work in the sandbox", "try again"],
            ),
            (
                answered(502, false),
                Wanted::Inside,
                false,
                ["failed to work in the sandbox (502): because", "try again"],
            ),
        ] {
            let (reason, advice, was_refused) = words("gate.example", "MODAL_GATEWAY_TOKEN", wanted, &failed);
            let text = format!("{reason}; {advice}");
            assert!(expected.iter().all(|word| text.contains(word)), "{text}");
            assert_eq!(was_refused, refused, "{text}");
        }
    }
}
