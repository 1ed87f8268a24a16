//! The `terminal` tool.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::builtin::text;
use super::{CallContext, CommandOutput, CommandRequest, ToolSpec};
use crate::limits::MAX_TOOL_MESSAGE;
use crate::output::{Masker, clean_text};

const DOC: &str = "Runs a shell command on the target and waits for it.

It runs in the foreground, without a terminal and with empty input; a child put into the
background with & lives on. Working directory and exported variables persist from one call to
the next; with workdir, one call starts elsewhere. Returns a dict: `output` (stdout and stderr
as a terminal shows them), `exit_code` (124 after a timeout, 128 + N after signal N, -1 when the
command could not be started), and `error` (None unless something went wrong beside the exit
code).";

/// Bytes of text that a result's output may hold, with some room for the other fields.
#[expect(clippy::cast_possible_truncation, reason = "it is a constant of 64 MiB")]
const LONGEST_OUTPUT: usize = MAX_TOOL_MESSAGE as usize - 8192;
/// Bytes of its end that are kept when it has to be cut.
const OUTPUT_TAIL: usize = 64 * 1024;

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
        Ok(done) => finished(&done),
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

fn finished(done: &CommandOutput) -> Value {
    let (output, missing) = shown(done, LONGEST_OUTPUT);
    let too_long = (missing > 0).then(|| {
        format!(
            "{missing} bytes of output were left out, for a result may hold 64 MiB; redirect the output to a file and \
             read that in pages with read_file"
        )
    });
    let errors: Vec<String> = done.error.iter().cloned().chain(too_long).collect();
    result(&output, done.exit_code, (!errors.is_empty()).then(|| errors.join("; ")))
}

/// The output as text, and how many bytes of it had to be left out. Its end is always there.
fn shown(done: &CommandOutput, longest: usize) -> (String, u64) {
    let (at, mut missing) = done.gap.unwrap_or((done.output.len(), 0));
    let (head, tail) = done.output.split_at(at.min(done.output.len()));
    let mut text = clean_text(head, &Masker::none());
    let mut tail = clean_text(tail, &Masker::none());
    // What is no UTF-8 grows threefold.
    let room = longest.saturating_sub(tail.len());
    if text.len() > room {
        if tail.is_empty() {
            tail = text.split_off(text.floor_char_boundary(text.len().saturating_sub(OUTPUT_TAIL)));
        }
        let kept = text.floor_char_boundary(room.min(longest.saturating_sub(tail.len())));
        missing += (text.len() - kept) as u64;
        text.truncate(kept);
    }
    if missing > 0 {
        text.push_str(&format!("\n[{missing} bytes of output are left out here]\n"));
    }
    text.push_str(&tail);
    (text, missing)
}

fn result(output: &str, exit_code: i32, error: Option<String>) -> Value {
    json!({ "output": output, "exit_code": exit_code, "error": error })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::builtin::testing::{call, silent, workspace};
    use crate::tools::{BuiltinTools, WorkspaceError};

    fn output(bytes: &[u8]) -> CommandOutput {
        CommandOutput {
            output: bytes.to_vec(),
            gap: None,
            exit_code: 0,
            error: None,
        }
    }

    async fn run(answer: Result<CommandOutput, WorkspaceError>, arguments: Value) -> Value {
        let files = workspace(std::path::Path::new("/"), answer);
        call(&BuiltinTools::new(None), files, "terminal", arguments).await
    }

    #[tokio::test]
    async fn output_is_as_a_terminal_shows_it() {
        for (bytes, shown) in [
            (&b"plain\nlines\n"[..], "plain\nlines\n"),
            (b"\x1b[31mred\x1b[0m\n", "red\n"),
            (b"1%\r50%\r100%\ndone", "100%\ndone"),
            (b"10%\r20%\r", "20%"),
            (b"bad \xff byte", "bad \u{fffd} byte"),
        ] {
            let result = run(Ok(output(bytes)), json!({"command": "x"})).await;
            assert_eq!(result, json!({"output": shown, "exit_code": 0, "error": null}));
        }
    }

    #[tokio::test]
    async fn failures_keep_all_three_keys() {
        let late = CommandOutput {
            output: b"so far".to_vec(),
            gap: None,
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

    #[test]
    fn output_that_is_too_long_keeps_both_ends() {
        const LONGEST: usize = 200_000;
        let long = [&b"begin"[..], &[b'x'; 2 * LONGEST], "é the end".as_bytes()].concat();
        let binary = [&b"begin"[..], &[0xff; LONGEST], b" the end"].concat();
        let gap = |size: usize| CommandOutput {
            gap: Some((size - 8, 1000)),
            ..output(&long[long.len() - size..])
        };
        for done in [output(&long), output(&binary), gap(100), gap(LONGEST + 1)] {
            let (text, missing) = shown(&done, LONGEST);
            assert!(text.len() <= LONGEST + 100);
            assert!(text.ends_with(" the end"));
            assert!(text.starts_with("begin") || text.starts_with('x'));
            assert!(text.contains(&format!("\n[{missing} bytes of output are left out here]\n")));
            assert!(finished(&done)["error"].is_null() == done.gap.is_none());
        }
        assert_eq!(shown(&output(b"all"), LONGEST), ("all".to_owned(), 0));
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
