//! The tools that a script may call, and who answers them.

mod arguments;
mod builtin;
mod local_files;
mod patch;
mod preview;
mod protected;
mod read_file;
mod search_files;
mod shell;
mod spec;
mod spill_files;
mod stub;
mod subject;
mod terminal;
mod web_extract;
mod web_search;
mod workspace;
mod write_file;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::link::Reply;

pub use arguments::validate_arguments;
pub use builtin::BuiltinTools;
pub use local_files::LocalFiles;
pub(crate) use local_files::plain;
pub use patch::{Patched, patched, replaced};
pub use preview::preview;
pub use protected::Protected;
pub use search_files::{Found, FoundLine, Pattern, PythonPattern, SearchRequest, Told, Wanted};
pub use shell::{LoginTicket, Shell, ShellPlan, StateTicket};
pub use spec::{HELPERS, SpecError, check_specs};
pub use stub::{CallPath, signature, stub_source};
pub use subject::{ActsOn, acts_on};
pub use workspace::{
    ChangeError, CommandOutput, CommandRequest, Fetched, FetchedFile, FileChange, Page, ReadRequest, Splice, Workspace,
    WorkspaceError, Written,
};

/// A tool as scripts and models see it.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// The name of the function in `hermes_tools`; a Python identifier.
    pub name: String,
    /// What it does and what it returns; becomes the function's docstring.
    pub doc: String,
    /// A JSON schema of type `object`. The order of `properties` is the positional order.
    pub schema: Value,
}

/// One admitted call: the name is on the cell's allow-list and the arguments fit the schema.
#[derive(Clone, Debug)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// The arguments given; defaults of the schema are not filled in.
    pub arguments: Map<String, Value>,
}

/// What a tool host may use to answer a call.
#[derive(Clone)]
pub struct CallContext {
    /// Cancelled when the cell ends or the caller hangs up; the answer is then dropped.
    pub cancel: CancellationToken,
    /// Files and commands of the session's target.
    pub workspace: Arc<dyn Workspace>,
    /// The caller, where the target may answer a built-in tool.
    pub(crate) reply: Option<Arc<Reply>>,
}

/// Answers tool calls. The built-in tools are one; an embedding agent brings its own.
#[async_trait]
pub trait ToolHost: Send + Sync {
    /// The tools on offer; the script's `hermes_tools` module is generated from them.
    fn tools(&self) -> &[ToolSpec];
    /// Answers one call. A failure is an object with an `error` key.
    async fn call(&self, call: ToolCall, context: &CallContext) -> Value;
    /// Whether the target may answer a built-in tool's call to the script before [`ToolHost::call`] returns, which saves
    /// a round trip: only where this host gives what [`BuiltinTools`] gives, unaltered. No by default.
    fn passes_answers_on(&self) -> bool {
        false
    }
}
