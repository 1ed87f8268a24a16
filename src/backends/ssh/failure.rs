//! What ssh says when it cannot connect, and what to do about it.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;

use super::options::SshOptions;
use crate::backends::BackendError;

/// What ssh says once it is let in.
pub(super) const LET_IN: &str = "Authenticated to ";

/// What ssh says before a key that would do.
const ACCEPTED: &str = "debug1: Server accepts key: ";

/// A key as ssh tells it, less what it says of each that was named to it.
fn key(told: &str) -> &str {
    told.trim_end_matches(" explicit")
}

/// A connection that was tried.
pub(super) struct Attempt<'a> {
    pub(super) options: &'a SshOptions,
}

/// What ssh said, with `-v`.
struct Said<'a> {
    all: &'a str,
    /// The lines that are meant for the user.
    words: Vec<&'a str>,
}

impl<'a> Said<'a> {
    fn new(all: &'a str) -> Self {
        let words = all.lines().map(str::trim).filter(|line| is_word_to_the_user(line));
        Self {
            all,
            words: words.collect(),
        }
    }

    /// The line to the user that has this in it.
    fn line(&self, text: &str) -> Option<&'a str> {
        self.words.iter().find(|line| line.contains(text)).copied()
    }

    /// What stands behind this in all lines.
    fn behind(&self, start: &str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.all
            .lines()
            .filter_map(move |line| line.split_once(start))
            .map(|(_, rest)| rest.trim())
    }

    /// All words to the user.
    fn joined(&self) -> String {
        if self.words.is_empty() {
            return "it ended without a word".to_owned();
        }
        self.words.join("; ")
    }

    /// The key that the host shows, and which host that is: it may be one on the way.
    fn shown_key(&self) -> String {
        let shown = ["debug1: Server host key: ", "debug1: Server host certificate: "];
        let key = shown.iter().find_map(|start| self.behind(start).next_back());
        let key = key.unwrap_or("unknown");
        match self.behind("debug1: Authenticating to ").next_back() {
            Some(host) => format!("{key}, shown by {}", host.split(" as ").next().unwrap_or(host)),
            None => key.to_owned(),
        }
    }
}

impl Attempt<'_> {
    /// ssh has ended; `said` is all that it said.
    pub(super) fn failed(&self, said: &str) -> BackendError {
        let said = Said::new(said);
        // So says the shell that holds it.
        let is_missing =
            |line: &str| line.starts_with("sh: ") && line.contains(" ssh: ") && line.ends_with("not found");
        if said.words.iter().any(|line| is_missing(line)) {
            return self.no_ssh("it is not on the PATH");
        }
        if said.line("REMOTE HOST IDENTIFICATION HAS CHANGED").is_some() {
            return self.refused(
                &format!(
                    "its host key ({}) is not the one that is known: the host was set up anew, or somebody stands in between",
                    said.shown_key()
                ),
                &format!(
                    "ask who runs it which; if the key is right, forget the old one ({}) and take the new one by \
                     connecting once by hand: {}",
                    forget(&said, self.options),
                    self.by_hand(&["-o", "StrictHostKeyChecking=ask"])
                ),
            );
        }
        if let Some(invalid) = said.behind("Certificate invalid: ").next_back() {
            return self.refused(
                &format!("the certificate of its host key is not valid: {invalid} ({})", said.shown_key()),
                "reach it by a name that the certificate is for (HostKeyAlias=NAME among ssh_options), or have whoever runs \
                 it renew the certificate (ssh-keygen -s CA -h -n NAME)",
            );
        }
        if said.line("REVOKED HOST KEY DETECTED").is_some() || said.line("marked as revoked").is_some() {
            return self.refused(
                &format!("its host key ({}) is marked as revoked here", said.shown_key()),
                "do not use it; ask who runs the host for its new key",
            );
        }
        if said.line("Host key verification failed").is_some() || said.line("host key is known").is_some() {
            return self.refused(
                &format!(
                    "its host key ({}) is not known here, and none is accepted without being asked for",
                    said.shown_key()
                ),
                &format!(
                    "connect once by hand and compare the fingerprint before you say yes: {}; or set ssh_accept_new for \
                     this target",
                    self.by_hand(&["-o", "StrictHostKeyChecking=ask"])
                ),
            );
        }
        if let Some(line) = said.line("Permission denied (") {
            return self.denied(&said, line);
        }
        if let Some(line) = said.line("Too many authentication failures") {
            return self.refused(
                &format!("{line}: more keys were offered than it looks at"),
                "name the right one as ssh_key, with IdentitiesOnly=yes among ssh_options",
            );
        }
        if said.line("stdio forwarding failed").is_some() {
            return self.unreachable(
                &format!("the jump host does not reach it: {}", said.joined()),
                "check host and port as the jump host sees them, and that it forwards connections (AllowTcpForwarding in \
                 its sshd_config)",
            );
        }
        if said.behind(ACCEPTED).next().is_some() && !said.all.contains("debug1: Authenticated to") {
            return self.refused(
                &format!("it takes the key and does not let the account in: {}", said.joined()),
                "the account may have expired, be locked or not be among those that may log in (AllowUsers): ask who \
                 administers the host",
            );
        }
        if let Some(line) = said
            .line("Could not resolve hostname")
            .or(said.line("hostname contains invalid"))
        {
            return self.unreachable(line, "correct the name, or add the host to ~/.ssh/config");
        }
        if let Some(line) = said.line("Connection refused") {
            return self.unreachable(line, "nothing listens there: check host and port, and that sshd runs");
        }
        for silence in ["timed out", "No route to host", "Network is unreachable"] {
            if let Some(line) = said.line(silence) {
                return self.unreachable(
                    line,
                    "check that the host is up and that network and firewall let it through",
                );
            }
        }
        if let Some(line) = said.line("Unable to negotiate") {
            return self.refused(
                line,
                "allow what it offers, by HostKeyAlgorithms, KexAlgorithms, Ciphers or MACs (=+NAME) among ssh_options",
            );
        }
        for fault in ["Bad configuration option", "Bad owner or permissions", "terminating,"] {
            if said.line(fault).is_some() {
                return self.refused(
                    &said.joined(),
                    "correct the configuration of ssh, or ssh_options of this target",
                );
            }
        }
        if said.line("kex_exchange_identification").is_some() || said.line("banner exchange").is_some() {
            return self.unreachable(
                &said.joined(),
                "what listens there is no sshd, one that turns this machine away (too many connections, a ban), or the \
                 way there (ProxyJump, ProxyCommand) failed",
            );
        }
        self.unreachable(&said.joined(), &format!("see what `{}` says", self.by_hand(&[])))
    }

    /// Nobody was let in.
    fn denied(&self, said: &Said<'_>, line: &str) -> BackendError {
        let ignored = said.behind("Load key ").find_map(|rest| {
            let (key, why) = rest.split_once("\": ")?;
            Some((key.trim_matches('"'), why))
        });
        if let Some((key, why)) = ignored {
            let advice = if why.contains("bad permissions") {
                format!("let only its owner read it: chmod 600 {}", word(key))
            } else {
                "name a file with a private key as ssh_key (or as IdentityFile in ~/.ssh/config)".to_owned()
            };
            return self.refused(&format!("the key {key} could not be used: {why} ({line})"), &advice);
        }
        if said.all.contains("with partial success") {
            return self.refused(
                &format!("it asks for more than a key, and nobody is here to type it ({line})"),
                "open a connection by hand (ssh -M -S PATH …) and name its socket as ssh_control_path",
            );
        }
        if let Some(key) = said.behind(ACCEPTED).next_back().map(key) {
            let file = key.split(' ').next().unwrap_or(key);
            return if key.ends_with(" agent") {
                self.refused(
                    &format!("the agent did not sign with the key {key}: {}", said.joined()),
                    "the agent may want a confirmation or a touch: look at it, or name another key as ssh_key",
                )
            } else {
                self.refused(
                    &format!(
                        "the key {key} would do, but it needs its passphrase, and nobody is here to type it ({line})"
                    ),
                    &format!("load it into the agent first: ssh-add {}", word(file)),
                )
            };
        }
        if let Some(missing) = said.line("not accessible") {
            return self.refused(
                &format!(
                    "{} ({line})",
                    missing.trim_start_matches("Warning: ").trim_end_matches('.')
                ),
                "correct ssh_key, or IdentityFile in ~/.ssh/config",
            );
        }
        let offered: Vec<&str> = said.behind("Offering public key: ").map(key).collect();
        let tried = if offered.is_empty() {
            "no key was offered".to_owned()
        } else {
            format!("these keys were offered: {}", offered.join("; "))
        };
        let silent = self.silent_agent().map_or(String::new(), |agent| format!("; {agent}"));
        let mut advice = "add a key there (ssh-copy-id), name one with ssh_key, or load it into the agent (ssh-add); \
                          passwords are not asked for. Where the key is right, the account may be locked, expired or \
                          without a valid shell"
            .to_owned();
        if offered.iter().any(|key| key.contains("-CERT ")) {
            advice.push_str(", or the certificate may have expired or be for other accounts (ssh-keygen -L -f FILE)");
        }
        self.refused(&format!("it refused the login ({line}; {tried}{silent})"), &advice)
    }

    /// An agent that was to be asked and is not there: ssh passes over it without a word.
    fn silent_agent(&self) -> Option<String> {
        let socket = self.options.environment.get(OsStr::new("SSH_AUTH_SOCK"))?;
        let error = UnixStream::connect(socket).err()?;
        let socket = socket.to_string_lossy();
        let error = error.to_string();
        let why = error.split(" (os error").next().unwrap_or(&error);
        Some(format!(
            "no agent answers at {socket}, which SSH_AUTH_SOCK names: {why}"
        ))
    }

    /// It did not connect in time.
    pub(super) fn late(&self, said: &str) -> BackendError {
        let said = Said::new(said);
        let stage = if said.all.contains("debug1: Authenticating to ") {
            "it was connected, but the login did not end"
        } else if said.all.contains("debug1: Connection established") {
            "it was connected, but nobody answered as an SSH server does"
        } else {
            "nobody answered"
        };
        let limit = self.options.connect_timeout.as_secs();
        self.unreachable(
            &format!("ssh did not get in within {limit} s: {stage}"),
            "check that the host is up and that network and firewall let it through",
        )
    }

    /// The host lets no command begin over a connection.
    pub(super) fn full(&self) -> BackendError {
        self.refused(
            "the connection carries as many commands as the host lets it (MaxSessions)",
            "raise MaxSessions in its sshd_config; a connection of your own (ssh_control_path) must have room for two",
        )
    }

    /// ssh itself could not be started.
    pub(super) fn no_ssh(&self, why: &str) -> BackendError {
        self.refused(
            &format!("ssh cannot be started here: {why}"),
            "install the OpenSSH client on this machine",
        )
    }

    pub(super) fn refused(&self, reason: &str, advice: &str) -> BackendError {
        BackendError::Refused {
            target: self.options.target.clone(),
            reason: reason.to_owned(),
            advice: advice.to_owned(),
        }
    }

    pub(super) fn unreachable(&self, reason: &str, advice: &str) -> BackendError {
        BackendError::Unreachable {
            target: self.options.target.clone(),
            reason: reason.to_owned(),
            advice: advice.to_owned(),
        }
    }

    /// The same login as somebody would type it.
    pub(super) fn by_hand(&self, more: &[&str]) -> String {
        let mut words: Vec<String> = vec!["ssh".to_owned()];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words.extend(self.options.login());
        words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ")
    }
}

/// Whether the host hung up before it said who it is, and nobody says why: as it does while too many log in at once
/// (`MaxStartups`), and while it starts.
pub(super) fn may_pass(said: &str) -> bool {
    let mut words = said
        .lines()
        .map(str::trim)
        .filter(|line| is_word_to_the_user(line))
        .peekable();
    let is_that = |line: &str| {
        line.contains("exchange_identification: ")
            || line.starts_with("Connection closed by ")
            || line.starts_with("Connection reset by ")
            || line.contains("Exceeded MaxStartups")
            || line.contains("Not allowed at this time")
    };
    words.peek().is_some() && words.all(is_that)
}

/// What ssh says of a connection that it has made.
pub(super) fn about(said: &str) -> Vec<(&'static str, String)> {
    let said = Said::new(said);
    let mut lines = Vec::new();
    if let Some(version) = said.all.lines().find(|line| line.starts_with("OpenSSH_")) {
        lines.push(("ssh here", version.trim().to_owned()));
    }
    if let Some(software) = said.behind("remote software version ").next_back() {
        lines.push(("sshd there", software.to_owned()));
    }
    if let Some(whom) = said.behind(LET_IN).next_back() {
        let key = said.behind(ACCEPTED).next_back().map(key);
        let key = key.map_or(String::new(), |key| format!(", with {key}"));
        lines.push(("login", format!("{}{key}", whom.trim_end_matches('.'))));
    }
    lines
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

/// The command that forgets a key: ssh's own, where it says one, for it knows the file and the name there.
fn forget(said: &Said<'_>, options: &SshOptions) -> String {
    if let Some(line) = said.line("ssh-keygen -f ") {
        return line.to_owned();
    }
    let file = said
        .behind(" key in ")
        .next_back()
        .and_then(|place| place.rsplit_once(':'));
    let file = file.map_or(String::new(), |(file, _)| format!("-f {} ", word(file)));
    let host = options.destination.rsplit('@').next().unwrap_or_default();
    // So `known_hosts` names a host with a port of its own.
    let name = match options.port {
        Some(port) if port != 22 => format!("[{host}]:{port}"),
        _ => host.to_owned(),
    };
    format!("ssh-keygen {file}-R {}", word(&name))
}

/// A word as a shell takes it.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@+%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
