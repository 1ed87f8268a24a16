//! Spans of a session, named as the semantic conventions for generative AI have it.

use tracing::field::Empty;
use tracing::{Span, info_span};

use super::cell::Cell;
use crate::audit::Decision;
use crate::outcome::{Outcome, Status};
use crate::telemetry::TARGET;

/// Of a cell, from its coming to its outcome.
pub(super) fn cell(cell: &Cell, session: &str, number: u64, target: &str) -> Span {
    let span = info_span!(
        target: TARGET,
        "execute_code",
        otel.kind = "internal",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = "execute_code",
        gen_ai.tool.type = "function",
        talaria.session = session,
        talaria.cell = number,
        talaria.target = target,
        talaria.status = Empty,
        talaria.tool_calls = Empty,
        process.exit.code = Empty,
        error.r#type = Empty,
        otel.status_code = Empty,
    );
    if let Some(context) = &cell.trace {
        context.adopt(&span);
    }
    span
}

/// What a cell came to.
pub(super) fn cell_ended(span: &Span, outcome: &Outcome) {
    let status = match outcome.status {
        Status::Success => "success",
        Status::Error => "error",
        Status::Timeout => "timeout",
        Status::Interrupted => "interrupted",
    };
    span.record("talaria.status", status);
    span.record("talaria.tool_calls", outcome.tool_calls_made);
    if let Some(code) = outcome.exit_code {
        span.record("process.exit.code", code);
    }
    if outcome.status != Status::Success {
        span.record("error.type", status);
        span.record("otel.status_code", "ERROR");
    }
}

/// A step on the way to a cell.
pub(super) fn phase(name: &'static str) -> Span {
    info_span!(target: TARGET, "phase", otel.name = name, otel.kind = "internal")
}

/// Of a tool call, in the span of its cell.
pub(super) fn call(of_cell: &Span, tool: &str, id: &str) -> Span {
    if of_cell.is_disabled() {
        return Span::none();
    }
    info_span!(
        target: TARGET,
        parent: of_cell,
        "execute_tool",
        otel.name = format!("execute_tool {tool}"),
        otel.kind = "internal",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool,
        gen_ai.tool.call.id = id,
        gen_ai.tool.type = "function",
        talaria.decision = Empty,
        error.r#type = Empty,
        otel.status_code = Empty,
    )
}

/// What a call came to.
pub(super) fn call_ended(span: &Span, decision: &Decision, failed: bool) {
    let word = match decision {
        Decision::Allowed => "allowed",
        Decision::Asked { allowed: true, .. } => "asked: allowed",
        Decision::Asked { allowed: false, .. } => "asked: denied",
        Decision::Denied(_) => "denied",
        Decision::Refused(_) => "refused",
    };
    span.record("talaria.decision", word);
    if failed {
        span.record(
            "error.type",
            if word.ends_with("allowed") {
                "tool_error"
            } else {
                "refused"
            },
        );
        span.record("otel.status_code", "ERROR");
    }
}
