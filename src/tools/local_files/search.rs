//! Searches files of this machine with ripgrep's libraries, on as many threads.
//!
//! The twin of `remote_agent/search.py`, which does the same on targets: the same files, lines and sentences.

mod kept;
mod lines;
mod place;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ignore::{DirEntry, ParallelVisitor, ParallelVisitorBuilder, WalkState};

use self::kept::Kept;
use self::lines::{FileLines, Lines};
use self::place::{Place, is_dir, overrides};
use super::failed;
use super::source::binary_error;
use super::{LocalFiles, WorkspaceError};
use crate::tools::search_files::{LONGEST_LINE, MOST_RESULTS, MOST_WARNINGS, PAGE_BYTES, RESULT_BYTES};
use crate::tools::{Found, FoundLine, Pattern, SearchRequest, Told, Wanted};

/// Bytes of lines that are held while it is not known which of them come first.
const HELD_BYTES: usize = 256 << 20;

/// Searches; `stop` ends it soon after it was set.
pub(super) fn search(files: &LocalFiles, request: &SearchRequest, stop: &AtomicBool) -> Result<Found, WorkspaceError> {
    let place = Place::find(files, request)?;
    match &request.wanted {
        Wanted::Names(glob) => names(&place, glob, request, stop),
        Wanted::Lines { pattern, told, context } => {
            let around = if *told == Told::Lines { *context } else { 0 };
            if place.is_folder {
                below(&place, pattern, *told, around, request, stop)
            } else {
                one(&place, pattern, *told, around, request, stop)
            }
        }
    }
}

/// What all threads of a search have found so far.
struct Results<K, T> {
    kept: Kept<K, T>,
    total: u64,
    /// Files with results.
    files: u64,
    searched: u64,
    binary: u64,
    warnings: BTreeSet<String>,
    more_warnings: u64,
    /// Held back because of too many bytes.
    is_too_much: bool,
}

impl<K: Ord, T> Results<K, T> {
    fn new(request: &SearchRequest) -> Self {
        Self {
            kept: Kept::new((request.offset + request.limit).min(MOST_RESULTS)),
            total: 0,
            files: 0,
            searched: 0,
            binary: 0,
            warnings: BTreeSet::new(),
            more_warnings: 0,
            is_too_much: false,
        }
    }

    fn put(&mut self, key: K, results: u64, bytes: usize, value: T) {
        self.kept.put(key, results, bytes, value);
        self.is_too_much |= self.kept.bytes() > HELD_BYTES;
    }

    fn warn(&mut self, sentence: String) {
        self.warnings.insert(sentence);
        if self.warnings.len() > MOST_WARNINGS {
            self.warnings.pop_last();
            self.more_warnings += 1;
        }
    }

    /// What is told of it, but for the results themselves.
    fn finish(&mut self, place: &Place, stop: &AtomicBool) -> Result<Found, WorkspaceError> {
        if stop.load(Ordering::Relaxed) {
            return Err(WorkspaceError("the search was cancelled".to_owned()));
        }
        if self.is_too_much {
            return Err(WorkspaceError(format!(
                "the lines up to this offset take more than {} MiB; narrow the search by path, file_glob or pattern",
                HELD_BYTES >> 20
            )));
        }
        for sentence in place.odd_folders() {
            self.warn(sentence);
        }
        let (passed_over, misfit) = match self.searched + self.binary {
            0 if place.is_folder => place.examples(),
            _ => (None, None),
        };
        Ok(Found {
            total: self.total,
            warnings: std::mem::take(&mut self.warnings).into_iter().collect(),
            more_warnings: self.more_warnings,
            searched: self.searched,
            binary: self.binary,
            passed_over,
            misfit,
            ..Found::default()
        })
    }
}

type FoundLines = Results<PathBuf, FileLines>;

fn lock<T>(results: &Mutex<T>) -> MutexGuard<'_, T> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Searches one file, whatever it is called.
fn one(
    place: &Place,
    pattern: &Pattern,
    told: Told,
    context: u64,
    request: &SearchRequest,
    stop: &AtomicBool,
) -> Result<Found, WorkspaceError> {
    let mut results = FoundLines::new(request);
    let found = Lines::new(pattern.matcher(), context, stop)
        .search(&place.root, wanted_of_a_file(told, request))
        .map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => failed("search", &place.root, &error),
            _ => unread(&place.root, &error),
        })?;
    if found.is_binary {
        return Err(binary_error(&place.root));
    }
    results.searched = 1;
    take_file(&mut results, PathBuf::new(), found, told);
    let mut whole = results.finish(place, stop)?;
    page(&mut whole, results, place, told, context, request);
    Ok(whole)
}

fn wanted_of_a_file(told: Told, request: &SearchRequest) -> u64 {
    match told {
        Told::Lines => (request.offset + request.limit).min(MOST_RESULTS),
        Told::Files | Told::Counts => 0,
    }
}

fn take_file(results: &mut FoundLines, key: PathBuf, found: FileLines, told: Told) {
    if found.count == 0 {
        return;
    }
    results.total += if told == Told::Files { 1 } else { found.count };
    results.files += 1;
    if results.kept.wants(&key) {
        let weight = match told {
            Told::Lines => found.lines.iter().filter(|(_, _, matches)| *matches).count() as u64,
            Told::Files | Told::Counts => 1,
        };
        results.put(key, weight, found.bytes, found);
    }
}

/// Why a file could not be searched, as it is told of one among others.
fn unread(path: &Path, error: &io::Error) -> WorkspaceError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return WorkspaceError(format!("cannot search {}: this user has no right to", path.display()));
    }
    if error.get_ref().is_some() && error.raw_os_error().is_none() && error.to_string().contains("allocation limit") {
        return WorkspaceError(format!(
            "cannot search {}: it holds a line of more than {} MiB",
            path.display(),
            LONGEST_LINE >> 20
        ));
    }
    failed("search", path, error)
}

/// Searches all files below a folder.
fn below(
    place: &Place,
    pattern: &Pattern,
    told: Told,
    context: u64,
    request: &SearchRequest,
    stop: &AtomicBool,
) -> Result<Found, WorkspaceError> {
    struct Threads<'a> {
        place: &'a Place,
        pattern: &'a Pattern,
        told: Told,
        context: u64,
        wanted: u64,
        stop: &'a AtomicBool,
        results: &'a Mutex<FoundLines>,
    }
    struct Thread<'a> {
        all: &'a Threads<'a>,
        lines: Lines<'a>,
        searched: u64,
    }
    impl<'s> ParallelVisitorBuilder<'s> for &'s Threads<'s> {
        fn build(&mut self) -> Box<dyn ParallelVisitor + 's> {
            Box::new(Thread {
                all: self,
                lines: Lines::new(self.pattern.matcher(), self.context, self.stop),
                searched: 0,
            })
        }
    }
    impl ParallelVisitor for Thread<'_> {
        fn visit(&mut self, entry: Result<DirEntry, ignore::Error>) -> WalkState {
            let all = self.all;
            if all.stop.load(Ordering::Relaxed) {
                return WalkState::Quit;
            }
            let Some(entry) = seen(entry, all.place, all.results) else {
                return WalkState::Continue;
            };
            let key = all.place.below(entry.path());
            let is_wanted = lock(all.results).kept.wants(key);
            let found = match self.lines.search(entry.path(), if is_wanted { all.wanted } else { 0 }) {
                Ok(found) => found,
                Err(error) => {
                    warn(all.results, all.place, key, &error);
                    return WalkState::Continue;
                }
            };
            self.searched += 1;
            if found.is_binary {
                lock(all.results).binary += 1;
            } else if found.count > 0 {
                take_file(&mut lock(all.results), key.to_owned(), found, all.told);
            }
            WalkState::Continue
        }
    }
    impl Drop for Thread<'_> {
        fn drop(&mut self) {
            lock(self.all.results).searched += self.searched;
        }
    }

    let results = Mutex::new(FoundLines::new(request));
    let threads = Threads {
        place,
        pattern,
        told,
        context,
        wanted: wanted_of_a_file(told, request),
        stop,
        results: &results,
    };
    place.walk().build_parallel().visit(&mut &threads);
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut whole = results.finish(place, stop)?;
    page(&mut whole, results, place, told, context, request);
    Ok(whole)
}

/// An entry that is a file; of what could not be looked at a warning is left.
fn seen<K: Ord, T>(
    entry: Result<DirEntry, ignore::Error>,
    place: &Place,
    results: &Mutex<Results<K, T>>,
) -> Option<DirEntry> {
    match entry {
        Ok(entry) => entry.file_type().is_some_and(|kind| kind.is_file()).then_some(entry),
        Err(error) => {
            if let (Some(path), Some(error)) = (path_of(&error), error.io_error()) {
                warn(results, place, place.below(path), error);
            }
            None
        }
    }
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => path_of(err),
        _ => None,
    }
}

fn warn<K: Ord, T>(results: &Mutex<Results<K, T>>, place: &Place, below: &Path, error: &io::Error) {
    // What has gone since its folder was read is not there.
    if error.kind() != io::ErrorKind::NotFound {
        let shown = place.shown(below);
        lock(results).warn(unread(Path::new(&shown), error).to_string());
    }
}

/// Puts the results that were asked for in.
fn page(whole: &mut Found, results: FoundLines, place: &Place, told: Told, context: u64, request: &SearchRequest) {
    let mut left_out = request.offset;
    let mut room = PAGE_BYTES;
    let mut shown = 0;
    let mut is_full = |bytes: usize| {
        let fits = shown < request.limit && (bytes <= room || shown == 0);
        shown += u64::from(fits);
        room = room.saturating_sub(bytes);
        !fits
    };
    let files = results.files;
    for (key, file) in results.kept.into_entries() {
        let path = place.shown(&key);
        match told {
            Told::Lines => {
                let lines = &file.lines;
                for (index, (number, content, _)) in lines.iter().enumerate().filter(|(_, line)| line.2) {
                    if left_out > 0 {
                        left_out -= 1;
                        continue;
                    }
                    let near = |found: &&(u64, String, bool)| found.0.abs_diff(*number) <= context;
                    let text = |found: &(u64, String, bool)| found.1.clone();
                    let mut before: Vec<String> = lines[..index].iter().rev().take_while(near).map(text).collect();
                    before.reverse();
                    let after: Vec<String> = lines[index + 1..].iter().take_while(near).map(text).collect();
                    let bytes = before.iter().chain(&after).map(|line| line.len() + 4).sum::<usize>();
                    if is_full(path.len() + content.len() + bytes + RESULT_BYTES) {
                        whole.more = true;
                        return;
                    }
                    whole.matches.push(FoundLine {
                        path: path.clone(),
                        line: *number,
                        content: content.clone(),
                        before,
                        after,
                    });
                }
            }
            Told::Files | Told::Counts => {
                if left_out > 0 {
                    left_out -= 1;
                    continue;
                }
                if is_full(path.len() + RESULT_BYTES) {
                    whole.more = true;
                    return;
                }
                match told {
                    Told::Files => whole.files.push(path),
                    _ => whole.counts.push((path, file.count)),
                }
            }
        }
    }
    let of = if told == Told::Lines { whole.total } else { files };
    whole.more = shown > 0 && request.offset + shown < of;
}

/// Lists the files whose names fit, the newest first.
fn names(place: &Place, glob: &str, request: &SearchRequest, stop: &AtomicBool) -> Result<Found, WorkspaceError> {
    if !place.is_folder {
        return Err(WorkspaceError(format!(
            "{} is a file, and names are searched below a folder; give the folder as path",
            place.root.display()
        )));
    }
    let wanted = overrides(&place.root, &[glob.to_owned()])?;
    let results = Mutex::new(Results::<(Reverse<i128>, PathBuf), ()>::new(request));
    place.walk().build_parallel().run(|| {
        Box::new(|entry| {
            if stop.load(Ordering::Relaxed) {
                return WalkState::Quit;
            }
            let Some(entry) = seen(entry, place, &results) else {
                return WalkState::Continue;
            };
            let is_wanted = !wanted.matched(entry.path(), is_dir(&entry)).is_ignore();
            let changed = is_wanted.then(|| entry.metadata().ok().as_ref().map_or(0, changed_at));
            let mut results = lock(&results);
            results.searched += 1;
            if let Some(changed) = changed {
                results.total += 1;
                let key = (Reverse(changed), place.below(entry.path()).to_owned());
                if results.kept.wants(&key) {
                    let bytes = key.1.as_os_str().len();
                    results.put(key, 1, bytes, ());
                }
            }
            WalkState::Continue
        })
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut whole = results.finish(place, stop)?;
    let mut room = PAGE_BYTES;
    let offset = usize::try_from(request.offset).unwrap_or(usize::MAX);
    for ((_, path), ()) in results.kept.into_entries().skip(offset) {
        let path = place.shown(&path);
        let bytes = path.len() + RESULT_BYTES;
        if whole.files.len() as u64 == request.limit || bytes > room {
            break;
        }
        room -= bytes;
        whole.files.push(path);
    }
    whole.more = !whole.files.is_empty() && request.offset + (whole.files.len() as u64) < whole.total;
    Ok(whole)
}

/// When a file was last written, in nanoseconds.
fn changed_at(metadata: &std::fs::Metadata) -> i128 {
    use std::os::unix::fs::MetadataExt;
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}
