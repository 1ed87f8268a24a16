//! Changes of files on another target: verbs that the session's supervisor carries out there.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::remote_files::{malformed, perform};
use crate::kernel::Agent;
use crate::link::Reply;
use crate::tools::{ChangeError, Fetched, FetchedFile, FileChange, Shell, WorkspaceError};

/// What there is under some paths, as `fetch` of `remote_agent/changes.py` gives it.
pub(super) async fn fetch(agent: &Agent, shell: &Shell, paths: Vec<String>) -> Result<Vec<Fetched>, WorkspaceError> {
    let count = paths.len();
    let paths = paths.into_iter().map(Bytes::from).collect();
    let fields = perform(agent, shell, "fetch", paths, None).await?;
    let found: Result<Vec<Fetched>, WorkspaceError> = fields.chunks(6).map(fetched).collect();
    found.and_then(|found| {
        if found.len() == count {
            Ok(found)
        } else {
            Err(malformed())
        }
    })
}

fn fetched(fields: &[Bytes]) -> Result<Fetched, WorkspaceError> {
    let [kind, place, file, link, content, version] = fields else {
        return Err(malformed());
    };
    let (place, file) = (place.clone(), file.clone());
    let link = (!link.is_empty()).then(|| link.clone());
    let reason = || String::from_utf8_lossy(content).into_owned();
    match (&kind[..], link) {
        (b"missing", link) => Ok(Fetched::Missing {
            place,
            file,
            link,
            reason: reason(),
        }),
        (b"link", Some(link)) => Ok(Fetched::Link {
            place,
            file,
            link,
            reason: reason(),
        }),
        (b"file", link) => Ok(Fetched::File(FetchedFile {
            place,
            file,
            link,
            content: content.clone(),
            version: version.clone(),
        })),
        _ => Err(malformed()),
    }
}

/// Makes all changes or none, as `change` of `remote_agent/changes.py` does.
pub(super) async fn change(
    agent: &Agent,
    shell: &Shell,
    changes: Vec<FileChange>,
    reply: Option<(&Arc<Reply>, &Value)>,
) -> Result<(), ChangeError> {
    let made = reply.map(|(_, result)| Bytes::from(result.to_string()));
    let mut arguments = vec![made.unwrap_or_default()];
    for change in changes {
        match change {
            FileChange::Create { place, content, like } => {
                arguments.extend([
                    Bytes::from_static(b"create"),
                    place,
                    like.unwrap_or_default(),
                    Bytes::from_static(b"1"),
                    content,
                ]);
            }
            FileChange::Edit { found, splices } => {
                let count = splices.len().to_string().into();
                arguments.extend([Bytes::from_static(b"edit"), found.place, found.version, count]);
                for splice in splices {
                    arguments.push(format!("{} {}", splice.range.start, splice.range.end).into());
                    arguments.push(splice.bytes);
                }
            }
            FileChange::Remove { found } => {
                let none = Bytes::from_static(b"0");
                arguments.extend([Bytes::from_static(b"remove"), found.place, found.version, none]);
            }
            FileChange::Unlink { place, link } => {
                let none = Bytes::from_static(b"0");
                arguments.extend([Bytes::from_static(b"unlink"), place, link, none]);
            }
        }
    }
    let answer = perform(agent, shell, "change", arguments, reply.map(|(reply, _)| reply)).await?;
    match &answer[..] {
        [done] if done == "done" => Ok(()),
        [kind, sentence] if kind == "conflict" => {
            Err(ChangeError::Conflict(String::from_utf8_lossy(sentence).into_owned()))
        }
        _ => Err(malformed().into()),
    }
}
