//! Which values must not appear in what comes back from a script.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::build::{Built, WithheldReason};
use super::names::is_secret_name;
use super::snapshot::Environment;

/// A value shorter than this (in bytes) is masked only where it is mixed, and never below [`SHORTEST`].
const LONG: usize = 16;

/// Below this many bytes a value is too likely an ordinary word.
const SHORTEST: usize = 8;

impl Environment {
    /// The values to mask, longest first: of every variable that is missing from one of `built` for its secret name or
    /// as a credential, as far as the value is distinctive and no variable of any of `built` has the same.
    #[must_use]
    pub fn masked_values(&self, built: &[&Built]) -> Vec<String> {
        let visible: BTreeSet<&OsString> = built.iter().flat_map(|built| built.variables.values()).collect();
        let withheld: BTreeSet<&OsString> = built
            .iter()
            .flat_map(|built| &built.withheld)
            .filter(|withheld| withheld.reason == WithheldReason::Credential || is_secret_name(&withheld.name))
            .map(|withheld| &withheld.name)
            .collect();
        let values: BTreeSet<&str> = withheld
            .into_iter()
            .filter_map(|name| self.get(name))
            .filter(|value| !visible.iter().any(|visible| visible.as_os_str() == *value))
            // Output is text by the time it is masked: a value that is none cannot be found in it.
            .filter_map(|value| value.to_str().map(str::trim))
            .filter(|value| is_distinctive(value))
            .collect();
        let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
        // A value that contains another must go first, or its rest stays readable.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values
    }
}

/// Whether a value is unlikely to occur in a text by chance.
fn is_distinctive(value: &str) -> bool {
    let mixed = value.chars().any(char::is_alphabetic) && value.chars().any(|c| !c.is_alphabetic());
    value.len() >= LONG || value.len() >= SHORTEST && mixed
}

#[cfg(test)]
mod tests {
    use super::super::build::PassRules;
    use super::*;

    fn masked(variables: &[(&str, &str)], passed: &[&str]) -> Vec<String> {
        let environment: Environment = variables.iter().copied().collect();
        let rules = PassRules {
            env_passthrough: passed.iter().map(ToString::to_string).collect(),
            ..PassRules::default()
        };
        let (cell, terminal) = (
            environment.cell_environment(&rules),
            environment.terminal_environment(&rules),
        );
        environment.masked_values(&[&cell, &terminal])
    }

    #[test]
    fn only_distinctive_values_of_secret_names_are_masked() {
        for (name, value, expected) in [
            ("API_KEY", "abcdef12", true),
            ("API_KEY", "abc-def-", true),
            ("API_KEY", "abcdef1", false),
            ("API_KEY", "abcdefgh", false),
            ("API_KEY", "12345678", false),
            ("API_KEY", "abcdefghijklmnop", true),
            ("API_KEY", "1234567890123456", true),
            ("POSTGRES_PASSWORD", "postgres", false),
            ("EDITOR", "abcdef12", false),
            ("DATABASE_URL", "postgres://user:pw@host/db", false),
            ("MODAL_TOKEN_SECRET", "as-abcdefgh", true),
            ("SSH_AUTH_SOCK", "/tmp/ssh-abc/agent.1", false),
            ("TOKENIZERS_PARALLELISM", "sometimes-false-sometimes", false),
        ] {
            let values = masked(&[(name, value)], &[]);
            assert_eq!(values.contains(&value.to_owned()), expected, "{name}={value}");
        }
    }

    #[test]
    fn a_value_that_is_visible_elsewhere_is_not_masked() {
        assert_eq!(
            masked(&[("API_KEY", "abc-12345"), ("CONDA_NAME", "abc-12345")], &[]),
            [""; 0]
        );
        assert_eq!(masked(&[("API_KEY", "abc-12345")], &["API_KEY"]), [""; 0]);
    }

    #[test]
    fn a_credential_is_masked_whatever_its_name() {
        let environment = Environment::from_iter([("SEARCH", "abc-12345"), ("OTHER", "def-12345")]);
        let rules = PassRules {
            protected: vec!["SEARCH".into()],
            ..PassRules::default()
        };
        let cell = environment.cell_environment(&rules);
        assert_eq!(environment.masked_values(&[&cell]), ["abc-12345"]);
    }

    #[test]
    fn the_longest_comes_first_and_each_once() {
        let values = masked(
            &[
                ("A_KEY", "abc-12345"),
                ("B_KEY", "abc-1234567"),
                ("C_KEY", "abc-12345\n"),
            ],
            &[],
        );
        assert_eq!(values, ["abc-1234567", "abc-12345"]);
    }
}
