//! `approval`: which tool calls may happen, and about which somebody is asked.

use std::collections::BTreeMap;

use super::choice::TOOLS;
use super::error::{ConfigError, Origin};
use super::file::{Content, Entry};
use super::keys::find;
use super::layers::Layers;
use super::section::Reader;
use super::settings::{duration, effective};
use super::value::{Kind, Value};
use crate::approval::{Action, Policy, ToolRules};
use crate::suggest::nearest;

/// The key whose value holds what becomes of each tool.
pub(super) const TOOL_ACTIONS: &str = "approval.tools";

/// The keys of a tool that has rules.
const KEYS: [&str; 4] = ["default", "allow", "ask", "deny"];

/// Rules on arguments, by tool, each list with its origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rules(BTreeMap<String, BTreeMap<Action, (Vec<String>, Origin)>>);

impl Rules {
    /// Every list: its key, its items, and where it came from.
    pub(super) fn lines(&self) -> impl Iterator<Item = (String, Value, &Origin)> {
        self.0.iter().flat_map(|(tool, lists)| {
            lists.iter().map(move |(action, (items, origin))| {
                let key = format!("{TOOL_ACTIONS}.{tool}.{}", action.as_str());
                (key, Value::List(items.clone()), origin)
            })
        })
    }
}

/// Why a word cannot be a tool's name here. One that is nearly that of a tool of ours is a slip: its rules would be for
/// nothing. Any other name may be that of an embedding agent's tool.
pub(super) fn check_tool(name: &str) -> Result<(), String> {
    if TOOLS.contains(&name) {
        return Ok(());
    }
    if let Some(right) = nearest(name, TOOLS) {
        return Err(format!("`{name}` is no tool; did you mean `{right}`?"));
    }
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_name {
        Ok(())
    } else {
        Err(format!(
            "`{name}` is no name of a tool; those that come along are {}",
            TOOLS.join(", ")
        ))
    }
}

/// Puts what one layer says of tools over what those below say of them.
pub(super) fn over(below: Option<&Value>, above: Value) -> Value {
    match (below, above) {
        (Some(Value::Map(below)), Value::Map(above)) => {
            let mut all = below.clone();
            all.retain(|(name, _)| !above.iter().any(|(other, _)| other == name));
            all.extend(above);
            Value::Map(all)
        }
        (_, above) => above,
    }
}

impl Reader<'_> {
    /// Reads `approval.tools`: for each tool a word, or its rules. What is wrong here is an error in any file: a rule
    /// without effect would let pass what it was to stop.
    pub(super) fn tool_rules(&mut self, entry: &Entry) -> Result<(), ConfigError> {
        let mut actions = Vec::new();
        for tool in self.entries(&entry.value, TOOL_ACTIONS)? {
            let name = tool.key.as_str();
            let key = format!("{TOOL_ACTIONS}.{name}");
            let bad = |line: u64, key: &str, problem: String| ConfigError::Value {
                origin: self.origin(line),
                key: key.to_owned(),
                problem,
            };
            check_tool(name)
                .map_err(|problem| bad(tool.line, TOOL_ACTIONS, format!("holds a wrong name: {problem}")))?;
            let Content::Map(options) = &tool.value.content else {
                if let Some(Value::Text(word)) = self.value(&key, Kind::Choice(Action::WORDS), &tool.value)? {
                    actions.push((name.to_owned(), word));
                }
                continue;
            };
            let mut lists = BTreeMap::new();
            for option in options {
                let key = format!("{key}.{}", option.key);
                match (option.key.as_str(), Action::of_word(&option.key)) {
                    ("default", _) => {
                        if let Some(Value::Text(word)) = self.value(&key, Kind::Choice(Action::WORDS), &option.value)? {
                            actions.push((name.to_owned(), word));
                        }
                    }
                    (_, Some(action)) => {
                        let Some(Value::List(items)) = self.value(&key, Kind::List, &option.value)? else {
                            continue;
                        };
                        // By itself, so that the error has its line.
                        rules_of(&[(action, &items)])
                            .and_then(|rules| Policy::default().set(name, &rules).map_err(|error| error.to_string()))
                            .map_err(|problem| bad(option.line, &key, format!("holds a wrong rule: {problem}")))?;
                        lists.insert(action, (items, self.origin(option.line)));
                    }
                    (other, None) => {
                        let advice = match nearest(other, KEYS) {
                            Some(right) => format!("did you mean `{right}`?"),
                            None => format!("the keys here are {}", KEYS.join(", ")),
                        };
                        return Err(ConfigError::UnknownKey {
                            origin: self.origin(option.line),
                            key,
                            advice,
                        });
                    }
                }
            }
            self.keep_rules(name, lists);
        }
        if let Some(key) = find(TOOL_ACTIONS).filter(|_| matches!(entry.value.content, Content::Map(_))) {
            let origin = self.origin(entry.line);
            self.keep(key, Value::Map(actions), origin);
        }
        Ok(())
    }
}

impl Rules {
    pub(super) fn insert(&mut self, tool: &str, lists: BTreeMap<Action, (Vec<String>, Origin)>) {
        self.0.insert(tool.to_owned(), lists);
    }
}

fn rules_of(lists: &[(Action, &Vec<String>)]) -> Result<ToolRules, String> {
    let mut rules = ToolRules::default();
    for (action, items) in lists {
        let list = match action {
            Action::Allow => &mut rules.allow,
            Action::Ask => &mut rules.ask,
            Action::Deny => &mut rules.deny,
        };
        if items.iter().any(String::is_empty) {
            return Err("a rule is empty".to_owned());
        }
        list.clone_from(items);
    }
    Ok(rules)
}

/// The policy in force.
///
/// # Errors
/// A rule that is none.
pub(super) fn policy(layers: &Layers, rules: &Rules) -> Result<Policy, ConfigError> {
    let default = layers
        .text("approval.default")
        .and_then(Action::of_word)
        .unwrap_or_default();
    let mut policy = Policy::new(default, duration(layers, "approval.timeout"));
    for (tool, lists) in &rules.0 {
        let each: Vec<(Action, &Vec<String>)> = lists.iter().map(|(action, (items, _))| (*action, items)).collect();
        rules_of(&each)
            .and_then(|rules| policy.set(tool, &rules).map_err(|error| error.to_string()))
            .map_err(|problem| ConfigError::Value {
                origin: lists
                    .values()
                    .next()
                    .map_or(Origin::Default, |(_, origin)| origin.clone()),
                key: format!("{TOOL_ACTIONS}.{tool}"),
                problem: format!("holds a wrong rule: {problem}"),
            })?;
    }
    if let Some(Value::Map(actions)) = effective(layers, TOOL_ACTIONS) {
        for (tool, word) in actions {
            // Checked where it was read; what is no word would let nothing pass.
            policy.set_default(&tool, Action::of_word(&word).unwrap_or(Action::Deny));
        }
    }
    Ok(policy)
}
