//! What is waited for before something is tried again: told to whoever waits for it, and given up once nobody does.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::info;

use crate::backends::Progress;

/// Pauses that are shorter are not worth a word.
const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// A pause.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    /// What is waited for, in a line.
    line: String,
    /// Whether nothing that was asked for can have been done: it may be given up without a trace.
    leaves_nothing: bool,
    /// Whether it is one of many, and told of though it is short.
    is_of_many: bool,
}

impl Wait {
    /// One that is told of.
    pub(super) fn telling(line: String) -> Self {
        Self {
            line,
            leaves_nothing: false,
            is_of_many: false,
        }
    }

    /// One of many short ones for the same thing.
    pub(super) fn at_once(line: String) -> Self {
        Self {
            is_of_many: true,
            ..Self::telling(line)
        }
    }

    /// The same, after attempts all of which were turned away.
    pub(super) fn leaving_nothing(line: String) -> Self {
        Self {
            leaves_nothing: true,
            ..Self::telling(line)
        }
    }
}

/// All pauses of one opening, or of a session. Copies share them.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    now: Arc<watch::Sender<Option<Wait>>>,
    worth_a_word: Duration,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            now: Arc::new(watch::Sender::new(None)),
            worth_a_word: WORTH_A_WORD,
        }
    }

    /// Waits.
    pub(super) async fn pause(&self, pause: Duration, wait: Wait) {
        // It ends with this future, however that ends.
        let _over = Over(&self.now);
        self.now.send_replace(Some(wait));
        tokio::time::sleep(pause).await;
    }

    /// Does `work`, and says what it waits for.
    pub(super) async fn told<T>(&self, progress: &dyn Progress, work: impl Future<Output = T>) -> T {
        let mut now = self.now.subscribe();
        let mut work = pin!(work);
        loop {
            let wait = now.borrow_and_update().clone();
            let is_of_many = wait.as_ref().is_some_and(|wait| wait.is_of_many);
            let line = wait.map(|wait| wait.line);
            let mut since = pin!(tokio::time::sleep(if is_of_many {
                Duration::ZERO
            } else {
                self.worth_a_word
            }));
            let mut is_told = line.is_none();
            loop {
                tokio::select! {
                    biased;
                    done = &mut work => return done,
                    // The other end is `self`.
                    _ = now.changed() => break,
                    () = &mut since, if !is_told => {
                        is_told = true;
                        let line = line.as_deref().unwrap_or_default();
                        if !is_of_many {
                            info!("{line}");
                        }
                        progress.note(line);
                    }
                }
            }
        }
    }

    /// Does `work`, but for what is not worth it any more when `gone` is over: a wait that leaves nothing.
    pub(super) async fn unless<T>(&self, gone: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
        let mut now = self.now.subscribe();
        let idle = async {
            gone.await;
            let is_idle = |wait: &Option<Wait>| wait.as_ref().is_some_and(|wait| wait.leaves_nothing);
            if now.wait_for(is_idle).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = idle => None,
        }
    }
}

/// Ends a pause.
struct Over<'a>(&'a watch::Sender<Option<Wait>>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::backends::Phase;

    /// It bounds a hang.
    const LONG: Duration = Duration::from_secs(100);

    struct Notes(mpsc::UnboundedSender<String>);

    impl Progress for Notes {
        fn phase(&self, _: Phase) {}
        fn note(&self, line: &str) {
            self.0.send(line.to_owned()).unwrap();
        }
    }

    fn run(work: impl Future<Output = ()>) {
        let builder = tokio::runtime::Builder::new_current_thread().enable_time().build();
        builder.unwrap().block_on(work);
    }

    #[test]
    fn long_pauses_are_told_of_and_short_ones_not() {
        run(async {
            let waits = Waits {
                worth_a_word: Duration::from_millis(5),
                ..Waits::new()
            };
            let (tell, mut told) = mpsc::unbounded_channel();
            let work = async {
                waits.pause(Duration::ZERO, Wait::telling("short".to_owned())).await;
                let mut lines = Vec::new();
                for line in ["first", "second"] {
                    tokio::select! {
                        () = waits.pause(LONG, Wait::telling(line.to_owned())) => {}
                        line = told.recv() => lines.extend(line),
                    }
                }
                lines
            };
            assert_eq!(waits.told(&Notes(tell), work).await, ["first", "second"]);
        });
    }

    #[test]
    fn only_what_leaves_nothing_is_given_up_once_nobody_waits() {
        run(async {
            for (wait, pause, is_given_up) in [
                (Wait::telling(String::new()), Duration::from_millis(50), false),
                (Wait::leaving_nothing(String::new()), LONG, true),
            ] {
                let waits = Waits::new();
                let (keep, lost) = oneshot::channel::<()>();
                let work = async {
                    // What is under way is never given up.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    waits.pause(pause, wait.clone()).await;
                };
                let gone = async {
                    let _ = lost.await;
                };
                drop(keep);
                let done = waits.unless(gone, work).await;
                assert_eq!(done.is_none(), is_given_up, "{wait:?}");
            }
        });
    }
}
