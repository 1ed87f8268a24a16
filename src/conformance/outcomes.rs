//! The outcome: every row of its table, and every field.

use std::time::Duration;

use serde_json::Value;

use super::bench::Bench;
use super::case::{Case, Checked, Unmet, case};
use super::check::{contains, equal, failed, holds};
use super::seat::{allowing, builtin};
use crate::outcome::{KernelMode, Outcome, Status};

pub(super) const CASES: &[Case] = &[
    case!(a_cell_that_ran_to_its_end),
    case!(fields_are_there_always_or_when_they_apply),
    case!(stderr_of_a_success_stands_apart),
    case!(a_cell_that_raised),
    case!(a_cell_that_is_no_python),
    case!(a_cell_that_left),
    case!(a_cell_whose_process_is_gone),
    case!(a_cell_that_ran_too_long),
    case!(a_cell_that_was_cancelled),
    case!(a_cell_that_was_cancelled_before_it_began).in_folder(),
    case!(cells_that_are_refused),
    case!(phases_are_time_before_the_script),
    case!(the_notice_of_a_loss_names_its_reason).with_kernel(),
    case!(hints_name_the_next_step),
];

/// What every outcome has.
const ALWAYS: [&str; 8] = [
    "status",
    "output",
    "exit_code",
    "tool_calls_made",
    "duration_seconds",
    "stdout_bytes_total",
    "target",
    "kernel",
];

fn json(outcome: &Outcome) -> Result<Value, Unmet> {
    serde_json::to_value(outcome).map_err(|error| failed(format!("an outcome is no JSON: {error}")))
}

/// How it ended, and with which code.
pub(super) fn ended(outcome: &Outcome, status: Status, exit_code: Option<i32>) -> Checked {
    let seen = (outcome.status, outcome.exit_code);
    holds(
        &format!("status and exit code {:?}", (status, exit_code)),
        seen == (status, exit_code),
        outcome,
    )
}

/// Whether the state went with it, as it must.
fn state_is_lost(bench: &Bench, outcome: &Outcome) -> Checked {
    let lost = outcome.kernel.as_ref().map(|kernel| kernel.state_lost);
    // A standalone script has no state that it could lose.
    equal("state_lost", &lost, &Some(bench.keeps_state()))?;
    let error = outcome.error.as_deref().unwrap_or_default();
    let says_so = error.contains("variables and imports are lost");
    let is_right = match bench.keeps_state() {
        true => says_so || outcome.status != Status::Error,
        false => !says_so,
    };
    holds("the error to say so where state is lost", is_right, error)
}

async fn a_cell_that_ran_to_its_end(bench: &Bench) -> Checked {
    let outcome = bench.cell("print('x')").await?;
    ended(&outcome, Status::Success, Some(0))?;
    equal(
        "output and its size",
        &(outcome.output.as_str(), outcome.stdout_bytes_total),
        &("x\n", 2),
    )?;
    let nothing = bench.cell("x = 1").await?;
    ended(&nothing, Status::Success, Some(0))?;
    equal("the output of a cell that printed nothing", nothing.output.as_str(), "")?;
    equal(
        "stderr, error and hint of a cell that printed nothing",
        &(nothing.stderr, nothing.error, nothing.hint),
        &(None, None, None),
    )
}

async fn fields_are_there_always_or_when_they_apply(bench: &Bench) -> Checked {
    bench.ok("pass").await?;
    let outcome = json(&bench.cell("print('x')").await?)?;
    let keys = |value: &Value| -> Vec<String> {
        let keys = value.as_object().into_iter().flat_map(|object| object.keys());
        keys.filter(|key| !["notice", "phases"].contains(&key.as_str()))
            .cloned()
            .collect()
    };
    // The link may have something to tell in a notice, and a busy machine have kept it waiting.
    equal("the fields", &keys(&outcome), &ALWAYS.map(str::to_owned).to_vec())?;
    let kernel = &outcome["kernel"];
    equal(
        "the fields of kernel",
        &keys(kernel),
        &["mode", "reused", "execution_count", "state_lost", "python", "transport"]
            .map(str::to_owned)
            .to_vec(),
    )?;
    let keeps_state = bench.keeps_state();
    equal(
        "mode",
        &kernel["mode"],
        if keeps_state { "session" } else { "one-shot" },
    )?;
    equal("reused", &kernel["reused"], &keeps_state)?;
    equal(
        "execution_count",
        &kernel["execution_count"],
        &(if keeps_state { 2 } else { 1 }),
    )?;
    let python = kernel["python"].as_str().unwrap_or_default();
    holds("kernel.python as `path (version)`", python.contains(" (3."), python)?;
    equal("target", &outcome["target"], bench.options.target.as_str())?;
    let refused = json(&bench.cell(" ").await?)?;
    let missing = ALWAYS.iter().find(|key| refused.get(**key).is_none());
    equal("a field that a refusal lacks", &missing, &None)?;
    equal(
        "kernel and exit code of a refusal",
        &(&refused["kernel"], &refused["exit_code"]),
        &(&Value::Null, &Value::Null),
    )
}

async fn stderr_of_a_success_stands_apart(bench: &Bench) -> Checked {
    let code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out')";
    let outcome = bench.cell(code).await?;
    equal(
        "output, stderr and bytes",
        &(
            outcome.output.as_str(),
            outcome.stderr.as_deref(),
            outcome.stdout_bytes_total,
        ),
        &("out\nout\n", Some("err\n"), 8),
    )?;
    equal(
        "stderr where nothing was written",
        &bench.cell("print(1)").await?.stderr,
        &None,
    )
}

async fn a_cell_that_raised(bench: &Bench) -> Checked {
    let code = "import sys\nprint('out', end='')\nprint('err', file=sys.stderr)\n{}['k']";
    let outcome = bench.cell(code).await?;
    ended(&outcome, Status::Error, Some(1))?;
    let output = outcome.output.as_str();
    let start = "out\n--- stderr ---\nerr\nTraceback (most recent call last):\n";
    holds(
        &format!("an output that begins with {start:?}"),
        output.starts_with(start),
        output,
    )?;
    contains("the traceback", output, &[", line 4, in <module>\n    {}['k']\n"])?;
    holds(
        "its end to be the exception",
        output.ends_with("\nKeyError: 'k'\n"),
        output,
    )?;
    equal("error", &outcome.error.as_deref(), &Some("KeyError: 'k'"))?;
    equal("stderr beside output", &outcome.stderr, &None)?;
    equal(
        "state_lost",
        &outcome.kernel.map(|kernel| kernel.state_lost),
        &Some(false),
    )?;
    let deep = bench
        .cell("def inner():\n    return 1 / 0\ndef outer():\n    return inner()\nouter()")
        .await?;
    contains(
        "the traceback",
        &deep.output,
        &["    return inner()\n", "    return 1 / 0\n", "line 2, in inner"],
    )
}

async fn a_cell_that_is_no_python(bench: &Bench) -> Checked {
    let outcome = bench.cell("x = 1\nprint('never')\nif x\n    pass").await?;
    ended(&outcome, Status::Error, Some(1))?;
    contains("error", outcome.error.as_deref().unwrap_or_default(), &["SyntaxError"])?;
    contains("output", &outcome.output, &["line 3", "if x"])?;
    holds("nothing to run", !outcome.output.contains("never\n"), &outcome.output)?;
    bench.prints("print('on')", "on\n").await
}

async fn a_cell_that_left(bench: &Bench) -> Checked {
    for (code, exit_code) in [
        ("sys.exit()", 0),
        ("sys.exit(None)", 0),
        ("sys.exit(False)", 0),
        ("sys.exit(True)", 1),
        ("sys.exit(3)", 3),
        ("sys.exit(256)", 256),
        ("sys.exit(-1)", -1),
        ("exit(6)", 6),
        ("sys.exit('text')", 1),
        ("raise SystemExit(5)", 5),
        ("def f():\n    sys.exit(7)\nf()", 7),
        ("try:\n    sys.exit(8)\nfinally:\n    print('finally')", 8),
    ] {
        let outcome = bench
            .cell(format!("import sys\nprint('before')\n{code}\nprint('after')"))
            .await?;
        let status = if exit_code == 0 { Status::Success } else { Status::Error };
        ended(&outcome, status, Some(exit_code))?;
        let output = outcome.output.as_str();
        let is_right = output.starts_with("before\n") && !output.contains("after") && !output.contains("Traceback");
        holds(&format!("what was printed before {code} alone"), is_right, output)?;
        equal("that there is an error", &outcome.error.is_some(), &(exit_code != 0))?;
        equal(
            "state_lost",
            &outcome.kernel.map(|kernel| kernel.state_lost),
            &Some(false),
        )?;
        if code.contains("text") {
            equal("output", output, "before\n--- stderr ---\ntext\n")?;
        }
    }
    Ok(())
}

async fn a_cell_whose_process_is_gone(bench: &Bench) -> Checked {
    for (code, exit_code, named) in [
        ("os._exit(0)", 0, "exited with 0"),
        ("os._exit(3)", 3, "exited with 3"),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("os.abort()", 134, "SIGABRT"),
    ] {
        let outcome = bench.cell(format!("import os\nprint('before')\n{code}")).await?;
        ended(&outcome, Status::Error, Some(exit_code))?;
        equal("output", outcome.output.as_str(), "before\n")?;
        contains("error", outcome.error.as_deref().unwrap_or_default(), &[named])?;
        state_is_lost(bench, &outcome)?;
    }
    Ok(())
}

async fn a_cell_that_ran_too_long(bench: &Bench) -> Checked {
    let code = "import time, sys\nfor i in range(10): print('line', i)\nprint('err', file=sys.stderr)\nprint('tail', end='')\ntime.sleep(60)";
    let outcome = bench.cell_for(2.0, code).await?;
    ended(&outcome, Status::Timeout, Some(124))?;
    let line = "Script timed out after 2s and was killed.";
    let output = outcome.output.as_str();
    holds("all that was printed", output.starts_with("line 0\nline 1\n"), output)?;
    let end = format!("line 9\ntail\n--- stderr ---\nerr\n{line}");
    holds(
        &format!("an output that ends with {end:?}"),
        output.ends_with(&end),
        output,
    )?;
    equal("error", &outcome.error.as_deref(), &Some(line))?;
    holds(
        "duration_seconds of 2 at least",
        outcome.duration_seconds >= 2.0,
        &outcome.duration_seconds,
    )?;
    contains(
        "the hint",
        outcome.hint.as_deref().unwrap_or_default(),
        &["more time (timeout)"],
    )?;
    state_is_lost(bench, &outcome)
}

async fn a_cell_that_was_cancelled(bench: &Bench) -> Checked {
    for reason in ["user sent a new message", "Ctrl-C"] {
        let cell = builtin("import time\nprint('before', flush=True)\ntime.sleep(60)");
        let outcome = bench.cancelled(cell, "before", reason).await?;
        ended(&outcome, Status::Interrupted, Some(130))?;
        let expected = format!("before\n[execution interrupted — {reason}]");
        equal("output", outcome.output.as_str(), expected.as_str())?;
        holds("an error", outcome.error.is_some(), &outcome)?;
        state_is_lost(bench, &outcome)?;
    }
    bench.prints("print(1)", "1\n").await
}

async fn a_cell_that_was_cancelled_before_it_began(bench: &Bench) -> Checked {
    let cell = builtin("open('ran', 'w')");
    cell.cancel.cancel("never mind");
    let outcome = bench.run(cell).await?;
    ended(&outcome, Status::Interrupted, Some(130))?;
    equal(
        "output",
        outcome.output.as_str(),
        "[execution interrupted — never mind]",
    )?;
    equal("kernel", &outcome.kernel, &None)?;
    bench.prints("import os\nprint(os.path.exists('ran'))", "False\n").await
}

async fn cells_that_are_refused(bench: &Bench) -> Checked {
    bench.ok("pass").await?;
    let mut zero = builtin("print(1)");
    zero.limits.timeout = Some(Duration::ZERO);
    let tool = allowing("print(1)", &["execute_code"]);
    for (cell, named) in [(builtin(""), "no code"), (zero, "timeout"), (tool, "execute_code")] {
        let outcome = bench.run(cell).await?;
        ended(&outcome, Status::Error, None)?;
        equal(
            "output and kernel",
            &(outcome.output.as_str(), &outcome.kernel),
            &("", &None),
        )?;
        contains("error", outcome.error.as_deref().unwrap_or_default(), &[named])?;
    }
    let next = bench.cell("print(1)").await?;
    equal(
        "reused",
        &next.kernel.map(|kernel| kernel.reused),
        &Some(bench.keeps_state()),
    )
}

async fn phases_are_time_before_the_script(bench: &Bench) -> Checked {
    let first = builtin("import time; time.sleep(1.5)");
    let mut second = builtin("print('second')");
    second.limits.timeout = Some(Duration::from_secs(1));
    let (first, second) = tokio::join!(bench.run(first), bench.run(second));
    let (first, second) = (first?, second?);
    equal(
        "phases.start of a new kernel",
        &first.phases.start.is_some(),
        &bench.keeps_state(),
    )?;
    holds(
        "duration_seconds of 1.5 at least",
        first.duration_seconds >= 1.5,
        &first,
    )?;
    // It waited longer than it may run, and that does not count.
    equal("the output of the cell that waited", second.output.as_str(), "second\n")?;
    holds(
        "phases.queue to be the time that it waited",
        second.phases.queue.is_some_and(|queue| queue > 1.0),
        &second,
    )?;
    let elsewhere = (second.phases.connect, second.phases.pull, second.phases.start);
    equal(
        "connect, pull and start of a later cell",
        &elsewhere,
        &(None, None, None),
    )
}

async fn the_notice_of_a_loss_names_its_reason(bench: &Bench) -> Checked {
    bench.ok("x = 1").await?;
    bench.cell("import os; os.kill(os.getpid(), 9)").await?;
    let next = bench.cell("print('x' in globals())").await?;
    equal("whether x is still there", next.output.as_str(), "False\n")?;
    contains(
        "notice",
        next.notice.as_deref().unwrap_or_default(),
        &["SIGKILL", "lost"],
    )?;
    let kernel = next.kernel.ok_or_else(|| failed("expected a kernel, seen none"))?;
    equal(
        "mode, reused, state_lost and execution_count",
        &(kernel.mode, kernel.reused, kernel.state_lost, kernel.execution_count),
        &(KernelMode::Session, false, false, 1),
    )?;
    let later = bench.cell("print(1)").await?.notice.unwrap_or_default();
    holds("no further word of it", !later.contains("SIGKILL"), &later)
}

async fn hints_name_the_next_step(bench: &Bench) -> Checked {
    for (code, expected) in [
        ("import numpy_of_nowhere.linalg", "-m pip install numpy_of_nowhere"),
        ("!pip install numpy", "terminal(\"pip install numpy\")"),
        ("print(terminal('ls'))", "from hermes_tools import terminal"),
        ("from hermes_tools import terminl", "terminal"),
        (
            "from hermes_tools import terminal\nterminal('true').strip()",
            "terminal(…)[\"output\"]",
        ),
        ("x = 5\nx + 1", "print("),
    ] {
        let hint = bench.cell(code).await?.hint.unwrap_or_default();
        contains(&format!("the hint for {code:?}"), &hint, &[expected])?;
    }
    for code in ["x = 5", "print(1)", "raise ValueError('x')", "import sys; sys.exit(1)"] {
        equal(&format!("the hint for {code:?}"), &bench.cell(code).await?.hint, &None)?;
    }
    Ok(())
}
