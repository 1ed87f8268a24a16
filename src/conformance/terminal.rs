//! `terminal`: one command, and what passes from one to the next.

use serde_json::{Value, json};

use super::bench::Bench;
use super::case::{Case, Checked, Unmet, case};
use super::check::{contains, equal, holds};
use super::outcomes::ended;
use super::seat::builtin;
use crate::outcome::Status;

pub(super) const CASES: &[Case] = &[
    case!(keys_are_always_there),
    case!(exit_codes_and_signals_are_told),
    case!(output_is_as_a_terminal_shows_it),
    case!(text_reaches_the_shell_as_it_is),
    case!(folder_and_variables_persist).in_folder(),
    case!(state_of_the_shell_is_kept_however_a_command_ends).in_folder(),
    case!(state_of_the_shell_outlives_the_kernel).in_folder(),
    case!(one_working_directory).in_folder(),
    case!(workdir_is_where_one_call_starts).in_folder(),
    case!(a_timeout_keeps_the_output).in_folder(),
    case!(a_command_that_ignores_sigterm_is_killed).in_folder(),
    case!(background_children_do_not_hold_the_call).in_folder(),
    case!(a_command_ends_with_its_cell).in_folder(),
    case!(calls_side_by_side_start_from_the_state_when_made).in_folder(),
    case!(stdin_is_empty_and_nothing_asks_or_pages),
    case!(a_command_starts_with_nothing_of_the_broker),
    case!(a_large_command_runs),
    case!(a_flood_of_output_comes_whole_or_with_its_place),
];

async fn run(bench: &Bench, command: &str) -> Result<Value, Unmet> {
    bench.call("terminal", &json!({ "command": command })).await
}

/// A command that ends well and shows just that.
async fn shows(bench: &Bench, command: &str, output: &str) -> Checked {
    let result = run(bench, command).await?;
    let expected = json!({"output": output, "exit_code": 0, "error": null});
    equal(&format!("the result of {command:?}"), &result, &expected)
}

async fn keys_are_always_there(bench: &Bench) -> Checked {
    shows(bench, "echo out; echo err >&2; printf 3", "out\nerr\n3").await?;
    let failed = run(bench, "echo said; exit 3").await?;
    equal(
        "a command that fails",
        &failed,
        &json!({"output": "said\n", "exit_code": 3, "error": null}),
    )
}

async fn exit_codes_and_signals_are_told(bench: &Bench) -> Checked {
    for (command, code, error) in [
        ("true", 0, None),
        ("exit 255", 255, None),
        ("(exit 7)", 7, None),
        ("f() { return 4; }; f", 4, None),
        ("no-such-command-here 2>/dev/null", 127, None),
        ("exec sh -c 'exit 8'", 8, None),
        ("if then", 2, None),
        ("sh -c 'kill -9 $$'", 137, None),
        ("kill -9 $$", 137, Some("SIGKILL")),
        ("kill -TERM $$", 143, Some("SIGTERM")),
    ] {
        let result = run(bench, command).await?;
        equal(&format!("the exit code of {command:?}"), &result["exit_code"], &code)?;
        match error {
            None => equal(&format!("the error of {command:?}"), &result["error"], &Value::Null)?,
            Some(signal) => contains("the error", result["error"].as_str().unwrap_or_default(), &[signal])?,
        }
    }
    Ok(())
}

async fn output_is_as_a_terminal_shows_it(bench: &Bench) -> Checked {
    for (command, output) in [
        (r"printf '\033[31mred\033[0m\n'", "red\n"),
        (r"printf '1%%\r50%%\r100%%\ndone'", "100%\ndone"),
        (r"printf 'bad \377 byte'", "bad \u{fffd} byte"),
        ("echo 1; echo 2 >&2; sh -c 'echo 3; echo 4 >&2'", "1\n2\n3\n4\n"),
        (":", ""),
    ] {
        shows(bench, command, output).await?;
    }
    Ok(())
}

async fn text_reaches_the_shell_as_it_is(bench: &Bench) -> Checked {
    for (command, output) in [
        ("", ""),
        ("# nothing but a comment", ""),
        ("echo one\necho two", "one\ntwo\n"),
        ("cat <<'EOF'\n$(x) `y` \"z\" it's\nEOF", "$(x) `y` \"z\" it's\n"),
        (r#"printf '%s|' "it's" 'a"b' \$HOME '\\'"#, r#"it's|a"b|$HOME|\\|"#),
        ("echo 'größe 🦀'", "größe 🦀\n"),
        ("echo $#", "0\n"),
    ] {
        shows(bench, command, output).await?;
    }
    Ok(())
}

async fn folder_and_variables_persist(bench: &Bench) -> Checked {
    let code = "from hermes_tools import terminal
terminal('mkdir sub; cd sub; export CONF_A=1 CONF_B=2; CONF_C=3')
print(terminal('basename $PWD; echo $CONF_A $CONF_B ${CONF_C-unset}; unset CONF_A; export CONF_B=4; cd ..')['output'], end='')";
    bench.prints(code, "sub\n1 2 unset\n").await?;
    shows(
        bench,
        "ls; echo ${CONF_A-unset} $CONF_B; sh -c 'echo $CONF_B'",
        "sub\nunset 4\n4\n",
    )
    .await
}

async fn state_of_the_shell_is_kept_however_a_command_ends(bench: &Bench) -> Checked {
    bench.ok("import os; os.mkdir('sub')").await?;
    for (number, (end, code)) in [
        ("exit 3", 3),
        ("false", 1),
        ("set -e; false; exit 9", 1),
        ("trap 'exit 4' EXIT; exit 0", 4),
        ("exec 2>/dev/null; exit 8", 8),
    ]
    .into_iter()
    .enumerate()
    {
        let result = run(bench, &format!("cd sub; export CONF_N={number}; {end}")).await?;
        equal(&format!("the exit code after {end:?}"), &result["exit_code"], &code)?;
        shows(bench, "basename $PWD; echo $CONF_N; cd ..", &format!("sub\n{number}\n")).await?;
    }
    Ok(())
}

async fn state_of_the_shell_outlives_the_kernel(bench: &Bench) -> Checked {
    run(bench, "mkdir sub; cd sub; export CONF_N=1").await?;
    for code in ["raise ValueError('x')", "import os; os._exit(3)"] {
        bench.cell(code).await?;
        shows(bench, "basename $PWD; echo $CONF_N", "sub\n1\n").await?;
    }
    bench.reset().await?;
    // A new kernel starts where the session is.
    bench
        .prints("import os; print(os.path.basename(os.getcwd()))", "sub\n")
        .await
}

async fn one_working_directory(bench: &Bench) -> Checked {
    let code = "import os\nfrom hermes_tools import *
home = os.getcwd()
os.mkdir('sub'); open('sub/inner', 'w').write('inner'); open('outer', 'w').write('outer')
print(terminal('pwd')['output'].strip() == home, read_file('outer')['content'])
terminal('cd sub')
print(read_file('inner')['content'], os.getcwd() == home)
write_file('made', 'x'); print(os.path.exists('sub/made'))
os.chdir('/')
print(terminal('pwd')['output'].strip() == home + '/sub', 'error' in read_file('outer'))
print(read_file('~/' + os.path.relpath(home + '/outer', os.path.realpath(os.path.expanduser('~'))))['content'])";
    bench
        .prints(code, "True 1|outer\n1|inner True\nTrue\nTrue True\n1|outer\n")
        .await
}

async fn workdir_is_where_one_call_starts(bench: &Bench) -> Checked {
    let code = "import os\nfrom hermes_tools import terminal
os.makedirs('a b/c')
for workdir in ('a b', 'a b/../a b/c', '/', '~'):
    print(terminal('basename \"$PWD\"; exit 2', workdir=workdir)['exit_code'], terminal('pwd')['output'].strip() == os.getcwd(), end=' ')
failed = terminal('touch ran', workdir='nowhere')
print(failed['exit_code'], 'nowhere' in failed['error'], os.path.exists('ran'))";
    bench.prints(code, "2 True 2 True 2 True 2 True -1 True False\n").await
}

/// Prints whether a process runs whose number a command has left in the file `pid`.
const IS_ALIVE: &str = "
import os, time
def is_alive():
    try: os.kill(int(open('pid').read()), 0)
    except ProcessLookupError: return False
    try: return open('/proc/%s/stat' % open('pid').read().strip()).read().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except FileNotFoundError: return False
def ends():
    end = time.monotonic() + 30
    while is_alive() and time.monotonic() < end: time.sleep(0.05)
    return not is_alive()
";

async fn a_timeout_keeps_the_output(bench: &Bench) -> Checked {
    let command = "echo before; sh -c 'echo $$ >pid; exec sleep 300'; echo after";
    let result = bench
        .call("terminal", &json!({"command": command, "timeout": 1}))
        .await?;
    equal(
        "output and exit code",
        &(&result["output"], &result["exit_code"]),
        &(&json!("before\n"), &json!(124)),
    )?;
    contains("the error", result["error"].as_str().unwrap_or_default(), &["1s"])?;
    bench.prints(&format!("{IS_ALIVE}print(ends())"), "True\n").await?;
    let none = bench
        .call("terminal", &json!({"command": "true", "timeout": 0}))
        .await?;
    contains(
        "the error of a timeout of 0",
        none["error"].as_str().unwrap_or_default(),
        &["timeout"],
    )
}

async fn a_command_that_ignores_sigterm_is_killed(bench: &Bench) -> Checked {
    let command = "trap '' TERM; echo $$ >pid; echo before; sleep 300; sleep 300";
    let result = bench
        .call("terminal", &json!({"command": command, "timeout": 0.5}))
        .await?;
    equal(
        "output and exit code",
        &(&result["output"], &result["exit_code"]),
        &(&json!("before\n"), &json!(124)),
    )?;
    bench.prints(&format!("{IS_ALIVE}print(ends())"), "True\n").await
}

async fn background_children_do_not_hold_the_call(bench: &Bench) -> Checked {
    for command in [
        "sleep 301 & echo $! >pid",
        "(sleep 302 & echo $! >pid)",
        "setsid sh -c 'echo $$ >aside; mv aside pid; exec sleep 303' & ",
    ] {
        shows(bench, &format!("rm -f pid; echo up; {command}"), "up\n").await?;
        let code = format!(
            "{IS_ALIVE}\nwhile not os.path.exists('pid'): time.sleep(0.02)\nprint(is_alive())\nos.kill(int(open('pid').read()), 9)"
        );
        bench.prints(&code, "True\n").await?;
    }
    Ok(())
}

async fn a_command_ends_with_its_cell(bench: &Bench) -> Checked {
    let code = "from hermes_tools import terminal\nterminal('echo $$ >pid; exec sleep 330')";
    let outcome = bench.cell_for(2.0, code).await?;
    ended(&outcome, Status::Timeout, Some(124))?;
    let gone = format!("{IS_ALIVE}print(ends())");
    bench.prints(&gone, "True\n").await?;
    let code = "import os, threading, time\nfrom hermes_tools import terminal\nos.remove('pid')\n\
                threading.Thread(target=terminal, args=('echo $$ >aside; mv aside pid; exec sleep 330',), daemon=True).start()\n\
                while not os.path.exists('pid'): time.sleep(0.02)\nprint('begun', flush=True)\n";
    let cell = builtin(format!("{code}time.sleep(60)"));
    let outcome = bench.cancelled(cell, "begun", "enough").await?;
    ended(&outcome, Status::Interrupted, Some(130))?;
    bench.prints(&gone, "True\n").await?;
    // One whose cell has ended by itself.
    ended(&bench.cell(code).await?, Status::Success, Some(0))?;
    bench.prints(&gone, "True\n").await
}

async fn calls_side_by_side_start_from_the_state_when_made(bench: &Bench) -> Checked {
    let code = r#"
import threading, time
from hermes_tools import terminal
terminal("export CONF_N=start; mkdir -p box; cd box")
def move(): terminal('cd /; export CONF_N=moved; touch "$OLDPWD/moved"; until [ -e "$OLDPWD/seen" ]; do sleep 0.05; done; sleep 1')
mover = threading.Thread(target=move); mover.start()
while terminal("test -e moved")["exit_code"]: time.sleep(0.1)
seen = terminal('basename "$PWD"; echo $CONF_N; touch seen')
mover.join()
print(seen["output"], terminal("pwd; echo $CONF_N")["output"], end="")
"#;
    let mut cell = builtin(code);
    cell.limits.max_tool_calls = Some(1000);
    equal(
        "the output",
        bench.run(cell).await?.output.as_str(),
        "box\nstart\n /\nmoved\n",
    )
}

async fn stdin_is_empty_and_nothing_asks_or_pages(bench: &Bench) -> Checked {
    shows(bench, "cat; read x || echo none", "none\n").await?;
    let command = "unset CONF_X; echo $PAGER $GIT_PAGER $TERM $GIT_TERMINAL_PROMPT; test -t 0 || test -t 1 || test -t 2 || echo no tty; (: </dev/tty) 2>/dev/null || echo none at all";
    shows(bench, command, "cat cat dumb 0\nno tty\nnone at all\n").await
}

async fn a_command_starts_with_nothing_of_the_broker(bench: &Bench) -> Checked {
    let command =
        "env | grep -i -E '^(talaria|hermes_rpc)' | cut -d= -f1; ls /proc/self/fd 2>/dev/null | wc -l | tr -d ' '";
    let result = run(bench, command).await?;
    let output = result["output"].as_str().unwrap_or_default();
    // The three, and that of the list itself; none where there is no /proc.
    holds(
        "no variable and no descriptor of the broker",
        ["4\n", "0\n"].contains(&output),
        output,
    )
}

async fn a_large_command_runs(bench: &Bench) -> Checked {
    let code = r#"
from hermes_tools import terminal
for size in (128 * 1024 - 1, 128 * 1024, 128 * 1024 + 1, 3_000_000):
    result = terminal("x='" + "y" * size + "'; echo ${#x}")
    print(result["output"] == "%d\n" % size, result["error"])
result = terminal("cat <<'EOF' | wc -c\n" + "it's $x `y`\n" * 200_000 + "EOF\n")
print(result["output"].strip(), result["error"])
"#;
    let expected = "True None\n".repeat(4) + "2400000 None\n";
    bench.prints(code, &expected).await
}

async fn a_flood_of_output_comes_whole_or_with_its_place(bench: &Bench) -> Checked {
    let code = "from hermes_tools import terminal\nr = terminal(\"head -c 6000000 /dev/zero | tr '\\\\0' x; echo end\")\nprint(len(r['output']), r['output'].endswith('xend\\n'), r['exit_code'], r['error'])";
    bench.prints(code, "6000004 True 0 None\n").await
}
