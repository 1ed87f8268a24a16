//! Which sandboxes behind the gateway were made here and not ended yet. The gateway has no list, so each is written down, in
//! a file of its own in a folder of the user's: what a broker that was killed has left is found by it.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::client::{Patience, Request};
use super::credentials::GatewaySources;
use super::failure::{self, Wanted};
use crate::backends::BackendError;
use crate::backends::modal::ours::OurSandbox;
use crate::backends::owner::Owner;

/// Time in which a sandbox must be ended.
const TERMINATE: Patience = Patience {
    attempt: Duration::from_secs(30),
    total: Duration::from_secs(40),
};

/// A sandbox, as it is written down.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    id: String,
    /// The gateway that made it.
    gateway: String,
    /// As [`Owner`] writes itself.
    owner: String,
    version: String,
    /// Seconds since 1970.
    created: u64,
    /// Seconds after which it has ended, whatever ran there.
    lifetime: u64,
    is_kept: bool,
}

/// The file of a sandbox that this process has made. `None` where it could not be written: its end does not hang on it.
pub(super) fn write(folder: &Path, gateway: &str, id: &str, lifetime: Duration, is_kept: bool) -> Option<PathBuf> {
    let record = Record {
        id: id.to_owned(),
        gateway: gateway.to_owned(),
        owner: Owner::this_process().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created: now(),
        lifetime: lifetime.as_secs(),
        is_kept,
    };
    let file = folder.join(format!("{id}.json"));
    let written = || -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut aside = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut aside, &record)?;
        aside.flush()?;
        aside.persist(&file)?;
        Ok(())
    };
    match written() {
        Ok(()) => Some(file),
        Err(error) => {
            warn!(sandbox = id, folder = %folder.display(), %error, "it cannot be written down which sandbox was made, so `talaria gc` will not find it");
            None
        }
    }
}

/// What was written down of sandboxes at this gateway. Files of those that have reached the end of their life are removed.
fn read(folder: &Path, gateway: &str) -> Vec<Record> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<Record> = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let Ok(record) = serde_json::from_str::<Record>(&text) else {
            continue;
        };
        if path
            .file_name()
            .is_none_or(|name| name != format!("{}.json", record.id).as_str())
        {
            continue;
        }
        if record.created.saturating_add(record.lifetime) < now() {
            remove(&path);
        } else if record.gateway == gateway {
            found.push(record);
        }
    }
    found.sort_by_key(|record| record.created);
    found
}

/// Nobody needs to find it any more.
pub(super) fn remove(file: &Path) {
    if let Err(error) = std::fs::remove_file(file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(file = %file.display(), %error, "a sandbox that was ended stays written down");
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// The sandboxes behind a gateway that were made on this machine, for whoever looks after them.
pub struct GatewayRecords {
    sources: GatewaySources,
    folder: PathBuf,
    gateway: String,
}

impl GatewayRecords {
    /// Those that `sources` lead to; `None` where nothing was written down, or is to be.
    #[must_use]
    pub fn open(sources: &GatewaySources) -> Option<Self> {
        let folder = sources.records.clone()?;
        let gateway = sources.origin().ok()?;
        let found = !read(&folder, &gateway).is_empty();
        found.then(|| Self {
            sources: sources.clone(),
            folder,
            gateway,
        })
    }

    /// The gateway.
    #[must_use]
    pub fn server(&self) -> &str {
        self.gateway
            .split_once("://")
            .map_or(&self.gateway, |(_, server)| server)
    }

    /// All that were not ended from here, the oldest first. One may have ended by itself: the gateway does not say.
    #[must_use]
    pub fn list(&self) -> Vec<OurSandbox> {
        let ours = |record: Record| OurSandbox {
            id: record.id.clone(),
            name: record.id,
            age: Duration::from_secs(now().saturating_sub(record.created)),
            version: record.version,
            is_kept: record.is_kept,
            owner: Owner::parse(&record.owner),
        };
        read(&self.folder, &self.gateway).into_iter().map(ours).collect()
    }

    /// Ends one. One that has ended is no error.
    ///
    /// # Errors
    /// When there is no token, or the gateway refuses or does not answer.
    pub async fn terminate(&self, id: &str) -> Result<(), BackendError> {
        let client = super::place::client(&self.sources, "modal")?;
        let body = serde_json::json!({"snapshotBeforeTerminate": false});
        let request = Request::post(format!("/v1/sandboxes/{id}/terminate"), &body);
        match client.ask(&request, TERMINATE).await {
            Err(failed) if !failed.is_missing() => Err(failure::failed("modal", &client, Wanted::Inside, &failed)),
            _ => {
                remove(&self.folder.join(format!("{id}.json")));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const GATEWAY: &str = "https://gate.example";

    #[test]
    fn what_was_made_is_found_until_it_is_ended_or_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("new/records");
        assert!(read(&folder, GATEWAY).is_empty());
        let day = Duration::from_secs(86_400);
        let one = write(&folder, GATEWAY, "sb-1", day, false).unwrap();
        write(&folder, GATEWAY, "sb-2", day, true).unwrap();
        write(&folder, "https://other.example", "sb-3", day, false).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&one), mode(&folder)), (0o600, 0o700));
        let late = std::fs::read_to_string(&one).unwrap().replace("sb-1", "sb-4");
        let created = format!("\"created\":{}", now() - 100);
        let start = late.find("\"created\":").unwrap();
        let end = start + late[start..].find(',').unwrap();
        let late = late.replace(&late[start..end], &created).replace("86400", "50");
        std::fs::write(folder.join("sb-4.json"), &late).unwrap();
        // What is damaged, or lies under another name, is nobody's.
        std::fs::write(folder.join("sb-5.json"), "{").unwrap();
        std::fs::copy(&one, folder.join("sb-6.json")).unwrap();
        let found = read(&folder, GATEWAY);
        let mut ids: Vec<(&str, bool)> = found.iter().map(|record| (&*record.id, record.is_kept)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [("sb-1", false), ("sb-2", true)]);
        assert!(!folder.join("sb-4.json").exists());
        assert_eq!(Owner::parse(&found[0].owner).as_ref(), Some(Owner::this_process()));
        remove(&one);
        remove(&one);
        assert_eq!(read(&folder, GATEWAY).len(), 1);
    }
}
