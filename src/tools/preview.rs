//! What a call would change, for whoever has to decide on it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::builtin::text;
use super::{ReadRequest, Workspace, patch};

/// Time in which a preview is made or left out.
const LIMIT: Duration = Duration::from_secs(5);
/// Lines of a file that is compared.
const MOST_LINES: u64 = 2000;

/// The diff that a call of `patch` or `write_file` would make, where that is cheap to find out. Nothing is changed, and
/// a call that would fail has none.
pub async fn preview(tool: &str, arguments: &Map<String, Value>, workspace: &dyn Workspace) -> Option<String> {
    let made = async {
        match tool {
            "patch" => patch::preview(arguments, workspace).await,
            "write_file" => written(text(arguments, "path"), text(arguments, "content"), workspace).await,
            _ => None,
        }
    };
    tokio::time::timeout(LIMIT, made).await.ok().flatten()
}

async fn written(path: &str, content: &str, workspace: &dyn Workspace) -> Option<String> {
    let request = ReadRequest {
        path: path.to_owned(),
        offset: "1".to_owned(),
        limit: MOST_LINES,
        raw: true,
    };
    let page = workspace.read_page(request, None).await.ok()?;
    let is_whole = page.next_offset.is_none() && content.len() <= 8 * patch::MOST_DIFF;
    is_whole.then(|| patch::exchanged(path, &page.content, content))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::builtin::testing::{silent, workspace};

    #[tokio::test]
    async fn changes_are_shown_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "one\ntwo\n").unwrap();
        let files = workspace(folder.path(), silent());
        for (tool, arguments, expected) in [
            (
                "write_file",
                json!({"path": "a", "content": "one\nzwei\n"}),
                Some("--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"),
            ),
            (
                "patch",
                json!({"path": "a", "old_string": "two", "new_string": "zwei"}),
                Some("--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"),
            ),
            ("write_file", json!({"path": "new", "content": "x"}), None),
            (
                "patch",
                json!({"path": "a", "old_string": "drei", "new_string": ""}),
                None,
            ),
            ("terminal", json!({"command": "ls"}), None),
        ] {
            let found = preview(tool, arguments.as_object().unwrap(), &*files).await;
            assert_eq!(found.as_deref(), expected, "{tool} {arguments}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"one\ntwo\n");
        assert!(!folder.path().join("new").exists());
    }
}
