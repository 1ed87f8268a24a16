//! Bytes on their way to a supervisor.
//!
//! What the pipe takes at once is written by the caller itself: handing it to a task first would cost
//! every cell the time that it takes to wake another thread. A task writes what the pipe did not take.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::link::LinkError;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The writing half; dropping it closes the stream.
pub(super) struct Outgoing(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// `None` once it is closed or broken.
    writer: Option<Writer>,
    queue: VecDeque<Bytes>,
}

impl Outgoing {
    pub(super) fn new(writer: Writer) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                writer: Some(writer),
                queue: VecDeque::new(),
            }),
            changed: Notify::new(),
        });
        tokio::spawn(drain(shared.clone()));
        Self(shared)
    }

    /// Writes, now or as soon as the other side takes it. Order is kept.
    pub(super) fn send(&self, bytes: Bytes) -> Result<(), LinkError> {
        let mut state = self.0.lock();
        let idle = state.queue.is_empty();
        state.queue.push_back(bytes);
        if idle && state.write(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.0.changed.notify_one();
        }
        if state.writer.is_some() {
            Ok(())
        } else {
            Err(LinkError::Gone)
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.0.lock().close();
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn close(&mut self) {
        self.writer = None;
        self.queue.clear();
    }

    /// Writes what is queued; pending while the pipe is full.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let (Some(writer), Some(front)) = (&mut self.writer, self.queue.front_mut()) {
            match Pin::new(writer).poll_write(context, front) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    front.advance(written);
                    if front.is_empty() {
                        self.queue.pop_front();
                    }
                }
                // Its end shows on the stream that comes from there.
                Poll::Ready(_) => self.close(),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

async fn drain(shared: Arc<Shared>) {
    loop {
        shared.changed.notified().await;
        std::future::poll_fn(|context| shared.lock().write(context)).await;
        if shared.lock().writer.is_none() {
            return;
        }
    }
}
