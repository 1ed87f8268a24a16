//! What may be shown of a text: bounded, without secrets, harmless on a terminal.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use crate::environment::is_secret_name;
use crate::output::Masker;

/// What stands in the place of a secret.
const HIDDEN: &str = "***";
/// Characters of a value that are shown, arguments that are, and characters of a name.
const SHOWN: usize = 160;
const ARGUMENTS: usize = 12;
const NAME: usize = 40;
/// Bytes of a text in which secrets are looked for: more than are shown, so that none is taken for none because its end
/// is not seen.
const LOOKED_AT: usize = 1_024;
/// Arguments that are contents of files: their size is told and nothing else.
const CONTENTS: [&str; 3] = ["content", "old_string", "new_string"];
/// Files that are listed of a patch.
const FILES: usize = 8;

/// Forms that secrets have wherever they stand, and what is left of each.
static SECRETS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    const FORMS: [(&str, &str); 7] = [
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY.*", "***"),
        (r"://[^/\s@]*:[^/\s@]*@", "://***@"),
        (r#"(?i)\b(bearer|basic)\s+[^\s"']{6,}"#, "$1 ***"),
        (
            r#"(?i)([\w.-]*(?:key|token|secret|password|passwd|credential|creds|auth|dsn|webhook)[\w.-]*\\?["']?\s*[=:]\s*(?:(?:bearer|basic|token)\s+)?)(?:\\?"[^"]*"?|'[^']*'?|[^\s"'&;,)]+)"#,
            "$1***",
        ),
        (
            r"(?i)(\s--?(?:[a-z-]*(?:password|passwd|token|secret|key|auth))\s+)\S+",
            "$1***",
        ),
        (r"(\s(?:-u|--user)\s+[^\s:]+:)\S+", "$1***"),
        (
            r"\b(?:sk-|sk_live_|rk_live_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|AIza|hf_|npm_|pypi-|dop_v1_|eyJ[\w-]+\.)[\w./+=-]{8,}",
            "***",
        ),
    ];
    FORMS
        .iter()
        .filter_map(|(form, left)| Some((Regex::new(form).ok()?, *left)))
        .collect()
});

/// A text, at most so many characters of it, without what the masker knows or what looks like a secret, in one line.
pub(super) fn text(text: &str, masker: &Masker, characters: usize) -> String {
    harmless(&shown(text, masker, characters))
}

fn shown(text: &str, masker: &Masker, characters: usize) -> String {
    let looked_at = LOOKED_AT.max(4 * characters);
    let mut masked = masker.mask_beginning(text, looked_at);
    for (form, left) in SECRETS.iter() {
        if let std::borrow::Cow::Owned(without) = form.replace_all(&masked, *left) {
            masked = without;
        }
    }
    let cut = masked.char_indices().nth(characters).map(|(at, _)| at);
    if let Some(at) = cut {
        masked.truncate(at);
    }
    if cut.is_some() || text.len() > looked_at {
        masked.push('…');
    }
    masked
}

/// Control characters and others that do not show, escaped.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => out.push(character),
            other => out.extend(other.escape_debug()),
        }
    }
    out
}

/// What was seen of a call's arguments when it came; looked through for secrets when it is written down.
#[derive(Debug)]
pub(super) struct Preview {
    shown: Vec<(String, Seen)>,
    more: usize,
}

#[derive(Debug)]
enum Seen {
    Text { beginning: String, bytes: usize },
    Json(String),
    Size(String),
    Hidden,
}

impl Preview {
    /// Takes as much of the arguments as a line may show and a masker needs.
    pub(super) fn of(arguments: &Map<String, Value>, masker: &Masker) -> Self {
        let reach = LOOKED_AT + masker.longest();
        let shown = arguments.iter().take(ARGUMENTS).map(|(name, value)| {
            let seen = match value {
                _ if is_secret_name(name) => Seen::Hidden,
                Value::String(text) if CONTENTS.contains(&name.as_str()) => {
                    Seen::Size(format!("<{} bytes>", text.len()))
                }
                Value::String(text) if name == "patch" => Seen::Size(files_of_patch(text)),
                Value::String(text) => Seen::Text {
                    beginning: text[..text.floor_char_boundary(reach)].to_owned(),
                    bytes: text.len(),
                },
                Value::Array(items) if super::digest::text_bytes(value) > LOOKED_AT as u64 => {
                    Seen::Size(format!("<list of {}>", items.len()))
                }
                Value::Object(map) if super::digest::text_bytes(value) > LOOKED_AT as u64 => {
                    Seen::Size(format!("<object of {}>", map.len()))
                }
                other => Seen::Json(other.to_string()),
            };
            (name.chars().take(NAME).collect(), seen)
        });
        Self {
            shown: shown.collect(),
            more: arguments.len().saturating_sub(ARGUMENTS),
        }
    }

    /// As a line shows it: `name=value` with blanks between.
    pub(super) fn render(&self, masker: &Masker) -> String {
        let mut parts: Vec<String> = self
            .shown
            .iter()
            .map(|(name, seen)| {
                let value = match seen {
                    Seen::Hidden => HIDDEN.to_owned(),
                    Seen::Size(size) => text(size, masker, 4 * SHOWN),
                    Seen::Json(json) => text(json, masker, SHOWN),
                    Seen::Text { beginning, bytes } => {
                        let shown = shown(beginning, masker, SHOWN);
                        match shown.strip_suffix('…') {
                            Some(shown) => format!("{shown:?}…({bytes} bytes)"),
                            None => format!("{shown:?}"),
                        }
                    }
                };
                format!("{}={value}", text(name, masker, NAME))
            })
            .collect();
        if self.more > 0 {
            parts.push(format!("and {} more", self.more));
        }
        parts.join(" ")
    }
}

/// The size of a patch and the files that it names.
fn files_of_patch(patch: &str) -> String {
    let named = patch.lines().filter_map(|line| {
        let rest = line.strip_prefix("*** ")?;
        let (what, path) = rest.split_once(": ")?;
        let what = match what {
            "Add File" => "add",
            "Delete File" => "delete",
            "Update File" => "update",
            "Move to" => "move to",
            _ => return None,
        };
        let path: String = path.chars().take(SHOWN / 2).collect();
        Some(format!("{what} {path:?}"))
    });
    let named: Vec<String> = named.take(FILES).collect();
    let colon = if named.is_empty() { "" } else { ": " };
    format!("<{} bytes{colon}{}>", patch.len(), named.join(", "))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn masker() -> Masker {
        Masker::new(["v3ry-s3cret-value".to_owned()]).unwrap()
    }

    fn preview(json: &str) -> String {
        let arguments: Map<String, Value> = serde_json::from_str(json).unwrap();
        Preview::of(&arguments, &masker()).render(&masker())
    }

    #[test]
    fn every_form_is_one() {
        assert_eq!(SECRETS.len(), 7);
    }

    #[test]
    fn secrets_are_hidden_wherever_they_stand() {
        for (given, shown) in [
            ("cat /etc/hosts", "cat /etc/hosts"),
            ("echo v3ry-s3cret-value", "echo ***"),
            ("export API_KEY=abc123 && run", "export API_KEY=*** && run"),
            ("PGPASSWORD='a b' psql", "PGPASSWORD=*** psql"),
            (
                "curl -H 'Authorization: Bearer abcdef123' x",
                "curl -H 'Authorization: Bearer ***' x",
            ),
            ("curl -H \"X-Api-Key: abc\" x", "curl -H \"X-Api-Key: ***\" x"),
            ("curl -u bob:pw https://x", "curl -u bob:*** https://x"),
            ("git clone https://bob:pw@host/x", "git clone https://***@host/x"),
            ("psql postgres://u:p@h/db", "psql postgres://***@h/db"),
            ("login --password hunter2 now", "login --password *** now"),
            ("use ghp_0123456789abcdef0123", "use ***"),
            ("{\"password\":\"x y\",\"a\":1}", "{\"password\":***,\"a\":1}"),
            (
                "{\"a\":\"{\\\"token\\\": \\\"x y\\\"}\"}",
                "{\"a\":\"{\\\"token\\\": ***}\"}",
            ),
            ("-----BEGIN RSA PRIVATE KEY-----\nabc", "***"),
            ("git log --oneline", "git log --oneline"),
        ] {
            assert_eq!(text(given, &masker(), 200), shown, "{given}");
        }
    }

    #[test]
    fn a_secret_at_the_edge_of_what_is_shown_does_not_show_in_part() {
        for before in 120..=1_100 {
            let given = format!("{}v3ry-s3cret-value ghp_0123456789abcdef0123", ".".repeat(before));
            let shown = preview(&serde_json::json!({"command": given}).to_string());
            assert!(
                !shown.contains("v3r") && !shown.contains("ghp_0123"),
                "{before}: {shown}"
            );
        }
    }

    #[test]
    fn a_preview_is_short_and_holds_no_file() {
        assert_eq!(
            preview(
                r#"{"path": "a b.txt", "content": "line\nline\n", "API_TOKEN": "x", "n": 3, "deep": {"my_secret": "x"}}"#
            ),
            r#"path="a b.txt" content=<10 bytes> API_TOKEN=*** n=3 deep={"my_secret":***}"#
        );
        let long = preview(
            &serde_json::json!({"command": "é".repeat(50_000), "list": vec!["x".repeat(100); 100]}).to_string(),
        );
        assert!(
            long.ends_with("…(100000 bytes) list=<list of 100>") && long.len() < 600,
            "{long}"
        );
        let many: Map<String, Value> = (0..30).map(|n| (format!("a{n}"), n.into())).collect();
        assert!(preview(&Value::Object(many).to_string()).ends_with("a11=11 and 18 more"));
        let patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 'private'\n*** Delete File: b\n*** End Patch";
        assert_eq!(
            preview(&serde_json::json!({"mode": "patch", "patch": patch}).to_string()),
            format!(
                "mode=\"patch\" patch=<{} bytes: update \"a.py\", delete \"b\">",
                patch.len()
            )
        );
    }

    #[test]
    fn control_characters_are_harmless() {
        let shown = preview(&serde_json::json!({"command": "a\u{1b}[2J\u{9b}31m\u{202e}b\r\n"}).to_string());
        assert_eq!(shown, r#"command="a\u{1b}[2J\u{9b}31m\u{202e}b\r\n""#);
        assert_eq!(harmless("it's \"x\"\u{7f}\n"), "it's \"x\"\\u{7f}\\n");
    }
}
