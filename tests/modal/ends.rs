//! Sandboxes that end: which way is said, and that state was lost.

use std::time::Duration;

use serde_json::json;
use talaria_broker::backends::TargetState;
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::rig::{Rig, pause};

const WAYS: [(&str, &str); 4] = [
    ("timeout", "reached the end of its life"),
    ("idle", "nothing ran in it"),
    ("oom", "ran out of memory"),
    ("terminated", "was terminated from outside"),
];

#[test]
fn a_sandbox_that_ended_between_cells_is_told_and_another_takes_its_place() {
    let Some(rig) = Rig::new() else { return };
    let session = rig.session();
    session.ok("x = 1");
    for (how, words) in WAYS {
        let [sandbox] = &rig.modal.alive()[..] else {
            panic!("{:?}", rig.modal.sandboxes())
        };
        rig.modal.end(sandbox, how);
        pause(500);
        let outcome = session.cell("print('x' in dir()); x = 1");
        let notice = outcome.notice.clone().unwrap_or_default();
        let (status, output) = (outcome.status, outcome.output.as_str());
        assert_eq!((status, output), (Status::Success, "False\n"), "{how}: {outcome:#?}");
        assert!(notice.contains(words) && notice.contains("are lost"), "{how}: {notice}");
    }
    rig.end();
}

#[test]
fn a_sandbox_that_ends_under_a_cell_is_told() {
    let Some(rig) = Rig::new() else { return };
    let session = rig.session();
    for (how, words) in WAYS {
        session.ok("import time");
        let running = session.start(Cell::new("time.sleep(60)"));
        pause(300);
        rig.modal.end(&rig.modal.alive()[0], how);
        let outcome = running.wait();
        let error = outcome.error.clone().unwrap_or_default();
        assert!(
            outcome.status == Status::Error && error.contains(words),
            "{how}: {outcome:#?}"
        );
        assert!(!outcome.notice.unwrap_or_default().contains("made again"), "{how}");
    }
    rig.end();
}

#[test]
fn a_worker_that_is_gone_is_told() {
    let Some(rig) = Rig::new() else { return };
    let session = rig.session();
    session.ok("x = 1");
    rig.modal.ask("POST", "/worker/kill", None);
    pause(1000);
    let outcome = session.cell("print('x' in dir())");
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "False\n"),
        "{outcome:#?}"
    );
    rig.end();
}

#[test]
fn the_end_of_a_life_is_told_before_and_after_it_comes() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    options.lifetime = Duration::from_secs(4);
    let session = crate::sessions::Live::open(&rig.broker, &rig.runtime, rig.session_on(options));
    assert_eq!(session.cell("x = 1").notice, None);
    pause(3300);
    let outcome = session.cell("print(x)");
    let notice = outcome.notice.unwrap_or_default();
    assert!(
        notice.contains("ends in") && notice.contains("(modal_lifetime)"),
        "{notice}"
    );
    crate::sessions::wait("the sandbox to end", || rig.modal.alive().is_empty());
    let notice = session.cell("x = 1").notice.unwrap_or_default();
    assert!(
        notice.contains("the end of its life of 4s (modal_lifetime)"),
        "{notice}"
    );
    rig.end();
}

#[test]
fn what_stays_and_what_exists_is_not_ended() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    options.keep = true;
    let session = crate::sessions::Live::open(&rig.broker, &rig.runtime, rig.session_on(options));
    let notice = session
        .cell("open('/root/left', 'w').write('behind')")
        .notice
        .unwrap_or_default();
    let id = rig.modal.alive().remove(0);
    assert!(notice.contains(&format!("modal://{id}")), "{notice}");
    assert_eq!(session.cell("pass").notice, None, "it is said once");
    rig.wait_for(session.session.close());
    assert_eq!(rig.modal.alive(), std::slice::from_ref(&id));
    let backend = talaria_broker::backends::modal::ModalSandbox::new("modal://x", &id, rig.sources());
    let again = crate::sessions::Live::open(&rig.broker, &rig.runtime, rig.session_by(std::sync::Arc::new(backend)));
    assert_eq!(again.ok("print(open('/root/left').read())"), "behind\n");
    rig.wait_for(again.session.close());
    assert_eq!(rig.modal.alive(), std::slice::from_ref(&id));
    rig.modal.end(&id, "terminated");
    rig.end();
}

#[test]
fn a_session_that_is_dropped_ends_its_sandbox() {
    let Some(rig) = Rig::new() else { return };
    let session = rig.session();
    session.ok("pass");
    drop(session);
    crate::sessions::wait("the sandbox to end", || rig.modal.alive().is_empty());
    rig.end();
}

#[test]
fn a_sandbox_says_how_it_is() {
    let Some(rig) = Rig::new() else { return };
    let target = rig.open(rig.options()).unwrap();
    let state = |target: &std::sync::Arc<dyn talaria_broker::backends::Target>| rig.wait_for(target.state());
    assert!(matches!(state(&target), TargetState::Running { .. }));
    rig.modal.faults(json!([{"fault": "down", "which": "control"}]));
    rig.modal
        .ask("POST", "/connections/break", Some(json!({"which": "control"})));
    assert!(matches!(state(&target), TargetState::Unreachable(_)));
    rig.modal.faults(json!([]));
    assert!(matches!(state(&target), TargetState::Running { .. }));
    let shown: Vec<_> = target.about().into_iter().map(|(what, _)| what).collect();
    assert_eq!(shown, ["modal", "sandbox", "worker", "app", "image", "life"]);
    rig.wait_for(target.close()).unwrap();
    assert!(matches!(state(&target), TargetState::Gone(how) if how.contains("terminated")));
    rig.end();
}
