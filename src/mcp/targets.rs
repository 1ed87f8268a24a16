//! The targets that a client may choose among.

use crate::config::Config;
use crate::environment::Environment;
use crate::session::SessionOptions;

/// Where scripts of clients may run: the default target and those that the configuration names, or any.
pub struct Targets {
    config: Config,
    environment: Environment,
    names: Vec<String>,
    is_open: bool,
}

impl Targets {
    /// The targets of a configuration. `is_open`: clients may also name any other, as a user on the command line may.
    #[must_use]
    pub fn new(config: Config, environment: Environment, is_open: bool) -> Self {
        let default = config.target.to_string();
        let others = config.targets.keys().filter(|name| **name != default).cloned();
        let names = std::iter::once(default.clone()).chain(others).collect();
        Self {
            config,
            environment,
            names,
            is_open,
        }
    }

    /// Their names, the default one first.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether clients may name others.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Options of a session on a target, the default one when none is named.
    ///
    /// # Errors
    /// It is none of those that clients may choose, or it cannot be opened: a sentence for the client.
    pub(super) fn options(&self, target: Option<&str>) -> Result<SessionOptions, String> {
        let spec = match target {
            None => self.config.target.clone(),
            Some(name) if self.is_open || self.names.iter().any(|known| known == name) => {
                name.parse().map_err(|error| format!("{error}"))?
            }
            Some(name) => {
                let shown: String = name.chars().take(100).collect();
                return Err(format!(
                    "the target {shown:?} is not offered here; choose one of {}",
                    self.names.join(", ")
                ));
            }
        };
        let resolved = self.config.resolve(&spec).map_err(|error| error.to_string())?;
        SessionOptions::from_config(&self.config, &resolved, &self.environment).map_err(|error| error.to_string())
    }
}
