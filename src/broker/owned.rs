//! Sessions that are addressed by a handle and belong to a principal: they live on between the calls of a client, and
//! those that nobody uses any more are ended.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Broker;
use super::handle::{NoRandom, new_handle};
use crate::session::{Cancel, Session, SessionError, SessionOptions};

/// Idle sessions that one principal keeps; the longest idle is ended first.
const IDLE_KEPT: usize = 32;

/// Sessions of all principals together, busy ones included.
const MOST: usize = 512;

/// Why a session was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// See [`NoRandom`].
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// See [`SessionError`].
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There are as many as there may be, and none is idle.
    #[error("{MOST} sessions are open already; close one, or wait for a script to end")]
    TooMany,
}

/// A session with its owner.
pub struct OwnedSession {
    /// What a client calls it by.
    pub handle: String,
    /// Whose it is.
    pub principal: String,
    /// The target, as the user wrote it.
    pub target: String,
    /// When it was opened.
    pub opened: Instant,
    /// The session itself.
    pub session: Session,
    /// Calls that use it now.
    users: AtomicUsize,
    /// Scripts of it that run or wait for their turn, with their switches.
    scripts: Mutex<Vec<(u64, Cancel)>>,
    last_used: Mutex<Instant>,
}

impl OwnedSession {
    /// Whether a script runs in it, other than one that is being interrupted.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.scripts().iter().any(|(_, switch)| !switch.is_cancelled())
    }

    fn scripts(&self) -> MutexGuard<'_, Vec<(u64, Cancel)>> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since a call used it last; zero while one does.
    #[must_use]
    pub fn idle(&self) -> Duration {
        match self.users.load(Ordering::Acquire) {
            0 => self.last_used.lock().unwrap_or_else(PoisonError::into_inner).elapsed(),
            _ => Duration::ZERO,
        }
    }
}

/// The use of a session: as long as it is held, the session is not ended for being idle.
pub struct InUse {
    session: Arc<OwnedSession>,
    /// The script that it is for.
    script: Option<u64>,
}

impl InUse {
    fn new(session: &Arc<OwnedSession>) -> Self {
        session.users.fetch_add(1, Ordering::AcqRel);
        Self {
            session: session.clone(),
            script: None,
        }
    }

    /// From now on it is for a script with this switch.
    pub(super) fn run(&mut self, switch: &Cancel) {
        let mut scripts = self.session.scripts();
        let number = scripts.last().map_or(0, |(last, _)| last + 1);
        scripts.push((number, switch.clone()));
        self.script = Some(number);
    }
}

impl Deref for InUse {
    type Target = OwnedSession;

    fn deref(&self) -> &OwnedSession {
        &self.session
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        *self.session.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if let Some(script) = self.script {
            self.session.scripts().retain(|(number, _)| *number != script);
        }
        self.session.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All sessions of a broker that belong to principals.
pub struct OwnedSessions {
    broker: Arc<Broker>,
    idle_limit: Duration,
    sessions: Mutex<HashMap<String, Arc<OwnedSession>>>,
}

impl OwnedSessions {
    /// None yet. A session that is idle for `idle_limit` is ended.
    #[must_use]
    pub fn new(broker: Arc<Broker>, idle_limit: Duration) -> Self {
        Self {
            broker,
            idle_limit,
            sessions: Mutex::default(),
        }
    }

    /// Opens a session for a principal. Nothing is started before it is used. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, principal: &str, mut options: SessionOptions) -> Result<InUse, OpenError> {
        self.end_idle(Some(principal));
        options.principal = Some(format!("client {principal}"));
        let handle = new_handle("session-")?;
        let target = options.target.clone();
        let mut sessions = self.lock();
        if sessions.len() >= MOST {
            return Err(OpenError::TooMany);
        }
        let owned = Arc::new(OwnedSession {
            handle: handle.clone(),
            principal: principal.to_owned(),
            target,
            opened: Instant::now(),
            session: self.broker.open(options)?,
            users: AtomicUsize::new(0),
            scripts: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
        });
        let in_use = InUse::new(&owned);
        sessions.insert(handle, owned);
        Ok(in_use)
    }

    /// A session by its handle; none of another principal.
    #[must_use]
    pub fn take(&self, principal: &str, handle: &str) -> Option<InUse> {
        let sessions = self.lock();
        let found = sessions.get(handle)?;
        (found.principal == principal).then(|| InUse::new(found))
    }

    /// The sessions of a principal, the oldest first.
    #[must_use]
    pub fn list(&self, principal: &str) -> Vec<Arc<OwnedSession>> {
        let sessions = self.lock();
        let mut found: Vec<_> = sessions
            .values()
            .filter(|one| one.principal == principal)
            .cloned()
            .collect();
        found.sort_by_key(|one| one.opened);
        found
    }

    /// Forgets a session, so that no call finds it any more. Whoever gets it closes it.
    #[must_use]
    pub fn remove(&self, principal: &str, handle: &str) -> Option<Session> {
        let mut sessions = self.lock();
        if sessions.get(handle)?.principal != principal {
            return None;
        }
        Some(sessions.remove(handle)?.session.clone())
    }

    /// Ends what is idle for too long; of one principal's idle ones also those that are too many, so that there is room
    /// for another. Must be called within a tokio runtime.
    pub fn end_idle(&self, principal: Option<&str>) {
        let mut sessions = self.lock();
        let mut idle: Vec<(Duration, String)> = Vec::new();
        let mut over: Vec<String> = Vec::new();
        for (handle, one) in sessions.iter() {
            let time = one.idle();
            if time.is_zero() {
                continue;
            }
            if time >= self.idle_limit {
                over.push(handle.clone());
            } else if principal.is_some_and(|principal| one.principal == principal) {
                idle.push((time, handle.clone()));
            }
        }
        idle.sort_by_key(|(time, _)| *time);
        over.extend(idle.into_iter().skip(IDLE_KEPT - 1).map(|(_, handle)| handle));
        for handle in over {
            if let Some(ended) = sessions.remove(&handle) {
                let session = ended.session.clone();
                tokio::spawn(async move { session.close().await });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<OwnedSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
