//! The `terminal` tool.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::builtin::text;
use super::{CallContext, CommandOutput, CommandRequest, ToolSpec};

const DOC: &str = "Runs a shell command on the target and waits for it.

It runs in the foreground, without a terminal and with empty input; a child put into the
background with & lives on until the session ends. Working directory and exported variables
persist from one call to the next; with workdir, one call starts elsewhere. Returns a dict:
`output` (stdout and stderr as a terminal shows them), `exit_code` (124 after a timeout, 128 + N
after signal N, -1 when the command could not be started), and `error` (None unless something
went wrong beside the exit code). Of output over 64 MiB there are head and tail with a line
between them, and beside them `output_truncated` (True), `output_bytes_omitted` and
`output_spill_path`, a file with all of it that read_file reads.";

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "terminal".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["command"],
            "properties": {
                "command": {"type": "string", "description": "shell text, of any length"},
                "timeout": {
                    "type": "number", "default": null,
                    "description": "seconds that it may run; None is the session's default",
                },
                "workdir": {
                    "type": "string", "default": null,
                    "description": "where this call starts; None is the session's working directory",
                },
            },
        }),
    }
}

pub(super) async fn call(arguments: &Map<String, Value>, context: &CallContext) -> Value {
    let timeout = match arguments.get("timeout").map(seconds).transpose() {
        Ok(timeout) => timeout.flatten(),
        Err(error) => return result("", -1, Some(error)),
    };
    let command = text(arguments, "command");
    if command.contains('\0') {
        let error = "the command holds a NUL character, which no shell takes; remove it";
        return result("", -1, Some(error.into()));
    }
    let workdir = arguments.get("workdir").and_then(Value::as_str).map(str::to_owned);
    let request = CommandRequest {
        command: command.to_owned(),
        timeout,
        workdir,
    };
    match context.workspace.run(request, &context.cancel).await {
        Ok(done) => finished(done),
        Err(error) => result("", -1, Some(error.to_string())),
    }
}

/// The time limit that a number stands for; `None` for null.
fn seconds(value: &Value) -> Result<Option<Duration>, String> {
    let Some(seconds) = value.as_f64() else {
        return Ok(None);
    };
    if seconds <= 0.0 {
        return Err(format!(
            "timeout must be more than 0 seconds, not {value}; leave it out for the default"
        ));
    }
    Duration::try_from_secs_f64(seconds)
        .map(Some)
        .map_err(|_| format!("timeout={value} is too large; leave it out for the default"))
}

fn finished(done: CommandOutput) -> Value {
    let mut result = result(&done.output, done.exit_code, done.error);
    if let Some(truncation) = done.truncation {
        result["output_truncated"] = true.into();
        result["output_bytes_omitted"] = truncation.bytes_omitted.into();
        result["output_spill_path"] = truncation.spill_path.map(|path| path.display().to_string()).into();
    }
    result
}

fn result(output: &str, exit_code: i32, error: Option<String>) -> Value {
    json!({ "output": output, "exit_code": exit_code, "error": error })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::output::Truncation;
    use crate::tools::builtin::testing::{call, silent, workspace};
    use crate::tools::{BuiltinTools, WorkspaceError};

    async fn run(answer: Result<CommandOutput, WorkspaceError>, arguments: Value) -> Value {
        let files = workspace(std::path::Path::new("/"), answer);
        call(&BuiltinTools::new(None), files, "terminal", arguments).await
    }

    #[tokio::test]
    async fn failures_keep_all_three_keys() {
        let late = CommandOutput {
            output: "so far".to_owned(),
            truncation: None,
            exit_code: 124,
            error: Some("ran too long".into()),
        };
        assert_eq!(
            run(Ok(late), json!({"command": "x"})).await,
            json!({"output": "so far", "exit_code": 124, "error": "ran too long"})
        );
        assert_eq!(
            run(Err(WorkspaceError("no shell".into())), json!({"command": "x"})).await,
            json!({"output": "", "exit_code": -1, "error": "no shell"})
        );
    }

    #[tokio::test]
    async fn output_that_is_too_long_says_where_all_of_it_is() {
        let mut long = silent().unwrap();
        long.truncation = Some(Truncation {
            bytes_omitted: 5,
            spill_path: Some("/s/stdout-1.txt".into()),
        });
        assert_eq!(
            run(Ok(long), json!({"command": "x"})).await,
            json!({
                "output": "", "exit_code": 0, "error": null,
                "output_truncated": true, "output_bytes_omitted": 5, "output_spill_path": "/s/stdout-1.txt",
            })
        );
    }

    #[tokio::test]
    async fn what_is_asked_of_the_workspace() {
        let host = BuiltinTools::new(None);
        let files = workspace(std::path::Path::new("/"), silent());
        for (arguments, timeout, workdir) in [
            (json!({"command": "a"}), None, None),
            (json!({"command": "a", "timeout": null, "workdir": null}), None, None),
            (
                json!({"command": "a", "timeout": 2}),
                Some(Duration::from_secs(2)),
                None,
            ),
            (
                json!({"command": "a", "timeout": 0.25}),
                Some(Duration::from_millis(250)),
                None,
            ),
            (json!({"command": "a", "workdir": "/x"}), None, Some("/x")),
        ] {
            call(&host, files.clone(), "terminal", arguments).await;
            let asked = files.asked.lock().unwrap().pop().unwrap();
            assert_eq!((asked.timeout, asked.workdir.as_deref()), (timeout, workdir));
        }
        for (arguments, word) in [
            (json!({"command": "a", "timeout": 0}), "more than 0"),
            (json!({"command": "a", "timeout": -1.5}), "more than 0"),
            (json!({"command": "a", "timeout": 1e300}), "too large"),
            (json!({"command": "a", "timeout": "5"}), "must be number"),
            (json!({"command": "a\u{0}b"}), "NUL"),
            (
                json!({"command": "a", "background": true}),
                "no argument \"background\"",
            ),
            (json!({"command": "a", "pty": true}), "no argument \"pty\""),
            (json!({}), "missing"),
        ] {
            let result = call(&host, files.clone(), "terminal", arguments).await;
            assert!(result["error"].as_str().unwrap().contains(word), "{result}");
        }
        assert!(files.asked.lock().unwrap().is_empty());
    }
}
