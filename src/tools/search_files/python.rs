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
static WORD: LazyLock<String> = LazyLock::new(|| {
    let mut word = String::new();
    if let Ok(hir) = regex_syntax::parse(r"\w") {
        write(&hir, Over::Characters, &mut word);
    }
    word
});

fn boundary(look: Look, over: Over) -> String {
    const ASCII_WORD: &str = "[0-9A-Z_a-z]";
    // Beside what is no character there is no "no boundary".
    const CHARACTER_BEFORE: &str = r"(?<![\udc80-\udcff])";
    const CHARACTER_AFTER: &str = r"(?![\udc80-\udcff])";
    let is_unicode = matches!(
        look,
        Look::WordUnicode
            | Look::WordUnicodeNegate
            | Look::WordStartUnicode
            | Look::WordEndUnicode
            | Look::WordStartHalfUnicode
            | Look::WordEndHalfUnicode
    );
    let (word, before, after) = if is_unicode && over == Over::Characters {
        (WORD.as_str(), CHARACTER_BEFORE, CHARACTER_AFTER)
    } else {
        (ASCII_WORD, "", "")
    };
    match look {
        Look::StartLF => "^".to_owned(),
        Look::EndLF => "$".to_owned(),
        Look::Start => r"\A".to_owned(),
        Look::End => r"\Z".to_owned(),
        Look::StartCRLF => r"(?:^|(?<=\r)(?!\n))".to_owned(),
        Look::EndCRLF => r"(?:(?=\r)|(?<!\r)(?=\n)|\Z)".to_owned(),
        Look::WordAscii | Look::WordUnicode if over == Over::Bytes => r"\b".to_owned(),
        Look::WordAscii | Look::WordUnicode => {
            format!("(?:(?<!{word})(?={word})|(?<={word})(?!{word}))")
        }
        Look::WordAsciiNegate | Look::WordUnicodeNegate => {
            format!("{before}{after}(?:(?<!{word})(?!{word})|(?<={word})(?={word}))")
        }
        Look::WordStartAscii | Look::WordStartUnicode => format!("(?<!{word})(?={word})"),
        Look::WordEndAscii | Look::WordEndUnicode => format!("(?<={word})(?!{word})"),
        Look::WordStartHalfAscii | Look::WordStartHalfUnicode => format!("{before}(?<!{word})"),
        Look::WordEndHalfAscii | Look::WordEndHalfUnicode => format!("{after}(?!{word})"),
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
