//! One command in a sandbox: started once, asked for until it has ended, cancelled when nobody needs it.
//!
//! Its id is ours. So an answer that is lost does no harm: whether the command arrived is asked, and only one that did not
//! is sent again. The gateway runs one at a time; ours wait here for their turn.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::client::{Again, Client, Failed, Patience, Request};
use super::wrap::Wrapped;
use crate::backends::{Command, Process, ProcessEnd, ProcessWait};

/// The longest that a command may take over there.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// Time for an answer to the start of a command, and in which it must have been taken.
const START: Patience = Patience {
    attempt: Duration::from_secs(30),
    total: Duration::from_secs(60),
};

/// The same for the question what became of it.
const ASK: Patience = Patience {
    attempt: Duration::from_secs(10),
    total: Duration::from_secs(60),
};

/// The same for what ends it, and for its end after that.
const CANCEL: Patience = Patience {
    attempt: Duration::from_secs(5),
    total: Duration::from_secs(10),
};

/// The first and the longest pause between two questions.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Bytes of a process's output that wait for whoever reads them.
const PIPE: usize = 1 << 16;

/// A sandbox, as commands see it.
pub(super) struct Place {
    pub(super) client: Arc<Client>,
    pub(super) id: String,
    /// Where its commands start.
    pub(super) folder: String,
    /// What each of its commands gets beside its own variables.
    pub(super) variables: Vec<(String, String)>,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The last command that it is known to have taken.
    last: Mutex<Option<String>>,
}

/// Why a command was not started.
#[derive(Debug)]
pub(super) enum Unstarted {
    /// It cannot be sent.
    Command(String),
    /// The gateway did not take it.
    Call(Failed),
}

/// What the gateway says of a command.
struct Told {
    status: String,
    output: String,
    returncode: Option<i64>,
}

impl Told {
    fn read(answer: &Value) -> Self {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            status: text("status"),
            output: text("output"),
            returncode: answer.get("returncode").and_then(Value::as_i64),
        }
    }

    fn is_final(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled" | "timeout")
    }
}

/// What is left of a process: its streams and its end.
struct Over {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: ProcessEnd,
}

impl Over {
    /// It has come to nothing, for this reason.
    fn lost(reason: String) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: reason.into_bytes(),
            end: ProcessEnd::Lost,
        }
    }

    fn of(wrapped: &Wrapped, told: &Told) -> Self {
        if let Some(finished) = wrapped.unwrap(&told.output) {
            return Self {
                stdout: finished.stdout,
                stderr: finished.stderr,
                end: ProcessEnd::Code(finished.status),
            };
        }
        let said: String = told.output.trim().chars().take(300).collect();
        let code = told
            .returncode
            .map(|code| format!(", exit code {code}"))
            .unwrap_or_default();
        Self::lost(match (told.status.as_str(), told.output.trim()) {
            ("timeout", _) => "the gateway ended the command after its time".to_owned(),
            ("cancelled", _) => "the gateway has cancelled the command".to_owned(),
            (status, "") => format!("the command said nothing ({status}{code})"),
            (_, output) if output.contains("base64") => {
                format!("the command could not be run, which needs `sh` and `base64` there: {said}")
            }
            (status, output) => format!(
                "the output of the command is not whole, {} bytes came ({status}{code}): {said}",
                output.len()
            ),
        })
    }
}

impl Place {
    pub(super) fn new(client: Arc<Client>, id: String, folder: &str, variables: Vec<(String, String)>) -> Self {
        Self {
            client,
            id,
            folder: folder.to_owned(),
            variables,
            turn: Arc::default(),
            last: Mutex::default(),
        }
    }

    /// The path of what is asked of the sandbox.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.id)
    }

    /// The last command that it is known to have taken.
    pub(super) fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks once what became of a command.
    pub(super) async fn question(&self, exec: &str, limit: Duration) -> Result<(), Failed> {
        let request = Request::get(self.path(&format!("/execs/{exec}")));
        self.client.once(&request, limit).await.map(drop)
    }

    /// What starts a line of the shell's there.
    pub(super) fn line(&self, exec: &str, line: &str, input: &str, limit: Duration) -> Request {
        let body = json!({
            "execId": exec,
            "command": line,
            "cwd": self.folder,
            "timeoutMs": u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            "stdinData": input,
        });
        Request::post(self.path("/execs"), &body)
    }

    /// Sends a command until it is known to have arrived.
    async fn submit(&self, exec: &str, request: &Request) -> Result<Told, Failed> {
        let question = Request::get(self.path(&format!("/execs/{exec}")));
        let mut again = Again::new(START.total, &self.client.waits);
        let mut may_be_there = false;
        loop {
            let answer = match may_be_there {
                true => self.client.once(&question, ASK.attempt).await,
                false => self.client.once(request, START.attempt).await,
            };
            match answer {
                Ok(answer) => {
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(exec.to_owned());
                    return Ok(Told::read(&answer));
                }
                Err(failed) if may_be_there && failed.is_missing() => {
                    debug!(exec, "a command has not arrived, and is sent again");
                    may_be_there = false;
                }
                Err(failed) => {
                    may_be_there |= failed.may_have_arrived();
                    again.after(failed).await?;
                }
            }
        }
    }

    /// Asks for a command until it has ended.
    async fn finish(&self, exec: &str, mut told: Told) -> Result<Told, Failed> {
        let question = Request::get(self.path(&format!("/execs/{exec}")));
        let mut pause = PAUSES.0;
        while !told.is_final() {
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
            told = Told::read(&self.client.ask(&question, ASK).await?);
        }
        Ok(told)
    }

    /// Ends a command, and waits for its end: the next one would wait for it over there.
    async fn cancel(&self, exec: &str) {
        let request = Request::post(self.path(&format!("/execs/{exec}/cancel")), &json!({}));
        let cancelled = match self.client.ask(&request, CANCEL).await {
            Ok(answer) => self.finish(exec, Told::read(&answer)).await.map(drop),
            Err(failed) => Err(failed),
        };
        if let Err(failed) = cancelled
            && !failed.is_missing()
        {
            debug!(exec, reason = failed.line(), "a command may go on that nobody needs");
        }
    }

    /// Starts a command when its turn has come.
    pub(super) async fn start(self: &Arc<Self>, command: &Command) -> Result<Process, Unstarted> {
        let mark = format!("talaria{}", super::super::unique());
        let wrapped = Wrapped::new(command, &self.variables, &mark).map_err(Unstarted::Command)?;
        let stop = CancellationToken::new();
        // Who starts it may not wait for that to be done.
        let unwanted = stop.clone().drop_guard();
        let (started, is_started) = oneshot::channel();
        let (end, ended) = watch::channel(None);
        let (out, stdout) = tokio::io::duplex(PIPE);
        let (err, stderr) = tokio::io::duplex(PIPE);
        let (place, stopped) = (self.clone(), stop.clone());
        tokio::spawn(async move {
            let over = place.run(wrapped, started, &stopped).await;
            let Some(over) = over else { return };
            // Nobody may read it any more.
            let write = |mut to: tokio::io::DuplexStream, data: Vec<u8>| async move {
                let _ = to.write_all(&data).await;
            };
            end.send_replace(Some(over.end));
            tokio::join!(write(out, over.stdout), write(err, over.stderr));
        });
        match is_started.await {
            Ok(Ok(())) => {}
            Ok(Err(failed)) => return Err(Unstarted::Call(failed)),
            Err(_) => return Err(Unstarted::Command("it was given up".to_owned())),
        }
        unwanted.disarm();
        Ok(Process {
            stdin: Box::new(tokio::io::sink()),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            end: Box::new(End { ended, stop }),
            wake: Arc::new(|| {}),
        })
    }

    /// A command from its turn to its end; `None` where it was not started, or was stopped.
    async fn run(
        &self,
        wrapped: Wrapped,
        started: oneshot::Sender<Result<(), Failed>>,
        stop: &CancellationToken,
    ) -> Option<Over> {
        let _turn = stop.run_until_cancelled(self.turn.clone().lock_owned()).await?;
        let exec = uuid();
        let request = self.line(&exec, &wrapped.line, &wrapped.input, LONGEST);
        let Some(submitted) = stop.run_until_cancelled(self.submit(&exec, &request)).await else {
            self.end_soon(&exec).await;
            return None;
        };
        let told = match submitted {
            Ok(told) => told,
            Err(failed) => {
                let may_be_there = failed.may_have_arrived();
                let _ = started.send(Err(failed));
                if may_be_there {
                    self.end_soon(&exec).await;
                }
                return None;
            }
        };
        drop(request);
        let _ = started.send(Ok(()));
        match stop.run_until_cancelled(self.finish(&exec, told)).await {
            Some(Ok(told)) => Some(Over::of(&wrapped, &told)),
            Some(Err(failed)) => Some(Over::lost(format!(
                "what became of the command is not known: {}",
                failed.line()
            ))),
            None => {
                self.end_soon(&exec).await;
                None
            }
        }
    }

    async fn end_soon(&self, exec: &str) {
        if tokio::time::timeout(CANCEL.total, self.cancel(exec)).await.is_err() {
            debug!(exec, "a command that was cancelled has not ended in time");
        }
    }
}

struct End {
    ended: watch::Receiver<Option<ProcessEnd>>,
    stop: CancellationToken,
}

#[async_trait]
impl ProcessWait for End {
    async fn wait(&mut self) -> ProcessEnd {
        let ended = self.ended.wait_for(Option::is_some).await;
        ended.ok().and_then(|end| *end).unwrap_or(ProcessEnd::Lost)
    }

    fn kill(&mut self) {
        self.stop.cancel();
    }
}

/// A random UUID: what the gateway's own clients use as ids.
pub(super) fn uuid() -> String {
    let mut text = super::super::unique();
    text.replace_range(12..13, "4");
    text.replace_range(16..17, "8");
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_look_as_the_gateway_knows_them() {
        let one = uuid();
        let parts: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
        assert!(
            one != uuid() && one[14..].starts_with('4') && one[19..].starts_with('8'),
            "{one}"
        );
    }
}
