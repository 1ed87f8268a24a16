//! How the tools are told of: what they are for, what they take, what they give.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::arguments::{MAX_FILE, MAX_KEY};
use super::targets::Targets;
use crate::limits::MAX_DURATION;
use crate::schema;
use crate::session::SessionOptions;
use crate::tools::ToolSpec;

/// Time that a call waits for a script to end unless it says otherwise: below the 60 s after which many clients give up.
pub(super) const WAIT: Duration = Duration::from_secs(45);

/// The longest time that a call may wait.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(3600);

/// A tool: what arguments are checked by, and what clients are told.
pub(super) struct Offered {
    pub(super) spec: ToolSpec,
    pub(super) tool: Tool,
}

/// What is true of a tool, for a client that asks its user before some.
struct Traits {
    title: &'static str,
    reads_only: bool,
    destroys: bool,
    is_idempotent: bool,
    is_open: bool,
}

/// The tools of a server whose default target has these options.
pub(super) fn offered(options: &SessionOptions, targets: &Targets, keeps_default_session: bool) -> Vec<Offered> {
    let place = Place {
        targets,
        keeps_default_session,
    };
    vec![
        execute_code(options, &place),
        execution_status(),
        execution_cancel(),
        session_list(),
        session_close(),
        put_file(&place),
        get_file(&place),
    ]
}

struct Place<'a> {
    targets: &'a Targets,
    keeps_default_session: bool,
}

impl Place<'_> {
    fn session(&self) -> Value {
        let without = if self.keeps_default_session {
            "Without one, the calls share a default session, and a call made while that is busy gets a new one."
        } else {
            "Without one, a new session is opened; its handle is in the answer."
        };
        json!({
            "type": "string",
            "description": format!("Handle of a session, from an earlier answer. {without}"),
        })
    }

    fn target(&self) -> Value {
        let names = self.targets.names();
        let mut target = json!({
            "type": "string",
            "description": format!(
                "Where a new session runs (default {}). A session stays on its target.",
                names.first().map_or("local", String::as_str)
            ),
        });
        if !self.targets.is_open() {
            target["enum"] = json!(names);
        }
        target
    }
}

fn execute_code(options: &SessionOptions, place: &Place<'_>) -> Offered {
    let mut spec = schema::execute_code(options);
    let properties = &mut spec.schema["properties"];
    properties["timeout"]["maximum"] = json!(MAX_DURATION.as_secs());
    properties["session"] = place.session();
    properties["target"] = place.target();
    properties["wait"] = wait();
    properties["idempotency_key"] = json!({
        "type": "string",
        "maxLength": MAX_KEY,
        "description": "A new text for each script. Asking again with the same text and script gives the same \
            execution, and never runs it twice.",
    });
    properties["detach"] = json!({
        "type": "boolean",
        "default": false,
        "description": "The script goes on when this client cancels the call or goes away.",
    });
    let sessions = if options.keep_kernel {
        "State belongs to a session: pass `session` from an earlier answer to go on in it."
    } else {
        "Files and the working directory of terminal() belong to a session: pass `session` from an earlier answer to \
         go on in it."
    };
    spec.doc.push_str(&format!(
        "\n\n{sessions} Scripts of one session run one after another, those of different sessions side by side. A \
         script that takes longer than `wait` goes on: the answer then has status `running` and the handle of the \
         `execution`, for execution_status."
    ));
    let traits = Traits {
        title: "Run a Python script",
        reads_only: false,
        destroys: true,
        is_idempotent: false,
        is_open: true,
    };
    offer(spec, Some(execution_answer()), traits)
}

fn execution_status() -> Offered {
    let spec = ToolSpec {
        name: "execution_status".to_owned(),
        doc: "Wait for a script whose answer was `running` or `queued`, and get its outcome once it is there. Call it \
              again as long as it is not. Do not start the script anew."
            .to_owned(),
        schema: object(
            &json!({"execution": handle("execution"), "wait": wait()}),
            &["execution"],
        ),
    };
    let traits = Traits {
        title: "Wait for a script",
        reads_only: true,
        destroys: false,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(execution_answer()), traits)
}

fn execution_cancel() -> Offered {
    let spec = ToolSpec {
        name: "execution_cancel".to_owned(),
        doc: "Interrupt a script that runs or waits, and get what it has printed. The variables of its session are \
              lost; its files stay."
            .to_owned(),
        schema: object(&json!({"execution": handle("execution")}), &["execution"]),
    };
    let traits = Traits {
        title: "Interrupt a script",
        reads_only: false,
        destroys: true,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(execution_answer()), traits)
}

fn session_list() -> Offered {
    let spec = ToolSpec {
        name: "session_list".to_owned(),
        doc:
            "List the sessions that are open: their handles and targets, whether a script runs, the working directory, \
              and the last executions with their status. Use it when a handle was lost."
                .to_owned(),
        schema: object(&json!({}), &[]),
    };
    let answer = json!({
        "type": "object",
        "properties": {"sessions": {"type": "array", "items": {
            "type": "object",
            "properties": {
                "session": {"type": "string"},
                "target": {"type": "string"},
                "busy": {"type": "boolean"},
                "idle_seconds": {"type": "number"},
                "working_directory": or_null("string"),
                "executions": {"type": "array", "items": {
                    "type": "object",
                    "properties": {"execution": {"type": "string"}, "status": {"type": "string"}},
                    "required": ["execution", "status"],
                }},
            },
            "required": ["session", "target", "busy", "idle_seconds", "working_directory", "executions"],
        }}},
        "required": ["sessions"],
    });
    let traits = Traits {
        title: "List sessions",
        reads_only: true,
        destroys: false,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(answer), traits)
}

fn session_close() -> Offered {
    let spec = ToolSpec {
        name: "session_close".to_owned(),
        doc:
            "End a session: its variables, its background processes, and a container or sandbox that was made for it. \
              Scripts that run in it are interrupted. Sessions that are idle for long end by themselves."
                .to_owned(),
        schema: object(&json!({"session": handle("session")}), &["session"]),
    };
    let answer = json!({
        "type": "object",
        "properties": {"session": {"type": "string"}, "closed": {"type": "boolean"}},
        "required": ["session", "closed"],
    });
    let traits = Traits {
        title: "End a session",
        reads_only: false,
        destroys: true,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(answer), traits)
}

fn put_file(place: &Place<'_>) -> Offered {
    let spec = ToolSpec {
        name: "put_file".to_owned(),
        doc: format!(
            "Write one file where scripts of a session run, such as an image or data that you hold; at most {} MiB. \
             Text that a script makes is better written by the script.",
            MAX_FILE >> 20
        ),
        schema: object(
            &json!({
                "path": path(),
                "content": {"type": "string", "description": "What it holds, as text."},
                "base64": {"type": "string", "description": "What it holds, as base64; instead of content."},
                "session": place.session(),
                "target": place.target(),
            }),
            &["path"],
        ),
    };
    let answer = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "bytes_written": {"type": "integer"},
            "session": {"type": "string"},
        },
        "required": ["path", "bytes_written", "session"],
    });
    let traits = Traits {
        title: "Write a file",
        reads_only: false,
        destroys: true,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(answer), traits)
}

fn get_file(place: &Place<'_>) -> Offered {
    let spec = ToolSpec {
        name: "get_file".to_owned(),
        doc: format!(
            "Get one file from where scripts of a session run; at most {} MiB. An image (PNG, JPEG, GIF, WebP) comes as \
             an image that you can look at, such as a plot that a script saved; text as text; all else as base64. To \
             look at part of a long text, print that part in a script instead.",
            MAX_FILE >> 20
        ),
        schema: object(
            &json!({"path": path(), "session": place.session(), "target": place.target()}),
            &["path"],
        ),
    };
    let answer = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "size": {"type": "integer"},
            "mime_type": {"type": "string"},
            "session": {"type": "string"},
        },
        "required": ["path", "size", "mime_type", "session"],
    });
    let traits = Traits {
        title: "Get a file",
        reads_only: true,
        destroys: false,
        is_idempotent: true,
        is_open: false,
    };
    offer(spec, Some(answer), traits)
}

fn wait() -> Value {
    json!({
        "type": "number",
        "minimum": 0,
        "maximum": MAX_WAIT.as_secs(),
        "default": WAIT.as_secs(),
        "description": "Seconds that this call waits for the script to end. It goes on after that.",
    })
}

fn handle(what: &str) -> Value {
    json!({"type": "string", "description": format!("Handle of the {what}, from an earlier answer.")})
}

fn path() -> Value {
    json!({
        "type": "string",
        "description": "Absolute, ~/…, or relative to the working directory of the session.",
    })
}

/// What calls answer that are about an execution: that it still runs, or its outcome.
fn execution_answer() -> Value {
    json!({
        "type": "object",
        "properties": {
            "status": {
                "type": "string",
                "enum": ["queued", "running", "success", "error", "timeout", "interrupted"],
                "description": "`queued` and `running`: it has not ended; everything else: how it ended.",
            },
            "execution": {"type": "string"},
            "session": {"type": "string"},
            "target": {"type": "string"},
            "tool_calls_made": {"type": "integer"},
            "elapsed_seconds": {"type": "number", "description": "Of a script that has not ended."},
            "last_line": {"type": "string", "description": "The last line that it has printed so far."},
            "output": {"type": "string"},
            "exit_code": or_null("integer"),
            "duration_seconds": {"type": "number"},
            "stdout_bytes_total": {"type": "integer"},
            "kernel": or_null("object"),
            "stderr": {"type": "string"},
            "phases": {"type": "object"},
            "error": {"type": "string"},
            "notice": {"type": "string"},
            "hint": {"type": "string"},
            "stdout_truncated": {"type": "boolean"},
            "stdout_bytes_omitted": {"type": "integer"},
            "stdout_spill_path": {"type": "string"},
        },
        "required": ["status", "target", "tool_calls_made"],
    })
}

/// Not as a list of types, which some clients cannot map to the schemas of their models.
fn or_null(kind: &str) -> Value {
    json!({"anyOf": [{"type": kind}, {"type": "null"}]})
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn offer(spec: ToolSpec, answer: Option<Value>, traits: Traits) -> Offered {
    let annotations = ToolAnnotations::with_title(traits.title)
        .read_only(traits.reads_only)
        .destructive(traits.destroys)
        .idempotent(traits.is_idempotent)
        .open_world(traits.is_open);
    let mut tool = Tool::new(spec.name.clone(), spec.doc.clone(), as_object(spec.schema.clone()))
        .with_title(traits.title)
        .with_annotations(annotations);
    tool.output_schema = answer.map(as_object);
    Offered { spec, tool }
}

fn as_object(schema: Value) -> Arc<Map<String, Value>> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}
