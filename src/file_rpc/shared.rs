//! What the link, its driver and its calls hold together: the state machine, and the stream that its frames
//! are written to.
//!
//! Whoever has something to say writes it, as far as the stream takes it at once: to hand it to a task would
//! cost every answer the time that it takes to wake another thread. The driver writes the rest.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::debug;

use super::calls::CallId;
use super::frame::Frame;
use super::host::{Host, HostError, Signal};
use crate::link::call::{append_answer, parse};
use crate::link::{CallHandler, IncomingCall, LinkCommand, LinkError, LinkEvent, Relinks, Reply};

/// Time between two looks for what is to be said again.
const RETRY: Duration = Duration::from_millis(500);

pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) struct State {
    pub(super) host: Host,
    /// `None` while there is no stream, or none that takes frames as they come.
    writer: Option<Writer>,
    out: BytesMut,
    /// The driver waits until the stream takes more.
    is_blocked: bool,
    ended: Option<LinkError>,
    running: HashMap<CallId, AbortHandle>,
    pub(super) relinks: Relinks,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// An event has arrived, or the end.
    arrived: Notify,
    /// The stream did not take all.
    blocked: Notify,
    /// The target has refused something that is to be said again.
    refused: Notify,
    /// There is something to say, for a driver that looks only now and then.
    pub(super) to_say: Notify,
    handler: Arc<dyn CallHandler>,
    token: Arc<str>,
    began: Instant,
}

impl Shared {
    pub(super) fn new(window: u32, token: Arc<str>, handler: Arc<dyn CallHandler>) -> Self {
        Self {
            state: Mutex::new(State {
                host: Host::new(window),
                writer: None,
                out: BytesMut::new(),
                is_blocked: false,
                ended: None,
                running: HashMap::new(),
                relinks: Relinks::default(),
            }),
            arrived: Notify::new(),
            blocked: Notify::new(),
            refused: Notify::new(),
            to_say: Notify::new(),
            handler,
            token,
            began: Instant::now(),
        }
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command.
    pub(super) fn send(&self, command: &LinkCommand) -> Result<(), LinkError> {
        let mut state = self.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        state.host.command(command);
        self.flush(&mut state);
        self.to_say.notify_one();
        Ok(())
    }

    /// The next event.
    pub(super) async fn next(&self) -> Result<LinkEvent, LinkError> {
        loop {
            {
                let mut state = self.lock();
                if let Some(event) = state.host.event() {
                    self.flush(&mut state);
                    return Ok(event);
                }
                if let Some(error) = &state.ended {
                    return Err(error.clone());
                }
            }
            self.arrived.notified().await;
        }
    }

    /// A stream begins, or a look; what was on its way on the last one is lost.
    pub(super) fn open(&self, writer: Option<Writer>, is_look: bool) {
        let mut state = self.lock();
        state.close();
        if is_look {
            state.host.open_look();
        } else {
            state.host.open_link();
        }
        state.writer = writer;
    }

    /// The stream has ended. Whether it had brought anything on.
    pub(super) fn close(&self) -> bool {
        let mut state = self.lock();
        let progress = state.host.made_progress();
        state.close();
        state.host.close_link();
        progress
    }

    /// The session has ended; whoever waits is told.
    pub(super) fn end(&self, error: LinkError) {
        debug!(%error, "the link of a session ended");
        let mut state = self.lock();
        state.close();
        // That is no failure when it was asked for.
        let error = if state.host.is_closing() {
            LinkError::Gone
        } else {
            error
        };
        state.ended.get_or_insert(error);
        for (_, task) in state.running.drain() {
            task.abort();
        }
        self.arrived.notify_one();
    }

    /// Takes all frames that have come, and answers them. Returns what is for the driver.
    pub(super) fn receive(self: &Arc<Self>, buffer: &mut BytesMut) -> Result<Vec<Signal>, HostError> {
        let mut signals = Vec::new();
        let mut state = self.lock();
        let result = loop {
            match Frame::decode(buffer) {
                Ok(Some(frame)) => {
                    if let Err(error) = self.take(&mut state, frame, &mut signals) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(signals),
                Err(error) => break Err(error.into()),
            }
        };
        if state.host.has_event() {
            self.arrived.notify_one();
        }
        if state.host.is_waiting() {
            self.refused.notify_one();
        }
        self.flush(&mut state);
        result
    }

    fn take(self: &Arc<Self>, state: &mut State, frame: Frame, signals: &mut Vec<Signal>) -> Result<(), HostError> {
        let mut signal = state.host.receive(frame, self.began.elapsed())?;
        while let Some(one) = signal {
            match one {
                Signal::Dispatch(id, body) => {
                    let reply = state.host.reply(id);
                    let task = tokio::spawn(self.clone().run(id, body, reply));
                    state.running.insert(id, task.abort_handle());
                }
                Signal::Cancel(id) => {
                    if let Some(task) = state.running.remove(&id) {
                        task.abort();
                    }
                }
                other => signals.push(other),
            }
            signal = state.host.signal();
        }
        Ok(())
    }

    /// Runs a call.
    async fn run(self: Arc<Self>, id: CallId, request: Bytes, reply: Option<Arc<Reply>>) {
        let unanswered = Unanswered { shared: &self, id };
        let call = parse(&request, &self.token);
        drop(request);
        let answer = match call {
            Ok(call) => self.handler.handle(IncomingCall { reply, ..call }).await,
            Err(refusal) => {
                self.handler.refused(&refusal);
                json!({ "error": refusal })
            }
        };
        let mut body = Vec::with_capacity(256);
        if let Err(error) = append_answer(&mut body, &answer) {
            body = json!({"error": format!("the tool ran, but its result could not be written as JSON: {error}")})
                .to_string()
                .into_bytes();
        }
        drop(unanswered);
        self.answer(id, body.into());
    }

    fn answer(&self, id: CallId, body: Bytes) {
        let mut state = self.lock();
        state.running.remove(&id);
        state.host.answer(id, body);
        self.flush(&mut state);
        self.to_say.notify_one();
    }

    /// Gives a sign of life, and says again what was refused.
    pub(super) fn beat(&self) {
        let mut state = self.lock();
        state.host.beat();
        self.flush(&mut state);
    }

    /// Says again what was refused and whose time has come. Whether there is more whose time will come.
    pub(super) fn retry(&self) -> bool {
        let mut state = self.lock();
        if state.host.retry(self.began.elapsed()) {
            self.flush(&mut state);
        }
        state.host.is_waiting()
    }

    /// Does so for as long as the link lasts.
    pub(super) async fn retry_refused(&self) -> Infallible {
        loop {
            while self.retry() {
                tokio::time::sleep(RETRY).await;
            }
            self.refused.notified().await;
        }
    }

    /// Acknowledges what has been taken of the log. Whether more is there to be acknowledged later.
    pub(super) fn acknowledge(&self) -> bool {
        let mut state = self.lock();
        state.host.acknowledge_all();
        self.flush(&mut state);
        state.host.is_behind()
    }

    fn flush(&self, state: &mut State) {
        if !state.is_blocked && state.write(&mut Context::from_waker(Waker::noop())).is_pending() {
            state.is_blocked = true;
            self.blocked.notify_one();
        }
    }

    /// Writes what the stream did not take at once, for as long as the link lasts.
    pub(super) async fn write(&self) -> Infallible {
        loop {
            self.blocked.notified().await;
            std::future::poll_fn(|context| {
                let mut state = self.lock();
                let written = state.write(context);
                state.is_blocked = written.is_pending();
                written
            })
            .await;
        }
    }
}

impl State {
    /// Whether a call is being answered.
    pub(super) fn is_answering(&self) -> bool {
        !self.running.is_empty()
    }

    fn close(&mut self) {
        self.writer = None;
        self.out.clear();
        self.is_blocked = false;
    }

    /// Writes what there is to say; pending while the stream is full.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(writer) = &mut self.writer {
            if self.out.is_empty() {
                self.host.write(&mut self.out);
                if self.out.is_empty() {
                    break;
                }
            }
            match Pin::new(writer).poll_write(context, &self.out) {
                Poll::Ready(Ok(written)) if written > 0 => self.out.advance(written),
                // Its end shows on the stream that comes from there.
                Poll::Ready(_) => self.close(),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

/// Answers for a handler that panicked, so that no script waits for ever.
struct Unanswered<'a> {
    shared: &'a Arc<Shared>,
    id: CallId,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let answer = json!({"error": "the broker failed while it handled the call; it may have run"});
            self.shared.answer(self.id, answer.to_string().into());
        }
    }
}
