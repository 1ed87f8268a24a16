//! What the `OTEL_*` variables say of traces.

use std::collections::HashMap;
use std::time::Duration;

use crate::environment::Environment;

/// Where traces go.
#[derive(PartialEq, Eq)]
pub(super) struct Settings {
    /// The whole address.
    pub(super) endpoint: String,
    /// Sent with each request; they may hold keys, and are shown nowhere.
    pub(super) headers: HashMap<String, String>,
    /// The time that one request may take.
    pub(super) timeout: Duration,
    /// Whether nobody named the service.
    pub(super) is_unnamed: bool,
}

/// Traces are asked for that cannot be exported; a sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no traces are exported: {0}")]
pub struct BadSetting(String);

impl BadSetting {
    pub(super) fn because(reason: &dyn std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

const TIMEOUT: Duration = Duration::from_secs(10);
const LOCAL: &str = "http://localhost:4318";

impl Settings {
    /// `None` where nobody asks for traces.
    pub(super) fn of(environment: &Environment) -> Result<Option<Self>, BadSetting> {
        let get = |name: &str| {
            let text = environment.filled(name)?.to_str()?.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let of_traces = |name: &str| {
            let own = get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
            own.or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        if get("OTEL_SDK_DISABLED").is_some_and(|word| word.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        match get("OTEL_TRACES_EXPORTER").as_deref() {
            None if of_traces("ENDPOINT").is_none() => return Ok(None),
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                return Err(BadSetting(format!(
                    "OTEL_TRACES_EXPORTER is {other:?}, and there is only otlp (and none)"
                )));
            }
        }
        match of_traces("PROTOCOL").as_deref() {
            None | Some("http/protobuf") => {}
            Some(other) => {
                return Err(BadSetting(format!(
                    "OTEL_EXPORTER_OTLP_PROTOCOL is {other:?}, and only http/protobuf is spoken; collectors take that on port 4318"
                )));
            }
        }
        let endpoint = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").unwrap_or_else(|| {
            let base = get("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| LOCAL.to_owned());
            format!("{}/v1/traces", base.trim_end_matches('/'))
        });
        let is_address = url::Url::parse(&endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        if !is_address {
            // Not repeated: it may hold a password.
            return Err(BadSetting(
                "OTEL_EXPORTER_OTLP_ENDPOINT is no address such as http://localhost:4318".to_owned(),
            ));
        }
        let millis = of_traces("TIMEOUT").and_then(|text| text.parse().ok());
        let is_named = get("OTEL_SERVICE_NAME").is_some()
            || get("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
        Ok(Some(Self {
            endpoint,
            headers: headers(&of_traces("HEADERS").unwrap_or_default()),
            timeout: millis.map_or(TIMEOUT, Duration::from_millis),
            is_unnamed: !is_named,
        }))
    }
}

/// `name=value,name=value`, values percent-encoded.
fn headers(text: &str) -> HashMap<String, String> {
    text.split(',')
        .filter_map(|entry| {
            let (name, value) = entry.split_once('=')?;
            Some((name.trim().to_owned(), decoded(value.trim())))
        })
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = || u8::from_str_radix(std::str::from_utf8(more.get(..2)?).ok()?, 16).ok();
        match (first, code()) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Settings>, BadSetting> {
        Settings::of(&variables.iter().copied().collect())
    }

    #[test]
    fn nothing_is_exported_unless_somebody_asks() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
                ("OTEL_SDK_DISABLED", "True"),
            ],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
                ("OTEL_TRACES_EXPORTER", "none"),
            ],
        ] {
            assert!(of(variables).unwrap().is_none(), "{variables:?}");
        }
    }

    #[test]
    fn the_variable_of_traces_beats_the_general_one() {
        for (variables, endpoint) in [
            (
                &[("OTEL_TRACES_EXPORTER", "otlp")][..],
                "http://localhost:4318/v1/traces",
            ),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/x/")],
                "https://c/x/v1/traces",
            ),
            (
                &[
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
                    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/in"),
                ],
                "http://d/in",
            ),
        ] {
            assert_eq!(of(variables).unwrap().unwrap().endpoint, endpoint);
        }
        let settings = of(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20YTpi, x-a = 50%,broken",
            ),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=mine"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.headers["authorization"], "Basic YTpi");
        assert_eq!((settings.headers["x-a"].as_str(), settings.headers.len()), ("50%", 2));
        assert_eq!(
            (settings.timeout, settings.is_unnamed),
            (Duration::from_millis(2500), false)
        );
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (name, value, word) in [
            ("OTEL_TRACES_EXPORTER", "zipkin", "only otlp"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "port 4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "no address"),
        ] {
            let refused = of(&[
                ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
                (name, value),
            ]);
            assert!(refused.err().unwrap().to_string().contains(word), "{name}");
        }
    }
}
