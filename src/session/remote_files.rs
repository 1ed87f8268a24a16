//! Files of a session on another target: verbs that its supervisor carries out there.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::approval::Names;
use crate::kernel::Agent;
use crate::link::Reply;
use crate::tools::{Page, Protected, ReadRequest, Shell, WorkspaceError, Written};

/// Reads one page, as `read_page` of `remote_agent/workspace.py` gives it.
pub(super) async fn read_page(
    agent: &Agent,
    shell: &Shell,
    request: ReadRequest,
    reply: Option<&Arc<Reply>>,
) -> Result<Page, WorkspaceError> {
    let arguments = vec![
        Bytes::from(request.path),
        Bytes::from(request.offset),
        Bytes::from(request.limit.to_string()),
        Bytes::from_static(if request.raw { b"1" } else { b"" }),
    ];
    let mut fields = perform(agent, shell, "read", arguments, reply).await?.into_iter();
    let content = text(fields.next());
    let total_lines = text(fields.next());
    let file_size = text(fields.next());
    let next_offset = text(fields.next());
    Ok(Page {
        content,
        total_lines: total_lines.parse().ok(),
        file_size: file_size.parse().map_err(|_| malformed())?,
        next_offset: (!next_offset.is_empty()).then_some(next_offset),
    })
}

/// Writes a file whole or not at all, as `write` of `remote_agent/workspace.py` does.
pub(super) async fn write(
    agent: &Agent,
    shell: &Shell,
    path: &str,
    content: &str,
    protected: &Protected,
    reply: Option<&Arc<Reply>>,
) -> Result<Written, WorkspaceError> {
    let mut arguments = vec![
        Bytes::copy_from_slice(path.as_bytes()),
        Bytes::copy_from_slice(content.as_bytes()),
    ];
    arguments.extend_from_slice(protected.patterns());
    let mut fields = perform(agent, shell, "write", arguments, reply).await?.into_iter();
    let bytes_written = text(fields.next());
    Ok(Written {
        bytes_written: bytes_written.parse().map_err(|_| malformed())?,
        resolved_path: text(fields.next()),
        dirs_created: fields.map(|field| text(Some(field))).collect(),
    })
}

/// What paths are called, as `names` of `remote_agent/workspace.py` gives it. Relative `roots` start at `start`.
pub(super) async fn names(
    agent: &Agent,
    shell: &Shell,
    start: &Path,
    roots: &[String],
    paths: &[String],
) -> Result<(Vec<Names>, Vec<Names>), WorkspaceError> {
    let mut arguments = vec![Bytes::from(roots.len().to_string())];
    arguments.extend(roots.iter().map(|root| match root.strip_prefix('~') {
        Some(_) => Bytes::copy_from_slice(root.as_bytes()),
        None => Bytes::from(start.join(root).into_os_string().into_vec()),
    }));
    arguments.extend(paths.iter().map(|path| Bytes::copy_from_slice(path.as_bytes())));
    let fields = perform(agent, shell, "names", arguments, None).await?;
    let path = |field: &Bytes| PathBuf::from(OsString::from_vec(field.to_vec()));
    let mut found: Vec<Names> = fields
        .chunks_exact(3)
        .map(|three| Names {
            plain: path(&three[0]),
            place: path(&three[1]),
            real: path(&three[2]),
        })
        .collect();
    if found.len() != roots.len() + paths.len() {
        return Err(malformed());
    }
    let of_paths = found.split_off(roots.len());
    Ok((found, of_paths))
}

/// Has a verb carried out: the fields of its result.
pub(super) async fn perform(
    agent: &Agent,
    shell: &Shell,
    verb: &'static str,
    arguments: Vec<Bytes>,
    reply: Option<&Arc<Reply>>,
) -> Result<Vec<Bytes>, WorkspaceError> {
    let folder = shell.working_directory();
    let home = shell.place().home.clone().unwrap_or_default();
    agent
        .run_verb(
            verb,
            folder.into_os_string().into_vec(),
            home.into_os_string().into_vec(),
            arguments,
            reply,
        )
        .await
        .map_err(|error| WorkspaceError(format!("the file could not be reached: {error}")))?
        .map_err(WorkspaceError)
}

pub(super) fn text(field: Option<Bytes>) -> String {
    String::from_utf8_lossy(&field.unwrap_or_default()).into_owned()
}

pub(super) fn malformed() -> WorkspaceError {
    WorkspaceError("the target side of the session answered what is no result; run the cell again".to_owned())
}
