//! What this user may not do, and whose homes there are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Why a path may not be read, written, searched or listed, and what to do.
pub(super) fn denied(verb: &str, path: &Path) -> String {
    let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let to = if let Some(closed) = above
        .iter()
        .find(|folder| folder.is_dir() && !may(folder, Access::EXEC_OK))
    {
        format!("enter the folder {}", described(closed))
    } else if path.symlink_metadata().is_err()
        && let Some(folder) = above.iter().rev().find(|folder| folder.is_dir())
    {
        format!("make anything in the folder {}", described(folder))
    } else if verb != "write" || !may(path, Access::WRITE_OK) {
        format!("{verb} it ({})", owner(path))
    } else if let Some(folder) = above.last() {
        format!("change what is in the folder {}", described(folder))
    } else {
        format!("{verb} it")
    };
    format!("this user has no right to {to}; choose another place, or see to the rights with terminal()")
}

fn described(folder: &Path) -> String {
    format!("{} ({})", folder.display(), owner(folder))
}

fn owner(path: &Path) -> String {
    path.metadata().map_or_else(
        |_| "whose rights cannot be seen".into(),
        |found| format!("mode {:o}, of user {}", found.mode() & 0o7777, found.uid()),
    )
}

/// The home of another account, as the list of accounts has it.
pub(super) fn home_of(user: &str) -> Option<PathBuf> {
    let accounts = std::fs::read("/etc/passwd").ok()?;
    accounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let home = fields.get(5).filter(|home| home.starts_with(b"/"))?;
        (fields.first() == Some(&user.as_bytes())).then(|| PathBuf::from(OsStr::from_bytes(home)))
    })
}
