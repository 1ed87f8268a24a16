//! What a call acts on, for rules that look at arguments.

use serde_json::{Map, Value};

use super::builtin::text;
use super::patch;

/// What the arguments of a call name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActsOn {
    /// Nothing that rules know of.
    Nothing,
    /// Files, as the script named them.
    Files(Vec<String>),
    /// A folder with all that is in it, or one file.
    Folder(String),
    /// Shell text.
    Command(String),
}

/// What a call of a tool acts on, where the tool has the arguments of the built-in one of that name.
///
/// # Errors
/// What the built-in tool would say of a call that names nothing it could act on.
pub fn acts_on(tool: &str, arguments: &Map<String, Value>) -> Result<ActsOn, String> {
    let has = |name: &str| arguments.get(name).is_some_and(Value::is_string);
    Ok(match tool {
        "read_file" | "write_file" if has("path") => ActsOn::Files(vec![text(arguments, "path").to_owned()]),
        "search_files" if has("path") => ActsOn::Folder(text(arguments, "path").to_owned()),
        "search_files" => ActsOn::Folder(".".to_owned()),
        "patch" => ActsOn::Files(patch::paths(arguments)?),
        "terminal" if has("command") => ActsOn::Command(text(arguments, "command").to_owned()),
        _ => ActsOn::Nothing,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(tool: &str, arguments: &Value) -> Result<ActsOn, String> {
        acts_on(tool, arguments.as_object().unwrap())
    }

    #[test]
    fn a_patch_acts_on_every_file_that_it_names() {
        let text = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n-x\n+y\n*** Add File: c\n+z\n\
                    *** Delete File: d\n*** Move File: e -> f\n*** End Patch\n";
        let found = of("patch", &json!({"mode": "patch", "patch": text}));
        let files = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        assert_eq!(found, Ok(ActsOn::Files(files.clone())));
        assert_eq!(of("patch", &json!({"patch": text})), Ok(ActsOn::Files(files)));
        assert_eq!(
            of("patch", &json!({"path": "a", "old_string": "x", "new_string": "y"})),
            Ok(ActsOn::Files(vec!["a".to_owned()]))
        );
        // What the tool would not take is not judged either.
        for arguments in [
            json!({}),
            json!({"patch": "nothing"}),
            json!({"path": "a", "old_string": "x", "new_string": "y", "patch": text}),
            json!({"mode": "patch", "path": "a", "old_string": "x", "new_string": "y", "patch": text}),
        ] {
            assert!(of("patch", &arguments).is_err(), "{arguments}");
        }
    }

    #[test]
    fn other_tools_act_on_what_they_are_given() {
        assert_eq!(
            of("write_file", &json!({"path": "~/x", "content": ""})),
            Ok(ActsOn::Files(vec!["~/x".to_owned()]))
        );
        for arguments in [json!({"pattern": "x"}), json!({"pattern": "x", "path": "."})] {
            assert_eq!(of("search_files", &arguments), Ok(ActsOn::Folder(".".to_owned())));
        }
        assert_eq!(
            of("terminal", &json!({"command": "ls"})),
            Ok(ActsOn::Command("ls".to_owned()))
        );
        // Another host's tool of that name.
        for tool in ["write_file", "terminal", "greet"] {
            assert_eq!(of(tool, &json!({"words": ["ls"]})), Ok(ActsOn::Nothing));
        }
    }
}
