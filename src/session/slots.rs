//! How many kernels one broker keeps alive, and which goes when another is wanted.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::handle::Inner;

/// All sessions of a broker that may have a kernel.
pub(crate) struct Slots {
    limit: usize,
    sessions: Mutex<Vec<Weak<Inner>>>,
    /// A session has come, or a kernel is about to.
    changed: Notify,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            sessions: Mutex::new(Vec::new()),
            changed: Notify::new(),
        }
    }

    pub(crate) fn add(&self, session: &Arc<Inner>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|known| known.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
        self.changed.notify_one();
    }

    /// Sessions with a living kernel, the longest idle first.
    fn alive(&self) -> Vec<Arc<Inner>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive: Vec<Arc<Inner>> = sessions.iter().filter_map(Weak::upgrade).collect();
        alive.retain(|session| session.has_kernel());
        alive.sort_by_key(|session| session.last_used());
        alive
    }

    /// All sessions that still exist.
    pub(crate) fn all(&self) -> Vec<Arc<Inner>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends idle kernels, the longest idle first, until there is room for one more. A busy kernel
    /// never goes: when all are busy the limit is exceeded until one is idle.
    pub(super) async fn make_room(&self, wanted_by: &Inner) {
        let others: Vec<Arc<Inner>> = self
            .alive()
            .into_iter()
            .filter(|session| !std::ptr::eq(&**session, wanted_by))
            .collect();
        let excess = (others.len() + 1).saturating_sub(self.limit);
        self.evict(others, excess).await;
        self.changed.notify_one();
    }

    async fn evict(&self, others: Vec<Arc<Inner>>, mut excess: usize) {
        for session in others {
            if excess == 0 {
                return;
            }
            let reason = format!(
                "the kernel was idle and made room for another session (max_session_kernels: {})",
                self.limit
            );
            if session.evict(&reason).await {
                excess -= 1;
            }
        }
    }

    /// Ends kernels that have been idle for too long, for ever.
    pub(crate) async fn reap_idle(self: Arc<Self>) {
        loop {
            let alive = self.alive();
            let excess = alive.len().saturating_sub(self.limit);
            self.evict(alive, excess).await;
            let is_above = self.alive().len() > self.limit;
            // While all are busy one may become idle at any moment; else none does before its limit has passed.
            let mut next = Duration::from_secs(if is_above { 1 } else { 30 });
            for session in self.all() {
                let (idle, limit) = (session.last_used().elapsed(), session.idle_limit());
                if session.has_kernel() && idle >= limit {
                    let reason = format!(
                        "the kernel was idle for {} (kernel_idle_timeout)",
                        crate::limits::format_duration(limit)
                    );
                    session.evict(&reason).await;
                }
                next = next.min(if session.has_kernel() && idle < limit {
                    limit - idle
                } else {
                    limit
                });
            }
            let next = next.max(Duration::from_millis(20));
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = self.changed.notified() => {}
            }
        }
    }
}
