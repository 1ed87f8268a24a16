//! The `web_extract` tool.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::builtin::failure;
use super::read_file::whole;
use super::{CallContext, ToolSpec};
use crate::limits::MAX_TOOL_MESSAGE;
use crate::output::keep_page;
use crate::web::{Page, Web, WebError};

/// Addresses that one call may name.
const MOST_URLS: usize = 20;

/// Characters of all pages of a call together that a result has room for. In JSON a character takes six bytes at most
/// (as four bytes of UTF-8, or an escape); half of the room is left for the rest.
#[expect(clippy::cast_possible_truncation, reason = "it is a constant of 64 MiB")]
const ROOM: usize = MAX_TOOL_MESSAGE as usize / 12;

const DOC: &str = "Reads web pages: fetches them and gives their main content as markdown.

Takes one URL or a list of up to 20, which are read side by side. Text, JSON and markdown come as
they are, a PDF as its text. Returns a dict: `results`, a list of dicts in the order of the URLs,
each with `url`, `title`, `content` and `error` (None where the page was read; else a sentence,
and title and content are empty). Of a page whose text is longer than char_limit come its
beginning and its end, with a line between them, not counted, that names the file from which
read_file gives all of it. A call that is
wrong as a whole has only `error`.";

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "web_extract".into(),
        doc: DOC.into(),
        schema: json!({
            "type": "object",
            "required": ["urls"],
            "properties": {
                "urls": {
                    "type": ["array", "string"], "items": {"type": "string"},
                    "description": "the addresses, with http:// or https://",
                },
                "char_limit": {
                    "type": "integer", "default": null, "minimum": 1,
                    "description": "characters of each page's text at most; None is the configured limit (15,000)",
                },
            },
        }),
    }
}

pub(super) async fn call(
    arguments: &Map<String, Value>,
    context: &CallContext,
    web: &Web,
    spill_dir: Option<&Path>,
) -> Value {
    let urls: Vec<String> = match arguments.get("urls") {
        Some(Value::String(url)) => vec![url.clone()],
        Some(Value::Array(urls)) => urls.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    if urls.len() > MOST_URLS {
        return failure(format!(
            "web_extract: {} URLs are too many for one call; give at most {MOST_URLS}, and the rest in further calls",
            urls.len()
        ));
    }
    let limit = arguments
        .get("char_limit")
        .and_then(whole)
        .map_or(web.options().extract.char_limit, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
    let limit = limit.min(ROOM / urls.len().max(1));
    let pages = tokio::select! {
        () = context.cancel.cancelled() => return failure("web_extract: the cell has ended"),
        pages = web.extract(&urls) => pages,
    };
    let results: Vec<Value> = urls
        .iter()
        .zip(pages)
        .map(|(url, page)| result(url, page, limit, spill_dir))
        .collect();
    json!({ "results": results })
}

fn result(url: &str, page: Result<Page, WebError>, limit: usize, spill_dir: Option<&Path>) -> Value {
    match page {
        Ok(page) => {
            let content = shown(page.content, limit, spill_dir);
            json!({"url": url, "title": page.title, "content": content, "error": null})
        }
        Err(error) => {
            let named: String = url.chars().take(300).collect();
            json!({"url": url, "title": "", "content": "", "error": format!("{named}: {error}")})
        }
    }
}

/// A page's text, or its beginning and end where it is longer than `limit` characters. Of what is left out most stands
/// before the end, as pages say first what matters.
fn shown(content: String, limit: usize, spill_dir: Option<&Path>) -> String {
    let length = content.chars().count();
    if length <= limit {
        return content;
    }
    let tail = limit / 4;
    let head_end = byte_at(&content, limit - tail);
    let tail_start = byte_at(&content, length - tail);
    let place = match spill_dir.map(|folder| keep_page(folder, &content)) {
        Some(Ok(path)) => format!("; all of it is in {}, page through it with read_file", path.display()),
        Some(Err(why)) => format!("; they could not be kept: {why}"),
        None => "; give a larger char_limit to see them".to_owned(),
    };
    // One line, whatever a path or an error of the system holds.
    let place = place.replace(['\n', '\r'], " ");
    format!(
        "{}\n\n[… {} characters left out{place} …]\n\n{}",
        &content[..head_end],
        length - limit,
        &content[tail_start..]
    )
}

/// Where the character with that number begins.
fn byte_at(text: &str, number: usize) -> usize {
    text.char_indices().nth(number).map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;
    use crate::tools::BuiltinTools;
    use crate::tools::builtin::testing::{call, silent, workspace};

    #[test]
    fn a_long_page_is_shown_from_both_ends_and_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        let page = |content: &str| Page {
            title: "T".into(),
            content: content.into(),
        };
        let whole = result("u", Ok(page("12345678")), 8, Some(folder.path()));
        assert_eq!(
            whole,
            json!({"url": "u", "title": "T", "content": "12345678", "error": null})
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

        let long = "€2345678é";
        let cut = result("u", Ok(page(long)), 8, Some(folder.path()));
        let content = cut["content"].as_str().unwrap();
        assert!(
            content.starts_with("€23456\n\n[… 1 characters left out; all of it is in /"),
            "{content}"
        );
        assert!(content.ends_with("with read_file …]\n\n8é"), "{content}");
        let path = content
            .split("all of it is in ")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), long);

        for (folder, word) in [
            (None, "larger char_limit"),
            (Some(Path::new("/dev/null/x")), "could not be kept"),
        ] {
            let cut = result("u", Ok(page(long)), 8, folder);
            assert!(cut["content"].as_str().unwrap().contains(word), "{cut}");
        }
    }

    #[tokio::test]
    async fn keys_are_always_the_same() {
        let host = BuiltinTools::new(None);
        let files = workspace(Path::new("/"), silent());
        let urls = json!({"urls": ["http://127.0.0.1:1/", "nonsense", "ftp://example.org/"]});
        let result = call(&host, files.clone(), "web_extract", urls).await;
        for (one, word) in
            result["results"]
                .as_array()
                .unwrap()
                .iter()
                .zip(["loopback", "https://nonsense", "only http"])
        {
            assert_eq!(
                one.as_object().unwrap().keys().collect::<Vec<_>>(),
                ["url", "title", "content", "error"]
            );
            assert!(one["error"].as_str().unwrap().contains(word), "{one}");
        }
        let single = call(&host, files.clone(), "web_extract", json!({"urls": "http://[::1]/"})).await;
        assert_eq!(single["results"][0]["url"], "http://[::1]/");
        let none = call(&host, files.clone(), "web_extract", json!({"urls": []})).await;
        assert_eq!(none, json!({"results": []}));
        for (arguments, word) in [
            (json!({"urls": vec!["http://a/"; 21]}), "at most 20"),
            (json!({"urls": [1]}), "only string values"),
            (json!({"urls": "http://a/", "char_limit": 0}), "at least 1"),
            (json!({}), "missing"),
        ] {
            let wrong = call(&host, files.clone(), "web_extract", arguments).await;
            assert!(wrong["error"].as_str().unwrap().contains(word), "{wrong}");
        }
    }
}
