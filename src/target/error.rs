//! Why a target cannot be used, and what can be used instead.

use thiserror::Error;

use crate::suggest::nearest;

/// Why a target cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    /// Nothing was written.
    #[error("the target is empty; write `local` or the name of a configured target")]
    Empty,
    /// The part before the colon is no kind of target.
    #[error(
        "`{text}` is no target: there is no kind of target named `{scheme}`{}; the kinds are {}",
        did_you_mean(suggestion.as_deref()),
        SCHEMES.join(", ")
    )]
    UnknownScheme {
        /// What was asked for.
        text: String,
        /// Its part before the first colon.
        scheme: String,
        /// The nearest kind, written as a scheme.
        suggestion: Option<String>,
    },
    /// The kind is right, and what follows it is not.
    #[error("`{text}` is no target: {problem}; write it as `{form}`")]
    Malformed {
        /// What was asked for.
        text: String,
        /// What is wrong with it.
        problem: String,
        /// The form of this kind.
        form: &'static str,
    },
    /// A name without a colon that is not configured.
    #[error(
        "there is no target named `{name}`{}; {}",
        did_you_mean(suggestion.as_deref()),
        works(configured)
    )]
    UnknownName {
        /// What was asked for.
        name: String,
        /// The nearest name.
        suggestion: Option<String>,
        /// The configured names.
        configured: Vec<String>,
    },
}

/// How each kind of target is written.
const SCHEMES: [&str; 8] = [
    "local",
    "docker:IMAGE",
    "container:NAME",
    "compose:[PROJECT/]SERVICE[#N]",
    "exec:COMMAND",
    "ssh:DEST or ssh://USER@HOST:PORT",
    "modal[:IMAGE]",
    "modal://sb-ID",
];

/// The same in short: what can be written instead.
const OPENED: [&str; 7] = [
    "local",
    "docker:IMAGE",
    "container:NAME",
    "compose:SERVICE",
    "exec:COMMAND",
    "ssh:DEST",
    "modal[:IMAGE]",
];

/// The words before the colon.
pub(super) const SCHEME_WORDS: [&str; 7] = ["local", "docker", "container", "compose", "exec", "ssh", "modal"];

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion
        .map(|name| format!(" (did you mean `{name}`?)"))
        .unwrap_or_default()
}

fn works(configured: &[String]) -> String {
    if configured.is_empty() {
        return format!("what works is {}", OPENED.join(", "));
    }
    format!(
        "what works is {} and the configured names {}",
        OPENED.join(", "),
        configured.join(", ")
    )
}

/// The error for a target of a known kind whose rest is wrong.
pub(super) fn lacks(text: &str, problem: &str) -> TargetError {
    let word = text.split(':').next().unwrap_or(text);
    let form = match SCHEME_WORDS.iter().position(|scheme| *scheme == word) {
        Some(6) if text.starts_with("modal://") => SCHEMES[7],
        Some(index) => SCHEMES[index],
        None => SCHEMES[0],
    };
    TargetError::Malformed {
        text: text.to_owned(),
        problem: problem.to_owned(),
        form,
    }
}

impl TargetError {
    /// The error for a name that `targets` does not hold; `names` are all that it holds.
    #[must_use]
    pub fn unknown_name<'a>(name: &str, names: impl IntoIterator<Item = &'a str>, configured: Vec<String>) -> Self {
        let candidates = names.into_iter().chain(SCHEME_WORDS);
        Self::UnknownName {
            name: name.to_owned(),
            suggestion: nearest(name, candidates).map(str::to_owned),
            configured,
        }
    }
}
