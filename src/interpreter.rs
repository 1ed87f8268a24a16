//! Which Python runs a session's cells on this machine.
//!
//! Looking is done here, without starting anything; whoever starts a candidate finds out whether it works and is new
//! enough, adds what it found to [`Search::rejected`] and goes on to the next. When none is left, [`Search::error`]
//! makes the sentence that says what there was and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use thiserror::Error;

use crate::config::Mode;
use crate::environment::Environment;

/// The oldest Python that runs cells: major and minor version.
pub const OLDEST_PYTHON: (u32, u32) = (3, 8);

/// The names to look for on `PATH`, best first.
pub const PYTHON_NAMES: [&str; 8] = [
    "python3",
    "python",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
    "python3.9",
    "python3.8",
];

/// Where to look when `PATH` is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What made a program a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is configured.
    Configured,
    /// The virtual environment that the broker was started in.
    VirtualEnv,
    /// The conda environment that the broker was started in.
    Conda,
    /// The `.venv` of the working directory.
    DotVenv,
    /// It has the right name on `PATH`.
    Path,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured => "the configured python",
            Self::VirtualEnv => "VIRTUAL_ENV",
            Self::Conda => "CONDA_PREFIX",
            Self::DotVenv => ".venv in the working directory",
            Self::Path => "PATH",
        })
    }
}

/// A program that may be the interpreter: an executable file, not yet started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its path, links not followed: a virtual environment is known by the link to its interpreter.
    pub path: PathBuf,
    /// What made it a candidate.
    pub why: Why,
}

/// A program that was looked at and cannot be the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its path.
    pub path: PathBuf,
    /// What was found, to stand after the path: `version 3.6`, `exited with 1: …`, `not executable`.
    pub found: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.found)
    }
}

/// What there is to try, best first, and what was ruled out so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Programs to try in this order.
    pub candidates: Vec<Candidate>,
    /// Programs that were ruled out: by looking, and later by whoever tried them. Worth a line in the log.
    pub rejected: Vec<Rejected>,
    /// The interpreter that has to be taken and no other, as written.
    pub required: Option<PathBuf>,
}

/// Why there is no interpreter.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InterpreterError {
    /// The one that has to be taken cannot be.
    #[error(
        "the configured python `{}` cannot run scripts: {}; set code_execution.python (or --python) to a Python {} or newer, or leave it out",
        required.display(),
        listed(rejected, "no such program on PATH"),
        oldest()
    )]
    Required {
        /// As written.
        required: PathBuf,
        /// What was found.
        rejected: Vec<Rejected>,
    },
    /// There are some, and none works.
    #[error(
        "no Python that can run scripts: {}; install Python {} or newer, or name one with code_execution.python (or --python)",
        listed(rejected, ""),
        oldest()
    )]
    NoneWorks {
        /// What was found.
        rejected: Vec<Rejected>,
    },
    /// There is none.
    #[error(
        "no Python was found (VIRTUAL_ENV, CONDA_PREFIX, .venv in the working directory, and {} on PATH were looked at); \
         install Python {} or newer, or name one with code_execution.python (or --python)",
        PYTHON_NAMES.join(", "),
        oldest()
    )]
    NoneFound,
}

fn listed(rejected: &[Rejected], none: &str) -> String {
    if rejected.is_empty() {
        return none.to_owned();
    }
    rejected.iter().map(Rejected::to_string).collect::<Vec<_>>().join(", ")
}

fn oldest() -> String {
    format!("{}.{}", OLDEST_PYTHON.0, OLDEST_PYTHON.1)
}

impl Search {
    /// The error for a search in which every candidate was rejected.
    #[must_use]
    pub fn error(&self) -> InterpreterError {
        let rejected = self.rejected.clone();
        match &self.required {
            Some(required) => InterpreterError::Required {
                required: required.clone(),
                rejected,
            },
            None if rejected.is_empty() => InterpreterError::NoneFound,
            None => InterpreterError::NoneWorks { rejected },
        }
    }

    /// Takes a program up: as a candidate, or as rejected where it is there and no executable file.
    fn add(&mut self, path: PathBuf, why: Why) {
        if self.candidates.iter().any(|candidate| candidate.path == path)
            || self.rejected.iter().any(|rejected| rejected.path == path)
        {
            return;
        }
        match executable(&path) {
            Ok(()) => self.candidates.push(Candidate { path, why }),
            Err(found) => self.rejected.push(Rejected { path, found }),
        }
    }
}

/// Looks for interpreters. A configured one is the only candidate, in either mode; strict mode takes `python3` where
/// none is configured. Nothing is started; a search without candidates is answered by [`Search::error`].
///
/// `cwd` is the session's working directory, absolute: a relative path is taken from there.
#[must_use]
pub fn candidates(mode: Mode, python: Option<&Path>, cwd: &Path, environment: &Environment) -> Search {
    let mut search = Search::default();
    let required = match (python, mode) {
        (Some(python), _) => Some(python.to_owned()),
        (None, Mode::Strict) => Some(PathBuf::from("python3")),
        (None, Mode::Project) => None,
    };
    if let Some(python) = required {
        let is_name = python.components().count() == 1 && !python.starts_with("~") && !python.starts_with(".");
        if is_name {
            for path in on_path(&python, environment) {
                search.add(path, Why::Configured);
            }
            // Of several programs of one name the first is meant, as in a shell.
            search.candidates.truncate(1);
        } else {
            search.add(cwd.join(environment.expand_home(&python)), Why::Configured);
        }
        search.required = Some(python);
        return search;
    }
    for (variable, why) in [("VIRTUAL_ENV", Why::VirtualEnv), ("CONDA_PREFIX", Why::Conda)] {
        if let Some(root) = environment
            .filled(variable)
            .map(Path::new)
            .filter(|root| root.is_absolute())
        {
            search.add(root.join("bin/python"), why);
        }
    }
    let dot_venv = cwd.join(".venv");
    if dot_venv.is_dir() {
        search.add(dot_venv.join("bin/python"), Why::DotVenv);
    }
    for name in PYTHON_NAMES {
        for path in on_path(Path::new(name), environment) {
            search.add(path, Why::Path);
        }
    }
    search
}

/// Every program of that name on `PATH`. Entries that are no absolute path are passed over: with them, the project's
/// own files could pose as the interpreter.
fn on_path(name: &Path, environment: &Environment) -> Vec<PathBuf> {
    let path = environment.filled("PATH").unwrap_or(DEFAULT_PATH.as_ref());
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .filter(|path| path.symlink_metadata().is_ok())
        .collect()
}

/// Whether the path leads to a regular file that may be executed; else what it is.
fn executable(path: &Path) -> Result<(), String> {
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(match path.symlink_metadata() {
            Ok(_) => "a link to a file that does not exist".to_owned(),
            Err(_) => "does not exist".to_owned(),
        }),
        Err(error) => Err(error.to_string()),
        Ok(metadata) if !metadata.is_file() => Err("not a file".to_owned()),
        Ok(_) => access(path, Access::EXEC_OK).map_err(|_| "not executable".to_owned()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use tempfile::TempDir;

    use super::*;

    struct Place(TempDir);

    impl Place {
        fn new(programs: &[&str]) -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            programs.iter().for_each(|program| place.program(program, 0o755));
            place
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn program(&self, path: &str, mode: u32) {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            fs::write(self.at(path), "").unwrap();
            fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
        }

        /// The search in `cwd`, and its candidates relative to the place.
        fn search(&self, mode: Mode, python: Option<&str>, variables: &[(&str, &str)]) -> (Search, Vec<(String, Why)>) {
            let root = self.0.path().to_str().unwrap();
            let environment = variables
                .iter()
                .map(|(name, value)| (*name, value.replace('@', root)))
                .collect();
            let python = python.map(|python| python.replace('@', root));
            let search = candidates(mode, python.as_deref().map(Path::new), &self.at("cwd"), &environment);
            let found = search
                .candidates
                .iter()
                .map(|candidate| {
                    let path = candidate.path.strip_prefix(root).unwrap();
                    (path.to_str().unwrap().to_owned(), candidate.why)
                })
                .collect();
            (search, found)
        }
    }

    fn named<'a>(found: impl IntoIterator<Item = (&'a str, Why)>) -> Vec<(String, Why)> {
        found.into_iter().map(|(path, why)| (path.to_owned(), why)).collect()
    }

    #[test]
    fn a_project_prefers_its_environments_and_then_path_by_name() {
        let place = Place::new(&[
            "venv/bin/python",
            "conda/bin/python",
            "cwd/.venv/bin/python",
            "a/python3.12",
            "a/python",
            "b/python3",
            "b/python2",
        ]);
        let variables = [
            ("VIRTUAL_ENV", "@/venv"),
            ("CONDA_PREFIX", "@/conda"),
            ("PATH", "@/a:@/b:@/a:relative:"),
        ];
        let (search, found) = place.search(Mode::Project, None, &variables);
        assert_eq!(
            found,
            named([
                ("venv/bin/python", Why::VirtualEnv),
                ("conda/bin/python", Why::Conda),
                ("cwd/.venv/bin/python", Why::DotVenv),
                ("b/python3", Why::Path),
                ("a/python", Why::Path),
                ("a/python3.12", Why::Path),
            ])
        );
        assert_eq!((search.rejected, search.required), (Vec::new(), None));
    }

    #[test]
    fn what_is_no_executable_file_is_rejected_with_the_reason() {
        let place = Place::new(&["good/python3"]);
        place.program("plain/python3", 0o644);
        fs::create_dir_all(place.at("cwd/.venv/bin")).unwrap();
        symlink("/nonexistent/python", place.at("cwd/.venv/bin/python")).unwrap();
        fs::create_dir_all(place.at("directory/python3")).unwrap();
        let variables = [("VIRTUAL_ENV", "@/gone"), ("PATH", "@/plain:@/directory:@/good")];
        let (search, found) = place.search(Mode::Project, None, &variables);
        assert_eq!(found, named([("good/python3", Why::Path)]));
        let reasons: Vec<_> = search.rejected.iter().map(|rejected| rejected.found.as_str()).collect();
        // Root may execute nothing either that has no executable bit at all.
        assert_eq!(
            reasons,
            [
                "does not exist",
                "a link to a file that does not exist",
                "not executable",
                "not a file"
            ]
        );
    }

    #[test]
    fn a_link_stays_a_link() {
        let place = Place::new(&["real/python3"]);
        fs::create_dir_all(place.at("venv/bin")).unwrap();
        symlink(place.at("real/python3"), place.at("venv/bin/python")).unwrap();
        let (_, found) = place.search(Mode::Project, None, &[("VIRTUAL_ENV", "@/venv"), ("PATH", "@/real")]);
        assert_eq!(
            found,
            named([("venv/bin/python", Why::VirtualEnv), ("real/python3", Why::Path)])
        );
    }

    #[test]
    fn a_configured_python_is_the_only_one() {
        let place = Place::new(&["a/python3", "b/python3", "cwd/own/python", "home/own/python"]);
        let variables = [("PATH", "@/a:@/b"), ("HOME", "@/home"), ("VIRTUAL_ENV", "@/a")];
        for (python, expected) in [
            ("python3", "a/python3"),
            ("@/b/python3", "b/python3"),
            ("own/python", "cwd/own/python"),
            ("~/own/python", "home/own/python"),
        ] {
            for mode in [Mode::Project, Mode::Strict] {
                let (_, found) = place.search(mode, Some(python), &variables);
                assert_eq!(found, named([(expected, Why::Configured)]), "{python}");
            }
        }
        let (_, found) = place.search(Mode::Strict, None, &variables);
        assert_eq!(found, named([("a/python3", Why::Configured)]));
    }

    #[test]
    fn a_broken_configured_python_is_an_error_and_no_other_is_taken() {
        let place = Place::new(&["a/python3"]);
        for python in ["@/gone/python", "python3.99"] {
            let (search, found) = place.search(Mode::Project, Some(python), &[("PATH", "@/a")]);
            assert_eq!(found, named([]));
            let message = search.error().to_string();
            assert!(
                message.contains("the configured python") && message.contains("code_execution.python"),
                "{message}"
            );
        }
    }

    #[test]
    fn the_error_says_what_was_found_and_what_to_do() {
        let rejected = |path: &str, found: &str| Rejected {
            path: path.into(),
            found: found.to_owned(),
        };
        let search = Search {
            rejected: vec![
                rejected("/usr/bin/python3", "version 3.6"),
                rejected("/x/python", "exited with 1: boom"),
            ],
            ..Search::default()
        };
        let message = search.error().to_string();
        assert!(
            message.contains("/usr/bin/python3 (version 3.6), /x/python (exited with 1: boom)"),
            "{message}"
        );
        assert!(message.contains("install Python 3.8 or newer"), "{message}");
        let message = Search::default().error().to_string();
        assert!(
            message.starts_with("no Python was found") && message.contains("python3.13"),
            "{message}"
        );
    }
}
