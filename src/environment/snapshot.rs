//! The broker's variables as they were when it started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A snapshot of environment variables. Cloning it copies a pointer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: Arc<BTreeMap<OsString, OsString>>,
}

impl Environment {
    /// The variables of this process, now. Taken once at the start, and passed on as a value from there.
    #[must_use]
    pub fn of_this_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of a variable, empty or not.
    #[must_use]
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.variables.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// The value of a variable; `None` also where it is empty, which for a path or a setting means the same as unset.
    #[must_use]
    pub fn filled(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All variables, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// `HOME`, where it is set to an absolute path.
    #[must_use]
    pub fn home(&self) -> Option<&Path> {
        self.filled("HOME").map(Path::new).filter(|home| home.is_absolute())
    }

    /// `path` with a leading `~` replaced by the home directory; unchanged where there is none.
    #[must_use]
    pub fn expand_home(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), self.home()) {
            (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.to_owned(),
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_owned(),
        }
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self {
            variables: Arc::new(variables.collect()),
        }
    }
}

/// Names only: a snapshot holds every secret of the broker, and a log line is no place for them.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_tilde_is_the_home_directory() {
        let with_home = Environment::from_iter([("HOME", "/home/bob")]);
        for (path, expected) in [
            ("~", "/home/bob"),
            ("~/a", "/home/bob/a"),
            ("a/~", "a/~"),
            ("~bob/a", "~bob/a"),
            ("/~/a", "/~/a"),
        ] {
            assert_eq!(with_home.expand_home(Path::new(path)), Path::new(expected), "{path}");
        }
        assert_eq!(Environment::default().expand_home(Path::new("~/a")), Path::new("~/a"));
    }

    #[test]
    fn debugging_shows_no_values() {
        let shown = format!("{:?}", Environment::from_iter([("API_KEY", "hunter2")]));
        assert_eq!(shown, r#"{"API_KEY"}"#);
    }

    #[test]
    fn an_empty_variable_counts_as_unset_where_asked() {
        let environment = Environment::from_iter([("A", "")]);
        assert_eq!(
            (environment.get("A"), environment.filled("A")),
            (Some(OsStr::new("")), None)
        );
    }
}
