//! Putting layers of settings on top of each other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::approval::{TOOL_ACTIONS, over};
use super::choice::{Mode, Transport};
use super::error::{ConfigError, Origin};
use super::keys::{KEYS, find, variable};
use super::value::{Kind, Value};
use crate::approval::Action;
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
                Ok(value) if key.path == TOOL_ACTIONS => {
                    let value = over(self.get(key.path).map(|(below, _)| below), value);
                    self.set(key.path, value, origin);
                }
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
        if !flags.ask.is_empty() {
            let asked = flags
                .ask
                .iter()
                .map(|tool| (tool.clone(), Action::Ask.as_str().to_owned()));
            let value = over(
                self.get(TOOL_ACTIONS).map(|(below, _)| below),
                Value::Map(asked.collect()),
            );
            self.set(TOOL_ACTIONS, value, Origin::Flag("--ask"));
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
    /// `--ask`: tools about whose calls somebody is asked.
    pub ask: Vec<String>,
}

/// What all our variables begin with.
const OURS: &str = "TALARIA_";

/// Our variables that are no settings.
const OTHERS: [&str; 2] = ["TALARIA_CONFIG", "TALARIA_LOG"];

/// Warnings for variables that look like settings and are none, as a misspelt one would have no effect unnoticed. One
/// that resembles no setting and is in none of their sections may mean something to another program.
pub(super) fn unknown_variables(environment: &Environment) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(|key| variable(key.path)).collect();
    environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value.to_str().unwrap_or_default())))
        .filter(|(name, _)| !OTHERS.contains(name) && !known.iter().any(|known| known == name))
        .filter_map(|(name, value)| {
            let rest = name.strip_prefix(OURS)?;
            let advice = match meant(rest, value) {
                Some(right) => format!("did you mean {right}?"),
                None if section(rest).is_some() => "`talaria config` lists what can be set".to_owned(),
                None => return None,
            };
            Some(format!("the variable {name} sets nothing; {advice}"))
        })
        .collect()
}

/// The section of keys whose variables begin like this one, which may be its very name; the innermost.
fn section(rest: &str) -> Option<&'static str> {
    let sections = KEYS
        .iter()
        .filter_map(|key| key.path.rsplit_once('.'))
        .map(|(section, _)| section);
    let with_outer = sections.flat_map(|section| [Some(section), section.split_once('.').map(|(outer, _)| outer)]);
    with_outer
        .flatten()
        .filter(|section| {
            let variable = variable(section);
            let left = variable.strip_prefix(OURS).and_then(|start| rest.strip_prefix(start));
            left.is_some_and(|left| left.is_empty() || left.starts_with('_'))
        })
        .max_by_key(|section| section.len())
}

/// The variable that was meant, by its name without our prefix: the one of a section's provider where the section alone
/// is named, one of nearly that name, or one whose last part is that.
fn meant(rest: &str, value: &str) -> Option<String> {
    let provider = section(rest)
        .filter(|section| variable(section).strip_prefix(OURS) == Some(rest))
        .and_then(|section| find(&format!("{section}.provider")));
    if let Some(provider) = provider {
        // Only a word that is known is repeated: another may be a key.
        let word = provider.kind.read_text(value).map(|_| format!("={}", value.trim()));
        return Some(variable(provider.path) + &word.unwrap_or_default());
    }
    // After the flag; the script would run where it was not meant to.
    if rest == "ON" {
        return Some(variable("target"));
    }
    let of_key = |path: &str| variable(path).split_off(OURS.len());
    let whole: Vec<String> = KEYS
        .iter()
        .map(|key| of_key(key.path))
        .chain(OTHERS.map(|name| name[OURS.len()..].to_owned()))
        .collect();
    if let Some(right) = nearest(rest, whole.iter().map(String::as_str)) {
        return Some(format!("{OURS}{right}"));
    }
    let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
    // Switches are named by common words: of those, only the very name counts.
    let is_meant = |key: &&super::keys::Key| key.kind != Kind::Switch || variable(last(key.path)) == variable(rest);
    let right = nearest(rest, KEYS.iter().filter(is_meant).map(|key| last(key.path)))?;
    KEYS.iter()
        .find(|key| last(key.path) == right)
        .map(|key| variable(key.path))
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
        let environment = Environment::from_iter([("TALARIA_TOOLS_DISABLED", "patch, raed_file")]);
        let message = Layers::default().add_variables(&environment).unwrap_err().to_string();
        assert!(
            message.starts_with("the variable TALARIA_TOOLS_DISABLED: `tools.disabled` ")
                && message.ends_with("did you mean `read_file`?"),
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
        for (name, value, advice) in [
            (
                "TALARIA_CODE_EXECUTION_TIMOUT",
                "5",
                "did you mean TALARIA_CODE_EXECUTION_TIMEOUT?",
            ),
            ("TALARIA_TIMEOUT", "5", "did you mean TALARIA_CODE_EXECUTION_TIMEOUT?"),
            ("TALARIA_TRAGET", "ssh:build1", "did you mean TALARIA_TARGET?"),
            ("TALARIA_ON", "ssh:build1", "did you mean TALARIA_TARGET?"),
            ("TALARIA_CONFG", "/x", "did you mean TALARIA_CONFIG?"),
            (
                "TALARIA_WEB_SEARCH",
                "brave",
                "did you mean TALARIA_WEB_SEARCH_PROVIDER=brave?",
            ),
            (
                "TALARIA_WEB_EXTRACT",
                "BSA-s3cret",
                "did you mean TALARIA_WEB_EXTRACT_PROVIDER?",
            ),
            ("TALARIA_WEB", "brave", "`talaria config` lists what can be set"),
            (
                "TALARIA_TERMINAL_COLOUR_OF_TEXT",
                "red",
                "`talaria config` lists what can be set",
            ),
        ] {
            assert_eq!(
                unknown_variables(&Environment::from_iter([(name, value)])),
                [format!("the variable {name} sets nothing; {advice}")]
            );
        }
        for (name, value) in [
            ("TALARIA_CODE_EXECUTION_TIMEOUT", "5"),
            ("TALARIA_LOG", "debug"),
            ("TALARIA_WEBSITE_BUILD", "on"),
            ("TALARIA_TEST_TARGETS", "local"),
            ("TALARIA_REQUIRE", "docker"),
        ] {
            assert_eq!(
                unknown_variables(&Environment::from_iter([(name, value)])),
                [""; 0],
                "{name}"
            );
        }
    }
}
