//! A YAML file as a tree in which every node knows its line.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, Options, Spanned};

use super::error::ConfigError;

/// The most bytes that a configuration file may have.
const MAX_FILE: u64 = 1024 * 1024;

/// What a file holds, and where.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) content: Content,
    /// The line where the node begins, from 1.
    pub(super) line: u64,
}

/// The kinds of node. Scalars keep the text as written (`1.10` stays `1.10`), for who wants a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Nothing, `null` or `~`.
    Null,
    /// A string: quoted, or not readable as anything else.
    Text(String),
    /// An unquoted `true` or `false`.
    Bool(String),
    /// An unquoted number.
    Number(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<Entry>),
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    /// The line of the key, from 1.
    pub(super) line: u64,
    pub(super) value: Node,
}

impl Content {
    /// The kind in words, to stand after "is".
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "empty".to_owned(),
            Self::Text(text) => format!("the text `{text}`"),
            Self::Bool(text) => format!("the switch `{text}`"),
            Self::Number(text) => format!("the number `{text}`"),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads and parses a file. With `strict`, a key that stands twice in one mapping is an error; without, the last one
/// counts, as the file's owner reads it.
///
/// # Errors
/// A file that cannot be read, is larger than 1 MiB or is no YAML.
pub(super) fn read(path: &Path, strict: bool) -> Result<Node, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(unreadable(std::io::Error::other("it is larger than 1 MiB")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let newlines = valid.iter().filter(|byte| **byte == b'\n').count();
        ConfigError::Syntax {
            path: path.to_owned(),
            line: newlines as u64 + 1,
            problem: "the line is not UTF-8".to_owned(),
        }
    })?;
    parse(&text, path, strict)
}

/// Parses the text of a file; `path` is for messages only.
pub(super) fn parse(text: &str, path: &Path, strict: bool) -> Result<Node, ConfigError> {
    let text = &without_comment_lines(text.strip_prefix('\u{feff}').unwrap_or(text));
    let tree: Spanned<Loose> =
        serde_saphyr::from_str_with_options(text, options(strict)).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: error.location().map_or(1, |location| location.line().max(1)),
            problem: problem(error.without_snippet()),
        })?;
    Ok(node(tree, text))
}

/// The parser gives up on some thirty lines of comment in a row. Blanks take their place, so that all else stays where
/// it is.
fn without_comment_lines(text: &str) -> String {
    let is_comment = |line: &str| line.trim_start_matches([' ', '\t']).starts_with('#');
    text.split_inclusive('\n')
        .map(|line| match line.trim_end_matches(['\n', '\r']) {
            comment if is_comment(comment) => " ".repeat(comment.len()) + &line[comment.len()..],
            _ => line.to_owned(),
        })
        .collect()
}

fn options(strict: bool) -> Options {
    serde_saphyr::options! {
        duplicate_keys: if strict { DuplicateKeyPolicy::Error } else { DuplicateKeyPolicy::LastWins },
        // The words `on` and `off` stay text: a setting that wants a switch takes them, one that wants a text too.
        strict_booleans: true,
        null_as_string: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

/// The parser's message without its own position, which the caller gives in front.
fn problem(error: &serde_saphyr::Error) -> String {
    if matches!(error, serde_saphyr::Error::MultipleDocuments { .. }) {
        return "a second document begins here (`---`), but there must be only one".to_owned();
    }
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error {
        let key = key.as_deref().unwrap_or_default();
        return format!("duplicate key `{key}`, which stands in the same mapping already");
    }
    let message = error.to_string();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let message = match message.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((_, message)) => message,
        None => message,
    };
    let message = message.lines().next().unwrap_or_default();
    message.split(" at line ").next().unwrap_or_default().trim().to_owned()
}

/// What the parser hands over, before the text as written is looked up.
enum Loose {
    Null,
    Text(String),
    Bool(bool),
    Number(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Loose, E> {
        Ok(Loose::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Loose, E> {
        Ok(Loose::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Loose, E> {
        Ok(Loose::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Loose, E> {
        Ok(Loose::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Loose, E> {
        Ok(Loose::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Loose, E> {
        Ok(Loose::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Loose, E> {
        Ok(Loose::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Loose, E> {
        Ok(Loose::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Loose, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Loose::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Loose, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = access.next_entry::<Spanned<String>, Spanned<Loose>>()? {
            // Only where duplicates are tolerated does one come through; the earlier one gives way.
            entries.retain(|(earlier, _): &(Spanned<String>, _)| earlier.value != key.value);
            entries.push((key, value));
        }
        Ok(Loose::Map(entries))
    }
}

fn node(loose: Spanned<Loose>, source: &str) -> Node {
    let as_written = |fallback: String| written(source, &loose.defined).unwrap_or(fallback);
    let line = loose.referenced.line().max(1);
    let content = match loose.value {
        Loose::Null => Content::Null,
        Loose::Text(text) => Content::Text(text),
        Loose::Bool(value) => Content::Bool(as_written(value.to_string())),
        Loose::Number(text) => Content::Number(as_written(text)),
        Loose::List(items) => Content::List(items.into_iter().map(|item| node(item, source)).collect()),
        Loose::Map(entries) => Content::Map(
            entries
                .into_iter()
                .map(|(key, value)| Entry {
                    line: key.referenced.line().max(1),
                    key: key.value,
                    value: node(value, source),
                })
                .collect(),
        ),
    };
    Node { content, line }
}

/// The text of a plain scalar as it stands in the file.
fn written(source: &str, location: &Location) -> Option<String> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    let text = source.get(start..end)?.trim();
    // A tagged or quoted scalar begins with a sign that is no part of its value.
    (!text.is_empty() && !text.starts_with(['!', '"', '\'', '&', '|', '>'])).then(|| text.to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        parse(text, Path::new("c.yaml"), true).unwrap()
    }

    fn entries(text: &str) -> Vec<(String, u64, Content)> {
        let Content::Map(entries) = tree(text).content else {
            return Vec::new();
        };
        entries
            .into_iter()
            .map(|entry| (entry.key, entry.line, entry.value.content))
            .collect()
    }

    fn failure(text: &str) -> String {
        parse(text, Path::new("c.yaml"), true).unwrap_err().to_string()
    }

    #[test]
    fn scalars_keep_their_text_and_their_kind() {
        for (written, expected) in [
            ("1.10", Content::Number("1.10".into())),
            ("300", Content::Number("300".into())),
            ("-1", Content::Number("-1".into())),
            ("\"300\"", Content::Text("300".into())),
            ("0755", Content::Text("0755".into())),
            ("1_000", Content::Text("1_000".into())),
            ("5m", Content::Text("5m".into())),
            ("off", Content::Text("off".into())),
            ("no", Content::Text("no".into())),
            ("True", Content::Bool("True".into())),
            ("~", Content::Null),
            ("", Content::Null),
            (".inf", Content::Text(".inf".into())),
            ("ünï 5 # comment", Content::Text("ünï 5".into())),
        ] {
            assert_eq!(
                entries(&format!("ä: 1\nkey: {written}\n"))[1],
                ("key".into(), 2, expected),
                "{written}"
            );
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_tree() {
        for text in ["", "\n", "# only a comment\n", "---\n", "\u{feff}"] {
            assert_eq!(tree(text).content, Content::Null, "{text:?}");
        }
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let entries = entries("\u{feff}a: 1\r\n\r\n# c\r\nb:\r\n  - x\r\n  - 2.50\r\noff: y\r\n");
        let lines: Vec<_> = entries.iter().map(|(key, line, _)| (key.as_str(), *line)).collect();
        assert_eq!(lines, [("a", 1), ("b", 4), ("off", 7)]);
        let Content::List(items) = &entries[1].2 else {
            panic!("b is a list")
        };
        assert_eq!(
            items[1],
            Node {
                content: Content::Number("2.50".into()),
                line: 6
            }
        );
    }

    #[test]
    fn anchors_and_merges_are_followed() {
        let entries = entries("a: &x {k: 1.50}\nb:\n  <<: *x\n  l: 2\n");
        let Content::Map(merged) = &entries[1].2 else {
            panic!("b is a mapping")
        };
        assert!(
            merged
                .iter()
                .any(|entry| entry.key == "k" && entry.value.content == Content::Number("1.50".into()))
        );
    }

    #[test]
    fn syntax_errors_and_duplicates_name_file_and_line() {
        for (text, line) in [
            ("a: 1\nb: [1\nc: 2\n", 3),
            ("a: 1\nb: 2\na: 3\n", 3),
            ("a:\n\tb: 2\n", 2),
            ("a: 1\n---\nb: 2\n", 3),
        ] {
            let message = failure(text);
            assert!(message.starts_with(&format!("c.yaml:{line}: ")), "{text:?}: {message}");
        }
        assert!(
            failure("a: 1\na: 2\n").contains("duplicate"),
            "{}",
            failure("a: 1\na: 2\n")
        );
    }

    #[test]
    fn without_strictness_the_last_duplicate_counts() {
        let tree = parse("a: 1\na: 2\n", Path::new("c"), false).unwrap();
        let Content::Map(entries) = tree.content else {
            panic!("the file is a mapping")
        };
        let contents: Vec<_> = entries.into_iter().map(|entry| entry.value.content).collect();
        assert_eq!(contents, [Content::Number("2".into())]);
    }

    #[test]
    fn a_bomb_is_refused() {
        assert!(parse(&"[".repeat(100_000), Path::new("c"), true).is_err());
    }

    #[test]
    fn comments_may_be_as_long_as_they_like() {
        let comments = "  # one more line of it, ü\n".repeat(500);
        let text = format!("{comments}a:\n{comments}  b: 1 # and this\n{comments}");
        let Ok(node) = parse(&text, Path::new("c.yaml"), true) else {
            panic!("it is refused");
        };
        assert!(format!("{node:?}").contains("1002"), "the line of b: {node:?}");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, b"a: 1\nb: \xff\n").unwrap();
        let message = read(&path, true).unwrap_err().to_string();
        assert!(message.contains("c.yaml:2: ") && message.contains("UTF-8"), "{message}");
        std::fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
        assert!(read(&path, true).unwrap_err().to_string().contains("1 MiB"));
        assert!(matches!(
            read(directory.path(), true),
            Err(ConfigError::Unreadable { .. })
        ));
    }
}
