//! Every row of the outcome's table, and every field.

use std::time::Duration;

use serde_json::Value;
use talaria_broker::outcome::{KernelMode, Outcome, Status};
use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    fields_are_there_always_or_when_they_apply,
    cells_that_are_refused,
    phases_are_time_before_the_script,
    the_notice_of_a_loss_names_its_reason,
];

fn json(outcome: &Outcome) -> Value {
    serde_json::to_value(outcome).unwrap()
}

fn fields_are_there_always_or_when_they_apply(rig: &Rig) {
    let session = rig.session();
    session.ok("pass");
    let outcome = json(&session.cell("print('x')"));
    let mut keys: Vec<&str> = outcome.as_object().unwrap().keys().map(String::as_str).collect();
    // A busy machine may have kept it waiting.
    keys.retain(|key| *key != "phases");
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
