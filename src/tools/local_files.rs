//! The file half of a workspace on this machine, in process.
//!
//! It runs with the rights of the broker's user and refuses nothing that this user may do: what
//! is local is no sandbox. All work happens on blocking threads.

mod aside;
mod change;
mod fetch;
mod page;
mod rights;
mod search;
mod source;
mod write;

pub(crate) use self::fetch::plain;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use source::binary_kind;

use super::arguments::nearest;
use super::{
    ChangeError, Fetched, FileChange, Found, Page, Protected, ReadRequest, SearchRequest, WorkspaceError, Written,
};
use crate::approval::Names;

/// Names that an error suggests.
const SIMILAR_NAMES: usize = 3;
/// Names of a folder that an error shows.
const SHOWN_NAMES: usize = 50;
/// Names of a folder that are looked at for an error.
const SEEN_NAMES: usize = 10_000;

/// Files as one session sees them: a working directory and a home.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    workdir: PathBuf,
    home: Option<PathBuf>,
    protected: Protected,
    session: Option<PathBuf>,
}

/// Places whose meaning depends on who asks: here it would be the broker, not the script.
const OWN_PLACES: [&str; 6] = [
    "/dev/fd",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
    "/proc/self",
    "/proc/thread-self",
];
/// Links that a path may lead over, as Linux has it.
const MAX_LINKS: usize = 40;

/// Refuses a path that leads to descriptors or to the process of the broker.
fn not_of_the_broker(path: PathBuf) -> Result<PathBuf, WorkspaceError> {
    let own = format!("/proc/{}", std::process::id());
    let mut step = path.clone();
    for _ in 0..MAX_LINKS {
        // Links among the folders first, so that the last part is looked at where it really lies.
        if let (Some(parent), Some(name)) = (step.parent(), step.file_name())
            && let Ok(parent) = parent.canonicalize()
        {
            let whole = parent.join(name);
            if parent.starts_with(&own)
                || OWN_PLACES.iter().any(|place| whole.starts_with(place))
                || whole.starts_with(&own)
            {
                return Err(WorkspaceError(format!(
                    "{} means something else to each process and cannot be read or written from here; use Python's own open()",
                    path.display()
                )));
            }
            match whole.read_link() {
                Ok(next) => step = parent.join(next),
                Err(_) => break,
            }
        } else {
            break;
        }
    }
    Ok(path)
}

/// U+FFFD, which is shown in place of bytes that are no UTF-8.
const ODD: &[u8] = "\u{fffd}".as_bytes();

/// The path as results show it may stand for one whose name is no UTF-8.
///
/// # Errors
/// It may stand for several.
fn meant(path: PathBuf) -> Result<PathBuf, WorkspaceError> {
    // Of bytes that are no UTF-8, as a working directory may have, there is nothing to make out.
    let is_odd = |name: &OsStr| name.as_bytes().windows(ODD.len()).any(|bytes| bytes == ODD);
    if !is_odd(path.as_os_str()) {
        return Ok(path);
    }
    let mut found = PathBuf::new();
    for part in path.components() {
        let name = part.as_os_str();
        let mut like = if is_odd(name) {
            names_like(&found, name)
        } else {
            Vec::new()
        };
        match like.len() {
            0 | 1 => found.push(like.pop().as_deref().unwrap_or(name)),
            several => {
                like.truncate(SIMILAR_NAMES);
                let shown: Vec<String> = like
                    .iter()
                    .map(|name| format!("b'{}'", name.as_bytes().escape_ascii()))
                    .collect();
                return Err(WorkspaceError(format!(
                    "{} may be each of {several} names in {}, which are no UTF-8 and look alike here: {}; rename them with \
                     Python's own os.rename(), or open them with its open(), which take such bytes",
                    path.display(),
                    found.display(),
                    shown.join(", ")
                )));
            }
        }
    }
    Ok(found)
}

/// What is shown like that name in a folder; nothing when it cannot be listed.
fn names_like(folder: &Path, name: &OsStr) -> Vec<OsString> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut like: Vec<OsString> = entries
        .map(|entry| entry.file_name())
        .filter(|other| other.to_string_lossy() == name.to_string_lossy())
        .collect();
    like.sort_unstable();
    like
}

impl LocalFiles {
    /// `workdir` must be absolute; `home` is what `~` stands for. Cheap: make one per call when
    /// the working directory moves.
    #[must_use]
    pub fn new(workdir: impl Into<PathBuf>, home: impl Into<Option<PathBuf>>) -> Self {
        Self {
            workdir: workdir.into(),
            home: home.into(),
            protected: Protected::default(),
            session: None,
        }
    }

    /// The same, but what lies beside files while they are written is noted in the session's folder, whose guard
    /// removes it should this process be killed.
    #[must_use]
    pub fn of_session(self, folder: &Path) -> Self {
        Self {
            session: Some(folder.to_owned()),
            ..self
        }
    }

    fn notes(&self) -> aside::Notes {
        aside::Notes::of(self.session.as_deref())
    }

    /// The same, but [`LocalFiles::write`] refuses some files.
    #[must_use]
    pub fn protecting(self, protected: Protected) -> Self {
        Self { protected, ..self }
    }

    /// The absolute path that a script's path stands for; symlinks and `..` stay as they are.
    ///
    /// # Errors
    /// When the path is empty, holds a NUL, or needs a home that is not known; `~NAME` is another account's, where no
    /// file is called so. When it may be each of several names that are no UTF-8.
    pub fn resolve(&self, path: &str) -> Result<PathBuf, WorkspaceError> {
        if path.is_empty() {
            return Err(WorkspaceError("the path is empty; name a file".into()));
        }
        if path.contains('\0') {
            let text = format!("the path {path:?} holds a NUL character, which no file name can");
            return Err(WorkspaceError(text));
        }
        self.absolute(path).and_then(meant).and_then(not_of_the_broker)
    }

    fn absolute(&self, path: &str) -> Result<PathBuf, WorkspaceError> {
        let Some(rest) = path.strip_prefix('~') else {
            return Ok(self.workdir.join(path));
        };
        let (user, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let below = |home: &Path| home.join(rest.trim_start_matches('/'));
        if user.is_empty() {
            return self.home.as_deref().map(below).ok_or_else(|| {
                WorkspaceError(format!(
                    "{path} cannot be found: the home directory is not known; use an absolute path"
                ))
            });
        }
        // A name may begin with it as well.
        if let Ok(place) = self
            .workdir
            .join(format!("~{user}"))
            .symlink_metadata()
            .map(|_| self.workdir.join(path))
        {
            return Ok(place);
        }
        rights::home_of(user).as_deref().map(below).ok_or_else(|| {
            WorkspaceError(format!(
                "{path} cannot be found: there is no account {user:?} whose home it could mean, nor a file ~{user}; ./{path} is a new file of that name"
            ))
        })
    }

    /// Reads one page. A file of any size is read in pieces; pipes and devices are refused.
    ///
    /// # Errors
    /// A sentence for the script: not there (with similar names), a folder (with some of what
    /// it holds), binary (with its kind and size), not readable.
    pub async fn read_page(&self, request: ReadRequest) -> Result<Page, WorkspaceError> {
        let path = self.resolve(&request.path)?;
        blocking(move || {
            let start = page::Start::parse(&request.offset)?;
            let opened = source::open(&path, request.raw)?;
            page::read(opened, start, request.limit, request.raw, page::Bounds::of(request.raw))
                .map_err(|error| failed("read", &path, &error))
        })
        .await
    }

    /// Writes a file whole or not at all; mode bits of an existing file stay.
    ///
    /// # Errors
    /// A sentence for the script; the old file is then as it was.
    pub async fn write(&self, path: &str, content: &str) -> Result<Written, WorkspaceError> {
        let target = self.resolve(path)?;
        let content = content.to_owned();
        let files = self.clone();
        blocking(move || write::write(&target, content.as_bytes(), &files.protected, &files.notes())).await
    }

    /// Searches files, or for them. Dropped, it ends soon.
    ///
    /// # Errors
    /// A sentence for the script: the place is not there (with similar names), or cannot be searched.
    pub async fn search(&self, request: SearchRequest) -> Result<Found, WorkspaceError> {
        let stop = StopWhenDropped(Arc::default());
        let (files, flag) = (self.clone(), stop.0.clone());
        blocking(move || search::search(&files, &request, &flag)).await
    }

    /// What paths of a script are called, links and all.
    ///
    /// # Errors
    /// A sentence for the script, as of [`LocalFiles::resolve`].
    pub async fn names(&self, paths: &[String]) -> Result<Vec<Names>, WorkspaceError> {
        let places: Result<Vec<PathBuf>, WorkspaceError> = paths.iter().map(|path| self.resolve(path)).collect();
        let places = places?;
        blocking(move || Ok(places.iter().map(|place| fetch::names(place)).collect())).await
    }

    /// The same of paths that begin rules: nobody reads or writes them.
    ///
    /// # Errors
    /// When the home is not known that one begins with.
    pub async fn root_names(&self, paths: &[String]) -> Result<Vec<Names>, WorkspaceError> {
        let places: Result<Vec<PathBuf>, WorkspaceError> = paths.iter().map(|path| self.absolute(path)).collect();
        let places = places?;
        blocking(move || Ok(places.iter().map(|place| fetch::names(place)).collect())).await
    }

    /// What there is under some paths, whole.
    ///
    /// # Errors
    /// A sentence for the script: a folder, a device, not readable, too large.
    pub async fn fetch(&self, paths: &[String]) -> Result<Vec<Fetched>, WorkspaceError> {
        let places: Result<Vec<PathBuf>, WorkspaceError> = paths.iter().map(|path| self.resolve(path)).collect();
        let places = places?;
        blocking(move || places.iter().map(|place| fetch::fetch(place)).collect()).await
    }

    /// Makes all changes or none.
    ///
    /// # Errors
    /// When a file is no longer as it was found, or a sentence for the script; all is then as it was.
    pub async fn change(&self, changes: Vec<FileChange>) -> Result<(), ChangeError> {
        let files = self.clone();
        blocking(move || change::change(&changes, &files.notes())).await
    }
}

/// Tells work on another thread that nobody waits for it any more.
struct StopWhenDropped(Arc<AtomicBool>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn blocking<T: Send + 'static, E: From<WorkspaceError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(WorkspaceError(format!("the file operation was abandoned ({error}); try it again")).into())
    })
}

/// What an I/O error on a path means to the script.
fn failed(verb: &str, path: &Path, error: &io::Error) -> WorkspaceError {
    let shown = path.display();
    let why = match error.kind() {
        io::ErrorKind::NotFound => return missing(path),
        io::ErrorKind::PermissionDenied => rights::denied(verb, path),
        io::ErrorKind::ResourceBusy => {
            "it is mounted there by itself (as single files of a container are) and can be written, but neither removed nor moved; change what it holds, or what is mounted".into()
        }
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; choose another place".into(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk or the user's quota is full; free space or choose another place".into()
        }
        io::ErrorKind::NotADirectory => "a part of the path is a file, not a folder".into(),
        io::ErrorKind::InvalidFilename => "the name is too long".into(),
        _ if error.raw_os_error() == Some(libc::ELOOP) => "its symlinks lead in a circle".into(),
        io::ErrorKind::WouldBlock => "it has nothing to give or take right now".into(),
        _ => error.to_string(),
    };
    WorkspaceError(format!("cannot {verb} {shown}: {why}"))
}

/// Says what there is instead of a file that is not there.
fn missing(path: &Path) -> WorkspaceError {
    let shown = path.display();
    if let Ok(to) = path.read_link() {
        return WorkspaceError(format!(
            "{shown} is a symlink to {}, which does not exist; make that, or see to the link with terminal()",
            to.display()
        ));
    }
    let mut folder = path.parent();
    while let Some(parent) = folder.filter(|parent| !parent.is_dir()) {
        folder = parent.parent();
    }
    let Some(folder) = folder else {
        return WorkspaceError(format!("{shown} does not exist"));
    };
    if path.parent() != Some(folder) {
        return WorkspaceError(format!(
            "{shown} does not exist; the nearest folder that does is {}",
            folder.display()
        ));
    }
    let mut names = names(folder, SEEN_NAMES);
    let wanted = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let mut similar = Vec::new();
    while similar.len() < SIMILAR_NAMES {
        let Some(found) = nearest(&wanted, names.iter().map(String::as_str)) else {
            break;
        };
        let found = found.to_owned();
        names.retain(|name| *name != found);
        similar.push(found);
    }
    let hint = match similar.as_slice() {
        [] => "list the folder to see what is there".into(),
        similar => format!("similar names there: {}", similar.join(", ")),
    };
    WorkspaceError(format!("{shown} does not exist; {hint}"))
}

/// A folder given where a file was meant.
fn is_folder(path: &Path) -> WorkspaceError {
    if std::fs::read_dir(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return WorkspaceError(format!(
            "{} is a folder, not a file, and {}",
            path.display(),
            rights::denied("list", path)
        ));
    }
    let mut names = names(path, SEEN_NAMES);
    names.sort();
    let more = names.len().saturating_sub(SHOWN_NAMES);
    names.truncate(SHOWN_NAMES);
    let held = match (names.as_slice(), more) {
        ([], _) => "nothing".into(),
        (names, 0) => names.join(", "),
        (names, more) => format!("{} and {more} more", names.join(", ")),
    };
    WorkspaceError(format!("{} is a folder, not a file; it holds {held}", path.display()))
}

/// Names in a folder, folders with a slash after them; none when it cannot be read.
fn names(folder: &Path, at_most: usize) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .take(at_most)
        .map(|entry| {
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                "/"
            } else {
                ""
            };
            format!("{}{slash}", entry.file_name().to_string_lossy())
        })
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    fn request(path: &str) -> ReadRequest {
        ReadRequest {
            path: path.into(),
            offset: "1".into(),
            limit: 2000,
            raw: false,
        }
    }

    #[test]
    fn paths() {
        let files = LocalFiles::new("/cwd", PathBuf::from("/home/u"));
        for (given, expected) in [
            ("a/b", "/cwd/a/b"),
            ("/x", "/x"),
            ("~", "/home/u/"),
            ("~/x", "/home/u/x"),
            ("~//x", "/home/u/x"),
            ("~root/x", "/root/x"),
            (" ", "/cwd/ "),
            ("../x", "/cwd/../x"),
        ] {
            assert_eq!(files.resolve(given).unwrap(), Path::new(expected), "{given}");
        }
        for (files, path) in [
            (&files, ""),
            (&files, "a\0b"),
            (&files, "~no-such-user/x"),
            (&LocalFiles::new("/", None), "~/x"),
        ] {
            assert!(files.resolve(path).is_err(), "{path:?}");
        }
    }

    #[tokio::test]
    async fn errors_say_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::write(root.join("config.yaml"), "").unwrap();
        std::fs::create_dir(root.join("sub")).unwrap();
        std::os::unix::fs::symlink("circle", root.join("circle")).unwrap();
        std::os::unix::fs::symlink("no/where", root.join("astray")).unwrap();
        let files = LocalFiles::new(root, None);
        for (path, words) in [
            ("config.yml", vec!["does not exist", "config.yaml"]),
            ("zzzz", vec!["does not exist", "list the folder"]),
            ("no/such/place", vec!["nearest folder", root.to_str().unwrap()]),
            (".", vec!["is a folder", "config.yaml, sub/"]),
            ("sub", vec!["is a folder", "nothing"]),
            ("config.yaml/x", vec!["a part of the path is a file"]),
            ("circle", vec!["circle"]),
            ("astray", vec!["is a symlink to no/where, which does not exist"]),
            (&"n".repeat(300), vec!["too long"]),
        ] {
            let error = files.read_page(request(path)).await.unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{path}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let files = LocalFiles::new("/", folder.path().to_path_buf());
        let content = "`$(x)` 'EOF'\r\n\"ü\u{1f600}\"\n\n--- stderr ---\nno newline";
        files.write("~/na me.txt", content).await.unwrap();
        let mut request = request("~/na me.txt");
        request.raw = true;
        let page = files.read_page(request).await.unwrap();
        assert_eq!((page.content.as_str(), page.total_lines), (content, Some(5)));
        assert_eq!(page.file_size, content.len() as u64);
    }
}
