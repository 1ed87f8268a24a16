//! A process in a sandbox: started under an id of our own, its streams carried by the worker's exec service.
//!
//! Streams are cut as a matter of course, and taken up again here at the byte where they were: whoever reads and writes
//! them sees nothing of it. Each has a task of its own, since the head of an answer may come only with its first byte.
//!
//! The service cannot kill a process. To kill one is to end its standard input, which the target side's own processes
//! take as their end; one that hangs before it reads that ends with its sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::debug;

use super::control::{CallFailed, with, within};
use super::retry::Policy;
use super::router::{Attempts, Client, Router};
use super::stdin;
use super::wire::client::secret_source::Source;
use super::wire::client::{SecretSource, StringMap};
use super::wire::task_command_router::task_exec_wait_response::ExitStatus;
use super::wire::task_command_router::{
    TaskExecStartRequest, TaskExecStderrConfig, TaskExecStdioFileDescriptor as Descriptor, TaskExecStdioReadRequest,
    TaskExecStdoutConfig, TaskExecWaitRequest,
};
use crate::backends::{Command, Process, ProcessEnd, ProcessWait};

/// Pieces of output that may wait for whoever reads.
const PIECES: usize = 16;

/// Bytes of standard input that may wait for the connection.
const INPUT: usize = 256 * 1024;

/// Bytes of a command's words together, as Modal takes them.
const LONGEST_COMMAND: usize = 65_536;

/// A process, as its service knows it.
#[derive(Clone)]
pub(super) struct Exec {
    pub(super) router: Arc<Router>,
    pub(super) task: String,
    pub(super) id: String,
    /// Whether the service has said that it runs; nobody tells once it cannot be started.
    started: watch::Receiver<bool>,
}

/// Why a process was not started.
pub(super) enum Unstarted {
    /// It cannot be: why.
    Command(String),
    /// The call came to nothing.
    Call(CallFailed),
}

/// Starts a process.
pub(super) async fn start(router: &Arc<Router>, task: &str, command: &Command) -> Result<Process, Unstarted> {
    let (tell, started) = watch::channel(false);
    let exec = Exec {
        router: router.clone(),
        task: task.to_owned(),
        id: super::unique(),
        started,
    };
    let request = exec.request(command).map_err(Unstarted::Command)?;
    let process = exec.carry(command.input.clone());
    let call = |mut client: Client, request| async move { client.task_exec_start(request).await };
    let started = router.call("TaskExecStart", Policy::ROUTER, request, call);
    started.await.map_err(Unstarted::Call)?;
    tell.send_replace(true);
    Ok(process)
}

impl Exec {
    fn request(&self, command: &Command) -> Result<TaskExecStartRequest, String> {
        let text = |bytes: &std::ffi::OsStr| match bytes.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err("Modal takes only commands that are valid UTF-8".to_owned()),
        };
        let mut words = vec![text(&command.program)?];
        for word in &command.arguments {
            words.push(text(word)?);
        }
        let length: usize = words.iter().map(String::len).sum();
        if length > LONGEST_COMMAND {
            return Err(format!(
                "its command line has {length} bytes, and Modal takes {LONGEST_COMMAND}"
            ));
        }
        let mut variables = std::collections::HashMap::new();
        for (name, value) in &command.environment {
            variables.insert(text(name)?, text(value)?);
        }
        let workdir = command
            .folder
            .as_ref()
            .map(|folder| text(folder.as_os_str()))
            .transpose()?;
        Ok(TaskExecStartRequest {
            task_id: self.task.clone(),
            exec_id: self.id.clone(),
            command_args: words,
            stdout_config: TaskExecStdoutConfig::Pipe.into(),
            stderr_config: TaskExecStderrConfig::Pipe.into(),
            workdir,
            secret_sources: secret_source(variables),
        })
    }

    /// Whether it is known to run.
    pub(super) fn is_started(&self) -> bool {
        *self.started.borrow()
    }

    /// Waits until it runs. Whether it does.
    pub(super) async fn has_started(&self) -> bool {
        self.started.clone().wait_for(|started| *started).await.is_ok()
    }

    /// Carries the streams of a process that is being started. Its output is asked for at once, and what it is to read
    /// first is sent at once, which saves a round trip where the service knows of the process by then.
    fn carry(self, input: Bytes) -> Process {
        let closing = CancellationToken::new();
        let (to_stdout, stdout) = mpsc::channel(PIECES);
        let (to_stderr, stderr) = mpsc::channel(PIECES);
        let (tell, end) = watch::channel(None);
        let (stdin, from_stdin): (DuplexStream, DuplexStream) = tokio::io::duplex(INPUT);
        tokio::spawn(read(self.clone(), Descriptor::Stdout, to_stdout, closing.clone()));
        tokio::spawn(read(self.clone(), Descriptor::Stderr, to_stderr, closing.clone()));
        tokio::spawn(stdin::carry(
            self.clone(),
            input,
            from_stdin,
            end.clone(),
            closing.clone(),
        ));
        tokio::spawn(wait(self, tell));
        Process {
            stdin: Box::new(stdin),
            stdout: Box::new(Output::new(stdout)),
            stderr: Box::new(Output::new(stderr)),
            end: Box::new(End { end, closing }),
            // There is no call for that, and no number of the process to send a signal to.
            wake: Arc::new(|| {}),
        }
    }
}

/// Variables, as calls of both services carry them; they show in no command line.
pub(super) fn secret_source(variables: std::collections::HashMap<String, String>) -> Vec<SecretSource> {
    if variables.is_empty() {
        return Vec::new();
    }
    let source = Some(Source::Env(StringMap { contents: variables }));
    vec![SecretSource { source }]
}

/// Carries one output from its first byte to its last.
async fn read(exec: Exec, descriptor: Descriptor, to: mpsc::Sender<Bytes>, closing: CancellationToken) {
    let all = async {
        let mut attempts = Attempts::new(&exec.router, "TaskExecStdioRead", Policy::STREAM);
        let mut offset = 0;
        // What it says on standard error nobody is in a hurry for.
        if descriptor == Descriptor::Stderr && !exec.has_started().await {
            return Ok(());
        }
        loop {
            let is_early = !exec.is_started();
            let cut = read_once(&exec, descriptor, &mut offset, &mut attempts, &to).await?;
            // It may have come before the process was known.
            if is_early && offset == 0 {
                if !exec.has_started().await {
                    break;
                }
                continue;
            }
            match cut {
                Some(status) => attempts.failed(&status).await?,
                None => break,
            }
        }
        Ok::<(), CallFailed>(())
    };
    let read = tokio::select! {
        read = all => read,
        () = to.closed() => Ok(()),
        () = closing.cancelled() => Ok(()),
    };
    if let Err(failed) = read {
        debug!(exec = exec.id, ?descriptor, code = ?failed.code, message = failed.message, "an output is lost");
    }
}

/// Carries an output from `offset` on, until it has ended or is cut: then why.
async fn read_once(
    exec: &Exec,
    descriptor: Descriptor,
    offset: &mut u64,
    attempts: &mut Attempts<'_>,
    to: &mpsc::Sender<Bytes>,
) -> Result<Option<Status>, CallFailed> {
    let request = TaskExecStdioReadRequest {
        task_id: exec.task.clone(),
        exec_id: exec.id.clone(),
        offset: *offset,
        file_descriptor: descriptor.into(),
    };
    let (mut client, metadata) = attempts.next().await?;
    let mut stream = match client.task_exec_stdio_read(with(metadata, request)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return Ok(Some(status)),
    };
    loop {
        match stream.message().await {
            Ok(Some(message)) if message.data.is_empty() => {}
            Ok(Some(message)) => {
                attempts.progress();
                *offset += message.data.len() as u64;
                if to.send(message.data).await.is_err() {
                    return Ok(None);
                }
            }
            Ok(None) => return Ok(None),
            Err(status) => return Ok(Some(status)),
        }
    }
}

/// Waits for the end of the process, for as long as anybody wants to know.
async fn wait(exec: Exec, tell: watch::Sender<Option<ProcessEnd>>) {
    if !exec.has_started().await {
        return;
    }
    let end = async {
        let mut attempts = Attempts::new(&exec.router, "TaskExecWait", Policy::WAIT);
        loop {
            let request = TaskExecWaitRequest {
                task_id: exec.task.clone(),
                exec_id: exec.id.clone(),
            };
            let (mut client, metadata) = attempts.next().await?;
            let asked = client.task_exec_wait(with(metadata, request));
            match within(attempts.time(), asked).await {
                Ok(answer) => match answer.into_inner().exit_status {
                    Some(ExitStatus::Code(code)) => return Ok(ProcessEnd::Code(code)),
                    Some(ExitStatus::Signal(signal)) => return Ok(ProcessEnd::Signal(signal)),
                    None => {}
                },
                Err(status) => attempts.failed(&status).await?,
            }
        }
    };
    let end: Result<ProcessEnd, CallFailed> = tokio::select! {
        end = end => end,
        () = tell.closed() => return,
    };
    let end = end.unwrap_or_else(|failed| {
        let expected = matches!(failed.code, Code::NotFound | Code::FailedPrecondition);
        debug!(
            exec = exec.id,
            expected,
            message = failed.message,
            "nobody knows how a process ended"
        );
        ProcessEnd::Lost
    });
    tell.send_replace(Some(end));
}

/// The end of a process.
struct End {
    end: watch::Receiver<Option<ProcessEnd>>,
    closing: CancellationToken,
}

#[async_trait]
impl ProcessWait for End {
    async fn wait(&mut self) -> ProcessEnd {
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => end.unwrap_or(ProcessEnd::Lost),
            Err(_) => ProcessEnd::Lost,
        }
    }

    fn kill(&mut self) {
        self.closing.cancel();
    }
}

/// Standard output, or standard error.
struct Output {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Output {
    fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        let current = Bytes::new();
        Self { pieces, current }
    }
}

impl AsyncRead for Output {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.current.is_empty() {
            match ready!(self.pieces.poll_recv(context)) {
                Some(piece) => self.current = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.current.len().min(into.remaining());
        into.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}
