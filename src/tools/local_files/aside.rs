//! Files beside the one that is changed: what it will be, and what it was.
//!
//! Whoever makes one holds a lock on it while it is needed, and notes it in the session's folder: should the broker be
//! killed meanwhile, the session's guard removes what is noted there. One that even a guard has left has no lock, and
//! whoever patches a file of its folder next removes it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, mkdir, openat, symlinkat, unlinkat};

/// What their names begin with.
const PREFIX: &str = ".talaria-patch-";
/// The part of a session's folder in which each is noted, as a link to it: `remote_agent/folders.py` knows both names.
const NOTES: &str = "asides";
/// How old one is at least that was left: where locks are not known to all, age has to do.
const LEFT_AFTER: Duration = Duration::from_secs(60);
/// Names of a folder that are looked at.
const SEEN_NAMES: usize = 4096;
/// How long another change of the same file is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where it is noted what lies beside other files.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(Option<Arc<OwnedFd>>);

impl Notes {
    /// Those of a session. Where they cannot be had, nothing is noted: a script may have removed the folder.
    pub(super) fn of(session: Option<&Path>) -> Self {
        let open = |session: &Path| {
            let folder = session.join(NOTES);
            let _ = mkdir(&folder, Mode::RWXU);
            // A link that somebody put in its place is not followed.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(CWD, &folder, flags, Mode::empty()).ok()
        };
        Self(session.and_then(open).map(Arc::new))
    }

    fn add(&self, name: &str, path: &Path) {
        if let Some(folder) = &self.0 {
            let _ = symlinkat(path, folder, name);
        }
    }

    fn remove(&self, path: &Path) {
        if let (Some(folder), Some(name)) = (&self.0, path.file_name()) {
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// A file beside; removed with this value.
#[derive(Debug)]
pub(super) struct Aside {
    path: PathBuf,
    notes: Notes,
}

impl Aside {
    /// An empty one, open and locked.
    pub(super) fn create(folder: &Path, mode: u32, notes: &Notes) -> io::Result<(Self, File)> {
        let aside = Self::named(folder, notes)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&aside.path)?;
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok((aside, file))
    }

    /// Another name of a file, which stays when the file is replaced or removed.
    pub(super) fn link(target: &Path, notes: &Notes) -> io::Result<Self> {
        let aside = Self::named(target.parent().unwrap_or(Path::new("/")), notes)?;
        std::fs::hard_link(target, &aside.path)?;
        Ok(aside)
    }

    fn named(folder: &Path, notes: &Notes) -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{PREFIX}{hex}");
        let path = folder.join(&name);
        notes.add(&name, &path);
        Ok(Self {
            path,
            notes: notes.clone(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Renamed, it is no longer there.
        let _ = std::fs::remove_file(&self.path);
        self.notes.remove(&self.path);
    }
}

/// Waits for whoever changes this file just now. Where there are no locks, or somebody else holds one for longer,
/// that it is still the same file and content has to do.
pub(super) fn lock(file: &File) {
    let end = Instant::now() + PATIENCE;
    while flock(file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
        && Instant::now() < end
    {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Removes what was left in a folder.
pub(super) fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.filter_map(Result::ok).take(SEEN_NAMES) {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) && is_left(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn is_left(path: &Path) -> bool {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let Ok(file) = opened else {
        return false;
    };
    let is_old = file
        .metadata()
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LEFT_AFTER));
    is_old && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_was_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - Duration::from_secs(600);
        let (aside, file) = Aside::create(folder.path(), 0o600, &Notes::default()).unwrap();
        file.set_modified(old).unwrap();
        for name in [".talaria-patch-left", ".talaria-patch-young", ".talaria-1", "other"] {
            let file = File::create(folder.path().join(name)).unwrap();
            if name != ".talaria-patch-young" {
                file.set_modified(old).unwrap();
            }
        }
        sweep(folder.path());
        let mut names = super::super::names(folder.path(), 9);
        names.sort();
        let own = aside.path().file_name().unwrap().to_str().unwrap();
        let mut expected = vec![".talaria-1", ".talaria-patch-young", "other", own];
        expected.sort_unstable();
        assert_eq!(names, expected);
        drop(aside);
        assert_eq!(super::super::names(folder.path(), 9).len(), 3);
    }
}
