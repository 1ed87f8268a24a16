//! What arguments and scripts are told by.

use std::io::{self, BufWriter, Write};

use ring::digest::{Context, SHA256, digest};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// SHA-256 of bytes, in hexadecimal digits.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> String {
    hexadecimal(digest(&SHA256, bytes).as_ref())
}

/// SHA-256 of arguments as canonical JSON: keys sorted, no spaces, UTF-8 unescaped. Nothing of that size is made.
pub(super) fn of_arguments(arguments: &Map<String, Value>) -> String {
    let mut hash = BufWriter::with_capacity(4096, Hash(Context::new(&SHA256)));
    // Neither a value in memory nor the hash can fail to be written.
    let _ = serde_json::to_writer(&mut hash, &Sorted(arguments));
    match hash.into_inner() {
        Ok(Hash(context)) => hexadecimal(context.finish().as_ref()),
        Err(_) => String::new(),
    }
}

/// Bytes of text in a value: its strings, keys and numbers, without the signs between them.
pub(super) fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(map) => map_bytes(map),
        Value::Null | Value::Bool(_) => 4,
        Value::Number(number) => number.to_string().len() as u64,
    }
}

/// As [`text_bytes`], of an object.
pub(super) fn map_bytes(map: &Map<String, Value>) -> u64 {
    map.iter().map(|(key, item)| key.len() as u64 + text_bytes(item)).sum()
}

struct Hash(Context);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Sorted<'a>(&'a Map<String, Value>);

struct Canonical<'a>(&'a Value);

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries: Vec<(&String, &Value)> = self.0.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        serializer.collect_map(entries.into_iter().map(|(key, value)| (key, Canonical(value))))
    }
}

impl Serialize for Canonical<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => Sorted(map).serialize(serializer),
            Value::Array(items) => serializer.collect_seq(items.iter().map(Canonical)),
            other => other.serialize(serializer),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn map(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_digest_is_that_of_the_canonical_form() {
        for (given, canonical) in [
            ("{}", "{}"),
            (r#"{"b": 1, "a": [true, null]}"#, r#"{"a":[true,null],"b":1}"#),
            (
                r#"{"z": {"é": "\u00e9\n", "a": "x"}, "A": 1.5}"#,
                "{\"A\":1.5,\"z\":{\"a\":\"x\",\"é\":\"é\\n\"}}",
            ),
        ] {
            assert_eq!(of_arguments(&map(given)), of_bytes(canonical.as_bytes()), "{given}");
        }
        assert_eq!(
            of_bytes(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn text_is_counted_without_the_signs_between() {
        assert_eq!(map_bytes(&map(r#"{"ab": ["é", 12, {"c": ""}]}"#)), 2 + 2 + 2 + 1);
    }
}
