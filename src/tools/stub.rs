//! The text of `hermes_tools.py`: the fixed runtime with one way to the broker, then one function for each tool.

use std::fmt::Write as _;

use serde_json::Value;

use super::ToolSpec;
use super::spec::{HELPERS, is_keyword, is_required, properties};

/// The line that divides the runtime from the generated functions. What follows it can be
/// replaced alone by the kernel when the allowed tools change.
const TOOLS_MARKER: &str = "# --- tools ---";

const RUNTIME: &str = include_str!("../../remote_agent/hermes_runtime.py");
const CALLS: &str = include_str!("../../remote_agent/hermes_calls.py");
const TOKEN_LINE: &str = "_TOKEN = \"\"";
/// What stands before the first of these in a part of the module serves only those who read it alone.
const SECTION: &str = "\n# --- ";

/// The way by which a script's calls travel to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPath {
    /// A socket of the broker's.
    Socket,
    /// Files in a directory of the target.
    Directory,
    /// The streams of the script's own process.
    Streams,
}

impl CallPath {
    /// The one that a link's variables name.
    #[must_use]
    pub fn of(variables: &[(String, String)]) -> Self {
        let has = |wanted: &str| variables.iter().any(|(name, _)| name == wanted);
        if has("HERMES_RPC_ALONE") {
            Self::Streams
        } else if has("HERMES_RPC_DIR") {
            Self::Directory
        } else {
            Self::Socket
        }
    }

    fn source(self) -> &'static str {
        match self {
            Self::Socket => include_str!("../../remote_agent/rpc_socket.py"),
            Self::Directory => include_str!("../../remote_agent/rpc_directory.py"),
            Self::Streams => include_str!("../../remote_agent/rpc_streams.py"),
        }
    }
}

/// The whole module. The specs must have passed [`check_specs`](super::check_specs); the same
/// input gives the same text.
#[must_use]
pub fn stub_source(specs: &[&ToolSpec], token: &str, path: CallPath) -> String {
    let line = format!("_TOKEN = {}", text_literal(token));
    let mut source = RUNTIME.replacen(TOKEN_LINE, &line, 1);
    for part in [path.source(), CALLS] {
        source.push('\n');
        source.push_str(part.find(SECTION).map_or(part, |at| &part[at..]));
    }
    source.push_str("\n\n");
    source.push_str(TOOLS_MARKER);
    source.push('\n');
    source.push_str(&tools_source(specs));
    source
}

/// The part after [`TOOLS_MARKER`].
#[must_use]
fn tools_source(specs: &[&ToolSpec]) -> String {
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let mut source = format!(
        "\n_GENERATED = {}\n__all__ = {}\n",
        name_tuple(&names),
        name_tuple(&[&names[..], &HELPERS[..]].concat()),
    );
    for spec in specs {
        source.push_str("\n\n");
        source.push_str(&function(spec));
    }
    source
}

fn name_tuple(names: &[&str]) -> String {
    let mut text = String::from("(");
    for name in names {
        let _ = write!(text, "{}, ", text_literal(name));
    }
    if names.len() > 1 {
        text.truncate(text.len() - 2);
    } else {
        text.truncate(text.trim_end().len());
    }
    text.push(')');
    text
}

struct Parameter<'a> {
    /// As the schema calls it.
    name: &'a str,
    /// As the Python function calls it: a keyword gets an underscore.
    python: String,
    hint: String,
    /// The default's literal; `None` for a required parameter.
    default: Option<String>,
}

impl<'a> Parameter<'a> {
    fn of(spec: &'a ToolSpec) -> Vec<Self> {
        let mut parameters: Vec<Self> = properties(&spec.schema)
            .map(|(name, schema)| {
                let required = is_required(&spec.schema, name);
                let default = schema.get("default").unwrap_or(&Value::Null);
                Self {
                    name,
                    python: if is_keyword(name) {
                        format!("{name}_")
                    } else {
                        name.clone()
                    },
                    hint: hint(schema.get("type"), !required && default.is_null()),
                    default: (!required).then(|| literal(default)),
                }
            })
            .collect();
        // Python wants parameters without a default first; the order is kept otherwise.
        parameters.sort_by_key(|parameter| parameter.default.is_some());
        parameters
    }

    /// Whether the argument stays out of the call when it is not given.
    fn is_left_out(&self) -> bool {
        self.default.as_deref() == Some("None")
    }
}

/// A tool's Python signature on one line, as its stub has it.
#[must_use]
pub fn signature(spec: &ToolSpec) -> String {
    let parameters: Vec<String> = Parameter::of(spec)
        .into_iter()
        .map(
            |Parameter {
                 python, hint, default, ..
             }| match default {
                Some(default) => format!("{python}: {hint} = {default}"),
                None => format!("{python}: {hint}"),
            },
        )
        .collect();
    format!("{}({}) -> dict", spec.name, parameters.join(", "))
}

fn function(spec: &ToolSpec) -> String {
    let parameters = Parameter::of(spec);
    let sent: Vec<String> = parameters
        .iter()
        .filter(|parameter| !parameter.is_left_out())
        .map(|Parameter { name, python, .. }| format!("{}: {python}", text_literal(name)))
        .collect();
    let name = &spec.name;
    let mut text = format!("def {}:\n", signature(spec));
    let _ = writeln!(text, "    {}", docstring(spec));
    if parameters.iter().any(Parameter::is_left_out) {
        let _ = writeln!(text, "    _arguments = {{{}}}", sent.join(", "));
        for Parameter { name, python, .. } in parameters.iter().filter(|p| p.is_left_out()) {
            let name = text_literal(name);
            let _ = writeln!(text, "    if {python} is not None:");
            let _ = writeln!(text, "        _arguments[{name}] = {python}");
        }
        let _ = writeln!(text, "    return _call({}, _arguments)", text_literal(name));
    } else {
        let sent = sent.join(", ");
        let _ = writeln!(text, "    return _call({}, {{{sent}}})", text_literal(name));
    }
    text
}

/// A type hint for a schema type. A union is quoted, since Python before 3.10 cannot evaluate it.
fn hint(kind: Option<&Value>, or_none: bool) -> String {
    let mut words: Vec<&str> = match kind {
        Some(Value::Array(kinds)) => kinds.iter().map(python_type).collect(),
        Some(kind) => vec![python_type(kind)],
        None => vec!["object"],
    };
    if or_none && !words.contains(&"object") {
        words.push("None");
    }
    words.dedup();
    match words.as_slice() {
        [word] => (*word).to_owned(),
        words => text_literal(&words.join(" | ")),
    }
}

fn python_type(kind: &Value) -> &'static str {
    match kind.as_str() {
        Some("string") => "str",
        Some("integer") => "int",
        Some("number") => "float",
        Some("boolean") => "bool",
        Some("array") => "list",
        Some("object") => "dict",
        Some("null") => "None",
        _ => "object",
    }
}

fn docstring(spec: &ToolSpec) -> String {
    let mut doc = spec.doc.trim().to_owned();
    let described: Vec<String> = properties(&spec.schema)
        .filter_map(|(name, schema)| {
            let text = schema.get("description")?.as_str()?;
            Some(format!(
                "    {name}: {}",
                text.split_whitespace().collect::<Vec<_>>().join(" ")
            ))
        })
        .collect();
    if !described.is_empty() {
        doc.push_str("\n\nParameters:\n");
        doc.push_str(&described.join("\n"));
    }
    let mut text = String::from("\"\"\"");
    for (index, line) in doc.lines().enumerate() {
        if index > 0 {
            text.push('\n');
            if !line.is_empty() {
                text.push_str("    ");
            }
        }
        for c in line.chars() {
            push_escaped(&mut text, c);
        }
    }
    if doc.contains('\n') {
        text.push_str("\n    ");
    }
    text.push_str("\"\"\"");
    text
}

/// A JSON value as a Python expression.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text_literal(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", text_literal(key), literal(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

fn text_literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        push_escaped(&mut literal, c);
    }
    literal.push('"');
    literal
}

/// Quotes, backslashes, and whatever would end a line or hide in it.
fn push_escaped(text: &mut String, c: char) {
    match c {
        '"' | '\\' => {
            text.push('\\');
            text.push(c);
        }
        '\n' => text.push_str("\\n"),
        ' '..='~' => text.push(c),
        _ if c.is_alphanumeric() => text.push(c),
        _ => {
            let _ = write!(text, "\\U{:08x}", c as u32);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use serde_json::json;

    use super::*;
    use crate::tools::check_specs;

    fn tool(name: &str, doc: &str, schema: Value) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            doc: doc.into(),
            schema,
        }
    }

    fn file() -> ToolSpec {
        tool(
            "read_file",
            "Reads a file.\n\nReturns `content`.",
            json!({"type": "object", "required": ["path"], "properties": {
                "path": {"type": "string", "description": "which\n file"},
                "offset": {"type": ["integer", "string"], "default": 1},
                "glob": {"type": "string", "default": null},
                "raw": {"type": "boolean", "default": false},
            }}),
        )
    }

    #[test]
    fn a_function_is_plain_python() {
        assert_eq!(
            tools_source(&[&file()]),
            r#"
_GENERATED = ("read_file",)
__all__ = ("read_file", "json_parse", "shell_quote", "retry")


def read_file(path: str, offset: "int | str" = 1, glob: "str | None" = None, raw: bool = False) -> dict:
    """Reads a file.

    Returns `content`.

    Parameters:
        path: which file
    """
    _arguments = {"path": path, "offset": offset, "raw": raw}
    if glob is not None:
        _arguments["glob"] = glob
    return _call("read_file", _arguments)
"#
        );
    }

    const PATHS: [CallPath; 3] = [CallPath::Socket, CallPath::Directory, CallPath::Streams];

    #[test]
    fn the_module_is_runtime_token_marker_and_tools() {
        for path in PATHS {
            let source = stub_source(&[&file()], "a\"b\\", path);
            assert_eq!(source.matches("_TOKEN = ").count(), 1);
            assert!(source.contains("\n_TOKEN = \"a\\\"b\\\\\""));
            assert_eq!(source.matches("from __future__").count(), 1);
            let (_, tools) = source.split_once(&format!("\n{TOOLS_MARKER}\n")).unwrap();
            assert_eq!(tools, tools_source(&[&file()]));
            assert_eq!(source, stub_source(&[&file()], "a\"b\\", path));
        }
    }

    #[test]
    fn a_link_names_the_way_of_its_calls() {
        let of = |name: &str| CallPath::of(&[(name.to_owned(), "/place".to_owned())]);
        assert_eq!(of("HERMES_RPC_SOCKET"), CallPath::Socket);
        assert_eq!(of("HERMES_RPC_DIR"), CallPath::Directory);
        assert_eq!(of("HERMES_RPC_ALONE"), CallPath::Streams);
    }

    #[test]
    fn the_runtime_has_the_same_limits() {
        assert_eq!(crate::limits::MAX_TOOL_MESSAGE, 64 * 1024 * 1024);
        assert!(RUNTIME.contains("_LIMIT = 64 * 1024 * 1024 "));
        assert!(RUNTIME.contains("_FRAME_LIMIT = 6 * _LIMIT + 1024 * 1024 "));
    }

    /// Runs Python over generated functions whose calls are recorded instead of sent.
    fn python(specs: &[&ToolSpec], script: &str) -> String {
        let mut child = Command::new("python3")
            .args(["-I", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let source = format!(
            "_call = lambda name, arguments: (name, arguments)\n\
             {}\nimport inspect, json\n{script}\n",
            tools_source(specs)
        );
        child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{source}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn calls_leave_out_what_is_none_by_default() {
        let script = "print(json.dumps([read_file('p'), read_file('p', '7:2', 'g', True)]))";
        let calls: Value = serde_json::from_str(&python(&[&file()], script)).unwrap();
        assert_eq!(
            calls,
            json!([
                ["read_file", {"path": "p", "offset": 1, "raw": false}],
                ["read_file", {"path": "p", "offset": "7:2", "raw": true, "glob": "g"}],
            ])
        );
    }

    #[test]
    fn hostile_text_stays_text() {
        let text = "\"\"\"\nimport os # \\\" \\N{x} {y} %s \0\r\u{2028}\u{feff}ü€😀\\";
        let hostile = tool(
            "hostile",
            text,
            json!({"required": ["late"], "properties": {
                "from": {"type": "string", "default": text},
                "nested": {"default": {text: [text, null, true, -1.5, 1e300]}},
                "late": {"type": "string", "description": text},
            }}),
        );
        let none = tool("none", "", json!({"type": "object"}));
        assert_eq!(check_specs(&[hostile.clone(), none.clone()]), Ok(()));
        let script = "print(json.dumps([hostile('x')[1], none()[1], list(inspect.signature(hostile).parameters), hostile.__doc__]))";
        let seen: Value = serde_json::from_str(&python(&[&hostile, &none], script)).unwrap();
        assert_eq!(seen[0]["from"], text);
        assert_eq!(seen[0]["nested"], json!({text: [text, null, true, -1.5, 1e300]}));
        assert_eq!(seen[1], json!({}));
        assert_eq!(seen[2], json!(["late", "from_", "nested"]));
        assert!(seen[3].as_str().unwrap().contains("import os # \\\" \\N{x} {y} %s \0"));
    }

    #[test]
    fn the_whole_module_loads_and_names_what_is_there() {
        for path in PATHS {
            load(&stub_source(&[&file()], "secret", path));
        }
    }

    fn load(source: &str) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hermes_tools.py"), source).unwrap();
        let script = "import sys; sys.path.insert(0, sys.argv[1])\n\
                      from hermes_tools import *\n\
                      import hermes_tools\n\
                      print(read_file.__name__, hermes_tools._TOKEN, retry.__name__)\n\
                      print(hasattr(hermes_tools, 'patch'))\n\
                      from hermes_tools import patch";
        let output = Command::new("python3")
            .args(["-I", "-c", script])
            .arg(folder.path())
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "read_file secret retry\nFalse\n"
        );
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("ImportError: patch is not available in scripts; available: read_file"));
    }
}
