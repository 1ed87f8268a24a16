//! Executions: cells that are addressed by a handle. One goes on when the call that started it has been answered or has
//! broken off; its outcome is kept for whoever asks again, and asking again never runs it twice.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::handle::{NoRandom, new_handle};
use super::owned::{InUse, OpenError};
use super::watched::{Progress, Stage, Watched};
use crate::outcome::Outcome;
use crate::session::{Cancel, Cell};

/// Executions that have not ended, of all principals together.
const MOST_OPEN: usize = 256;

/// Outcomes that are kept: their number, their bytes, and the time that they are.
const OUTCOMES_KEPT: usize = 256;
const BYTES_KEPT: usize = 16 << 20;
const TIME_KEPT: Duration = Duration::from_secs(3600);

/// Executions that are remembered, those whose outcome is not kept any more included: asked for again, they are refused
/// and not run.
const REMEMBERED: usize = 1024;

/// What an outcome takes beside its texts, in bytes.
const OUTCOME_OVERHEAD: usize = 1024;

/// Why an execution was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key stands for something else already.
    #[error(
        "the idempotency key {0:?} was used for a call with other arguments; give a new key for a new script, or the same arguments to get that execution again"
    )]
    KeyReused(String),
    /// Too many run.
    #[error("{MOST_OPEN} scripts run or wait already; wait for one to end, or cancel one")]
    TooMany,
    /// See [`NoRandom`].
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// There is no session for it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The caller's own reason.
    #[error("{0}")]
    Refused(String),
}

/// Who asks for an execution.
pub struct Request<'a> {
    /// Whose it is to be.
    pub principal: &'a str,
    /// What the caller would ask again with.
    pub key: Option<&'a str>,
    /// Of everything that makes the request what it is: a request with the same key must have the same. See
    /// [`fingerprint`].
    pub fingerprint: u64,
    /// Whether it goes on when the caller goes away.
    pub detached: bool,
}

/// A number that requests share which are the same, and others do not.
#[must_use]
pub fn fingerprint(request: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.hash(&mut hasher);
    hasher.finish()
}

/// How an execution ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// With this outcome.
    With(Arc<Outcome>),
    /// With one that is not kept any more.
    Forgotten,
}

/// One run of a cell.
pub struct Execution {
    /// What a client calls it by.
    pub handle: String,
    /// The handle of its session.
    pub session: String,
    /// The target, as the user wrote it.
    pub target: String,
    /// Whether it goes on when the caller goes away.
    pub detached: bool,
    /// When it was handed over.
    pub started: Instant,
    principal: String,
    key: Option<(String, u64)>,
    cancel: Cancel,
    watched: Arc<Watched>,
    /// Calls that wait for its end and would have it ended should they be cancelled.
    attached: AtomicUsize,
    ended: watch::Sender<Option<Ended>>,
}

impl Execution {
    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ended)) => ended.clone(),
            // The sender is ours, so it is there as long as we are.
            _ => Ended::Forgotten,
        }
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut progress = self.watched.progress();
        if let Some(ended) = self.ended() {
            progress.stage = Stage::Done;
            if let Ended::With(outcome) = ended {
                progress.elapsed = Duration::try_from_secs_f64(outcome.duration_seconds).unwrap_or_default();
            }
        }
        progress
    }

    /// Interrupts it; `at_once` without the grace that its processes get.
    pub fn cancel(&self, reason: &str, at_once: bool) {
        if at_once {
            self.cancel.cancel_at_once(reason);
        } else {
            self.cancel.cancel(reason);
        }
    }

    /// Holds on to it for a call.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Attached {
        self.attached.fetch_add(1, Ordering::AcqRel);
        Attached(Some(self.clone()))
    }
}

/// A call that waits for an execution.
pub struct Attached(Option<Arc<Execution>>);

impl Attached {
    /// The caller has gone or does not want it any more: it is interrupted, unless it is detached or another call
    /// waits for it.
    pub fn give_up(mut self, reason: &str) {
        if let Some(execution) = self.0.take()
            && execution.attached.fetch_sub(1, Ordering::AcqRel) == 1
            && !execution.detached
        {
            execution.cancel(reason, false);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(execution) = &self.0 {
            execution.attached.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// All executions of a server.
#[derive(Clone, Default)]
pub struct Executions {
    registry: Arc<Mutex<Registry>>,
    running: TaskTracker,
}

#[derive(Default)]
struct Registry {
    by_handle: HashMap<String, Arc<Execution>>,
    by_key: HashMap<(String, String), Arc<Execution>>,
    open: usize,
    /// Those that have ended, the first to end first.
    past: VecDeque<Arc<Execution>>,
    /// Of those, when the ones ended that still have an outcome, and its bytes: the last ones of `past`.
    kept: VecDeque<(Instant, usize)>,
    bytes: usize,
}

impl Executions {
    /// Starts a cell, or finds the execution that the same request has started before. `make` gives session and cell;
    /// the cell's switch and sink are replaced. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// See [`StartError`]; also what `make` fails with. Nothing was started then.
    pub fn start(
        &self,
        request: &Request<'_>,
        make: impl FnOnce() -> Result<(InUse, Cell), StartError>,
    ) -> Result<Arc<Execution>, StartError> {
        let mut registry = self.lock();
        registry.forget_old();
        let key = request.key.map(|key| (key.to_owned(), request.fingerprint));
        if let Some((key, fingerprint)) = &key
            && let Some(known) = registry.by_key.get(&(request.principal.to_owned(), key.clone()))
        {
            return match &known.key {
                Some((_, of_known)) if of_known == fingerprint => Ok(known.clone()),
                _ => Err(StartError::KeyReused(key.clone())),
            };
        }
        if registry.open >= MOST_OPEN {
            return Err(StartError::TooMany);
        }
        let handle = new_handle("execution-")?;
        let (mut session, mut cell) = make()?;
        let watched = Arc::new(Watched::new());
        cell.cancel = Cancel::new();
        session.run(&cell.cancel);
        cell.sink = Some(watched.clone());
        let execution = Arc::new(Execution {
            handle,
            session: session.handle.clone(),
            target: session.target.clone(),
            detached: request.detached,
            started: Instant::now(),
            principal: request.principal.to_owned(),
            key,
            cancel: cell.cancel.clone(),
            watched,
            attached: AtomicUsize::new(0),
            ended: watch::Sender::new(None),
        });
        registry.open += 1;
        registry.by_handle.insert(execution.handle.clone(), execution.clone());
        if let Some(key) = execution.by_key() {
            registry.by_key.insert(key, execution.clone());
        }
        let (executions, started) = (self.clone(), execution.clone());
        self.running.spawn(async move {
            let outcome = session.session.execute(cell).await;
            drop(session);
            executions.lock().end(&started, outcome);
        });
        Ok(execution)
    }

    /// An execution by its handle; none of another principal.
    #[must_use]
    pub fn get(&self, principal: &str, handle: &str) -> Option<Arc<Execution>> {
        let mut registry = self.lock();
        registry.forget_old();
        let found = registry.by_handle.get(handle)?;
        (found.principal == principal).then(|| found.clone())
    }

    /// The executions of a principal that have an outcome, the first to end first.
    #[must_use]
    pub fn with_outcome(&self, principal: &str) -> Vec<(Arc<Execution>, Arc<Outcome>)> {
        let mut registry = self.lock();
        registry.forget_old();
        let past = registry.past.iter().filter(|one| one.principal == principal);
        past.filter_map(|one| match one.ended() {
            Some(Ended::With(outcome)) => Some((one.clone(), outcome)),
            _ => None,
        })
        .collect()
    }

    /// The last executions of a session that run or have an outcome, the first to start first, at most `count`.
    #[must_use]
    pub fn of_session(&self, principal: &str, session: &str, count: usize) -> Vec<Arc<Execution>> {
        let mut registry = self.lock();
        registry.forget_old();
        let all = registry.by_handle.values();
        let mut found: Vec<Arc<Execution>> = all
            .filter(|one| one.principal == principal && one.session == session)
            .filter(|one| !matches!(one.ended(), Some(Ended::Forgotten)))
            .cloned()
            .collect();
        found.sort_by_key(|one| one.started);
        found.split_off(found.len().saturating_sub(count))
    }

    /// Interrupts what runs or waits in a session.
    pub fn cancel_session(&self, principal: &str, session: &str, reason: &str) {
        self.cancel_where(reason, false, |one| {
            one.principal == principal && one.session == session
        });
    }

    /// Interrupts at once what runs, but for what is detached.
    pub fn cancel_attached(&self, reason: &str) {
        self.cancel_where(reason, true, |one| !one.detached);
    }

    /// Interrupts at once what runs.
    pub fn cancel_all(&self, reason: &str) {
        self.cancel_where(reason, true, |_| true);
    }

    /// Waits until none runs. None may be started any more.
    pub async fn finish(&self) {
        self.running.close();
        self.running.wait().await;
    }

    fn cancel_where(&self, reason: &str, at_once: bool, is_meant: impl Fn(&Execution) -> bool) {
        let registry = self.lock();
        let open = registry.by_handle.values().filter(|one| one.ended().is_none());
        for execution in open.filter(|one| is_meant(one)) {
            execution.cancel(reason, at_once);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Execution {
    /// What `Registry::by_key` knows it by.
    fn by_key(&self) -> Option<(String, String)> {
        let (key, _) = self.key.as_ref()?;
        Some((self.principal.clone(), key.clone()))
    }
}

impl Registry {
    fn end(&mut self, execution: &Arc<Execution>, outcome: Outcome) {
        let bytes = OUTCOME_OVERHEAD + outcome.output.len() + outcome.stderr.as_ref().map_or(0, String::len);
        self.open -= 1;
        self.bytes += bytes;
        self.past.push_back(execution.clone());
        self.kept.push_back((Instant::now(), bytes));
        execution.ended.send_replace(Some(Ended::With(Arc::new(outcome))));
        self.forget_old();
    }

    fn forget_old(&mut self) {
        while let Some((when, bytes)) = self.kept.front() {
            let fits = self.kept.len() <= OUTCOMES_KEPT && self.bytes <= BYTES_KEPT;
            // The last one is kept whatever it takes: somebody waits for it.
            if when.elapsed() < TIME_KEPT && (fits || self.kept.len() == 1) {
                break;
            }
            if let Some(execution) = self.past.get(self.past.len() - self.kept.len()) {
                execution.ended.send_replace(Some(Ended::Forgotten));
            }
            self.bytes -= bytes;
            self.kept.pop_front();
        }
        while self.past.len() > REMEMBERED
            && let Some(execution) = self.past.pop_front()
        {
            self.by_handle.remove(&execution.handle);
            if let Some(key) = execution.by_key() {
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    /// Something that has ended, with so many bytes of output.
    fn ended(registry: &mut Registry, number: usize, bytes: usize) -> Arc<Execution> {
        let execution = Arc::new(Execution {
            handle: format!("execution-{number}"),
            session: String::new(),
            target: String::new(),
            detached: false,
            started: Instant::now(),
            principal: "p".to_owned(),
            key: Some((format!("key-{number}"), 0)),
            cancel: Cancel::new(),
            watched: Arc::new(Watched::new()),
            attached: AtomicUsize::new(0),
            ended: watch::Sender::new(None),
        });
        registry.open += 1;
        registry.by_handle.insert(execution.handle.clone(), execution.clone());
        registry.by_key.insert(execution.by_key().unwrap(), execution.clone());
        let mut outcome = Outcome::refused("local", "none");
        outcome.output = "x".repeat(bytes);
        registry.end(&execution, outcome);
        execution
    }

    #[test]
    fn outcomes_are_kept_in_bounds_and_executions_remembered_for_longer() {
        let mut registry = Registry::default();
        let all: Vec<_> = (0..REMEMBERED + 10)
            .map(|number| ended(&mut registry, number, 10))
            .collect();
        assert_eq!(registry.open, 0);
        assert_eq!(
            (registry.past.len(), registry.by_handle.len(), registry.by_key.len()),
            (REMEMBERED, REMEMBERED, REMEMBERED)
        );
        let kept = all
            .iter()
            .filter(|one| matches!(one.ended(), Some(Ended::With(_))))
            .count();
        assert_eq!(kept, OUTCOMES_KEPT);
        assert!(matches!(all.last().unwrap().ended(), Some(Ended::With(_))));
        assert!(matches!(all[10].ended(), Some(Ended::Forgotten)));
        assert!(
            registry.by_key.contains_key(&all[10].by_key().unwrap()),
            "it is not run again"
        );
        assert!(!registry.by_key.contains_key(&all[9].by_key().unwrap()));

        // A few large ones count for many.
        let large: Vec<_> = (0..3)
            .map(|number| ended(&mut registry, 10_000 + number, BYTES_KEPT / 2))
            .collect();
        assert!(registry.bytes <= BYTES_KEPT);
        assert!(matches!(large[1].ended(), Some(Ended::Forgotten)));
        assert!(matches!(large[2].ended(), Some(Ended::With(_))));
        let huge = ended(&mut registry, 20_000, BYTES_KEPT * 2);
        assert!(matches!(huge.ended(), Some(Ended::With(_))), "somebody waits for it");
        assert_eq!(registry.kept.len(), 1);
    }
}
