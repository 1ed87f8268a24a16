//! Where spill files live, and for how long.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::spill::SpillError;

/// Beginnings of the names of spill files: a cell's output, and a page that was too long to show.
pub const SPILL_PREFIXES: [&str; 2] = [STDOUT, PAGE];
pub(super) const STDOUT: &str = "stdout-";
pub(super) const PAGE: &str = "page-";
const SUFFIX: &str = ".txt";
/// Random bytes in a name; two hexadecimal digits each.
const RANDOM_BYTES: usize = 16;

/// The directory for spill files, read from an environment: `cache/exec` under `HERMES_HOME`, else
/// under `~/.hermes` where that exists, else `talaria/exec` under the XDG cache directory. Nothing
/// is created.
///
/// An empty variable counts as unset, and so does a relative `XDG_CACHE_HOME`. Without `HOME` the
/// account's home directory is taken.
#[must_use]
pub fn spill_dir(env: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    if let Some(hermes) = hermes_home(env) {
        return hermes.join("cache/exec");
    }
    let path_of = |name| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = home(env);
    path_of("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| home.join(".cache"))
        .join("talaria/exec")
}

/// The agent's own folder, where files of ours that are kept go too: `HERMES_HOME`, else `~/.hermes` where that exists.
pub(crate) fn hermes_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(hermes) = env("HERMES_HOME").filter(|value| !value.is_empty()) {
        // Absolute, because paths in it are shown to callers that work in other directories.
        return Some(std::path::absolute(&hermes).unwrap_or_else(|_| hermes.into()));
    }
    let hermes = home(env).join(".hermes");
    hermes.is_dir().then_some(hermes)
}

fn home(env: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let named = env("HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    named
        .or_else(|| etcetera::home_dir().ok())
        .unwrap_or_else(|| PathBuf::from("/"))
}

/// Removes spill files that were last written longer ago than `older_than`, and returns how many.
///
/// Only regular files with a name of ours are touched, and no link is followed. What cannot be
/// removed stays and is logged; a directory that does not exist is empty.
pub fn prune(dir: &Path, older_than: Duration) -> usize {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::debug!(dir = %dir.display(), %error, "cannot look for old spill files");
            }
            return 0;
        }
    };
    let Some(limit) = SystemTime::now().checked_sub(older_than) else {
        return 0;
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        if !is_spill_name(&entry.file_name()) {
            continue;
        }
        // Of a link itself, not of what it points to.
        let old = entry
            .metadata()
            .is_ok_and(|m| m.is_file() && m.modified().is_ok_and(|at| at < limit));
        if !old {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::debug!(file = %entry.path().display(), %error, "an old spill file stays");
            }
        }
    }
    removed
}

/// A new name that nobody can guess.
pub(super) fn spill_name(prefix: &str) -> Result<String, SpillError> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(SpillError::Random)?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{digits}{SUFFIX}"))
}

fn is_spill_name(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| {
            let rest = SPILL_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
            rest.strip_suffix(SUFFIX)
        })
        .is_some_and(|digits| digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Makes the directory if need be, and sees to it that it is ours and nobody else can write in it.
pub(super) fn make_private(dir: &Path) -> Result<(), SpillError> {
    let failed = |source| SpillError::Directory {
        path: dir.to_owned(),
        source,
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    let metadata = fs::metadata(dir).map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(SpillError::NotOurs { path: dir.to_owned() });
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;

    fn dir_for(vars: &[(&str, &Path)]) -> PathBuf {
        spill_dir(&|name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.as_os_str().to_owned())
        })
    }

    #[test]
    fn the_directory_follows_the_environment() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let cache = Path::new("/somewhere/cache");
        assert_eq!(
            dir_for(&[("HOME", home), ("XDG_CACHE_HOME", cache)]),
            cache.join("talaria/exec")
        );
        assert_eq!(
            dir_for(&[("HOME", home), ("XDG_CACHE_HOME", Path::new("relative"))]),
            home.join(".cache/talaria/exec")
        );
        assert_eq!(
            dir_for(&[("HOME", home), ("HERMES_HOME", Path::new(""))]),
            home.join(".cache/talaria/exec")
        );
        fs::create_dir(home.join(".hermes")).unwrap();
        assert_eq!(
            dir_for(&[("HOME", home), ("XDG_CACHE_HOME", cache)]),
            home.join(".hermes/cache/exec")
        );
        let hermes = Path::new("/opt/hermes");
        assert_eq!(
            dir_for(&[("HOME", home), ("HERMES_HOME", hermes)]),
            hermes.join("cache/exec")
        );
    }

    #[test]
    fn names_are_recognised() {
        for prefix in SPILL_PREFIXES {
            let name = spill_name(prefix).unwrap();
            assert!(is_spill_name(OsStr::new(&name)), "{name}");
            assert_ne!(name, spill_name(prefix).unwrap());
        }
        for other in ["stdout-.txt", "stdout-12.txt", "notes.txt", "stdout-é.txt"] {
            assert!(!is_spill_name(OsStr::new(other)), "{other}");
        }
    }

    #[test]
    fn only_old_files_of_ours_are_pruned() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let week = Duration::from_secs(7 * 24 * 3600);
        let long_ago = SystemTime::now() - week * 2;
        let make = |name: &str| {
            let file = File::create(dir.join(name)).unwrap();
            file.set_modified(long_ago).unwrap();
        };
        let [old, new, link] = [PAGE, STDOUT, STDOUT].map(|prefix| spill_name(prefix).unwrap());
        make(&old);
        make("notes.txt");
        File::create(dir.join(&new)).unwrap();
        symlink(dir.join("notes.txt"), dir.join(&link)).unwrap();

        assert_eq!(prune(dir, week), 1);
        assert!(!dir.join(&old).exists());
        for name in [&new, &link, "notes.txt"] {
            assert!(dir.join(name).exists(), "{name}");
        }
        assert_eq!(prune(&dir.join("missing"), week), 0);
    }

    #[test]
    fn the_directory_is_made_private() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        make_private(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&temp.path().join("a")), 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o775)).unwrap();
        make_private(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
    }
}
