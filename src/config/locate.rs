//! Which file is read.

use std::io;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use crate::environment::Environment;

/// Whose file it is, which decides how strictly it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Talaria's own.
    Talaria,
    /// The agent's, which holds much that is not for us.
    Hermes,
}

/// Which file it is, and what was passed over on the way to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Located {
    /// The file to read, if there is one.
    pub(super) file: Option<(PathBuf, Owner)>,
    /// Sentences about places that could not be looked at.
    pub(super) warnings: Vec<String>,
}

/// The file to read, if there is one.
///
/// # Errors
/// A file that was asked for by name must be there.
pub(super) fn locate(explicit: Option<&Path>, environment: &Environment) -> Result<Located, ConfigError> {
    let hermes = hermes_file(environment);
    let asked = explicit.map(|path| ("--config", path)).or_else(|| {
        environment
            .filled("TALARIA_CONFIG")
            .map(|path| ("TALARIA_CONFIG", Path::new(path)))
    });
    if let Some((asked_by, path)) = asked {
        let path = environment.expand_home(path);
        if !path.exists() {
            return Err(ConfigError::Missing { path, asked_by });
        }
        // Who names the agent's file wants it read as what it is.
        let is_hermes = hermes.is_some_and(|hermes| match (path.canonicalize(), hermes.canonicalize()) {
            (Ok(path), Ok(hermes)) => path == hermes,
            _ => false,
        });
        let owner = if is_hermes { Owner::Hermes } else { Owner::Talaria };
        return Ok(Located {
            file: Some((path, owner)),
            warnings: Vec::new(),
        });
    }
    let own = own_file(environment).map(|path| (path, Owner::Talaria));
    let hermes = hermes.map(|path| (path, Owner::Hermes));
    Ok(first([own, hermes].into_iter().flatten(), |path| {
        path.symlink_metadata().map(|_| ())
    }))
}

/// The first file that is there. A dangling link is there all the same: reading it says what is wrong, where passing it
/// over would silently take other settings. One behind a folder that we may not enter is none of ours, most likely.
fn first(places: impl Iterator<Item = (PathBuf, Owner)>, look: impl Fn(&Path) -> io::Result<()>) -> Located {
    let mut located = Located::default();
    for (path, owner) in places {
        match look(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => located.warnings.push(format!(
                "the configuration file {} is passed over: a folder on the way to it may not be entered ({error}); HOME may belong to another user",
                path.display()
            )),
            _ => {
                located.file = Some((path, owner));
                break;
            }
        }
    }
    located
}

fn own_file(environment: &Environment) -> Option<PathBuf> {
    // A relative directory is to be ignored, says the convention.
    let configured = environment
        .filled("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let directory = configured.or_else(|| environment.home().map(|home| home.join(".config")))?;
    Some(directory.join("talaria").join("config.yaml"))
}

fn hermes_file(environment: &Environment) -> Option<PathBuf> {
    let configured = environment
        .filled("HERMES_HOME")
        .map(|path| environment.expand_home(Path::new(path)));
    let directory = configured.or_else(|| environment.home().map(|home| home.join(".hermes")))?;
    Some(directory.join("config.yaml"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_first_file_found_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let place = |path: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "").unwrap();
        };
        let text = |path: &str| at(path).to_str().unwrap().to_owned();
        let bare = Environment::from_iter([("HOME", text("home"))]);
        let full = Environment::from_iter([
            ("HOME", text("home")),
            ("XDG_CONFIG_HOME", text("xdg")),
            ("HERMES_HOME", text("hermes")),
        ]);
        let found = |environment: &Environment| locate(None, environment).unwrap().file;

        assert_eq!((found(&bare), found(&full)), (None, None));
        place("home/.hermes/config.yaml");
        place("hermes/config.yaml");
        assert_eq!(found(&bare), Some((at("home/.hermes/config.yaml"), Owner::Hermes)));
        assert_eq!(found(&full), Some((at("hermes/config.yaml"), Owner::Hermes)));
        place("home/.config/talaria/config.yaml");
        assert_eq!(
            found(&bare),
            Some((at("home/.config/talaria/config.yaml"), Owner::Talaria))
        );
        assert_eq!(found(&full), Some((at("hermes/config.yaml"), Owner::Hermes)));
        place("xdg/talaria/config.yaml");
        assert_eq!(found(&full), Some((at("xdg/talaria/config.yaml"), Owner::Talaria)));

        place("home/named.yaml");
        place("explicit.yaml");
        let named = Environment::from_iter([("HOME", text("home").as_str()), ("TALARIA_CONFIG", "~/named.yaml")]);
        assert_eq!(found(&named), Some((at("home/named.yaml"), Owner::Talaria)));
        let explicit = locate(Some(&at("explicit.yaml")), &named).unwrap().file;
        assert_eq!(explicit, Some((at("explicit.yaml"), Owner::Talaria)));
        symlink(at("hermes/config.yaml"), at("link.yaml")).unwrap();
        assert_eq!(
            locate(Some(&at("link.yaml")), &full).unwrap().file,
            Some((at("link.yaml"), Owner::Hermes))
        );
    }

    #[test]
    fn a_named_file_must_be_there() {
        let named = Environment::from_iter([("TALARIA_CONFIG", "/nonexistent/b.yaml")]);
        let message = locate(Some(Path::new("/nonexistent/a.yaml")), &named)
            .unwrap_err()
            .to_string();
        assert!(message.contains("/nonexistent/a.yaml (--config)"), "{message}");
        let message = locate(None, &named).unwrap_err().to_string();
        assert!(message.contains("/nonexistent/b.yaml (TALARIA_CONFIG)"), "{message}");
    }

    #[test]
    fn a_dangling_link_is_not_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("talaria/config.yaml");
        fs::create_dir(root.path().join("talaria")).unwrap();
        symlink("/nonexistent", &own).unwrap();
        let environment = Environment::from_iter([("XDG_CONFIG_HOME", root.path())]);
        assert_eq!(locate(None, &environment).unwrap().file, Some((own, Owner::Talaria)));
    }

    #[test]
    fn a_place_that_is_closed_to_us_is_passed_over_with_a_warning() {
        let places = || {
            [
                ("/closed/own.yaml", Owner::Talaria),
                ("/open/agent.yaml", Owner::Hermes),
            ]
            .into_iter()
            .map(|(path, owner)| (PathBuf::from(path), owner))
        };
        let look = |path: &Path| match path.starts_with("/closed") {
            true => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            false => Ok(()),
        };
        let located = first(places(), look);
        assert_eq!(located.file, Some((PathBuf::from("/open/agent.yaml"), Owner::Hermes)));
        let [warning] = located.warnings.as_slice() else {
            panic!("{located:?}")
        };
        assert!(
            warning.contains("/closed/own.yaml") && warning.contains("HOME"),
            "{warning}"
        );
        // What else goes wrong is told by reading the file.
        let located = first(places(), |_| Err(io::Error::other("broken")));
        assert_eq!(located.file, Some((PathBuf::from("/closed/own.yaml"), Owner::Talaria)));
        assert_eq!(
            first(places(), |_| Err(io::ErrorKind::NotFound.into())),
            Located::default()
        );
    }
}
