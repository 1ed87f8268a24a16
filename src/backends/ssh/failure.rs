//! What ssh says when it cannot connect, and what to do about it.

use crate::backends::BackendError;

/// What a connection was tried with.
pub(super) struct Attempt<'a> {
    /// The target as the user wrote it.
    pub(super) target: &'a str,
    /// What `ssh` was given.
    pub(super) destination: &'a str,
    /// Seconds that it was given.
    pub(super) limit: u64,
}

impl Attempt<'_> {
    /// ssh has ended; `said` is all that it said, with `-v`.
    pub(super) fn failed(&self, said: &str) -> BackendError {
        let words: Vec<&str> = said
            .lines()
            .map(str::trim)
            .filter(|line| is_word_to_the_user(line))
            .collect();
        let last = words.last().copied().unwrap_or("it ended without a word");
        let has = |text: &str| words.iter().any(|line| line.contains(text));
        let name = self.destination.trim_start_matches("ssh://");
        if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
            return self.refused(
                "its host key is not the one that is known: the host was set up anew, or somebody stands in between",
                &format!(
                    "make sure which; then forget the old key with ssh-keygen -R {}",
                    host(name)
                ),
            );
        }
        if has("host key is known") || has("Host key verification failed") {
            return self.refused(
                "its host key is not known here, and none is accepted without being asked for",
                &format!(
                    "connect once by hand (ssh {}) and compare the fingerprint, or set ssh_accept_new for this target",
                    self.destination
                ),
            );
        }
        if has("Permission denied") {
            let offered: Vec<&str> = said
                .lines()
                .filter_map(|line| line.split_once("Offering public key: "))
                .map(|(_, key)| key.trim())
                .collect();
            let tried = if offered.is_empty() {
                "no key was offered".to_owned()
            } else {
                format!("these keys were offered: {}", offered.join("; "))
            };
            return self.refused(
                &format!("it let nobody in ({last}; {tried})"),
                "add a key there (ssh-copy-id), name one with ssh_key, or load it into the agent (ssh-add); passwords are not asked for",
            );
        }
        if has("Could not resolve hostname") {
            return self.unreachable(last, "correct the name, or add the host to ~/.ssh/config");
        }
        if has("Connection refused") {
            return self.unreachable(last, "nothing listens there: check host and port, and that sshd runs");
        }
        if has("timed out") || has("No route to host") || has("Network is unreachable") {
            return self.unreachable(
                last,
                "check that the host is up and that network and firewall let it through",
            );
        }
        if has("Bad configuration option") || has("Bad owner or permissions") || has("terminating,") {
            return self.refused(
                &words.join(" "),
                "correct the configuration of ssh, or ssh_options of this target",
            );
        }
        self.unreachable(&words.join(" "), &format!("see what `ssh {}` says", self.destination))
    }

    /// It did not connect in time.
    pub(super) fn late(&self) -> BackendError {
        let limit = self.limit;
        self.unreachable(
            &format!("ssh did not get in within {limit} s"),
            "check that the host is up and that network and firewall let it through",
        )
    }

    /// ssh itself could not be started.
    pub(super) fn no_ssh(&self, error: &std::io::Error) -> BackendError {
        self.refused(
            &format!("ssh cannot be started here: {error}"),
            "install the OpenSSH client",
        )
    }

    pub(super) fn refused(&self, reason: &str, advice: &str) -> BackendError {
        BackendError::Refused {
            target: self.target.to_owned(),
            reason: reason.to_owned(),
            advice: advice.to_owned(),
        }
    }

    pub(super) fn unreachable(&self, reason: &str, advice: &str) -> BackendError {
        BackendError::Unreachable {
            target: self.target.to_owned(),
            reason: reason.to_owned(),
            advice: advice.to_owned(),
        }
    }
}

/// With `-v`, ssh tells much of what it does.
fn is_word_to_the_user(line: &str) -> bool {
    let noise = [
        "debug1:",
        "debug2:",
        "debug3:",
        "OpenSSH_",
        "Authenticated to",
        "Transferred:",
        "Bytes per second:",
        "@@@@",
    ];
    !line.is_empty() && !noise.iter().any(|start| line.starts_with(start)) && !line.contains("Pseudo-terminal")
}

/// How `known_hosts` names a destination.
fn host(destination: &str) -> String {
    let place = destination.rsplit('@').next().unwrap_or(destination);
    match place.rsplit_once(':') {
        Some((host, port)) if port != "22" => format!("'[{host}]:{port}'"),
        Some((host, _)) => host.to_owned(),
        None => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_says_what_to_do() {
        let attempt = Attempt {
            target: "ssh:bob@box:22",
            destination: "ssh://bob@box:2222",
            limit: 20,
        };
        for (said, words) in [
            (
                "ssh: Could not resolve hostname box: Name or service not known",
                "correct the name",
            ),
            (
                "ssh: connect to host box port 2222: Connection refused",
                "nothing listens there",
            ),
            ("ssh: connect to host box port 2222: Connection timed out", "firewall"),
            (
                "No ED25519 host key is known for box and you have requested strict checking.\nHost key verification failed.",
                "ssh_accept_new",
            ),
            (
                "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                "ssh-keygen -R '[box]:2222'",
            ),
            (
                "debug1: Offering public key: /k ED25519 SHA256:x\nbob@box: Permission denied (publickey).",
                "offered: /k ED25519 SHA256:x",
            ),
            (
                "debug1: x\nbob@box: Permission denied (password).",
                "no key was offered",
            ),
            (
                "/x/config: line 1: Bad configuration option: nonsense",
                "correct the configuration",
            ),
            (
                "kex_exchange_identification: Connection closed by remote host",
                "see what `ssh ssh://bob@box:2222` says",
            ),
        ] {
            let error = attempt.failed(said).to_string();
            assert!(error.starts_with("ssh:bob@box:22 ") && error.contains(words), "{error}");
            assert!(!error.contains("debug1"), "{error}");
        }
    }
}
