//! How a model is told of `execute_code`: what it is for, which tools its scripts have, and the limits
//! in force.

use std::fmt::Write;

use serde_json::json;

use crate::limits::format_duration;
use crate::session::SessionOptions;
use crate::tools::{ToolSpec, signature};

/// The specification of `execute_code` for a session.
#[must_use]
pub fn execute_code(options: &SessionOptions) -> ToolSpec {
    let specs = options.host.tools().iter();
    let enabled: Vec<&ToolSpec> = specs
        .filter(|spec| !options.disabled_tools.contains(&spec.name))
        .collect();
    ToolSpec {
        name: "execute_code".to_owned(),
        doc: describe(options, &enabled),
        schema: json!({
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "description": "Python source. Print what you want to see: nothing else comes back.",
                },
                "reset": {
                    "type": "boolean",
                    "default": false,
                    "description": "Discard variables and imports of earlier calls first.",
                },
                "timeout": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "description": format!(
                        "Seconds that the script may run (default {}).", options.limits.timeout.as_secs_f64()
                    ),
                },
            },
            "required": ["code"],
            "additionalProperties": false,
        }),
    }
}

fn describe(options: &SessionOptions, enabled: &[&ToolSpec]) -> String {
    let limits = &options.limits;
    let mut text = String::from(
        "Run a Python script that can call tools, and get back only what it prints. Use it for three or more \
         tool calls with logic between them, for filtering or reducing large results, for loops over results. \
         Do not use it for a single tool call, or for one shell command.\n",
    );
    if enabled.is_empty() {
        text.push_str("\nNo tools are enabled; plain Python works.\n");
    } else {
        text.push_str(
            "\nTools, from hermes_tools import …; each returns a dict, whose `error` is set when it failed:\n",
        );
        for spec in enabled {
            let _ = writeln!(text, "  {}", signature(spec));
            // Its lines as they are: some show a form in which lines and blanks matter.
            for line in spec.doc.lines() {
                let _ = writeln!(text, "{}", format!("    {line}").trim_end());
            }
        }
    }
    let state = if options.keep_kernel {
        "Variables and imports are kept from one call to the next; a timeout or an interruption loses them."
    } else {
        "Each call is a script of its own; nothing is kept for the next."
    };
    let _ = write!(
        text,
        "Also there: json_parse(text), shell_quote(s), retry(fn, max_attempts=3, delay=2).\n\n{state}\n\
         Limits: {} a script, {} tool calls, {} bytes of output shown (more goes to a file that read_file reads). \
         The script runs on {}; standard input is empty.",
        format_duration(limits.timeout),
        limits.max_tool_calls,
        limits.max_stdout_bytes,
        options.target,
    );
    text
}
