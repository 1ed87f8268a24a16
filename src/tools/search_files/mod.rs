//! The `search_files` tool: lines by a regular expression, files by their names.

mod fields;
mod pattern;
mod python;
mod request;
mod tool;

pub use pattern::Pattern;
pub use python::PythonPattern;
pub use request::{Found, FoundLine, SearchRequest, Told, Wanted};
pub(in crate::tools) use request::{
    LEAD_CHARACTERS, LINE_CHARACTERS, LONGEST_LINE, MOST_RESULTS, MOST_WARNINGS, PAGE_BYTES, RESULT_BYTES,
};
pub(in crate::tools) use tool::{call, spec};
