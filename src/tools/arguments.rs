//! Whether a call's arguments fit the tool.
//!
//! Schemas are a subset of JSON Schema: an `object` with `properties` and `required`; per
//! property `type` (one or a list), `default`, `enum`, `minimum`, `exclusiveMinimum`, `maximum`, and for arrays the
//! `type` of `items`. Nothing beside the listed properties is accepted.

use serde_json::{Map, Value};

use super::ToolSpec;
use super::spec::properties;

/// Checks a call's arguments against the tool's schema. Runs on every call.
///
/// # Errors
/// A sentence for the script that says what is wrong and what the tool takes.
pub fn validate_arguments(spec: &ToolSpec, arguments: &Map<String, Value>) -> Result<(), String> {
    let known = spec.schema.get("properties").and_then(Value::as_object);
    for (name, value) in arguments {
        let Some(schema) = known.and_then(|known| known.get(name)) else {
            return Err(unknown_argument(spec, name));
        };
        if let Some(problem) = value_problem(value, schema) {
            return Err(format!("{}: argument {name:?} {problem}", spec.name));
        }
    }
    if let Some(required) = spec.schema.get("required").and_then(Value::as_array) {
        for name in required.iter().filter_map(Value::as_str) {
            if !arguments.contains_key(name) {
                return Err(format!(
                    "{}: argument {name:?} is missing; it takes {}",
                    spec.name,
                    takes(spec)
                ));
            }
        }
    }
    Ok(())
}

fn unknown_argument(spec: &ToolSpec, name: &str) -> String {
    let guess = nearest(name, properties(&spec.schema).map(|(known, _)| known.as_str()))
        .map(|near| format!(", did you mean {near:?}?"))
        .unwrap_or_default();
    let shown: String = name.chars().take(100).collect();
    let end = if guess.is_empty() { ";" } else { "" };
    format!(
        "{} has no argument {shown:?}{guess}{end} it takes {}",
        spec.name,
        takes(spec)
    )
}

fn takes(spec: &ToolSpec) -> String {
    let names: Vec<&str> = properties(&spec.schema).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        "no arguments".into()
    } else {
        names.join(", ")
    }
}

/// The candidate that a misspelt name most likely means.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

fn value_problem(value: &Value, schema: &Value) -> Option<String> {
    if value.is_null() && schema.get("default").is_some_and(Value::is_null) {
        return None;
    }
    if let Some(kind) = schema.get("type")
        && !fits(value, kind)
    {
        return Some(format!("must be {}, not {}", kind_words(kind), shown(value)));
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        return Some(format!("must be one of {}, not {}", allowed.join(", "), shown(value)));
    }
    if let Some(number) = value.as_f64() {
        if let Some(minimum) = schema.get("minimum")
            && minimum.as_f64().is_some_and(|minimum| number < minimum)
        {
            return Some(format!("must be at least {minimum}, not {value}"));
        }
        if let Some(minimum) = schema.get("exclusiveMinimum")
            && minimum.as_f64().is_some_and(|minimum| number <= minimum)
        {
            return Some(format!("must be greater than {minimum}, not {value}"));
        }
        if let Some(maximum) = schema.get("maximum")
            && maximum.as_f64().is_some_and(|maximum| number > maximum)
        {
            return Some(format!("must be at most {maximum}, not {value}"));
        }
    }
    if let (Some(items), Some(kind)) = (
        value.as_array(),
        schema.get("items").and_then(|items| items.get("type")),
    ) && let Some((index, item)) = items.iter().enumerate().find(|(_, item)| !fits(item, kind))
    {
        let words = kind_words(kind);
        return Some(format!(
            "must hold only {words} values; item {index} is {}",
            shown(item)
        ));
    }
    None
}

fn fits(value: &Value, kind: &Value) -> bool {
    match kind {
        Value::String(kind) => match kind.as_str() {
            "string" => value.is_string(),
            // JSON Schema's rule: 5.0 is an integer.
            "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => true,
        },
        Value::Array(kinds) => kinds.iter().any(|kind| fits(value, kind)),
        _ => true,
    }
}

fn kind_words(kind: &Value) -> String {
    match kind {
        Value::Array(kinds) => kinds.iter().map(kind_words).collect::<Vec<_>>().join(" or "),
        other => other.as_str().unwrap_or("any").to_owned(),
    }
}

/// A value as an error message shows it: its kind, and itself when it is short.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null (None)".into(),
        Value::Bool(value) => format!("boolean {value}"),
        Value::Number(value) => format!("number {value}"),
        Value::String(text) if text.chars().nth(60).is_none() => format!("string {text:?}"),
        Value::String(_) => "a long string".into(),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    fn search() -> ToolSpec {
        let schema = json!({"type": "object", "required": ["pattern"], "properties": {
            "pattern": {"type": "string"},
            "limit": {"type": "integer", "default": 5, "minimum": 1, "maximum": 100},
            "mode": {"type": "string", "enum": ["content", "count"], "default": "content"},
            "glob": {"type": "string", "default": null},
            "offset": {"type": ["integer", "string"], "default": 0},
            "ratio": {"type": "number", "exclusiveMinimum": 0},
            "flag": {"type": "boolean"},
            "urls": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object"},
            "any": {},
        }});
        ToolSpec {
            name: "search".into(),
            doc: String::new(),
            schema,
        }
    }

    #[test]
    fn arguments_that_fit() {
        for arguments in [
            json!({"pattern": "x"}),
            json!({"pattern": "", "limit": 100, "mode": "count", "glob": null, "offset": "7:3"}),
            json!({"pattern": "x", "offset": 3, "limit": 5.0, "ratio": 1, "flag": true}),
            json!({"pattern": "x", "ratio": 1.5, "urls": [], "extra": {}, "any": null}),
            json!({"pattern": "x", "urls": ["a", "b"], "any": [1]}),
        ] {
            assert_eq!(validate_arguments(&search(), arguments.as_object().unwrap()), Ok(()));
        }
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() {
        for (arguments, words) in [
            (json!({}), vec!["\"pattern\" is missing", "pattern, limit, mode"]),
            (
                json!({"patern": "x"}),
                vec!["no argument \"patern\"", "did you mean \"pattern\"?"],
            ),
            (
                json!({"pattern": "x", "zzz": 1}),
                vec!["no argument \"zzz\"; it takes pattern,"],
            ),
            (json!({"pattern": 5}), vec!["\"pattern\" must be string, not number 5"]),
            (json!({"pattern": null}), vec!["must be string, not null"]),
            (
                json!({"pattern": "x", "limit": "5"}),
                vec!["must be integer, not string \"5\""],
            ),
            (
                json!({"pattern": "x", "limit": true}),
                vec!["must be integer, not boolean true"],
            ),
            (
                json!({"pattern": "x", "limit": 2.5}),
                vec!["must be integer, not number 2.5"],
            ),
            (json!({"pattern": "x", "limit": null}), vec!["must be integer"]),
            (json!({"pattern": "x", "limit": 0}), vec!["at least 1, not 0"]),
            (json!({"pattern": "x", "limit": 101}), vec!["at most 100, not 101"]),
            (json!({"pattern": "x", "ratio": 0}), vec!["greater than 0, not 0"]),
            (
                json!({"pattern": "x", "mode": "files"}),
                vec!["one of \"content\", \"count\""],
            ),
            (
                json!({"pattern": "x", "offset": []}),
                vec!["integer or string", "array of 0"],
            ),
            (json!({"pattern": "x", "urls": "a"}), vec!["must be array"]),
            (
                json!({"pattern": "x", "urls": ["a", 2]}),
                vec!["only string values; item 1"],
            ),
            (json!({"pattern": "x", "extra": [1]}), vec!["must be object"]),
        ] {
            let error = validate_arguments(&search(), arguments.as_object().unwrap()).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{arguments}: {error:?} lacks {word:?}");
            }
            assert!(error.starts_with("search"), "{error}");
        }
    }

    #[test]
    fn a_long_name_or_value_does_not_flood_the_error() {
        let long = "x".repeat(1 << 20);
        for arguments in [
            json!({"pattern": "x", &long: 1}),
            json!({"pattern": "x", "limit": long}),
        ] {
            let error = validate_arguments(&search(), arguments.as_object().unwrap()).unwrap_err();
            assert!(error.len() < 400, "{}", error.len());
        }
    }
}
