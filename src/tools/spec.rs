//! What a tool may look like, so that it can become a Python function.

use serde_json::{Map, Value};

use super::ToolSpec;

/// Names that `hermes_tools` gives to its helpers.
pub const HELPERS: [&str; 3] = ["json_parse", "shell_quote", "retry"];

/// Tools that no host may offer: a script must not start scripts or agents.
const FORBIDDEN: [&str; 2] = ["execute_code", "delegate_task"];

/// Separated by spaces, like the table below it.
const KEYWORDS: &str = "False None True and as assert async await break class continue def del elif else except \
    finally for from global if import in is lambda nonlocal not or pass raise return try while \
    with yield";

/// Functions of Python that a tool of the same name would hide from every script.
const BUILTINS: &str = "abs aiter all anext any ascii bin bool breakpoint bytearray bytes callable chr classmethod \
    compile complex copyright credits delattr dict dir divmod enumerate eval exec exit filter \
    float format frozenset getattr globals hasattr hash help hex id input int isinstance \
    issubclass iter len license list locals map max memoryview min next object oct open ord pow \
    print property quit range repr reversed round set setattr slice sorted staticmethod str sum \
    super tuple type vars zip";

/// Why a tool cannot be offered to scripts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name cannot be a function of the module.
    #[error("the tool name {name:?} cannot be offered to scripts: {why}; give the tool another name")]
    Name {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two tools have one name.
    #[error("two tools are named {0:?}; rename or drop one of them")]
    Duplicate(String),
    /// The schema is not of the supported kind.
    #[error("the schema of tool {name:?} cannot be used: {why}")]
    Schema {
        /// The tool.
        name: String,
        /// What is wrong, and what is expected.
        why: String,
    },
}

/// Checks that every tool can become a function of `hermes_tools`.
///
/// # Errors
/// The first tool that cannot, and why.
pub fn check_specs(specs: &[ToolSpec]) -> Result<(), SpecError> {
    for (index, spec) in specs.iter().enumerate() {
        if let Some(why) = name_problem(&spec.name) {
            return Err(SpecError::Name {
                name: spec.name.clone(),
                why,
            });
        }
        if specs[..index].iter().any(|earlier| earlier.name == spec.name) {
            return Err(SpecError::Duplicate(spec.name.clone()));
        }
        if let Some(why) = schema_problem(&spec.schema) {
            return Err(SpecError::Schema {
                name: spec.name.clone(),
                why,
            });
        }
    }
    Ok(())
}

fn name_problem(name: &str) -> Option<&'static str> {
    if FORBIDDEN.contains(&name) {
        Some("scripts must not start other scripts or agents")
    } else if HELPERS.contains(&name) {
        Some("it is the name of a helper in hermes_tools")
    } else if name.starts_with('_') {
        Some("names with a leading underscore are private to hermes_tools")
    } else if !is_identifier(name) {
        Some("it is no plain Python identifier (ASCII letters, digits and underscores)")
    } else if is_keyword(name) {
        Some("it is a Python keyword")
    } else if is_in(BUILTINS, name) || is_exception(name) {
        Some("it would hide a built-in of Python")
    } else {
        None
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(super) fn is_keyword(name: &str) -> bool {
    is_in(KEYWORDS, name)
}

fn is_in(table: &str, name: &str) -> bool {
    table.split(' ').any(|word| word == name)
}

fn is_exception(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && [
            "Error",
            "Exception",
            "Warning",
            "Exit",
            "Interrupt",
            "Iteration",
            "Group",
            "Ellipsis",
        ]
        .iter()
        .any(|end| name.ends_with(end))
}

fn schema_problem(schema: &Value) -> Option<String> {
    let Some(schema) = schema.as_object() else {
        return Some("it must be a JSON object of type \"object\"".into());
    };
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Some("its type must be \"object\"".into());
    }
    let empty = Map::new();
    let properties = match schema.get("properties") {
        None => &empty,
        Some(Value::Object(properties)) => properties,
        Some(_) => return Some("\"properties\" must be an object".into()),
    };
    for (name, property) in properties {
        if !is_identifier(name) || name.starts_with('_') {
            return Some(format!("parameter {name:?} is no public Python identifier; rename it"));
        }
        // A keyword parameter is written with an underscore after it, which may be taken.
        if is_keyword(name) && properties.contains_key(&format!("{name}_")) {
            return Some(format!("parameters {name:?} and \"{name}_\" collide in Python"));
        }
        if !property.is_object() {
            return Some(format!("the schema of parameter {name:?} must be an object"));
        }
    }
    match schema.get("required") {
        None => None,
        Some(Value::Array(names)) => names
            .iter()
            .find(|name| !name.as_str().is_some_and(|name| properties.contains_key(name)))
            .map(|name| format!("{name} is required but not among its properties")),
        Some(_) => Some("\"required\" must be a list of names".into()),
    }
}

/// The properties of a checked schema, in positional order.
pub(super) fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

/// Whether a parameter must be given.
pub(super) fn is_required(schema: &Value, name: &str) -> bool {
    schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|names| names.iter().any(|required| required == name))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, schema: Value) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            doc: String::new(),
            schema,
        }
    }

    #[test]
    fn names_that_cannot_be_offered() {
        let schema = json!({"type": "object"});
        for name in [
            "",
            "9x",
            "a-b",
            "a b",
            "a\nb",
            "ü",
            "class",
            "None",
            "execute_code",
            "delegate_task",
            "_call",
            "__all__",
            "retry",
            "json_parse",
            "shell_quote",
            "open",
            "type",
            "OSError",
        ] {
            let error = check_specs(&[tool(name, schema.clone())]).unwrap_err();
            assert!(matches!(error, SpecError::Name { .. }), "{name}: {error}");
        }
        for name in ["read_file", "x", "Search2", "match", "os", "sys", "json"] {
            assert_eq!(check_specs(&[tool(name, schema.clone())]), Ok(()), "{name}");
        }
        let twice = [tool("a", schema.clone()), tool("a", schema)];
        assert_eq!(check_specs(&twice), Err(SpecError::Duplicate("a".into())));
    }

    #[test]
    fn schemas_that_cannot_be_used() {
        for (schema, word) in [
            (json!([]), "JSON object"),
            (json!({"type": "string"}), "type"),
            (json!({"properties": []}), "properties"),
            (json!({"properties": {"a-b": {}}}), "a-b"),
            (json!({"properties": {"_a": {}}}), "_a"),
            (json!({"properties": {"a": true}}), "\"a\""),
            (json!({"properties": {"from": {}, "from_": {}}}), "collide"),
            (json!({"properties": {"a": {}}, "required": ["b"]}), "\"b\""),
            (json!({"required": "a"}), "required"),
        ] {
            let error = check_specs(&[tool("t", schema.clone())]).unwrap_err().to_string();
            assert!(error.contains(word), "{schema}: {error}");
        }
        let whole = json!({"properties": {"a": {}, "from": {}}, "required": ["a"]});
        assert_eq!(check_specs(&[tool("t", whole)]), Ok(()));
    }
}
