//! What is searched for: a regular expression in the dialect of the `regex` crate, whoever carries it out.
//!
//! A pattern is parsed here once, also for targets on which Python does the search: what the parser makes of it (case
//! folded, classes spelt out) is matched by `grep-regex` on this machine, and translated for Python's `re` by
//! [`python`](super::python). A line holds a match or not; how far a match reaches shows nowhere.

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};

use super::python::{self, PythonPattern};

/// How deep groups may be nested.
const NEST_LIMIT: u32 = 200;
/// Bytes that a pattern may take once it is compiled.
const SIZE_LIMIT: usize = 32 << 20;
/// Bytes of a pattern that an error shows.
const SHOWN: usize = 200;

/// A pattern that both engines take.
#[derive(Clone)]
pub struct Pattern {
    hir: Hir,
    matcher: RegexMatcher,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.hir)
    }
}

impl Pattern {
    /// Parses what a script gave.
    ///
    /// # Errors
    /// A sentence for the script that says what is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: String| format!("pattern {} {why}", shown(text));
        let hir = regex_syntax::ParserBuilder::new()
            .multi_line(true)
            .utf8(true)
            .nest_limit(NEST_LIMIT)
            .build()
            .parse(text)
            .map_err(|error| refused(complaint(text, &error)))?;
        let hir = within_a_line(&hir).map_err(|why| refused(why.to_owned()))?;
        let hir = without_idle_ends(hir);
        let matcher = RegexMatcherBuilder::new()
            .multi_line(true)
            .line_terminator(Some(b'\n'))
            .size_limit(SIZE_LIMIT)
            .build(&hir.to_string())
            .map_err(|error| {
                refused(format!(
                    "cannot be used: {error}; write fewer or smaller counted repetitions"
                ))
            })?;
        Ok(Self { hir, matcher })
    }

    /// What this machine matches with.
    #[must_use]
    pub fn matcher(&self) -> &RegexMatcher {
        &self.matcher
    }

    /// The same for the `re` module of a target.
    #[must_use]
    pub fn for_python(&self) -> PythonPattern {
        python::translate(&self.hir)
    }
}

/// A pattern in quotes, cut where it is long.
fn shown(text: &str) -> String {
    if text.len() <= SHOWN {
        return format!("{text:?}");
    }
    let cut: String = text.chars().take(SHOWN).collect();
    format!("{cut:?}…")
}

/// What the parser has against a pattern, and what helps.
fn complaint(text: &str, error: &regex_syntax::Error) -> String {
    use regex_syntax::ast::ErrorKind;
    use regex_syntax::hir::ErrorKind as Meaning;
    let (what, at, help) = match error {
        regex_syntax::Error::Parse(error) => {
            let help = match error.kind() {
                ErrorKind::UnsupportedLookAround => {
                    "search for a simpler pattern and look closer at the lines found in Python"
                }
                ErrorKind::UnsupportedBackreference => {
                    "search for what stands around it and compare the parts of the lines found in Python"
                }
                ErrorKind::EscapeUnrecognized => match text.get(error.span().start.offset..).unwrap_or_default() {
                    rest if rest.starts_with("\\Z") => "write \\z for the end",
                    rest if rest.starts_with("\\h") => "write [ \\t] for a blank",
                    rest if rest.starts_with("\\R") => "lines are searched one at a time",
                    _ => "write a letter without the backslash",
                },
                ErrorKind::NestLimitExceeded(_) => "write fewer groups in each other",
                _ => "to find the very text, write re.escape(text) of Python's re",
            };
            (error.kind().to_string(), error.span().start.offset, help)
        }
        regex_syntax::Error::Translate(error) => {
            let help = match error.kind() {
                Meaning::InvalidUtf8 => "text is searched by characters: leave (?-u) out, or use it for ASCII classes",
                _ => "write the characters out, as in [a-z]",
            };
            (error.kind().to_string(), error.span().start.offset, help)
        }
        _ => (error.to_string(), 0, "write it more simply"),
    };
    let column = text.get(..at).unwrap_or_default().chars().count() + 1;
    format!("is no regular expression: {what} (at character {column}); {help}")
}

/// The expression made to match within a line: what is searched has lines of its own as beginning and end.
fn within_a_line(hir: &Hir) -> Result<Hir, &'static str> {
    const BREAK: &str =
        "holds a line break, but lines are searched one at a time: search for one of them, with context";
    let all = |parts: &[Hir]| parts.iter().map(within_a_line).collect::<Result<Vec<Hir>, _>>();
    Ok(match hir.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if literal.0.contains(&b'\n') => return Err(BREAK),
        HirKind::Literal(literal) => Hir::literal(literal.0.clone()),
        HirKind::Class(Class::Unicode(class)) if !class.ranges().is_empty() => {
            let mut class = class.clone();
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\n', '\n')]));
            if class.ranges().is_empty() {
                return Err(BREAK);
            }
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(class)) if !class.ranges().is_empty() => {
            let mut class = class.clone();
            class.difference(&ClassBytes::new([ClassBytesRange::new(b'\n', b'\n')]));
            if class.ranges().is_empty() {
                return Err(BREAK);
            }
            Hir::class(Class::Bytes(class))
        }
        HirKind::Class(_) => Hir::fail(),
        HirKind::Look(Look::Start) => Hir::look(Look::StartLF),
        HirKind::Look(Look::End) => Hir::look(Look::EndLF),
        // Where characters are searched there is no place inside of one.
        HirKind::Look(Look::WordAsciiNegate | Look::WordStartHalfAscii | Look::WordEndHalfAscii) => {
            return Err("has an ASCII word boundary that is none: leave out (?-u) before \\B or \\b{…-half}");
        }
        HirKind::Look(look) => Hir::look(*look),
        HirKind::Repetition(repetition) => {
            let mut repetition = repetition.clone();
            repetition.sub = Box::new(within_a_line(&repetition.sub)?);
            Hir::repetition(repetition)
        }
        HirKind::Capture(capture) => within_a_line(&capture.sub)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)?),
    })
}

/// Leaves out what a match may begin or end with and need not: a line that has the rest has the whole. In Python
/// `.*word` would take the square of a line's length.
fn without_idle_ends(hir: Hir) -> Hir {
    let is_whole = |hir: &Hir| matches!(hir.kind(), HirKind::Repetition(_));
    let needed = |hir: &Hir| match hir.kind() {
        HirKind::Repetition(repetition) => {
            let mut least = repetition.clone();
            least.max = Some(least.min);
            Hir::repetition(least)
        }
        _ => hir.clone(),
    };
    match hir.kind() {
        HirKind::Repetition(_) => needed(&hir),
        HirKind::Concat(parts) => {
            let mut parts = parts.clone();
            let is_idle = |part: &Hir| matches!(part.kind(), HirKind::Repetition(inner) if inner.min == 0);
            while parts.len() > 1 && parts.last().is_some_and(is_idle) {
                parts.pop();
            }
            let first = parts.iter().position(|part| !is_idle(part)).unwrap_or(parts.len() - 1);
            parts.drain(..first);
            if let Some(part) = parts.first_mut().filter(|part| is_whole(part)) {
                *part = needed(part);
            }
            if let Some(part) = parts.last_mut().filter(|part| is_whole(part)) {
                *part = needed(part);
            }
            Hir::concat(parts)
        }
        _ => hir,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use grep_matcher::Matcher;

    use super::*;

    #[test]
    fn what_is_no_pattern_says_what_to_write() {
        for (text, words) in [
            ("(a", ["unclosed group", "re.escape"]),
            ("a{2", ["unclosed counted repetition", "re.escape"]),
            ("*a", ["repetition operator", "character 1"]),
            ("é(?=a)", ["look-around", "character 2"]),
            (r"(a)\1", ["backreferences", "in Python"]),
            (r"a\Z", ["escape", r"write \z"]),
            (r"\hx", ["escape", r"[ \t]"]),
            (r"(?-u:\xff)", ["UTF-8", "leave (?-u) out"]),
            (r"\p{Nonsense}", ["property", "[a-z]"]),
            ("a\nb", ["line break", "one at a time"]),
            (r"a\n", ["line break", "one at a time"]),
            (r"[\n]", ["line break", "one at a time"]),
            (r"(?-u:\B)", ["boundary", "(?-u)"]),
            (r"(?:\w{500}){500}", ["size limit", "counted"]),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let long = Pattern::parse(&format!("({}", "a".repeat(10_000))).unwrap_err();
        assert!(long.len() < 600, "{}", long.len());
    }

    #[test]
    fn idle_ends_change_no_answer() {
        let has = |text: &str, line: &str| {
            Pattern::parse(text)
                .unwrap()
                .matcher()
                .is_match(line.as_bytes())
                .unwrap()
        };
        for (text, yes, no) in [
            (".*b.*", "ab", "ac"),
            ("a*", "", "\n\n\n"),
            ("a+b+", "aab", "aac"),
            (r"a{2,}", "baa", "ba"),
            (r"^.*b$", "ab", "ba"),
            (r".*\bb", "a b", "ab"),
            (r"\Ab\z", "b", "ab"),
            (r"\s*x\s*", "x", "y"),
        ] {
            assert!(has(text, yes), "{text} finds {yes:?}");
            assert!(no.starts_with('\n') || !has(text, no), "{text} does not find {no:?}");
        }
    }
}
