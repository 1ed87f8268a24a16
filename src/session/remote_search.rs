//! A search on another target: one verb that its Python carries out.

use crate::kernel::Agent;
use crate::tools::{Found, SearchRequest, Shell, WorkspaceError};

/// Searches as `perform` of `remote_agent/search.py` does.
pub(super) async fn search(agent: &Agent, shell: &Shell, request: SearchRequest) -> Result<Found, WorkspaceError> {
    let fields = super::remote_files::perform(agent, shell, "search", request.to_fields()).await?;
    Found::from_fields(&request, fields)
}
