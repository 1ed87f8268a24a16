//! What an SSH target is made from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::failure::Attempt;

/// How long connecting and logging in may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// An SSH target. Whatever is not said here is as `~/.ssh/config` has it.
#[derive(Clone, Debug)]
pub struct SshOptions {
    /// The target as the user wrote it, for messages.
    pub target: String,
    /// What `ssh` takes: a host, an alias, or `user@host`.
    pub destination: String,
    /// The port.
    pub port: Option<u16>,
    /// A file with a private key.
    pub key: Option<PathBuf>,
    /// More options as `ssh -o` takes them (`ProxyJump=gate`); they win over the user's configuration.
    pub extra: Vec<String>,
    /// Whether the key of a host that is not known is taken for its own from now on.
    pub accept_new: bool,
    /// The socket of a master connection of the user's, which is used and never closed.
    pub control: Option<PathBuf>,
    /// The account there that everything runs as, by `sudo`.
    pub r#become: Option<String>,
    /// How long connecting and logging in may take.
    pub connect_timeout: Duration,
    /// The whole environment of `ssh` on this machine.
    pub environment: BTreeMap<OsString, OsString>,
}

impl SshOptions {
    /// A destination, with all else as it is by default.
    #[must_use]
    pub fn new(target: impl Into<String>, destination: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            destination: destination.into(),
            port: None,
            key: None,
            extra: Vec::new(),
            accept_new: false,
            control: None,
            r#become: None,
            connect_timeout: CONNECT_TIMEOUT,
            environment: BTreeMap::new(),
        }
    }

    pub(super) fn attempt(&self) -> Attempt<'_> {
        Attempt { options: self }
    }

    /// Where to and as whom, as `ssh` takes it; without what is ours.
    pub(super) fn login(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut push = |option: &str, value: String| words.extend([option.to_owned(), value]);
        for option in &self.extra {
            push("-o", option.clone());
        }
        if let Some(port) = self.port {
            push("-p", port.to_string());
        }
        if let Some(key) = &self.key {
            push("-i", key.display().to_string());
        }
        words.push(self.destination.clone());
        words
    }
}
