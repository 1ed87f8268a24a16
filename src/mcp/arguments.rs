//! Arguments of the tools, once they fit the schemas.

use std::time::Duration;

use rmcp::ErrorData;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::tools::{ToolSpec, validate_arguments};

/// Bytes that a file may have which is put or got: as base64 in a message it stays below what clients and servers take
/// for one line.
pub(super) const MAX_FILE: usize = 8 << 20;

/// Characters of an idempotency key.
pub(super) const MAX_KEY: usize = 200;

/// Of `execute_code`.
#[derive(Debug, Deserialize, Hash)]
pub(super) struct Execute {
    pub(super) code: String,
    pub(super) session: Option<String>,
    #[serde(default)]
    pub(super) reset: bool,
    #[serde(default, deserialize_with = "seconds")]
    pub(super) timeout: Option<Duration>,
    pub(super) target: Option<String>,
    #[serde(default)]
    pub(super) detach: bool,
    #[serde(flatten)]
    pub(super) call: Call,
}

/// Of `execute_code`, but what says how it is called and not what is to run.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    #[serde(default, deserialize_with = "seconds")]
    pub(super) wait: Option<Duration>,
    pub(super) idempotency_key: Option<String>,
}

/// What two calls differ in that run the same has no part in telling them apart.
impl std::hash::Hash for Call {
    fn hash<H: std::hash::Hasher>(&self, _state: &mut H) {}
}

/// Of `execution_status`.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) execution: String,
    #[serde(default, deserialize_with = "seconds")]
    pub(super) wait: Option<Duration>,
}

/// Of `execution_cancel`.
#[derive(Debug, Deserialize)]
pub(super) struct CancelExecution {
    pub(super) execution: String,
}

/// Of a tool that takes none.
#[derive(Debug, Deserialize)]
pub(super) struct Nothing {}

/// Of `session_close`.
#[derive(Debug, Deserialize)]
pub(super) struct CloseSession {
    pub(super) session: String,
}

/// Of `put_file`.
#[derive(Debug, Deserialize)]
pub(super) struct PutFile {
    pub(super) path: String,
    pub(super) content: Option<String>,
    pub(super) base64: Option<String>,
    #[serde(flatten)]
    pub(super) place: Place,
}

/// Of `get_file`.
#[derive(Debug, Deserialize)]
pub(super) struct GetFile {
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) place: Place,
}

/// Which session's file.
#[derive(Debug, Deserialize)]
pub(super) struct Place {
    pub(super) session: Option<String>,
    pub(super) target: Option<String>,
}

/// Reads the arguments of a call.
///
/// # Errors
/// They do not fit the schema: a protocol error that names the argument and says what is right.
pub(super) fn read<T: DeserializeOwned>(
    spec: &ToolSpec,
    arguments: Option<Map<String, Value>>,
) -> Result<T, ErrorData> {
    let mut arguments = arguments.unwrap_or_default();
    // Clients write null for what they leave out.
    let required = spec.schema["required"].as_array().cloned().unwrap_or_default();
    arguments.retain(|name, value| !value.is_null() || required.iter().any(|needed| needed == name));
    let invalid = |sentence: String| ErrorData::invalid_params(sentence, None);
    validate_arguments(spec, &arguments).map_err(invalid)?;
    if let Some(key) = arguments.get("idempotency_key").and_then(Value::as_str)
        && (key.is_empty() || key.chars().nth(MAX_KEY).is_some())
    {
        return Err(invalid(format!(
            "{}: argument \"idempotency_key\" must have 1 to {MAX_KEY} characters",
            spec.name
        )));
    }
    serde_json::from_value(Value::Object(arguments)).map_err(|error| invalid(format!("{}: {error}", spec.name)))
}

fn seconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    seconds
        .map(Duration::try_from_secs_f64)
        .transpose()
        .map_err(serde::de::Error::custom)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::broker::fingerprint;

    fn execute(value: Value) -> Execute {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_same_script_is_told_by_what_runs_and_not_by_how_long_one_waits() {
        let one = execute(json!({"code": "x", "wait": 1, "idempotency_key": "k"}));
        let again = execute(json!({"code": "x", "wait": 2.5}));
        assert_eq!(fingerprint(&one), fingerprint(&again));
        for other in [
            json!({"code": "y"}),
            json!({"code": "x", "reset": true}),
            json!({"code": "x", "timeout": 5}),
            json!({"code": "x", "session": "s"}),
            json!({"code": "x", "target": "t"}),
            json!({"code": "x", "detach": true}),
        ] {
            assert_ne!(fingerprint(&one), fingerprint(&execute(other.clone())), "{other}");
        }
    }
}
