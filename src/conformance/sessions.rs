//! Sessions beside each other, of another kind, and what is left of one that has ended.

use serde_json::json;

use super::bench::Bench;
use super::case::{Case, Checked, Unmet, case};
use super::check::{contains, equal, failed, holds};
use super::outcomes::ended;
use super::seat::builtin;
use crate::config::Mode;
use crate::outcome::{KernelMode, Status};

pub(super) const CASES: &[Case] = &[
    case!(two_sessions_are_apart),
    case!(sessions_run_side_by_side),
    case!(strict_mode_has_a_folder_of_its_own),
    case!(each_cell_can_be_a_standalone_script),
    case!(an_interpreter_that_is_not_there_is_an_error),
    case!(nothing_is_left_of_a_session_that_was_closed).in_folder(),
    case!(a_session_that_was_closed_runs_nothing),
];

async fn two_sessions_are_apart(bench: &Bench) -> Checked {
    let other = bench.another(|_| {})?;
    bench.ok("import os\nx = 1\nos.environ['CONF_X'] = '1'\nfrom hermes_tools import terminal\nterminal('export CONF_Y=1')").await?;
    let code = "import os\nfrom hermes_tools import terminal\nprint('x' in globals(), 'CONF_X' in os.environ, terminal('echo ${CONF_Y-unset}')['output'])";
    other.prints(code, "False False unset\n\n").await?;
    bench
        .prints("print(x, os.environ['CONF_X'])", "1 1\n")
        .await
        .or_else(|unmet| match bench.keeps_state() {
            true => Err(unmet),
            false => Ok(()),
        })
}

async fn sessions_run_side_by_side(bench: &Bench) -> Checked {
    let other = bench.another(|_| {})?;
    // Neither call is answered before both are there.
    let code = "from hermes_tools import meet\nprint(meet('here', callers=2))";
    let (one, two) = tokio::join!(bench.probing(code), other.probing(code));
    equal("what the one prints", one?.output.as_str(), "{'value': 'here'}\n")?;
    equal("what the other prints", two?.output.as_str(), "{'value': 'here'}\n")
}

async fn strict_mode_has_a_folder_of_its_own(bench: &Bench) -> Checked {
    let folder = bench.ok("import os; print(os.getcwd(), end='')").await?;
    let strict = bench.another(|options| options.mode = Mode::Strict)?;
    let code = "import os\nfrom hermes_tools import terminal, write_file\n\
                made = write_file('made', 'x')\nassert 'error' not in made, made\nprint(os.getcwd()); print(terminal('pwd')['output'].strip()); print(any(not os.stat(os.path.join(os.getcwd(), *['..'] * up)).st_mode & 0o077 for up in range(3)), os.listdir('.'))";
    let printed = strict.ok(code).await?;
    let lines: Vec<&str> = printed.lines().collect();
    let [cwd, pwd, rights] = lines[..] else {
        return Err(failed(format!("expected three lines, seen {printed:?}")));
    };
    equal("the folder of terminal", pwd, cwd)?;
    holds("another folder than the one given", cwd != folder, cwd)?;
    equal("that it is private, and its files", rights, "True ['made']")?;
    strict.close().await?;
    let code = format!("import os; print(os.path.exists({}))", json!(cwd));
    bench.prints(&code, "False\n").await
}

async fn each_cell_can_be_a_standalone_script(bench: &Bench) -> Checked {
    let seat = bench.another(|options| options.keep_kernel = false)?;
    let outcome = seat
        .cell("x = 1\nfrom hermes_tools import terminal\nprint(__name__, terminal('echo on')['output'])")
        .await?;
    equal("the output", outcome.output.as_str(), "__main__ on\n\n")?;
    contains(
        "the notice",
        outcome.notice.as_deref().unwrap_or_default(),
        &["standalone script"],
    )?;
    equal(
        "the mode",
        &outcome.kernel.map(|kernel| kernel.mode),
        &Some(KernelMode::OneShot),
    )?;
    seat.prints("print('x' in globals())", "False\n").await?;
    ended(&seat.cell("import sys; sys.exit(3)").await?, Status::Error, Some(3))?;
    let late = seat
        .cell_for(1.0, "print('begun', flush=True)\nimport time; time.sleep(60)")
        .await?;
    ended(&late, Status::Timeout, Some(124))?;
    contains(
        "the output of one that ran too long",
        &late.output,
        &["begun\n", "timed out after 1s"],
    )
}

async fn an_interpreter_that_is_not_there_is_an_error(bench: &Bench) -> Checked {
    let absent = bench.another(|options| options.python = Some("/nowhere/python3".into()))?;
    let outcome = absent.cell("print(1)").await?;
    ended(&outcome, Status::Error, None)?;
    equal("the kernel", &outcome.kernel, &None)?;
    contains(
        "the error",
        outcome.error.as_deref().unwrap_or_default(),
        &["/nowhere/python3"],
    )
}

/// Starts what tries to stay; prints where the session's files are, and the processes: when each began too, for in another
/// container of the same target its number may be another's.
const LEAVE: &str = "
import json, os, subprocess, hermes_tools
def began(pid): return open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[19]
child = subprocess.Popen(['sleep', '300'], start_new_session=True).pid
job = int(hermes_tools.terminal('setsid sleep 300 >/dev/null 2>&1 & echo $!')['output'])
print(json.dumps([os.path.dirname(os.path.realpath(hermes_tools.__file__)), os.environ.get('HERMES_RPC_DIR') or '', [[pid, began(pid)] for pid in (child, job, os.getpid())]]))";

/// Prints what is still there of that after a while.
const LEFT: &str = "
import os, time
def is_there(pid, began):
    try: found = open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()
    except (FileNotFoundError, ProcessLookupError): return False
    return found[0] not in 'ZX' and found[19] == began
def left(): return [pid for pid, began in pids if is_there(pid, began)] + [path for path in (staging, calls) if path and os.path.exists(path)]
end = time.monotonic() + 20
while left() and time.monotonic() < end: time.sleep(0.1)
print(left())";

async fn nothing_is_left_of_a_session_that_was_closed(bench: &Bench) -> Checked {
    let folder = json!(bench.ok("import os; print(os.getcwd(), end='')").await?);
    let other = bench.another(|_| {})?;
    let shared = other.ok(&format!("import os; print(os.path.isdir({folder}))")).await?;
    if shared != "True\n" {
        return Err(Unmet::Skipped(
            "each session has a place of its own here, which ends with it".to_owned(),
        ));
    }
    let made = other.ok(LEAVE).await?;
    other.close().await?;
    bench
        .prints(&format!("staging, calls, pids = {made}{LEFT}"), "[]\n")
        .await
}

async fn a_session_that_was_closed_runs_nothing(bench: &Bench) -> Checked {
    let other = bench.another(|_| {})?;
    other.ok("print(1)").await?;
    other.close().await?;
    let outcome = other.run(builtin("print(2)")).await?;
    ended(&outcome, Status::Error, None)?;
    contains("the error", outcome.error.as_deref().unwrap_or_default(), &["closed"])
}
