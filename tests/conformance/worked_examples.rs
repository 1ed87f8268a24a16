//! The scripts that users start from, word for word, on trees of the size they have.

use std::collections::BTreeSet;
use std::path::Path;

use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![a_checkout_of_20_000_files];

/// A checkout of 20,000 files.
fn checkout(root: &Path) {
    for package in 0..200 {
        let folder = root.join(format!("src/package_{package:03}"));
        std::fs::create_dir_all(&folder).unwrap();
        for module in 0..99 {
            let text =
                format!("\"\"\"Module {module}.\"\"\"\n\n\ndef work_{module}(value):\n    return value + {module}\n");
            std::fs::write(folder.join(format!("module_{module:02}.py")), text).unwrap();
        }
        std::fs::write(folder.join("notes.md"), "The database is not configured here.\n").unwrap();
    }
}

fn a_checkout_of_20_000_files(rig: &Rig) {
    checkout(&rig.work());
    configs_become_json(rig);
    a_deprecated_call_is_replaced(rig);
}

fn configs_become_json(rig: &Rig) {
    let root = rig.work();
    let mut expected = BTreeSet::new();
    for number in 0..12 {
        let name = format!("src/package_{:03}/deploy {number}/app.yaml", number * 16);
        rig.file(
            &name,
            format!("# {number}\ndatabase:\n  host: db-{number}\n{}", "x: y\n".repeat(100)),
        );
        expected.insert(name);
    }
    rig.file(".gitignore", "build/\n");
    rig.file("build/app.yaml", "database: generated\n");
    rig.file("other.yaml", "cache: redis\n");
    std::fs::create_dir(root.join(".git")).unwrap();
    let found = rig.session().value(include_str!("worked_examples/configs.py"));
    let found = found.as_array().unwrap();
    let files: BTreeSet<String> = found
        .iter()
        .map(|one| one["file"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(files, expected);
    for one in found {
        let preview = one["preview"].as_str().unwrap();
        assert!(
            preview.starts_with("1|# ") && preview.contains("2|database:\n3|  host: db-"),
            "{preview}"
        );
        assert_eq!(preview.chars().count(), 200);
    }
}

fn a_deprecated_call_is_replaced(rig: &Rig) {
    let changed: Vec<String> = (0..40)
        .map(|number| format!("src/package_{number:03}/module_07.py"))
        .collect();
    for path in &changed {
        rig.file(
            path,
            "import api\r\n\r\nresult = [api.old_api_call(1), api.old_api_call(2)]\r\n",
        );
    }
    rig.file("src/package_050/module_07.txt", "old_api_call( in a text\n");
    let cell = Cell::new(include_str!("worked_examples/refactoring.py"));
    let outcome = rig.session().run(cell);
    assert_eq!(outcome.output, "Fixed 40 files out of 40 matches\n", "{outcome:#?}");
    for path in &changed {
        let text = std::fs::read_to_string(rig.work().join(path)).unwrap();
        assert_eq!(
            text, "import api\r\n\r\nresult = [api.new_api_call(1), api.new_api_call(2)]\r\n",
            "{path}"
        );
    }
    let other = std::fs::read_to_string(rig.work().join("src/package_050/module_07.txt")).unwrap();
    assert_eq!(other, "old_api_call( in a text\n");
}
