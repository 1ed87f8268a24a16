//! `docs/testing.md` names tests that exist, and a test for every statement.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::path::{Path, PathBuf};

/// Rows of the tables: the statement, and the tests named beside it.
fn rows(page: &str) -> Vec<(String, Vec<String>)> {
    page.lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("| ---") && !line.starts_with("| statement"))
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [statement, .., tests] = cells[..] else {
                return None;
            };
            let named = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            Some((statement.trim().to_owned(), named))
        })
        .collect()
}

/// The files in which a test of an area may stand: `KIND::AREA::NAME`.
fn files(root: &Path, kind: &str, area: &str) -> Vec<PathBuf> {
    let place = match kind {
        "contract" => root.join("src/conformance").join(area),
        "conformance" => root.join("tests/conformance").join(area),
        "unit" => root.join("src").join(area.replace("::", "/")),
        "python" => root.join("tests/python").join(area),
        "integration" => root.join("tests").join(area),
        _ => return Vec::new(),
    };
    let mut found: Vec<PathBuf> = ["rs", "py"]
        .iter()
        .map(|extension| place.with_extension(extension))
        .filter(|path| path.is_file())
        .collect();
    if let Ok(entries) = std::fs::read_dir(&place) {
        found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    found
}

#[test]
fn every_statement_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/testing.md")).unwrap();
    let rows = rows(&page);
    assert!(rows.len() > 60, "only {} rows were read", rows.len());
    let mut faults = Vec::new();
    for (statement, tests) in rows {
        if tests.is_empty() {
            faults.push(format!("no test is named for: {statement}"));
        }
        for test in tests {
            let mut parts = test.splitn(2, "::");
            let (kind, rest) = (parts.next().unwrap(), parts.next().unwrap_or_default());
            let (area, name) = rest.rsplit_once("::").unwrap_or_default();
            let is_there = files(root, kind, area).iter().any(|path| {
                let text = std::fs::read_to_string(path).unwrap();
                // By itself, or in a list that a macro makes tests of.
                ["fn {}(", "def {}(", "    {}: \"", "        \"{}\",\n"]
                    .iter()
                    .any(|form| text.contains(&form.replace("{}", name)))
            });
            if !is_there {
                faults.push(format!("`{test}` does not exist (for: {statement})"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
