//! Answers that a target gives by itself, so that a call costs one round trip and not two.

use std::fmt;

use tokio::sync::watch;

/// The caller of a tool, where the target itself may answer it.
///
/// A file operation that carries it (see [`RunVerb`](super::RunVerb)) is answered over there as the built-in tool of
/// that name would be; the broker gets what was found a little later, and only takes note of it. So nobody hands it
/// on whose own answer would be another one.
pub struct Reply {
    call: String,
    progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// A file operation is under way whose answer the target may give.
    promised: bool,
    /// The target has answered.
    given: bool,
    /// Whoever handles the call is done with it.
    noted: bool,
}

impl Reply {
    /// Of a call, by the name that it has on the target.
    pub(crate) fn new(call: String) -> Self {
        Self {
            call,
            progress: watch::Sender::default(),
        }
    }

    /// The name of the call on the target.
    pub(crate) fn call(&self) -> &str {
        &self.call
    }

    /// The target is asked to answer.
    pub(crate) fn promise(&self) {
        self.progress.send_modify(|progress| progress.promised = true);
    }

    /// It did, or leaves it to the broker.
    pub(crate) fn settle(&self, given: bool) {
        self.progress.send_modify(|progress| {
            progress.promised = given;
            progress.given = given;
        });
    }

    /// The call is no longer handled: what it was answered is known, as far as it ever will be.
    pub(crate) fn note(&self) {
        self.progress.send_modify(|progress| progress.noted = true);
    }

    /// Whether the target may have answered, or will.
    pub(crate) fn is_promised(&self) -> bool {
        self.progress.borrow().promised
    }

    /// Whether it has answered.
    pub(crate) fn is_given(&self) -> bool {
        self.progress.borrow().given
    }

    /// Waits until the call is no longer handled.
    pub(crate) async fn noted(&self) {
        // It cannot fail: the sender is this very reply.
        let _ = self.progress.subscribe().wait_for(|progress| progress.noted).await;
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Reply({}, {:?})", self.call, *self.progress.borrow())
    }
}
