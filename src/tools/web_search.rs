//! The `web_search` tool.

use serde_json::{Map, Value, json};

use super::builtin::{failure, text};
use super::read_file::whole;
use super::{CallContext, ToolSpec};
use crate::web::{Hit, Web};

const DEFAULT_LIMIT: u64 = 5;

const DOC: &str = "Searches the web.

Returns a dict: `data`, a dict whose `web` is a list of dicts, the best result first, each with
`url`, `title` and `description` (a few sentences of the page; web_extract gives the page itself).
The list is empty when nothing was found. A provider that is busy is asked up to three times. A
failure has only `error`.";

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "web_search".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["query"],
            "properties": {
                "query": {"type": "string", "description": "what to look for, as one types it into a search engine"},
                "limit": {
                    "type": "integer", "default": DEFAULT_LIMIT, "minimum": 1, "maximum": 100,
                    "description": "results at most, up to 100",
                },
            },
        }),
    }
}

pub(super) async fn call(arguments: &Map<String, Value>, context: &CallContext, web: &Web) -> Value {
    let query = text(arguments, "query").trim();
    if query.is_empty() {
        return failure("web_search: the query is empty; say what to look for");
    }
    let limit = arguments.get("limit").and_then(whole).unwrap_or(DEFAULT_LIMIT);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    tokio::select! {
        () = context.cancel.cancelled() => failure("web_search: the cell has ended"),
        found = web.search(query, limit) => match found {
            Ok(hits) => json!({"data": {"web": hits.iter().map(result).collect::<Vec<_>>()}}),
            Err(error) => failure(format!("web_search: {error}")),
        },
    }
}

fn result(hit: &Hit) -> Value {
    json!({"url": hit.url, "title": hit.title, "description": hit.description})
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::BuiltinTools;
    use crate::tools::builtin::testing::{call, silent, workspace};

    #[tokio::test]
    async fn failures_say_what_to_do() {
        let host = BuiltinTools::new(None);
        let files = workspace(std::path::Path::new("/"), silent());
        for (arguments, word) in [
            (json!({"query": "x"}), "BRAVE_API_KEY"),
            (json!({"query": "x"}), "SEARXNG_URL"),
            (json!({"query": "  "}), "the query is empty"),
            (json!({}), "missing"),
            (json!({"query": "x", "limit": 0}), "at least 1"),
            (json!({"query": "x", "limit": 101}), "at most 100"),
            (json!({"query": ["x"]}), "must be string"),
        ] {
            let result = call(&host, files.clone(), "web_search", arguments).await;
            assert!(result["error"].as_str().unwrap().contains(word), "{result}");
            assert_eq!(result.as_object().unwrap().len(), 1);
        }
    }
}
