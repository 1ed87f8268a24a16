//! Working through cases on one target: a few sessions, each of which takes one case after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::bench::{Bench, KERNELS, suited};
use super::case::{Case, Unmet};
use crate::broker::Broker;
use crate::outcome::{KernelReport, Status};
use crate::session::SessionOptions;

/// What is to be checked, and how.
pub struct Plan {
    /// The cases, each with the name of its area.
    pub cases: Vec<(&'static str, &'static Case)>,
    /// Sessions that take cases side by side.
    pub jobs: usize,
    /// The longest that one case may take; it bounds a hang.
    pub limit: Duration,
    /// Takes no further case, gives up those under way, and closes.
    pub stop: CancellationToken,
}

/// What is known of a target that was reached.
pub struct Reached {
    /// The kernel of its first cell.
    pub kernel: Option<KernelReport>,
    /// What its outcome said beside.
    pub notice: Option<String>,
    /// Seconds until it was through.
    pub seconds: f64,
}

/// What one case came to.
pub struct Verdict {
    /// Its area.
    pub area: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Whether it holds.
    pub kind: VerdictKind,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Whether a case holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// It does.
    Holds,
    /// It does not: what was expected, and what was seen.
    Failed(String),
    /// It says nothing on this target, and why.
    Skipped(String),
}

/// What all came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that hold.
    pub held: usize,
    /// Cases that do not.
    pub failed: usize,
    /// Cases that say nothing on this target.
    pub skipped: usize,
    /// Cases that were left when it was stopped.
    pub left: usize,
    /// Sessions that were opened.
    pub sessions: usize,
    /// What could not be closed, and how it was said.
    pub unclosed: Vec<String>,
}

/// Work that is under way.
struct Course<'a> {
    broker: Arc<Broker>,
    options: SessionOptions,
    plan: &'a Plan,
    queue: Mutex<VecDeque<(&'static str, &'static Case)>>,
    opened: Arc<AtomicUsize>,
    verdict: &'a (dyn Fn(&Verdict) + Sync),
    summary: Mutex<Summary>,
}

/// Checks a plan's cases on the target of such options, and tells of each as it is through. Must be called within a tokio
/// runtime.
///
/// # Errors
/// When the target cannot be reached, in which case nothing was checked: why, and what to do.
pub async fn run(
    options: SessionOptions,
    plan: &Plan,
    reached: &(dyn Fn(&Reached) + Sync),
    verdict: &(dyn Fn(&Verdict) + Sync),
) -> Result<Summary, String> {
    let course = Course {
        broker: Arc::new(Broker::new(KERNELS)),
        options: suited(options),
        plan,
        queue: Mutex::new(plan.cases.iter().copied().collect()),
        opened: Arc::default(),
        verdict,
        summary: Mutex::default(),
    };
    let first = course.reach(reached).await?;
    let jobs = plan.jobs.clamp(1, plan.cases.len().max(1));
    let mut benches = vec![first];
    benches.resize_with(jobs, || None);
    join_all(benches.into_iter().map(|bench| course.work(bench))).await;
    let mut summary = course.summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.sessions = course.opened.load(Ordering::Relaxed);
    summary.left = plan.cases.len() - summary.held - summary.failed - summary.skipped;
    Ok(summary)
}

impl Course<'_> {
    fn open(&self) -> Result<Bench, String> {
        Bench::new(self.broker.clone(), self.options.clone(), self.opened.clone()).map_err(|error| error.to_string())
    }

    /// Runs a first cell. `None` where it was stopped meanwhile.
    async fn reach(&self, reached: &(dyn Fn(&Reached) + Sync)) -> Result<Option<Bench>, String> {
        let began = Instant::now();
        let bench = self.open()?;
        let first = tokio::select! {
            biased;
            () = self.plan.stop.cancelled() => None,
            first = bench.cell("print('ready')") => Some(first),
        };
        match first {
            None => {
                self.close(&bench).await;
                Ok(None)
            }
            Some(Ok(outcome)) if outcome.status != Status::Error || outcome.exit_code.is_some() => {
                reached(&Reached {
                    kernel: outcome.kernel,
                    notice: outcome.notice,
                    seconds: began.elapsed().as_secs_f64(),
                });
                Ok(Some(bench))
            }
            Some(Ok(outcome)) => {
                self.close(&bench).await;
                Err(outcome.error.unwrap_or_else(|| "nothing ran there".to_owned()))
            }
            Some(Err(unmet)) => {
                self.close(&bench).await;
                Err(format!("the first cell got no answer: {unmet}"))
            }
        }
    }

    fn next(&self) -> Option<(&'static str, &'static Case)> {
        if self.plan.stop.is_cancelled() {
            return None;
        }
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    async fn work(&self, mut bench: Option<Bench>) {
        while let Some((area, case)) = self.next() {
            let began = Instant::now();
            let ready = match bench.take() {
                Some(ready) => Ok(ready),
                None => self.open(),
            };
            let kind = match ready {
                Err(error) => VerdictKind::Failed(format!("a session could not be opened: {error}")),
                Ok(ready) => {
                    let kind = tokio::select! {
                        biased;
                        () = self.plan.stop.cancelled() => None,
                        kind = self.check(&ready, case) => Some(kind),
                    };
                    let Some(kind) = kind else {
                        return self.close(&ready).await;
                    };
                    // What a failure may have broken is the next case's no more.
                    if matches!(kind, VerdictKind::Failed(_))
                        && ready.prints("print('ready')", "ready\n").await.is_err()
                    {
                        self.close(&ready).await;
                    } else {
                        bench = Some(ready);
                    }
                    kind
                }
            };
            self.tell(Verdict {
                area,
                name: case.name,
                kind,
                seconds: began.elapsed().as_secs_f64(),
            });
        }
        if let Some(bench) = bench {
            self.close(&bench).await;
        }
    }

    async fn check(&self, bench: &Bench, case: &Case) -> VerdictKind {
        match tokio::time::timeout(self.plan.limit, bench.check(case)).await {
            Ok(Ok(())) => VerdictKind::Holds,
            Ok(Err(Unmet::Failed(words))) => VerdictKind::Failed(words),
            Ok(Err(Unmet::Skipped(why))) => VerdictKind::Skipped(why),
            Err(_) => {
                let words = format!("it did not end within {} s", self.plan.limit.as_secs_f64());
                match bench.close_more().await {
                    Ok(()) => VerdictKind::Failed(words),
                    Err(unmet) => VerdictKind::Failed(format!("{words}; {unmet}")),
                }
            }
        }
    }

    fn tell(&self, verdict: Verdict) {
        {
            let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
            match &verdict.kind {
                VerdictKind::Holds => summary.held += 1,
                VerdictKind::Failed(_) => summary.failed += 1,
                VerdictKind::Skipped(_) => summary.skipped += 1,
            }
        }
        (self.verdict)(&verdict);
    }

    async fn close(&self, bench: &Bench) {
        if let Err(unmet) = bench.close().await {
            let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.unclosed.push(unmet.to_string());
        }
    }
}
