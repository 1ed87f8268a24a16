//! What the fuzz targets try, over any bytes. `cargo fuzz run NAME` runs one for as long as it is let, `cargo test
//! --test patching` all of them briefly.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use talaria_broker::tools::{ToolSpec, patched, replaced, validate_arguments};

/// A file and a patch of it, apart by a NUL. Whatever they are, there is an answer; a file that another section would
/// have changed stays when one fails; what the diff says has happened.
pub(crate) fn v4a(data: &[u8]) {
    let (file, patch) = halves(data);
    let patch = String::from_utf8_lossy(patch);
    let files = BTreeMap::from([("f".to_owned(), file.to_vec()), ("g".to_owned(), b"g\n".to_vec())]);
    match patched(files.clone(), &patch) {
        Ok(done) => {
            assert!(!done.diff.is_empty(), "{patch}");
            if let (Ok(before), Some(Ok(after))) = (
                std::str::from_utf8(file),
                done.files.get("f").map(|after| std::str::from_utf8(after)),
            ) {
                follow(&done.diff, before, after);
            }
        }
        Err(error) => assert_is_sentence(&error),
    }
}

/// A file, what is looked for in it, and what comes there.
pub(crate) fn replace(data: &[u8]) {
    let (file, rest) = halves(data);
    let (old, new) = halves(rest);
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    for all in [false, true] {
        match replaced(file, &old, &new, all) {
            Ok(done) => {
                let after = &done.files["file"];
                assert_ne!(after, file, "{old:?} {new:?}");
                if let (Ok(before), Ok(after)) = (std::str::from_utf8(file), std::str::from_utf8(after)) {
                    follow(&done.diff, before, after);
                    let is_plain = !before.contains(['\r', '\u{feff}']) && !new.contains(['\r', '\u{feff}']);
                    if is_plain && before.contains(&*old) && !old.starts_with('\u{feff}') {
                        assert_eq!(after, before.replace(&*old, &new), "{old:?} {new:?}");
                    }
                }
            }
            Err(error) => assert_is_sentence(&error),
        }
    }
}

/// Arguments of a call, and the schema of its tool.
pub(crate) fn arguments(data: &[u8]) {
    let (arguments, schema) = halves(data);
    let arguments: Value = serde_json::from_slice(arguments).unwrap_or_default();
    let schema: Value = serde_json::from_slice(schema).unwrap_or_else(|_| {
        json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": ["string", "integer"], "minimum": 1, "maximum": 9},
            "b": {"type": "array", "items": {"type": "number"}, "default": null},
            "c": {"enum": ["x", 1, null]},
        }})
    });
    let spec = ToolSpec {
        name: "tool".to_owned(),
        doc: String::new(),
        schema,
    };
    let arguments = arguments.as_object().cloned().unwrap_or_else(Map::new);
    if let Err(error) = validate_arguments(&spec, &arguments) {
        assert!(!error.is_empty());
    }
}

fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    (&data[..at], data.get(at + 1..).unwrap_or_default())
}

fn assert_is_sentence(error: &str) {
    assert!(!error.is_empty() && error.len() < 64 * 1024, "{error:.1000}");
}

/// Applies a diff, as `patch` would: it has to lead from one text to the other.
pub(crate) fn follow(diff: &str, before: &str, after: &str) {
    if diff.contains("[the diff is cut here") || diff.contains(" more bytes]\n") || diff.contains("rename from") {
        return;
    }
    // A byte order mark is no part of the text; without one, what looks like it is.
    let (before, after) = match before.strip_prefix('\u{feff}') {
        Some(text) => (text, after.strip_prefix('\u{feff}').unwrap_or(after)),
        None => (before, after),
    };
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let mut result = String::new();
    let mut at = 0;
    // A line that begins with two signs may look like a header: hunks say how long they are.
    let (mut gone, mut come) = (0, 0);
    let mut lines = diff.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        if gone + come == 0 {
            let Some(numbers) = line.strip_prefix("@@ -") else {
                if line.starts_with("--- ") && !line.starts_with("--- a/f") {
                    return; // more than the one file: only its own diff is followed
                }
                continue;
            };
            let (from, to) = numbers.split_once(" +").unwrap_or_default();
            let count = |text: &str| -> (usize, usize) {
                let (start, count) = text.split_once(',').unwrap_or((text, "1"));
                (start.parse().unwrap_or(0), count.trim().parse().unwrap_or(0))
            };
            let (start, old_count) = count(from);
            (gone, come) = (old_count, count(to.split(" @@").next().unwrap_or_default()).1);
            let start = if old_count == 0 { start } else { start - 1 };
            old[at..start].iter().for_each(|line| result.push_str(line));
            at = start;
            continue;
        }
        let mut text = line[1..].to_owned();
        if lines.peek().is_some_and(|next| next.starts_with("\\ No newline")) {
            lines.next();
            text.pop();
        }
        match line.as_bytes()[0] {
            b'+' => {
                result.push_str(&text);
                come -= 1;
            }
            sign => {
                assert_eq!(old[at], text, "{diff}");
                at += 1;
                gone -= 1;
                if sign == b' ' {
                    result.push_str(&text);
                    come -= 1;
                }
            }
        }
    }
    old[at..].iter().for_each(|line| result.push_str(line));
    assert_eq!(result, after, "{diff}");
}
