//! Changes several files, all or none.
//!
//! First all is made ready beside the files; what was read is compared with what is there. Then each is renamed into
//! its place, and when one cannot be, those before it are put back. A process that is killed in between leaves whole
//! files, each as it was or as it was to be.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{Access, AtFlags, CWD, RenameFlags, accessat, renameat_with};

use super::aside::{Aside, Notes, lock, sweep};
use super::write::{behind_links, make_folders, one_name, overwrite, without_place};
use super::{ChangeError, FileChange, failed, is_folder, not_of_the_broker};
use crate::tools::{FetchedFile, Splice, WorkspaceError};

/// Bytes that are compared at a time.
const CHUNK: usize = 256 * 1024;

pub(super) fn change(changes: &[FileChange], notes: &Notes) -> Result<(), ChangeError> {
    let mut ordered: Vec<&FileChange> = changes.iter().collect();
    // Whoever changes the same files waits for us at the first, instead of each for the other.
    ordered.sort_by_key(|change| place(change));
    let mut steps: Vec<Step<'_>> = Vec::with_capacity(ordered.len());
    let mut result = Ok(());
    for change in ordered {
        let mut step = Step::new(change, notes);
        result = step.prepare(changes.len() > 1, &mut steps);
        steps.push(step);
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        // What goes does so last, and a link after what the patch names through it.
        steps.sort_by(|one, other| {
            let removes =
                |step: &Step<'_>| matches!(step.change, FileChange::Remove { .. } | FileChange::Unlink { .. });
            let from_below = || place(other.change).cmp(place(one.change));
            match (removes(one), removes(other)) {
                (true, true) => from_below(),
                (one, other) => one.cmp(&other),
            }
        });
        result = steps.iter_mut().try_for_each(Step::commit);
    }
    if let Err(error) = result {
        let stuck: Vec<String> = steps.iter_mut().rev().filter_map(|step| step.undo().err()).collect();
        return Err(if stuck.is_empty() {
            error
        } else {
            ChangeError::Failed(WorkspaceError(format!("{error}; and {}", stuck.join("; "))))
        });
    }
    let mut folders: Vec<PathBuf> = steps.iter().map(|step| step.folder().to_owned()).collect();
    drop(steps);
    folders.sort_unstable();
    folders.dedup();
    folders.iter().for_each(|folder| sweep(folder));
    Ok(())
}

fn place(change: &FileChange) -> &Bytes {
    match change {
        FileChange::Create { place, .. } | FileChange::Unlink { place, .. } => place,
        FileChange::Edit { found, .. } | FileChange::Remove { found } => &found.place,
    }
}

fn path(place: &Bytes) -> &Path {
    Path::new(OsStr::from_bytes(place))
}

/// One change under way.
struct Step<'c> {
    change: &'c FileChange,
    notes: &'c Notes,
    /// The file itself, behind links; of one that is to be removed, the name.
    target: PathBuf,
    /// Open for its lock.
    opened: Option<File>,
    /// The file as it was compared.
    seen: Option<Metadata>,
    /// How many names it had.
    names: u64,
    /// Whether another of them is changed too: each is a file of its own then, as each is replaced.
    has_twin: bool,
    /// What it will be.
    new: Option<Aside>,
    /// What it was.
    old: Option<Aside>,
    /// Folders that had to be made.
    made: Vec<PathBuf>,
    /// Whether it has been done: by renaming, or by writing over it.
    done: Option<Way>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Renamed,
    Written,
}

impl<'c> Step<'c> {
    fn new(change: &'c FileChange, notes: &'c Notes) -> Self {
        Self {
            change,
            notes,
            target: path(place(change)).to_owned(),
            opened: None,
            seen: None,
            names: 0,
            has_twin: false,
            new: None,
            old: None,
            made: Vec::new(),
            done: None,
        }
    }

    fn folder(&self) -> &Path {
        self.target.parent().unwrap_or(Path::new("/"))
    }

    fn fail(&self, error: &io::Error) -> ChangeError {
        let shown = path(place(self.change));
        let is_to_be_made = matches!(self.change, FileChange::Create { .. })
            && self.folder().is_dir()
            && self.target.symlink_metadata().is_err();
        match error.kind() {
            io::ErrorKind::NotFound if is_to_be_made => WorkspaceError(format!(
                "cannot write {}: {}",
                shown.display(),
                without_place(&self.target)
            ))
            .into(),
            io::ErrorKind::NotFound => self.conflict(),
            _ => failed("write", shown, error).into(),
        }
    }

    fn conflict(&self) -> ChangeError {
        let shown = path(place(self.change)).display();
        ChangeError::Conflict(match self.change {
            FileChange::Create { .. } => format!("{shown} has come into being meanwhile, or its folder has gone"),
            _ => format!("{shown} was changed by something else meanwhile"),
        })
    }

    /// Makes all ready; nothing is changed yet but for folders that were missing.
    fn prepare(&mut self, one_of_several: bool, before: &mut [Self]) -> Result<(), ChangeError> {
        let shown = path(place(self.change)).to_owned();
        not_of_the_broker(shown)?;
        match self.change {
            FileChange::Create { content, like, .. } => self.prepare_new(content, like.as_ref()),
            FileChange::Edit { found, splices } => {
                self.target = behind_links(&self.target).map_err(|error| self.fail(&error))?;
                self.compare(found, before)?;
                accessat(CWD, &self.target, Access::WRITE_OK, AtFlags::EACCESS)
                    .map_err(|error| self.fail(&error.into()))?;
                let pieces = pieces(&found.content, splices);
                let like = self.seen.clone();
                match self.write_aside(&pieces, like.as_ref()) {
                    // It will be written over.
                    Err(error) if is_for_writing_over(&error) => {}
                    other => other.map_err(|error| self.fail(&error))?,
                }
                self.keep(one_of_several, found)
            }
            FileChange::Remove { found } => {
                self.compare(found, before)?;
                self.keep(one_of_several, found)
            }
            // What it says is all there is to it: it can be made again.
            FileChange::Unlink { .. } if self.is_as_seen() => Ok(()),
            FileChange::Unlink { .. } => Err(self.conflict()),
        }
    }

    fn prepare_new(&mut self, content: &[u8], like: Option<&Bytes>) -> Result<(), ChangeError> {
        self.target = behind_links(&self.target).map_err(|error| self.fail(&error))?;
        if let Ok(metadata) = self.target.symlink_metadata() {
            return Err(if metadata.is_dir() {
                is_folder(&self.target).into()
            } else {
                self.conflict()
            });
        }
        let folder = self.folder().to_owned();
        let like = like.map(|like| path(like).metadata()).transpose();
        // What is moved has gone.
        let like = like.map_err(|_| self.conflict())?;
        make_folders(&folder, &mut self.made)
            .and_then(|()| self.write_aside(&[content], like.as_ref()))
            .map_err(|error| self.fail(&error))
    }

    /// Sees that the file is as it was found, and keeps others that change it this way out.
    fn compare(&mut self, found: &FetchedFile, before: &mut [Self]) -> Result<(), ChangeError> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&self.target)
            .map_err(|error| self.fail(&error))?;
        let place = file.metadata().map_err(|error| self.fail(&error))?;
        // Another name of a file that is changed here too, and locked already.
        for step in before.iter_mut().filter(|step| step.is_at(&place)) {
            step.has_twin = true;
            self.has_twin = true;
        }
        if !self.has_twin {
            lock(&file);
        }
        let metadata = file.metadata().map_err(|error| self.fail(&error))?;
        let there = self.target.metadata().map_err(|error| self.fail(&error))?;
        let is_same = metadata.is_file()
            && (metadata.dev(), metadata.ino()) == (there.dev(), there.ino())
            && holds(&mut file, &found.content).map_err(|error| self.fail(&error))?;
        if !is_same {
            return Err(self.conflict());
        }
        self.names = metadata.nlink();
        self.seen = Some(metadata);
        self.opened = Some(file);
        Ok(())
    }

    fn is_at(&self, place: &Metadata) -> bool {
        let is_same = |seen: &Metadata| (seen.dev(), seen.ino()) == (place.dev(), place.ino());
        self.seen.as_ref().is_some_and(is_same)
    }

    /// Keeps what the file was, for the case that another of several changes fails.
    fn keep(&mut self, one_of_several: bool, found: &FetchedFile) -> Result<(), ChangeError> {
        if !one_of_several {
            return Ok(());
        }
        self.old = Some(match Aside::link(&self.target, self.notes) {
            Ok(link) => link,
            // A file system without links, or a folder that takes no new file.
            Err(_) => match self.copy_aside(found) {
                Ok(copy) => copy,
                Err(error) if is_for_writing_over(&error) && self.new.is_none() => return Ok(()),
                Err(error) => return Err(self.fail(&error)),
            },
        });
        // A link more is a change too.
        self.seen = Some(self.target.metadata().map_err(|error| self.fail(&error))?);
        Ok(())
    }

    fn copy_aside(&self, found: &FetchedFile) -> io::Result<Aside> {
        let (aside, mut file) = Aside::create(self.folder(), 0o600, self.notes)?;
        file.write_all(&found.content)?;
        if let Some(seen) = &self.seen {
            make_like(&file, seen)?;
        }
        Ok(aside)
    }

    fn write_aside(&mut self, pieces: &[&[u8]], like: Option<&Metadata>) -> io::Result<()> {
        // Another's content is seen by nobody before it has the other's mode bits.
        let mode = if like.is_some() { 0o600 } else { 0o666 };
        let (aside, file) = Aside::create(self.folder(), mode, self.notes)?;
        // Large pieces go past the buffer, many small ones through it.
        let mut writer = BufWriter::with_capacity(CHUNK, &file);
        for piece in pieces {
            writer.write_all(piece)?;
        }
        writer.flush()?;
        drop(writer);
        if let Some(like) = like {
            make_like(&file, like)?;
        }
        self.new = Some(aside);
        // Of a file that is changed, its own lock is held; of a new one, this.
        self.opened.get_or_insert(file);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), ChangeError> {
        if !self.is_as_seen() {
            return Err(self.conflict());
        }
        let done = match (self.change, &self.new) {
            (FileChange::Create { .. }, Some(new)) => rename_to_new(new.path(), &self.target).map(|()| Way::Renamed),
            (FileChange::Edit { found, splices }, Some(new)) => std::fs::rename(new.path(), &self.target)
                .map(|()| Way::Renamed)
                // A mount of its own.
                .or_else(|error| {
                    if is_for_writing_over(&error) {
                        self.write_over(found, splices)
                    } else {
                        Err(error)
                    }
                }),
            (FileChange::Edit { found, splices }, None) => self.write_over(found, splices),
            (FileChange::Remove { .. } | FileChange::Unlink { .. }, _) => {
                std::fs::remove_file(&self.target).map(|()| Way::Renamed)
            }
            (FileChange::Create { .. }, None) => Err(io::ErrorKind::NotFound.into()),
        };
        match done {
            Ok(way) => {
                self.done = Some(way);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(self.conflict()),
            Err(error) => Err(self.fail(&error)),
        }
    }

    fn write_over(&self, found: &FetchedFile, splices: &[Splice]) -> io::Result<Way> {
        one_name(self.names)?;
        overwrite(&self.target, &pieces(&found.content, splices).concat())?;
        Ok(Way::Written)
    }

    /// Whether the file is still the one that was compared, and the link the one that was found.
    fn is_as_seen(&self) -> bool {
        if let FileChange::Unlink { link, .. } = self.change {
            return self.target.read_link().is_ok_and(|leads_to| leads_to == path(link));
        }
        let Some(seen) = &self.seen else {
            return true;
        };
        let stamp = |metadata: &Metadata| {
            // A name less is a change too.
            let ctime = (!self.has_twin).then(|| (metadata.ctime(), metadata.ctime_nsec()));
            let changed = (metadata.mtime(), metadata.mtime_nsec(), ctime);
            (metadata.dev(), metadata.ino(), metadata.len(), changed)
        };
        self.target.metadata().is_ok_and(|now| stamp(&now) == stamp(seen))
    }

    /// Puts back what was. The error names what could not be.
    fn undo(&mut self) -> Result<(), String> {
        // It may lie in a folder that was made for another.
        self.new = None;
        let restored = match (self.done, self.change) {
            (None, _) => Ok(()),
            (Some(_), FileChange::Create { .. }) => std::fs::remove_file(&self.target),
            (Some(_), FileChange::Unlink { link, .. }) => std::os::unix::fs::symlink(path(link), &self.target),
            (Some(Way::Written), FileChange::Edit { found, .. }) => overwrite(&self.target, &found.content),
            (Some(_), _) => match &self.old {
                Some(old) => std::fs::rename(old.path(), &self.target),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        };
        for folder in self.made.iter().rev() {
            // Only one that is still empty goes.
            let _ = std::fs::remove_dir(folder);
        }
        restored.map_err(|error| {
            let shown = path(place(self.change)).display();
            format!("{shown} could not be put back as it was: {error}")
        })
    }
}

/// The folder takes no new file, or the file is a mount of its own.
fn is_for_writing_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy
    )
}

/// Gives a file the owner and mode bits of another, as far as that is allowed.
fn make_like(file: &File, like: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        let _ = std::os::unix::fs::fchown(file, Some(like.uid()), Some(like.gid()));
    }
    file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))
}

/// Renames to where nothing may be.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::hard_link(from, to),
        other => Ok(other?),
    }
}

/// Whether a file holds exactly this.
fn holds(file: &mut File, content: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; CHUNK];
    let mut rest = content;
    loop {
        let count = file.read(&mut buffer)?;
        match (count, rest.split_at_checked(count)) {
            (0, _) => return Ok(rest.is_empty()),
            (_, Some((expected, others))) if *expected == buffer[..count] => rest = others,
            _ => return Ok(false),
        }
    }
}

/// The content with its splices.
fn pieces<'b>(content: &'b [u8], splices: &'b [Splice]) -> Vec<&'b [u8]> {
    let mut pieces = Vec::with_capacity(2 * splices.len() + 1);
    let mut at = 0;
    for splice in splices {
        pieces.push(content.get(at..splice.range.start).unwrap_or_default());
        pieces.push(&splice.bytes[..]);
        at = splice.range.end;
    }
    pieces.push(content.get(at..).unwrap_or_default());
    pieces
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests;
