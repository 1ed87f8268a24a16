//! The first command on a host: where an account cannot run any, what happens instead says why.

use std::collections::BTreeMap;
use std::time::Duration;

use openssh::{Session, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::failure::Attempt;
use super::line::{self, Numbered};
use super::master::Master;
use super::process::Started;
use crate::backends::{BackendError, Command, Process, ProcessEnd};

/// How a client of the file transfer begins, and what its server says then: who answers so, runs no commands.
const TRANSFER_HELLO: &[u8] = b"\0\0\0\x05\x01\0\0\0\x03";
const TRANSFER_ANSWER: u8 = 2;
/// How long an answer to that may take.
const ANSWER: Duration = Duration::from_secs(1);
/// How long it may take that something happens after the end of standard input, and the rest of what is said.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// How long a command is waited for before it is found out whether it can begin at all.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of what was said that are looked at, and characters that an error quotes.
const READ: u64 = 64 * 1024;
const QUOTED: usize = 400;

/// Waits until the command has begun.
pub(super) async fn begun(
    started: Started,
    limit: Duration,
    attempt: &Attempt<'_>,
    r#become: Option<&str>,
    master: &Master,
) -> Result<Process, BackendError> {
    let Started { mut process, mut begun } = started;
    let mut out = Vec::new();
    let never = async {
        let never = timeout(limit, never_begins(master, r#become)).await;
        never.map_or(Silence::Unexplained, |()| Silence::Taken)
    };
    let silence = tokio::select! {
        biased;
        begun = &mut begun => match begun {
            Ok(()) => return Ok(process),
            Err(_) => None,
        },
        silence = never => {
            // Whoever waits for input shows what it is on this.
            let _ = process.stdin.write_all(TRANSFER_HELLO).await;
            // An answer that is not waited for may never be written.
            out = said(&mut process.stdout, ANSWER).await;
            // Only this is the end of a pipe.
            process.stdin = Box::new(tokio::io::sink());
            if matches!(timeout(AFTERWARDS, &mut begun).await, Ok(Ok(()))) {
                return Err(match silence {
                    Silence::Taken => Instead::Reads.error(attempt),
                    Silence::Unexplained => Instead::Late(limit).error(attempt),
                });
            }
            Some(silence)
        }
    };
    let (rest, err) = tokio::join!(
        said(&mut process.stdout, AFTERWARDS),
        said(&mut process.stderr, AFTERWARDS)
    );
    out.extend(rest);
    if silence.is_some() && begun.try_recv().is_ok() {
        return Err(Instead::Late(limit).error(attempt));
    }
    let end = timeout(AFTERWARDS, process.end.wait()).await.ok();
    let words = quoted(&[err, out.clone()]);
    let instead = match (end, r#become) {
        _ if out.get(4) == Some(&TRANSFER_ANSWER) && out.starts_with(&[0, 0]) => Instead::Transfer,
        // So says sshd itself.
        _ if words.contains("allows sftp connections only") => Instead::Transfer,
        (Some(ProcessEnd::Lost), _) if master.is_up().await => Instead::Refused(words),
        (Some(ProcessEnd::Lost), _) => Instead::Lost(words),
        _ if silence == Some(Silence::Taken) => Instead::Taken(words),
        _ if silence == Some(Silence::Unexplained) => Instead::Silence(limit, words),
        (_, Some(user)) => Instead::NotAs {
            user: user.to_owned(),
            login: login(master).await,
            words,
        },
        (Some(ProcessEnd::Code(code)), None) => Instead::End(code, words),
        (_, None) => Instead::End(0, words),
    };
    Err(instead.error(attempt))
}

/// Why nothing is heard of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Something else took its place.
    Taken,
    /// Nobody knows.
    Unexplained,
}

/// Ends once it is clear that a command waits for input before it begins, or never begins: another one, which was asked
/// for later and has no input, has ended.
async fn never_begins(master: &Master, r#become: Option<&str>) {
    tokio::time::sleep(PATIENCE).await;
    let asked = Instant::now();
    let nothing = Command {
        program: "true".into(),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        folder: None,
        input: Default::default(),
    };
    let mut command = Session::to_raw_command(master.session(), line::line(&nothing, r#become));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    match command.output().await {
        // Then the first one is about to, unless it waits for input.
        Ok(output) if has_begun(&output.stderr) => tokio::time::sleep(2 * (asked.elapsed() + PATIENCE)).await,
        Ok(output) if output.status.code() != Some(255) => {}
        // The host lets no second one begin, or the connection is lost.
        _ => std::future::pending().await,
    }
}

fn has_begun(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said);
    said.lines().any(|line| Numbered::read(line).is_some())
}

/// What there was instead of a command.
enum Instead {
    /// Start-up files took what was meant for the command.
    Reads,
    /// A command that began when we had given it up.
    Late(Duration),
    /// The file transfer.
    Transfer,
    /// Nothing, though the connection stands.
    Refused(String),
    /// The end of the connection.
    Lost(String),
    /// Something that reads standard input, and was no command.
    Taken(String),
    /// Nothing in that time.
    Silence(Duration, String),
    /// The end of whatever ran.
    End(i32, String),
    /// No right to be that account.
    NotAs { user: String, login: String, words: String },
}

impl Instead {
    fn error(self, attempt: &Attempt<'_>) -> BackendError {
        let after = |words: &str| {
            if words.is_empty() {
                String::new()
            } else {
                format!(": {words}")
            }
        };
        match self {
            Self::Reads => attempt.refused(
                "start-up files of its login shell read from standard input, which belongs to the command",
                "let them do that in interactive shells alone; in .bashrc, put  case $- in *i*) ;; *) return ;; esac  \
                 before it",
            ),
            Self::Late(limit) => attempt.refused(
                &format!("a command took longer than {} s to begin there", limit.as_secs()),
                "let the start-up files of its login shell do less, and read no standard input; or set a longer \
                 ssh_connect_timeout",
            ),
            Self::Transfer => attempt.refused(
                "this account may only transfer files (sftp), and runs no commands",
                "log in as an account that runs commands, or have its ForceCommand or the command= of the key taken away",
            ),
            Self::Refused(words) => attempt.refused(
                &format!("it lets the account in, and runs no command for it{}", after(&words)),
                "log in as an account that runs commands; a device with a command line of its own is no target",
            ),
            Self::Lost(words) => attempt.unreachable(
                &format!("the connection ended before a command began{}", after(&words)),
                "try it again; should it stay so, its sshd says why in its log",
            ),
            Self::Taken(words) => attempt.refused(
                &format!(
                    "no command begins there: something else takes its place and reads its input{}",
                    after(&words)
                ),
                &format!(
                    "see what `{} true` does: start-up files of the login shell may start another shell (let them do that \
                     in interactive shells alone), or a ForceCommand may stand before commands",
                    attempt.by_hand(&[])
                ),
            ),
            Self::Silence(limit, words) => attempt.refused(
                &format!("no command began there within {} s{}", limit.as_secs(), after(&words)),
                &format!(
                    "see what `{} true` does: start-up files of the login shell may start another \
                     shell or wait for something, or a ForceCommand may stand before commands. Where it only takes long, \
                     set a longer ssh_connect_timeout",
                    attempt.by_hand(&[])
                ),
            ),
            Self::End(_, words) if is_about_a_password(&words) => attempt.refused(
                &format!("the account has to change its password first{}", after(&words)),
                &format!(
                    "log in by hand ({}) and set a new one, or ask who administers it",
                    attempt.by_hand(&[])
                ),
            ),
            Self::End(code, words) => attempt.refused(
                &format!("what runs commands there ran none and ended with {code}{}", after(&words)),
                "the account needs a login shell that runs commands (chsh -s /bin/sh; not nologin, false or a \
                 restricted one), start-up files that do not end it, and neither a ForceCommand nor a command= of the \
                 key before it",
            ),
            Self::NotAs { user, login, words } => {
                let advice = if words.contains("not found") {
                    "install sudo there, or leave ssh_become out and log in as that account".to_owned()
                } else if words.contains("unknown user") {
                    "name an account that exists there as ssh_become".to_owned()
                } else {
                    let lifted = if words.contains("tty") {
                        format!(", and  Defaults:{login} !requiretty")
                    } else {
                        String::new()
                    };
                    format!(
                        "let {login} do so without a password by a line for sudo there (visudo):  {login} ALL=({user}) \
                         NOPASSWD: /bin/sh{lifted}"
                    )
                };
                attempt.refused(
                    &format!("no command can be run as {user} by sudo{}", after(&words)),
                    &advice,
                )
            }
        }
    }
}

fn is_about_a_password(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("password") && ["expired", "change"].iter().any(|word| words.contains(word))
}

/// All that comes in that time.
async fn said(stream: &mut (dyn AsyncRead + Send + Unpin), limit: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut limited = stream.take(READ);
    let _ = timeout(limit, limited.read_to_end(&mut bytes)).await;
    bytes
}

/// The last of what was said, in one line.
fn quoted(said: &[Vec<u8>]) -> String {
    let lines: Vec<String> = said
        .iter()
        .flat_map(|bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        })
        .filter(|line| !line.is_empty() && !line.contains(char::is_control))
        .collect();
    let text = lines.join("; ");
    let long = text.chars().count().saturating_sub(QUOTED);
    text.chars().skip(long).collect()
}

/// The account that logged in, as an administrator would write it.
async fn login(master: &Master) -> String {
    let mut command = Session::to_raw_command(master.session(), "exec id -un");
    let output = timeout(AFTERWARDS, command.output()).await;
    let text = output
        .ok()
        .and_then(Result::ok)
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let name = text.lines().last().unwrap_or_default().trim();
    if name.is_empty() {
        "LOGIN".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::SshOptions;
    use super::*;

    #[test]
    fn what_happened_instead_says_what_to_do() {
        let options = SshOptions::new("ssh:box", "box");
        let attempt = options.attempt();
        let not_as = |words: &str| Instead::NotAs {
            user: "bob".to_owned(),
            login: "al".to_owned(),
            words: words.to_owned(),
        };
        for (instead, words) in [
            (
                Instead::End(1, "This account is currently not available.".to_owned()),
                "ended with 1: This account is currently not available.; the account needs a login shell",
            ),
            (Instead::End(1, String::new()), "ended with 1; the account needs"),
            (
                Instead::End(1, "WARNING: Your password has expired.".to_owned()),
                "log in by hand (ssh box)",
            ),
            (
                Instead::End(1, "You are required to change your password immediately".to_owned()),
                "set a new one",
            ),
            (not_as("sudo: a password is required"), "al ALL=(bob) NOPASSWD: /bin/sh"),
            (
                not_as("sudo: sorry, you must have a tty to run sudo"),
                "Defaults:al !requiretty",
            ),
            (not_as("sh: 1: exec: sudo: not found"), "install sudo"),
            (not_as("sudo: unknown user bob"), "an account that exists"),
            (
                Instead::Refused(String::new()),
                "runs no command for it; log in as an account that",
            ),
            (Instead::Reads, "interactive shells alone"),
            (
                Instead::Late(Duration::from_secs(30)),
                "longer than 30 s to begin there; let the start-up",
            ),
            (Instead::Transfer, "only transfer files (sftp)"),
            (
                Instead::Silence(Duration::from_secs(20), String::new()),
                "within 20 s; see what `ssh box true` does",
            ),
            (
                Instead::Taken("$".to_owned()),
                "takes its place and reads its input: $; see what `ssh box true`",
            ),
            (Instead::Lost("bye".to_owned()), "cannot be reached"),
        ] {
            let error = instead.error(&attempt).to_string();
            assert!(error.starts_with("ssh:box ") && error.contains(words), "{error}");
        }
        assert_eq!(quoted(&[b" a\n\n\x01\nb\n".to_vec(), b"c".to_vec()]), "a; b; c");
    }
}
