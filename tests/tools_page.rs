//! `docs/tools.md` says of the built-in tools what their specifications say. `TALARIA_UPDATE=1` writes it anew.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::path::Path;

use talaria_broker::tools::{BuiltinTools, ToolHost, ToolSpec, signature};

fn section(spec: &ToolSpec) -> String {
    let mut text = format!(
        "\n## {}\n\n```python\n{}\n```\n\n{}\n\n",
        spec.name,
        signature(spec),
        spec.doc
    );
    text.push_str("| parameter | meaning |\n| --- | --- |\n");
    for (name, property) in spec.schema["properties"].as_object().unwrap() {
        let meaning = property["description"].as_str().unwrap();
        text.push_str(&format!("| `{name}` | {} |\n", meaning.replace('|', "\\|")));
    }
    text
}

#[test]
fn the_page_is_that_of_the_specifications() {
    let mut page = String::from(
        "# The built-in tools\n\nMade from the specifications that also make the stub and check each call \
         (`TALARIA_UPDATE=1 cargo test --test tools_page`).\n",
    );
    for spec in BuiltinTools::new(None).tools() {
        page.push_str(&section(spec));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tools.md");
    if std::env::var_os("TALARIA_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "run TALARIA_UPDATE=1 cargo test --test tools_page");
}
