//! Every row of the outcome's table, and every field.

use std::time::Duration;

use serde_json::Value;
use talaria_broker::outcome::{KernelMode, Outcome, Status};
use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_cell_that_ran_to_its_end,
    fields_are_there_always_or_when_they_apply,
    stderr_of_a_success_stands_apart,
    a_cell_that_raised,
    a_cell_that_left,
    a_cell_whose_process_is_gone,
    a_cell_that_ran_too_long,
    a_cell_that_was_cancelled,
    a_cell_that_was_cancelled_before_it_began,
    cells_that_are_refused,
    phases_are_time_before_the_script,
    admitted_calls_are_counted,
    the_notice_of_a_loss_names_its_reason,
];

fn json(outcome: &Outcome) -> Value {
    serde_json::to_value(outcome).unwrap()
}

/// What the outcome of a cell that ended its kernel says, and what the next one does.
fn state_is_lost(rig: &Rig, outcome: &Outcome) {
    let error = outcome.error.as_deref().unwrap();
    let kernel = outcome.kernel.as_ref().unwrap();
    // A standalone script has no state that it could lose.
    assert_eq!(kernel.state_lost, rig.keeps_state, "{outcome:#?}");
    if kernel.state_lost && outcome.status == Status::Error {
        assert!(error.contains("variables and imports are lost"), "{error}");
    }
    if !rig.keeps_state {
        assert!(!error.contains("lost"), "{error}");
    }
}

fn a_cell_that_ran_to_its_end(rig: &Rig) {
    let outcome = rig.session().cell("print('x')");
    assert_eq!((outcome.status, outcome.exit_code), (Status::Success, Some(0)));
    assert_eq!((outcome.output.as_str(), outcome.stdout_bytes_total), ("x\n", 2));
}

fn fields_are_there_always_or_when_they_apply(rig: &Rig) {
    let session = rig.session();
    session.ok("pass");
    let outcome = json(&session.cell("print('x')"));
    let mut keys: Vec<&str> = outcome.as_object().unwrap().keys().map(String::as_str).collect();
    if !rig.keeps_state {
        assert!(
            outcome["notice"].as_str().unwrap().contains("standalone script"),
            "{outcome:#}"
        );
        keys.retain(|key| *key != "notice");
    }
    let always = [
        "status",
        "output",
        "exit_code",
        "tool_calls_made",
        "duration_seconds",
        "stdout_bytes_total",
        "target",
        "kernel",
    ];
    assert_eq!(keys, always);
    assert_eq!(outcome["status"], "success");
    assert_eq!(outcome["target"], rig.target.name);
    let kernel = outcome["kernel"].as_object().unwrap();
    let keys: Vec<&str> = kernel.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["mode", "reused", "execution_count", "state_lost", "python", "transport"]
    );
    assert_eq!(kernel["mode"], if rig.keeps_state { "session" } else { "one-shot" });
    assert_eq!(kernel["transport"], rig.target.transport_in_outcomes());
    assert_eq!(kernel["reused"], rig.keeps_state);
    assert_eq!(kernel["execution_count"], if rig.keeps_state { 2 } else { 1 });
    let found = kernel["python"].as_str().unwrap();
    assert!(found.starts_with(&format!("{} (3.", rig.python().display())), "{found}");
    let refused = json(&session.cell(" "));
    for key in always {
        assert!(refused.get(key).is_some(), "{key}: {refused:#}");
    }
    assert_eq!(
        (&refused["kernel"], &refused["exit_code"]),
        (&Value::Null, &Value::Null)
    );
}

fn stderr_of_a_success_stands_apart(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out')");
    assert_eq!(
        (outcome.output.as_str(), outcome.stderr.as_deref()),
        ("out\nout\n", Some("err\n"))
    );
    assert_eq!(outcome.stdout_bytes_total, 8);
    assert_eq!(session.cell("print(1)").stderr, None);
}

fn a_cell_that_raised(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("import sys\nprint('out', end='')\nprint('err', file=sys.stderr)\n{}['k']");
    assert_eq!((outcome.status, outcome.exit_code), (Status::Error, Some(1)));
    let start = "out\n--- stderr ---\nerr\nTraceback (most recent call last):\n";
    assert!(outcome.output.starts_with(start), "{outcome:#?}");
    assert!(
        outcome.output.contains(", line 4, in <module>\n    {}['k']\n"),
        "{outcome:#?}"
    );
    assert!(outcome.output.ends_with("\nKeyError: 'k'\n"), "{outcome:#?}");
    assert_eq!(outcome.error.as_deref(), Some("KeyError: 'k'"));
    assert_eq!(outcome.stderr, None);
    assert_eq!(outcome.stdout_bytes_total, 3);
    assert!(!outcome.kernel.unwrap().state_lost);
}

fn a_cell_that_left(rig: &Rig) {
    let session = rig.session();
    for (code, exit_code) in [
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(None)", 0),
        ("sys.exit(False)", 0),
        ("sys.exit(True)", 1),
        ("sys.exit(3)", 3),
        ("sys.exit(256)", 256),
        ("sys.exit(-1)", -1),
        ("sys.exit('text')", 1),
        ("raise SystemExit(5)", 5),
        ("exit(6)", 6),
        ("def f():\n    sys.exit(7)\nf()", 7),
        ("try:\n    sys.exit(8)\nfinally:\n    print('finally')", 8),
    ] {
        let outcome = session.cell(format!("import sys\nprint('before')\n{code}\nprint('after')"));
        let status = if exit_code == 0 { Status::Success } else { Status::Error };
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (status, Some(exit_code)),
            "{code}: {outcome:#?}"
        );
        assert!(
            outcome.output.starts_with("before\n") && !outcome.output.contains("after"),
            "{outcome:#?}"
        );
        assert!(!outcome.output.contains("Traceback"), "{outcome:#?}");
        assert_eq!(outcome.error.is_some(), exit_code != 0, "{outcome:#?}");
        assert!(!outcome.kernel.unwrap().state_lost);
        if code.contains("text") {
            assert_eq!(outcome.output, "before\n--- stderr ---\ntext\n");
            assert_eq!(outcome.error.as_deref(), Some("text"));
        }
    }
}

fn a_cell_whose_process_is_gone(rig: &Rig) {
    let session = rig.session();
    for (code, exit_code, named) in [
        ("os._exit(0)", 0, "exited with 0"),
        ("os._exit(3)", 3, "exited with 3"),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("os.abort()", 134, "SIGABRT"),
    ] {
        let outcome = session.cell(format!("import os\nprint('before')\n{code}"));
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, Some(exit_code)),
            "{outcome:#?}"
        );
        assert_eq!(outcome.output, "before\n", "{outcome:#?}");
        assert!(outcome.error.as_deref().unwrap().contains(named), "{outcome:#?}");
        state_is_lost(rig, &outcome);
    }
}

fn a_cell_that_ran_too_long(rig: &Rig) {
    let session = rig.session();
    let outcome = session.file("print('x')");
    assert_eq!(outcome.status, Status::Success);
    let outcome = session.cell_for(
        3.0,
        "import time, sys\nfor i in range(10): print('line', i)\nprint('err', file=sys.stderr)\nprint('tail', end='')\ntime.sleep(60)",
    );
    assert_eq!((outcome.status, outcome.exit_code), (Status::Timeout, Some(124)));
    let line = "Script timed out after 3s and was killed.";
    assert!(outcome.output.starts_with("line 0\nline 1\n"), "{outcome:#?}");
    let end = format!("line 9\ntail\n--- stderr ---\nerr\n{line}");
    assert!(outcome.output.ends_with(&end), "{outcome:#?}");
    assert_eq!(outcome.error.as_deref(), Some(line));
    assert!(
        outcome
            .hint
            .as_ref()
            .is_some_and(|hint| hint.contains("more time (timeout)")),
        "{outcome:#?}"
    );
    assert!(outcome.duration_seconds >= 3.0);
    state_is_lost(rig, &outcome);
}

fn a_cell_that_was_cancelled(rig: &Rig) {
    let session = rig.session();
    for (reason, said) in [(None, "user sent a new message"), (Some("Ctrl-C"), "Ctrl-C")] {
        let cell = Cell::new("import time, os\nprint('before')\nopen('began', 'w').close()\ntime.sleep(60)");
        let cancel = cell.cancel.clone();
        let running = session.start(cell);
        let began = rig.work().join("began");
        assert!(crate::observe::wait_until(crate::rig::HANG, || began.exists()));
        match reason {
            Some(reason) => cancel.cancel(reason),
            None => cancel.cancel("user sent a new message"),
        }
        let outcome = running.wait();
        assert_eq!((outcome.status, outcome.exit_code), (Status::Interrupted, Some(130)));
        assert_eq!(outcome.output, format!("before\n[execution interrupted — {said}]"));
        assert!(outcome.error.is_some());
        state_is_lost(rig, &outcome);
        std::fs::remove_file(began).unwrap();
    }
    assert_eq!(session.ok("print(1)"), "1\n");
}

fn a_cell_that_was_cancelled_before_it_began(rig: &Rig) {
    let session = rig.session();
    let cell = Cell::new("open('ran', 'w')");
    cell.cancel.cancel("never mind");
    let outcome = session.run(cell);
    assert_eq!((outcome.status, outcome.exit_code), (Status::Interrupted, Some(130)));
    assert_eq!(outcome.output, "[execution interrupted — never mind]");
    assert_eq!(outcome.kernel, None);
    assert!(!rig.work().join("ran").exists());
}

fn cells_that_are_refused(rig: &Rig) {
    let session = rig.session();
    session.ok("pass");
    let mut zero = Cell::new("print(1)");
    zero.limits.timeout = Some(Duration::ZERO);
    let mut tool = Cell::new("print(1)");
    tool.allowed_tools = Some(vec!["execute_code".to_owned()]);
    for (cell, named) in [(Cell::new(""), "no code"), (zero, "timeout"), (tool, "execute_code")] {
        let outcome = session.run(cell);
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, None),
            "{outcome:#?}"
        );
        assert_eq!((outcome.output.as_str(), &outcome.kernel), ("", &None));
        assert!(outcome.error.unwrap().contains(named));
    }
    let next = session.cell("print(1)");
    assert_eq!(next.kernel.unwrap().reused, rig.keeps_state);
    let absent = rig.session_with(|options| options.python = Some("/nowhere/python3".into()));
    let outcome = absent.cell("print(1)");
    assert_eq!(
        (outcome.status, outcome.exit_code, &outcome.kernel),
        (Status::Error, None, &None)
    );
    assert!(outcome.error.unwrap().contains("/nowhere/python3"));
}

fn phases_are_time_before_the_script(rig: &Rig) {
    let session = rig.session();
    let mut first = Cell::new("import time; time.sleep(1.5)");
    first.limits.timeout = Some(Duration::from_secs(60));
    let first = session.start(first);
    std::thread::sleep(Duration::from_millis(300));
    let mut second = Cell::new("print('second')");
    second.limits.timeout = Some(Duration::from_secs(1));
    let second = session.run(second);
    let first = first.wait();
    assert!(
        first.phases.connect.is_some() && first.phases.pull.is_none(),
        "{first:#?}"
    );
    assert_eq!(first.phases.start.is_some(), rig.keeps_state, "{first:#?}");
    assert!(first.duration_seconds >= 1.5);
    // It waited longer than it may run, and that does not count.
    assert_eq!(second.output, "second\n");
    assert!(second.phases.queue.unwrap() > 0.5, "{second:#?}");
    assert!(
        second.phases.connect.is_none() && second.phases.start.is_none(),
        "{second:#?}"
    );
    assert!(second.duration_seconds < second.phases.queue.unwrap());
}

fn admitted_calls_are_counted(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| {
        options.host = tools.clone();
        options.limits.max_tool_calls = 3;
    });
    let outcome = session.cell(
        "from hermes_tools import echo, _call, fail
print(_call('nothing', {})['error'])
print('error' in _call('echo', {'wrong': 1}))
fail()
print([('error' in echo(i)) for i in range(4)])",
    );
    assert_eq!(outcome.tool_calls_made, 3, "{outcome:#?}");
    assert!(
        outcome
            .output
            .starts_with("nothing is not available in scripts; available: "),
        "{outcome:#?}"
    );
    assert!(
        outcome.output.ends_with("True\n[False, False, True, True]\n"),
        "{outcome:#?}"
    );
    assert_eq!(tools.calls("echo").len(), 2);
    assert_eq!(session.cell("print(1)").tool_calls_made, 0);
}

fn the_notice_of_a_loss_names_its_reason(rig: &Rig) {
    let session = rig.session();
    session.ok("x = 1");
    session.cell("import os; os.kill(os.getpid(), 9)");
    let next = session.cell("print('x' in globals())");
    assert_eq!(next.output, "False\n");
    let notice = next.notice.unwrap();
    let kernel = next.kernel.unwrap();
    assert!(!kernel.reused && !kernel.state_lost && kernel.execution_count == 1);
    if rig.keeps_state {
        assert_eq!(kernel.mode, KernelMode::Session);
        assert!(notice.contains("SIGKILL"), "{notice}");
        assert_eq!(session.cell("print(1)").notice, None);
    } else {
        assert_eq!(kernel.mode, KernelMode::OneShot);
        assert!(!notice.contains("SIGKILL"), "{notice}");
    }
}
