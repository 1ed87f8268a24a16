//! A command over the connection: its streams, its number over there, its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use openssh::{Session, Stdio};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, SimplexStream, WriteHalf,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::line::{self, Numbered};
use super::master::Master;
use crate::backends::{Command, Process, ProcessEnd, ProcessWait};

/// Bytes of standard error that wait unread.
const STDERR_BUFFER: usize = 64 * 1024;

/// A command that was asked for, and whether it has begun: what runs commands there may do something else instead.
pub(super) struct Started {
    /// Its streams.
    pub(super) process: Process,
    /// Is told when it has begun; closed when its standard error ends without that.
    pub(super) begun: oneshot::Receiver<()>,
}

/// How long a command over a connection that is up may take to begin.
pub(super) const START_LIMIT: Duration = Duration::from_secs(20);

/// Why a command did not begin.
#[derive(Debug)]
pub(super) enum Unbegun {
    /// The connection carries as many as the host lets it: `MaxSessions` of `sshd_config`.
    Full,
    /// Nothing was heard of it in time.
    Late,
    /// For another reason.
    Other(String),
}

impl Unbegun {
    pub(super) fn of(error: &openssh::Error) -> Self {
        match reason(error) {
            // The words of ssh for a channel that the other side did not open.
            reason if reason.contains("open refused by peer") => Self::Full,
            reason => Self::Other(reason),
        }
    }
}

/// Starts a command, as another account where `become` names one.
pub(super) async fn start(master: Arc<Master>, command: &Command, r#become: Option<&str>) -> Result<Started, Unbegun> {
    let line = line::line(command, r#become);
    let begun = tokio::time::timeout(START_LIMIT, begin(master, line)).await;
    begun.unwrap_or(Err(Unbegun::Late))
}

async fn begin(master: Arc<Master>, line: String) -> Result<Started, Unbegun> {
    let mut command = Session::to_raw_command(master.session(), line);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().await.map_err(|error| Unbegun::of(&error))?;
    let streams = (child.stdin().take(), child.stdout().take(), child.stderr().take());
    let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
        return Err(Unbegun::Other("its standard streams could not be opened".to_owned()));
    };
    let number = Number::default();
    let (said, saying) = tokio::io::simplex(STDERR_BUFFER);
    let (tell, begun) = oneshot::channel();
    tokio::spawn(listen(stderr, saying, number.clone(), tell));
    // The connection stays up as long as a command runs over it.
    let held = master.clone();
    let end = tokio::spawn(async move {
        let end = ended(child.wait().await);
        drop(held);
        end
    });
    let process = Process {
        stdin: Box::new(stdin),
        stdout: Box::new(stdout),
        stderr: Box::new(said),
        end: Box::new(SshEnd {
            end: Some(end),
            number,
            master,
        }),
        wake: Arc::new(|| {}),
    };
    Ok(Started { process, begun })
}

/// What ssh has to say of a command, and why.
fn reason(error: &openssh::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The process over there, once it has said which it is.
type Number = Arc<Mutex<Option<Numbered>>>;

/// Passes on what a command writes to standard error, less the line that says which process it is.
async fn listen(
    stderr: impl AsyncRead + Unpin,
    mut saying: WriteHalf<SimplexStream>,
    number: Number,
    begun: oneshot::Sender<()>,
) {
    let mut stderr = BufReader::new(stderr);
    if until_it_begins(&mut stderr, &mut saying, &number).await {
        // Only the first command of a target is waited for.
        let _ = begun.send(());
        // Nobody may want to hear it.
        let _ = tokio::io::copy(&mut stderr, &mut saying).await;
    }
    // Nothing else tells the reader that this is all.
    let _ = saying.shutdown().await;
}

/// The same up to that line. False: it did not come.
async fn until_it_begins(
    mut stderr: impl AsyncBufRead + Unpin,
    saying: &mut WriteHalf<SimplexStream>,
    number: &Number,
) -> bool {
    // Nobody reads it yet, so what does not fit is left out.
    let mut room = STDERR_BUFFER;
    loop {
        let mut line = Vec::new();
        // Before it may come what start-up files of the shell have to say.
        match (&mut stderr)
            .take(STDERR_BUFFER as u64)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(1..) => {}
            _ => return false,
        }
        let text = String::from_utf8_lossy(&line);
        if let Some(found) = Numbered::read(&text) {
            *number.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            return true;
        }
        room = room.saturating_sub(line.len());
        if room > 0 && saying.write_all(&line).await.is_err() {
            return false;
        }
    }
}

fn ended(end: Result<std::process::ExitStatus, openssh::Error>) -> ProcessEnd {
    match end {
        // With this, ssh says that the connection was lost; hardly any program does.
        Ok(status) if status.code() == Some(255) => ProcessEnd::Lost,
        Ok(status) => status.code().map_or(ProcessEnd::Lost, ProcessEnd::Code),
        Err(openssh::Error::Remote(_)) => ProcessEnd::Code(127),
        Err(_) => ProcessEnd::Lost,
    }
}

struct SshEnd {
    /// `None` once it was told.
    end: Option<JoinHandle<ProcessEnd>>,
    number: Number,
    master: Arc<Master>,
}

#[async_trait]
impl ProcessWait for SshEnd {
    async fn wait(&mut self) -> ProcessEnd {
        let Some(end) = &mut self.end else {
            return ProcessEnd::Lost;
        };
        let ended = end.await.unwrap_or(ProcessEnd::Lost);
        self.end = None;
        ended
    }

    fn kill(&mut self) {
        let Some(end) = self.end.take() else { return };
        let number = *self.number.lock().unwrap_or_else(PoisonError::into_inner);
        match number {
            // ssh has no word for it: another command does it.
            Some(number) if !end.is_finished() => self.master.kill(number, end),
            _ => end.abort(),
        }
    }
}

impl Drop for SshEnd {
    fn drop(&mut self) {
        self.kill();
    }
}
