//! How a call that waits for a decision is shown: so that it cannot look like anything else than it is.

use std::fmt::Write;

use serde_json::Value;

use super::ApprovalRequest;

/// Lines of one text that are shown at first: so many from its beginning, so many from its end.
const HEAD: usize = 40;
const TAIL: usize = 15;
/// Blanks in a row that are shown as such.
const MOST_BLANKS: usize = 8;

/// A call that waits for a decision, as a person sees it.
pub struct Question {
    title: String,
    parts: Vec<(String, String)>,
}

impl Question {
    /// Of a call.
    #[must_use]
    pub fn of(request: &ApprovalRequest) -> Self {
        let mut parts = Vec::new();
        for (name, value) in &request.arguments {
            // A diff says it better.
            let is_told = request.diff.is_some() && name != "path";
            if value.is_null() || (is_told && matches!(request.tool.as_str(), "write_file" | "patch")) {
                continue;
            }
            let text = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            parts.push((name.clone(), text));
        }
        if let Some(diff) = &request.diff {
            parts.push(("change".to_owned(), diff.clone()));
        }
        if !request.files.is_empty() {
            parts.push(("file".to_owned(), request.files.join("\n")));
        }
        parts.push(("folder".to_owned(), request.folder.clone()));
        parts.push(("rule".to_owned(), request.rules.join("\n")));
        Self {
            title: format!(
                "A script wants to call {} on {}",
                plain(&request.tool),
                plain(&request.target)
            ),
            parts,
        }
    }

    /// The call in lines of so many columns; with `whole`, however long it is.
    #[must_use]
    pub fn shown(&self, columns: usize, whole: bool) -> String {
        let mut shown = format!("\n{}\n", self.title);
        let margin = self.parts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, text) in &self.parts {
            let lines = lines(text, columns.saturating_sub(margin + 6));
            let left_out = lines.len().saturating_sub(HEAD + TAIL);
            let cut = if whole || left_out < 2 { None } else { Some(left_out) };
            let mut name = plain(name);
            for (index, line) in lines.iter().enumerate() {
                match cut {
                    Some(count) if index == HEAD => {
                        let _ = writeln!(shown, "  {:margin$} [{count} lines are not shown]", "");
                    }
                    Some(count) if index > HEAD && index < HEAD + count => {}
                    _ => {
                        let _ = writeln!(shown, "  {name:margin$} | {line}");
                        name.clear();
                    }
                }
            }
        }
        shown
    }
}

/// A text in lines that fit, with nothing in them that a terminal would act on or that cannot be seen.
fn lines(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(20);
    let mut lines = Vec::new();
    for line in text.trim_end_matches('\n').split('\n') {
        let mut current = String::new();
        let mut width = 0;
        for piece in pieces(line) {
            let more = piece.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum::<usize>();
            if width + more > columns && width > 0 {
                lines.push(std::mem::take(&mut current));
                width = 0;
            }
            current.push_str(&piece);
            width += more;
        }
        lines.push(current);
    }
    lines
}

/// A text on one line, with nothing in it that a terminal would act on or that cannot be seen.
#[must_use]
pub fn plain(text: &str) -> String {
    pieces(text).concat()
}

/// The signs of a line as they are shown.
fn pieces(line: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ' ' {
            let mut count = 1;
            while chars.next_if_eq(&' ').is_some() {
                count += 1;
            }
            if count > MOST_BLANKS {
                pieces.push(format!("[{count} blanks]"));
            } else {
                pieces.extend(std::iter::repeat_n(" ".to_owned(), count));
            }
        } else if c == '\t' {
            pieces.push("    ".to_owned());
        } else if is_seen(c) {
            pieces.push(c.to_string());
        } else {
            pieces.push(c.escape_default().to_string());
        }
    }
    pieces
}

/// Whether a terminal shows it, and as what it is.
fn is_seen(c: char) -> bool {
    let is_hidden = c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' | '\u{e000}'..='\u{f8ff}'
            | '\u{f0000}'..='\u{10ffff}');
    !is_hidden
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(tool: &str, arguments: &Value, diff: Option<&str>) -> Question {
        Question::of(&ApprovalRequest {
            target: "ssh:build1".to_owned(),
            cell: 1,
            tool: tool.to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
            folder: "/work".to_owned(),
            files: Vec::new(),
            diff: diff.map(str::to_owned),
            rules: vec!["approval.tools.terminal: ask".to_owned()],
        })
    }

    #[test]
    fn a_command_cannot_disguise_itself() {
        let command = "ls\u{1b}[2K\rrm x\u{8}\u{7f}\u{9b}1A\u{202e}fr- mr\u{200b}\u{a0}\u{e0041} \ny\nAllow it? y";
        let question = asked("terminal", &json!({"command": command}), None);
        let shown = question.shown(80, false);
        assert_eq!(
            shown,
            "\nA script wants to call terminal on ssh:build1\n\
             \x20 command | ls\\u{1b}[2K\\rrm x\\u{8}\\u{7f}\\u{9b}1A\\u{202e}fr- mr\\u{200b}\\u{a0}\n\
             \x20         | \\u{e0041} \n\
             \x20         | y\n\
             \x20         | Allow it? y\n\
             \x20 folder  | /work\n\
             \x20 rule    | approval.tools.terminal: ask\n"
        );
    }

    #[test]
    fn what_is_far_to_the_right_is_seen() {
        let command = format!("ls{}; rm x{}", " ".repeat(5000), "a".repeat(200));
        let shown = asked("terminal", &json!({"command": command}), None).shown(80, false);
        assert!(shown.contains("ls[5000 blanks]; rm x"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    }

    #[test]
    fn what_is_long_is_cut_and_can_be_seen_whole() {
        let command: String = (0..500).map(|number| format!("line{number}\n")).collect();
        let question = asked("terminal", &json!({"command": command}), None);
        let shown = question.shown(80, false);
        assert!(shown.contains("[445 lines are not shown]"), "{shown}");
        assert!(shown.contains("line39\n") && !shown.contains("line40\n") && shown.contains("line485\n"));
        assert!((0..500).all(|number| question.shown(80, true).contains(&format!("line{number}\n"))));
    }

    #[test]
    fn a_diff_stands_for_what_it_shows() {
        let arguments = json!({"path": "a", "content": "new text"});
        let shown = asked("write_file", &arguments, Some("-old\n+new\n")).shown(80, false);
        assert!(
            shown.contains("change | -old\n") && !shown.contains("new text"),
            "{shown}"
        );
        let shown = asked("write_file", &arguments, None).shown(80, false);
        assert!(shown.contains("new text"), "{shown}");
    }
}
