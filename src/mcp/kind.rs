//! What a file holds, as far as a client must know to show it.

/// The kinds of content that MCP tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An image, with its MIME type.
    Image(&'static str),
    /// Text in UTF-8.
    Text,
    /// Anything else.
    Blob,
}

impl Kind {
    /// Told by the content itself: a name says little of it.
    pub(super) fn of(content: &[u8]) -> Self {
        let riff = content.len() >= 12 && content.starts_with(b"RIFF");
        match content {
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Self::Image("image/png"),
            [0xff, 0xd8, 0xff, ..] => Self::Image("image/jpeg"),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Self::Image("image/gif"),
            _ if riff && &content[8..12] == b"WEBP" => Self::Image("image/webp"),
            _ if std::str::from_utf8(content).is_ok_and(|text| !text.contains('\0')) => Self::Text,
            _ => Self::Blob,
        }
    }

    /// The MIME type.
    pub(super) fn mime_type(self) -> &'static str {
        match self {
            Self::Image(mime_type) => mime_type,
            Self::Text => "text/plain",
            Self::Blob => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_their_first_bytes() {
        for (content, kind) in [
            (&b"\x89PNG\r\n\x1a\n...."[..], Kind::Image("image/png")),
            (b"\xff\xd8\xff\xe0..", Kind::Image("image/jpeg")),
            (b"GIF89a..", Kind::Image("image/gif")),
            (b"RIFF\x00\x00\x00\x00WEBPVP8 ", Kind::Image("image/webp")),
            (b"RIFF\x00\x00\x00\xffWAVEfmt ", Kind::Blob),
            (b"", Kind::Text),
            ("Grüße\n".as_bytes(), Kind::Text),
            (b"<svg/>", Kind::Text),
            (b"a\0b", Kind::Blob),
            (b"\xff\xfe", Kind::Blob),
            (b"PNG", Kind::Text),
        ] {
            assert_eq!(Kind::of(content), kind, "{content:?}");
        }
    }
}
