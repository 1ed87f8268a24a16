//! Likely next steps for a model whose script did not do what it meant.

use std::collections::BTreeMap;

use crate::link::message::CellResult;
use crate::suggest::nearest;
use crate::tools::{HELPERS, ToolSpec, signature};

/// Characters of a tool's error that a hint repeats.
const ERROR_SHOWN: usize = 300;

/// Letters of a tool's error by which it is known in what a script printed.
const TOLD: usize = 40;

/// For a script whose time was up.
pub(super) const OUT_OF_TIME: &str = "ask for more time (timeout), or do it in smaller cells: the limit is for each of them; \
    print what you have as you go, for output is kept";

/// What a hint is made from.
pub(super) struct Facts<'a> {
    pub(super) result: &'a CellResult,
    pub(super) source: &'a str,
    pub(super) python: &'a str,
    /// The tools of the host.
    pub(super) specs: &'a [ToolSpec],
    pub(super) allowed: &'a [String],
    /// Tools of the host that this cell may not call.
    pub(super) withheld: &'a [String],
    pub(super) printed: bool,
    /// What it printed to stdout and to stderr, as its caller sees it.
    pub(super) shown: [&'a str; 2],
    /// Tools of which no call of this cell gave anything, how many calls there were, and the error of the last.
    pub(super) in_vain: Vec<(&'a str, u64, String)>,
    /// The last tool of this cell that failed, and its error with secrets masked.
    pub(super) failed: Option<(&'a str, &'a str)>,
    /// The keys of results that this cell got, by tool.
    pub(super) keys: &'a BTreeMap<String, Vec<String>>,
}

/// The hint, if one is due.
pub(super) fn hint(facts: &Facts<'_>) -> Option<String> {
    let result = facts.result;
    let own = match result.kind.as_str() {
        "ok" => (result.unprinted && !facts.printed).then(|| {
            "nothing was printed: the value of the last line is not shown by itself; wrap it in print(…)".to_owned()
        }),
        "raised" => raised(facts),
        _ => None,
    };
    own.or_else(|| in_vain(facts))
}

/// Of a script that raised.
fn raised(facts: &Facts<'_>) -> Option<String> {
    let result = facts.result;
    let error = result.error.as_str();
    let (kind, message) = error.split_once(':').unwrap_or((error, ""));
    // What the stub raises for a name that it does not have.
    if let Some((name, _)) = message.trim().split_once(" is not available in scripts") {
        return Some(tool(facts, name));
    }
    match kind.trim() {
        "ModuleNotFoundError" => module(facts),
        "ImportError" if error.contains("hermes_tools") => Some(tool(facts, &result.missing)),
        "NameError" => name(facts),
        "SyntaxError" | "IndentationError" => magic(facts),
        "KeyError" => treated_as_text("KeyError", error).or_else(|| missing_key(facts, message.trim())),
        kind @ ("AttributeError" | "TypeError") => wrong_call(facts, message.trim())
            .or_else(|| treated_as_text(kind, error))
            .or_else(|| nothing_there(facts, message)),
        _ => None,
    }
}

fn module(facts: &Facts<'_>) -> Option<String> {
    let name = facts.result.missing.split('.').next().filter(|name| !name.is_empty())?;
    if let Some(right) = nearest(name, ["hermes_tools"]) {
        return (name != right).then(|| format!("there is no module {name}; did you mean {right}?"));
    }
    Some(format!(
        "the module {name} is not installed for {python}; to install it there: terminal(\"{python} -m pip install {name}\"); a module of the project must lie in the working directory or on PYTHONPATH",
        python = facts.python
    ))
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

fn tool(facts: &Facts<'_>, name: &str) -> String {
    if name.is_empty() || name == "hermes_tools" {
        format!(
            "tools that this cell may import from hermes_tools: {}",
            list(facts.allowed)
        )
    } else {
        let advice = match near(facts, name) {
            Some(right) => format!("; did you mean {right}?"),
            None => String::new(),
        };
        format!(
            "{name} is not available in this cell; tools that it may import from hermes_tools: {}{advice}",
            list(facts.allowed)
        )
    }
}

/// What there is in `hermes_tools` of nearly that name.
fn near<'a>(facts: &Facts<'a>, name: &str) -> Option<&'a str> {
    nearest(name, facts.allowed.iter().map(String::as_str).chain(HELPERS))
}

fn name(facts: &Facts<'_>) -> Option<String> {
    let name = facts.result.missing.as_str();
    let name = if name.is_empty() {
        // Before Python 3.10 the name stands only in the message.
        facts.result.error.split('\'').nth(1)?
    } else {
        name
    };
    if facts.allowed.iter().any(|tool| tool == name) || HELPERS.contains(&name) {
        Some(format!("import it first: from hermes_tools import {name}"))
    } else if facts.withheld.iter().any(|tool| tool == name) {
        Some(tool(facts, name))
    } else {
        near(facts, name)
            .map(|right| format!("there is no {name}; did you mean {right}? (from hermes_tools import {right})"))
    }
}

/// Magics that set up a notebook: a script has no use for them.
const NOTEBOOK_ONLY: [&str; 4] = ["matplotlib", "load_ext", "autoreload", "config"];

fn magic(facts: &Facts<'_>) -> Option<String> {
    let number: usize = facts.result.missing.parse().ok()?;
    let line = facts.source.lines().nth(number.checked_sub(1)?)?.trim();
    let command = if line.starts_with(['!', '%']) {
        line
    } else {
        line.split_once("= !")?.1
    };
    let command = command.trim_start_matches(['!', '%']).trim();
    let first = command.split_whitespace().next().unwrap_or_default();
    if line.starts_with('%') && NOTEBOOK_ONLY.contains(&first) {
        return Some(format!("`{line}` is for notebooks and has no use here; drop the line"));
    }
    Some(format!(
        "`{line}` is notebook syntax, not Python; run it with: from hermes_tools import terminal; print(terminal({})[\"output\"])",
        serde_json::Value::from(command)
    ))
}

/// A tool called with arguments that it does not take.
fn wrong_call(facts: &Facts<'_>, message: &str) -> Option<String> {
    let (name, problem) = message.split_once("() ")?;
    let is_about_arguments = ["got ", "missing ", "takes "]
        .iter()
        .any(|start| problem.starts_with(start));
    if !is_about_arguments || !facts.allowed.iter().any(|tool| tool == name) {
        return None;
    }
    let spec = facts.specs.iter().find(|spec| spec.name == name)?;
    Some(format!("the tool is called like this: {}", signature(spec)))
}

/// What a failed call of this cell has to do with a result that is not as it was expected.
fn failed(facts: &Facts<'_>) -> Option<String> {
    let (tool, error) = facts.failed?;
    let shown = shortened(error);
    Some(format!(
        "{tool} failed: {shown} (a failed tool returns only {{\"error\": …}}; look for it first)"
    ))
}

fn shortened(error: &str) -> String {
    let mut shown: String = error.chars().take(ERROR_SHOWN).collect();
    if shown.len() < error.len() {
        shown.push('…');
    }
    shown
}

/// What is the same of a text however it is printed: as it is, in a dict or as JSON.
fn letters(text: &str) -> String {
    let unescaped = text.split('\\').enumerate().map(|(number, part)| match number {
        0 => part,
        _ if part.starts_with('u') => part.get(5..).unwrap_or_default(),
        _ => part.get(1..).unwrap_or_default(),
    });
    unescaped
        .flat_map(str::chars)
        .filter(char::is_ascii_alphanumeric)
        .collect()
}

/// A tool that did nothing for the script, which says nothing of it: what it went on with was empty.
fn in_vain(facts: &Facts<'_>) -> Option<String> {
    let shown = facts.shown.map(letters);
    let is_told = |error: &str| {
        let start: String = letters(error).chars().take(TOLD).collect();
        shown.iter().any(|text| text.contains(&start))
    };
    let untold = facts.in_vain.iter().find(|(_, _, error)| !is_told(error));
    untold.map(|(tool, count, error)| {
        let error = shortened(error);
        match count {
            1 => format!("the only call of {tool} failed: {error}"),
            _ => format!("all {count} calls of {tool} failed, the last with: {error}"),
        }
    })
}

/// A key that a dict lacks; `key` is as Python shows it.
fn missing_key(facts: &Facts<'_>, key: &str) -> Option<String> {
    let key = key.strip_prefix('\'')?.strip_suffix('\'')?;
    let is_identifier = key
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && key.starts_with(|first: char| !first.is_ascii_digit());
    if !is_identifier {
        return None;
    }
    if key == "error" {
        let some = facts.keys.values().any(|keys| !keys.iter().any(|known| known == key));
        return some.then(|| {
            "a result may have no error when its tool did not fail; ask with result.get(\"error\")".to_owned()
        });
    }
    if let Some(hint) = failed(facts) {
        return Some(hint);
    }
    if facts.keys.is_empty() || facts.keys.values().flatten().any(|known| known == key) {
        return None;
    }
    let results: Vec<String> = facts
        .keys
        .iter()
        .map(|(tool, keys)| format!("{tool}(…) gave {}", list(keys)))
        .collect();
    Some(format!(
        "no tool's result had the key {key}; results are dicts: {}",
        results.join("; ")
    ))
}

/// `None` where a field of a result was expected, as `result.get("content")` of a failed call gives.
fn nothing_there(facts: &Facts<'_>, message: &str) -> Option<String> {
    message.contains("NoneType").then(|| failed(facts)).flatten()
}

/// Methods and operations of strings that a result, which is a dict, does not have.
const TEXT_METHODS: [&str; 10] = [
    "split",
    "splitlines",
    "strip",
    "startswith",
    "endswith",
    "lower",
    "replace",
    "encode",
    "find",
    "rstrip",
];

fn treated_as_text(kind: &str, error: &str) -> Option<String> {
    let text = match kind {
        "AttributeError" => {
            error.contains("'dict' object has no attribute")
                && TEXT_METHODS.iter().any(|method| error.contains(&format!("'{method}'")))
        }
        "TypeError" => {
            (error.contains("dict")
                && (error.contains("concatenate")
                    || error.contains("must be str")
                    || error.contains("expected string")
                    || error.contains("unhashable")
                    || (error.contains("unsupported operand") && error.contains("'str'"))))
                || error.contains("unhashable type: 'slice'")
                || error.contains("the JSON object must be str, bytes or bytearray, not dict")
        }
        "KeyError" => error.contains("slice("),
        _ => false,
    };
    text.then(|| {
        "a tool's result is a dict, not text: take the field, for instance terminal(…)[\"output\"] or read_file(…)[\"content\"]".to_owned()
    })
}
