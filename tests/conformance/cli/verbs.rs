//! The other verbs: doctor, schema, config, completions.

use serde_json::Value;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    doctor_says_what_works,
    doctor_says_what_does_not,
    the_schema_lists_what_is_enabled,
    what_is_switched_off_is_no_fault,
    misspelt_tools_are_refused_with_the_nearest,
    a_credential_that_a_configuration_passes_is_a_warning,
    config_says_what_is_in_force_and_why,
    the_template_is_a_configuration,
    mistakes_in_a_configuration_are_named,
    completions_are_made_for_each_shell,
    help_and_version_go_to_stdout,
];

fn doctor_says_what_works(rig: &Rig) {
    // Without a name it is the target that `run` would take.
    let output = rig.cli(["doctor"]).env("TALARIA_TARGET", "exec:env").run();
    assert!(
        output.code() == 0 && output.stdout.contains("target: exec:env"),
        "{output:?}"
    );
    let output = rig
        .cli(["doctor", "local"])
        .env("SHOP_API_KEY", "value-of-the-key-1")
        .run();
    assert_eq!(output.code(), 0, "{output:?}");
    for said in [
        "target: local",
        &rig.python().display().to_string(),
        "unix-socket",
        "SHOP_API_KEY",
        "first cell",
        "cell round trip",
        "tool call round trip",
        "terminal: works",
    ] {
        assert!(output.stdout.contains(said), "{said}: {}", output.stdout);
    }
    let searches = output.stdout.lines().find(|line| line.contains("web_search:"));
    assert!(
        searches.is_some_and(|line| line.starts_with("off ") && line.contains("set the variable BRAVE_API_KEY")),
        "{}",
        output.stdout
    );
    assert!(
        !output.stdout.contains("value-of-the-key-1") && !output.stdout.contains("FAIL"),
        "{}",
        output.stdout
    );
}

fn doctor_says_what_does_not(rig: &Rig) {
    let output = rig.cli(["doctor", "nowhere"]).run();
    assert_eq!(output.code(), 125, "{output:?}");
    assert!(
        output.stdout.contains("FAIL") && output.stdout.contains("nowhere"),
        "{}",
        output.stdout
    );
    let output = rig
        .cli(["doctor"])
        .env("TALARIA_CODE_EXECUTION_PYTHON", "/bin/false")
        .run();
    assert_eq!(output.code(), 125, "{output:?}");
    assert!(
        output.stdout.contains("FAIL") && output.stdout.contains("/bin/false"),
        "{}",
        output.stdout
    );
}

fn what_is_switched_off_is_no_fault(rig: &Rig) {
    let doctor = rig
        .cli(["doctor"])
        .env("TALARIA_TOOLS_DISABLED", "terminal,web_search,web_extract")
        .run();
    assert_eq!(doctor.code(), 0, "{doctor:?}");
    for tool in ["terminal", "web_search", "web_extract"] {
        let line = format!("off   {tool}: disabled (tools.disabled)");
        assert!(doctor.stdout.contains(&line), "{}", doctor.stdout);
    }
}

fn misspelt_tools_are_refused_with_the_nearest(rig: &Rig) {
    let file = rig.file("talaria.yaml", "tools:\n  disabled:\n  - patch\n  - raed_file\n");
    let file = file.to_str().unwrap();
    let run = ["run", "-c", "print(1)"];
    for verb in [&["config"][..], &["schema"], &["doctor"], &run] {
        let output = rig.cli([verb, &["--config", file]].concat()).run();
        assert_eq!((output.code(), output.stdout.as_str()), (2, ""), "{output:?}");
        for said in ["talaria.yaml:4: ", "`raed_file`", "did you mean `read_file`?"] {
            assert!(output.stderr.contains(said), "{said}: {output:?}");
        }
    }
    let output = rig.cli(run).env("TALARIA_TOOLS_DISABLED", "termnal").run();
    assert!(
        output.code() == 2
            && output.stderr.contains("the variable TALARIA_TOOLS_DISABLED")
            && output.stderr.contains("did you mean `terminal`?"),
        "{output:?}"
    );
    for (allow, said) in [
        ("read_file,termnal", "did you mean `terminal`?"),
        ("patch", "it is disabled (tools.disabled)"),
    ] {
        let output = rig
            .cli(["run", "--allow", allow, "-c", "print(1)"])
            .env("TALARIA_TOOLS_DISABLED", "patch")
            .run();
        assert!(
            output.code() == 2 && output.stderr.contains("the flag --allow: ") && output.stderr.contains(said),
            "{output:?}"
        );
    }
}

/// The configuration may be another program's.
fn a_credential_that_a_configuration_passes_is_a_warning(rig: &Rig) {
    let run = rig
        .cli(["run", "-c", "import os; print(os.environ.get('TAVILY_API_KEY'))"])
        .env("TAVILY_API_KEY", "tvly-1234567890")
        .env("TALARIA_TERMINAL_ENV_PASSTHROUGH", "TAVILY_API_KEY")
        .run();
    assert_eq!((run.code(), run.stdout.as_str()), (0, "None\n"), "{run:?}");
    assert!(
        run.stderr.contains("warning: env_passthrough: `TAVILY_API_KEY`"),
        "{}",
        run.stderr
    );
}

fn the_schema_lists_what_is_enabled(rig: &Rig) {
    for (format, parameters) in [
        ("mcp", "/inputSchema"),
        ("openai", "/function/parameters"),
        ("anthropic", "/input_schema"),
    ] {
        let output = rig
            .cli(["schema", "--format", format])
            .env("TALARIA_TOOLS_DISABLED", "write_file")
            .env("TALARIA_CODE_EXECUTION_TIMEOUT", "77")
            .env("TALARIA_CODE_EXECUTION_MAX_TOOL_CALLS", "13")
            .run();
        assert_eq!(output.code(), 0, "{output:?}");
        let schema: Value = serde_json::from_str(&output.stdout).unwrap();
        let parameters = schema
            .pointer(parameters)
            .unwrap_or_else(|| panic!("{format}: {schema:#}"));
        assert_eq!(parameters["type"], "object", "{schema:#}");
        assert_eq!(parameters["properties"]["code"]["type"], "string", "{schema:#}");
        let text = schema.to_string();
        assert!(text.contains("read_file(") && !text.contains("write_file("), "{text}");
        assert!(text.contains("77") && text.contains("13"), "{text}");
        // The form of a patch is in its lines.
        assert!(text.contains(r" *** Begin Patch\n"), "{text}");
    }
    // Of another target, and of fewer tools.
    let output = rig
        .cli(["schema", "--on", "ssh:buildhost", "--allow", "read_file"])
        .run();
    assert!(
        output.code() == 0 && output.stdout.contains("ssh:buildhost") && !output.stdout.contains("terminal("),
        "{output:?}"
    );
    let output = rig.cli(["schema", "--allow", "read_fil"]).run();
    assert!(
        output.code() == 2 && output.stderr.contains("did you mean `read_file`"),
        "{output:?}"
    );
}

fn config_says_what_is_in_force_and_why(rig: &Rig) {
    let file = rig.file("talaria.yaml", "code_execution:\n  max_tool_calls: 7\n  timeout: 90s\n");
    let output = rig
        .cli(["config", "--config", file.to_str().unwrap()])
        .env("TALARIA_CODE_EXECUTION_TIMEOUT", "5m")
        .run();
    assert_eq!(output.code(), 0, "{output:?}");
    let row = |key: &str| {
        output
            .stdout
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_default()
            .to_owned()
    };
    let calls = row("code_execution.max_tool_calls");
    assert!(calls.contains('7') && calls.contains("talaria.yaml"), "{calls}");
    let timeout = row("code_execution.timeout");
    assert!(
        timeout.contains("5m") && timeout.contains("TALARIA_CODE_EXECUTION_TIMEOUT"),
        "{timeout}"
    );
    assert!(
        row("code_execution.max_session_kernels").contains("default"),
        "{}",
        output.stdout
    );
    let web = rig
        .cli(["config"])
        .env("BRAVE_API_KEY", "s3cret-42")
        .env("TALARIA_WEB_EXTRACT", "exa")
        .run();
    let told = web.stdout.lines().find(|line| line.starts_with("web.search.provider"));
    let told = told.unwrap_or_default();
    assert!(
        told.contains("brave") && told.ends_with("the variable BRAVE_API_KEY"),
        "{web:?}"
    );
    assert!(!format!("{web:?}").contains("s3cret-42"), "{web:?}");
    assert!(
        web.stderr.contains("did you mean TALARIA_WEB_EXTRACT_PROVIDER=exa?"),
        "{web:?}"
    );
    let unusable = rig.cli(["config"]).env("SEARXNG_URL", "http://bob:s3cret-42@s/").run();
    assert!(
        unusable
            .stderr
            .contains("warning: web_search: the variable SEARXNG_URL")
            && !format!("{unusable:?}").contains("s3cret-42"),
        "{unusable:?}"
    );
    // What is said holds.
    let code = "import time; time.sleep(30)";
    let output = rig
        .cli(["run", "--config", file.to_str().unwrap(), "--json", "-c", code])
        .env("TALARIA_CODE_EXECUTION_TIMEOUT", "1")
        .run();
    assert_eq!(
        output.outcomes()[0]["error"],
        "Script timed out after 1s and was killed."
    );
}

fn the_template_is_a_configuration(rig: &Rig) {
    let output = rig.cli(["config", "--template"]).run();
    assert_eq!((output.code(), output.stderr.as_str()), (0, ""), "{output:?}");
    let file = rig.file("template.yaml", &output.stdout);
    let output = rig
        .cli(["run", "--config", file.to_str().unwrap(), "-c", "print(1)"])
        .run();
    assert_eq!((output.code(), output.stdout.as_str()), (0, "1\n"), "{output:?}");
}

fn mistakes_in_a_configuration_are_named(rig: &Rig) {
    let file = rig.file("talaria.yaml", "code_execution:\n  timout: 90s\n");
    let output = rig
        .cli(["run", "--config", file.to_str().unwrap(), "-c", "print(1)"])
        .run();
    assert_eq!((output.code(), output.stdout.as_str()), (2, ""), "{output:?}");
    for said in ["talaria.yaml", "2", "timout", "timeout"] {
        assert!(output.stderr.contains(said), "{said}: {output:?}");
    }
    // A Hermes file has sections that are none of our business.
    let home = rig.home();
    std::fs::create_dir(home.join(".hermes")).unwrap();
    let text = "model: x\ncode_execution:\n  timeout: 44\n  colour: red\n";
    std::fs::write(home.join(".hermes/config.yaml"), text).unwrap();
    let output = rig.cli(["config"]).run();
    let row = output
        .stdout
        .lines()
        .find(|line| line.starts_with("code_execution.timeout"))
        .unwrap();
    assert!(row.contains("44"), "{output:?}");
    assert!(
        output.stderr.contains("colour") && !output.stderr.contains("model"),
        "{output:?}"
    );
}

fn completions_are_made_for_each_shell(rig: &Rig) {
    let help = rig.cli(["--help"]).run().stdout;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = rig.cli(["completions", shell]).run();
        assert_eq!(output.code(), 0, "{output:?}");
        // What help does not show is not offered either.
        for (verb, is_shown) in [("doctor", true), ("read-pdf", false)] {
            assert_eq!(
                (help.contains(verb), output.stdout.contains(verb)),
                (is_shown, is_shown),
                "{shell}: {verb}"
            );
        }
        assert!(
            output.stdout.contains("talaria") && output.stdout.contains("keep-going"),
            "{shell}"
        );
    }
    let output = rig
        .shell("eval \"$(\"$TALARIA\" completions bash)\" && complete -p talaria")
        .run();
    assert!(output.stdout.contains("talaria"), "{output:?}");
}

fn help_and_version_go_to_stdout(rig: &Rig) {
    for arguments in [
        ["--help"].as_slice(),
        &["--version"],
        &["run", "--help"],
        &["help", "run"],
    ] {
        let output = rig.cli(arguments.iter().copied()).run();
        assert_eq!((output.code(), output.stderr.as_str()), (0, ""), "{output:?}");
        assert!(output.stdout.contains("talaria"), "{output:?}");
    }
}
