//! The kinds of value a key can take, and reading them from a file's node or from a variable's text.

use std::fmt;
use std::time::Duration;

use super::approval::check_tool;
use super::choice::position;
use super::file::{Content, Node};
use super::hosts::HostPattern;
use crate::approval::Action;
use crate::environment::is_secret_name;
use crate::limits::{format_duration, parse_duration};
use crate::target::TargetSpec;

/// The value of a setting.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// On or off.
    Switch(bool),
    /// A length of time.
    Duration(Duration),
    /// A whole number.
    Count(u64),
    /// A text: a path, a name, one of a few words.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
    /// Names with texts, in the order of the file.
    Map(Vec<(String, String)>),
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// `on`, `off` and their synonyms.
    Switch,
    /// Seconds or a text such as `5m`.
    Duration,
    /// A whole number, and the least that makes sense.
    Count { min: u64 },
    /// The number of a port.
    Port,
    /// A text; a number or a switch is a slip.
    Text,
    /// A text, number or switch, kept as written.
    Scalar,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A target.
    Target,
    /// A list of texts.
    List,
    /// A list of some of these words.
    Some(&'static [&'static str]),
    /// Names with scalar values.
    Map,
    /// An `http` or `https` address without user and password.
    Url,
    /// The name of an environment variable.
    VariableName,
    /// A list of host names, addresses and networks.
    Hosts,
    /// What becomes of the calls of tools, by their names.
    Actions,
}

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BadValue {
    /// What is wrong; reads after the key.
    pub(super) problem: String,
    /// The line that is to blame.
    pub(super) line: u64,
}

const ON: [&str; 4] = ["on", "true", "yes", "1"];
const OFF: [&str; 4] = ["off", "false", "no", "0"];

impl Kind {
    /// What is right, to stand after "must be".
    fn wanted(self) -> String {
        match self {
            Self::Switch => "`on` or `off`".to_owned(),
            Self::Duration => "a duration such as 300, 90s, 5m or 8h".to_owned(),
            Self::Count { min } => format!("a whole number from {min}"),
            Self::Port => "a port from 1 to 65535".to_owned(),
            Self::Text => "a text".to_owned(),
            Self::Scalar => "a single value".to_owned(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Target => "a target such as `local`".to_owned(),
            Self::List => "a list such as [A, B]".to_owned(),
            Self::Some(words) => format!("a list of some of {}", words.join(", ")),
            Self::Map => "a mapping such as {NAME: value}".to_owned(),
            Self::Url => "an address such as https://search.example.org".to_owned(),
            Self::VariableName => "the name of a variable, such as BRAVE_API_KEY".to_owned(),
            Self::Hosts => "a list such as [wiki.corp, 10.1.0.0/16]".to_owned(),
            Self::Actions => "a mapping such as {write_file: ask, terminal: deny}".to_owned(),
        }
    }

    /// Reads a text, as a variable gives it: lists by comma, mappings as `NAME=value` by comma. The text is not empty.
    pub(super) fn read_text(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let is_wrong = || format!("is `{text}`, but must be {}", self.wanted());
        let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
        match self {
            Self::Switch => {
                let word = text.to_ascii_lowercase();
                match (ON.contains(&word.as_str()), OFF.contains(&word.as_str())) {
                    (true, _) => Ok(Value::Switch(true)),
                    (_, true) => Ok(Value::Switch(false)),
                    _ => Err(is_wrong()),
                }
            }
            Self::Duration => parse_duration(text)
                .map(Value::Duration)
                .map_err(|error| format!("has a wrong value: {error}")),
            Self::Count { min } => match text.parse::<u64>() {
                Ok(count) if count >= min => Ok(Value::Count(count)),
                _ => Err(is_wrong()),
            },
            Self::Port => match text.parse::<u16>() {
                Ok(port) if port > 0 => Ok(Value::Count(port.into())),
                _ => Err(is_wrong()),
            },
            Self::Text | Self::Scalar => Ok(Value::Text(text.to_owned())),
            Self::Choice(words) => position(text, words)
                .map(|index| Value::Text(words[index].to_owned()))
                .map_err(|error| format!("has a wrong value: {error}")),
            Self::Target => TargetSpec::parse(text)
                .map(|spec| Value::Text(spec.to_string()))
                .map_err(|error| format!("has a wrong value: {error}")),
            Self::List => Ok(Value::List(items().map(str::to_owned).collect())),
            Self::Some(_) | Self::Hosts => {
                let items: Vec<String> = items().map(str::to_owned).collect();
                items.iter().try_for_each(|item| self.check_item(item))?;
                Ok(Value::List(items))
            }
            Self::Map => items()
                .map(|item| {
                    item.split_once('=')
                        .map(|(name, value)| (name.to_owned(), value.to_owned()))
                })
                .collect::<Option<_>>()
                .map(Value::Map)
                .ok_or_else(|| format!("is `{text}`, but must be a list such as NAME=value,NAME=value")),
            Self::Actions => {
                let pairs = items().map(|item| {
                    let (tool, word) = item.split_once('=').ok_or_else(|| {
                        format!("is `{text}`, but must be a list such as write_file=ask,terminal=deny")
                    })?;
                    let (tool, word) = (tool.trim(), word.trim());
                    let checked = check_tool(tool)
                        .and_then(|()| position(word, Action::WORDS).map_err(|error| error.to_string()));
                    checked.map_err(|error| format!("holds a wrong value: {error}"))?;
                    Ok((tool.to_owned(), word.to_owned()))
                });
                pairs.collect::<Result<_, String>>().map(Value::Map)
            }
            Self::Url => match web_address(text) {
                Ok(()) => Ok(Value::Text(text.trim_end_matches('/').to_owned())),
                Err(problem) => Err(problem.to_owned()),
            },
            // What stands there instead of a name may be the secret itself, so it is not repeated.
            Self::VariableName if is_variable_name(text) => Ok(Value::Text(text.to_owned())),
            Self::VariableName => Err(format!("must be {}, and not the key itself", self.wanted())),
        }
    }

    /// Reads a node of a file. Nothing, and an empty text, count as not set.
    pub(super) fn read_node(self, node: &Node) -> Result<Option<Value>, BadValue> {
        let bad = |problem: String| BadValue {
            problem,
            line: node.line,
        };
        let is_wrong = || bad(format!("is {}, but must be {}", node.content.describe(), self.wanted()));
        if matches!(&node.content, Content::Text(text) if text.trim().is_empty()) || node.content == Content::Null {
            return Ok(None);
        }
        let value = match (self, &node.content) {
            (Self::List | Self::Some(_) | Self::Hosts, Content::List(items)) => {
                let mut texts = Vec::new();
                for item in items {
                    let bad = |problem| BadValue {
                        problem,
                        line: item.line,
                    };
                    let Content::Text(text) = &item.content else {
                        let kind = item.content.describe();
                        return Err(bad(format!("holds {kind}, but every item must be a text")));
                    };
                    self.check_item(text).map_err(bad)?;
                    texts.push(text.clone());
                }
                Value::List(texts)
            }
            (Self::Map, Content::Map(entries)) => Value::Map(
                entries
                    .iter()
                    .map(|entry| match scalar(&entry.value.content) {
                        Some(text) => Ok((entry.key.clone(), text.to_owned())),
                        None => Err(BadValue {
                            problem: format!(
                                "holds `{}`, which is {}, but must be a single value",
                                entry.key,
                                entry.value.content.describe()
                            ),
                            line: entry.line,
                        }),
                    })
                    .collect::<Result<_, _>>()?,
            ),
            (Self::List | Self::Some(_) | Self::Hosts | Self::Map | Self::Actions, _)
            | (_, Content::List(_) | Content::Map(_)) => {
                return Err(is_wrong());
            }
            // An unquoted number or switch is no text: `python: 3.12` is a version, where a path is wanted.
            (
                Self::Text | Self::Choice(_) | Self::Target | Self::Url | Self::VariableName,
                Content::Number(_) | Content::Bool(_),
            )
            | (Self::Duration | Self::Count { .. } | Self::Port, Content::Bool(_)) => return Err(is_wrong()),
            (_, content) => self.read_text(scalar(content).unwrap_or_default()).map_err(bad)?,
        };
        Ok(Some(value))
    }

    /// Whether a text can be an item of the list that this kind is.
    fn check_item(self, item: &str) -> Result<(), String> {
        let checked = match self {
            Self::Some(words) => position(item, words).map(drop).map_err(|error| error.to_string()),
            Self::Hosts => item.parse::<HostPattern>().map(drop).map_err(|error| error.to_string()),
            _ => Ok(()),
        };
        checked.map_err(|error| format!("holds a wrong value: {error}"))
    }
}

/// The text of a scalar; nothing is an empty text.
fn scalar(content: &Content) -> Option<&str> {
    match content {
        Content::Text(text) | Content::Bool(text) | Content::Number(text) => Some(text),
        Content::Null => Some(""),
        Content::List(_) | Content::Map(_) => None,
    }
}

/// Why a text is no address that web requests can start from. The problem never repeats the text, which may hold a
/// password.
pub(crate) fn web_address(text: &str) -> Result<(), &'static str> {
    let url = url::Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or("must be an address such as https://search.example.org")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or password; put `user:password` into a variable and name it in api_key_env");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must be the address alone, without `?` or `#` and what follows");
    }
    Ok(())
}

/// Lower case is not taken: a key that stands where its variable's name should be would else be told in messages.
fn is_variable_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

impl Value {
    /// The value as it may be printed, in the notation of a file. Values under secret names are hidden.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Switch(on) => if *on { "on" } else { "off" }.to_owned(),
            Self::Duration(duration) => format_duration(*duration),
            Self::Count(count) => count.to_string(),
            Self::Text(text) => text.clone(),
            Self::List(items) => format!("[{}]", items.join(", ")),
            Self::Map(entries) => {
                let shown: Vec<_> = entries
                    .iter()
                    .map(|(name, value)| format!("{name}: {}", if is_secret_name(name) { HIDDEN } else { value }))
                    .collect();
                format!("{{{}}}", shown.join(", "))
            }
        }
    }
}

/// As [`Value::shown`]: what is debugged ends in logs, where a secret has no place.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", self.shown())
    }
}

const HIDDEN: &str = "***";

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::path::Path;

    use super::super::file::parse;
    use super::*;

    fn read(kind: Kind, yaml: &str) -> Result<Option<Value>, BadValue> {
        kind.read_node(&parse(yaml, Path::new("c"), true).unwrap())
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn values_are_read_in_every_spelling() {
        for (kind, yaml, expected) in [
            (Kind::Switch, "off", Value::Switch(false)),
            (Kind::Switch, "On", Value::Switch(true)),
            (Kind::Switch, "true", Value::Switch(true)),
            (Kind::Switch, "\"no\"", Value::Switch(false)),
            (Kind::Duration, "300", Value::Duration(Duration::from_secs(300))),
            (Kind::Duration, "\"5m\"", Value::Duration(Duration::from_secs(300))),
            (Kind::Duration, "0.5", Value::Duration(Duration::from_millis(500))),
            (Kind::Count { min: 0 }, "0", Value::Count(0)),
            (Kind::Text, "\"3\"", text("3")),
            (Kind::Scalar, "1.50", text("1.50")),
            (Kind::Choice(&["unix", "tcp"]), "tcp", text("tcp")),
            (Kind::Target, "docker:python:3.12", text("docker:python:3.12")),
            (Kind::List, "[A, B]", Value::List(vec!["A".into(), "B".into()])),
            (Kind::List, "[]", Value::List(Vec::new())),
            (
                Kind::Map,
                "{A: 1.10, B: yes, C: }",
                Value::Map(vec![
                    ("A".into(), "1.10".into()),
                    ("B".into(), "yes".into()),
                    ("C".into(), String::new()),
                ]),
            ),
            (Kind::Url, "http://localhost:8080/", text("http://localhost:8080")),
            (Kind::VariableName, "MY_KEY_2", text("MY_KEY_2")),
            (
                Kind::Hosts,
                "[wiki.corp, 10.0.0.0/8, '::1']",
                Value::List(vec!["wiki.corp".into(), "10.0.0.0/8".into(), "::1".into()]),
            ),
        ] {
            assert_eq!(read(kind, yaml), Ok(Some(expected)), "{kind:?} {yaml}");
        }
        for kind in [
            Kind::Switch,
            Kind::Duration,
            Kind::Text,
            Kind::List,
            Kind::Map,
            Kind::Url,
            Kind::Hosts,
        ] {
            assert_eq!((read(kind, "~"), read(kind, "''")), (Ok(None), Ok(None)), "{kind:?}");
        }
    }

    #[test]
    fn a_wrong_type_says_what_it_is_and_what_it_should_be() {
        for (kind, yaml, words) in [
            (Kind::Switch, "2", ["`2`", "`on` or `off`"]),
            (Kind::Switch, "[on]", ["a list", "`on` or `off`"]),
            (Kind::Duration, "true", ["the switch `true`", "a duration"]),
            (Kind::Duration, "0", ["`0`", "zero"]),
            (Kind::Duration, "-1", ["`-1`", "negative"]),
            (Kind::Duration, "soon", ["`soon`", "`90s`"]),
            (Kind::Count { min: 1 }, "0", ["`0`", "from 1"]),
            (Kind::Count { min: 0 }, "-3", ["`-3`", "from 0"]),
            (Kind::Port, "99999", ["`99999`", "1 to 65535"]),
            (Kind::Port, "0", ["`0`", "1 to 65535"]),
            (Kind::Count { min: 0 }, "1.5", ["`1.5`", "whole number"]),
            (Kind::Text, "3.12", ["the number `3.12`", "a text"]),
            (Kind::Scalar, "{a: 1}", ["a mapping", "a single value"]),
            (Kind::Choice(&["unix", "tcp"]), "unx", ["`unx`", "did you mean `unix`"]),
            (Kind::Target, "dockr:x", ["dockr", "did you mean `docker`"]),
            (Kind::List, "A", ["the text `A`", "[A, B]"]),
            (Kind::List, "[A, 2]", ["the number `2`", "must be a text"]),
            (Kind::Url, "localhost:8080", ["must be an address", "https://"]),
            (Kind::Url, "ftp://a/", ["must be an address", "https://"]),
            (Kind::Url, "http://bob:pw@a/", ["user or password", "api_key_env"]),
            (Kind::Url, "http://a/?q=1", ["alone", "`?`"]),
            (
                Kind::VariableName,
                "BSAx1",
                ["name of a variable", "not the key itself"],
            ),
            (Kind::Hosts, "[10.0.0.0/99]", ["`10.0.0.0/99`", "10.1.0.0/16"]),
            (Kind::Hosts, "[http://a/]", ["`http://a/`", "wiki.corp"]),
            (Kind::Map, "[A]", ["a list", "{NAME: value}"]),
            (Kind::Map, "{A: [1]}", ["`A`", "a list"]),
        ] {
            let problem = read(kind, yaml).unwrap_err().problem;
            assert!(
                words.iter().all(|word| problem.contains(word)),
                "{kind:?} {yaml}: {problem}"
            );
        }
    }

    #[test]
    fn variables_hold_lists_by_comma() {
        assert_eq!(
            Kind::List.read_text(" A, B,,C "),
            Ok(Value::List(vec!["A".into(), "B".into(), "C".into()]))
        );
        assert_eq!(
            Kind::Map.read_text("A=1,B=x=y"),
            Ok(Value::Map(vec![("A".into(), "1".into()), ("B".into(), "x=y".into())]))
        );
        assert!(Kind::Map.read_text("A").is_err());
    }

    #[test]
    fn what_is_shown_hides_secrets() {
        let map = Value::Map(vec![
            ("API_KEY".into(), "s3cret".into()),
            ("MODE".into(), "fast".into()),
        ]);
        assert_eq!(map.shown(), "{API_KEY: ***, MODE: fast}");
        assert_eq!(format!("{map:?}"), "Value({API_KEY: ***, MODE: fast})");
    }
}
