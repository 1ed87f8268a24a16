//! The `patch` tool.
//!
//! One engine for every target: pure functions over the bytes of files (`text`, `find`, `replace`, `v4a`, `hunks`,
//! `diff`), around them what fetches files and changes them, all or none (`plan`, and here).

mod diff;
mod edits;
mod find;
mod hunks;
mod lines;
mod nearest;
mod plan;
mod pure;
mod replace;
mod text;
mod turns;
mod v4a;

pub(super) use self::diff::MOST_BYTES as MOST_DIFF;
pub(super) use self::turns::Turns;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub use self::pure::{Patched, patched, replaced};

use self::plan::Request;
use super::builtin::{failure, text};
use super::{CallContext, ChangeError, ToolSpec, Workspace};

/// How often files are fetched again that something else has changed meanwhile.
const ATTEMPTS: usize = 8;

const DOC: &str = r#"Changes text files on the target: replaces one text by another, or applies a patch.

mode="replace": `old_string` in the file `path` becomes `new_string`. It has to stand there exactly once, unless
`replace_all` is true. Where it does not stand there exactly, differences in blanks at line ends, indentation (the
new text is then indented as the file is), line ends and look-alike quotes are forgiven.

mode="patch": `patch` holds changes of several files in the V4A format, made all or none:
    *** Begin Patch
    *** Update File: path
    @@ a line that stands before, such as: def f():
     a line that stays
    -a line that goes
    +a line that comes
    *** Add File: path
    +each line of the new file
    *** Delete File: path
    *** End Patch
*** Move to: path below an Update moves the file; *** End of File ends a hunk that is the file's last.

Encoding, line ends and mode bits of the file stay. Returns a dict: `success` (True), `diff` (unified),
`files_modified`, `files_created`, `files_deleted` (lists of paths). A failure has only `error`, and nothing was
changed then."#;

pub(super) fn spec() -> ToolSpec {
    let optional = |description: &str| json!({"type": "string", "default": null, "description": description});
    ToolSpec {
        name: "patch".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "properties": {
                "path": optional("the file; a relative path starts at the session's working directory, ~ is the home directory"),
                "old_string": optional("the text to replace, with enough around it to be unique"),
                "new_string": optional("the text that comes in its place; may be empty"),
                "replace_all": {
                    "type": "boolean", "default": false,
                    "description": "replace every occurrence",
                },
                "mode": {
                    "type": "string", "enum": ["replace", "patch"], "default": "replace",
                    "description": "replace: path, old_string, new_string; patch: patch",
                },
                "patch": optional("changes in the V4A format, for mode=\"patch\""),
            },
        }),
    }
}

pub(super) async fn call(arguments: &Map<String, Value>, context: &CallContext, turns: &Turns) -> Value {
    match perform(arguments, context, turns).await {
        Ok(result) => result,
        Err(error) => failure(error),
    }
}

async fn perform(arguments: &Map<String, Value>, context: &CallContext, turns: &Turns) -> Result<Value, String> {
    let request = Arc::new(request(arguments)?);
    let _turn = turns.take(request.paths()).await;
    let mut meanwhile = String::new();
    for _ in 0..ATTEMPTS {
        let files = context.workspace.fetch(request.paths()).await;
        let files = files.map_err(|error| error.to_string())?;
        let asked = Arc::clone(&request);
        // Large files take their time, and others wait for this thread.
        let planned = tokio::task::spawn_blocking(move || asked.plan(&files)).await;
        let mut plan = planned.map_err(|error| format!("the patch was abandoned ({error}); try it again"))??;
        let changes = std::mem::take(&mut plan.changes);
        let result = plan.result();
        let reply = context.reply.as_ref().map(|reply| (reply, &result));
        match context.workspace.change(changes, reply).await {
            Ok(()) => return Ok(result),
            Err(ChangeError::Failed(error)) => return Err(error.to_string()),
            Err(ChangeError::Conflict(what)) => meanwhile = what,
        }
    }
    Err(format!(
        "{meanwhile}, {ATTEMPTS} times one after the other; nothing was changed: see what writes to it, and try it again"
    ))
}

/// The diff that a call would make.
pub(super) async fn preview(arguments: &Map<String, Value>, workspace: &dyn Workspace) -> Option<String> {
    let request = request(arguments).ok()?;
    let files = workspace.fetch(request.paths()).await.ok()?;
    let planned = tokio::task::spawn_blocking(move || request.plan(&files)).await;
    Some(planned.ok()?.ok()?.diff())
}

/// The diff of a file that holds another text.
pub(super) fn exchanged(path: &str, old: &str, new: &str) -> String {
    let mut diff = diff::Diff::default();
    let edit = text::Edit {
        range: 0..old.len(),
        new: new.to_owned(),
    };
    diff.changed(path, path, old, &[edit]);
    diff.finish()
}

/// All paths that a call names.
pub(super) fn paths(arguments: &Map<String, Value>) -> Result<Vec<String>, String> {
    Ok(request(arguments)?.paths())
}

/// What is asked, by the arguments that are there.
fn request(arguments: &Map<String, Value>) -> Result<Request, String> {
    let given = |name: &str| arguments.get(name).is_some_and(|value| !value.is_null());
    let only_patch = given("patch") && !given("path") && !given("old_string") && !given("new_string");
    if text(arguments, "mode") == "patch" || only_patch {
        if !given("patch") {
            return Err(
                "patch: mode \"patch\" needs the argument patch: text from *** Begin Patch to *** End Patch".into(),
            );
        }
        if given("old_string") || given("new_string") {
            return Err(
                "patch: old_string and new_string belong to mode \"replace\"; give either them or a patch".into(),
            );
        }
        return v4a::parse(text(arguments, "patch")).map(Request::Patch);
    }
    for name in ["path", "old_string", "new_string"] {
        if !given(name) {
            return Err(format!(
                "patch: argument {name:?} is missing; mode \"replace\" takes path, old_string and new_string, mode \"patch\" takes patch"
            ));
        }
    }
    if given("patch") {
        return Err(
            "patch: the argument patch belongs to mode \"patch\"; give either it or old_string and new_string".into(),
        );
    }
    Ok(Request::Replace {
        path: text(arguments, "path").to_owned(),
        old: text(arguments, "old_string").to_owned(),
        new: text(arguments, "new_string").to_owned(),
        all: arguments.get("replace_all").and_then(Value::as_bool).unwrap_or(false),
    })
}
