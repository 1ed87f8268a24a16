//! Patches of one file by one broker wait for each other; of others, the file itself tells.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Files whose turns are remembered before those that nobody waits for are forgotten.
const MANY: usize = 1024;

/// Whose turn it is, by path as given: another name of the same file is a conflict that is seen when it is changed.
#[derive(Debug, Default)]
pub(in crate::tools) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else patches one of these; they are this caller's until what comes back is dropped.
    pub(super) async fn take(&self, mut paths: Vec<String>) -> Vec<OwnedMutexGuard<()>> {
        // In one order for all, so that no two wait for each other.
        paths.sort_unstable();
        paths.dedup();
        let mut held = Vec::with_capacity(paths.len());
        for path in paths {
            let turn = self.of(path);
            held.push(turn.lock_owned().await);
        }
        held
    }

    fn of(&self, path: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= MANY {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        if let Some(turn) = turns.get(&path).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(path, Arc::downgrade(&turn));
        turn
    }
}
