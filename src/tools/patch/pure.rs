//! The engine without any files: for tests, and for who keeps files in memory.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::plan::{Request, spliced};
use super::v4a;
use crate::tools::{Fetched, FetchedFile, FileChange};

/// What became of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patched {
    /// All files, also those that are as they were.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The unified diff.
    pub diff: String,
}

/// Replaces one text by another in a file.
///
/// # Errors
/// A sentence that says why not, and what to do.
pub fn replaced(content: &[u8], old: &str, new: &str, all: bool) -> Result<Patched, String> {
    let request = Request::Replace {
        path: "file".to_owned(),
        old: old.to_owned(),
        new: new.to_owned(),
        all,
    };
    carry_out(&request, BTreeMap::from([("file".to_owned(), content.to_vec())]))
}

/// Applies a patch in the V4A format to files by their paths.
///
/// # Errors
/// A sentence that names the file or the line of the patch.
pub fn patched(files: BTreeMap<String, Vec<u8>>, patch: &str) -> Result<Patched, String> {
    carry_out(&Request::Patch(v4a::parse(patch)?), files)
}

fn carry_out(request: &Request, mut files: BTreeMap<String, Vec<u8>>) -> Result<Patched, String> {
    let fetched: Vec<Fetched> = request.paths().iter().map(|path| fetched(&files, path)).collect();
    let mut plan = request.plan(&fetched)?;
    let name = |place: &Bytes| String::from_utf8_lossy(place).into_owned();
    for change in std::mem::take(&mut plan.changes) {
        match change {
            FileChange::Create { place, content, .. } => files.insert(name(&place), content.into()),
            FileChange::Edit { found, splices } => {
                files.insert(name(&found.place), spliced(&found.content, &splices).into())
            }
            FileChange::Remove { found } => files.remove(&name(&found.place)),
            FileChange::Unlink { place, .. } => files.remove(&name(&place)),
        };
    }
    Ok(Patched {
        files,
        diff: plan.diff(),
    })
}

fn fetched(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Fetched {
    let place = Bytes::copy_from_slice(path.as_bytes());
    let file = place.clone();
    match files.get(path) {
        Some(content) => Fetched::File(FetchedFile {
            place,
            file,
            link: None,
            content: content.clone().into(),
            version: Bytes::new(),
        }),
        None => Fetched::Missing {
            place,
            file,
            link: None,
            reason: format!("{path} does not exist"),
        },
    }
}
