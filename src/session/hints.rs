//! Likely next steps for a model whose script did not do what it meant.

use crate::link::message::CellResult;

/// What a hint is made from.
pub(super) struct Facts<'a> {
    pub(super) result: &'a CellResult,
    pub(super) source: &'a str,
    pub(super) python: &'a str,
    pub(super) allowed: &'a [String],
    /// Tools of the host that this cell may not call.
    pub(super) withheld: &'a [String],
    pub(super) printed: bool,
}

/// The hint, if one is due.
pub(super) fn hint(facts: &Facts<'_>) -> Option<String> {
    let result = facts.result;
    if result.kind == "ok" {
        return (result.unprinted && !facts.printed).then(|| {
            "nothing was printed: the value of the last line is not shown by itself; wrap it in print(…)".to_owned()
        });
    }
    if result.kind != "raised" {
        return None;
    }
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
        "SyntaxError" | "IndentationError" => magic(facts.source),
        kind @ ("AttributeError" | "TypeError" | "KeyError") => treated_as_text(kind, error),
        _ => None,
    }
}

fn module(facts: &Facts<'_>) -> Option<String> {
    let name = facts.result.missing.split('.').next().filter(|name| !name.is_empty())?;
    if name == "hermes_tools" {
        return None;
    }
    Some(format!(
        "the module {name} is not installed for {python}; to install it there: terminal(\"{python} -m pip install {name}\")",
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
        format!(
            "{name} is not available in this cell; tools that it may import from hermes_tools: {}",
            list(facts.allowed)
        )
    }
}

fn name(facts: &Facts<'_>) -> Option<String> {
    let name = facts.result.missing.as_str();
    let name = if name.is_empty() {
        // Before Python 3.10 the name stands only in the message.
        facts.result.error.split('\'').nth(1)?
    } else {
        name
    };
    if facts.allowed.iter().any(|tool| tool == name) || ["json_parse", "shell_quote", "retry"].contains(&name) {
        Some(format!("import it first: from hermes_tools import {name}"))
    } else if facts.withheld.iter().any(|tool| tool == name) {
        Some(tool(facts, name))
    } else {
        None
    }
}

fn magic(source: &str) -> Option<String> {
    source
        .lines()
        .map(str::trim_start)
        .find(|line| line.starts_with('!') || line.starts_with('%'))
        .map(|line| {
            let command = line.trim_start_matches(['!', '%']).trim();
            format!(
                "`{}` is notebook syntax, not Python; run it with: from hermes_tools import terminal; print(terminal({})[\"output\"])",
                line.trim_end(),
                serde_json::Value::from(command)
            )
        })
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
