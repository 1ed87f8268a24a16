//! Standard input of a process in a sandbox: one stream that stays open, taken up again where it was cut.
//!
//! The service says how many bytes it has only when it is asked, and asking ends the stream. So what was written is kept
//! until then; when much is kept the stream is ended on purpose, once all is there, and opened anew. Where streams do not
//! come to stand, each piece is a call of its own.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::debug;

use super::control::{CallFailed, with};
use super::exec::Exec;
use super::retry::Policy;
use super::router::Attempts;
use super::wire::task_command_router::task_exec_stdin_write_stream_request::Payload;
use super::wire::task_command_router::{
    TaskExecStdinStatusRequest, TaskExecStdinStatusResponse, TaskExecStdinWriteRequest, TaskExecStdinWriteStreamEnd,
    TaskExecStdinWriteStreamRequest, TaskExecStdinWriteStreamStart,
};
use crate::backends::ProcessEnd;

/// Bytes that are kept before it is asked what of them is there.
const KEPT: usize = 8 << 20;

/// The longest piece.
const PIECE: usize = 256 * 1024;

/// Pieces that may wait for the connection.
const WAITING: usize = 4;

/// Streams in a row that brought nothing on, after which each piece is a call of its own.
const STREAMS: u32 = 3;

/// Time in which a stream that is ended on purpose must have come to its end.
const SETTLE: Duration = Duration::from_secs(20);

/// Time in which a process whose input nobody holds any more is told so.
const FAREWELL: Duration = Duration::from_secs(10);

/// What was written and is not known to be there, from its first byte on.
#[derive(Debug, Default)]
struct Kept {
    /// How many bytes were before it.
    offset: u64,
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Kept {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// So many bytes are there, counted from the first of all. Whether that makes sense.
    fn there(&mut self, offset: u64) -> bool {
        let Some(mut more) = offset
            .checked_sub(self.offset)
            .and_then(|more| usize::try_from(more).ok())
        else {
            return false;
        };
        if more > self.bytes {
            return false;
        }
        self.offset = offset;
        self.bytes -= more;
        while more > 0 {
            let Some(piece) = self.pieces.front_mut() else { break };
            let length = piece.len().min(more);
            piece.advance(length);
            more -= length;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        true
    }
}

/// Why a stream has ended.
enum Ended {
    /// All is there, and the process was told that no more comes.
    Done,
    /// On purpose, with all there that was written.
    Settled,
    /// It was cut.
    Cut(Status),
}

/// Carries standard input to its end, or the end of the process. It begins with `input`, which is sent before it is known
/// that the process runs.
pub(super) async fn carry(
    exec: Exec,
    input: Bytes,
    from: DuplexStream,
    mut end: watch::Receiver<Option<ProcessEnd>>,
    closing: CancellationToken,
) {
    if input.is_empty() && !exec.has_started().await {
        return;
    }
    let mut feed = Feed {
        exec: &exec,
        from,
        closing: &closing,
        kept: Kept::default(),
        is_over: false,
    };
    let mut input = input;
    while !input.is_empty() {
        feed.kept.push(input.split_to(PIECE.min(input.len())));
    }
    let carried = tokio::select! {
        carried = feed.carry() => carried,
        () = async { closing.cancelled().await; tokio::time::sleep(FAREWELL).await } => Ok(()),
        () = async { if exec.has_started().await { std::future::pending().await } } => Ok(()),
        // Nobody reads it any more, or nobody wants to know.
        _ = end.wait_for(Option::is_some) => Ok(()),
    };
    if let Err(failed) = carried {
        debug!(exec = exec.id, code = ?failed.code, message = failed.message, "standard input is lost");
    }
}

struct Feed<'a> {
    exec: &'a Exec,
    from: DuplexStream,
    closing: &'a CancellationToken,
    kept: Kept,
    /// No more comes.
    is_over: bool,
}

impl Feed<'_> {
    async fn carry(&mut self) -> Result<(), CallFailed> {
        let router = &self.exec.router;
        let mut attempts = Attempts::new(router, "TaskExecStdinWriteStream", Policy::STREAM);
        let mut in_vain = 0;
        loop {
            // A stream that was cut while there was nothing to say is opened when there is.
            if self.kept.bytes == 0
                && let Some(piece) = self.next().await
            {
                self.kept.push(piece);
            }
            let is_early = !self.exec.is_started();
            let ended = match in_vain {
                STREAMS.. => {
                    debug!(exec = self.exec.id, "standard input goes on without a stream");
                    return self.without_stream().await;
                }
                _ => self.stream(&mut attempts).await?,
            };
            let before = self.kept.offset;
            match ended {
                Ended::Done => return Ok(()),
                // It may have come before the process was known.
                Ended::Cut(_) if is_early => {
                    self.exec.has_started().await;
                }
                Ended::Cut(status) if status.code() == Code::Unimplemented => in_vain = STREAMS,
                Ended::Cut(status) => {
                    attempts.failed(&status).await?;
                    in_vain += 1;
                }
                Ended::Settled => {}
            }
            if self.catch_up().await? {
                return Ok(());
            }
            if self.kept.offset > before {
                attempts.progress();
                in_vain = 0;
            }
        }
    }

    /// Asks what is there. Whether that is all, and the process knows.
    async fn catch_up(&mut self) -> Result<bool, CallFailed> {
        let request = TaskExecStdinStatusRequest {
            task_id: self.exec.task.clone(),
            exec_id: self.exec.id.clone(),
        };
        let asked = self.exec.router.call(
            "TaskExecStdinStatus",
            Policy::ROUTER,
            request,
            |mut client, request| async move { client.task_exec_stdin_status(request).await },
        );
        let TaskExecStdinStatusResponse {
            num_bytes_written,
            closed,
        } = asked.await?;
        if closed {
            return Ok(true);
        }
        if !self.kept.there(num_bytes_written) {
            return Err(CallFailed::of(&Status::data_loss(format!(
                "the worker has {num_bytes_written} bytes of standard input, of which {} to {} were sent",
                self.kept.offset,
                self.kept.offset + self.kept.bytes as u64
            ))));
        }
        Ok(false)
    }

    /// The next piece that is written; `None` when there will be none.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut piece = BytesMut::with_capacity(PIECE.min(16 * 1024));
        let read = tokio::select! {
            read = self.from.read_buf(&mut piece) => read,
            () = self.closing.cancelled() => Ok(0),
        };
        if !matches!(read, Ok(1..)) {
            self.is_over = true;
            return None;
        }
        Some(piece.freeze())
    }

    /// One stream, from what is kept on.
    async fn stream(&mut self, attempts: &mut Attempts<'_>) -> Result<Ended, CallFailed> {
        let (mut client, metadata) = attempts.next().await?;
        let (to, from) = mpsc::channel::<TaskExecStdinWriteStreamRequest>(WAITING);
        let messages = Messages(from);
        let mut call = tokio::spawn(async move { client.task_exec_stdin_write_stream(with(metadata, messages)).await });
        let _abort = AbortOnDrop(call.abort_handle());
        let start = Payload::Start(TaskExecStdinWriteStreamStart {
            task_id: self.exec.task.clone(),
            exec_id: self.exec.id.clone(),
            offset: self.kept.offset,
        });
        let mut waiting: VecDeque<Payload> = VecDeque::from([start]);
        waiting.extend(self.kept.pieces.iter().cloned().map(Payload::Data));
        let mut has_end = false;
        loop {
            let Some(payload) = waiting.pop_front() else {
                if has_end || self.kept.bytes >= KEPT {
                    break;
                }
                tokio::select! {
                    biased;
                    answer = &mut call => return Ok(Ended::Cut(cut(answer))),
                    piece = self.next() => match piece {
                        Some(piece) => {
                            self.kept.push(piece.clone());
                            waiting.push_back(Payload::Data(piece));
                        }
                        None => {
                            has_end = true;
                            waiting.push_back(Payload::End(TaskExecStdinWriteStreamEnd {}));
                        }
                    },
                }
                continue;
            };
            let message = TaskExecStdinWriteStreamRequest { payload: Some(payload) };
            tokio::select! {
                sent = to.send(message) => if sent.is_err() {
                    return Ok(Ended::Cut(cut(call.await)));
                },
                answer = &mut call => return Ok(Ended::Cut(cut(answer))),
            }
        }
        drop(to);
        let answer = match tokio::time::timeout(SETTLE, &mut call).await {
            Ok(answer) => answer,
            Err(_) => return Ok(Ended::Cut(Status::deadline_exceeded("a stream did not end"))),
        };
        match answer {
            Ok(Ok(_)) if has_end => Ok(Ended::Done),
            answer if has_end => Ok(Ended::Cut(cut(answer))),
            // Whatever it says of a stream without an end: all that was sent was taken before.
            _ => Ok(Ended::Settled),
        }
    }

    /// A call for each piece.
    async fn without_stream(&mut self) -> Result<(), CallFailed> {
        loop {
            let piece = match self.kept.pieces.front() {
                Some(piece) => Some(piece.clone()),
                None => {
                    let piece = self.next().await;
                    if let Some(piece) = &piece {
                        self.kept.push(piece.clone());
                    }
                    piece
                }
            };
            let request = TaskExecStdinWriteRequest {
                task_id: self.exec.task.clone(),
                exec_id: self.exec.id.clone(),
                offset: self.kept.offset,
                eof: piece.is_none(),
                data: piece.clone().unwrap_or_default(),
            };
            let written = self.exec.router.call(
                "TaskExecStdinWrite",
                Policy::ROUTER,
                request,
                |mut client, request| async move { client.task_exec_stdin_write(request).await },
            );
            written.await?;
            match piece {
                Some(piece) => self.kept.there(self.kept.offset + piece.len() as u64),
                None => return Ok(()),
            };
        }
    }
}

/// A stream that has ended before it was told to: why.
fn cut<A>(answer: Result<Result<A, Status>, tokio::task::JoinError>) -> Status {
    match answer {
        Ok(Err(status)) => status,
        Ok(Ok(_)) => Status::unavailable("the worker ended a stream of standard input"),
        Err(error) => Status::cancelled(error.to_string()),
    }
}

/// What is said in one stream.
struct Messages(mpsc::Receiver<TaskExecStdinWriteStreamRequest>);

impl Stream for Messages {
    type Item = TaskExecStdinWriteStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// A call that nobody waits for any more is given up.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_kept_and_what_is_not_is_kept_whole() {
        let mut kept = Kept::default();
        for piece in ["abc", "defg", "h"] {
            kept.push(Bytes::from_static(piece.as_bytes()));
        }
        let left = |kept: &Kept| kept.pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>();
        for (offset, makes_sense, after) in [
            (0, true, "abcdefgh"),
            (2, true, "cdefgh"),
            (1, false, "cdefgh"),
            (3, true, "defgh"),
            (9, false, "defgh"),
            (7, true, "h"),
            (8, true, ""),
            (8, true, ""),
            (u64::MAX, false, ""),
        ] {
            assert_eq!(kept.there(offset), makes_sense, "{offset}");
            assert_eq!(left(&kept), after.as_bytes(), "{offset}");
            assert_eq!(kept.bytes, after.len());
        }
        kept.push(Bytes::from_static(b"i"));
        assert_eq!((kept.offset, kept.bytes), (8, 1));
    }
}
