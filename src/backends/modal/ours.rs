//! What of ours an account holds: the tags of sandboxes, the list of them, and the end of those that have no owner.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::control::Control;
use super::credentials::{Account, ModalSources};
use super::failure::{Asked, Wanted};
use super::generation::{Generation, terminate};
use super::retry::Policy;
use super::waiting::Waits;
use super::wire::client::{SandboxInfo, SandboxListRequest, SandboxTag};
use crate::backends::BackendError;
use crate::backends::owner::{Fate, Owner};

/// The tag that makes a sandbox ours.
const OURS: (&str, &str) = ("talaria", "sandbox");

/// The tags that name its owner, in the order in which an [`Owner`] is written. One tag would be too long.
const OWNER: [&str; 6] = [
    "talaria-host",
    "talaria-boot",
    "talaria-namespace",
    "talaria-process",
    "talaria-start",
    "talaria-nonce",
];

/// The tag with the version that made it.
const VERSION: &str = "talaria-version";

/// The tag of one that stays when its session ends.
const KEPT: (&str, &str) = ("talaria-kept", "true");

/// The longest value of a tag.
const LONGEST: usize = 63;

/// Answers that are asked for at most: each names some sandboxes.
const PAGES: usize = 100;

/// A sandbox of ours.
#[derive(Clone, Debug)]
pub struct OurSandbox {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The time since it was made.
    pub age: Duration,
    /// The version that made it.
    pub version: String,
    /// Whether it was to stay when its session ends.
    pub is_kept: bool,
    /// Who made it; `None` where its tags are none of this version's.
    pub owner: Option<Owner>,
}

impl OurSandbox {
    /// Whether its owner lives.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.owner.as_ref().map_or(Fate::Elsewhere, Owner::fate)
    }

    /// Whether nobody can need it any more. One whose owner cannot be seen from here ends by itself when nothing runs
    /// in it any more.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        !self.is_kept && self.fate() == Fate::Ended
    }
}

/// The tags of a sandbox that this process makes now.
pub(super) fn tags(keep: bool) -> HashMap<String, String> {
    let owner = Owner::this_process().to_string();
    let names = OWNER.iter().map(|name| (*name).to_owned());
    let values = owner.split('/').map(|part| part.chars().take(LONGEST).collect());
    let mut tags: HashMap<String, String> = names.zip(values).collect();
    let mut add = |(name, value): (&str, &str)| tags.insert(name.to_owned(), value.to_owned());
    add(OURS);
    add((VERSION, env!("CARGO_PKG_VERSION")));
    if keep {
        add(KEPT);
    }
    tags
}

fn read(info: SandboxInfo) -> Option<OurSandbox> {
    let tags: HashMap<String, String> = info.tags.into_iter().map(|tag| (tag.tag_name, tag.tag_value)).collect();
    let has = |(name, value): (&str, &str)| tags.get(name).is_some_and(|found| found == value);
    if !has(OURS) {
        return None;
    }
    let parts: Option<Vec<&str>> = OWNER.iter().map(|name| tags.get(*name).map(String::as_str)).collect();
    let created = Duration::try_from_secs_f64(info.created_at).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(OurSandbox {
        id: info.id,
        name: info.name,
        age: now.saturating_sub(created),
        version: tags.get(VERSION).cloned().unwrap_or_default(),
        is_kept: has(KEPT),
        owner: parts.and_then(|parts| Owner::parse(&parts.join("/"))),
    })
}

/// An account, for whoever looks after what of ours it holds.
pub struct ModalAccount {
    control: Control,
    account: Account,
    server: String,
}

impl ModalAccount {
    /// Reaches the account that is meant.
    ///
    /// # Errors
    /// When there is none, or Modal does not answer.
    pub async fn open(sources: &ModalSources) -> Result<Self, BackendError> {
        let account = Account {
            // Whoever looks after things comes again.
            patience: Duration::ZERO,
            ..sources.account("modal")?
        };
        let asked = Asked {
            target: "modal",
            server: "",
            said_by: &account.said_by,
        };
        let control = Control::connect(&account, Waits::new()).await;
        let control = control.map_err(|trouble| asked.unreachable(&trouble))?;
        let server = super::connection::named(&control.server);
        Ok(Self {
            control,
            account,
            server,
        })
    }

    /// The server that was reached.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// All sandboxes of ours that have not ended, the oldest first.
    ///
    /// # Errors
    /// When Modal does not say.
    pub async fn list(&self) -> Result<Vec<OurSandbox>, BackendError> {
        let mut found: Vec<OurSandbox> = Vec::new();
        let mut before = 0.0;
        for _ in 0..PAGES {
            let request = SandboxListRequest {
                environment_name: self.account.environment.clone(),
                before_timestamp: before,
                tags: vec![SandboxTag {
                    tag_name: OURS.0.to_owned(),
                    tag_value: OURS.1.to_owned(),
                }],
                ..SandboxListRequest::default()
            };
            let page = self
                .control
                .call_v2(
                    "SandboxListV2",
                    Policy::CONTROL,
                    request,
                    None,
                    |mut client, request| async move { client.sandbox_list_v2(request).await },
                )
                .await
                .map_err(|failed| self.asked().failed(Wanted::List, &failed))?;
            let oldest = page
                .sandboxes
                .iter()
                .map(|info| info.created_at)
                .fold(f64::INFINITY, f64::min);
            let is_new = |info: &SandboxInfo| !found.iter().any(|known| known.id == info.id);
            let new: Vec<SandboxInfo> = page.sandboxes.into_iter().filter(is_new).collect();
            if new.is_empty() {
                break;
            }
            found.extend(new.into_iter().filter_map(read));
            before = oldest;
        }
        found.sort_by(|one, other| other.age.cmp(&one.age).then_with(|| one.name.cmp(&other.name)));
        Ok(found)
    }

    /// Ends a sandbox. One that has ended is no error.
    ///
    /// # Errors
    /// When Modal refuses.
    pub async fn terminate(&self, id: &str) -> Result<(), BackendError> {
        let ended = terminate(&self.control, id, Generation::of(id), None).await;
        ended.map_err(|failed| self.asked().failed(Wanted::Existing(id), &failed))
    }

    fn asked(&self) -> Asked<'_> {
        Asked {
            target: "modal",
            server: &self.server,
            said_by: &self.account.said_by,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn info(change: impl FnOnce(&mut HashMap<String, String>), keep: bool) -> SandboxInfo {
        let mut tags = tags(keep);
        change(&mut tags);
        let tag = |(tag_name, tag_value)| SandboxTag { tag_name, tag_value };
        SandboxInfo {
            id: "sb-1".into(),
            created_at: 1.0,
            tags: tags.into_iter().map(tag).collect(),
            name: "talaria-1".into(),
        }
    }

    #[test]
    fn only_what_nobody_can_need_is_an_orphan() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let ended = child.id().to_string();
        let set = |name: &'static str, value: String| {
            move |tags: &mut HashMap<String, String>| {
                tags.insert(name.to_owned(), value);
            }
        };
        for (sandbox, fate, orphan) in [
            (info(|_| (), false), Fate::Alive, false),
            (info(set("talaria-process", ended.clone()), false), Fate::Ended, true),
            (info(set("talaria-process", ended), true), Fate::Ended, false),
            (
                info(set("talaria-host", "another".into()), false),
                Fate::Elsewhere,
                false,
            ),
            (info(set("talaria-start", "soon".into()), false), Fate::Elsewhere, false),
        ] {
            let sandbox = read(sandbox).unwrap();
            assert_eq!((sandbox.fate(), sandbox.is_orphan()), (fate, orphan), "{sandbox:?}");
        }
        let foreign = info(
            |tags| {
                tags.remove(OURS.0);
            },
            false,
        );
        assert!(read(foreign).is_none());
    }

    #[test]
    fn tags_are_short_and_name_this_process() {
        let sandbox = read(info(|_| (), true)).unwrap();
        assert_eq!(sandbox.owner.as_ref(), Some(Owner::this_process()));
        assert!(sandbox.is_kept && sandbox.version == env!("CARGO_PKG_VERSION"));
        for (name, value) in tags(true) {
            assert!(name.len() <= LONGEST && value.len() <= LONGEST, "{name}={value}");
        }
    }
}
