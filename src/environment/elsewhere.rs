//! Environments on a target that is not this machine: its own variables are normal there, and of the
//! broker's none travels but what is named.

use super::build::{Built, PassRules, QUIET, WithheldReason, refusal};
use super::names::is_secret_name;
use super::snapshot::Environment;

/// Variables that make another interpreter of one, or one that does other things than run cells.
const UNFIT_FOR_KERNELS: [&str; 7] = [
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONOPTIMIZE",
    "PYTHONSAFEPATH",
];

impl Environment {
    /// The environment of a cell on the target whose variables these are: all but secret names, and what `rules` pass
    /// from there or, where it is not set there, from the `broker`. What would change the interpreter itself is left out.
    #[must_use]
    pub fn cell_elsewhere(&self, broker: &Self, rules: &PassRules) -> Built {
        let mut built = self.build(rules, &[], |name| {
            if is_secret_name(name) {
                Err(WithheldReason::SecretName)
            } else if UNFIT_FOR_KERNELS.contains(&name) {
                Err(WithheldReason::NotListed)
            } else {
                Ok(())
            }
        });
        add_passed(&mut built, broker, rules);
        built
    }

    /// The environment of `terminal` there: whole, for it is the target's and not ours, unless it is to be `scrubbed`
    /// of secret names.
    #[must_use]
    pub fn terminal_elsewhere(&self, broker: &Self, rules: &PassRules, scrubbed: bool) -> Built {
        if scrubbed {
            let mut built = self.cell_elsewhere(broker, rules);
            for (name, value) in QUIET {
                built.variables.insert(name.into(), value.into());
            }
            return built;
        }
        let mut built = self.build(rules, &QUIET, |_| Ok(()));
        // What looks like a credential of the broker is the target's own here.
        for withheld in std::mem::take(&mut built.withheld) {
            if let Some(value) = self.get(&withheld.name) {
                built.variables.insert(withheld.name, value.to_owned());
            }
        }
        built.dropped_hermes.clear();
        add_passed(&mut built, broker, rules);
        built
    }
}

/// Variables that are named and not set on the target come from the broker.
fn add_passed(built: &mut Built, broker: &Environment, rules: &PassRules) {
    let names = rules.env_passthrough.iter().chain(&rules.session_passthrough);
    for name in names.filter(|name| refusal(rules, name).is_none()) {
        if let Some(value) = broker.get(name) {
            built.variables.entry(name.into()).or_insert_with(|| value.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn target() -> Environment {
        Environment::from_iter([
            ("PATH", "/opt/bin:/bin"),
            ("DATABASE_URL", "postgres://db/app"),
            ("SECRET_KEY", "s3cret-s3cret"),
            ("MODAL_TOKEN_SECRET", "there-1234"),
            ("HERMES_OTHER", "there"),
            ("BOTH", "there"),
        ])
    }

    fn broker() -> Environment {
        Environment::from_iter([
            ("PATH", "/broker/bin"),
            ("AWS_SECRET", "broker-1234"),
            ("BOTH", "broker"),
            ("DEPLOY_TOKEN", "broker-5678"),
            ("MODAL_TOKEN_ID", "broker-id-1"),
        ])
    }

    fn value<'a>(built: &'a Built, name: &str) -> Option<&'a str> {
        built.variables.get(OsStr::new(name)).and_then(|value| value.to_str())
    }

    #[test]
    fn a_cell_gets_what_is_normal_there_less_secret_names() {
        let built = target().cell_elsewhere(&broker(), &PassRules::default());
        assert_eq!(value(&built, "PATH"), Some("/opt/bin:/bin"));
        assert_eq!(value(&built, "DATABASE_URL"), Some("postgres://db/app"));
        assert_eq!(value(&built, "HERMES_OTHER"), Some("there"));
        for name in ["SECRET_KEY", "MODAL_TOKEN_SECRET", "AWS_SECRET", "DEPLOY_TOKEN"] {
            assert_eq!(value(&built, name), None, "{name}");
        }
        assert_eq!(target().masked_values(&[&built]), ["s3cret-s3cret", "there-1234"]);
    }

    #[test]
    fn terminal_gets_it_whole_unless_it_is_scrubbed() {
        let whole = target().terminal_elsewhere(&broker(), &PassRules::default(), false);
        assert_eq!(value(&whole, "SECRET_KEY"), Some("s3cret-s3cret"));
        assert_eq!(value(&whole, "MODAL_TOKEN_SECRET"), Some("there-1234"));
        let scrubbed = target().terminal_elsewhere(&broker(), &PassRules::default(), true);
        assert_eq!(value(&scrubbed, "SECRET_KEY"), None);
        for built in [whole, scrubbed] {
            assert_eq!(value(&built, "PAGER"), Some("cat"));
            assert_eq!(value(&built, "AWS_SECRET"), None);
        }
    }

    #[test]
    fn a_named_variable_is_the_targets_where_it_has_one_else_the_brokers() {
        let rules = PassRules {
            env_passthrough: [
                "BOTH",
                "DEPLOY_TOKEN",
                "SECRET_KEY",
                "MODAL_TOKEN_ID",
                "MODAL_TOKEN_SECRET",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..PassRules::default()
        };
        let cell = target().cell_elsewhere(&broker(), &rules);
        let terminal = target().terminal_elsewhere(&broker(), &rules, false);
        for built in [&cell, &terminal] {
            assert_eq!(value(built, "BOTH"), Some("there"));
            assert_eq!(value(built, "DEPLOY_TOKEN"), Some("broker-5678"));
            assert_eq!(value(built, "SECRET_KEY"), Some("s3cret-s3cret"));
            assert_eq!(value(built, "MODAL_TOKEN_ID"), None);
            assert_eq!(built.refused.len(), 2);
        }
        assert_eq!(value(&cell, "MODAL_TOKEN_SECRET"), None);
        assert_eq!(value(&terminal, "MODAL_TOKEN_SECRET"), Some("there-1234"));
    }
}
