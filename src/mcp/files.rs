//! The tools that move a file to where scripts run, and back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::json;

use super::answers;
use super::arguments::{GetFile, MAX_FILE, PutFile};
use super::calls::given_up;
use super::kind::Kind;
use super::server::{Caller, Server};

impl Server {
    pub(super) async fn put_file(
        &self,
        asked: PutFile,
        caller: &Caller,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let content = match (asked.content, asked.base64) {
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => {
                let bare: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
                let decoded = STANDARD.decode(bare).map_err(|error| {
                    let sentence = format!("put_file: argument \"base64\" is no base64: {error}");
                    ErrorData::invalid_params(sentence, None)
                })?;
                Bytes::from(decoded)
            }
            _ => {
                let sentence = "put_file: give what the file holds as either \"content\" (text) or \"base64\"";
                return Err(ErrorData::invalid_params(sentence, None));
            }
        };
        if content.len() > MAX_FILE {
            return Ok(answers::failed(too_large(
                content.len(),
                "make it with a script instead",
            )));
        }
        let (session, target) = (asked.place.session.as_deref(), asked.place.target.as_deref());
        let chosen = match self.choose(&caller.principal, session, target, false) {
            Ok(chosen) => chosen.session,
            Err(error) => return Ok(answers::failed(error.to_string())),
        };
        let written = tokio::select! {
            written = chosen.session.write_file(&asked.path, &content) => written,
            () = context.ct.cancelled() => return Err(given_up()),
            () = caller.gone.cancelled() => return Err(given_up()),
        };
        Ok(match written {
            Ok(path) => answers::structured(json!({
                "path": path, "bytes_written": content.len(), "session": chosen.handle,
            })),
            Err(error) => answers::failed(error.to_string()),
        })
    }

    pub(super) async fn get_file(
        &self,
        asked: GetFile,
        caller: &Caller,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let (session, target) = (asked.place.session.as_deref(), asked.place.target.as_deref());
        let chosen = match self.choose(&caller.principal, session, target, false) {
            Ok(chosen) => chosen.session,
            Err(error) => return Ok(answers::failed(error.to_string())),
        };
        let read = tokio::select! {
            read = chosen.session.read_file(&asked.path) => read,
            () = context.ct.cancelled() => return Err(given_up()),
            () = caller.gone.cancelled() => return Err(given_up()),
        };
        let content = match read {
            Ok(content) => content,
            Err(error) => return Ok(answers::failed(error.to_string())),
        };
        if content.len() > MAX_FILE {
            return Ok(answers::failed(too_large(
                content.len(),
                "make it smaller with a script first, or print part of it",
            )));
        }
        let kind = Kind::of(&content);
        let block = match kind {
            Kind::Image(mime_type) => ContentBlock::image(STANDARD.encode(&content), mime_type),
            Kind::Text => ContentBlock::text(String::from_utf8_lossy(&content)),
            Kind::Blob => ContentBlock::resource(ResourceContents::BlobResourceContents {
                uri: address(&chosen.target, &asked.path),
                mime_type: Some(kind.mime_type().to_owned()),
                blob: STANDARD.encode(&content),
                meta: None,
            }),
        };
        let mut result = CallToolResult::success(vec![block]);
        result.structured_content = Some(json!({
            "path": asked.path,
            "size": content.len(),
            "mime_type": kind.mime_type(),
            "session": chosen.handle,
        }));
        Ok(result)
    }
}

/// What a client may call the file; it is no address that can be read.
fn address(target: &str, path: &str) -> String {
    let mut address = String::from("talaria://files/");
    for part in [target, "/", path] {
        address.extend(url::form_urlencoded::byte_serialize(part.as_bytes()));
    }
    address.replace("%2F", "/")
}

fn too_large(size: usize, advice: &str) -> String {
    format!(
        "the file has {size} bytes, and {} MiB can be moved in one message; {advice}",
        MAX_FILE >> 20
    )
}
