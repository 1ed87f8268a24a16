//! What a session must know of the place where it runs: this machine, or a target that told it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::environment::{Built, Environment, PassRules};

/// A place where a session's cells and commands run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The variables of an ordinary process there.
    pub environment: Environment,
    /// The account's home; `None` where it has none.
    pub home: Option<PathBuf>,
    /// Where a session starts.
    pub folder: PathBuf,
    /// `bash`, where there is one.
    pub bash: Option<PathBuf>,
    /// The shell whose exports a session's terminal starts with.
    pub login_shell: Option<PathBuf>,
    rules: Rules,
}

/// Whose environment it is.
#[derive(Clone, Debug)]
enum Rules {
    /// The broker's own.
    Here,
    /// The target's.
    Elsewhere { broker: Environment, scrubbed: bool },
}

/// Shells that take `-l -c`.
const LOGIN_SHELLS: [&str; 8] = ["bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

impl Place {
    /// This machine, for a broker of that environment.
    #[must_use]
    pub fn here(environment: Environment, folder: PathBuf) -> Self {
        let path = environment.filled("PATH");
        let on_path = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
        let bash = on_path
            .unwrap_or_default()
            .into_iter()
            .filter(|folder| folder.is_absolute())
            .chain(["/bin", "/usr/bin"].map(PathBuf::from))
            .map(|folder| folder.join("bash"))
            .find(|bash| bash.is_file());
        let login_shell = environment
            .filled("SHELL")
            .map(PathBuf::from)
            .into_iter()
            .chain(["/bin/bash", "/usr/bin/bash", "/bin/sh"].map(PathBuf::from))
            .find(|path| is_login_shell(path) && path.is_file());
        Self {
            home: environment.home().map(Path::to_path_buf),
            environment,
            folder,
            bash,
            login_shell,
            rules: Rules::Here,
        }
    }

    /// A target with variables of its own. `shell` is the account's; whether it is fit as a login shell is judged here.
    /// With `scrubbed`, `terminal` does not get secret names.
    #[must_use]
    pub fn elsewhere(
        environment: Environment,
        home: Option<PathBuf>,
        folder: PathBuf,
        bash: Option<PathBuf>,
        shell: Option<PathBuf>,
        broker: Environment,
        scrubbed: bool,
    ) -> Self {
        let login_shell = shell
            .filter(|shell| is_login_shell(shell))
            .or_else(|| bash.clone())
            .or_else(|| Some(PathBuf::from("/bin/sh")));
        Self {
            environment,
            home,
            folder,
            bash,
            login_shell,
            rules: Rules::Elsewhere { broker, scrubbed },
        }
    }

    /// Whether it is this machine.
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self.rules, Rules::Here)
    }

    /// What a cell gets.
    #[must_use]
    pub fn cell_environment(&self, rules: &PassRules) -> Built {
        match &self.rules {
            Rules::Here => self.environment.cell_environment(rules),
            Rules::Elsewhere { broker, .. } => self.environment.cell_elsewhere(broker, rules),
        }
    }

    /// What `terminal` gets.
    #[must_use]
    pub fn terminal_environment(&self, rules: &PassRules) -> Built {
        self.terminal_environment_of(&self.environment, rules)
    }

    /// What `terminal` gets of what a login shell there exported.
    #[must_use]
    pub fn login_environment(&self, exported: &Environment, rules: &PassRules) -> Built {
        let mut built = self.terminal_environment_of(exported, rules);
        if !self.is_here() {
            // A start-up file that sets PATH anew does not know what the image or the service had put there.
            let (own, login) = (self.environment.filled("PATH"), exported.filled("PATH"));
            if let Some(path) = merged(own, login) {
                built.variables.insert("PATH".into(), path);
            }
        }
        built
    }

    fn terminal_environment_of(&self, environment: &Environment, rules: &PassRules) -> Built {
        match &self.rules {
            Rules::Here => environment.terminal_environment(rules),
            Rules::Elsewhere { broker, scrubbed } => environment.terminal_elsewhere(broker, rules, *scrubbed),
        }
    }

    /// The values that must not come back, longest first. What a target's `terminal` gets to see is masked all the same:
    /// it was withheld from the script. So is what the broker withholds, should it get there some other way.
    #[must_use]
    pub fn masked_values(&self, cell: &Built, terminal: &Built, rules: &PassRules) -> Vec<String> {
        match &self.rules {
            Rules::Here => self.environment.masked_values(&[cell, terminal]),
            Rules::Elsewhere { broker, .. } => {
                let mut withheld = broker.cell_environment(rules);
                withheld.variables.clone_from(&cell.variables);
                let mut values = self.environment.masked_values(&[cell]);
                values.extend(broker.masked_values(&[&withheld]));
                values.sort_by_key(|value| std::cmp::Reverse(value.len()));
                values.dedup();
                values
            }
        }
    }

    /// `path` with a leading `~` replaced by the home there.
    #[must_use]
    pub fn expand_home(&self, path: &str) -> PathBuf {
        let Some(home) = &self.home else {
            return PathBuf::from(path);
        };
        match path.strip_prefix('~') {
            Some("") => home.clone(),
            Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(path),
        }
    }
}

fn is_login_shell(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
    path.is_absolute() && LOGIN_SHELLS.contains(&name)
}

/// The login shell's `PATH` behind those folders of the own one that it lacks.
fn merged(own: Option<&OsStr>, login: Option<&OsStr>) -> Option<std::ffi::OsString> {
    let (own, login) = (own?, login?);
    let known: Vec<PathBuf> = std::env::split_paths(login).collect();
    let lacking = std::env::split_paths(own).filter(|folder| !known.contains(folder));
    std::env::join_paths(lacking.chain(known.iter().cloned())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_shell_that_sets_path_anew_loses_nothing_of_the_images() {
        let image = Environment::from_iter([("PATH", "/opt/venv/bin:/usr/bin:/bin"), ("API_KEY", "abc-12345")]);
        let broker = Environment::from_iter([("HIS_TOKEN", "broker-secret-1")]);
        let place = Place::elsewhere(image, None, "/".into(), None, None, broker, false);
        let login = Environment::from_iter([("PATH", "/usr/local/bin:/usr/bin:/bin")]);
        let built = place.login_environment(&login, &PassRules::default());
        let path = built.variables.get(OsStr::new("PATH"));
        assert_eq!(path, Some(&"/opt/venv/bin:/usr/local/bin:/usr/bin:/bin".into()));
        let cell = place.cell_environment(&PassRules::default());
        let terminal = place.terminal_environment(&PassRules::default());
        let rules = PassRules::default();
        assert_eq!(
            place.masked_values(&cell, &terminal, &rules),
            ["broker-secret-1", "abc-12345"]
        );
    }

    #[test]
    fn only_a_shell_that_takes_its_options_is_a_login_shell() {
        let of = |shell: &str, bash: Option<&str>| {
            let place = Place::elsewhere(
                Environment::default(),
                Some("/home/bob".into()),
                "/".into(),
                bash.map(PathBuf::from),
                Some(shell.into()),
                Environment::default(),
                false,
            );
            assert_eq!(place.expand_home("~/a"), Path::new("/home/bob/a"));
            place.login_shell
        };
        assert_eq!(of("/usr/bin/zsh", None), Some("/usr/bin/zsh".into()));
        assert_eq!(of("/usr/sbin/nologin", Some("/bin/bash")), Some("/bin/bash".into()));
        assert_eq!(of("/bin/tcsh", None), Some("/bin/sh".into()));
    }
}
