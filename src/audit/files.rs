//! The files of the log: one that is written, and older ones beside it.
//!
//! Several brokers write side by side. Each line is one `write` to a file that is open for appending, so that lines of
//! two never mix. Who writes holds the folder's lock together with others, who rotates or removes holds it alone.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::Settings;
use super::folder::make_private;
use super::scripts::Scripts;

/// The file that is written.
const CURRENT: &str = "audit.jsonl";
const LOCK: &str = "lock";
/// How often a lock that another holds is tried for, and the time between. One that is not had (its holder was stopped)
/// keeps nobody from writing: at worst a line goes into a file that was just put aside.
const TRIES: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(10);

/// Time in which a line that is being written shows whole. Should it not, there is an empty line, which is none.
const WRITING: Duration = Duration::from_millis(5);

/// The folder, open for writing.
pub(super) struct Files {
    settings: Settings,
    scripts: Scripts,
    open: Option<Open>,
}

struct Open {
    log: File,
    lock: File,
    /// Which file it is, to notice when another stands at its place.
    id: (u64, u64),
}

/// Holds a lock until it is dropped.
struct Held<'a>(Option<&'a File>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            // An unlock that fails leaves a lock that ends with the file.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

impl Files {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            scripts: Scripts::new(settings.folder.join("scripts")),
            settings,
            open: None,
        }
    }

    /// Makes and opens what is not there yet, and removes what is too old.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        make_private(&self.settings.folder)?;
        self.scripts.open()?;
        let lock = private(OpenOptions::new().write(true).create(true)).open(self.settings.folder.join(LOCK))?;
        self.open = Some(Open::new(&self.settings.folder, lock)?);
        self.remove_old()
    }

    /// Writes a line, and the script that it names. The line alone where there is no room for both: then with what
    /// prevents the script.
    ///
    /// # Errors
    /// The line is not written.
    pub(super) fn append(&mut self, line: &[u8], script: Option<(&str, &[u8])>) -> io::Result<Option<io::Error>> {
        self.open()?;
        let written = self.append_to_open(line, script);
        if !matches!(written, Ok(None)) {
            // It may be gone, or its disk; the next line starts afresh.
            self.open = None;
        }
        written
    }

    fn append_to_open(&mut self, line: &[u8], script: Option<(&str, &[u8])>) -> io::Result<Option<io::Error>> {
        self.reopen_if_moved()?;
        let Some(open) = &self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let size = open.log.metadata()?.len();
        let is_full = size > 0 && size + line.len() as u64 > self.settings.max_bytes;
        if is_full || self.scripts.stored() > self.settings.max_bytes {
            self.rotate(is_full)?;
            self.reopen_if_moved()?;
        }
        let Some(open) = &mut self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let _held = hold(&open.lock, FlockOperation::NonBlockingLockShared);
        let unkept = script.and_then(|(digest, source)| self.scripts.keep(digest, source).err());
        let mut whole = Vec::with_capacity(line.len() + 2);
        if is_torn(&open.log)? {
            whole.push(b'\n');
        }
        whole.extend_from_slice(line);
        whole.push(b'\n');
        let written = (&open.log).write(&whole)?;
        if written < whole.len() {
            // What is there of it ends here, so that the next line of anybody is whole.
            let _ = (&open.log).write(b"\n");
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "no more than a part of a line was written",
            ));
        }
        Ok(unkept)
    }

    /// Another broker may have put the file aside, or somebody removed it.
    fn reopen_if_moved(&mut self) -> io::Result<()> {
        let folder = &self.settings.folder;
        let is_there = fs::symlink_metadata(folder.join(CURRENT)).ok().map(|found| id(&found));
        if let Some(open) = self.open.take() {
            self.open = Some(match is_there {
                Some(there) if there == open.id => open,
                _ => {
                    make_private(folder)?;
                    Open::new(folder, open.lock)?
                }
            });
        }
        Ok(())
    }

    /// Puts the file aside when it is still full, and removes what need not be kept.
    fn rotate(&mut self, is_full: bool) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let held = hold(&open.lock, FlockOperation::NonBlockingLockExclusive);
        if held.0.is_none() {
            // Another does it, or never will: this file grows a little longer.
            return Ok(());
        }
        let folder = &self.settings.folder;
        let current = folder.join(CURRENT);
        let is_same = fs::symlink_metadata(&current).is_ok_and(|found| id(&found) == open.id);
        if is_full && is_same {
            let last = older(folder)?.last().map_or(0, |(number, _)| *number);
            fs::rename(&current, folder.join(format!("audit-{:06}.jsonl", last + 1)))?;
        }
        self.remove(true)
    }

    fn remove_old(&mut self) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let held = hold(&open.lock, FlockOperation::NonBlockingLockExclusive);
        match held.0 {
            Some(_) => self.remove(false),
            None => Ok(()),
        }
    }

    /// Removes files beyond their number or age, and scripts that no line names any more. Under the lock.
    fn remove(&self, always_scripts: bool) -> io::Result<()> {
        let folder = &self.settings.folder;
        let limit = SystemTime::now().checked_sub(self.settings.max_age);
        let files = older(folder)?;
        let too_many = files.len().saturating_sub(self.settings.keep);
        let mut has_removed = false;
        for (position, (_, path)) in files.iter().enumerate() {
            let is_old = || {
                let written = fs::symlink_metadata(path).and_then(|found| found.modified());
                written.is_ok_and(|at| limit.is_some_and(|limit| at < limit))
            };
            if position < too_many || is_old() {
                fs::remove_file(path)?;
                has_removed = true;
            }
        }
        if has_removed || always_scripts {
            let room = self.settings.max_bytes.saturating_mul(self.settings.keep.max(1) as u64);
            self.scripts.prune(&in_order(folder)?, room)?;
        }
        Ok(())
    }
}

impl Open {
    fn new(folder: &Path, lock: File) -> io::Result<Self> {
        let log = private(OpenOptions::new().read(true).append(true).create(true)).open(folder.join(CURRENT))?;
        let id = id(&log.metadata()?);
        Ok(Self { log, lock, id })
    }
}

/// No link is followed, and others see nothing of what is made.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW)
}

fn id(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn hold(lock: &File, operation: FlockOperation) -> Held<'_> {
    for _ in 0..TRIES {
        match flock(lock, operation) {
            Ok(()) => return Held(Some(lock)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => std::thread::sleep(BETWEEN),
            // A file system without locks.
            Err(_) => break,
        }
    }
    Held(None)
}

/// Whether whoever wrote last did not get to the end of a line. Another may be writing at this moment: what it has
/// written shows page by page.
fn is_torn(log: &File) -> io::Result<bool> {
    let mut before = None;
    loop {
        let size = log.metadata()?.len();
        let mut last = [b'\n'];
        if size > 0 {
            log.read_at(&mut last, size - 1)?;
        }
        if last[0] == b'\n' || before == Some(size) {
            return Ok(last[0] != b'\n');
        }
        before = Some(size);
        std::thread::sleep(WRITING);
    }
}

/// Files that were put aside, the oldest first.
fn older(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let number = |name: &OsStr| -> Option<u64> {
        let digits = name.to_str()?.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
        digits.parse().ok()
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(number) = number(&entry.file_name()).filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file()))
        {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// All files of a log, the oldest first, the one that is written last. Empty where there is none.
///
/// # Errors
/// The folder is there and cannot be read.
pub fn in_order(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = match older(folder) {
        Ok(files) => files.into_iter().map(|(_, path)| path).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let current = folder.join(CURRENT);
    if current.is_file() {
        files.push(current);
    }
    Ok(files)
}

/// Lines that are added to a log from now on, in whichever file.
pub struct Follower {
    folder: PathBuf,
    open: Option<(File, (u64, u64))>,
    begun: Vec<u8>,
}

impl Follower {
    /// Begins behind what is there.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let mut follower = Self {
            folder: folder.to_owned(),
            open: None,
            begun: Vec::new(),
        };
        follower.open_current()?;
        if let Some((file, _)) = &mut follower.open {
            file.seek(SeekFrom::End(0))?;
        }
        Ok(follower)
    }

    fn open_current(&mut self) -> io::Result<()> {
        self.open = match File::open(self.folder.join(CURRENT)) {
            Ok(file) => {
                let id = id(&file.metadata()?);
                Some((file, id))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// What has come since; whole lines only.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        // Looked at before reading: what is written to a file before it is put aside is read to its end.
        let there = fs::symlink_metadata(self.folder.join(CURRENT))
            .ok()
            .map(|found| id(&found));
        if let Some((file, _)) = &mut self.open {
            file.read_to_end(&mut self.begun)?;
        }
        if self.open.as_ref().map(|(_, id)| *id) != there {
            self.open_current()?;
            if let Some((file, _)) = &mut self.open {
                file.read_to_end(&mut self.begun)?;
            }
        }
        let end = self
            .begun
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let rest = self.begun.split_off(end);
        Ok(std::mem::replace(&mut self.begun, rest))
    }
}
