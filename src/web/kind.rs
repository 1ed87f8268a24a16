//! What an answer is, from what the server says and from its first bytes.

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A page.
    Html,
    /// Text that is given back as it is.
    Text,
    /// A PDF document.
    Pdf,
    /// Nothing that holds text; what it is instead.
    Binary(&'static str),
    /// To be told by its first bytes.
    Unknown,
}

/// What the server says.
pub(super) struct ContentType<'a> {
    /// `type/subtype`, in lower case; empty where the server says nothing.
    pub(super) essence: String,
    /// The encoding.
    pub(super) charset: Option<&'a str>,
}

impl<'a> ContentType<'a> {
    pub(super) fn parse(header: Option<&'a str>) -> Self {
        let mut parts = header.unwrap_or_default().split(';');
        let essence = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("charset")
                .then(|| value.trim().trim_matches(['"', '\'']))
        });
        Self { essence, charset }
    }

    /// What that makes the answer.
    pub(super) fn kind(&self) -> Kind {
        let essence = self.essence.as_str();
        match essence.split_once('/') {
            _ if matches!(essence, "text/html" | "application/xhtml+xml") => Kind::Html,
            _ if matches!(essence, "application/pdf" | "application/x-pdf") => Kind::Pdf,
            Some(("image", _)) => Kind::Binary("an image"),
            Some(("audio", _)) => Kind::Binary("a sound file"),
            Some(("video", _)) => Kind::Binary("a video"),
            Some(("font", _)) => Kind::Binary("a font"),
            Some(("text", _)) => Kind::Text,
            Some((_, subtype)) if subtype.ends_with("+json") || subtype.ends_with("+xml") => Kind::Text,
            Some(("application", subtype)) => match subtype {
                "json" | "xml" | "javascript" | "x-javascript" | "ecmascript" | "yaml" | "x-yaml" | "toml" | "sql"
                | "x-sh" | "x-ndjson" | "jsonlines" | "graphql" | "x-tex" | "x-latex" | "rtf" => Kind::Text,
                "zip" | "gzip" | "x-gzip" | "x-tar" | "x-7z-compressed" | "x-bzip2" | "x-xz" | "zstd"
                | "x-rar-compressed" | "vnd.rar" | "java-archive" => Kind::Binary("an archive"),
                _ => Kind::Unknown,
            },
            _ => Kind::Unknown,
        }
    }
}

/// What the first bytes say, for what the server leaves open, and against it where they are plain.
pub(super) fn sniff(said: Kind, bytes: &[u8]) -> Kind {
    let start = &bytes[..bytes.len().min(1024)];
    if start.windows(5).any(|window| window == b"%PDF-") && said != Kind::Html {
        return Kind::Pdf;
    }
    let is_utf16 = start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
    let is_text = !start.contains(&0) || is_utf16;
    // Servers call things plain text that they know nothing of.
    if said != Kind::Unknown && (said != Kind::Text || is_text) {
        return said;
    }
    let magic: [(&[u8], &'static str); 8] = [
        (b"\x89PNG", "an image"),
        (b"GIF8", "an image"),
        (b"\xff\xd8\xff", "an image"),
        (b"RIFF", "a media file"),
        (b"PK\x03\x04", "an archive or office document"),
        (b"\x1f\x8b", "an archive"),
        (b"\x7fELF", "a program"),
        (b"OggS", "a media file"),
    ];
    if let Some((_, what)) = magic.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Kind::Binary(what);
    }
    if !is_text {
        return Kind::Binary("a binary file");
    }
    let head = String::from_utf8_lossy(start)
        .trim_start_matches('\u{feff}')
        .trim_start()
        .to_ascii_lowercase();
    let is_page = ["<!doctype html", "<html", "<head", "<body", "<title", "<!-- ", "<meta"]
        .iter()
        .any(|tag| head.starts_with(tag));
    if is_page { Kind::Html } else { Kind::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(header: Option<&str>, bytes: &[u8]) -> Kind {
        sniff(ContentType::parse(header).kind(), bytes)
    }

    #[test]
    fn header_and_first_bytes_together_say_what_it_is() {
        for (header, bytes, expected) in [
            (Some("text/html; charset=utf-8"), &b"<p>"[..], Kind::Html),
            (Some("TEXT/HTML"), b"", Kind::Html),
            (Some("application/xhtml+xml"), b"", Kind::Html),
            (None, b"\n<!DOCTYPE html><p>", Kind::Html),
            (None, b"plain", Kind::Text),
            (Some("text/plain"), b"<html> is a tag", Kind::Text),
            (Some("text/plain"), b"a\0b", Kind::Binary("a binary file")),
            (Some("text/plain"), b"\xff\xfea\0", Kind::Text),
            (Some("text/markdown"), b"# <html>", Kind::Text),
            (Some("application/json"), b"{}", Kind::Text),
            (Some("application/ld+json"), b"{}", Kind::Text),
            (Some("image/png"), b"", Kind::Binary("an image")),
            (Some("image/svg+xml"), b"<svg>", Kind::Binary("an image")),
            (
                Some("application/octet-stream"),
                b"\x89PNG\r\n",
                Kind::Binary("an image"),
            ),
            (Some("application/octet-stream"), b"%PDF-1.7", Kind::Pdf),
            (Some("application/pdf"), b"%PDF-1.7", Kind::Pdf),
            (Some("application/zip"), b"", Kind::Binary("an archive")),
            (
                Some("application/vnd.ms-excel"),
                b"PK\x03\x04",
                Kind::Binary("an archive or office document"),
            ),
            (Some("application/vnd.custom"), b"text", Kind::Text),
            (Some("nonsense"), b"text", Kind::Text),
        ] {
            assert_eq!(of(header, bytes), expected, "{header:?} {bytes:?}");
        }
    }

    #[test]
    fn the_charset_is_found_among_parameters() {
        for (header, expected) in [
            ("text/html; charset=utf-8", Some("utf-8")),
            ("text/html;version=1; Charset=\"koi8-r\"", Some("koi8-r")),
            ("text/html", None),
        ] {
            assert_eq!(ContentType::parse(Some(header)).charset, expected, "{header}");
        }
    }
}
