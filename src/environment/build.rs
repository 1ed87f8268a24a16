//! Building the environments of cells and of `terminal` on this machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use super::names::{
    is_broker_credential, is_open_to_terminal, is_other_hermes, is_proxy, is_safe_for_cells, is_secret_name,
    without_login,
};
use super::snapshot::Environment;

/// What every command gets so that none of them pages, asks or draws: there is no one to answer. And so that Python's
/// programs print as they do on a terminal, in order and at once: what a killed one has not printed yet is lost.
pub(super) const QUIET: [(&str, &str); 13] = [
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("GH_PAGER", "cat"),
    ("AWS_PAGER", ""),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GH_PROMPT_DISABLED", "1"),
    ("PIP_NO_INPUT", "1"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("TERM", "dumb"),
    ("PYTHONUNBUFFERED", "1"),
];

/// What passes beside the rules' defaults, and what never does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassRules {
    /// Exact names from the configuration.
    pub env_passthrough: Vec<String>,
    /// Exact names that the caller registered for one session.
    pub session_passthrough: Vec<String>,
    /// Variables that the caller gave a value (`--env NAME=VALUE`).
    pub set: BTreeMap<String, OsString>,
    /// Names that an embedding agent declares to be its credentials; they are treated as the broker's own.
    pub protected: Vec<String>,
}

impl PassRules {
    fn names(&self, name: &str) -> bool {
        let mut passed = self.env_passthrough.iter().chain(&self.session_passthrough);
        passed.any(|passed| passed == name) || self.set.contains_key(name)
    }

    pub(super) fn is_credential(&self, name: &str) -> bool {
        is_broker_credential(name) || self.protected.iter().any(|protected| protected == name)
    }
}

/// Why a variable was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// A credential of the broker or of the agent around it.
    Credential,
    /// Its name contains a secret word.
    SecretName,
    /// It belongs to the `HERMES_` family and is none of those that pass.
    Hermes,
    /// It is not on the list of what a cell gets.
    NotListed,
}

impl fmt::Display for WithheldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credential => "a credential of the broker; it cannot be passed",
            Self::SecretName => "its name looks secret; env_passthrough passes it",
            Self::Hermes => "a HERMES_ variable that is not passed by default; env_passthrough passes it",
            Self::NotListed => "not on the safe list; env_passthrough passes it",
        })
    }
}

/// A variable that was left out. Only its name is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The variable's name.
    pub name: OsString,
    /// Why it was left out.
    pub reason: WithheldReason,
}

/// An environment, and the record of what is not in it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Built {
    /// The variables to start the process with; nothing else is inherited.
    pub variables: BTreeMap<OsString, OsString>,
    /// The `HERMES_*` names among what was left out.
    pub dropped_hermes: Vec<String>,
    /// Everything of the broker's environment that was left out.
    pub withheld: Vec<Withheld>,
    /// One sentence for each name that was asked for and may not pass.
    pub refused: Vec<String>,
}

impl Built {
    /// The line for the debug log that names the dropped `HERMES_*` variables; `None` when none was dropped.
    #[must_use]
    pub fn dropped_hermes_line(&self) -> Option<String> {
        (!self.dropped_hermes.is_empty()).then(|| {
            format!(
                "execute_code: dropped {} non-allowlisted HERMES_* var(s): {}; add them to terminal.env_passthrough to pass them",
                self.dropped_hermes.len(),
                self.dropped_hermes.join(", ")
            )
        })
    }
}

/// Values may be secret (a passed credential, a proxy's login), so only names are shown.
impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Built")
            .field("variables", &self.variables.keys())
            .field("dropped_hermes", &self.dropped_hermes)
            .field("withheld", &self.withheld)
            .field("refused", &self.refused)
            .finish()
    }
}

impl Environment {
    /// The environment of a cell on this machine: the safe list, what the rules pass, and nothing else.
    #[must_use]
    pub fn cell_environment(&self, rules: &PassRules) -> Built {
        let admit = |name: &str| {
            if is_safe_for_cells(name) {
                Ok(())
            } else if is_other_hermes(name) && !is_secret_name(name) {
                Err(WithheldReason::Hermes)
            } else if is_secret_name(name) {
                Err(WithheldReason::SecretName)
            } else {
                Err(WithheldReason::NotListed)
            }
        };
        let mut built = self.build(rules, &[], admit);
        for (name, value) in &mut built.variables {
            // Who names a proxy, or gives it a value, wants it as it is.
            if name.to_str().is_some_and(|name| is_proxy(name) && !rules.names(name)) {
                *value = without_login(&value.to_string_lossy()).into();
            }
        }
        built
    }

    /// The environment of `terminal` on this machine: everything but secret names and the `HERMES_*` that are not
    /// passed, and with what keeps programs from paging and asking.
    #[must_use]
    pub fn terminal_environment(&self, rules: &PassRules) -> Built {
        self.build(rules, &QUIET, |name| {
            if !is_open_to_terminal(name) {
                Err(WithheldReason::SecretName)
            } else if is_other_hermes(name) {
                Err(WithheldReason::Hermes)
            } else {
                Ok(())
            }
        })
    }

    /// What `admit` lets through, then `extra`, then what was asked for by name, then what was given a value:
    /// the later wins.
    pub(super) fn build(
        &self,
        rules: &PassRules,
        extra: &[(&str, &str)],
        admit: impl Fn(&str) -> Result<(), WithheldReason>,
    ) -> Built {
        let mut built = Built::default();
        let mut named: Vec<&str> = Vec::new();
        for name in rules.env_passthrough.iter().chain(&rules.session_passthrough) {
            match refusal(rules, name) {
                None => named.push(name),
                Some(reason) if !built.refused.contains(&reason) => built.refused.push(reason),
                Some(_) => {}
            }
        }
        for (name, value) in self.iter() {
            // A name that is no text matches no list by itself; lossily read it is judged like any other.
            let text = name.to_string_lossy();
            let verdict = if rules.is_credential(&text) {
                Err(WithheldReason::Credential)
            } else if named.contains(&text.as_ref()) {
                Ok(())
            } else {
                admit(&text)
            };
            match verdict {
                Ok(()) => {
                    built.variables.insert(name.to_owned(), value.to_owned());
                }
                Err(reason) => {
                    if is_other_hermes(&text) {
                        built.dropped_hermes.push(text.into_owned());
                    }
                    built.withheld.push(Withheld {
                        name: name.to_owned(),
                        reason,
                    });
                }
            }
        }
        for (name, value) in extra {
            if !named.contains(name) || self.get(name).is_none() {
                built.variables.insert(name.into(), value.into());
            }
        }
        for (name, value) in &rules.set {
            match refusal(rules, name) {
                None => {
                    built.variables.insert(name.into(), value.clone());
                }
                Some(reason) => built.refused.push(reason),
            }
        }
        built
    }
}

/// Why a name that was asked for may not pass; `None` when it may.
pub(super) fn refusal(rules: &PassRules, name: &str) -> Option<String> {
    if rules.is_credential(name) {
        return Some(format!(
            "`{name}` is a credential of the broker and is never passed to scripts; give the script a variable of its own instead"
        ));
    }
    if name.contains(['*', '?', '[']) {
        return Some(format!(
            "`{name}` is a pattern; only exact variable names can be passed, so name each variable"
        ));
    }
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some(format!(
            "`{}` is no name of a variable; write the name alone",
            name.escape_debug()
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker() -> Environment {
        Environment::from_iter([
            ("PATH", "/bin"),
            ("HOME", "/home/bob"),
            ("TERM", "xterm"),
            ("EDITOR", "vi"),
            ("LC_ALL", "C"),
            ("CONDA_TOKEN", "conda"),
            ("GITHUB_TOKEN", "gh"),
            ("MODAL_TOKEN_SECRET", "modal"),
            ("AGENT_DATABASE", "postgres://x"),
            ("HTTP_PROXY", "http://bob:pw@proxy:3128"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("HERMES_HOME", "/home/bob/.hermes"),
            ("HERMES_KANBAN_DB", "kanban"),
            ("HERMES_API_KEY", "hermes"),
        ])
    }

    fn passthrough(names: &[&str]) -> PassRules {
        PassRules {
            env_passthrough: names.iter().map(ToString::to_string).collect(),
            ..PassRules::default()
        }
    }

    fn shown(built: &Built) -> Vec<String> {
        built
            .variables
            .iter()
            .map(|(k, v)| format!("{}={}", k.to_string_lossy(), v.to_string_lossy()))
            .collect()
    }

    fn reason(built: &Built, name: &str) -> Option<WithheldReason> {
        built
            .withheld
            .iter()
            .find(|withheld| withheld.name == name)
            .map(|withheld| withheld.reason)
    }

    #[test]
    fn a_cell_gets_the_safe_list_and_nothing_else() {
        let built = broker().cell_environment(&PassRules::default());
        assert_eq!(
            shown(&built),
            [
                "HERMES_HOME=/home/bob/.hermes",
                "HOME=/home/bob",
                "HTTP_PROXY=http://proxy:3128",
                "LC_ALL=C",
                "PATH=/bin",
                "TERM=xterm"
            ]
        );
        assert_eq!(reason(&built, "EDITOR"), Some(WithheldReason::NotListed));
        assert_eq!(reason(&built, "SSH_AUTH_SOCK"), Some(WithheldReason::SecretName));
        assert_eq!(reason(&built, "CONDA_TOKEN"), Some(WithheldReason::SecretName));
        assert_eq!(reason(&built, "HERMES_KANBAN_DB"), Some(WithheldReason::Hermes));
        assert_eq!(reason(&built, "MODAL_TOKEN_SECRET"), Some(WithheldReason::Credential));
        assert_eq!(built.refused, [""; 0]);
    }

    #[test]
    fn terminal_gets_everything_but_secrets_and_other_hermes_names() {
        let built = broker().terminal_environment(&PassRules::default());
        let names: Vec<_> = built.variables.keys().filter_map(|name| name.to_str()).collect();
        for name in ["PATH", "EDITOR", "SSH_AUTH_SOCK", "AGENT_DATABASE", "HERMES_HOME"] {
            assert!(names.contains(&name), "{name}");
        }
        for name in [
            "GITHUB_TOKEN",
            "CONDA_TOKEN",
            "MODAL_TOKEN_SECRET",
            "HERMES_KANBAN_DB",
            "HERMES_API_KEY",
        ] {
            assert!(!names.contains(&name), "{name}");
        }
        let shown = shown(&built);
        for expected in [
            "TERM=dumb",
            "PAGER=cat",
            "GIT_TERMINAL_PROMPT=0",
            "HTTP_PROXY=http://bob:pw@proxy:3128",
        ] {
            assert!(shown.iter().any(|line| line == expected), "{expected}");
        }
    }

    #[test]
    fn a_named_variable_passes_though_it_looks_secret() {
        let mut rules = passthrough(&["GITHUB_TOKEN", "HERMES_KANBAN_DB", "TERM", "HTTP_PROXY", "NOT_SET"]);
        rules.session_passthrough.push("HERMES_API_KEY".into());
        for built in [broker().cell_environment(&rules), broker().terminal_environment(&rules)] {
            let shown = shown(&built);
            for expected in [
                "GITHUB_TOKEN=gh",
                "HERMES_KANBAN_DB=kanban",
                "HERMES_API_KEY=hermes",
                "TERM=xterm",
                "HTTP_PROXY=http://bob:pw@proxy:3128",
            ] {
                assert!(shown.iter().any(|line| line == expected), "{expected} in {shown:?}");
            }
            assert_eq!((built.refused.len(), built.dropped_hermes_line()), (0, None));
        }
    }

    #[test]
    fn credentials_never_pass_and_the_refusal_names_them() {
        let mut rules = passthrough(&[
            "MODAL_TOKEN_SECRET",
            "AGENT_DATABASE",
            "FOO_*",
            "A=B",
            "MODAL_TOKEN_SECRET",
        ]);
        rules.protected.push("AGENT_DATABASE".into());
        rules.set.insert("BRAVE_API_KEY".into(), "mine".into());
        for built in [broker().cell_environment(&rules), broker().terminal_environment(&rules)] {
            for name in ["MODAL_TOKEN_SECRET", "AGENT_DATABASE", "BRAVE_API_KEY"] {
                assert!(!built.variables.contains_key(&OsString::from(name)), "{name}");
                assert!(built.refused.iter().any(|reason| reason.contains(name)), "{name}");
            }
            assert_eq!(built.refused.len(), 5);
        }
    }

    #[test]
    fn a_given_value_wins_over_everything() {
        let mut rules = passthrough(&["TERM"]);
        rules.set.insert("TERM".into(), "vt100".into());
        rules.set.insert("MY_TOKEN".into(), "t".into());
        for built in [broker().cell_environment(&rules), broker().terminal_environment(&rules)] {
            let shown = shown(&built);
            assert!(
                shown.contains(&"TERM=vt100".to_owned()) && shown.contains(&"MY_TOKEN=t".to_owned()),
                "{shown:?}"
            );
        }
    }

    #[test]
    fn dropped_hermes_names_make_one_line() {
        let line = broker().cell_environment(&PassRules::default()).dropped_hermes_line();
        assert_eq!(
            line.as_deref(),
            Some(
                "execute_code: dropped 2 non-allowlisted HERMES_* var(s): HERMES_API_KEY, HERMES_KANBAN_DB; \
                 add them to terminal.env_passthrough to pass them"
            )
        );
    }
}
