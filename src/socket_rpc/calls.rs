//! Tool calls: one connection per calling thread, one call at a time on each.
//!
//! Request and answer: 4-byte big-endian length, then JSON (`src/link/call.rs`).

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::endpoint::{Endpoint, Stream};
use crate::limits::MAX_CALL_FRAME;
use crate::link::CallHandler;
use crate::link::call::{append_answer, parse, too_large};

/// Requests above this size are read one at a time, so that memory stays bounded.
const LARGE_REQUEST: usize = 1 << 20;
/// Time without a byte after which a large request no longer keeps the others waiting.
const STALLED: Duration = Duration::from_secs(2);
/// Time between two attempts to accept when that fails.
const RETRY: Duration = Duration::from_millis(50);

/// Accepts connections until it is dropped.
pub(super) struct CallServer {
    pub(super) endpoint: Arc<Endpoint>,
    task: JoinHandle<()>,
}

impl CallServer {
    pub(super) fn new(
        endpoint: Endpoint,
        token: Arc<str>,
        handler: Arc<dyn CallHandler>,
        closed: CancellationToken,
    ) -> Self {
        let endpoint = Arc::new(endpoint);
        let task = tokio::spawn(accept(endpoint.clone(), token, handler, closed));
        Self { endpoint, task }
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(endpoint: Arc<Endpoint>, token: Arc<str>, handler: Arc<dyn CallHandler>, closed: CancellationToken) {
    let large = Arc::new(Semaphore::new(1));
    let mut reserve = File::open("/dev/null").ok();
    loop {
        match endpoint.accept().await {
            Ok(stream) => {
                let connection = Connection {
                    token: token.clone(),
                    handler: handler.clone(),
                    large: large.clone(),
                };
                let closed = closed.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = closed.cancelled() => {}
                        result = connection.serve(stream) => if let Err(error) = result {
                            debug!(%error, "a script's connection ended");
                        }
                    }
                });
            }
            Err(error) => {
                if reserve.is_some() {
                    warn!(%error, "a script's connection could not be accepted; its call is refused");
                }
                refuse_one(&endpoint, reserve.take()).await;
                reserve = File::open("/dev/null").ok();
            }
        }
    }
}

/// Answers one caller with the descriptor that was kept back for this, so that it does not wait for
/// as long as others hold theirs.
async fn refuse_one(endpoint: &Endpoint, reserve: Option<File>) {
    drop(reserve);
    let Ok(Ok(mut stream)) = tokio::time::timeout(RETRY, endpoint.accept()).await else {
        return tokio::time::sleep(RETRY).await;
    };
    let mut call = [0_u8; 4096];
    // What it says does not matter, but it must have said it before it is answered.
    let _ = tokio::time::timeout(4 * RETRY, stream.read(&mut call)).await;
    let refusal = json!({"error": "the broker has no file descriptor left for another connection and did not run the call; make fewer calls side by side, or raise the broker's limit (ulimit -n)"});
    if let Err(error) = write(&mut stream, &refusal).await {
        debug!(%error, "a refused caller had gone");
    }
}

struct Connection {
    token: Arc<str>,
    handler: Arc<dyn CallHandler>,
    large: Arc<Semaphore>,
}

impl Connection {
    async fn serve(&self, mut stream: Box<dyn Stream>) -> std::io::Result<()> {
        let mut buffer = Vec::with_capacity(8192);
        loop {
            buffer.clear();
            while buffer.len() < 4 {
                if stream.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
            let size = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
            if size as u64 > MAX_CALL_FRAME {
                write(&mut stream, &too_large(size as u64)).await?;
                // Closed now, the refusal would be lost with what is still on its way.
                let rest = (4 + size).saturating_sub(buffer.len()) as u64;
                tokio::io::copy(&mut (&mut stream).take(rest), &mut tokio::io::sink()).await?;
                continue;
            }
            // Not held while the tool runs: that may take long, and may lead to large calls itself.
            let turn = if size > LARGE_REQUEST {
                buffer.reserve_exact(4 + size - buffer.len());
                self.read_in_turn(&mut stream, &mut buffer, 4 + size).await?
            } else {
                while buffer.len() < 4 + size && stream.read_buf(&mut buffer).await? > 0 {}
                None
            };
            if buffer.len() < 4 + size {
                return Ok(());
            }
            if buffer.len() > 4 + size {
                // A second request before the first was answered: nothing of ours does that.
                write(&mut stream, &json!({"error": "one call at a time on a connection"})).await?;
                return Ok(());
            }
            let request = parse(&buffer[4..], &self.token);
            if size > LARGE_REQUEST {
                buffer = Vec::with_capacity(8192);
            }
            drop(turn);
            let answer = match request {
                Ok(call) => {
                    let mut probe = [0_u8; 1];
                    tokio::select! {
                        answer = self.handler.handle(call) => answer,
                        // The caller waits: whatever comes now is its end.
                        _ = stream.read(&mut probe) => return Ok(()),
                    }
                }
                Err(refusal) => {
                    self.handler.refused(&refusal);
                    json!({ "error": refusal })
                }
            };
            write(&mut stream, &answer).await?;
        }
    }

    /// Reads on until the buffer holds `size` bytes or the stream ends, in turn with other large
    /// requests. A caller that stands still, stopped in the middle of its call perhaps, gives its turn
    /// away.
    async fn read_in_turn(
        &self,
        stream: &mut Box<dyn Stream>,
        buffer: &mut Vec<u8>,
        size: usize,
    ) -> std::io::Result<Option<SemaphorePermit<'_>>> {
        let mut turn = self.large.acquire().await.ok();
        while buffer.len() < size {
            let read = match tokio::time::timeout(STALLED, stream.read_buf(buffer)).await {
                Ok(read) => read?,
                Err(_) => {
                    drop(turn.take());
                    let read = stream.read_buf(buffer).await?;
                    turn = self.large.acquire().await.ok();
                    read
                }
            };
            if read == 0 {
                break;
            }
        }
        Ok(turn)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "checked against a limit below 4 GiB")]
async fn write(stream: &mut Box<dyn Stream>, answer: &Value) -> std::io::Result<()> {
    let mut body = vec![0_u8; 4];
    append_answer(&mut body, answer)?;
    let size = (body.len() - 4) as u32;
    body[..4].copy_from_slice(&size.to_be_bytes());
    stream.write_all(&body).await?;
    stream.flush().await
}
