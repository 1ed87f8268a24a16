//! Where it is written down what was kept of a session's files: an image of Modal's, by its id, in a file of the user's.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What was kept, and of what.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The id of the image.
    pub(super) image: String,
    /// The image that the sandbox was made from, as the user wrote it: of another one nothing was kept.
    pub(super) of: String,
}

/// Reads what was kept of sandboxes of this image; `None` where nothing was.
pub(super) fn read(file: &Path, of: &str) -> Option<String> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(file = %file.display(), %error, "what was kept of the last session cannot be read");
            }
            return None;
        }
    };
    let snapshot: Snapshot = serde_json::from_str(&text).ok()?;
    (snapshot.of == of && super::images::is_built(&snapshot.image)).then_some(snapshot.image)
}

/// Writes it down, for this user alone.
pub(super) fn write(file: &Path, snapshot: &Snapshot) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut aside = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut aside, snapshot)?;
    aside.flush()?;
    aside.persist(file)?;
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_kept_is_found_for_the_same_image_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("new/modal.json");
        assert_eq!(read(&file, "python:3.12"), None);
        let snapshot = Snapshot {
            image: "im-1".into(),
            of: "python:3.12".into(),
        };
        write(&file, &snapshot).unwrap();
        write(&file, &snapshot).unwrap();
        assert_eq!(read(&file, "python:3.12").as_deref(), Some("im-1"));
        assert_eq!(read(&file, "python:3.13"), None);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        for damaged in ["", "{}", r#"{"image": "", "of": "python:3.12"}"#, "[1"] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(read(&file, "python:3.12"), None, "{damaged}");
        }
    }
}
