//! Limits of a session and its cells, with their defaults.

use std::time::Duration;

/// One mebibyte.
pub const MIB: u64 = 1024 * 1024;

/// The largest argument or result of a tool call, in bytes of UTF-8 text.
pub const MAX_TOOL_MESSAGE: u64 = 64 * MIB;

/// The longest frame, in bytes, that carries a call or its answer: one control character of text takes
/// six bytes in JSON, and the other arguments need room too.
pub const MAX_CALL_FRAME: u64 = 6 * MAX_TOOL_MESSAGE + MIB;

/// The longest time that can be asked for.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// What a cell may use. Every field can be set in the configuration and again per call.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Time that one cell may run.
    pub timeout: Duration,
    /// Tool calls that one cell may make.
    pub max_tool_calls: u64,
    /// Time after which an idle kernel ends.
    pub kernel_idle_timeout: Duration,
    /// Kernels that one broker keeps alive.
    pub max_session_kernels: usize,
    /// Bytes of stdout that an outcome shows.
    pub max_stdout_bytes: usize,
    /// Bytes of stderr that an outcome shows.
    pub max_stderr_bytes: usize,
    /// Bytes of stdout that are kept in the spill file.
    pub max_spill_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            max_tool_calls: 50,
            kernel_idle_timeout: Duration::from_secs(1800),
            max_session_kernels: 4,
            max_stdout_bytes: 50_000,
            max_stderr_bytes: 10_000,
            max_spill_bytes: 64 * MIB,
        }
    }
}

/// Limits of which some are given; the others come from what is below.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitOverrides {
    /// See [`Limits::timeout`].
    pub timeout: Option<Duration>,
    /// See [`Limits::max_tool_calls`].
    pub max_tool_calls: Option<u64>,
    /// See [`Limits::max_stdout_bytes`].
    pub max_stdout_bytes: Option<usize>,
    /// See [`Limits::max_stderr_bytes`].
    pub max_stderr_bytes: Option<usize>,
    /// See [`Limits::max_spill_bytes`].
    pub max_spill_bytes: Option<u64>,
}

impl Limits {
    /// These limits, with those that are given in place of their own.
    #[must_use]
    pub fn with(&self, given: &LimitOverrides) -> Self {
        Self {
            timeout: given.timeout.unwrap_or(self.timeout),
            max_tool_calls: given.max_tool_calls.unwrap_or(self.max_tool_calls),
            max_stdout_bytes: given.max_stdout_bytes.unwrap_or(self.max_stdout_bytes),
            max_stderr_bytes: given.max_stderr_bytes.unwrap_or(self.max_stderr_bytes),
            max_spill_bytes: given.max_spill_bytes.unwrap_or(self.max_spill_bytes),
            ..self.clone()
        }
    }
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not written as one.
    #[error("`{0}` is no duration; write seconds (`300`) or a text such as `250ms`, `90s`, `5m`, `8h` or `1h30m`")]
    Malformed(String),
    /// It is zero or less.
    #[error("`{0}` is zero or negative; there is no value for \"unlimited\", give a time such as `90s`, `5m` or `8h`")]
    NotPositive(String),
    /// It is beyond [`MAX_DURATION`].
    #[error("`{0}` is longer than a year; give a shorter time")]
    TooLong(String),
}

/// Reads `300`, `0.5s`, `250ms`, `90s`, `5m`, `8h`, `1h30m`: numbers with units from the largest to the
/// smallest, a number alone being seconds.
///
/// # Errors
/// When it is none, not greater than zero, or longer than [`MAX_DURATION`].
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let trimmed = text.trim();
    if trimmed.starts_with('-') && trimmed[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return Err(DurationError::NotPositive(trimmed.to_owned()));
    }
    let mut rest = trimmed;
    let mut seconds = 0.0_f64;
    let mut last_unit = f64::INFINITY;
    if rest.is_empty() {
        return Err(malformed());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| malformed())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "" if rest.is_empty() && last_unit.is_infinite() => 1.0,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(malformed()),
        };
        if unit >= last_unit {
            return Err(malformed());
        }
        last_unit = unit;
        seconds += number * unit;
        rest = &rest[letters..];
    }
    if seconds > MAX_DURATION.as_secs_f64() {
        return Err(DurationError::TooLong(trimmed.to_owned()));
    }
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| malformed())?;
    if duration < Duration::from_millis(1) {
        return Err(DurationError::NotPositive(trimmed.to_owned()));
    }
    Ok(duration)
}

/// A duration as [`parse_duration`] reads it: `5m`, `1h30m`, `90s` as `1m30s`, `2.5s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if !millis.is_multiple_of(1000) {
        return if millis < 1000 {
            format!("{millis}ms")
        } else {
            format_seconds(duration)
        };
    }
    let mut left = duration.as_secs();
    let mut text = String::new();
    for (unit, seconds) in [("h", 3600), ("m", 60), ("s", 1)] {
        if left >= seconds {
            text.push_str(&format!("{}{unit}", left / seconds));
            left %= seconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A duration in seconds alone: `300s`, `2.5s`.
#[must_use]
pub fn format_seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis, written) in [
            ("300", 300_000, "5m"),
            ("0.5s", 500, "500ms"),
            ("250ms", 250, "250ms"),
            ("90s", 90_000, "1m30s"),
            ("5m", 300_000, "5m"),
            ("8h", 28_800_000, "8h"),
            ("1h30m", 5_400_000, "1h30m"),
            (" 2.5 ", 2500, "2.5s"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(format_duration(duration), written, "{text}");
            assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }
        assert_eq!(format_seconds(Duration::from_secs(300)), "300s");
        assert_eq!(format_seconds(Duration::from_millis(1500)), "1.5s");
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "", "abc", "5x", "5m5m", "5s3m", "1h30", "1.2.3", "NaN", "inf", "- 5", "1e400",
        ] {
            assert!(
                matches!(parse_duration(text), Err(DurationError::Malformed(_))),
                "{text}"
            );
        }
        for text in ["0", "0s", "-1", "-5m", "0.0001"] {
            assert!(
                matches!(parse_duration(text), Err(DurationError::NotPositive(_))),
                "{text}"
            );
        }
        assert!(matches!(parse_duration("9000h"), Err(DurationError::TooLong(_))));
    }
}
