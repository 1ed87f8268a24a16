//! From a file's tree to settings: which key is known, which is a slip, which is another program's.

use std::collections::BTreeMap;
use std::path::Path;

use super::approval::{Rules, TOOL_ACTIONS};
use super::choice::SearchProvider;
use super::error::{ConfigError, Origin};
use super::file::{Content, Entry, Node};
use super::keys::{HERMES_SECTIONS, Key, advice, find, is_section};
use super::layers::Layers;
use super::locate::Owner;
use super::targets::{TargetOptions, read_target};
use super::value::{BadValue, Kind, Value};
use crate::approval::Action;

/// What a file came to.
#[derive(Debug, Default)]
pub(super) struct FromFile {
    pub(super) values: Layers,
    pub(super) targets: BTreeMap<String, TargetOptions>,
    /// What `approval` says of arguments.
    pub(super) rules: Rules,
    /// Sentences about what was passed over.
    pub(super) warnings: Vec<String>,
}

/// A walk through one file.
pub(super) struct Reader<'a> {
    path: &'a Path,
    owner: Owner,
    result: FromFile,
}

/// Takes the settings out of a file's tree.
///
/// # Errors
/// In our own file, a key that does not exist. In either, a value of the wrong type under a key that does.
pub(super) fn settings(root: &Node, path: &Path, owner: Owner) -> Result<FromFile, ConfigError> {
    let mut reader = Reader {
        path,
        owner,
        result: FromFile::default(),
    };
    for entry in reader.entries(root, "the file")? {
        reader.top(entry)?;
    }
    Ok(reader.result)
}

impl Reader<'_> {
    /// The place of a line, to begin a message.
    pub(super) fn origin(&self, line: u64) -> Origin {
        Origin::File {
            path: self.path.to_owned(),
            line,
        }
    }

    fn is_ours(&self) -> bool {
        self.owner == Owner::Talaria
    }

    /// The entries of a mapping; none where there is nothing (a section whose keys are all commented out).
    pub(super) fn entries<'n>(&self, node: &'n Node, key: &str) -> Result<&'n [Entry], ConfigError> {
        match &node.content {
            Content::Null => Ok(&[]),
            Content::Map(entries) => Ok(entries),
            other => Err(ConfigError::Value {
                origin: self.origin(node.line),
                key: key.to_owned(),
                problem: format!("is {}, but must be a mapping of keys to values", other.describe()),
            }),
        }
    }

    /// The value under a key that is known.
    pub(super) fn value(&self, key: &str, kind: Kind, node: &Node) -> Result<Option<Value>, ConfigError> {
        kind.read_node(node)
            .map_err(|BadValue { problem, line }| ConfigError::Value {
                origin: self.origin(line),
                key: key.to_owned(),
                problem,
            })
    }

    /// An unknown key: an error in our file, a warning in the agent's.
    pub(super) fn unknown(&mut self, line: u64, key: String, advice: String) -> Result<(), ConfigError> {
        let origin = self.origin(line);
        if self.is_ours() {
            return Err(ConfigError::UnknownKey { origin, key, advice });
        }
        self.warn(format!(
            "{origin}: `{key}` is not supported by talaria and has no effect"
        ));
        Ok(())
    }

    /// Keeps a sentence for the user about what has no effect.
    pub(super) fn warn(&mut self, sentence: String) {
        self.result.warnings.push(sentence);
    }

    /// Keeps a value that was read.
    pub(super) fn keep(&mut self, key: &'static Key, value: Value, origin: Origin) {
        self.result.values.set(key.path, value, origin);
    }

    /// Keeps the rules of a tool.
    pub(super) fn keep_rules(&mut self, tool: &str, lists: BTreeMap<Action, (Vec<String>, Origin)>) {
        self.result.rules.insert(tool, lists);
    }

    fn top(&mut self, entry: &Entry) -> Result<(), ConfigError> {
        let name = entry.key.as_str();
        match name {
            "targets" => return self.targets(&entry.value),
            _ if HERMES_SECTIONS.contains(&name) => {}
            // The agent has a section `web` of its own, which need not be a mapping.
            "web" if !self.is_ours() && !matches!(entry.value.content, Content::Map(_)) => {
                if let Content::Text(word) = &entry.value.content {
                    let origin = self.origin(entry.value.line);
                    self.warn(format!(
                        "{origin}: `web: {word}` has no effect here; `web: {{search: …}}` chooses who searches, one of {}",
                        SearchProvider::WORDS.join(", ")
                    ));
                }
                return Ok(());
            }
            // A rule that is passed over would let pass what it was to stop.
            "web" | "approval" => {}
            _ if !self.is_ours() => return Ok(()),
            _ => {}
        }
        if is_section(name) {
            for leaf in self.entries(&entry.value, name)? {
                self.leaf(name, leaf)?;
            }
            return Ok(());
        }
        self.set(name, entry)
    }

    fn leaf(&mut self, section: &str, entry: &Entry) -> Result<(), ConfigError> {
        let path = format!("{section}.{}", entry.key);
        if path == TOOL_ACTIONS {
            return self.tool_rules(entry);
        }
        if section == "approval" && find(&path).is_none() {
            return Err(ConfigError::UnknownKey {
                origin: self.origin(entry.line),
                advice: advice(&path),
                key: path,
            });
        }
        if is_section(&path) {
            return self.part(&path, entry);
        }
        let is_foreign = !self.is_ours() && !HERMES_SECTIONS.contains(&section) && find(&path).is_none();
        if is_foreign {
            self.warn_of_foreign_backend(&path, entry);
            return Ok(());
        }
        self.set(&path, entry)
    }

    /// Says of the settings by which the agent chooses who searches and reads that they choose nobody here.
    fn warn_of_foreign_backend(&mut self, path: &str, entry: &Entry) {
        let ours = match path {
            "web.backend" => "web.search.provider and web.extract.provider choose",
            "web.search_backend" => "web.search.provider chooses",
            "web.extract_backend" => "web.extract.provider chooses",
            _ => return,
        };
        if matches!(&entry.value.content, Content::Text(word) if !word.is_empty()) {
            let origin = self.origin(entry.value.line);
            self.warn(format!(
                "{origin}: `{path}` is not supported by talaria and has no effect; {ours} here"
            ));
        }
    }

    /// A section within a section. Where it is a word alone (`search: brave`), that is its provider; in the agent's file
    /// a word that is none of ours means something of the agent's.
    fn part(&mut self, path: &str, entry: &Entry) -> Result<(), ConfigError> {
        if matches!(entry.value.content, Content::Text(_)) {
            return match self.set(&format!("{path}.provider"), entry) {
                Err(ConfigError::Value { origin, problem, .. }) if !self.is_ours() => {
                    let problem = problem.strip_prefix("has a wrong value: ").unwrap_or(&problem);
                    self.warn(format!("{origin}: `{path}` has no effect here: {problem}"));
                    Ok(())
                }
                set => set,
            };
        }
        if !self.is_ours() && !matches!(entry.value.content, Content::Map(_)) {
            return Ok(());
        }
        for leaf in self.entries(&entry.value, path)? {
            self.leaf(path, leaf)?;
        }
        Ok(())
    }

    fn set(&mut self, path: &str, entry: &Entry) -> Result<(), ConfigError> {
        let Some(key) = find(path) else {
            return self.unknown(entry.line, path.to_owned(), advice(path));
        };
        if let Some(value) = self.value(path, key.kind, &entry.value)? {
            let origin = self.origin(entry.line);
            self.keep(key, value, origin);
        }
        Ok(())
    }

    fn targets(&mut self, node: &Node) -> Result<(), ConfigError> {
        for entry in self.entries(node, "targets")? {
            let target = read_target(self, entry)?;
            self.result.targets.insert(entry.key.clone(), target);
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::super::file::parse;
    use super::*;

    fn read(yaml: &str, owner: Owner) -> Result<FromFile, String> {
        let path = Path::new("c.yaml");
        let tree = parse(yaml, path, owner == Owner::Talaria).unwrap();
        settings(&tree, path, owner).map_err(|error| error.to_string())
    }

    #[test]
    fn our_own_file_must_be_right() {
        for (yaml, expected) in [
            (
                "target: local\ncode_execution:\n  timout: 3\n",
                "c.yaml:3: there is no key `code_execution.timout`; did you mean `code_execution.timeout`?",
            ),
            (
                "terminl: {}\n",
                "c.yaml:1: there is no key `terminl`; did you mean `terminal`?",
            ),
            (
                "\ntools:\n  disable: [a]\n",
                "c.yaml:3: there is no key `tools.disable`; did you mean `tools.disabled`?",
            ),
            (
                "web:\n  serach: x\n",
                "c.yaml:2: there is no key `web.serach`; did you mean `web.search`?",
            ),
            (
                "web:\n  search:\n    provider: brav\n",
                "c.yaml:3: `web.search.provider` has a wrong value: `brav` is not one of searxng, brave, tavily, exa, firecrawl; \
                 did you mean `brave`?",
            ),
            (
                "web:\n  search:\n    api_key: s3cret\n",
                "c.yaml:3: there is no key `web.search.api_key`; the keys here are provider, url, api_key_env, timeout",
            ),
            (
                "web:\n  search:\n    api_key_env: tvly-s3cret\n",
                "c.yaml:3: `web.search.api_key_env` must be the name of a variable, such as BRAVE_API_KEY, and not the key itself",
            ),
            (
                "tools:\n  disabled:\n    - read_file\n    - termnal\n",
                "c.yaml:4: `tools.disabled` holds a wrong value: `termnal` is not one of read_file, write_file, search_files, \
                 patch, terminal, web_search, web_extract; did you mean `terminal`?",
            ),
            (
                "web:\n  search: [brave]\n",
                "c.yaml:2: `web.search` is a list, but must be a mapping of keys to values",
            ),
            (
                "code_execution: 5\n",
                "c.yaml:1: `code_execution` is the number `5`, but must be a mapping of keys to values",
            ),
            (
                "- a\n",
                "c.yaml:1: `the file` is a list, but must be a mapping of keys to values",
            ),
            (
                "code_execution:\n  max_tool_calls: many\n",
                "c.yaml:2: `code_execution.max_tool_calls` is `many`, but must be a whole number from 0",
            ),
            (
                "terminal:\n  env_passthrough:\n    - A\n    - 5\n",
                "c.yaml:4: `terminal.env_passthrough` holds the number `5`, but every item must be a text",
            ),
            (
                "approval:\n  tools:\n    write_file: ask\n    termnal: deny\n",
                "c.yaml:4: `approval.tools` holds a wrong name: `termnal` is no tool; did you mean `terminal`?",
            ),
            (
                "approval:\n  tools:\n    terminal: dney\n",
                "c.yaml:3: `approval.tools.terminal` has a wrong value: `dney` is not one of allow, ask, deny; did you mean `deny`?",
            ),
            (
                "approval:\n  tools:\n    terminal:\n      default: ask\n      denny: [rm]\n",
                "c.yaml:5: there is no key `approval.tools.terminal.denny`; did you mean `deny`?",
            ),
            (
                "approval:\n  tools:\n    terminal:\n      default: ask\n      allow:\n      - git log | head\n",
                "c.yaml:5: `approval.tools.terminal.allow` holds a wrong rule: `git log | head` is not the beginning of one \
                 command, such as `git status`; signs of the shell, variables and patterns have no place in a rule",
            ),
            (
                "approval:\n  tools:\n    web_search: {deny: [x]}\n",
                "c.yaml:3: `approval.tools.web_search.deny` holds a wrong rule: web_search takes allow, ask or deny as a \
                 whole; rules on arguments are for read_file, write_file, search_files, patch and terminal",
            ),
            (
                "approval:\n  defualt: ask\n",
                "c.yaml:2: there is no key `approval.defualt`; did you mean `approval.default`?",
            ),
            (
                "targets:\n  rig:\n    target: local\n    pyton: x\n",
                "c.yaml:4: there is no key `targets.rig.pyton`; did you mean `python`?",
            ),
        ] {
            assert_eq!(read(yaml, Owner::Talaria).unwrap_err(), expected, "{yaml}");
        }
    }

    /// A rule that has no effect would let pass what it was to stop.
    #[test]
    fn approval_must_be_right_in_any_file() {
        for yaml in [
            "approval: {tool: {terminal: deny}}\n",
            "approval: {tools: {termnal: deny}}\n",
            "approval: {tools: {terminal: {denied: [rm]}}}\n",
            "approval: deny\n",
        ] {
            assert!(read(yaml, Owner::Hermes).is_err(), "{yaml}");
        }
        let yaml = "approval: {default: ask, tools: {terminal: deny, send_mail: ask}}\n";
        let read = read(yaml, Owner::Hermes).unwrap();
        assert_eq!(
            read.values.keys().collect::<Vec<_>>(),
            ["approval.default", "approval.tools"]
        );
    }

    #[test]
    fn empty_sections_are_fine() {
        let read = read(
            "code_execution:\nterminal: {}\ntargets:\nweb:\ntarget:\n",
            Owner::Talaria,
        )
        .unwrap();
        assert!(read.values.is_empty() && read.targets.is_empty());
    }

    #[test]
    fn the_agents_file_is_read_past_what_is_not_ours() {
        let yaml = "model: {name: x}\ntarget: docker:x\ntools: [a]\nweb: {backend: y, search: z}\n\
                    code_execution:\n  mode: strict\n  sandboxed: true\nterminal:\n  lifetime_seconds: 3\n  docker_image: ''\n";
        let read = read(yaml, Owner::Hermes).unwrap();
        assert_eq!(
            read.warnings,
            [
                "c.yaml:4: `web.backend` is not supported by talaria and has no effect; web.search.provider and \
                 web.extract.provider choose here",
                "c.yaml:4: `web.search` has no effect here: `z` is not one of searxng, brave, tavily, exa, firecrawl",
                "c.yaml:7: `code_execution.sandboxed` is not supported by talaria and has no effect",
                "c.yaml:9: `terminal.lifetime_seconds` is not supported by talaria and has no effect",
            ]
        );
        assert_eq!(read.values.keys().collect::<Vec<_>>(), ["code_execution.mode"]);
    }

    #[test]
    fn a_word_alone_names_the_provider() {
        for (yaml, expected) in [
            ("web:\n  search: brave\n", "web.search.provider"),
            ("web: {extract: tavily}\n", "web.extract.provider"),
            ("web:\n  search:\n    provider: brave\n", "web.search.provider"),
        ] {
            for owner in [Owner::Talaria, Owner::Hermes] {
                let read = read(yaml, owner).unwrap();
                assert_eq!(read.values.keys().collect::<Vec<_>>(), [expected], "{yaml}");
                assert_eq!(read.warnings, [""; 0], "{yaml}");
            }
        }
    }

    #[test]
    fn the_agents_values_are_never_silently_replaced() {
        let error = read("code_execution:\n  mode: stirct\n", Owner::Hermes).unwrap_err();
        assert!(error.starts_with("c.yaml:2: `code_execution.mode`"), "{error}");
        assert!(read("web: 3\n", Owner::Hermes).unwrap().values.is_empty());
        let word = read("web: brave\n", Owner::Hermes).unwrap();
        assert!(
            word.values.is_empty() && word.warnings[0].contains("`web: {search: …}`"),
            "{word:?}"
        );
    }
}
