//! A search on another target: one verb that its Python carries out.

use std::sync::Arc;

use crate::kernel::Agent;
use crate::link::Reply;
use crate::tools::{Found, SearchRequest, Shell, WorkspaceError};

/// Searches as `perform` of `remote_agent/search.py` does.
pub(super) async fn search(
    agent: &Agent,
    shell: &Shell,
    request: SearchRequest,
    reply: Option<&Arc<Reply>>,
) -> Result<Found, WorkspaceError> {
    let fields = super::remote_files::perform(agent, shell, "search", request.to_fields(), reply).await?;
    Found::from_fields(&request, fields)
}
