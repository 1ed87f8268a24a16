//! `talaria run`: scripts, exit codes, and what goes to which stream.

use crate::rig::{Kind, Rig};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    exit_codes,
    usage_errors_exit_with_2_before_anything_runs,
    a_command_that_is_missing_is_said,
    a_target_that_cannot_be_opened_is_never_replaced,
    json_is_one_line_a_cell,
    json_holds_nothing_but_outcomes,
    scripts_run_in_order_until_one_fails,
    keep_going_runs_them_all,
    a_script_from_stdin,
    arguments_come_after_two_dashes,
    output_streams_before_the_end,
    streams_go_where_they_belong,
    flags_say_how_a_session_is_made,
    the_shown_output_is_masked_and_whole,
    logs_go_where_they_are_asked,
    output_that_cannot_be_written_is_a_failure,
    names_of_allowed_tools_may_have_blanks_around_them,
];

fn exit_codes(rig: &Rig) {
    for (code, exit_code) in [
        ("print(1)", 0),
        ("1/0", 1),
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('text')", 1),
        ("import sys; sys.exit(256)", 1),
        ("import os; os._exit(0)", 1),
        ("import os; os._exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import time; time.sleep(60)", 124),
        ("", 125),
    ] {
        let output = rig.cli(["run", "--timeout", "1", "-c", code]).run();
        assert_eq!(output.code(), exit_code, "{code}: {output:?}");
        let says_why = exit_code != 0;
        assert_eq!(!output.stderr.is_empty(), says_why, "{code}: {output:?}");
        assert!(!output.stderr.contains("panicked"), "{output:?}");
    }
}

fn usage_errors_exit_with_2_before_anything_runs(rig: &Rig) {
    let script = rig.file("script.py", "open('ran', 'w')");
    let script = script.to_str().unwrap();
    for (arguments, named) in [
        (vec!["run", "--timeout", "0", script], "zero or negative"),
        (vec!["run", "--timeout=-5", script], "zero or negative"),
        (vec!["run", "--timeout", "-5", script], "zero or negative"),
        (vec!["run", "--timeout", "0s", script], "zero or negative"),
        (vec!["run", "--timeout", "soon", script], "90s"),
        (vec!["run", "--max-tool-calls", "-1", script], "-1"),
        (vec!["run", "--mode", "loose", script], "project, strict"),
        (vec!["run", script, "missing.py"], "missing.py"),
        (vec!["run", "--cwd", "/nowhere/at/all", script], "/nowhere/at/all"),
        (vec!["run", "--allow", "terminal,execute_code", script], "execute_code"),
        (vec!["run", "--allow", "terminal,,read_file", script], "name is empty"),
        (vec!["run", "--allow", " ", script], "name is empty"),
        (
            vec!["run", "--env", "MODAL_TOKEN_SECRET=x", script],
            "MODAL_TOKEN_SECRET",
        ),
        (vec!["run", "--nonsense", script], "--nonsense"),
        (vec!["run", "--config", "missing.yaml", script], "missing.yaml"),
        (vec!["walk", script], "walk"),
        (vec![], "Usage"),
    ] {
        let output = rig.cli(arguments.clone()).run();
        // Whether a folder is there shows elsewhere when the target is reached.
        let code = if arguments.contains(&"--cwd") && !rig.target.is_here() {
            125
        } else {
            2
        };
        assert_eq!(output.code(), code, "{arguments:?}: {output:?}");
        assert!(output.stderr.contains(named), "{arguments:?}: {output:?}");
        assert_eq!(output.stdout, "", "{arguments:?}");
        assert!(!rig.work().join("ran").exists(), "{arguments:?}");
    }
    let output = rig
        .cli(["run", "-c", "print(1)"])
        .env("TALARIA_CODE_EXECUTION_TIMEOUT", "0")
        .run();
    assert_eq!(output.code(), 2, "{output:?}");
    assert!(output.stderr.contains("TALARIA_CODE_EXECUTION_TIMEOUT"), "{output:?}");
}

/// As with a variable that is not set: `--on "exec:$WRAPPER"`.
fn a_command_that_is_missing_is_said(rig: &Rig) {
    if rig.target.kind != Kind::Exec {
        return;
    }
    let run = |target: &str| rig.cli(["run", "-c", "print(1)"]).env("TALARIA_TARGET", target).run();
    for (target, is_said) in [
        ("exec:", true),
        ("exec: ", true),
        ("exec:/usr/bin/env", false),
        ("local", false),
    ] {
        let output = run(target);
        assert_eq!((output.code(), output.stdout.as_str()), (0, "1\n"), "{output:?}");
        let said = output.stderr.contains("scripts run on this machine");
        assert_eq!(said, is_said, "{target}: {output:?}");
    }
}

fn a_target_that_cannot_be_opened_is_never_replaced(rig: &Rig) {
    let code = "open('ran', 'w')";
    let asked = rig.cli(["run", "--on", "nowhere", "-c", code]).run();
    let configured = rig
        .cli(["run", "-c", code])
        .without("TALARIA_TARGET")
        .env("TALARIA_TARGET", "nowhere")
        .run();
    for output in [asked, configured] {
        assert_eq!((output.code(), output.stdout.as_str()), (125, ""), "{output:?}");
        assert!(
            output.stderr.contains("nowhere") && output.stderr.contains("local"),
            "{output:?}"
        );
    }
    let output = rig
        .cli([
            "run",
            "--json",
            "--keep-going",
            "--on",
            "nowhere",
            "-c",
            code,
            "-c",
            code,
        ])
        .run();
    let outcomes = output.outcomes();
    assert_eq!((output.code(), outcomes.len()), (125, 2), "{output:?}");
    assert_eq!(
        (&outcomes[0]["target"], &outcomes[0]["status"]),
        (&"nowhere".into(), &"error".into())
    );
    assert!(outcomes[0]["exit_code"].is_null() && outcomes[0]["kernel"].is_null());
    assert!(!rig.work().join("ran").exists());
    let output = rig.cli(["run", "--python", "/bin/false", "-c", code]).run();
    assert_eq!(output.code(), 125, "{output:?}");
    assert!(output.stderr.contains("/bin/false"), "{output:?}");
}

fn json_is_one_line_a_cell(rig: &Rig) {
    let output = rig.cli(["run", "--json", "-c", "x = 1", "-c", "print(x)"]).run();
    let outcomes = output.outcomes();
    assert_eq!(outcomes.len(), 2, "{output:?}");
    assert_eq!(outcomes[1]["output"], "1\n");
    assert_eq!((output.code(), output.stderr.as_str()), (0, ""));
}

fn json_holds_nothing_but_outcomes(rig: &Rig) {
    let code = "import os, subprocess, sys\nprint('a\\nb')\nos.write(1, b'{}\\n')\nsubprocess.run('echo c; echo d >&2', shell=True)\nsys.exit(4)";
    let output = rig.cli(["run", "--json", "-c", code]).run();
    let outcomes = output.outcomes();
    assert_eq!(
        (output.code(), outcomes.len(), output.stderr.as_str()),
        (4, 1, ""),
        "{output:?}"
    );
    assert_eq!(outcomes[0]["output"], "a\nb\n{}\nc\n--- stderr ---\nd\n");
    let output = rig.cli(["run", "--json", "-c", "print('x' * 70000)"]).run();
    assert_eq!(output.outcomes()[0]["stdout_truncated"], true);
}

fn scripts_run_in_order_until_one_fails(rig: &Rig) {
    rig.file("one.py", "x = ['one']");
    rig.file("two.py", "x.append('two')\nprint(x)\nraise SystemExit(9)");
    let output = rig.cli(["run", "one.py", "two.py", "three.py"]).run();
    assert_eq!(output.code(), 2, "a script that is missing must stop all: {output:?}");
    rig.file("three.py", "print('three')");
    let output = rig
        .cli(["run", "-c", "print('first')", "one.py", "two.py", "three.py"])
        .run();
    assert_eq!(
        (output.code(), output.stdout.as_str()),
        (9, "first\n['one', 'two']\n"),
        "{output:?}"
    );
    let output = rig.cli(["run", "one.py", "-c", "1/0"]).run();
    assert!(output.stderr.contains("ZeroDivisionError"), "{output:?}");
    rig.file("bad name.py", "1/0");
    let output = rig.cli(["run", "bad name.py"]).run();
    assert!(output.stderr.contains("cell_1_bad_name.py\", line 1"), "{output:?}");
}

fn keep_going_runs_them_all(rig: &Rig) {
    let output = rig
        .cli([
            "run",
            "--keep-going",
            "--json",
            "-c",
            "import sys; sys.exit(3)",
            "-c",
            "1/0",
            "-c",
            "print('last')",
        ])
        .run();
    let outcomes = output.outcomes();
    assert_eq!((output.code(), outcomes.len()), (3, 3), "{output:?}");
    assert_eq!(outcomes[2]["output"], "last\n");
}

fn a_script_from_stdin(rig: &Rig) {
    let output = rig.cli(["run"]).stdin("import sys; sys.exit(7)").run();
    assert_eq!(output.code(), 7, "{output:?}");
    let output = rig
        .cli(["run", "-c", "x = 1", "-"])
        .stdin("print(x)\nimport sys; print(repr(sys.stdin.read()))\n")
        .run();
    assert_eq!(output.stdout, "1\n''\n", "{output:?}");
    // With -c alone stdin is left to whom it belongs.
    let output = rig.cli(["run", "-c", "print(2)"]).stdin("print('stdin')").run();
    assert_eq!(output.stdout, "2\n", "{output:?}");
    let output = rig
        .cli(["run"])
        .stdin(b"# coding: latin-1\nprint('\xe4')".as_slice())
        .run();
    assert_eq!(output.stdout, "\u{e4}\n", "{output:?}");
}

fn arguments_come_after_two_dashes(rig: &Rig) {
    let script = "import sys; print(sys.argv[1:])";
    rig.file("a.py", script);
    let output = rig
        .cli(["run", "-c", script, "a.py", "--", "--json", "b c", "-", ""])
        .run();
    assert_eq!(output.stdout, "['--json', 'b c', '-', '']\n".repeat(2), "{output:?}");
}

fn output_streams_before_the_end(rig: &Rig) {
    let code = "import time, os
print('one')
while not os.path.exists('go'): time.sleep(0.02)
print('two')";
    let started = rig.cli(["run", "-c", code]).start();
    started.wait_for("one\n");
    rig.file("go", "");
    let output = started.wait();
    assert_eq!((output.code(), output.stdout.as_str()), (0, "one\ntwo\n"), "{output:?}");
}

fn streams_go_where_they_belong(rig: &Rig) {
    let code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('no newline', end='')";
    let output = rig.cli(["run", "-c", code]).run();
    assert_eq!(output.stdout, "out\nno newline");
    let rest = output.stderr.strip_prefix("err\n").unwrap();
    // Nothing but the notice of a session without a kernel.
    assert_eq!(rest.is_empty(), rig.keeps_state, "{output:?}");
    let output = rig.cli(["run", "-c", "print('out')\n1/0"]).run();
    assert_eq!(output.stdout, "out\n");
    assert_eq!(output.stderr.matches("ZeroDivisionError").count(), 1, "{output:?}");
    let output = rig.cli(["run", "-c", "5 + 5"]).run();
    assert!(
        output.stdout.is_empty() && output.stderr.contains("hint: "),
        "{output:?}"
    );
    let output = rig
        .cli(["run", "--timeout", "1", "-c", "print('before')\nwhile True: pass"])
        .run();
    assert_eq!(output.stdout, "before\n");
    assert!(
        output.stderr.contains("Script timed out after 1s and was killed."),
        "{output:?}"
    );
}

fn flags_say_how_a_session_is_made(rig: &Rig) {
    let sub = rig.work().join("sub");
    std::fs::create_dir(&sub).unwrap();
    // A relative one starts where the target's processes start.
    let folder = match rig.target.kind {
        Kind::Here | Kind::Exec => "sub",
        Kind::Docker | Kind::Ssh | Kind::Modal | Kind::Gateway => sub.to_str().unwrap(),
    };
    let code = "import os; print(os.path.basename(os.getcwd()), os.environ.get('A'), os.environ.get('B_TOKEN'))";
    let output = rig
        .cli(["run", "--cwd", folder, "--env", "A=1", "--env", "B_TOKEN", "-c", code])
        .env("B_TOKEN", "passed")
        .run();
    assert_eq!(output.stdout, "sub 1 passed\n", "{output:?}");
    let code = "import os, hermes_tools\nprint('/talaria-' in os.getcwd() and not os.listdir(), 'terminal' in hermes_tools.__all__, 'read_file' in hermes_tools.__all__)";
    let output = rig
        .cli(["run", "--mode", "strict", "--allow", "terminal", "-c", code])
        .run();
    assert_eq!(output.stdout, "True True False\n", "{output:?}");
    let code = "from hermes_tools import terminal\nprint([terminal('true').get('error') is None for _ in range(3)])";
    let output = rig.cli(["run", "--max-tool-calls", "2", "-c", code]).run();
    assert_eq!(output.stdout, "[True, True, False]\n", "{output:?}");
}

fn the_shown_output_is_masked_and_whole(rig: &Rig) {
    let code = "print('hunter2-' + 'hunter2')\nfor i in range(20000): print('line', i)";
    let output = rig.cli(["run", "-c", code]).env("MY_API_KEY", "hunter2-hunter2").run();
    assert!(!output.stdout.contains("hunter2-hunter2"));
    assert!(output.stdout.ends_with("line 19999\n") && output.stdout.contains("\nline 12345\n"));
}

fn logs_go_where_they_are_asked(rig: &Rig) {
    let quiet = rig.cli(["run", "-c", "print(1)"]).run();
    assert!(!quiet.stderr.contains("DEBUG"), "{quiet:?}");
    for output in [
        rig.cli(["run", "-v", "-c", "print(1)"]).run(),
        rig.cli(["run", "-c", "print(1)"]).env("TALARIA_LOG", "debug").run(),
    ] {
        assert!(output.stderr.contains("interpreter"), "{output:?}");
        assert_eq!(output.stdout, "1\n");
    }
    let file = rig.work().join("talaria.log");
    let output = rig
        .cli(["run", "-v", "--log-file", file.to_str().unwrap(), "-c", "print(1)"])
        .run();
    assert!(!output.stderr.contains("DEBUG"), "{output:?}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("interpreter"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let output = rig
        .cli(["run", "-c", "print(1)"])
        .env("TALARIA_LOG", "talaria=loud=x")
        .run();
    assert_eq!(output.code(), 2, "{output:?}");
}

fn output_that_cannot_be_written_is_a_failure(rig: &Rig) {
    for arguments in [
        "run -c 'print(1)' -c 'open(\"next\", \"w\")'",
        "run --json -c 'print(1)' -c 'open(\"next\", \"w\")'",
        "run --json --on nowhere -c 'print(1)'",
        "config",
        "config --template",
        "schema",
        "doctor",
        "completions bash",
        "--help",
    ] {
        let output = rig.shell(&format!("\"$TALARIA\" {arguments} > /dev/full")).run();
        assert_eq!(output.code(), 125, "{arguments}: {output:?}");
        assert!(
            output
                .stderr
                .contains("error: the output cannot be written: No space left"),
            "{arguments}: {output:?}"
        );
        assert!(!rig.work().join("next").exists(), "{arguments}");
    }
}

fn names_of_allowed_tools_may_have_blanks_around_them(rig: &Rig) {
    let code = "import hermes_tools\nprint(hasattr(hermes_tools, 'terminal'), hasattr(hermes_tools, 'write_file'))";
    let output = rig.cli(["run", "--allow", "read_file, terminal ", "-c", code]).run();
    assert_eq!(
        (output.code(), output.stdout.as_str()),
        (0, "True False\n"),
        "{output:?}"
    );
}
