//! Files of the broker's own that hold output too long to be shown: `read_file` serves them on every target, and the
//! other tools say so.

use std::path::Path;

use serde_json::{Map, Value};

use crate::output::SPILL_PREFIXES;

/// Whether a path names an existing spill file of ours. Anything else is the target's, so that
/// a remote script learns nothing of the broker's files, not even names.
pub(super) fn is_spill(path: &Path, folder: &Path) -> bool {
    let is_ours = path.parent() == Some(folder)
        && path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| SPILL_PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    is_ours && path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Adds to a failure what the matter is, when the call named one of these files.
pub(super) fn explain(mut result: Value, arguments: &Map<String, Value>, folder: &Path) -> Value {
    let Some(named) = named(arguments, folder) else {
        return result;
    };
    let is_missing = |output: &str| output.contains(named) && output.contains("No such file");
    let failed = match (&result["error"], &result["output"], &result["exit_code"]) {
        (Value::String(error), _, _) => format!("{error}; "),
        (_, Value::String(output), Value::Number(code)) if code.as_i64() != Some(0) && is_missing(output) => {
            String::new()
        }
        _ => return result,
    };
    result["error"] = format!(
        "{failed}{named} holds output that the broker keeps on its own machine: only read_file reads it from every target, page by page"
    )
    .into();
    result
}

/// The first such file that arguments name.
pub(super) fn named<'a>(arguments: &'a Map<String, Value>, folder: &Path) -> Option<&'a str> {
    let mut texts = arguments.values().filter_map(Value::as_str);
    texts.find_map(|text| named_in(text, folder))
}

/// The first such file that a text names.
fn named_in<'t>(text: &'t str, folder: &Path) -> Option<&'t str> {
    let folder_text = folder.to_str()?;
    text.match_indices(folder_text).find_map(|(start, _)| {
        let rest = text.get(start..)?;
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = rest.get(folder_text.len() + 1..)?;
        let end = name.find(|c| !is_of_name(c)).unwrap_or(name.len());
        let path = rest.get(..folder_text.len() + 1 + end)?;
        is_spill(Path::new(path), folder).then_some(path)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_ours_and_what_is_said_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["stdout-1.txt", "page-1.txt", "secret"] {
            std::fs::write(place(name), "spilled").unwrap();
        }
        std::os::unix::fs::symlink(place("secret"), place("stdout-2")).unwrap();
        for ours in ["stdout-1.txt", "page-1.txt"] {
            assert!(is_spill(Path::new(&place(ours)), folder.path()), "{ours}");
        }
        for other in ["secret", "stdout-2", "stdout-none", "x/../stdout-1.txt"] {
            assert!(!is_spill(Path::new(&place(other)), folder.path()), "{other}");
        }
        let ours = place("stdout-1.txt");
        let missing = format!("grep: {ours}: No such file or directory");
        for (arguments, result, is_told) in [
            (json!({"path": ours}), json!({"error": "not there"}), true),
            (
                json!({"patch": format!("*** Update File: {ours}\n-a")}),
                json!({"error": "not there"}),
                true,
            ),
            (json!({"path": place("secret")}), json!({"error": "not there"}), false),
            (json!({"path": ours}), json!({"matches": []}), false),
            (
                json!({"command": format!("grep x '{ours}' | head")}),
                json!({"output": missing, "exit_code": 2, "error": null}),
                true,
            ),
            (
                json!({"command": format!("grep x {ours}")}),
                json!({"output": "", "exit_code": 1, "error": null}),
                false,
            ),
        ] {
            let told = explain(result.clone(), arguments.as_object().unwrap(), folder.path());
            assert_eq!(
                told["error"].as_str().unwrap_or_default().contains("only read_file"),
                is_told,
                "{arguments}"
            );
            assert!(is_told || told == result);
        }
    }
}
