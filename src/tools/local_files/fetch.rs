//! Reads a file whole, for whoever wants to change it.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::write::behind_links;
use super::{Fetched, WorkspaceError, failed, source};
use crate::approval::Names;
use crate::tools::FetchedFile;

/// The largest file that is changed: as much as an argument or a result may hold.
const MOST_BYTES: u64 = 64 << 20;

pub(super) fn fetch(path: &Path) -> Result<Fetched, WorkspaceError> {
    if path.as_os_str().as_bytes().ends_with(b"/") && !path.is_dir() {
        let text = format!("{} is the name of a folder; add a file name", path.display());
        return Err(WorkspaceError(text));
    }
    let link = path.read_link().ok().map(|to| bytes_of(&to));
    match (behind(path, link.clone()), link, path.parent(), path.file_name()) {
        // A link can go whatever is behind it.
        (Err(error), Some(link), Some(parent), Some(name)) => Ok(Fetched::Link {
            place: bytes_of(path),
            file: bytes_of(&real(parent).join(name)),
            link,
            reason: error.to_string(),
        }),
        (found, ..) => found,
    }
}

/// What there is behind links.
fn behind(path: &Path, link: Option<Bytes>) -> Result<Fetched, WorkspaceError> {
    let fail = |error: io::Error| failed("read", path, &error);
    let place = bytes_of(path);
    let file = bytes_of(&real(&behind_links(path).map_err(fail)?));
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = fail(error).to_string();
            return Ok(Fetched::Missing {
                place,
                file,
                link,
                reason,
            });
        }
        Err(error) => return Err(fail(error)),
    };
    source::refuse_special(path, &metadata)?;
    let mut opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(fail)?;
    let metadata = opened.metadata().map_err(fail)?;
    source::refuse_special(path, &metadata)?;
    let too_large = || {
        WorkspaceError(format!(
            "{} is larger than the {} MiB up to which files are changed here; use terminal() or Python",
            path.display(),
            MOST_BYTES >> 20
        ))
    };
    if metadata.len() > MOST_BYTES {
        return Err(too_large());
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default() + 1);
    opened
        .by_ref()
        .take(MOST_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(fail)?;
    if content.len() as u64 > MOST_BYTES {
        return Err(too_large());
    }
    Ok(Fetched::File(FetchedFile {
        place,
        file,
        link,
        content: content.into(),
        version: Bytes::new(), // the content itself is compared
    }))
}

/// The path without `.` and `..`; links stay as they are.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// What a path is called.
pub(super) fn names(path: &Path) -> Names {
    let place = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => real(path),
    };
    Names {
        plain: plain(path),
        place,
        // A link may lead to what is not there: written through it, it will be.
        real: real(&behind_links(path).unwrap_or_else(|_| path.to_owned())),
    }
}

/// The path with links among its folders followed, as far as they exist.
pub(super) fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), _, _) => real,
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        // `missing/..`: the folder will be made, and this leads out of it again.
        (Err(_), Some(parent), None) => {
            let mut above = real(parent);
            above.pop();
            above
        }
        _ => path.to_path_buf(),
    }
}

fn bytes_of(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}
