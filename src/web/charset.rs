//! From bytes to text, whatever the server says of them.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// Bytes at the start of a page in which it may name its own encoding.
const PRESCAN: usize = 4096;

/// Bytes that a guess goes by.
const SAMPLE: usize = 256 * 1024;

/// The text of a page. `label` is what the header says.
pub(super) fn decode(bytes: &[u8], label: Option<&str>, is_html: bool) -> String {
    if let Some((encoding, length)) = Encoding::for_bom(bytes) {
        return encoding.decode_without_bom_handling(&bytes[length..]).0.into_owned();
    }
    // What is valid UTF-8 and more than ASCII is UTF-8: another encoding is that by chance only once in many thousand
    // pages, while wrong headers are common.
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        // Cut in the middle of its last character.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    let named = label
        .and_then(|label| Encoding::for_label(label.as_bytes()))
        .or_else(|| own_label(bytes).filter(|_| is_html));
    match (valid, named) {
        (Some(text), None) => text.to_owned(),
        (Some(text), Some(encoding)) if encoding.is_ascii_compatible() || !text.is_ascii() => text.to_owned(),
        (None, Some(encoding)) if encoding == UTF_8 => {
            guessed(bytes, own_label(bytes).filter(|own| is_html && *own != UTF_8))
        }
        (_, Some(encoding)) => encoding.decode_without_bom_handling(bytes).0.into_owned(),
        (None, None) => guessed(bytes, None),
    }
}

/// The text in the encoding that is `likely`, else in the one that its bytes suggest.
fn guessed(bytes: &[u8], likely: Option<&'static Encoding>) -> String {
    let encoding = likely.unwrap_or_else(|| {
        // Mostly UTF-8 with a few broken bytes is still UTF-8.
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SAMPLE)]);
        let broken = text.matches('\u{fffd}').count();
        let good = text.chars().filter(|c| !c.is_ascii() && *c != '\u{fffd}').count();
        if good > 8 * broken {
            return UTF_8;
        }
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
        detector.feed(&bytes[..bytes.len().min(SAMPLE)], true);
        detector.guess(None, Utf8Detection::Allow)
    });
    encoding.decode_without_bom_handling(bytes).0.into_owned()
}

/// The encoding that a page names in its head: `<meta charset=…>`, `charset=…` within one, or an XML declaration.
fn own_label(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(PRESCAN)]).to_ascii_lowercase();
    let declared = if head.trim_start().starts_with("<?xml") {
        head.split("?>").next().and_then(|line| value_of(line, "encoding"))
    } else {
        None
    };
    let label = declared.or_else(|| {
        head.split("<meta")
            .skip(1)
            .find_map(|meta| value_of(meta.split('>').next()?, "charset"))
    })?;
    let encoding = Encoding::for_label(label.as_bytes())?;
    // A page in which this could be read is none of UTF-16.
    Some(if encoding == UTF_16LE || encoding == UTF_16BE {
        UTF_8
    } else {
        encoding
    })
}

/// What stands after `name=` in a tag.
fn value_of<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let rest = tag.split(name).nth(1)?.trim_start().strip_prefix('=')?;
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '"' || c == '\'');
    rest.split(|c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\'' | ';' | '/' | '>'))
        .next()
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(meta: &str, text: &[u8]) -> Vec<u8> {
        [meta.as_bytes(), b"<p>", text, b"</p>"].concat()
    }

    #[test]
    fn the_text_is_found_whatever_the_header_says() {
        let cyrillic: &[u8] = b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0! \xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0!";
        for (name, bytes, label, expected) in [
            ("utf-8", "<p>é€</p>".as_bytes().to_vec(), Some("utf-8"), "<p>é€</p>"),
            ("utf-8, no header", "<p>é€</p>".as_bytes().to_vec(), None, "<p>é€</p>"),
            (
                "utf-8, wrong header",
                "<p>é€</p>".as_bytes().to_vec(),
                Some("iso-8859-1"),
                "<p>é€</p>",
            ),
            ("latin-1", html("", b"caf\xe9"), Some("iso-8859-1"), "<p>café</p>"),
            (
                "windows-1252 by header",
                html("", b"\x93q\x94"),
                Some("latin1"),
                "<p>“q”</p>",
            ),
            (
                "by meta",
                html("<meta charset=\"windows-1251\">", b"\xcf\xf0"),
                None,
                "<meta charset=\"windows-1251\"><p>Пр</p>",
            ),
            (
                "by meta though the header says utf-8",
                html("<meta charset=windows-1251>", b"\xcf\xf0"),
                Some("utf-8"),
                "<meta charset=windows-1251><p>Пр</p>",
            ),
            (
                "by http-equiv",
                html(
                    "<meta http-equiv=content-type content='text/html; charset=shift_jis'>",
                    b"\x83e\x83X\x83g",
                ),
                None,
                "<meta http-equiv=content-type content='text/html; charset=shift_jis'><p>テスト</p>",
            ),
            ("by guess", html("", cyrillic), None, "<p>Привет, мир! Привет, мир!</p>"),
            ("by bom", b"\xff\xfea\x00\xe9\x00".to_vec(), Some("utf-8"), "aé"),
            ("utf-16 by header", b"a\x00\xe9\x00".to_vec(), Some("utf-16le"), "aé"),
            (
                "iso-2022-jp",
                b"\x1b$B%F%9%H\x1b(B".to_vec(),
                Some("iso-2022-jp"),
                "テスト",
            ),
            ("an unknown label", b"abc".to_vec(), Some("klingon"), "abc"),
            ("cut in a character", b"caf\xc3\xa9 \xc3".to_vec(), None, "café "),
            ("nothing", Vec::new(), Some("utf-8"), ""),
        ] {
            assert_eq!(decode(&bytes, label, true), expected, "{name}");
        }
    }

    #[test]
    fn a_few_broken_bytes_do_not_make_another_encoding_of_it() {
        let text = "Übergrößen für Öltürme, nächtens geprüft. ".repeat(4);
        let bytes = [text.as_bytes(), b"\xff"].concat();
        assert_eq!(decode(&bytes, None, true), format!("{text}\u{fffd}"));
    }
}
