//! The place of a session on its target, and how further links to it are made.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tracing::debug;

use super::attempts::Lost;
use super::shared::Writer;
use super::start::Start;
use crate::backends::{BackendError, Command, Process, ProcessWait, Target, TargetState};
use crate::bundle;
use crate::link::LinkError;

/// The number of the link that makes a session.
pub(super) const FIRST_LINK: u64 = 1;
/// Time to wait for the end of a process that carries nothing any more.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Time in which a relay that has said that the session is gone must have seen to it that nothing is left.
const SEEN_OFF: Duration = Duration::from_secs(8);

/// One process on the target that carries the directory. It is killed when this is dropped.
pub(super) struct Connection {
    pub(super) stdin: Option<Writer>,
    pub(super) stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) buffer: BytesMut,
    end: Box<dyn ProcessWait>,
    last_line: Arc<Mutex<String>>,
}

impl Connection {
    /// Takes over a process, with what it has already said.
    pub(super) fn new(process: Process, buffer: BytesMut) -> Self {
        let last_line = Arc::new(Mutex::new(String::new()));
        let said = last_line.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(process.stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                debug!(relay = %line);
                *said.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        });
        Self {
            stdin: Some(process.stdin),
            stdout: process.stdout,
            buffer,
            end: process.end,
            last_line,
        }
    }

    /// The session has begun: where the process is the one that the target lives for, the end of this link is not its end.
    pub(super) fn settle(&mut self) {
        self.end.detach();
    }

    /// Waits for its end: a relay stays until nothing is left of a session that has ended.
    pub(super) async fn see_off(&mut self) {
        let rest = async {
            loop {
                self.buffer.clear();
                if !matches!(self.stdout.read_buf(&mut self.buffer).await, Ok(1..)) {
                    break;
                }
            }
        };
        if tokio::time::timeout(SEEN_OFF, rest).await.is_err() {
            debug!("the last relay of a session stayed for longer than it should");
        }
    }

    /// What became of it, with its last line on stderr.
    pub(super) async fn why(&mut self, what: &str) -> String {
        // What it had to say comes with its end.
        let _ = tokio::time::timeout(LAST_WORDS, self.end.wait()).await;
        let line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.trim().is_empty() {
            what.to_owned()
        } else {
            format!("{what} ({})", line.trim())
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end.kill();
    }
}

/// Where a session is.
pub(super) struct Site {
    pub(super) target: Arc<dyn Target>,
    pub(super) name: String,
    pub(super) python: OsString,
    pub(super) folder: String,
    pub(super) owner: String,
    pub(super) link: u64,
    pub(super) window: u32,
    pub(super) reconnect_timeout: Duration,
    pub(super) lease: Duration,
    /// What the target said of itself when it was asked first: while the first link stands.
    known: Arc<OnceLock<Known>>,
}

/// What tells a target from another, and one start of it from the next.
struct Known {
    incarnation: String,
    machine: String,
}

impl Known {
    /// Why a target of another incarnation is not the one that it was.
    fn why_another(&self, machine: &str) -> String {
        self.is_elsewhere(machine)
            .unwrap_or_else(|| "it was started anew, and what ran there is gone; run the cell again".to_owned())
    }

    /// Says so where another machine answers than the one that the session is on.
    fn is_elsewhere(&self, machine: &str) -> Option<String> {
        let old = &self.machine;
        (!old.is_empty() && !machine.is_empty() && machine != old).then(|| {
            format!(
                "another machine answers there now ({machine}, and not {old}, where the session ran): the name leads to \
                 several, and a session lives on one of them; name that one as the target"
            )
        })
    }
}

impl Site {
    /// The place of a session that is about to begin.
    pub(super) fn new(start: &Start, python: OsString, owner: String, window: u32) -> Self {
        Self {
            target: start.target.clone(),
            name: start.name.clone(),
            python,
            folder: String::new(),
            owner,
            link: FIRST_LINK,
            window,
            reconnect_timeout: start.reconnect_timeout,
            lease: start.lease,
            known: Arc::default(),
        }
    }

    /// Asks for the target's incarnation, so that it is noticed when it was started anew.
    pub(super) fn remember(&self) {
        let (target, known) = (self.target.clone(), self.known.clone());
        tokio::spawn(async move {
            if let TargetState::Running { incarnation, machine } = target.state().await
                && !incarnation.is_empty()
            {
                // It may be known by now.
                let _ = known.set(Known { incarnation, machine });
            }
        });
    }

    /// The session has ended.
    pub(super) fn ended(&self, reason: impl Into<String>) -> Lost {
        Lost::Ended(LinkError::Ended {
            target: self.name.clone(),
            reason: reason.into(),
        })
    }

    /// Says more of a session that had ended when it was come back to, or looked at: perhaps with the connection.
    pub(super) async fn explain(&self, error: LinkError) -> LinkError {
        let LinkError::Ended { target, reason } = &error else {
            return error;
        };
        let Some(why) = self.why_gone().await else { return error };
        LinkError::Ended {
            target: target.clone(),
            reason: format!("{reason}; {why}"),
        }
    }

    async fn why_gone(&self) -> Option<String> {
        if let Some(known) = self.known.get()
            && let TargetState::Running { machine, .. } = self.target.state().await
            && let Some(why) = known.is_elsewhere(&machine)
        {
            return Some(why);
        }
        self.target.ends_at_logout().await
    }

    /// Looks whether the target is still the one that it was, and runs.
    pub(super) async fn check(&self) -> Result<(), Lost> {
        match self.target.state().await {
            TargetState::Gone(how) => Err(self.ended(how)),
            TargetState::Unreachable(why) => Err(Lost::Broken(why)),
            TargetState::Paused => Err(Lost::Broken(
                "it is paused; let it go on (docker unpause, for a container)".to_owned(),
            )),
            // Where nothing is known, the directory itself shows.
            TargetState::Running { incarnation, .. } if incarnation.is_empty() => Ok(()),
            TargetState::Running { incarnation, machine } => {
                let known = self.known.get_or_init(|| Known {
                    incarnation: incarnation.clone(),
                    machine: machine.clone(),
                });
                if known.incarnation == incarnation {
                    Ok(())
                } else {
                    Err(self.ended(known.why_another(&machine)))
                }
            }
        }
    }

    /// Starts another process that carries the directory. Its number is higher than all before. Where there are no streams,
    /// `input` is all that it is told.
    pub(super) async fn spawn(&mut self, input: Bytes) -> Result<Connection, Lost> {
        self.link += 1;
        let command = Command {
            program: self.python.clone(),
            arguments: bundle::arguments_of_link(&self.folder, &self.owner, self.link, self.window),
            environment: Default::default(),
            folder: None,
            input,
        };
        match self.target.spawn(command).await {
            Ok(process) => Ok(Connection::new(process, BytesMut::with_capacity(1 << 16))),
            Err(BackendError::Gone { reason, advice, .. }) => Err(self.ended(format!("{reason}; {advice}"))),
            Err(error) => Err(Lost::Broken(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use async_trait::async_trait;

    use super::*;
    use crate::backends::Capabilities;

    /// A target that says this of itself, one after the other.
    struct Says(Mutex<VecDeque<(&'static str, &'static str)>>);

    #[async_trait]
    impl Target for Says {
        fn capabilities(&self) -> Capabilities {
            Capabilities::elsewhere(0)
        }

        async fn spawn(&self, _: Command) -> Result<Process, BackendError> {
            Err(BackendError::Refused {
                target: String::new(),
                reason: String::new(),
                advice: String::new(),
            })
        }

        async fn state(&self) -> TargetState {
            let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (incarnation, machine) = said.pop_front().unwrap_or_default();
            TargetState::Running {
                incarnation: incarnation.to_owned(),
                machine: machine.to_owned(),
            }
        }

        async fn close(&self) -> Result<(), BackendError> {
            Ok(())
        }
    }

    fn site<const N: usize>(said: [(&'static str, &'static str); N]) -> Site {
        Site {
            target: Arc::new(Says(Mutex::new(said.into()))),
            name: "exec:x".to_owned(),
            python: OsString::new(),
            folder: String::new(),
            owner: String::new(),
            link: FIRST_LINK,
            window: 0,
            reconnect_timeout: Duration::ZERO,
            lease: Duration::ZERO,
            known: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_another_machine_is_said() {
        for (then, words) in [
            (("2", "box-a"), "it was started anew"),
            (("2", ""), "it was started anew"),
            (
                ("2", "box-b"),
                "another machine answers there now (box-b, and not box-a",
            ),
        ] {
            let site = site([("1", "box-a"), then]);
            assert!(site.check().await.is_ok());
            let lost = site.check().await;
            assert!(
                matches!(&lost, Err(Lost::Ended(error)) if error.to_string().contains(words)),
                "{lost:?}"
            );
        }
        // Two that share a kernel, as containers do; and one whose name has changed.
        let gone = || LinkError::Ended {
            target: "x".to_owned(),
            reason: "it is gone".to_owned(),
        };
        for (machine, is_said) in [("box-b", true), ("box-a", false)] {
            let site = site([("1", "box-a"), ("1", machine), ("1", machine)]);
            assert!(site.check().await.is_ok() && site.check().await.is_ok());
            let error = site.explain(gone()).await.to_string();
            assert_eq!(error.contains("another machine answers"), is_said, "{error}");
        }
    }

    #[tokio::test]
    async fn a_target_that_says_nothing_of_its_start_was_not_started_anew() {
        let site = site(["", "one", "", "one", "two"].map(|said| (said, "")));
        for _ in 0..4 {
            assert!(site.check().await.is_ok());
        }
        let lost = site.check().await;
        assert!(matches!(&lost, Err(Lost::Ended(error)) if error.to_string().contains("started anew")));
    }
}
