//! What of ours an engine holds: its labels, the list of it, and the removal of what has no owner.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as State};
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

use super::engine::Engine;
use super::failure;
use crate::backends::BackendError;
use crate::backends::owner::{Fate, Owner};

/// The label that makes a container ours; its value is an [`Owner`].
pub const OWNER_LABEL: &str = "io.talaria.owner";
/// What the session's container is called.
pub const SESSION_LABEL: &str = "io.talaria.session";
/// The version that made it.
pub const VERSION_LABEL: &str = "io.talaria.version";
/// When it was made, in seconds since 1970, by the clock of its owner.
pub const CREATED_LABEL: &str = "io.talaria.created";
/// Seconds after which it ends by itself when it hears nothing of its owner.
pub const LEASE_LABEL: &str = "io.talaria.lease";

/// A container that ended without being removed, and whose owner is out of sight, is left alone for this long at least.
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// A container of ours.
#[derive(Clone, Debug)]
pub struct OurContainer {
    /// The engine's identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// What the engine calls its state: `running`, `exited` …
    pub state: String,
    /// Whether processes of it may be alive.
    pub is_alive: bool,
    /// The version that made it.
    pub version: String,
    /// The time since it was made.
    pub age: Duration,
    /// The time after which it ends by itself.
    pub lease: Duration,
    /// Who made it; `None` where the label is none of this version's.
    pub owner: Option<Owner>,
}

impl OurContainer {
    /// Whether its owner lives.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.owner.as_ref().map_or(Fate::Elsewhere, Owner::fate)
    }

    /// Whether nobody can need it any more. One whose owner cannot be seen from here ends by itself when its lease runs
    /// out, as long as it runs: then only what is left of it may be removed, and not at once.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        match self.fate() {
            Fate::Alive => false,
            Fate::Ended => true,
            Fate::Elsewhere => !self.is_alive && self.age > PATIENCE.max(self.lease * 2),
        }
    }
}

/// The labels of a container that this process makes now.
pub(super) fn labels(session: &str, lease: Duration) -> HashMap<String, String> {
    HashMap::from([
        (OWNER_LABEL.to_owned(), Owner::this_process().to_string()),
        (SESSION_LABEL.to_owned(), session.to_owned()),
        (VERSION_LABEL.to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        (CREATED_LABEL.to_owned(), now().as_secs().to_string()),
        (LEASE_LABEL.to_owned(), lease.as_secs().to_string()),
    ])
}

/// All containers of ours that the engine holds, the oldest first.
///
/// # Errors
/// When the engine does not say.
pub async fn list(engine: &Engine) -> Result<Vec<OurContainer>, BackendError> {
    let filters = HashMap::from([("label", vec![OWNER_LABEL])]);
    let options = ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&filters)
        .build();
    let found = engine.docker.list_containers(Some(options)).await;
    let found = found.map_err(|error| failure::engine_failed("docker", &engine.address, &error))?;
    let mut ours: Vec<OurContainer> = found.into_iter().filter_map(read).collect();
    ours.sort_by(|one, other| other.age.cmp(&one.age).then_with(|| one.name.cmp(&other.name)));
    Ok(ours)
}

fn read(summary: ContainerSummary) -> Option<OurContainer> {
    let labels = summary.labels.unwrap_or_default();
    // An engine that does not know the filter shows everything.
    let owner = labels.get(OWNER_LABEL)?;
    let number = |label: &str| labels.get(label).and_then(|value| value.parse().ok());
    // By two clocks, either of which may be wrong: the younger counts.
    let of_engine = summary.created.and_then(|created| created.try_into().ok());
    let created = number(CREATED_LABEL).max(of_engine);
    let names = summary.names.unwrap_or_default();
    let state = summary.state.unwrap_or(State::EMPTY);
    Some(OurContainer {
        id: summary.id?,
        name: names.first().map_or("", |name| name.trim_start_matches('/')).to_owned(),
        image: summary.image.unwrap_or_default(),
        is_alive: matches!(state, State::RUNNING | State::PAUSED | State::RESTARTING),
        state: state.to_string(),
        version: labels.get(VERSION_LABEL).cloned().unwrap_or_default(),
        age: now().saturating_sub(Duration::from_secs(created.unwrap_or_default())),
        lease: Duration::from_secs(number(LEASE_LABEL).unwrap_or_default()),
        owner: Owner::parse(owner),
    })
}

/// Removes a container of ours, running or not. One that is gone already is no error.
///
/// # Errors
/// When the engine refuses.
pub async fn remove(engine: &Engine, id: &str) -> Result<(), BackendError> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match engine.docker.remove_container(id, Some(options)).await {
        Ok(()) => Ok(()),
        // Gone, or about to be: it removes itself when it ends.
        Err(error) if matches!(failure::status(&error), Some(404 | 409)) => Ok(()),
        Err(error) => Err(failure::engine_failed("docker", &engine.address, &error)),
    }
}

/// Removes what was left by owners that ended before they could start it, or that the engine did not remove when it
/// ended. What still runs removes itself when its lease runs out. Best effort.
pub(super) async fn sweep(engine: &Engine) {
    let Ok(found) = list(engine).await else { return };
    for container in found {
        if container.fate() == Fate::Ended && !container.is_alive {
            tracing::info!(name = container.name, "removing a container that has no owner any more");
            let _ = remove(engine, &container.id).await;
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn summary(change: impl FnOnce(&mut HashMap<String, String>), state: State) -> ContainerSummary {
        let mut labels = labels("talaria-1", Duration::from_secs(900));
        change(&mut labels);
        ContainerSummary {
            id: Some("1".into()),
            names: Some(vec!["/talaria-1".into()]),
            labels: Some(labels),
            state: Some(state),
            ..ContainerSummary::default()
        }
    }

    #[test]
    fn only_what_nobody_can_need_is_an_orphan() {
        let foreign = Owner::this_process().to_string().replacen('/', "x/", 1);
        let old = (now().as_secs() - 3 * 60 * 60).to_string();
        let ended = {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            child.wait().unwrap();
            let mut owner = Owner::this_process().clone();
            owner.pid = i32::try_from(child.id()).unwrap();
            owner.to_string()
        };
        for (owner, created, lease, state, orphan) in [
            (None, None, None, State::RUNNING, false),
            (None, Some(&old), None, State::EXITED, false),
            (Some(&ended), None, None, State::RUNNING, true),
            (Some(&ended), None, None, State::CREATED, true),
            (Some(&foreign), Some(&old), None, State::RUNNING, false),
            (Some(&foreign), Some(&old), None, State::PAUSED, false),
            (Some(&foreign), Some(&old), None, State::EXITED, true),
            (Some(&foreign), Some(&old), Some("86400"), State::EXITED, false),
            (Some(&foreign), None, None, State::CREATED, false),
        ] {
            let change = |labels: &mut HashMap<String, String>| {
                let values = [(OWNER_LABEL, owner), (CREATED_LABEL, created)];
                for (label, value) in values.into_iter().filter_map(|(label, value)| Some((label, value?))) {
                    labels.insert(label.to_owned(), value.clone());
                }
                if let Some(lease) = lease {
                    labels.insert(LEASE_LABEL.to_owned(), lease.to_owned());
                }
            };
            let container = read(summary(change, state)).unwrap();
            assert_eq!(container.is_orphan(), orphan, "{owner:?} {created:?} {lease:?} {state}");
        }
    }

    #[test]
    fn what_lacks_our_label_is_not_ours() {
        assert!(read(summary(|labels| labels.clear(), State::EXITED)).is_none());
        let odd = read(summary(
            |labels| drop(labels.insert(OWNER_LABEL.into(), "?".into())),
            State::EXITED,
        ))
        .unwrap();
        assert_eq!((odd.owner.is_none(), odd.is_orphan()), (true, false));
    }
}
