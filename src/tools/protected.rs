//! Files that a slip of a script must not overwrite: what lets the account in, what each login runs, and our own.
//!
//! It is no sandbox (`terminal` and plain Python write what the account may write), but `write_file` and `patch`
//! are where slips happen. `code_execution.protect_files: false` turns it off.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;

use super::WorkspaceError;

/// Below the home of the account. With a slash at its end: and all below; with a star: all that begin so.
const IN_HOME: [&str; 34] = [
    ".ssh/authorized_keys*",
    ".ssh/config",
    ".ssh/environment",
    ".ssh/id_*",
    ".ssh/rc",
    ".gnupg/",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".logout",
    ".config/fish/config.fish",
    ".config/fish/conf.d/",
    ".pam_environment",
    ".xprofile",
    ".netrc",
    ".config/talaria/",
    ".hermes/config.yaml",
    ".hermes/.env",
    ".hermes/cache/exec/",
    ".hermes/talaria/",
    ".cache/talaria/",
    ".local/state/talaria/",
];
/// Of the system.
const OF_THE_SYSTEM: [&str; 26] = [
    "/etc/passwd*",
    "/etc/shadow*",
    "/etc/group*",
    "/etc/gshadow*",
    "/etc/subuid",
    "/etc/subgid",
    "/etc/sudoers",
    "/etc/sudoers.d/",
    "/etc/ssh/",
    "/etc/pam.d/",
    "/etc/security/",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d/",
    "/etc/fstab",
    "/etc/crypttab",
    "/etc/nsswitch.conf",
    "/etc/profile",
    "/etc/profile.d/",
    "/etc/bash.bashrc",
    "/etc/zsh/",
    "/etc/environment",
    "/etc/crontab",
    "/etc/cron.d/",
    "/boot/",
    "/dev/sd*",
];

/// The files of one account on one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected(Vec<Bytes>);

impl Protected {
    /// Those of an account with this home, without links in it.
    #[must_use]
    pub fn of_account(home: Option<&Path>) -> Self {
        let mut patterns: Vec<Bytes> = OF_THE_SYSTEM
            .iter()
            .map(|path| Bytes::from_static(path.as_bytes()))
            .collect();
        if let Some(home) = home {
            let home = home.as_os_str().as_bytes();
            patterns.extend(
                IN_HOME
                    .iter()
                    .map(|name| Bytes::from([home, b"/", name.as_bytes()].concat())),
            );
        }
        Self(patterns)
    }

    /// Also a folder with all that is in it.
    pub fn add_folder(&mut self, folder: &Path) {
        self.0.push([folder.as_os_str().as_bytes(), b"/"].concat().into());
    }

    /// Save what is in this folder, whatever was said before.
    pub fn allow_folder(&mut self, folder: &Path) {
        self.0.push([b"!", folder.as_os_str().as_bytes(), b"/"].concat().into());
    }

    /// What the files are told by, as `remote_agent/whole_file.py` takes it: the last that fits decides.
    #[must_use]
    pub fn patterns(&self) -> &[Bytes] {
        &self.0
    }

    /// Says so when a file is one of them; `real` is its path without links, `shown` as the script gave it.
    ///
    /// # Errors
    /// It is protected.
    pub fn check(&self, real: &[u8], shown: &str) -> Result<(), WorkspaceError> {
        let decides = self
            .0
            .iter()
            .rev()
            .find(|pattern| fits(real, pattern.strip_prefix(b"!").unwrap_or(pattern)));
        if decides.is_none_or(|pattern| pattern.starts_with(b"!")) {
            return Ok(());
        }
        Err(WorkspaceError(format!(
            "{shown} is protected: it decides who gets into the account or what each login runs, or is this broker's own; \
             if it is really meant, write it with terminal() or Python, or set code_execution.protect_files to false"
        )))
    }
}

fn fits(path: &[u8], pattern: &[u8]) -> bool {
    match pattern.split_last() {
        Some((b'*', start)) => path.starts_with(start) && !path[start.len()..].contains(&b'/'),
        Some((b'/', folder)) => path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/'),
        _ => path == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected() {
        let mut protected = Protected::of_account(Some(Path::new("/home/ann")));
        protected.add_folder(Path::new("/tmp/session"));
        protected.allow_folder(Path::new("/tmp/session/work"));
        for path in [
            "/home/ann/.bashrc",
            "/home/ann/.ssh/authorized_keys2",
            "/home/ann/.ssh/id_ed25519",
            "/home/ann/.config/talaria/config.yaml",
            "/etc/passwd",
            "/etc/passwd-",
            "/etc/sudoers.d/ann",
            "/tmp/session/lib/hermes_tools.py",
        ] {
            assert!(protected.check(path.as_bytes(), path).is_err(), "{path}");
        }
        for path in [
            "/home/ann/project/.bashrc",
            "/home/ann/.bashrc.d/mine",
            "/home/ann/.ssh/known_hosts",
            "/home/bob/.bashrc",
            "/etc/hosts",
            "/tmp/session/work/a",
            "/tmp/sessions/a",
            "/home/ann/.ssh/id_/x",
        ] {
            assert_eq!(protected.check(path.as_bytes(), path), Ok(()), "{path}");
        }
        assert_eq!(Protected::default().check(b"/etc/passwd", "/etc/passwd"), Ok(()));
    }
}
