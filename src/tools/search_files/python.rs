//! A pattern in the dialect of Python's `re`, with the same answers.
//!
//! Two of them: one over bytes for a text that is all ASCII, where every class is cut down to ASCII, and one over
//! characters for any other text. Characters are spelt out as ranges, so that neither the version of Unicode nor what
//! Python means by `\w` or `\s` matters. Bytes that are no UTF-8 are lone surrogates there (`surrogateescape`), which no
//! class holds: as for the `regex` crate, they are no characters.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// A pattern as a target's Python takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonPattern {
    /// Over bytes, for text that is all ASCII.
    pub ascii: String,
    /// Over characters, for any text; the empty string where the first serves for any text.
    pub unicode: String,
    /// What a text must hold for a match to be in it; may be empty.
    pub literal: Vec<u8>,
}

pub(super) fn translate(hir: &Hir) -> PythonPattern {
    let mut ascii = String::new();
    write(hir, Over::Bytes, &mut ascii);
    let mut unicode = String::new();
    if !is_the_same_for_all(hir) {
        write(hir, Over::Characters, &mut unicode);
    }
    PythonPattern {
        ascii,
        unicode,
        literal: literal(hir).unwrap_or_default().to_vec(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Bytes,
    Characters,
}

/// Whether bytes can be matched in any text as in one that is all ASCII: characters are told apart nowhere.
fn is_the_same_for_all(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) => true,
        HirKind::Class(Class::Unicode(class)) => class.is_ascii(),
        HirKind::Class(Class::Bytes(class)) => class.is_ascii(),
        HirKind::Look(look) => matches!(
            look,
            Look::StartLF | Look::EndLF | Look::StartCRLF | Look::EndCRLF | Look::WordAscii
        ),
        HirKind::Repetition(repetition) => is_the_same_for_all(&repetition.sub),
        HirKind::Capture(capture) => is_the_same_for_all(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_the_same_for_all),
    }
}

/// The longest text that is in every match.
fn literal(hir: &Hir) -> Option<&[u8]> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(&literal.0),
        HirKind::Repetition(repetition) if repetition.min > 0 => literal(&repetition.sub),
        HirKind::Capture(capture) => literal(&capture.sub),
        HirKind::Concat(parts) => parts.iter().filter_map(literal).max_by_key(|found| found.len()),
        _ => None,
    }
}

fn write(hir: &Hir, over: Over, out: &mut String) {
    match hir.kind() {
        HirKind::Empty => out.push_str("(?:)"),
        HirKind::Literal(literal) => text(&literal.0, over, out),
        HirKind::Class(found) => {
            let ranges = match found {
                Class::Unicode(found) => ranges(found.iter().map(|range| (range.start(), range.end()))),
                Class::Bytes(found) => ranges(found.iter().map(|range| (range.start().into(), range.end().into()))),
            };
            class(&ranges, over, out);
        }
        HirKind::Look(look) => out.push_str(&boundary(*look, over)),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write(&repetition.sub, over, out);
            out.push(')');
            match (repetition.min, repetition.max) {
                (0, None) => out.push('*'),
                (1, None) => out.push('+'),
                (0, Some(1)) => out.push('?'),
                (min, None) => _ = write!(out, "{{{min},}}"),
                (min, Some(max)) => _ = write!(out, "{{{min},{max}}}"),
            }
            if !repetition.greedy {
                out.push('?');
            }
        }
        HirKind::Capture(capture) => write(&capture.sub, over, out),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, over, out)),
        HirKind::Alternation(parts) => {
            let mut open = "(?:";
            for part in parts {
                out.push_str(open);
                write(part, over, out);
                open = "|";
            }
            out.push(')');
        }
    }
}

fn text(literal: &[u8], over: Over, out: &mut String) {
    match (over, std::str::from_utf8(literal)) {
        (Over::Characters, Ok(literal)) => literal.chars().for_each(|c| escape(u32::from(c), out)),
        _ => literal.iter().for_each(|byte| escape(u32::from(*byte), out)),
    }
}

fn escape(code: u32, out: &mut String) {
    _ = match char::from_u32(code) {
        Some(c) if c.is_ascii_alphanumeric() || c == '_' => write!(out, "{c}"),
        _ if code < 0x100 => write!(out, "\\x{code:02x}"),
        _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

type Ranges = Vec<(u32, u32)>;

/// Ranges of characters as Python counts them, which has lone surrogates too.
fn ranges(found: impl Iterator<Item = (char, char)>) -> Ranges {
    let mut ranges = Vec::new();
    for (start, end) in found.map(|(start, end)| (u32::from(start), u32::from(end))) {
        if start < 0xd800 && end > 0xdfff {
            ranges.extend([(start, 0xd7ff), (0xe000, end)]);
        } else {
            ranges.push((start, end));
        }
    }
    ranges
}

fn class(ranges: &Ranges, over: Over, out: &mut String) {
    let most = if over == Over::Bytes { 0x7f } else { 0x10_ffff };
    let mut kept = ranges.iter().filter(|(start, _)| *start <= most).peekable();
    if kept.peek().is_none() {
        out.push_str("(?!)");
        return;
    }
    out.push('[');
    for (start, end) in kept {
        escape(*start, out);
        if end > start {
            out.push('-');
            escape((*end).min(most), out);
        }
    }
    out.push(']');
}

/// What `\w` matches, as a class.
static WORD: LazyLock<String> = LazyLock::new(|| class_up_to(r"\w", u32::MAX));

/// What stands before a place as Rust's engine sees it, of what `\w` matches and of any character: it steps
/// back over at most three bytes that only go on with a character (0x80 to 0xbf) and takes the character
/// that begins there, even where it has ended before them and they belong to nothing (`decode_last` of
/// regex-automata's `util/utf8.rs`). Not over the end of a line: whether it sees the line before depends on
/// whether that line matched, and a line is to match or not whatever stands around it.
static WORD_BEFORE: LazyLock<String> = LazyLock::new(|| before(r"\w"));
static CHARACTER_BEFORE: LazyLock<String> = LazyLock::new(|| format!(r"(?:\A|(?<=\n)|{})", before(".")));

/// The characters of a class up to a code, as a class.
fn class_up_to(of: &str, most: u32) -> String {
    let mut found = String::new();
    if let Ok(hir) = regex_syntax::parse(of)
        && let HirKind::Class(Class::Unicode(characters)) = hir.kind()
    {
        let pairs = characters.iter().map(|range| (range.start(), range.end()));
        let kept = ranges(pairs).into_iter().filter(|(start, _)| *start <= most);
        let kept = kept.map(|(start, end)| (start, end.min(most))).collect();
        class(&kept, Over::Characters, &mut found);
    }
    found
}

fn before(of: &str) -> String {
    let parts = [
        (u32::MAX, ""),
        (0xffff, r"[\udc80-\udcbf]"),
        (0x7ff, r"[\udc80-\udcbf]{2}"),
        (0x7f, r"[\udc80-\udcbf]{3}"),
    ];
    let parts = parts.map(|(most, strays)| format!("(?<={}{strays})", class_up_to(of, most)));
    format!("(?:{})", parts.join("|"))
}

fn boundary(look: Look, over: Over) -> String {
    const ASCII_WORD: &str = "[0-9A-Z_a-z]";
    let is_unicode = matches!(
        look,
        Look::WordUnicode
            | Look::WordUnicodeNegate
            | Look::WordStartUnicode
            | Look::WordEndUnicode
            | Look::WordStartHalfUnicode
            | Look::WordEndHalfUnicode
    );
    // Beside what is no character there is no "no boundary", nor half of one.
    let (word, after_word, of_character, to_character) = if is_unicode && over == Over::Characters {
        (
            WORD.as_str(),
            WORD_BEFORE.clone(),
            CHARACTER_BEFORE.clone(),
            r"(?![\udc80-\udcff])",
        )
    } else {
        (ASCII_WORD, format!("(?<={ASCII_WORD})"), String::new(), "")
    };
    let to_word = format!("(?={word})");
    let no_word = format!("(?!{word})");
    let after_none = format!("(?!{after_word})");
    match look {
        Look::StartLF => "^".to_owned(),
        Look::EndLF => "$".to_owned(),
        Look::Start => r"\A".to_owned(),
        Look::End => r"\Z".to_owned(),
        Look::StartCRLF => r"(?:^|(?<=\r)(?!\n))".to_owned(),
        Look::EndCRLF => r"(?:(?=\r)|(?<!\r)(?=\n)|\Z)".to_owned(),
        Look::WordAscii | Look::WordUnicode if over == Over::Bytes => r"\b".to_owned(),
        Look::WordAscii | Look::WordUnicode => {
            format!("(?:{after_none}{to_word}|{after_word}{no_word})")
        }
        Look::WordAsciiNegate | Look::WordUnicodeNegate => {
            format!("{of_character}{to_character}(?:{after_none}{no_word}|{after_word}{to_word})")
        }
        Look::WordStartAscii | Look::WordStartUnicode => format!("{after_none}{to_word}"),
        Look::WordEndAscii | Look::WordEndUnicode => format!("{after_word}{no_word}"),
        Look::WordStartHalfAscii | Look::WordStartHalfUnicode => format!("{of_character}{after_none}"),
        Look::WordEndHalfAscii | Look::WordEndHalfUnicode => format!("{to_character}{no_word}"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::super::Pattern;

    #[test]
    fn patterns_are_spelt_out() {
        for (text, ascii, unicode, literal) in [
            ("old_api_call", "old_api_call", "", "old_api_call"),
            ("é", r"\xc3\xa9", "", "é"),
            ("(?i)k", r"[Kk]", r"[Kk\u212a]", ""),
            (r"a[b-d]+x?e", r"a(?:[b-d])+(?:x)?e", "", "e"),
            ("x(foo|longer)y", "x(?:foo|longer)y", "", "y"),
            (
                "a.b",
                r"a[\x00-\x09\x0b-\x7f]b",
                r"a[\x00-\x09\x0b-\ud7ff\ue000-\U0010ffff]b",
                "b",
            ),
            (r"^$", "^$", "", ""),
            (r"(?-u:\b)a", r"\ba", "", "a"),
            (r"a[^\s\S]", "a(?!)", "", "a"),
        ] {
            let found = Pattern::parse(text).unwrap().for_python();
            assert_eq!(
                (found.ascii.as_str(), found.unicode.as_str()),
                (ascii, unicode),
                "{text}"
            );
            assert_eq!(String::from_utf8(found.literal).unwrap(), literal, "{text}");
        }
    }
}
