//! Answers of the tools: the structured form, and the same as text.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};

use super::spill;
use crate::broker::{Ended, Execution, Progress, Stage};
use crate::outcome::{Outcome, Status};

/// A structured answer, and the same as text.
pub(super) fn structured(value: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(value.to_string())]);
    result.structured_content = Some(value);
    result
}

/// A call that did not do what it was to do: a sentence for the model that must act.
pub(super) fn failed(sentence: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(sentence)])
}

/// A script that was refused before it had an execution.
pub(super) fn refused(target: &str, error: impl Into<String>) -> CallToolResult {
    of_outcome(&Outcome::refused(target, error), Map::new())
}

/// How an execution stands.
pub(super) fn of_execution(execution: &Execution) -> CallToolResult {
    let mut fields = Map::new();
    fields.insert("execution".to_owned(), execution.handle.clone().into());
    fields.insert("session".to_owned(), execution.session.clone().into());
    match execution.ended() {
        Some(Ended::With(outcome)) => {
            let mut result = of_outcome(&outcome, fields);
            if let Some(link) = spill::link(execution, &outcome) {
                result.content.push(ContentBlock::resource_link(link));
            }
            result
        }
        Some(Ended::Forgotten) => failed(format!(
            "the execution {} has ended, and its outcome is not kept any more; what it left are files and the state of its session",
            execution.handle
        )),
        None => structured(under_way(execution, fields)),
    }
}

/// The word for how it stands, as the answers that are about it say it.
pub(super) fn status(execution: &Execution) -> Value {
    match execution.ended() {
        Some(Ended::With(outcome)) => json!(outcome.status),
        _ => stage(&execution.progress()).into(),
    }
}

fn stage(progress: &Progress) -> &'static str {
    match progress.stage {
        Stage::Queued => "queued",
        Stage::Running | Stage::Done => "running",
    }
}

fn of_outcome(outcome: &Outcome, extra: Map<String, Value>) -> CallToolResult {
    // An outcome is plain data, which has a form in JSON.
    let mut value = serde_json::to_value(outcome).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.extend(extra);
    }
    let mut result = structured(value);
    result.is_error = Some(outcome.status != Status::Success);
    result
}

fn under_way(execution: &Execution, mut fields: Map<String, Value>) -> Value {
    let progress = execution.progress();
    let status = stage(&progress);
    let what = if status == "queued" { "has not begun" } else { "goes on" };
    let told = json!({
        "status": status,
        "target": execution.target,
        "elapsed_seconds": (progress.elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        "tool_calls_made": progress.tool_calls,
        "last_line": progress.last_line,
        "notice": format!(
            "the script {what}; call execution_status with this execution for its outcome, execution_cancel to interrupt it"
        ),
    });
    if let Value::Object(told) = told {
        let own = std::mem::take(&mut fields);
        fields.extend(told);
        fields.extend(own);
    }
    Value::Object(fields)
}
