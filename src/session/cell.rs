//! What a caller hands over.

use std::sync::Arc;

use super::cancel::Cancel;
use crate::approval::{Approver, Policy};
use crate::limits::LimitOverrides;
use crate::output::Stream;
use crate::telemetry::TraceContext;
use crate::tools::ToolHost;

/// The text of a cell.
#[derive(Clone, Debug)]
pub enum CellSource {
    /// Text, as a model wrote it.
    Text(String),
    /// The bytes of a file, whose coding comment counts.
    File(Vec<u8>),
}

impl CellSource {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::File(bytes) => bytes,
        }
    }

    pub(super) fn lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

/// Receives a cell's output as it is printed: valid UTF-8, secret values masked.
pub trait OutputSink: Send + Sync {
    /// Takes a piece. Called in order; it should return soon, for the cell waits meanwhile.
    fn write(&self, stream: Stream, text: &str);
    /// The number of admitted tool calls has changed.
    fn tool_calls(&self, _made: u64) {}
    /// One line of what is done before the script can begin (an image that is fetched); the next one replaces it.
    fn progress(&self, _line: &str) {}
    /// The script has begun: what came before does not count against its timeout.
    fn started(&self) {}
}

/// One run: the source, and what it may do.
#[derive(Clone)]
pub struct Cell {
    /// What runs.
    pub source: CellSource,
    /// What the source is called, for instance the stem of a script's file name.
    pub name: Option<String>,
    /// `sys.argv[1:]`.
    pub arguments: Vec<Vec<u8>>,
    /// Limits that differ from the session's for this cell.
    pub limits: LimitOverrides,
    /// Tools that the cell may call; all of the session's when `None`.
    pub allowed_tools: Option<Vec<String>>,
    /// Who answers them; the session's host when `None`. Its tools must have the same signatures.
    pub host: Option<Arc<dyn ToolHost>>,
    /// What may happen with them; the session's rules when `None`.
    pub policy: Option<Arc<Policy>>,
    /// Who is asked where the rules say so; the session's when `None`.
    pub approver: Option<Arc<dyn Approver>>,
    /// Discard the kernel's state first.
    pub reset: bool,
    /// Where output goes while the cell runs.
    pub sink: Option<Arc<dyn OutputSink>>,
    /// The caller's switch.
    pub cancel: Cancel,
    /// The trace that the caller is in.
    pub trace: Option<TraceContext>,
}

impl Cell {
    /// A cell of text with the session's limits and tools.
    #[must_use]
    pub fn new(source: impl Into<String>) -> Self {
        Self::of(CellSource::Text(source.into()))
    }

    /// A cell of a file's bytes.
    #[must_use]
    pub fn from_file(source: impl Into<Vec<u8>>) -> Self {
        Self::of(CellSource::File(source.into()))
    }

    fn of(source: CellSource) -> Self {
        Self {
            source,
            name: None,
            arguments: Vec::new(),
            limits: LimitOverrides::default(),
            allowed_tools: None,
            host: None,
            policy: None,
            approver: None,
            reset: false,
            sink: None,
            cancel: Cancel::new(),
            trace: None,
        }
    }

    /// The file name under which the source runs as cell `number`.
    pub(super) fn file_name(&self, number: u64) -> String {
        let stem: String = self
            .name
            .iter()
            .flat_map(|name| name.chars())
            .map(|c| if c.is_alphanumeric() || c == '-' { c } else { '_' })
            .take(60)
            .collect();
        if stem.is_empty() {
            format!("cell_{number}.py")
        } else {
            format!("cell_{number}_{stem}.py")
        }
    }
}
