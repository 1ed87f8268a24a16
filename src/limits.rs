//! Limits of a session and its cells, with their defaults.

use std::time::Duration;

/// One mebibyte.
pub const MIB: u64 = 1024 * 1024;

/// The largest argument or result of a tool call, in bytes of UTF-8 text.
pub const MAX_TOOL_MESSAGE: u64 = 64 * MIB;

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
