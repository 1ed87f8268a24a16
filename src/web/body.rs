//! Reading an answer without trusting its length.

use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;

use super::failure::Failure;

/// What came of an answer's body, decoded.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// Whether there was more than was read.
    pub(super) is_cut: bool,
}

/// Reads at most `cap` decoded bytes; decoding goes piece by piece, so what would be more is never in memory.
pub(super) async fn read(mut response: Response, cap: usize) -> Result<Body, Failure> {
    // The client takes the header away when it decodes; what it leaves it cannot read.
    if let Some(encoding) = response.headers().get(CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(Failure::last(format!(
            "the answer is compressed as {encoding:?}, which cannot be read"
        )));
    }
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(Body { bytes, is_cut: false }),
            Ok(Some(chunk)) => {
                let room = cap - bytes.len();
                bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() > room {
                    return Ok(Body { bytes, is_cut: true });
                }
            }
            Err(error) => {
                let mut failure = Failure::of_transport(&error);
                failure.sentence = format!("{}, after {} bytes", failure.sentence, bytes.len());
                return Err(failure);
            }
        }
    }
}
