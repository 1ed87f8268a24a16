//! A process whose standard streams travel over one connection to the engine.
//!
//! The connection is always read: an engine whose stream nobody reads locks the whole container, and so a command of
//! the user's own there would hang too. What arrives waits in channels of bounded length for whoever reads; a reader
//! that has gone is no reason to stop, and one that stands still costs the process its connection. When nobody holds a
//! stream of the process any more, the connection is closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Frames of one stream (an engine's are up to 32 KiB) that may wait for a reader.
const FRAMES: usize = 256;

/// Time for which all channels may be full. A link sends no more than fits, so that whoever lets it come to this is stuck.
const STALL_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

/// Bytes of standard input that may wait for the connection.
const INPUT: usize = 256 * 1024;

type Input = Pin<Box<dyn AsyncWrite + Send>>;
type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// The streams of a process.
pub(super) struct Streams {
    pub(super) stdin: StdinStream,
    pub(super) stdout: OutputStream,
    pub(super) stderr: OutputStream,
    pub(super) connection: Connection,
}

/// What is known of the connection.
#[derive(Clone)]
pub(super) struct Connection {
    /// Cancelled to close it.
    pub(super) close: CancellationToken,
    /// Cancelled once the engine has sent all that it will.
    pub(super) ended: CancellationToken,
}

/// Carries the streams from now on.
pub(super) fn carry(input: Input, output: Output) -> Streams {
    let close = CancellationToken::new();
    let connection = Connection {
        close: close.clone(),
        ended: CancellationToken::new(),
    };
    let holder = Arc::new(close.drop_guard());
    let (to_stdout, stdout) = mpsc::channel(FRAMES);
    let (to_stderr, stderr) = mpsc::channel(FRAMES);
    let (stdin, from_stdin) = tokio::io::duplex(INPUT);
    tokio::spawn(read(output, to_stdout, to_stderr, connection.clone()));
    tokio::spawn(write(from_stdin, input, connection.clone()));
    Streams {
        stdin: StdinStream {
            inner: stdin,
            _holder: Arc::clone(&holder),
        },
        stdout: OutputStream {
            frames: stdout,
            current: Bytes::new(),
            _holder: Arc::clone(&holder),
        },
        stderr: OutputStream {
            frames: stderr,
            current: Bytes::new(),
            _holder: holder,
        },
        connection,
    }
}

async fn read(mut output: Output, stdout: mpsc::Sender<Bytes>, stderr: mpsc::Sender<Bytes>, connection: Connection) {
    let all = async {
        while let Some(frame) = output.next().await {
            let (to, bytes) = match frame {
                Ok(LogOutput::StdErr { message }) => (&stderr, message),
                Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => (&stdout, message),
                Ok(LogOutput::StdIn { .. }) => continue,
                Err(error) => {
                    tracing::debug!(%error, "the stream of a process broke");
                    return;
                }
            };
            if !bytes.is_empty() {
                // Whoever read it may have gone; it is read all the same.
                if tokio::time::timeout(STALL_LIMIT, to.send(bytes)).await.is_err() {
                    tracing::warn!("the output of a process in a container was not read, and is cut off");
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = connection.close.cancelled() => {}
    }
    connection.ended.cancel();
}

async fn write(mut stdin: DuplexStream, mut input: Input, connection: Connection) {
    let all = async {
        // It ends when the process's standard input is dropped, or when nobody reads at the other end.
        let _ = tokio::io::copy(&mut stdin, &mut input).await;
        let _ = input.shutdown().await;
        // Held all the same: to drop half of a connection is to close it, for some engines.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = all => {}
        () = connection.close.cancelled() => {}
        // Whoever still holds the input of what has ended, or was cut off, must not hold the connection.
        () = connection.ended.cancelled() => {}
    }
}

/// The standard input of a process. Dropping it, or shutting it down, is its end.
pub(super) struct StdinStream {
    inner: DuplexStream,
    _holder: Arc<DropGuard>,
}

impl AsyncWrite for StdinStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// The standard output or standard error of a process.
pub(super) struct OutputStream {
    frames: mpsc::Receiver<Bytes>,
    current: Bytes,
    _holder: Arc<DropGuard>,
}

impl AsyncRead for OutputStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.current.is_empty() {
            match ready!(self.frames.poll_recv(context)) {
                Some(frame) => self.current = frame,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.current.len().min(into.remaining());
        into.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use futures_util::stream;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(stderr: bool, bytes: &[u8]) -> Result<LogOutput, Error> {
        let message = Bytes::copy_from_slice(bytes);
        Ok(if stderr {
            LogOutput::StdErr { message }
        } else {
            LogOutput::StdOut { message }
        })
    }

    #[tokio::test]
    async fn the_two_outputs_are_taken_apart() {
        let frames = vec![
            frame(false, b"one "),
            frame(true, b"bad"),
            frame(false, b""),
            frame(false, b"two"),
        ];
        let (input, _far) = tokio::io::duplex(64);
        let mut streams = carry(Box::pin(input), Box::pin(stream::iter(frames)));
        let (mut out, mut err) = (String::new(), String::new());
        streams.stdout.read_to_string(&mut out).await.unwrap();
        streams.stderr.read_to_string(&mut err).await.unwrap();
        assert_eq!((out.as_str(), err.as_str()), ("one two", "bad"));
        streams.connection.ended.cancelled().await;
    }

    #[tokio::test]
    async fn an_output_that_nobody_holds_is_read_all_the_same() {
        let frames = (0..10 * FRAMES)
            .map(|_| frame(true, b"noise"))
            .chain([frame(false, b"end")]);
        let (input, _far) = tokio::io::duplex(64);
        let mut streams = carry(Box::pin(input), Box::pin(stream::iter(frames.collect::<Vec<_>>())));
        drop(streams.stderr);
        let mut out = String::new();
        tokio::time::timeout(Duration::from_secs(30), streams.stdout.read_to_string(&mut out))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(out, "end");
    }

    #[tokio::test]
    async fn an_output_that_is_held_and_not_read_is_cut_off() {
        let (input, mut far) = tokio::io::duplex(64);
        let endless = stream::repeat_with(|| frame(false, b"y"));
        let streams = carry(Box::pin(input), Box::pin(endless));
        let began = std::time::Instant::now();
        streams.connection.ended.cancelled().await;
        assert!(began.elapsed() >= STALL_LIMIT);
        // Both halves of the connection are closed, though all of its streams are held.
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        drop(streams);
    }

    #[tokio::test]
    async fn dropping_standard_input_is_its_end_and_dropping_all_closes() {
        let (input, mut far) = tokio::io::duplex(64);
        let mut streams = carry(Box::pin(input), Box::pin(stream::pending()));
        streams.stdin.write_all(b"hello").await.unwrap();
        drop(streams.stdin);
        let mut got = String::new();
        far.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "hello");
        assert!(!streams.connection.ended.is_cancelled());
        drop((streams.stdout, streams.stderr));
        tokio::time::timeout(Duration::from_secs(30), streams.connection.ended.cancelled())
            .await
            .unwrap();
    }
}
