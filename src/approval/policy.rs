//! The rules themselves.
//!
//! The strictest rule that fits wins: `deny` before `ask` before `allow` before the tool's own default before that of
//! all tools. So the order in which rules stand does not matter, and none is made void by another one. A call that acts
//! on several things is judged by each of them, and the strictest verdict counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::command::{self, begins, may_run};
use super::paths::{Names, PathRule};

/// What becomes of a call, from the mildest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It happens.
    #[default]
    Allow,
    /// Somebody is asked.
    Ask,
    /// It does not happen.
    Deny,
}

impl Action {
    /// The words that stand for them.
    pub const WORDS: &'static [&'static str] = &["allow", "ask", "deny"];

    /// The word that stands for this one.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    /// What a word stands for.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Allow, Self::Ask, Self::Deny]
            .into_iter()
            .find(|action| action.as_str() == word)
    }
}

/// The rules of one tool, as they are written. Lists are of path patterns for the tools that take paths, and of the
/// beginnings of commands for `terminal`; other tools have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolRules {
    /// What holds where no rule fits.
    pub default: Option<Action>,
    /// What may happen.
    pub allow: Vec<String>,
    /// What is asked about.
    pub ask: Vec<String>,
    /// What may not happen.
    pub deny: Vec<String>,
}

/// A rule that is none: a sentence that reads after the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuleError(pub String);

/// What a policy must know of a call to judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Its tool alone.
    Nothing,
    /// The files that it acts on.
    Files,
    /// The command that it runs.
    Command,
}

/// What a call acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Nothing that rules look at.
    Nothing,
    /// These files.
    Files(Vec<Names>),
    /// A folder with all that is in it.
    Folder(Names),
    /// A shell command.
    Command(String),
}

/// What the rules say of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of it.
    pub action: Action,
    /// The rules that say so, by the name that they have in a configuration.
    pub rules: Vec<String>,
}

/// Rules for all tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// For tools without rules of their own.
    pub default: Action,
    /// How long an answer is waited for.
    pub timeout: Duration,
    tools: BTreeMap<String, Rules>,
}

#[derive(Clone, Debug, Default)]
struct Rules {
    default: Option<Action>,
    kind: Lists,
    written: ToolRules,
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.default == other.default && self.written == other.written
    }
}

#[derive(Clone, Debug, Default)]
enum Lists {
    #[default]
    None,
    Paths(Vec<(Action, PathRule)>),
    Commands(Vec<(Action, String, Vec<String>)>),
}

/// The tools whose calls name files.
const FILE_TOOLS: [&str; 4] = ["read_file", "write_file", "search_files", "patch"];
/// The tool that runs commands.
const COMMAND_TOOL: &str = "terminal";
/// How long an answer is waited for where nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Default for Policy {
    /// Everything is allowed.
    fn default() -> Self {
        Self::new(Action::Allow, TIMEOUT)
    }
}

impl Policy {
    /// A policy without rules: what holds for every tool, and how long an answer is waited for.
    #[must_use]
    pub fn new(default: Action, timeout: Duration) -> Self {
        Self {
            default,
            timeout,
            tools: BTreeMap::new(),
        }
    }

    /// Whether it allows everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.default == Action::Allow && self.tools.values().all(|rules| !rules.is_strict(Action::Allow))
    }

    /// Whether it may be that somebody is asked about this tool.
    #[must_use]
    pub fn may_ask(&self, tool: &str) -> bool {
        let Some(rules) = self.tools.get(tool) else {
            return self.default == Action::Ask;
        };
        // Also a list that only denies: what cannot be judged by it is asked about.
        self.default_of(tool).0 == Action::Ask || rules.has_lists()
    }

    /// Gives a tool its rules, in place of those that it had.
    ///
    /// # Errors
    /// A rule that is no pattern or no beginning of a command; rules for a tool that takes none. Nothing changes then.
    pub fn set(&mut self, tool: &str, rules: &ToolRules) -> Result<(), RuleError> {
        let lists = [
            (Action::Deny, &rules.deny),
            (Action::Ask, &rules.ask),
            (Action::Allow, &rules.allow),
        ];
        let all = lists
            .into_iter()
            .flat_map(|(action, list)| list.iter().map(move |text| (action, text)));
        let kind = if FILE_TOOLS.contains(&tool) {
            let rules = all.map(|(action, text)| {
                let rule = PathRule::parse(text).map_err(|problem| RuleError(format!("`{text}` {problem}")))?;
                Ok((action, rule))
            });
            Lists::Paths(rules.collect::<Result<_, _>>()?)
        } else if tool == COMMAND_TOOL {
            let rules = all.map(|(action, text)| {
                let words = command::prefix(text).ok_or_else(|| {
                    RuleError(format!(
                        "`{text}` is not the beginning of one command, such as `git status`; signs of the shell, \
                         variables and patterns have no place in a rule"
                    ))
                })?;
                Ok((action, text.clone(), words))
            });
            Lists::Commands(rules.collect::<Result<_, _>>()?)
        } else if all.count() > 0 {
            return Err(RuleError(format!(
                "{tool} takes allow, ask or deny as a whole; rules on arguments are for {} and {COMMAND_TOOL}",
                FILE_TOOLS.join(", ")
            )));
        } else {
            Lists::None
        };
        let rules = Rules {
            default: rules.default,
            kind,
            written: rules.clone(),
        };
        self.tools.insert(tool.to_owned(), rules);
        Ok(())
    }

    /// Says what holds for a tool where none of its rules fits.
    pub fn set_default(&mut self, tool: &str, action: Action) {
        self.tools.entry(tool.to_owned()).or_default().default = Some(action);
    }

    /// What it must know of a call of this tool.
    #[must_use]
    pub fn wants(&self, tool: &str) -> Wants {
        match self.tools.get(tool).map(|rules| &rules.kind) {
            Some(Lists::Paths(rules)) if !rules.is_empty() => Wants::Files,
            Some(Lists::Commands(rules)) if !rules.is_empty() => Wants::Command,
            _ => Wants::Nothing,
        }
    }

    /// Paths that its rules for a tool begin with, whose names [`Policy::judge`] has to know: absolute, below `~`, or
    /// relative to where the session starts.
    #[must_use]
    pub fn roots(&self, tool: &str) -> Vec<String> {
        match self.tools.get(tool).map(|rules| &rules.kind) {
            Some(Lists::Paths(rules)) => rules.iter().map(|(_, rule)| rule.root.clone()).collect(),
            _ => Vec::new(),
        }
    }

    /// Judges a call. `roots` are the names of [`Policy::roots`], in order.
    #[must_use]
    pub fn judge(&self, tool: &str, subject: &Subject, roots: &[Names]) -> Verdict {
        let (default, name) = self.default_of(tool);
        let default = Verdict {
            action: default,
            rules: vec![name],
        };
        let Some(rules) = self.tools.get(tool).filter(|rules| rules.has_lists()) else {
            return default;
        };
        let name = |action: Action, text: &str| format!("approval.tools.{tool}.{}: {text}", action.as_str());
        let unclear = |what: &str| {
            // Only where somebody wants it looked at.
            let action = if rules.is_strict(default.action) {
                Action::Ask
            } else {
                Action::Allow
            };
            let said = format!("approval.tools.{tool}: {what}, so that its rules cannot tell");
            if action > default.action {
                Verdict {
                    action,
                    rules: vec![said],
                }
            } else {
                default.clone()
            }
        };
        match (&rules.kind, subject) {
            (Lists::Paths(rules), Subject::Files(_) | Subject::Folder(_)) if rules.len() != roots.len() => {
                unclear("what its paths mean is not known")
            }
            (Lists::Paths(rules), Subject::Files(files)) if !files.is_empty() => {
                let each = files.iter().map(|names| {
                    let found = strictest(rules.iter().zip(roots).map(|((action, rule), roots)| {
                        let fits = match action {
                            Action::Allow => rule.fits_wholly(names, roots),
                            _ => rule.fits(names, roots),
                        };
                        fits.then(|| (*action, name(*action, &rule.text)))
                    }));
                    found.unwrap_or_else(|| default.clone())
                });
                together(each)
            }
            (Lists::Paths(rules), Subject::Folder(names)) => {
                let found = strictest(rules.iter().zip(roots).map(|((action, rule), roots)| {
                    let fits = match action {
                        Action::Allow => rule.covers(names, roots),
                        _ => rule.may_fit_below(names, roots),
                    };
                    fits.then(|| (*action, name(*action, &rule.text)))
                }));
                found.unwrap_or_else(|| default.clone())
            }
            (Lists::Commands(rules), Subject::Command(text)) => {
                let reading = command::read(text);
                let forbidden = strictest(rules.iter().map(|(action, text, prefix)| {
                    let fits = *action != Action::Allow && reading.likely.iter().any(|words| may_run(words, prefix));
                    fits.then(|| (*action, name(*action, text)))
                }));
                if let Some(found) = forbidden {
                    return found;
                }
                let Some(commands) = &reading.certain else {
                    return unclear("the command is more than words");
                };
                together(commands.iter().map(|words| {
                    let allowed = rules.iter().find_map(|(action, text, prefix)| {
                        let fits = *action == Action::Allow && begins(words, prefix);
                        fits.then(|| Verdict {
                            action: Action::Allow,
                            rules: vec![name(Action::Allow, text)],
                        })
                    });
                    allowed.unwrap_or_else(|| default.clone())
                }))
            }
            _ => unclear("its call is not of the usual form"),
        }
    }

    /// What holds for a tool where no rule fits, and where that is written.
    fn default_of(&self, tool: &str) -> (Action, String) {
        match self.tools.get(tool).and_then(|rules| rules.default) {
            Some(action) => (action, format!("approval.tools.{tool}: {}", action.as_str())),
            None => (self.default, format!("approval.default: {}", self.default.as_str())),
        }
    }
}

impl Rules {
    fn actions(&self) -> Vec<Action> {
        match &self.kind {
            Lists::None => Vec::new(),
            Lists::Paths(rules) => rules.iter().map(|(action, _)| *action).collect(),
            Lists::Commands(rules) => rules.iter().map(|(action, ..)| *action).collect(),
        }
    }

    fn has_lists(&self) -> bool {
        !self.actions().is_empty()
    }

    /// Whether anything in them is more than allowed.
    fn is_strict(&self, default: Action) -> bool {
        self.default.unwrap_or(default) > Action::Allow
            || self.actions().into_iter().any(|action| action > Action::Allow)
    }
}

/// The strictest of the rules that fit, with all that say the same.
fn strictest(fitting: impl Iterator<Item = Option<(Action, String)>>) -> Option<Verdict> {
    let fitting: Vec<(Action, String)> = fitting.flatten().collect();
    let action = fitting.iter().map(|(action, _)| *action).max()?;
    let rules = fitting.into_iter().filter(|(one, _)| *one == action);
    Some(Verdict {
        action,
        rules: rules.map(|(_, rule)| rule).collect(),
    })
}

/// The strictest of several verdicts, with the rules of all that are as strict.
fn together(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    let all: Vec<Verdict> = verdicts.collect();
    let action = all.iter().map(|verdict| verdict.action).max().unwrap_or(Action::Deny);
    let mut rules: Vec<String> = all
        .into_iter()
        .filter(|verdict| verdict.action == action)
        .flat_map(|verdict| verdict.rules)
        .collect();
    rules.sort();
    rules.dedup();
    Verdict { action, rules }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn terminal(default: Action, allow: &[&str], ask: &[&str], deny: &[&str]) -> Policy {
        let mut policy = Policy::default();
        let rules = ToolRules {
            default: Some(default),
            allow: list(allow),
            ask: list(ask),
            deny: list(deny),
        };
        policy.set("terminal", &rules).unwrap();
        policy
    }

    fn of(policy: &Policy, command: &str) -> Action {
        policy
            .judge("terminal", &Subject::Command(command.to_owned()), &[])
            .action
    }

    #[test]
    fn nothing_slips_through_what_is_allowed() {
        let policy = terminal(Action::Deny, &["git status", "ls"], &[], &[]);
        for command in [
            "ls",
            "ls -la /tmp",
            "git status",
            "git status -s; ls",
            "ls | ls && git status",
        ] {
            assert_eq!(of(&policy, command), Action::Allow, "{command}");
        }
        for command in [
            "lsblk",
            "./ls",
            "/tmp/ls",
            "git",
            "git push",
            "git -C /x status",
            "ls; rm x",
            "ls && rm x",
            "ls || rm x",
            "ls | sh",
            "ls & rm x",
            "ls\nrm x",
            "ls $(rm x)",
            "ls `rm x`",
            "ls \"$(rm x)\"",
            "ls > /etc/passwd",
            "ls < /etc/shadow",
            "ls 2>&1",
            "LD_PRELOAD=./x ls",
            "env ls",
            "\\\nls; rm x",
            "",
            "# ls",
            "if ls; then ls; fi",
            "(ls)",
            "{ ls; }",
            "ls() { rm x; }; ls",
            "alias ls=rm; ls x",
            "'ls -l'",
            "ls 'x",
        ] {
            assert_eq!(of(&policy, command), Action::Deny, "{command:?}");
        }
    }

    #[test]
    fn the_strictest_rule_that_fits_wins() {
        let policy = terminal(Action::Allow, &["git"], &["git push"], &["git push --force"]);
        for (command, action) in [
            ("git status", Action::Allow),
            ("git push origin", Action::Ask),
            ("git push --force", Action::Deny),
            ("make", Action::Allow),
            ("make; git push", Action::Ask),
            ("git push; git push --force", Action::Deny),
            // What cannot be told is asked about, where somebody wants anything looked at.
            ("make > log", Action::Ask),
            ("$X --force", Action::Ask),
        ] {
            assert_eq!(of(&policy, command), action, "{command}");
        }
        assert_eq!(
            of(&terminal(Action::Allow, &["git"], &[], &[]), "make > log"),
            Action::Allow
        );
        assert_eq!(
            of(&terminal(Action::Deny, &[], &["git push"], &[]), "make > log"),
            Action::Deny
        );
    }

    #[test]
    fn a_tool_without_rules_has_the_default_of_all() {
        let mut policy = Policy {
            default: Action::Ask,
            ..Policy::default()
        };
        policy.set_default("web_search", Action::Allow);
        let judge = |tool: &str| policy.judge(tool, &Subject::Nothing, &[]);
        assert_eq!(judge("web_search").action, Action::Allow);
        assert_eq!(judge("send_mail").rules, ["approval.default: ask"]);
        assert!(!policy.is_open() && Policy::default().is_open());
        assert_eq!(
            (policy.may_ask("send_mail"), policy.may_ask("web_search")),
            (true, false)
        );
    }

    #[test]
    fn every_file_of_a_call_is_judged() {
        let mut policy = Policy::default();
        let rules = ToolRules {
            default: Some(Action::Ask),
            allow: list(&["/work/**"]),
            deny: list(&["/work/.git/**"]),
            ask: Vec::new(),
        };
        policy.set("patch", &rules).unwrap();
        let roots: Vec<Names> = policy.roots("patch").into_iter().map(Names::plain).collect();
        for (files, action) in [
            (vec!["/work/a", "/work/b"], Action::Allow),
            (vec!["/work/a", "/b"], Action::Ask),
            (vec!["/work/a", "/b", "/work/.git/config"], Action::Deny),
            (vec![], Action::Ask),
        ] {
            let subject = Subject::Files(files.iter().map(Names::plain).collect());
            assert_eq!(policy.judge("patch", &subject, &roots).action, action, "{files:?}");
        }
        // What is not known is no reason to allow anything.
        let subject = Subject::Files(vec![Names::plain("/work/a")]);
        assert_eq!(policy.judge("patch", &subject, &[]).action, Action::Ask);
        assert_eq!(policy.judge("patch", &Subject::Nothing, &roots).action, Action::Ask);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        let mut policy = Policy::default();
        let allow = |text: &str| ToolRules {
            allow: list(&[text]),
            ..ToolRules::default()
        };
        for (tool, text, words) in [
            ("terminal", "ls | wc", "beginning of one command"),
            ("terminal", "", "beginning of one command"),
            ("write_file", "../x", "holds `..`"),
            ("web_search", "x", "as a whole"),
            ("send_mail", "x", "as a whole"),
        ] {
            let error = policy.set(tool, &allow(text)).unwrap_err().to_string();
            assert!(error.contains(words), "{tool} {text}: {error}");
        }
        assert!(policy.is_open());
    }
}
