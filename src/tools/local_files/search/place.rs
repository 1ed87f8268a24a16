//! Where a search takes place: its folder, which files there it looks at, and how it calls them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};

use super::super::{LocalFiles, failed};
use crate::tools::{SearchRequest, WorkspaceError};

/// Files that are looked at for an example, where nothing was found to search.
const EXAMPLE_SEARCH: usize = 10_000;
/// Files in which rules stand beside `.gitignore` and `.ignore`, as ripgrep has it.
const RULES: &str = ".rgignore";

/// A folder or file to be searched.
pub(super) struct Place {
    /// Without links.
    pub root: PathBuf,
    /// What stands before a path below it in results.
    prefix: String,
    /// Whether it is a folder.
    pub is_folder: bool,
    globs: Override,
    /// Folders that are left out for an ignore file that is none, with its name.
    odd: Arc<Mutex<Vec<(PathBuf, &'static str)>>>,
}

impl Place {
    /// Finds it, or says why it cannot be searched.
    pub(super) fn find(files: &LocalFiles, request: &SearchRequest) -> Result<Self, WorkspaceError> {
        let path = files.resolve(&request.path)?;
        let fail = |error: std::io::Error| failed("search", &path, &error);
        let metadata = path.metadata().map_err(fail)?;
        let root = path.canonicalize().map_err(fail)?;
        if metadata.is_dir() {
            // Whether it can be read is known once it is.
            std::fs::read_dir(&root).map_err(fail)?;
            if let Some(rules) = root
                .ancestors()
                .find_map(|folder| Some(folder.join(odd_rules(folder)?)))
            {
                return Err(WorkspaceError(odd(&path, &rules)));
            }
        } else if !metadata.is_file() {
            let kind = metadata.file_type();
            let what = match () {
                () if kind.is_fifo() => "a named pipe",
                () if kind.is_socket() => "a socket",
                () => "a device",
            };
            return Err(WorkspaceError(format!(
                "{} is {what}, neither file nor folder; read it with terminal() and a timeout",
                path.display()
            )));
        }
        let globs = overrides(&root, &request.globs)?;
        Ok(Self {
            prefix: prefix(&files.workdir, &path, &request.path, metadata.is_dir()),
            root,
            is_folder: metadata.is_dir(),
            globs,
            odd: Arc::default(),
        })
    }

    /// The path of an entry from the folder on.
    pub(super) fn below<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// How results call a path below it.
    pub(super) fn shown(&self, below: &Path) -> String {
        format!(
            "{}{}",
            self.prefix,
            String::from_utf8_lossy(below.as_os_str().as_bytes())
        )
    }

    /// All that is to be looked at below it.
    pub(super) fn walk(&self) -> WalkBuilder {
        let mut walk = WalkBuilder::new(&self.root);
        let is_ours = not_of_the_broker();
        let (globs, found) = (self.globs.clone(), self.odd.clone());
        walk.git_global(false)
            .require_git(is_in_repository(&self.root))
            .add_custom_ignore_filename(RULES)
            .filter_entry(move |entry| {
                if entry.depth() == 0 {
                    return true;
                }
                if !is_ours(entry) || globs.matched(entry.path(), is_dir(entry)).is_ignore() {
                    return false;
                }
                match is_dir(entry).then(|| odd_rules(entry.path())).flatten() {
                    Some(rules) => {
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push((entry.path().to_owned(), rules));
                        false
                    }
                    None => true,
                }
            });
        walk
    }

    /// Why folders were left out.
    pub(super) fn odd_folders(&self) -> Vec<String> {
        let mut found = self.odd.lock().unwrap_or_else(PoisonError::into_inner);
        let told =
            |(folder, rules): (PathBuf, &str)| odd(Path::new(&self.shown(self.below(&folder))), Path::new(rules));
        std::mem::take(&mut *found).into_iter().map(told).collect()
    }

    /// A file that would be looked at if it were not hidden or ignored, and one that would be if it also had
    /// another name.
    pub(super) fn examples(&self) -> (Option<String>, Option<String>) {
        let (mut passed_over, mut misfit) = (None, None);
        for is_all in [true, false] {
            let mut walk = WalkBuilder::new(&self.root);
            let is_ours = not_of_the_broker();
            walk.standard_filters(false)
                .sort_by_file_name(OsStr::cmp)
                .filter_entry(move |entry| {
                    let is_read = !is_all && is_dir(entry);
                    entry.depth() == 0
                        || is_ours(entry) && !is_about_rules(entry) && !(is_read && odd_rules(entry.path()).is_some())
                });
            if !is_all {
                walk.hidden(true)
                    .parents(true)
                    .ignore(true)
                    .git_ignore(true)
                    .git_exclude(true);
                walk.require_git(is_in_repository(&self.root))
                    .add_custom_ignore_filename(RULES);
            }
            let mut left_out: Vec<PathBuf> = Vec::new();
            for entry in walk.build().filter_map(Result::ok).take(EXAMPLE_SEARCH) {
                if entry.depth() == 0 || left_out.last().is_some_and(|folder| entry.path().starts_with(folder)) {
                    continue;
                }
                let is_out = self.globs.matched(entry.path(), is_dir(&entry)).is_ignore();
                if is_dir(&entry) {
                    if is_out {
                        left_out.push(entry.into_path());
                    }
                } else if entry.file_type().is_some_and(|kind| kind.is_file()) {
                    let example = Some(self.shown(self.below(entry.path())));
                    match (is_all, is_out) {
                        (true, false) => passed_over = example,
                        (false, true) => misfit = example,
                        _ => continue,
                    }
                    break;
                }
            }
            if passed_over.is_some() {
                break;
            }
        }
        (passed_over, misfit)
    }
}

pub(super) fn overrides(root: &Path, globs: &[String]) -> Result<Override, WorkspaceError> {
    let refused =
        |error: ignore::Error| WorkspaceError(format!("a glob cannot be used: {error}; write it more simply"));
    let mut builder = OverrideBuilder::new(root);
    for glob in globs {
        builder.add(glob).map_err(refused)?;
    }
    builder.build().map_err(refused)
}

pub(super) fn is_dir(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_dir())
}

/// What is hidden but no example of it.
fn is_about_rules(entry: &DirEntry) -> bool {
    [".git", ".gitignore", ".ignore", RULES]
        .iter()
        .any(|name| entry.file_name() == *name)
}

/// An ignore file in a folder that is a pipe or a device: whoever reads it may wait without end.
fn odd_rules(folder: &Path) -> Option<&'static str> {
    let is_odd = |path: PathBuf| {
        let kind = path.metadata().map(|metadata| metadata.file_type());
        kind.is_ok_and(|kind| !kind.is_file() && !kind.is_dir())
    };
    let known = [RULES, ".ignore", ".gitignore", ".git/info/exclude", ".git"];
    if let Some(name) = known.into_iter().find(|name| is_odd(folder.join(name))) {
        return Some(name);
    }
    // Of a worktree or submodule `.git` is a file that names the folder, and that may name one which it has in common
    // with others.
    let pointed = |path: PathBuf, base: &Path| {
        let text = path.is_file().then(|| std::fs::read_to_string(path).ok()).flatten()?;
        let text = text.lines().next()?.trim();
        Some(base.join(text.strip_prefix("gitdir:").unwrap_or(text).trim()))
    };
    let git = pointed(folder.join(".git"), folder)?;
    let common = git.join("commondir");
    if is_odd(common.clone()) || is_odd(git.join("info/exclude")) {
        return Some(".git");
    }
    let shared = pointed(common, &git)?;
    is_odd(shared.join("info/exclude")).then_some(".git")
}

fn odd(folder: &Path, rules: &Path) -> String {
    let shown = folder.to_string_lossy();
    let shown = match shown.trim_end_matches('/') {
        "" => ".",
        shown => shown,
    };
    format!(
        "cannot search {shown}: {} is a pipe or a device, not an ignore file; remove it",
        rules.display()
    )
}

/// Folders whose files are made up by the kernel as they are read, some of them without end: nobody who searches all that
/// is on a machine means these.
const OF_THE_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Leaves out what is the broker's own, its process and the folders of sessions, and what is the kernel's.
fn not_of_the_broker() -> impl Fn(&DirEntry) -> bool + Clone {
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    move |entry: &DirEntry| {
        let path = entry.path();
        let is_of_the_kernel = OF_THE_KERNEL.iter().any(|folder| path == Path::new(folder));
        path != own && !is_of_the_kernel && !(is_dir(entry) && is_of_session(entry.file_name().as_bytes()))
    }
}

/// Whether a folder with this name is that of a session.
fn is_of_session(name: &[u8]) -> bool {
    let Some(id) = name.strip_prefix(b"talaria-") else {
        return false;
    };
    let id = id.strip_suffix(b"-disk").unwrap_or(id);
    id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit)
}

/// Whether rules of git hold there only within a repository: outside of any, they hold without one.
fn is_in_repository(root: &Path) -> bool {
    root.ancestors()
        .any(|folder| [".git", ".jj"].iter().any(|name| folder.join(name).exists()))
}

/// What stands before the paths of results: they start at the working directory where that is above, else as given.
fn prefix(workdir: &Path, path: &Path, given: &str, is_folder: bool) -> String {
    let plain = path
        .components()
        .all(|part| !matches!(part, std::path::Component::ParentDir));
    let mut prefix = match path.strip_prefix(workdir) {
        Ok(below) if plain => below.components().collect::<PathBuf>().to_string_lossy().into_owned(),
        _ => given.to_owned(),
    };
    if is_folder && !prefix.is_empty() && !prefix.ends_with('/') {
        prefix.push('/');
    }
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_results() {
        for (given, expected) in [
            (".", ""),
            ("./", ""),
            ("src", "src/"),
            ("./src//", "src/"),
            ("/w/src", "src/"),
            ("/w", ""),
            ("..", "../"),
            ("../x/", "../x/"),
            ("src/../x", "src/../x/"),
            ("/etc", "/etc/"),
            ("/", "/"),
        ] {
            let path = Path::new("/w").join(given);
            assert_eq!(prefix(Path::new("/w"), &path, given, true), expected, "{given}");
        }
        assert_eq!(prefix(Path::new("/w"), Path::new("/home/u/x"), "~/x", true), "~/x/");
        assert_eq!(prefix(Path::new("/w"), Path::new("/w/./a/f"), "./a/f", false), "a/f");
    }

    #[test]
    fn who_searches_a_whole_machine_does_not_mean_the_files_of_the_kernel() {
        let names = |root: &str| -> Vec<PathBuf> {
            let mut walk = WalkBuilder::new(root);
            let is_meant = not_of_the_broker();
            walk.max_depth(Some(1))
                .filter_entry(move |entry| entry.depth() == 0 || is_meant(entry));
            walk.build().flatten().skip(1).map(DirEntry::into_path).collect()
        };
        let found = names("/");
        assert!(found.contains(&PathBuf::from("/etc")), "{found:?}");
        for folder in OF_THE_KERNEL {
            assert!(!found.contains(&PathBuf::from(folder)), "{found:?}");
            assert!(!names(folder).is_empty(), "{folder}");
        }
    }
}
