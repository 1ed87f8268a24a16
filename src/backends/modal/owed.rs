//! What is still brought to its end though whoever asked for it is gone: sandboxes that were being made, and are ended.

use std::future::Future;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

/// The longest time for which that is waited for: what is not ended then ends by itself.
const LIMIT: Duration = Duration::from_secs(10);

/// Of one backend; copies share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Owed(TaskTracker);

impl Owed {
    /// Does `work` to its end and gives what came of it. `work` is told when nobody waits for it any more; what it gives
    /// then goes to `unwanted`.
    pub(super) async fn wanted<T, F, U>(
        &self,
        work: impl FnOnce(Gone) -> F,
        unwanted: impl FnOnce(T) -> U + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = Option<T>> + Send + 'static,
        U: Future<Output = ()> + Send,
    {
        let (give, take) = oneshot::channel();
        let (tell, gone) = oneshot::channel::<()>();
        let work = work(Gone(gone));
        self.0.spawn(async move {
            if let Some(made) = work.await
                && let Err(made) = give.send(made)
            {
                unwanted(made).await;
            }
        });
        let taken = take.await.ok();
        drop(tell);
        taken
    }

    /// Waits until nothing is left, for [`LIMIT`] at most.
    pub(super) async fn settled(&self) {
        self.0.close();
        let _ = tokio::time::timeout(LIMIT, self.0.wait()).await;
        self.0.reopen();
    }
}

/// Is over when nobody waits any more.
pub(super) struct Gone(oneshot::Receiver<()>);

impl Gone {
    pub(super) async fn over(self) {
        let _ = self.0.await;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn run(work: impl Future<Output = ()>) {
        let builder = tokio::runtime::Builder::new_current_thread().enable_time().build();
        builder.unwrap().block_on(work);
    }

    #[test]
    fn what_nobody_waits_for_is_ended_and_waited_for_at_the_close() {
        run(async {
            let (owed, ended) = (Owed::default(), Arc::new(AtomicU32::new(0)));
            let unwanted = |ended: &Arc<AtomicU32>| {
                let ended = ended.clone();
                |number| async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    ended.store(number, Ordering::SeqCst);
                }
            };
            assert_eq!(owed.wanted(|_| async { Some(1) }, unwanted(&ended)).await, Some(1));
            owed.settled().await;
            assert_eq!(ended.load(Ordering::SeqCst), 0);
            let dropped = owed.wanted(
                |gone| async {
                    gone.over().await;
                    Some(2)
                },
                unwanted(&ended),
            );
            let _ = tokio::time::timeout(Duration::from_millis(20), dropped).await;
            owed.settled().await;
            assert_eq!(ended.load(Ordering::SeqCst), 2);
            assert_eq!(owed.wanted(|_| async { None::<u32> }, unwanted(&ended)).await, None);
        });
    }
}
