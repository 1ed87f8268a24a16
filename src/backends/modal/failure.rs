//! What Modal says when it fails, as errors with what to do.

use std::fmt::Write as _;
use std::time::Duration;

use tonic::Code;

use super::control::CallFailed;
use super::trouble::{NETWORK, Trouble};
use super::wire::client::GenericResult;
use super::wire::client::generic_result::GenericStatus;
use crate::backends::BackendError;
use crate::limits::format_duration;

/// What was wanted of Modal when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted<'a> {
    App(&'a str),
    Environment(&'a str),
    Secret(&'a str),
    Image(&'a str),
    /// A sandbox in one of these regions, with these graphics processors.
    Sandbox {
        regions: &'a [String],
        gpu: Option<&'a str>,
    },
    /// One that exists.
    Existing(&'a str),
    /// Something in one of ours.
    Inside,
    /// To know which there are.
    List,
}

/// Whom was asked, for messages.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) target: &'a str,
    /// Where Modal is.
    pub(super) server: &'a str,
    /// Where the token came from.
    pub(super) said_by: &'a str,
}

impl Asked<'_> {
    /// No server of Modal's could be reached.
    pub(super) fn unreachable(&self, trouble: &Trouble) -> BackendError {
        self.error(
            false,
            format!("Modal does not answer: {}", trouble.reason),
            &trouble.advice,
        )
    }

    /// A call came to nothing.
    pub(super) fn failed(&self, wanted: Wanted<'_>, failed: &CallFailed) -> BackendError {
        let message = shown(&failed.message);
        if let Some(trouble) = &failed.trouble {
            return self.unreachable(trouble);
        }
        if failed.unanswered {
            let reason = format!("Modal at {} does not answer: {message}", self.server);
            return self.error(false, reason, NETWORK);
        }
        let (what, advice) = words(wanted);
        match failed.code {
            Code::Unauthenticated => self.error(
                true,
                format!("Modal does not accept the token of {}: {message}", self.said_by),
                "make a new one with `modal token new`, or correct MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
            ),
            Code::PermissionDenied => self.error(
                true,
                format!("the account may not {what}: {message}"),
                "use an account of a workspace that may, or ask its owner",
            ),
            Code::ResourceExhausted if failed.throttled => self.error(
                false,
                format!("Modal asks for patience (rate limit): {message}"),
                "wait a little, and start fewer sandboxes at once",
            ),
            Code::ResourceExhausted => self.error(
                true,
                format!("the account's limit is reached, so it could not {what}: {message}"),
                "end sandboxes that nobody needs (talaria gc), or raise the limit or the budget at https://modal.com/settings",
            ),
            Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition | Code::AlreadyExists | Code::OutOfRange => {
                self.error(true, format!("Modal could not {what}: {message}"), &advice)
            }
            Code::Unimplemented => self.error(
                true,
                format!("Modal knows no such call any more: {message}"),
                "take a newer version of Talaria",
            ),
            code => self.error(
                false,
                format!("Modal failed to {what} ({code:?}): {message}"),
                "try again; https://status.modal.com says whether Modal has a problem",
            ),
        }
    }

    /// An image could not be built: how its build ended, and the last lines that it said.
    pub(super) fn unbuilt(&self, image: &str, result: &GenericResult, lines: &[String]) -> BackendError {
        let mut reason = format!("the image {image} could not be built");
        let said = shown(&result.exception);
        if !said.is_empty() {
            let _ = write!(reason, ": {said}");
        }
        if !lines.is_empty() {
            let _ = write!(reason, "; the last lines of its build were:\n{}\n", lines.join("\n"));
        }
        let advice = match result.status() {
            GenericStatus::Timeout => "try again, or take a smaller image",
            _ => "correct the image's name and tag; a private registry needs modal_registry_secret",
        };
        self.error(true, reason, advice)
    }

    /// A sandbox that is not there any more.
    pub(super) fn gone(&self, how: &str, advice: &str) -> BackendError {
        BackendError::Gone {
            target: self.target.to_owned(),
            reason: how.to_owned(),
            advice: advice.to_owned(),
        }
    }

    pub(super) fn error(&self, refused: bool, reason: String, advice: &str) -> BackendError {
        let (target, advice) = (self.target.to_owned(), advice.to_owned());
        if refused {
            BackendError::Refused { target, reason, advice }
        } else {
            BackendError::Unreachable { target, reason, advice }
        }
    }
}

/// The longest message that an error repeats, in characters.
const LONGEST: usize = 600;

/// What a server said, in a form that is fit for a message.
fn shown(message: &str) -> String {
    let message = message.trim().trim_end_matches('.');
    if message.is_empty() {
        return "it gives no reason".to_owned();
    }
    let mut shown: String = message.chars().take(LONGEST).collect();
    if shown.len() < message.len() {
        shown.push('…');
    }
    shown
}

/// What was wanted, as a phrase, and what to do where it cannot be.
fn words(wanted: Wanted<'_>) -> (String, String) {
    match wanted {
        Wanted::App(name) => (
            format!("take or make the app `{name}`"),
            "correct modal_app and modal_environment (MODAL_ENVIRONMENT)".to_owned(),
        ),
        Wanted::Environment(name) => (
            match name {
                "" => "use the account's default environment".to_owned(),
                name => format!("use the environment `{name}`"),
            },
            "correct modal_environment (MODAL_ENVIRONMENT); `modal environment list` shows what there is".to_owned(),
        ),
        Wanted::Secret(name) => (
            format!("use the secret `{name}`"),
            "correct modal_registry_secret; `modal secret list` shows what there is".to_owned(),
        ),
        Wanted::Image(name) => (
            format!("use the image {name}"),
            "correct its name and tag; a private registry needs modal_registry_secret".to_owned(),
        ),
        Wanted::Sandbox { regions, gpu } => {
            let mut advice = "correct".to_owned();
            if !regions.is_empty() {
                let _ = write!(advice, " modal_region ({}),", regions.join(", "));
            }
            if let Some(gpu) = gpu {
                let _ = write!(advice, " modal_gpu ({gpu}),");
            }
            advice += " container_cpu, container_memory or modal_lifetime, whichever is named";
            ("make the sandbox".to_owned(), advice)
        }
        Wanted::Existing(id) => (
            format!("find the sandbox {id}"),
            "correct its id, or its environment (modal_environment); `modal:IMAGE` makes a new one".to_owned(),
        ),
        Wanted::Inside => ("work in the sandbox".to_owned(), "try again".to_owned()),
        Wanted::List => (
            "say which sandboxes there are".to_owned(),
            "correct modal_environment (MODAL_ENVIRONMENT)".to_owned(),
        ),
    }
}

/// How a sandbox has ended, as a phrase behind "its sandbox"; `None`: it has not.
pub(super) fn ending(result: &GenericResult, lifetime: Option<Duration>, idle: Option<Duration>) -> Option<String> {
    let limit = |limit: Option<Duration>, key: &str| match limit {
        Some(limit) => format!(" of {} ({key})", format_duration(limit)),
        None => String::new(),
    };
    let said = match result.exception.trim() {
        "" => String::new(),
        _ => format!(": {}", shown(&result.exception)),
    };
    Some(match result.status() {
        GenericStatus::Unspecified => return None,
        GenericStatus::Timeout => format!("reached the end of its life{}", limit(lifetime, "modal_lifetime")),
        GenericStatus::IdleTimeout => format!(
            "was ended because nothing ran in it for the time{}",
            limit(idle, "modal_idle_timeout")
        ),
        GenericStatus::Terminated => "was terminated from outside".to_owned(),
        GenericStatus::KernelOomKill
        | GenericStatus::MemoryManagerEviction
        | GenericStatus::MemoryThrashingEviction => {
            "ran out of memory; raise container_memory or hold less at once".to_owned()
        }
        GenericStatus::InitFailure => format!("could not start{said}"),
        GenericStatus::InternalFailure => format!("was ended by a failure of Modal's{said}"),
        GenericStatus::Success | GenericStatus::Failure => {
            format!("ended with its first process (exit code {}){said}", result.exitcode)
        }
    })
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    const ASKED: Asked<'_> = Asked {
        target: "modal:x",
        server: "api.modal.com",
        said_by: "MODAL_TOKEN_ID",
    };

    #[test]
    fn each_failure_is_an_error_of_its_own_with_what_to_do() {
        let regions = ["mars".to_owned()];
        let sandbox = Wanted::Sandbox {
            regions: &regions,
            gpu: Some("H100"),
        };
        for (status, wanted, refused, words) in [
            (
                Status::unauthenticated("bad token"),
                Wanted::App("a"),
                true,
                ["token of MODAL_TOKEN_ID", "modal token new"],
            ),
            (
                Status::permission_denied("no"),
                Wanted::App("a"),
                true,
                ["may not take or make the app `a`", "owner"],
            ),
            (
                Status::resource_exhausted("limit"),
                sandbox,
                true,
                ["limit is reached", "talaria gc"],
            ),
            (
                Status::not_found("nope"),
                Wanted::Environment("dev"),
                true,
                ["environment `dev`", "modal environment list"],
            ),
            (
                Status::not_found("nope"),
                Wanted::Secret("s"),
                true,
                ["secret `s`", "modal secret list"],
            ),
            (
                Status::not_found("nope"),
                Wanted::Image("x:9"),
                true,
                ["image x:9", "modal_registry_secret"],
            ),
            (
                Status::invalid_argument("region"),
                sandbox,
                true,
                ["make the sandbox: region", "modal_region (mars)"],
            ),
            (
                Status::invalid_argument("gpu"),
                sandbox,
                true,
                ["make the sandbox: gpu", "modal_gpu (H100)"],
            ),
            (
                Status::not_found(""),
                Wanted::Existing("sb-1"),
                true,
                ["find the sandbox sb-1: it gives no reason", "modal:IMAGE"],
            ),
            (
                Status::internal("boom"),
                Wanted::List,
                false,
                ["(Internal): boom", "status.modal.com"],
            ),
            (
                Status::unimplemented("x"),
                Wanted::Inside,
                true,
                ["no such call", "newer version"],
            ),
        ] {
            let error = ASKED.failed(wanted, &CallFailed::of(&status));
            let text = error.to_string();
            assert_eq!(matches!(error, BackendError::Refused { .. }), refused, "{text}");
            assert!(
                text.starts_with("modal:x ") && words.iter().all(|word| text.contains(word)),
                "{text}"
            );
        }
        let throttled = CallFailed {
            throttled: true,
            ..CallFailed::of(&Status::resource_exhausted("slow"))
        };
        assert!(ASKED.failed(sandbox, &throttled).to_string().contains("rate limit"));
        let silent = CallFailed {
            unanswered: true,
            ..CallFailed::of(&Status::unavailable("connection refused"))
        };
        let text = ASKED.failed(sandbox, &silent).to_string();
        assert!(
            text.contains("api.modal.com does not answer: connection refused") && text.contains("proxy"),
            "{text}"
        );
    }

    #[test]
    fn a_build_that_failed_shows_its_last_lines() {
        let result = GenericResult {
            status: GenericStatus::Failure.into(),
            exception: "build failed".into(),
            exitcode: 1,
        };
        let lines = ["Step 1".to_owned(), "no such package".to_owned()];
        let text = ASKED.unbuilt("x:1", &result, &lines).to_string();
        assert!(
            text.contains("x:1 could not be built: build failed") && text.contains("Step 1\nno such package\n"),
            "{text}"
        );
    }

    #[test]
    fn ends_are_told_apart() {
        let hour = Some(Duration::from_secs(3600));
        for (status, words) in [
            (GenericStatus::Timeout, "end of its life of 1h (modal_lifetime)"),
            (GenericStatus::IdleTimeout, "nothing ran in it"),
            (GenericStatus::Terminated, "terminated from outside"),
            (GenericStatus::KernelOomKill, "out of memory"),
            (GenericStatus::MemoryManagerEviction, "out of memory"),
            (GenericStatus::MemoryThrashingEviction, "out of memory"),
            (GenericStatus::InitFailure, "could not start: why"),
            (GenericStatus::InternalFailure, "failure of Modal's: why"),
            (GenericStatus::Failure, "exit code 3"),
            (GenericStatus::Success, "exit code 3"),
        ] {
            let result = GenericResult {
                status: status.into(),
                exception: "why".into(),
                exitcode: 3,
            };
            let said = ending(&result, hour, hour).unwrap_or_default();
            assert!(said.contains(words), "{status:?}: {said}");
        }
        assert_eq!(ending(&GenericResult::default(), hour, hour), None);
    }
}
