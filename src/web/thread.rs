//! Work that cannot be interrupted, on threads that nobody waits for at the end.
//!
//! A task on the runtime's own threads for blocking work would hold up the end of the program for as long as it takes.

use tokio::sync::oneshot;

/// A stack for what calls little.
pub(super) const SMALL: usize = 256 * 1024;

/// Why work gave no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ThreadError {
    /// It could not be started.
    #[error("no thread can be started: {0}")]
    Start(std::io::Error),
    /// It ended without a result.
    #[error("it failed inside")]
    Panicked,
}

/// Does the work on a thread of its own. Whoever stops waiting leaves it to itself.
pub(super) async fn run<T: Send + 'static>(
    name: &str,
    stack: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ThreadError> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(stack)
        .spawn(move || {
            // A result that nobody waits for any more is dropped here.
            let _ = sender.send(work());
        })
        .map_err(ThreadError::Start)?;
    receiver.await.map_err(|_| ThreadError::Panicked)
}
