//! Tool calls: one connection per calling thread, one call at a time on each.
//!
//! Request: 4-byte big-endian length, then the JSON array `[token, cell, tool, arguments]`. Answer:
//! 4-byte big-endian length, then a JSON value. The other half is `remote_agent/hermes_runtime.py`.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::endpoint::{Endpoint, Stream};
use crate::limits::{MAX_CALL_FRAME, MAX_TOOL_MESSAGE, MIB};
use crate::link::{CallHandler, IncomingCall};

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
                let refusal = json!({"error": format!(
                    "the call is {size} bytes long and the limit is {MAX_TOOL_MESSAGE} bytes (64 MiB) of arguments; pass less at a time, or a file's path"
                )});
                write(&mut stream, &refusal).await?;
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
            let request = self.parse(&buffer[4..]);
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
                Err(refusal) => json!({ "error": refusal }),
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

    fn parse(&self, body: &[u8]) -> Result<IncomingCall, String> {
        let (token, cell, tool, arguments): (String, u64, String, Map<String, Value>) = serde_json::from_slice(body)
            .map_err(|error| {
                format!("the call could not be read ({error}); arguments must be plain JSON values of valid Unicode")
            })?;
        if bool::from(token.as_bytes().ct_eq(self.token.as_bytes())) {
            Ok(IncomingCall { cell, tool, arguments })
        } else {
            Err("the call carries no valid token of this session and was refused".to_owned())
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "checked against a limit below 4 GiB")]
async fn write(stream: &mut Box<dyn Stream>, answer: &Value) -> std::io::Result<()> {
    let mut body = vec![0_u8; 4];
    serde_json::to_writer(&mut body, answer)?;
    if body.len() as u64 > MAX_CALL_FRAME || text_bytes(answer, body.len()) > MAX_TOOL_MESSAGE + MIB {
        let size = body.len();
        body.truncate(4);
        serde_json::to_writer(
            &mut body,
            &json!({"error": format!(
                "the tool ran, but its result of {size} bytes is over the limit of {MAX_TOOL_MESSAGE} bytes (64 MiB); ask for less at a time"
            )}),
        )?;
    }
    let size = (body.len() - 4) as u32;
    body[..4].copy_from_slice(&size.to_be_bytes());
    stream.write_all(&body).await?;
    stream.flush().await
}

/// Bytes of text in a value; `encoded`, an upper bound, spares the count for most.
fn text_bytes(value: &Value, encoded: usize) -> u64 {
    fn count(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(items) => items.iter().map(|item| 1 + count(item)).sum(),
            Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + 1 + count(item)).sum(),
            _ => 1,
        }
    }
    if encoded as u64 <= MAX_TOOL_MESSAGE {
        0
    } else {
        count(value)
    }
}
