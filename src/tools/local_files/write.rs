//! Writes a file whole or not at all.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, accessat, fallocate};

use super::aside::{Aside, Notes};
use super::fetch::{plain, real};
use super::{Protected, WorkspaceError, Written, failed, is_folder};

/// As many symlinks as Linux follows.
const MOST_LINKS: usize = 40;

pub(super) fn write(
    path: &Path,
    content: &[u8],
    protected: &Protected,
    notes: &Notes,
) -> Result<Written, WorkspaceError> {
    let fail = |error: io::Error| match error.kind() {
        // The file need not exist; so it is its folder that takes none.
        io::ErrorKind::NotFound => WorkspaceError(format!("cannot write {}: {}", path.display(), without_place(path))),
        _ => failed("write", path, &error),
    };
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let text = format!("{} is the name of a folder; add a file name", path.display());
        return Err(WorkspaceError(text));
    }
    let target = behind_links(path).map_err(fail)?;
    // The name as given too: it may itself be a link, as dotfiles often are.
    for meant in [plain(path), real(&target)] {
        protected.check(meant.as_os_str().as_bytes(), &path.to_string_lossy())?;
    }
    let existing = match target.metadata() {
        Ok(metadata) if metadata.is_dir() => return Err(is_folder(&target)),
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(fail(error)),
    };
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(WorkspaceError(format!("{} is no name of a file", path.display())));
    };
    let mut made = Vec::new();
    let done = make_folders(parent, &mut made).and_then(|()| match &existing {
        None => replace(&target, content, None, notes),
        Some(metadata) if metadata.is_file() => {
            accessat(CWD, &target, Access::WRITE_OK, AtFlags::EACCESS)?;
            replace(&target, content, Some(metadata.permissions()), notes).or_else(|error| {
                match error.kind() {
                    // The folder takes no new file, or the file is a mount of its own.
                    io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::ResourceBusy => {
                        one_name(metadata.nlink())?;
                        overwrite(&target, content)
                    }
                    _ => Err(error),
                }
            })
        }
        Some(metadata) => pour(&target, content, metadata),
    });
    if let Err(error) = done {
        for folder in made.iter().rev() {
            // Only a folder that is still empty goes; one that is in use by now may stay.
            let _ = std::fs::remove_dir(folder);
        }
        return Err(fail(error));
    }
    let resolved = parent
        .canonicalize()
        .map_or_else(|_| target.clone(), |folder| folder.join(name));
    Ok(Written {
        bytes_written: content.len() as u64,
        dirs_created: made.iter().map(|folder| folder.display().to_string()).collect(),
        resolved_path: resolved.display().to_string(),
    })
}

/// The file that is meant when the path is a symlink; it need not exist.
pub(super) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                let link = std::fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("/")).join(link);
            }
            _ => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Makes the folders that are missing and notes each, outermost first.
pub(super) fn make_folders(folder: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match folder.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = folder.parent() {
        make_folders(parent, made)?;
    }
    match DirBuilder::new().create(folder) {
        Ok(()) => {
            made.push(folder.to_path_buf());
            Ok(())
        }
        // Somebody else made it meanwhile, or it is `missing/..`, which exists by now.
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::other(without_place(folder))),
        Err(error) => Err(error),
    }
}

/// Why nothing can be made under a name: its folder is not there, or is none in which anything is made.
pub(super) fn without_place(path: &Path) -> String {
    match path.parent().filter(|folder| folder.is_dir()) {
        Some(folder) => format!(
            "nothing can be made in {}, which is no folder on a disk; choose another place",
            folder.display()
        ),
        None => "its folder has just gone; make it again, or choose another place".into(),
    }
}

/// A file that has several names changes under all of them when it is written in place.
pub(super) fn one_name(links: u64) -> io::Result<()> {
    if links < 2 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "its folder takes no new file, and it has {links} names (hard links), under all of which it would change; use terminal() or Python if that is meant"
    )))
}

/// Writes aside in the same folder, then renames over the target.
fn replace(target: &Path, content: &[u8], mode: Option<Permissions>, notes: &Notes) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    // A new file gets what the umask leaves; an existing one may be private, so nobody else may
    // look into the copy before it has the same bits.
    let initial = if mode.is_some() { 0o600 } else { 0o666 };
    let (aside, mut file) = Aside::create(folder, initial, notes)?;
    file.write_all(content)?;
    if let Some(mode) = mode {
        file.set_permissions(mode)?;
    }
    std::fs::rename(aside.path(), target)
}

/// Writes in place, having first made sure that the disk has the room.
pub(super) fn overwrite(target: &Path, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(target)?;
    if let Err(error) = reserve(&file, content.len() as u64)
        && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    {
        return Err(error);
    }
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)
}

fn reserve(file: &File, size: u64) -> io::Result<()> {
    if size > 0 {
        fallocate(file, FallocateFlags::KEEP_SIZE, 0, size)?;
    }
    Ok(())
}

/// Writes into a device or pipe, such as /dev/null, without ever waiting for it.
fn pour(target: &Path, content: &[u8], metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    if kind.is_socket() {
        return Err(io::Error::other("it is a socket, not a file; connect to it in Python"));
    }
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(target);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) if kind.is_fifo() => io::Error::other(
            "it is a named pipe that nobody reads; start its reader first, or write to it with terminal() and a timeout",
        ),
        Some(libc::ENXIO) => io::Error::other("it is a device that is not there"),
        _ => error,
    })?;
    let mut written = 0;
    while let Some(rest) = content.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::other(format!(
                    "it is no file but takes what is written bit by bit, and has taken {written} of {} bytes; write to it with terminal() and a timeout",
                    content.len()
                )));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write(path: &Path, content: &[u8]) -> Result<Written, WorkspaceError> {
        super::write(path, content, &Protected::default(), &Notes::default())
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        super::super::names(folder, 100)
    }

    #[test]
    fn folders_are_made_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let written = write(&root.join("a/b/c.txt"), b"x").unwrap();
        let expected = [root.join("a"), root.join("a/b")].map(|path| path.display().to_string());
        assert_eq!(written.dirs_created, expected);
        assert_eq!(written.bytes_written, 1);
        let again = write(&root.join("a/b/../b/c.txt"), b"").unwrap();
        assert_eq!(again.dirs_created, Vec::<String>::new());
        assert_eq!(again.resolved_path, root.join("a/b/c.txt").display().to_string());
        assert_eq!(std::fs::read(root.join("a/b/c.txt")).unwrap(), b"");
        write(&root.join("new/../other/f"), b"y").unwrap();
        assert_eq!(std::fs::read(root.join("other/f")).unwrap(), b"y");
    }

    #[test]
    fn mode_bits_stay_and_nothing_is_left_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, b"1").unwrap();
        std::fs::write(folder.path().join("plain"), "").unwrap();
        assert_eq!(mode(&path), mode(&folder.path().join("plain")));
        for bits in [0o755, 0o600, 0o4751] {
            std::fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
            write(&path, b"2").unwrap();
            assert_eq!(mode(&path), bits);
        }
        let before = path.metadata().unwrap().ino();
        write(&path, b"3").unwrap();
        assert_ne!(path.metadata().unwrap().ino(), before, "renamed, not written over");
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn a_symlink_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/file"), "old").unwrap();
        symlink("d/file", root.join("one")).unwrap();
        symlink(root.join("one"), root.join("two")).unwrap();
        symlink("d/later", root.join("dangling")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let written = write(&root.join("two"), b"new").unwrap();
        assert_eq!(written.resolved_path, root.join("d/file").display().to_string());
        assert_eq!(std::fs::read(root.join("d/file")).unwrap(), b"new");
        assert!(root.join("two").is_symlink() && root.join("one").is_symlink());
        write(&root.join("dangling"), b"now").unwrap();
        assert_eq!(std::fs::read(root.join("d/later")).unwrap(), b"now");
        assert!(
            write(&root.join("circle"), b"")
                .unwrap_err()
                .to_string()
                .contains("circle")
        );
    }

    #[test]
    fn what_cannot_be_written_says_why_and_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::write(root.join("file"), "").unwrap();
        std::fs::create_dir(root.join("dir")).unwrap();
        for (path, word) in [
            (root.join("dir"), "is a folder"),
            (root.join("file/x"), "a part of the path is a file"),
            (root.join("x/"), "add a file name"),
            (root.join(format!("made/{}", "n".repeat(300))), "too long"),
            (PathBuf::from("/"), "folder"),
            (PathBuf::from("/proc/none/x"), "cannot write"),
        ] {
            let error = write(&path, b"x").unwrap_err().to_string();
            assert!(error.contains(word), "{}: {error}", path.display());
        }
        assert!(!root.join("made").exists());
        assert_eq!(names(root).len(), 2);
    }

    /// Root may write anywhere, so there is something to see only for other users.
    #[test]
    fn rights_are_respected() {
        if rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let set = |path: &Path, bits| {
            std::fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
        };
        let path = folder.path().join("f");
        std::fs::write(&path, "old").unwrap();
        set(&path, 0o444);
        let refused = |path: &Path, words: &str| {
            let error = write(path, b"new").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(&path, "no right to write it (mode 444, of user ");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        set(&path, 0o644);
        set(folder.path(), 0o555);
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        refused(&folder.path().join("g"), "no right to make anything in the folder /");
        let other = tempfile::tempdir().unwrap();
        std::fs::hard_link(&path, other.path().join("f")).unwrap();
        refused(&path, "2 names");
        set(folder.path(), 0o444);
        refused(&path, "no right to enter the folder /");
        set(folder.path(), 0o755);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = write(Path::new("/dev/full"), b"x").unwrap_err().to_string();
        assert!(error.contains("full"), "{error}");
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }

    #[test]
    fn in_place_writing_is_exact() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for content in [&b"a longer text"[..], b"short", b""] {
            std::fs::write(&path, "what was here before").unwrap();
            overwrite(&path, content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }
}
