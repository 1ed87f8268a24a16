//! The configuration as a whole: real files, all layers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::keys::{KEYS, variable};
use super::value::Value;
use super::*;
use crate::environment::Environment;
use crate::limits::Limits;
use crate::target::TargetSpec;

/// A home directory with a configuration file in it.
struct Home {
    directory: TempDir,
    file: &'static str,
}

const OURS: &str = ".config/talaria/config.yaml";
const HERMES: &str = ".hermes/config.yaml";

impl Home {
    fn with(file: &'static str, text: &str) -> Self {
        let home = Self {
            directory: tempfile::tempdir().unwrap(),
            file,
        };
        fs::create_dir_all(home.file().parent().unwrap()).unwrap();
        fs::write(home.file(), text).unwrap();
        home
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join(self.file)
    }

    fn load(&self, variables: &[(&str, &str)], flags: Flags) -> Result<Config, String> {
        let home = ("HOME", self.directory.path().to_str().unwrap());
        let environment = variables.iter().copied().chain([home]).collect();
        Config::load(&Sources {
            file: None,
            environment,
            flags,
        })
        .map_err(|error| error.to_string())
    }

    fn plain(&self) -> Result<Config, String> {
        self.load(&[], Flags::default())
    }
}

fn nothing() -> Config {
    Config::load(&Sources::default()).unwrap()
}

#[test]
fn nothing_configured_gives_the_defaults() {
    let config = nothing();
    assert_eq!(
        (config.target.as_str(), config.mode, config.rpc),
        ("local", Mode::Project, Rpc::Unix)
    );
    assert_eq!((config.limits.clone(), config.kernel), (Limits::default(), true));
    assert_eq!(config.terminal_timeout, Duration::from_secs(180));
    assert_eq!(config.reconnect_timeout, Duration::from_secs(60));
    assert_eq!(config.lease, Duration::from_secs(900));
    assert_eq!((&config.python, &config.cwd, &config.file), (&None, &None, &None));
    assert!(config.explain().iter().all(|line| line.origin == Origin::Default));
}

#[test]
fn the_template_spells_out_every_default() {
    let home = Home::with(OURS, template());
    assert_eq!(home.plain().unwrap().explain(), nothing().explain());

    let is_setting = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase());
    let uncommented: Vec<String> = template()
        .lines()
        .map(|line| match line.trim_start().strip_prefix('#') {
            Some(rest) if is_setting(rest) => line.replacen('#', "", 1),
            _ => line.to_owned(),
        })
        .collect();
    let home = Home::with(OURS, &uncommented.join("\n"));
    let config = home.plain().unwrap();
    assert_eq!(config.warnings, [""; 0]);
    for (line, default) in config.explain().iter().zip(nothing().explain()) {
        assert_eq!((&line.key, &line.value), (&default.key, &default.value));
        // A key with a default must stand there with it; one without has no value that could be told from its absence.
        assert_eq!(
            matches!(line.origin, Origin::File { .. }),
            default.value.is_some(),
            "{}",
            line.key
        );
    }
    for key in KEYS {
        let leaf = key.path.rsplit('.').next().unwrap();
        let stands = uncommented
            .iter()
            .any(|line| line.trim_start().starts_with(&format!("{leaf}:")));
        assert!(stands, "{} is missing in the template", key.path);
    }
}

#[test]
fn flags_beat_variables_beat_the_file() {
    let home = Home::with(
        OURS,
        "code_execution:\n  timeout: 10\n  max_tool_calls: 10\n  mode: strict\nterminal:\n  cwd: /f\n",
    );
    let variables = [
        ("TALARIA_CODE_EXECUTION_TIMEOUT", "20s"),
        ("TALARIA_CODE_EXECUTION_MAX_TOOL_CALLS", "20"),
    ];
    let flags = Flags {
        timeout: Some(Duration::from_secs(30)),
        ..Flags::default()
    };
    let config = home.load(&variables, flags).unwrap();
    assert_eq!(config.limits.timeout, Duration::from_secs(30));
    assert_eq!((config.limits.max_tool_calls, config.mode), (20, Mode::Strict));
    let origin = |key: &str| {
        config
            .explain()
            .into_iter()
            .find(|line| line.key == key)
            .unwrap()
            .origin
            .to_string()
    };
    assert_eq!(origin("code_execution.timeout"), "the flag --timeout");
    assert_eq!(
        origin("code_execution.max_tool_calls"),
        "the variable TALARIA_CODE_EXECUTION_MAX_TOOL_CALLS"
    );
    assert_eq!(origin("terminal.cwd"), format!("{}:6", home.file().display()));
    assert_eq!(origin("code_execution.rpc"), "default");
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for key in KEYS.iter().filter(|key| key.path != "terminal.backend") {
        let name = variable(key.path);
        let text = (key.default)()
            .map(|value| value.shown())
            .filter(|text| !text.starts_with(['[', '{']));
        let text = text.unwrap_or_else(|| "7=7".to_owned());
        let text = match key.path {
            "terminal.ssh_port" => "7",
            "web.search.provider" => "exa",
            "tools.disabled" => "patch,terminal",
            "approval.tools" => "patch=ask",
            "web.extract.allow_private" => "wiki.corp,10.0.0.0/8",
            path if path.ends_with(".url") => "http://localhost:8080",
            path if path.ends_with(".api_key_env") => "MY_KEY",
            _ => text.as_str(),
        };
        let environment = [(name.as_str(), text)].into_iter().collect();
        let config = Config::load(&Sources {
            environment,
            ..Sources::default()
        })
        .unwrap();
        let line = config.explain().into_iter().find(|line| line.key == key.path).unwrap();
        assert_eq!(line.origin, Origin::Variable(name), "{}", key.path);
    }
}

#[test]
fn durations_and_switches_are_read_in_both_spellings() {
    for (text, timeout, kernel) in [
        ("timeout: 300\n  kernel: off", 300, false),
        ("timeout: \"5m\"\n  kernel: true", 300, true),
    ] {
        let config = Home::with(OURS, &format!("code_execution:\n  {text}\n"))
            .plain()
            .unwrap();
        assert_eq!(
            (config.limits.timeout.as_secs(), config.kernel),
            (timeout, kernel),
            "{text}"
        );
    }
}

#[test]
fn mistakes_name_the_file_and_the_line() {
    for (text, line, word) in [
        ("code_execution:\n  timeout: 0\n", 2, "zero"),
        (
            "code_execution:\n  tiemout: 5\n",
            2,
            "did you mean `code_execution.timeout`?",
        ),
        ("terminal:\n  cwd: [a\n", 2, "YAML"),
        ("target: local\ntarget: local\n", 2, "duplicate"),
        ("target: lcoal:x\n", 1, "did you mean `local`?"),
        ("targets: {}\ntarget: lcoal\n", 2, "did you mean `local`?"),
        ("code_execution:\n  lease: 30s\n", 2, "longer than reconnect_timeout"),
    ] {
        let home = Home::with(OURS, text);
        let message = home.plain().unwrap_err();
        let place = format!("{}:{line}: ", home.file().display());
        assert!(message.starts_with(&place) && message.contains(word), "{message}");
    }
}

#[test]
fn an_empty_file_is_fine_and_is_named() {
    let home = Home::with(OURS, "");
    let config = home.plain().unwrap();
    assert_eq!(
        (config.explain(), config.file),
        (nothing().explain(), Some(home.file()))
    );
}

#[test]
fn the_agents_file_gives_the_target_and_its_limits() {
    let text = "model: gpt\ncode_execution:\n  mode: strict\n  timeout: 120\nterminal:\n  backend: docker\n  \
                docker_image: python:3.12\n  container_memory: 2048\n  docker_env: {A_KEY: s, V: 1.10}\n  persistent_shell: true\n";
    let home = Home::with(HERMES, text);
    let config = home.plain().unwrap();
    assert_eq!((config.mode, config.limits.timeout.as_secs()), (Mode::Strict, 120));
    assert_eq!(config.target.as_str(), "docker:python:3.12");
    assert_eq!(
        config.setting("terminal.container_memory"),
        Some(Value::Text("2048".into()))
    );
    let env = config.setting("terminal.docker_env");
    assert_eq!(
        env,
        Some(Value::Map(vec![
            ("A_KEY".into(), "s".into()),
            ("V".into(), "1.10".into())
        ]))
    );
    assert!(
        config.warnings.len() == 1 && config.warnings[0].contains("`terminal.persistent_shell`"),
        "{:?}",
        config.warnings
    );

    let docker = config.resolve(&config.target).unwrap();
    assert_eq!(
        (docker.name.as_str(), docker.spec.as_str()),
        ("docker:python:3.12", "docker:python:3.12")
    );
    assert!(docker.options.contains_key("docker_volumes"));
    let config = home.load(&[("TALARIA_TARGET", "local")], Flags::default()).unwrap();
    assert!(config.resolve(&config.target).is_ok());
}

#[test]
fn the_agents_own_choice_of_a_web_backend_makes_a_warning() {
    let text = "web:\n  backend: ''\n  search_backend: tavily\n  extract_backend: exa\n  other: 1\n  search: brave\n";
    let config = Home::with(HERMES, text).plain().unwrap();
    assert_eq!(config.web.search.provider, Some(SearchProvider::Brave));
    for (warning, words) in config.warnings.iter().zip([
        ["`web.search_backend`", "web.search.provider"],
        ["`web.extract_backend`", "web.extract.provider"],
    ]) {
        assert!(words.iter().all(|word| warning.contains(word)), "{warning}");
    }
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}

#[test]
fn a_named_target_has_settings_of_its_own() {
    let text = "terminal:\n  cwd: /general\n  env_passthrough: [A]\ntargets:\n  shop:\n    target: local\n    cwd: /shop\n    \
                mode: strict\n    env_passthrough: [B]\n  rig:\n    target: modal:x\n  box:\n    target: docker:x\n    container_cpu: 2\n    transport: polled\n";
    let home = Home::with(OURS, text);
    let resolve = |config: &Config, text: &str| config.resolve(&TargetSpec::parse(text).unwrap());

    let config = home.plain().unwrap();
    let shop = resolve(&config, "shop").unwrap();
    assert_eq!(
        (shop.name.as_str(), shop.cwd, shop.mode),
        ("shop", Some("/shop".into()), Mode::Strict)
    );
    assert_eq!(shop.env_passthrough, ["B"]);
    let local = resolve(&config, "local").unwrap();
    assert_eq!(
        (local.cwd, local.mode, local.env_passthrough),
        (Some("/general".into()), Mode::Project, vec!["A".to_owned()])
    );

    let config = home
        .load(
            &[],
            Flags {
                cwd: Some("/flag".into()),
                ..Flags::default()
            },
        )
        .unwrap();
    assert_eq!(resolve(&config, "shop").unwrap().cwd, Some("/flag".into()));

    assert_eq!(resolve(&config, "rig").unwrap().spec.as_str(), "modal:x");
    let boxed = resolve(&config, "box").unwrap();
    assert_eq!((boxed.spec.as_str(), boxed.transport), ("docker:x", Transport::Polled));
    assert_eq!(boxed.options["container_cpu"], Value::Text("2".into()));
    let error = resolve(&config, "shpo").unwrap_err().to_string();
    assert!(error.contains("did you mean `shop`?"), "{error}");
}

#[test]
fn a_missing_file_that_was_named_is_an_error() {
    let sources = Sources {
        file: Some("/nonexistent/c.yaml".into()),
        ..Sources::default()
    };
    assert!(matches!(Config::load(&sources), Err(ConfigError::Missing { .. })));
}

#[test]
fn misspelt_variables_make_a_warning() {
    let environment: Environment = [("TALARIA_TERMINAL_CDW", "/x")].into_iter().collect();
    let config = Config::load(&Sources {
        environment,
        ..Sources::default()
    })
    .unwrap();
    assert_eq!(
        config.warnings,
        ["the variable TALARIA_TERMINAL_CDW sets nothing; did you mean TALARIA_TERMINAL_CWD?"]
    );
}

#[test]
fn approvals_are_laid_over_each_other_tool_by_tool() {
    use crate::approval::{Action, Subject};
    let home = Home::with(
        OURS,
        "approval:\n  default: deny\n  timeout: 9\n  tools:\n    read_file: allow\n    patch: ask\n    terminal:\n      \
         default: ask\n      allow: [git status]\n",
    );
    let variables = [("TALARIA_APPROVAL_TOOLS", "read_file=deny, web_search=allow")];
    let flags = Flags {
        ask: vec!["write_file".into()],
        ..Flags::default()
    };
    let config = home.load(&variables, flags).unwrap();
    let of = |tool: &str, command: &str| {
        let subject = Subject::Command(command.to_owned());
        config.approval.judge(tool, &subject, &[]).action
    };
    for (tool, action) in [
        ("read_file", Action::Deny),
        ("patch", Action::Ask),
        ("web_search", Action::Allow),
        ("write_file", Action::Ask),
        ("web_extract", Action::Deny),
    ] {
        assert_eq!(of(tool, ""), action, "{tool}");
    }
    assert_eq!(
        (of("terminal", "git status"), of("terminal", "git push")),
        (Action::Allow, Action::Ask)
    );
    assert_eq!(config.approval.timeout, Duration::from_secs(9));
    let lines = config.explain();
    let shown = |key: &str| {
        let line = lines.iter().find(|line| line.key == key).unwrap();
        format!("{} ({})", line.value.clone().unwrap(), line.origin)
    };
    assert_eq!(
        shown("approval.tools"),
        "{patch: ask, terminal: ask, read_file: deny, web_search: allow, write_file: ask} (the flag --ask)"
    );
    assert_eq!(
        shown("approval.tools.terminal.allow"),
        format!("[git status] ({}:9)", home.file().display())
    );
    for (text, words) in [
        ("read_file", "write_file=ask"),
        ("raed_file=ask", "did you mean `read_file`?"),
        ("read_file=ak", "did you mean `ask`?"),
    ] {
        let error = home.load(&[("TALARIA_APPROVAL_TOOLS", text)], Flags::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
