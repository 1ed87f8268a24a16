//! Output that was too long to be shown, as resources: read in ranges, by the principal whose script printed it.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rmcp::ErrorData;
use rmcp::model::{MetaObject, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;
use url::Url;

use crate::broker::{Ended, Execution, Executions};
use crate::outcome::Outcome;

/// Bytes that one reading gives, unless it asks for another number, and at most.
const RANGE: u64 = 256 << 10;
const MAX_RANGE: u64 = 4 << 20;

/// How a client builds the address of a part.
const TEMPLATE: &str = "talaria://executions/{execution}/stdout{?offset,limit}";

/// The template of all of them.
pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(TEMPLATE, "stdout")
        .with_title("Whole output of a script")
        .with_description(format!(
            "What a script printed, where that was too long to be shown: `limit` bytes (default {RANGE}, at most {MAX_RANGE}) \
             from byte `offset` on, cut between characters. `_meta` says where the next part begins."
        ))
        .with_mime_type("text/plain")
}

/// The resource of an execution whose output was too long.
pub(super) fn link(execution: &Execution, outcome: &Outcome) -> Option<Resource> {
    let path = outcome.stdout_spill_path.as_deref()?;
    let size = std::fs::symlink_metadata(path).ok()?.len();
    Some(
        Resource::new(format!("talaria://executions/{}/stdout", execution.handle), "stdout")
            .with_title("Whole output of a script")
            .with_description("All that the script printed; read it in ranges with ?offset=BYTES&limit=BYTES")
            .with_mime_type("text/plain")
            .with_size(size),
    )
}

/// What a principal can read.
pub(super) fn list(executions: &Executions, principal: &str) -> Vec<Resource> {
    let found = executions.with_outcome(principal);
    found
        .iter()
        .filter_map(|(execution, outcome)| link(execution, outcome))
        .collect()
}

/// Reads a range.
///
/// # Errors
/// There is no such resource for this principal, or the range is none.
pub(super) fn read(executions: &Executions, principal: &str, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let unknown = || {
        let shown: String = uri.chars().take(200).collect();
        ErrorData::resource_not_found(
            format!(
                "there is no resource {shown:?}: its address is in the answer of a script whose output was too long to be shown, and holds as long as that outcome is kept"
            ),
            Some(json!({"uri": shown})),
        )
    };
    let asked = Address::parse(uri).ok_or_else(unknown)??;
    let execution = executions.get(principal, &asked.execution).ok_or_else(unknown)?;
    let Some(Ended::With(outcome)) = execution.ended() else {
        return Err(unknown());
    };
    let path = outcome.stdout_spill_path.as_deref().ok_or_else(unknown)?;
    let part = Part::read(Path::new(path), asked.offset, asked.limit)
        .map_err(|error| ErrorData::internal_error(format!("{path} cannot be read: {error}"), None))?;
    let mut meta = MetaObject::new();
    meta.insert("offset".to_owned(), part.start.into());
    meta.insert("total_bytes".to_owned(), part.total.into());
    if part.end < part.total {
        meta.insert("next_offset".to_owned(), part.end.into());
    }
    let contents = ResourceContents::TextResourceContents {
        uri: uri.to_owned(),
        mime_type: Some("text/plain".to_owned()),
        text: part.text,
        meta: Some(meta),
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

struct Address {
    execution: String,
    offset: u64,
    limit: u64,
}

impl Address {
    /// `None`: no address of ours. An error: one with a wrong range.
    fn parse(uri: &str) -> Option<Result<Self, ErrorData>> {
        let url = Url::parse(uri).ok()?;
        let execution = url.path().strip_prefix('/')?.strip_suffix("/stdout")?;
        if url.scheme() != "talaria" || url.host_str() != Some("executions") || execution.contains('/') {
            return None;
        }
        let mut address = Self {
            execution: execution.to_owned(),
            offset: 0,
            limit: RANGE,
        };
        for (name, value) in url.query_pairs() {
            let field = match &*name {
                "offset" => &mut address.offset,
                "limit" => &mut address.limit,
                _ => return Some(Err(wrong(&name, "is none of the parameters offset and limit"))),
            };
            match value.parse() {
                Ok(number) => *field = number,
                Err(_) => return Some(Err(wrong(&name, "must be a whole number of bytes"))),
            }
        }
        Some(if (1..=MAX_RANGE).contains(&address.limit) {
            Ok(address)
        } else {
            Err(wrong("limit", &format!("must be 1 to {MAX_RANGE} bytes")))
        })
    }
}

fn wrong(name: &str, problem: &str) -> ErrorData {
    let shown: String = name.chars().take(50).collect();
    ErrorData::invalid_params(format!("the parameter {shown:?} of the address {problem}"), None)
}

/// A part of a text file.
struct Part {
    start: u64,
    end: u64,
    total: u64,
    text: String,
}

impl Part {
    fn read(path: &Path, offset: u64, limit: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let total = file.metadata()?.len();
        let start = offset.min(total);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        // A character has four bytes at most: what is cut at the end is left to the next part.
        file.take(limit.max(4)).read_to_end(&mut bytes)?;
        let skipped = bytes.iter().take(3).take_while(|byte| *byte & 0xc0 == 0x80).count();
        let skipped = if start == 0 { 0 } else { skipped };
        let bytes = &bytes[skipped..];
        let whole = match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
            _ => bytes.len(),
        };
        let start = start + skipped as u64;
        Ok(Self {
            start,
            end: start + whole as u64,
            total,
            text: String::from_utf8_lossy(&bytes[..whole]).into_owned(),
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn ranges_one_after_another_give_the_whole_text() {
        let text = "aä€🦀\n".repeat(50);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("stdout");
        std::fs::write(&path, &text).unwrap();
        for limit in [1, 4, 5, 7, 100, 10_000] {
            let (mut offset, mut read) = (0, String::new());
            while offset < text.len() as u64 {
                let part = Part::read(&path, offset, limit).unwrap();
                assert_eq!(part.start, offset);
                assert!(part.end > offset, "{limit}: stands still at {offset}");
                read.push_str(&part.text);
                offset = part.end;
            }
            assert_eq!(read, text, "{limit}");
        }
        let beyond = Part::read(&path, 1 << 40, 10).unwrap();
        assert_eq!((beyond.text.as_str(), beyond.start), ("", text.len() as u64));
        // From the middle of a character: from the next one on.
        assert_eq!(Part::read(&path, 2, 5).unwrap().text, "€");
    }

    #[test]
    fn a_link_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let link = temp.path().join("stdout");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(Part::read(&link, 0, 10).is_err());
    }

    #[test]
    fn addresses() {
        let parse = |uri| Address::parse(uri).map(|found| found.map(|one| (one.execution, one.offset, one.limit)));
        assert_eq!(
            parse("talaria://executions/execution-1/stdout").unwrap().unwrap(),
            ("execution-1".to_owned(), 0, RANGE)
        );
        assert_eq!(
            parse("talaria://executions/e/stdout?offset=5&limit=7")
                .unwrap()
                .unwrap(),
            ("e".to_owned(), 5, 7)
        );
        for uri in [
            "file:///etc/passwd",
            "talaria://executions/e",
            "talaria://executions/a/../../stdout/x",
            "talaria://other/e/stdout",
            "talaria://executions/a/b/stdout",
            "",
        ] {
            assert!(parse(uri).is_none(), "{uri}");
        }
        for query in ["offset=-1", "limit=0", "limit=99999999", "offset=x", "page=1"] {
            let uri = format!("talaria://executions/e/stdout?{query}");
            assert!(Address::parse(&uri).unwrap().is_err(), "{uri}");
        }
    }
}
