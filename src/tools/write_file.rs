//! The `write_file` tool.

use serde_json::{Map, Value, json};

use super::builtin::{failure, text};
use super::{CallContext, ToolSpec};

const DOC: &str = "Writes a whole file on the target, replacing what it held.

The text is written exactly as given, in UTF-8, whole or not at all; missing folders are made.
Returns a dict: `bytes_written`, `dirs_created` (folders that had to be made), `resolved_path`
(the absolute path). A failure has only `error`, and the old file is then unchanged.";

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "write_file".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["path", "content"],
            "properties": {
                "path": {
                    "type": "string",
                    "description": "the file; a relative path starts at the session's working \
                                    directory, ~ is the home directory",
                },
                "content": {"type": "string", "description": "the whole text"},
            },
        }),
    }
}

pub(super) async fn call(arguments: &Map<String, Value>, context: &CallContext) -> Value {
    let (path, content) = (text(arguments, "path"), text(arguments, "content"));
    match context.workspace.write(path, content, context.reply.as_ref()).await {
        Ok(written) => json!({
            "bytes_written": written.bytes_written,
            "dirs_created": written.dirs_created,
            "resolved_path": written.resolved_path,
        }),
        Err(error) => failure(error.to_string()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::BuiltinTools;
    use crate::tools::builtin::testing::{call, silent, workspace};

    #[tokio::test]
    async fn keys_of_a_result_and_of_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let host = BuiltinTools::new(None);
        let arguments = json!({"path": "a/b/f.txt", "content": "ü\r\n$(x)\0"});
        let result = call(&host, workspace(&root, silent()), "write_file", arguments).await;
        assert_eq!(
            result,
            json!({
                "bytes_written": 9,
                "dirs_created": [root.join("a"), root.join("a/b")],
                "resolved_path": root.join("a/b/f.txt"),
            })
        );
        assert_eq!(std::fs::read(root.join("a/b/f.txt")).unwrap(), "ü\r\n$(x)\0".as_bytes());
        let arguments = json!({"path": "a", "content": ""});
        let failed = call(&host, workspace(&root, silent()), "write_file", arguments).await;
        assert_eq!(failed.as_object().unwrap().keys().collect::<Vec<_>>(), ["error"]);
    }
}
