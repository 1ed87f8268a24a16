//! Tool calls and their answers as JSON: the same on every link.
//!
//! A request is the array `[token, cell, tool, arguments]`, an answer any value. The other half is
//! `remote_agent/hermes_calls.py`.

use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;

use super::IncomingCall;
use crate::limits::{MAX_CALL_FRAME, MAX_TOOL_MESSAGE, MIB};

/// Reads a request and checks its token.
///
/// # Errors
/// With the sentence that the caller gets as `error`.
pub(crate) fn parse(body: &[u8], token: &str) -> Result<IncomingCall, String> {
    let (given, cell, tool, arguments): (String, u64, String, Map<String, Value>) = serde_json::from_slice(body)
        .map_err(|error| {
            format!("the call could not be read ({error}); arguments must be plain JSON values of valid Unicode")
        })?;
    if bool::from(given.as_bytes().ct_eq(token.as_bytes())) {
        Ok(IncomingCall {
            cell,
            tool,
            arguments,
            reply: None,
        })
    } else {
        Err("the call carries no valid token of this session and was refused".to_owned())
    }
}

/// What the caller of a request of so many bytes gets, when that is over the limit.
pub(crate) fn too_large(size: u64) -> Value {
    json!({"error": format!(
        "the call is {size} bytes long and the limit is {MAX_TOOL_MESSAGE} bytes (64 MiB) of arguments; pass less at a time, or a file's path"
    )})
}

/// Appends an answer to what is in `body`; an error in place of one that is over the limit.
///
/// # Errors
/// When it cannot be written as JSON.
pub(crate) fn append_answer(body: &mut Vec<u8>, answer: &Value) -> serde_json::Result<()> {
    let start = body.len();
    serde_json::to_writer(&mut *body, answer)?;
    let size = body.len() - start;
    if size as u64 > MAX_CALL_FRAME || text_bytes(answer, size) > MAX_TOOL_MESSAGE + MIB {
        body.truncate(start);
        serde_json::to_writer(
            body,
            &json!({"error": format!(
                "the tool ran, but its result of {size} bytes is over the limit of {MAX_TOOL_MESSAGE} bytes (64 MiB); ask for less at a time"
            )}),
        )?;
    }
    Ok(())
}

/// Bytes of text in a value; `encoded`, an upper bound, spares the count for most.
fn text_bytes(value: &Value, encoded: usize) -> u64 {
    fn count(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(items) => items.iter().map(|item| 1 + count(item)).sum(),
            Value::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + 1 + count(item)).sum(),
            _ => 1,
        }
    }
    if encoded as u64 <= MAX_TOOL_MESSAGE {
        0
    } else {
        count(value)
    }
}
