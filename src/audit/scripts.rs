//! The sources of cells, each kept once under its digest.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::folder::make_private;

const SUFFIX: &str = ".py";
const DIGITS: usize = 64;
/// Age below which a script stays that no line names: the line may not be written yet.
const FRESH: Duration = Duration::from_secs(3600);

/// Their folder.
pub(super) struct Scripts {
    folder: PathBuf,
    stored: std::sync::atomic::AtomicU64,
}

impl Scripts {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            stored: 0.into(),
        }
    }

    pub(super) fn open(&self) -> io::Result<()> {
        make_private(&self.folder)
    }

    /// Bytes that were added since the last clearing.
    pub(super) fn stored(&self) -> u64 {
        self.stored.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Keeps a source, if it is not kept already. Nobody sees it half written.
    pub(super) fn keep(&self, digest: &str, source: &[u8]) -> io::Result<()> {
        let path = path_of(&self.folder, digest);
        if let Ok(kept) = File::open(&path) {
            // Young again, so that it stays although the lines that named it go. Its owner may do that; else it is read-only.
            let _ = kept.set_modified(SystemTime::now());
            return Ok(());
        }
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.folder)?;
        file.write_all(source)?;
        file.persist(&path).map_err(|error| error.error)?;
        self.stored
            .fetch_add(source.len() as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Removes what no line of these files names, and then the oldest until the rest takes no more than `room` bytes.
    pub(super) fn prune(&self, logs: &[PathBuf], room: u64) -> io::Result<()> {
        self.stored.store(0, std::sync::atomic::Ordering::Relaxed);
        let mut named = HashSet::new();
        for log in logs {
            collect(log, &mut named)?;
        }
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(found) = entry.metadata() else { continue };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let written = found.modified().unwrap_or(now);
            let is_fresh = now.duration_since(written).unwrap_or_default() < FRESH;
            let is_named = name.strip_suffix(SUFFIX).is_some_and(|digest| named.contains(digest));
            if is_named || is_fresh {
                kept.push((written, found.len(), entry.path()));
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        kept.sort_unstable();
        let mut total: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in kept {
            if total <= room {
                break;
            }
            fs::remove_file(path)?;
            total -= bytes;
        }
        Ok(())
    }
}

fn path_of(folder: &Path, digest: &str) -> PathBuf {
    folder.join(format!("{digest}{SUFFIX}"))
}

/// The digests that a log names.
fn collect(log: &Path, named: &mut HashSet<String>) -> io::Result<()> {
    const FIELD: &[u8] = b"\"script\":\"";
    let mut log = BufReader::new(File::open(log)?);
    let mut line = Vec::new();
    while log.read_until(b'\n', &mut line)? > 0 {
        if let Some(at) = memchr::memmem::find(&line, FIELD)
            && let Some(digest) = line.get(at + FIELD.len()..at + FIELD.len() + DIGITS)
            && digest.iter().all(u8::is_ascii_hexdigit)
        {
            named.insert(String::from_utf8_lossy(digest).into_owned());
        }
        line.clear();
    }
    Ok(())
}

/// The script whose digest begins so, as it is kept: its whole digest and its text.
///
/// # Errors
/// A sentence: there is none, or more than one.
pub fn find(log_folder: &Path, beginning: &str) -> Result<(String, Vec<u8>), String> {
    let folder = log_folder.join("scripts");
    let beginning = beginning.to_ascii_lowercase();
    if beginning.is_empty() || !beginning.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!(
            "{beginning:?} is no digest: take the one that `talaria log` shows of a cell"
        ));
    }
    if beginning.len() == DIGITS
        && let Ok(source) = fs::read(path_of(&folder, &beginning))
    {
        return Ok((beginning, source));
    }
    let entries = fs::read_dir(&folder).map_err(|error| format!("{} cannot be read: {error}", folder.display()))?;
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(SUFFIX)?.to_owned()))
        .filter(|digest| digest.starts_with(&beginning))
        .collect();
    match (found.pop(), found.len()) {
        (None, _) => Err(format!(
            "no script whose digest begins with {beginning} is kept in {}; it may have gone with its lines",
            folder.display()
        )),
        (Some(digest), 0) => {
            let path = path_of(&folder, &digest);
            let source = fs::read(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
            Ok((digest, source))
        }
        (Some(_), more) => Err(format!(
            "{} scripts have a digest that begins with {beginning}; give more of it",
            more + 1
        )),
    }
}
