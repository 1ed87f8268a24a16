//! `terminal()`: one command, from its text to its result.

use serde_json::{Value, json};
use talaria_broker::session::Cell;

use crate::observe::{is_alive, number_here, wait_until, with_mark};
use crate::rig::{HANG, Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    output_is_in_the_order_it_was_written,
    exit_codes_and_signals_are_told,
    output_is_as_a_terminal_shows_it,
    text_reaches_the_shell_as_it_is,
    messages_count_the_lines_of_the_command,
    nothing_of_ours_shows_in_a_trace,
    a_timeout_keeps_the_output,
    a_command_that_ignores_sigterm_is_killed,
    background_children_do_not_hold_the_call,
    background_children_end_with_the_session,
    a_command_ends_with_its_cell,
    a_command_starts_with_nothing_of_ours,
    stdin_is_empty,
    no_program_pages_or_asks,
    workdir_is_where_one_call_starts,
    pagers_are_off,
    a_flood_of_output_is_shown_in_part_and_kept_whole,
    any_temporary_folder_will_do,
    a_very_long_limit_is_allowed,
];

/// Runs one command in a cell of its own.
pub(crate) fn run(session: &TestSession, command: &str) -> Value {
    call(session, &json!({ "command": command }))
}

/// What it wrote, if it ended well.
pub(crate) fn shown(session: &TestSession, command: &str) -> String {
    let result = run(session, command);
    assert_eq!(
        (&result["exit_code"], &result["error"]),
        (&json!(0), &Value::Null),
        "{command}\n{result}"
    );
    result["output"].as_str().unwrap().to_owned()
}

/// Runs one command with all arguments given.
fn call(session: &TestSession, arguments: &Value) -> Value {
    let arguments = json!(arguments.to_string()).to_string();
    session.value(&format!(
        "import json\nfrom hermes_tools import terminal\nprint(json.dumps(terminal(**json.loads({arguments}))))"
    ))
}

fn output_is_in_the_order_it_was_written(rig: &Rig) {
    let command = "echo 1; echo 2 >&2; sh -c 'echo 3; echo 4 >&2'; printf 5";
    let session = rig.session();
    assert_eq!(shown(&session, command), "1\n2\n3\n4\n5");
    let python = rig.python();
    let python = format!(
        "{} -c \"import sys; print(1); print(2, file=sys.stderr); print(3)\"",
        python.display()
    );
    assert_eq!(shown(&session, &python), "1\n2\n3\n");
}

fn exit_codes_and_signals_are_told(rig: &Rig) {
    let session = rig.session();
    for (command, code, error) in [
        ("true", 0, None),
        ("false", 1, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("(exit 7)", 7, None),
        ("false; exit", 1, None),
        ("f() { return 4; }; f", 4, None),
        ("x=$(exit 5); exit", 5, None),
        ("set -e; (exit 6); echo on", 6, None),
        ("no-such-command-here 2>/dev/null", 127, None),
        ("exec sh -c 'exit 8'", 8, None),
        ("if then", 2, None),
        ("sh -c 'kill -9 $$'", 137, None),
        ("kill -9 $$", 137, Some("SIGKILL")),
        ("kill -TERM $$", 143, Some("SIGTERM")),
        ("kill -SEGV $$", 139, Some("SIGSEGV")),
    ] {
        let result = run(&session, command);
        assert_eq!(result["exit_code"], code, "{command}: {result}");
        assert!(result["output"].is_string(), "{command}: {result}");
        match error {
            None => assert_eq!(result["error"], Value::Null, "{command}: {result}"),
            Some(signal) => assert!(result["error"].as_str().unwrap().contains(signal), "{result}"),
        }
    }
}

fn output_is_as_a_terminal_shows_it(rig: &Rig) {
    let session = rig.session();
    for (command, output) in [
        (r"printf '\033[31mred\033[0m\n'", "red\n"),
        (r"printf '1%%\r50%%\r100%%\ndone'", "100%\ndone"),
        (r"printf 'bad \377 byte'", "bad \u{fffd} byte"),
        (":", ""),
    ] {
        assert_eq!(shown(&session, command), output, "{command}");
    }
}

fn text_reaches_the_shell_as_it_is(rig: &Rig) {
    let session = rig.session();
    let long = format!("printf %s {} | wc -c", "x".repeat(200 * 1024));
    for (command, output) in [
        ("", ""),
        ("  \n\t", ""),
        ("# nothing but a comment", ""),
        ("echo a # b", "a\n"),
        ("echo one\necho two", "one\ntwo\n"),
        ("echo a \\\n  b", "a b\n"),
        ("cat <<'EOF'\n$(x) `y` \"z\" it's\nEOF", "$(x) `y` \"z\" it's\n"),
        ("cat <<EOF\n$((1 + 1))\nEOF\n", "2\n"),
        (r#"printf '%s|' "it's" 'a"b' \$HOME '\\'"#, r#"it's|a"b|$HOME|\\|"#),
        ("echo 'größe 🦀'", "größe 🦀\n"),
        ("x='a  b'; echo \"$x\"", "a  b\n"),
        ("echo $#", "0\n"),
        ("for i in 1 2; do echo $i; done | tail -1", "2\n"),
        (
            "echo __talaria_marker__; echo --- stderr ---",
            "__talaria_marker__\n--- stderr ---\n",
        ),
        (&long, "204800\n"),
    ] {
        let shown = shown(&session, command);
        assert_eq!(shown.trim_start_matches(' '), output, "{command:.80}");
    }
    let result = run(&session, "echo a\0b");
    assert!(result["error"].as_str().unwrap().contains("NUL"), "{result}");
}

fn messages_count_the_lines_of_the_command(rig: &Rig) {
    let session = rig.session();
    let result = run(&session, "echo\nno-such-command-here");
    let output = result["output"].as_str().unwrap();
    assert!(output.contains("line 2: ") || output.contains("2: no-such"), "{output}");
    let result = run(&session, "if then");
    let output = result["output"].as_str().unwrap();
    assert!(output.contains("line 1: ") || output.contains(" 1: "), "{output}");
}

fn nothing_of_ours_shows_in_a_trace(rig: &Rig) {
    let session = rig.session();
    for command in [
        "set -x; echo hi",
        "set -v; echo hi",
        "set -xv; echo hi",
        "set -x; trap : EXIT; echo hi",
    ] {
        let output = shown(&session, command);
        assert!(
            output.contains("hi\n") && !output.contains("talaria"),
            "{command}: {output}"
        );
    }
}

fn a_timeout_keeps_the_output(rig: &Rig) {
    let session = rig.session();
    shown(&session, "true");
    let result = call(
        &session,
        &json!({"command": "echo before; sleep 300.25", "timeout": 0.5}),
    );
    assert_eq!(
        (&result["output"], &result["exit_code"]),
        (&json!("before\n"), &json!(124))
    );
    assert!(result["error"].as_str().unwrap().contains("500ms"), "{result}");
    assert!(sleeping(rig, "300.25").is_empty());
    // Also what a program of Python's has printed, which it would else still hold.
    let python = rig.python().display().to_string();
    let command = format!("{python} -c \"import os; print('before'); os.kill(os.getpid(), 9)\"");
    let killed = call(&session, &json!({"command": command}));
    assert!(killed["output"].as_str().unwrap().starts_with("before\n"), "{killed}");
    for timeout in [json!(0), json!(-1), json!(1e300), json!("5")] {
        let result = call(&session, &json!({"command": "touch ran", "timeout": timeout}));
        assert!(result["error"].as_str().unwrap().contains("timeout"), "{result}");
    }
    assert!(!rig.work().join("ran").exists());
}

fn a_command_that_ignores_sigterm_is_killed(rig: &Rig) {
    let session = rig.session();
    let command = "trap '' TERM; echo before; sleep 300.5; sleep 300.5";
    let result = call(&session, &json!({"command": command, "timeout": 0.5}));
    assert_eq!(
        (&result["output"], &result["exit_code"]),
        (&json!("before\n"), &json!(124))
    );
    assert!(sleeping(rig, "300.5").is_empty());
}

/// Processes of a test that sleep for a time that names them.
fn sleeping(rig: &Rig, seconds: &str) -> Vec<i32> {
    let mark = rig.scratch().to_str().unwrap();
    let name = format!("sleep {seconds}");
    let seen = with_mark(mark).into_iter();
    seen.filter(|seen| seen.command.trim() == name)
        .map(|seen| seen.pid)
        .collect()
}

const BACKGROUND: [(&str, &str); 7] = [
    ("sleep 301 &", "301"),
    ("sleep 302 & disown", "302"),
    ("nohup sleep 303 >/dev/null 2>&1 &", "303"),
    ("setsid sleep 304 &", "304"),
    ("setsid sh -c 'sleep 305' & disown", "305"),
    ("(sleep 306 &)", "306"),
    ("sh -c 'sleep 307 & sleep 307.5 &'", "307"),
];

fn background_children_do_not_hold_the_call(rig: &Rig) {
    let session = rig.session();
    for (command, seconds) in BACKGROUND {
        assert_eq!(shown(&session, &format!("echo up; {command}")), "up\n", "{command}");
        assert!(
            wait_until(HANG, || sleeping(rig, seconds).len() == 1),
            "{command} is not running"
        );
    }
}

fn background_children_end_with_the_session(rig: &Rig) {
    let session = rig.session();
    let printed = shown(&session, "sleep 310 & echo $! $(readlink /proc/self/ns/pid)");
    let (there, _) = printed.split_once(' ').unwrap();
    let pid = number_here(&printed);
    let outcome = session.cell_for(0.5, "import time; time.sleep(300)");
    assert_eq!(outcome.exit_code, Some(124));
    assert!(is_alive(pid), "a timeout of a cell ended it");
    runtime_reset(&session);
    assert!(is_alive(pid), "a reset ended it");
    assert_eq!(shown(&session, &format!("kill -0 {there} && echo alive")), "alive\n");
    session.close();
    assert!(wait_until(HANG, || !is_alive(pid)), "it outlives its session");
}

fn a_command_ends_with_its_cell(rig: &Rig) {
    let session = rig.session();
    let code = "from hermes_tools import terminal\nterminal('sleep 330')";
    assert_eq!(session.cell_for(1.0, code).exit_code, Some(124));
    assert!(
        wait_until(HANG, || sleeping(rig, "330").is_empty()),
        "it outlives a timeout"
    );
    let cell = Cell::new(code);
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    assert!(wait_until(HANG, || sleeping(rig, "330").len() == 1));
    cancel.cancel("enough");
    assert_eq!(running.wait().exit_code, Some(130));
    assert!(
        wait_until(HANG, || sleeping(rig, "330").is_empty()),
        "it outlives a cancelled cell"
    );
    assert_eq!(shown(&session, "echo on"), "on\n");
}

fn a_command_starts_with_nothing_of_ours(rig: &Rig) {
    let session = rig.session();
    // Three descriptors and the one of the list itself; no signal blocked, none ignored but those that
    // the C library keeps for itself; usual priority; no variable of the link; a session of its own.
    let command = "ls /proc/self/fd | wc -l; grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '[:space:]'; echo; nice; env | grep -c -i -E 'talaria|hermes'; \
                   test $(cut -d' ' -f6 /proc/$$/stat) -eq $$ && echo own; python3 -c 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'";
    let shown = shown(&session, command);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "4", "{shown}");
    let ignored = lines[1].rsplit(':').next().unwrap();
    let blocked = lines[1].trim_start_matches("SigBlk:").split('S').next().unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 0x7fff_ffff, 0, "{shown}");
    assert_eq!(u64::from_str_radix(blocked, 16).unwrap(), 0, "{shown}");
    assert_eq!(lines[2..], ["0", "0", "own", "True"], "{shown}");
}

fn runtime_reset(session: &TestSession) {
    crate::rig::runtime().block_on(session.session.reset());
}

fn stdin_is_empty(rig: &Rig) {
    let session = rig.session();
    assert_eq!(shown(&session, "cat; echo done"), "done\n");
    assert_eq!(shown(&session, "read x || echo none"), "none\n");
    assert_eq!(shown(&session, "cat <&0 & wait; echo done"), "done\n");
    let output = rig
        .cli([
            "run",
            "-c",
            "from hermes_tools import terminal\nprint(terminal('cat'))\nprint(terminal('read x; echo $?')['output'])",
        ])
        .stdin("not for commands\n")
        .run();
    assert!(
        !output.stdout.contains("not for commands") && output.stdout.ends_with("1\n\n"),
        "{output:?}"
    );
}

fn no_program_pages_or_asks(rig: &Rig) {
    std::fs::write(
        rig.home().join(".profile"),
        "export PAGER=less GIT_PAGER=less TERM=xterm-256color\n",
    )
    .unwrap();
    let session = rig.session_with(|options| {
        rig.among(
            options,
            [("PAGER", "less"), ("TERM", "xterm"), ("GIT_TERMINAL_PROMPT", "1")],
        );
    });
    let command = "echo $PAGER $GIT_PAGER $MANPAGER $TERM $GIT_TERMINAL_PROMPT; test -t 0 || test -t 1 || test -t 2 || echo no tty; (: </dev/tty) 2>/dev/null || echo none at all";
    assert_eq!(shown(&session, command), "cat cat cat dumb 0\nno tty\nnone at all\n");
}

fn workdir_is_where_one_call_starts(rig: &Rig) {
    std::fs::create_dir_all(rig.work().join("a b/c")).unwrap();
    std::fs::write(rig.work().join("file"), "").unwrap();
    let session = rig.session();
    let work = format!("{}\n", rig.work().display());
    for (workdir, shown) in [
        ("a b", rig.work().join("a b")),
        ("a b/../a b/c", rig.work().join("a b/c")),
        ("~", rig.home()),
        ("/", "/".into()),
    ] {
        let result = call(&session, &json!({"command": "pwd; exit 2", "workdir": workdir}));
        assert_eq!(result["output"], format!("{}\n", shown.display()), "{workdir}");
        assert_eq!(self::shown(&session, "pwd"), work, "{workdir} moved the session");
    }
    for workdir in ["nowhere", "file", "/nowhere/at/all"] {
        let result = call(&session, &json!({"command": "touch ran", "workdir": workdir}));
        assert_eq!((&result["output"], &result["exit_code"]), (&json!(""), &json!(-1)));
        assert!(result["error"].as_str().unwrap().contains(workdir), "{result}");
    }
    assert!(!rig.work().join("ran").exists());
    call(&session, &json!({"command": "cd c", "workdir": "a b"}));
    assert_eq!(
        self::shown(&session, "pwd"),
        format!("{}/a b/c\n", rig.work().display())
    );
}

fn pagers_are_off(rig: &Rig) {
    let session = rig.session();
    std::fs::write(rig.home().join(".profile"), "export PAGER=less\n").unwrap();
    assert_eq!(
        shown(&session, "echo $PAGER $GIT_PAGER $MANPAGER; tty || true"),
        "cat cat cat\nnot a tty\n"
    );
    assert_eq!(shown(&session, "export PAGER=more; true; echo $PAGER"), "more\n");
}

fn a_flood_of_output_is_shown_in_part_and_kept_whole(rig: &Rig) {
    // It goes to and fro, where the directory is polled in many pieces.
    let session = rig.session_with(|options| options.limits.timeout = 3 * HANG);
    let printed = session.ok("from hermes_tools import terminal, read_file
result = terminal('seq 1 9200000')
output, path = result['output'], result['output_spill_path']
print(result['exit_code'], result['error'], result['output_truncated'], len(output) <= 64 << 20)
print(output.startswith('1\\n2\\n'), output.endswith('\\n9200000\\n'), path in output)
for line in (5000000, 9200000):
    print(read_file(path, offset=line, limit=1, raw=True)['content'], end='')
print(read_file(path)['file_size'] == len(''.join('%d\\n' % n for n in range(1, 9200001))))
print('output_truncated' in terminal('true'))");
    assert_eq!(
        printed,
        "0 None True True\nTrue True True\n5000000\n9200000\nTrue\nFalse\n"
    );
}

fn any_temporary_folder_will_do(rig: &Rig) {
    let odd = rig.scratch().join("it's a \"tmp\" $HOME `x` ü");
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(rig.home().join(".profile"), "export FROM_LOGIN=yes\n").unwrap();
    let session = rig.session_with(|options| {
        let odd = odd.to_str().unwrap();
        rig.among(options, [("TMPDIR", odd), ("XDG_RUNTIME_DIR", odd)]);
    });
    assert_eq!(shown(&session, "echo $FROM_LOGIN; export X=1; cd /"), "yes\n");
    assert_eq!(
        shown(&session, "pwd; echo \"$X $TMPDIR\""),
        format!("/\n1 {}\n", odd.display())
    );
    session.close();
    assert_eq!(std::fs::read_dir(&odd).unwrap().count(), 0);
}

fn a_very_long_limit_is_allowed(rig: &Rig) {
    let session = rig.session_with(|options| {
        options.limits.timeout = std::time::Duration::from_secs(100 * 24 * 3600);
    });
    let result = call(
        &session,
        &json!({"command": "sleep 0.2; echo x", "timeout": 90 * 24 * 3600}),
    );
    assert_eq!(result, json!({"output": "x\n", "exit_code": 0, "error": null}));
}
