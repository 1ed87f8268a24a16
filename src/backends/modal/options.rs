//! What a sandbox is made with. Plain data: who makes it has read the configuration.
//!
//! | field | key |
//! | --- | --- |
//! | `image` | the target `modal:IMAGE`, `terminal.modal_image` |
//! | `app` | `terminal.modal_app` |
//! | `environment` | `terminal.modal_environment`, else `MODAL_ENVIRONMENT` and the profile |
//! | `gpu` | `terminal.modal_gpu`, by [`Gpu::parse`] |
//! | `cpus`, `memory` | `terminal.container_cpu`, `terminal.container_memory` |
//! | `lifetime` | `terminal.modal_lifetime`, by [`check_lifetime`] |
//! | `idle_timeout` | `terminal.modal_idle_timeout`, and longer than `code_execution.lease` in any case |
//! | `regions` | `terminal.modal_region` |
//! | `is_blocked` | `terminal.modal_network: off` |
//! | `registry_secret` | `terminal.modal_registry_secret` |
//! | `variables` | `terminal.modal_env` |
//! | `keep` | `terminal.modal_keep` |
//! | `snapshots` | `terminal.modal_snapshot`: the file that holds what was kept of the last session |

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::credentials::ModalSources;

/// The image where none is named.
pub const DEFAULT_IMAGE: &str = "python:3.12";

/// The app that sandboxes belong to where none is named.
pub const DEFAULT_APP: &str = "talaria";

/// The longest life that Modal gives a sandbox.
pub const LONGEST_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// The time after which a sandbox ends in which nothing runs.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// What a sandbox is made with. [`ModalOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ModalOptions {
    /// The target as the user wrote it.
    pub target: String,
    /// A tag in a registry, or an image that Modal has (`im-…`).
    pub image: String,
    /// Whose account is used.
    pub sources: ModalSources,
    /// The app that the sandbox belongs to; it is made where there is none.
    pub app: String,
    /// The environment of the account; `None`: as the account's own tools choose it.
    pub environment: Option<String>,
    /// Graphics processors.
    pub gpu: Option<Gpu>,
    /// CPUs; as Modal chooses when `None`.
    pub cpus: Option<f64>,
    /// Bytes of memory, which are both reserved and the limit; as Modal chooses when `None`.
    pub memory: Option<u64>,
    /// The time after which the sandbox ends whatever runs there.
    pub lifetime: Duration,
    /// The time after which it ends when nothing runs there: what a broker that was killed has left.
    pub idle_timeout: Duration,
    /// Where in the world it may be; anywhere when empty.
    pub regions: Vec<String>,
    /// Whether it has no network.
    pub is_blocked: bool,
    /// A secret of the account with the login to the image's registry.
    pub registry_secret: Option<String>,
    /// Variables beside the image's own.
    pub variables: BTreeMap<String, String>,
    /// Whether it stays when the session ends.
    pub keep: bool,
    /// Where it is written down what of its files was kept for the next session; nothing is kept when `None`.
    pub snapshots: Option<PathBuf>,
}

impl ModalOptions {
    /// A sandbox of an image with the default limits.
    pub fn new(target: impl Into<String>, image: impl Into<String>, sources: ModalSources) -> Self {
        Self {
            target: target.into(),
            image: image.into(),
            sources,
            app: DEFAULT_APP.to_owned(),
            environment: None,
            gpu: None,
            cpus: None,
            memory: None,
            lifetime: LONGEST_LIFE,
            idle_timeout: IDLE_TIMEOUT,
            regions: Vec::new(),
            is_blocked: false,
            registry_secret: None,
            variables: BTreeMap::new(),
            keep: false,
            snapshots: None,
        }
    }
}

/// Graphics processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// As Modal names it, for instance `A100-80GB`.
    pub kind: String,
    /// How many.
    pub count: u32,
}

impl Gpu {
    /// Reads `KIND` or `KIND:COUNT`.
    ///
    /// # Errors
    /// As a sentence, when it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || format!("`{text}` names no GPU; write it as A100 or H100:2");
        let (kind, count) = text.split_once(':').unwrap_or((text, "1"));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_!+".contains(c);
        if !kind.starts_with(|c: char| c.is_ascii_alphabetic()) || !kind.chars().all(is_name) {
            return Err(wrong());
        }
        match count.trim().parse() {
            Ok(count @ 1..=64) => Ok(Self {
                kind: kind.to_ascii_uppercase(),
                count,
            }),
            _ => Err(wrong()),
        }
    }
}

/// Checks a lifetime.
///
/// # Errors
/// As a sentence, when Modal gives no such life.
pub fn check_lifetime(lifetime: Duration) -> Result<Duration, String> {
    match lifetime.as_secs() {
        10.. if lifetime <= LONGEST_LIFE => Ok(lifetime),
        _ => Err("a sandbox lives for 10 s at least and 24 h at most".to_owned()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn graphics_processors_are_read() {
        for (text, kind, count) in [
            ("A100", "A100", 1),
            ("h100:2", "H100", 2),
            (" a100-80gb ", "A100-80GB", 1),
            ("H100!:8", "H100!", 8),
        ] {
            let kind = kind.to_owned();
            assert_eq!(Gpu::parse(text).unwrap(), Gpu { kind, count }, "{text}");
        }
        for text in [
            "",
            ":2",
            "H100:",
            "H100:0",
            "H100:two",
            "H100:1:2",
            "A 100",
            "H100:9999",
        ] {
            assert!(Gpu::parse(text).unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }

    #[test]
    fn a_life_is_as_long_as_modal_gives_it() {
        for (seconds, is_right) in [
            (0, false),
            (9, false),
            (10, true),
            (3600, true),
            (86_400, true),
            (86_401, false),
        ] {
            let lifetime = Duration::from_secs(seconds);
            assert_eq!(check_lifetime(lifetime).is_ok(), is_right, "{seconds}");
        }
    }
}
