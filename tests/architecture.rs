//! The floors of the house: a file uses only its own floor and those below it.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Module → floor, the ground first. A module that is not here fails the test.
const FLOORS: &[&[&str]] = &[
    &[
        "approval",
        "audit",
        "bundle",
        "config",
        "environment",
        "interpreter",
        "limits",
        "outcome",
        "output",
        "place",
        "privacy",
        "suggest",
        "target",
    ],
    &["backends", "telemetry", "web"],
    &["link"],
    &["socket_rpc", "file_rpc", "alone_rpc"],
    &["kernel"],
    &["tools"],
    &["session"],
    &["broker", "schema"],
    &["conformance", "mcp"],
    &["cli", "main"],
];

/// Longest file in lines, tests included.
const LONGEST_FILE: usize = 800;

/// What people wrote.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "generated") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn module_of(path: &Path, root: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Modules of this crate that a file names, however it names them.
fn used(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut names = Vec::new();
    for prefix in ["crate::", "talaria_broker::"] {
        for part in code.split(prefix).skip(1) {
            let group = part
                .strip_prefix('{')
                .map(|group| group.split('}').next().unwrap_or(""));
            let heads = group.map_or_else(|| vec![part], |group| group.split(',').collect());
            for head in heads {
                let name: String = head
                    .trim()
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                names.push(name);
            }
        }
    }
    names
}

#[test]
fn every_file_uses_only_its_floor_and_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let floors: BTreeMap<&str, usize> = FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, modules)| modules.iter().map(move |module| (*module, floor)))
        .collect();
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut faults = Vec::new();
    for path in files {
        let module = module_of(&path, &root);
        if module == "lib" {
            continue;
        }
        let Some(floor) = floors.get(module.as_str()) else {
            faults.push(format!("{} stands on no floor", path.display()));
            continue;
        };
        for name in used(&std::fs::read_to_string(&path).unwrap()) {
            match floors.get(name.as_str()) {
                Some(other) if other > floor => {
                    faults.push(format!("{}: {module} uses {name}, which is above it", path.display()));
                }
                Some(_) => {}
                None => faults.push(format!("{}: {name} stands on no floor", path.display())),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The files of the target side, by name.
fn target_side() -> Vec<PathBuf> {
    std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("remote_agent"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .collect()
}

#[test]
fn the_map_names_every_file_of_the_target_side_and_no_other() {
    let map = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
    let named: BTreeSet<String> = map
        .split('`')
        .filter_map(|word| word.strip_prefix("remote_agent/").or(Some(word)))
        .filter(|word| word.ends_with(".py"))
        .map(str::to_owned)
        .collect();
    let there: BTreeSet<String> = target_side()
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(named, there);
}

#[test]
fn no_file_is_too_long_to_have_one_reason_to_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    files.extend(target_side());
    let long: Vec<String> = files
        .iter()
        .map(|path| (path, std::fs::read_to_string(path).unwrap().lines().count()))
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
