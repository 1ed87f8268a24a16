//! Putting layers of settings on top of each other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Mode, Transport};
use super::error::{ConfigError, Origin};
use super::keys::{KEYS, variable};
use super::value::{Kind, Value};
use crate::environment::Environment;
use crate::suggest::nearest;

/// The values that somebody set, each with its origin. What is set later lies on top.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layers {
    values: BTreeMap<&'static str, (Value, Origin)>,
}

impl Layers {
    pub(super) fn set(&mut self, path: &'static str, value: Value, origin: Origin) {
        self.values.insert(path, (value, origin));
    }

    pub(super) fn get(&self, path: &str) -> Option<&(Value, Origin)> {
        self.values.get(path)
    }

    /// The text under a key, if one is set.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        match self.get(path) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// Lays the environment's variables on top. An empty variable counts as not set.
    ///
    /// # Errors
    /// A variable whose value is none of its key's kind.
    pub(super) fn add_variables(&mut self, environment: &Environment) -> Result<(), ConfigError> {
        for key in KEYS {
            let name = variable(key.path);
            let Some(value) = environment.filled(&name) else {
                continue;
            };
            let read = match value.to_str() {
                Some(text) if text.trim().is_empty() => continue,
                Some(text) => key.kind.read_text(text),
                None => Err("is not valid UTF-8".to_owned()),
            };
            let origin = Origin::Variable(name);
            match read {
                Ok(value) => self.set(key.path, value, origin),
                Err(problem) => {
                    return Err(ConfigError::Value {
                        origin,
                        key: key.path.to_owned(),
                        problem,
                    });
                }
            }
        }
        Ok(())
    }

    /// Lays the command line's flags on top.
    ///
    /// # Errors
    /// A target that is none, a path that is not UTF-8, and a limit of zero.
    pub(super) fn add_flags(&mut self, flags: &Flags) -> Result<(), ConfigError> {
        let bad = |flag, key: &str, problem: &str| ConfigError::Value {
            origin: Origin::Flag(flag),
            key: key.to_owned(),
            problem: problem.to_owned(),
        };
        if let Some(target) = &flags.target {
            let value = Kind::Target
                .read_text(target)
                .map_err(|problem| bad("--on", "target", &problem))?;
            self.set("target", value, Origin::Flag("--on"));
        }
        if let Some(mode) = flags.mode {
            self.set(
                "code_execution.mode",
                Value::Text(mode.to_string()),
                Origin::Flag("--mode"),
            );
        }
        if let Some(transport) = flags.transport {
            self.set(
                "code_execution.transport",
                Value::Text(transport.to_string()),
                Origin::Flag("--transport"),
            );
        }
        if let Some(timeout) = flags.timeout {
            if timeout.is_zero() {
                return Err(bad(
                    "--timeout",
                    "code_execution.timeout",
                    "is zero, but must be longer than zero",
                ));
            }
            self.set(
                "code_execution.timeout",
                Value::Duration(timeout),
                Origin::Flag("--timeout"),
            );
        }
        if let Some(calls) = flags.max_tool_calls {
            self.set(
                "code_execution.max_tool_calls",
                Value::Count(calls),
                Origin::Flag("--max-tool-calls"),
            );
        }
        for (flag, key, path) in [
            ("--cwd", "terminal.cwd", &flags.cwd),
            ("--python", "code_execution.python", &flags.python),
        ] {
            let Some(path) = path else { continue };
            let text = path.to_str().ok_or_else(|| bad(flag, key, "is not valid UTF-8"))?;
            if text.is_empty() {
                return Err(bad(flag, key, "is empty; write a path or leave the flag out"));
            }
            self.set(key, Value::Text(text.to_owned()), Origin::Flag(flag));
        }
        Ok(())
    }
}

/// What the command line gives; what is `None` stays as the lower layers have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--on`: the target.
    pub target: Option<String>,
    /// `--mode`.
    pub mode: Option<Mode>,
    /// `--transport`.
    pub transport: Option<Transport>,
    /// `--timeout`.
    pub timeout: Option<Duration>,
    /// `--max-tool-calls`.
    pub max_tool_calls: Option<u64>,
    /// `--cwd`: the session's working directory.
    pub cwd: Option<PathBuf>,
    /// `--python`: the interpreter.
    pub python: Option<PathBuf>,
}

/// Warnings for variables that look like settings and are none, as a misspelt one would have no effect unnoticed.
pub(super) fn unknown_variables(environment: &Environment) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(|key| variable(key.path)).collect();
    let sections = [
        "TALARIA_CODE_EXECUTION_",
        "TALARIA_TERMINAL_",
        "TALARIA_TOOLS_",
        "TALARIA_WEB_",
    ];
    environment
        .iter()
        .filter_map(|(name, _)| name.to_str())
        .filter(|name| sections.iter().any(|section| name.starts_with(section)))
        .filter(|name| !known.iter().any(|known| known == name))
        .map(|name| match nearest(name, known.iter().map(String::as_str)) {
            Some(right) => format!("the variable {name} sets nothing; did you mean {right}?"),
            None => format!("the variable {name} sets nothing; `talaria config` lists what can be set"),
        })
        .collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn the_later_layer_wins_and_knows_its_origin() {
        let mut layers = Layers::default();
        layers.set("terminal.cwd", Value::Text("/file".into()), Origin::Default);
        let environment = Environment::from_iter([
            ("TALARIA_TERMINAL_CWD", "/variable"),
            ("TALARIA_CODE_EXECUTION_MODE", ""),
            ("TALARIA_TERMINAL_ENV_PASSTHROUGH", "A, B"),
        ]);
        layers.add_variables(&environment).unwrap();
        assert_eq!(layers.text("terminal.cwd"), Some("/variable"));
        assert_eq!(layers.get("code_execution.mode"), None);
        assert_eq!(
            layers.get("terminal.env_passthrough"),
            Some(&(
                Value::List(vec!["A".into(), "B".into()]),
                Origin::Variable("TALARIA_TERMINAL_ENV_PASSTHROUGH".into())
            ))
        );
        layers
            .add_flags(&Flags {
                cwd: Some("/flag".into()),
                ..Flags::default()
            })
            .unwrap();
        assert_eq!(
            layers.get("terminal.cwd"),
            Some(&(Value::Text("/flag".into()), Origin::Flag("--cwd")))
        );
    }

    #[test]
    fn wrong_values_name_the_variable_or_the_flag() {
        let environment = Environment::from_iter([("TALARIA_CODE_EXECUTION_TIMEOUT", "0")]);
        let message = Layers::default().add_variables(&environment).unwrap_err().to_string();
        assert!(
            message.contains("the variable TALARIA_CODE_EXECUTION_TIMEOUT") && message.contains("zero"),
            "{message}"
        );
        for (flags, expected) in [
            (
                Flags {
                    target: Some("dokcer:x".into()),
                    ..Flags::default()
                },
                "the flag --on",
            ),
            (
                Flags {
                    timeout: Some(Duration::ZERO),
                    ..Flags::default()
                },
                "the flag --timeout",
            ),
            (
                Flags {
                    cwd: Some(PathBuf::new()),
                    ..Flags::default()
                },
                "the flag --cwd",
            ),
        ] {
            let message = Layers::default().add_flags(&flags).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn misspelt_variables_are_noticed() {
        let environment = Environment::from_iter([
            ("TALARIA_CODE_EXECUTION_TIMOUT", "5"),
            ("TALARIA_CODE_EXECUTION_TIMEOUT", "5"),
            ("TALARIA_LOG", "debug"),
        ]);
        assert_eq!(
            unknown_variables(&environment),
            ["the variable TALARIA_CODE_EXECUTION_TIMOUT sets nothing; did you mean TALARIA_CODE_EXECUTION_TIMEOUT?"]
        );
    }
}
