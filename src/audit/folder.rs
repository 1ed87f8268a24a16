//! Where the log is, and that it is ours alone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::output::hermes_home;

/// The folder of the log, by the environment: `talaria/audit` under `HERMES_HOME`, else under `~/.hermes` where that
/// exists, else under the XDG state folder (`~/.local/state`). Nothing is made.
#[must_use]
pub fn default_folder(environment: &Environment) -> PathBuf {
    let get = |name: &str| environment.get(name).map(OsString::from);
    let base = hermes_home(&get).unwrap_or_else(|| {
        let named = environment.filled("XDG_STATE_HOME").map(PathBuf::from);
        named.filter(|path| path.is_absolute()).unwrap_or_else(|| {
            let home = environment.home().map(Path::to_owned);
            let home = home.or_else(|| etcetera::home_dir().ok());
            home.unwrap_or_else(|| PathBuf::from("/")).join(".local/state")
        })
    });
    base.join("talaria/audit")
}

/// Makes a folder if need be, closed to others, and sees to it that nobody else can put anything there.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
    let us = rustix::process::geteuid().as_raw();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if fs::symlink_metadata(folder)?.uid() != us {
        return refused("it belongs to another user");
    }
    let found = fs::metadata(folder)?;
    if found.uid() != us {
        return refused("it leads to a folder of another user");
    }
    // Its mode is left as it is: a folder that the user named may serve others too.
    if found.permissions().mode() & 0o022 != 0 {
        return refused("others may write in it: take that from them (chmod go-w)");
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_environment() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        let folder = |variables: &[(&str, &str)]| default_folder(&variables.iter().copied().collect());
        let below = |base: &str| Path::new(base).join("talaria/audit");
        let state = format!("{home}/.local/state");
        assert_eq!(folder(&[("HOME", home)]), below(&state));
        assert_eq!(folder(&[("HOME", home), ("XDG_STATE_HOME", "relative")]), below(&state));
        assert_eq!(folder(&[("HOME", home), ("XDG_STATE_HOME", "/s")]), below("/s"));
        let hermes = format!("{home}/.hermes");
        fs::create_dir(&hermes).unwrap();
        assert_eq!(folder(&[("HOME", home), ("XDG_STATE_HOME", "/s")]), below(&hermes));
        assert_eq!(folder(&[("HOME", home), ("HERMES_HOME", "/opt/h")]), below("/opt/h"));
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused_and_a_new_one_closed() {
        let temp = tempfile::tempdir().unwrap();
        let new = temp.path().join("a/new");
        make_private(&new).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o700);
        make_private(&new).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(make_private(&new).unwrap_err().to_string().contains("chmod go-w"));
    }
}
