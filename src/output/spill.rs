//! The file that holds the whole text of an output too long to show.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::cache;
use super::marker::{self, Kept};

const WRITE_BUFFER: usize = 64 * 1024;

/// Why a spill file could not be made or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpillError {
    #[error("max_spill_bytes is 0; set it to keep long output")]
    Disabled,
    #[error("the directory {} could not be made ({source}); make it, or point HERMES_HOME at one that can be written", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("the directory {} belongs to another user; point HERMES_HOME at one of your own", path.display())]
    NotOurs { path: PathBuf },
    #[error("the system gave no random bytes for a file name ({0}); run the script again")]
    Random(getrandom::Error),
    #[error("a file in {} could not be made ({source}); free space there, or point HERMES_HOME elsewhere", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("writing failed ({0}); free space there, or print less")]
    Write(#[from] io::Error),
}

/// Keeps all text of a stream: in memory while it is short, then in a private file.
///
/// The caller compares only what it shows with the limit, so in the end even a file that was
/// written may turn out not to be needed; see [`Spill::discard`].
#[derive(Debug)]
pub(super) struct Spill {
    dir: PathBuf,
    /// Bytes of text that are kept in memory.
    in_memory: usize,
    /// Bytes of text that go to the file; a closing line comes on top.
    cap: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Memory(String),
    Writing(Writing),
    /// The file is complete but does not hold everything.
    Ended {
        path: PathBuf,
        bytes: u64,
        reason: String,
    },
    Failed(SpillError),
}

#[derive(Debug)]
struct Writing {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

impl Spill {
    /// A spill that makes its file in `dir` once there are more than `in_memory` bytes.
    pub(super) fn new(dir: PathBuf, in_memory: usize, cap: u64) -> Self {
        Self {
            dir,
            in_memory,
            cap,
            state: State::Memory(String::new()),
        }
    }

    /// Adds text. A failure is kept for [`Spill::finish`].
    pub(super) fn push(&mut self, text: &str) {
        match &mut self.state {
            State::Memory(buffer) if buffer.len() + text.len() <= self.in_memory => {
                buffer.push_str(text);
            }
            State::Memory(_) => {
                self.open();
                self.write(text);
            }
            State::Writing(_) => self.write(text),
            State::Ended { .. } | State::Failed(_) => {}
        }
    }

    /// Notes that text was lost here: what follows is not written any more.
    pub(super) fn gap(&mut self) {
        if matches!(self.state, State::Memory(_)) {
            self.open();
        }
        self.end();
    }

    /// Removes the file, should there be one: everything could be shown.
    pub(super) fn discard(self) {
        let path = match self.state {
            State::Writing(Writing { path, .. }) | State::Ended { path, .. } => path,
            State::Memory(_) | State::Failed(_) => return,
        };
        remove(&path);
    }

    /// Completes the file and says what is in it.
    pub(super) fn finish(mut self) -> Kept {
        if matches!(self.state, State::Memory(_)) {
            self.open();
        }
        if let State::Writing(writing) = &mut self.state
            && let Err(error) = writing.file.flush()
        {
            self.fail(error);
        }
        match self.state {
            State::Writing(Writing { path, .. }) => Kept::Whole(path),
            State::Ended { path, bytes, reason } => Kept::Beginning { path, bytes, reason },
            State::Failed(error) => Kept::Nothing(error.to_string()),
            // `open` has left this state.
            State::Memory(_) => Kept::Nothing(SpillError::Disabled.to_string()),
        }
    }

    /// Makes the file and moves the text from memory into it.
    fn open(&mut self) {
        let State::Memory(buffer) = &mut self.state else {
            return;
        };
        let buffer = std::mem::take(buffer);
        match create(&self.dir, cache::STDOUT, self.cap) {
            Ok(writing) => {
                self.state = State::Writing(writing);
                self.write(&buffer);
            }
            Err(error) => self.state = State::Failed(error),
        }
    }

    fn write(&mut self, text: &str) {
        let State::Writing(writing) = &mut self.state else {
            return;
        };
        let room = usize::try_from(self.cap - writing.bytes).unwrap_or(usize::MAX);
        let part = &text[..text.floor_char_boundary(room)];
        if let Err(error) = writing.file.write_all(part.as_bytes()) {
            self.fail(error);
            return;
        }
        writing.bytes += part.len() as u64;
        if part.len() < text.len() {
            self.end();
        }
    }

    /// Closes the file with a line that says that it is not everything.
    fn end(&mut self) {
        let State::Writing(writing) = &mut self.state else {
            return;
        };
        let line = marker::end_of_spill(self.cap);
        let written = writing.file.write_all(line.as_bytes());
        if let Err(error) = written.and_then(|()| writing.file.flush()) {
            self.fail(error);
            return;
        }
        self.state = State::Ended {
            path: std::mem::take(&mut writing.path),
            bytes: writing.bytes,
            reason: format!(
                "no more than {} bytes are kept, see max_spill_bytes",
                marker::grouped(self.cap)
            ),
        };
    }

    /// Gives up writing, and keeps what has reached the file.
    fn fail(&mut self, error: io::Error) {
        let error = SpillError::Write(error);
        let reason = error.to_string();
        let State::Writing(writing) = std::mem::replace(&mut self.state, State::Failed(error)) else {
            return;
        };
        // Taken apart, because a buffer that is dropped would try to write once more.
        let (file, _unwritten) = writing.file.into_parts();
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        if bytes == 0 {
            remove(&writing.path);
            return;
        }
        self.state = State::Ended {
            path: writing.path,
            bytes,
            reason,
        };
    }
}

/// Keeps a page's whole text in a private file.
///
/// # Errors
/// A sentence about why it cannot be kept.
pub fn keep_page(dir: &Path, text: &str) -> Result<PathBuf, String> {
    let keep = || -> Result<PathBuf, SpillError> {
        let mut writing = create(dir, cache::PAGE, u64::MAX)?;
        let written = writing
            .file
            .write_all(text.as_bytes())
            .and_then(|()| writing.file.flush());
        if let Err(error) = written {
            remove(&writing.path);
            return Err(error.into());
        }
        Ok(writing.path)
    };
    keep().map_err(|error| error.to_string())
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(file = %path.display(), %error, "a spill file that is not needed stays");
    }
}

fn create(dir: &Path, prefix: &str, cap: u64) -> Result<Writing, SpillError> {
    if cap == 0 {
        return Err(SpillError::Disabled);
    }
    cache::make_private(dir)?;
    let path = dir.join(cache::spill_name(prefix)?);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|source| SpillError::Create {
            path: dir.to_owned(),
            source,
        })?;
    Ok(Writing {
        path,
        file: BufWriter::with_capacity(WRITE_BUFFER, file),
        bytes: 0,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).map_or(0, Iterator::count)
    }

    #[test]
    fn a_short_text_makes_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(temp.path().to_owned(), 10, 100);
        spill.push("0123456789");
        assert_eq!(files(temp.path()), 0);
        spill.discard();
        assert_eq!(files(temp.path()), 0);
    }

    #[test]
    fn a_long_text_is_in_a_private_file_from_its_first_byte() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("cache");
        let mut spill = Spill::new(dir.clone(), 10, 100);
        for part in ["0123456789", "a", "b€\n"] {
            spill.push(part);
        }
        let kept = spill.finish();
        assert!(matches!(kept, Kept::Whole(_)), "{kept:?}");
        let path = kept.into_path().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0123456789ab€\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_not_needed_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(temp.path().to_owned(), 3, 100);
        spill.push("10%\r100%");
        assert_eq!(files(temp.path()), 1);
        spill.discard();
        assert_eq!(files(temp.path()), 0);
    }

    #[test]
    fn the_cap_is_kept_and_said() {
        let temp = tempfile::tempdir().unwrap();
        for cut_by_gap in [false, true] {
            let mut spill = Spill::new(temp.path().to_owned(), 2, 10);
            spill.push("0123456");
            if cut_by_gap {
                spill.gap();
            }
            spill.push("78€x");
            spill.push("y");
            let Kept::Beginning { path, bytes, .. } = spill.finish() else {
                panic!("the file claims to be whole");
            };
            let expected = if cut_by_gap { "0123456" } else { "012345678" };
            assert_eq!(bytes, expected.len() as u64);
            let text = fs::read_to_string(path).unwrap();
            assert_eq!(text, expected.to_owned() + &marker::end_of_spill(10));
        }
    }

    #[test]
    fn a_text_of_exactly_the_cap_is_whole() {
        let temp = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(temp.path().to_owned(), 2, 4);
        spill.push("0123");
        assert!(matches!(spill.finish(), Kept::Whole(_)));
    }

    #[test]
    fn failures_are_said() {
        let temp = tempfile::tempdir().unwrap();
        let in_the_way = temp.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        let cases = [
            (in_the_way.join("dir"), 100, "could not be made"),
            (temp.path().to_owned(), 0, "max_spill_bytes is 0"),
        ];
        for (dir, cap, expected) in cases {
            let mut spill = Spill::new(dir, 2, cap);
            spill.push("0123");
            spill.push("4");
            let kept = spill.finish();
            assert!(
                matches!(&kept, Kept::Nothing(why) if why.contains(expected)),
                "{kept:?}"
            );
        }
    }

    /// A spill in the middle of writing to a file of the caller's.
    fn writing_to(file: File, path: &Path) -> Spill {
        let mut spill = Spill::new(PathBuf::from("/nowhere"), 2, 100);
        spill.state = State::Writing(Writing {
            path: path.to_owned(),
            file: BufWriter::with_capacity(4, file),
            bytes: 0,
        });
        spill
    }

    #[test]
    fn a_full_disk_is_said_and_leaves_no_empty_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("empty");
        fs::write(&path, "").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut spill = writing_to(full, &path);
        spill.push("0123456789");
        spill.push("more");
        let kept = spill.finish();
        assert!(
            matches!(&kept, Kept::Nothing(why) if why.contains("writing failed")),
            "{kept:?}"
        );
        assert!(!path.exists());
    }

    #[test]
    fn what_was_written_before_a_failure_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("begun");
        fs::write(&path, "0123").unwrap();
        // Writing to a file that is open for reading fails.
        let mut spill = writing_to(File::open(&path).unwrap(), &path);
        spill.push("4");
        let Kept::Beginning { bytes, reason, .. } = spill.finish() else {
            panic!("the file claims to be whole");
        };
        assert_eq!(bytes, 4);
        assert!(reason.contains("writing failed"), "{reason}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "0123");
    }
}
