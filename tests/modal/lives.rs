//! What sandboxes are made with, of both generations, and what of ours an account holds.

use std::process::{Command, Stdio};

use serde_json::json;
use talaria_broker::backends::modal::{Gpu, ModalAccount};
use talaria_broker::backends::owner::Fate;

use crate::rig::Rig;
use crate::sessions::{Live, wait};

#[test]
fn a_sandbox_is_as_it_was_asked_for() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    options.app = "lab".to_owned();
    options.cpus = Some(1.5);
    options.memory = Some(2 << 30);
    options.regions = vec!["us-east".to_owned()];
    options.is_blocked = true;
    options.variables = [("GREETING".to_owned(), "hello there".to_owned())].into();
    let session = Live::open(&rig.broker, &rig.runtime, rig.session_on(options));
    assert_eq!(session.ok("import os; print(os.environ['GREETING'])"), "hello there\n");
    session.ok("import socket\ntry: socket.create_connection(('127.0.0.1', 9), 2)\nexcept OSError: pass");
    let made = &rig.modal.sandboxes()[0];
    assert_eq!(
        (&made["app_name"], &made["memory"]),
        (&json!("lab"), &json!(2048)),
        "{made}"
    );
    assert_eq!(
        (&made["regions"], &made["blocked"]),
        (&json!(["us-east"]), &json!(true)),
        "{made}"
    );
    assert!(made["name"].as_str().unwrap().starts_with("talaria-"));
    rig.end();
}

#[test]
fn graphics_processors_and_servers_of_old_need_the_older_generation() {
    let Some(rig) = Rig::new() else { return };
    for is_old in [false, true] {
        let mut faults = vec![json!({"fault": "task_id", "seconds": 0.7})];
        if is_old {
            faults.push(json!({"fault": "status", "method": "SandboxCreateV2", "code": "UNIMPLEMENTED"}));
        }
        rig.modal.faults(faults.into());
        let mut options = rig.options();
        options.gpu = (!is_old).then(|| Gpu::parse("A100").unwrap());
        options.variables = [("GREETING".to_owned(), "hello".to_owned())].into();
        let session = Live::open(&rig.broker, &rig.runtime, rig.session_on(options));
        assert_eq!(session.ok("import os; print(os.environ['GREETING'])"), "hello\n");
        let alive = rig.modal.alive().remove(0);
        let made = rig
            .modal
            .sandboxes()
            .into_iter()
            .find(|one| one["id"] == alive)
            .unwrap();
        assert_eq!((&made["newer"], made["gpu"] != ""), (&json!(false), !is_old), "{made}");
        rig.modal.end(&alive, "idle");
        crate::rig::pause(500);
        let notice = session.cell("pass").notice.unwrap_or_default();
        assert!(notice.contains("nothing ran in it"), "{notice}");
        rig.wait_for(session.session.close());
        assert!(rig.modal.alive().is_empty());
    }
    rig.end();
}

#[test]
fn what_is_given_up_while_it_is_made_is_not_left() {
    let Some(rig) = Rig::new() else { return };
    rig.modal
        .faults(json!([{"fault": "late", "method": "SandboxCreateV2", "seconds": 1, "count": 1}]));
    let session = rig.session();
    let cell = talaria_broker::session::Cell::new("print(1)");
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    wait("the sandbox to be asked for", || {
        !rig.modal.calls("SandboxCreateV2").is_empty()
    });
    cancel.cancel("enough");
    running.wait();
    rig.wait_for(session.session.close());
    wait("the sandbox to be made", || !rig.modal.sandboxes().is_empty());
    wait("the sandbox to end", || rig.modal.alive().is_empty());
    rig.end();
}

#[test]
fn those_of_dead_owners_are_found_and_ended() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([{"fault": "page", "size": 2}]));
    let mine: Vec<_> = (0..3).map(|_| rig.open(rig.options()).unwrap()).collect();
    let mut other = Command::new(env!("CARGO_BIN_EXE_talaria"))
        .args([
            "run",
            "--on",
            "modal",
            "-c",
            "import time; print('on', flush=True); time.sleep(60)",
        ])
        .env_clear()
        .envs(rig.modal.variables())
        .env("HOME", rig.shared.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait("the other broker's sandbox", || rig.modal.alive().len() == 4);
    other.kill().unwrap();
    other.wait().unwrap();
    rig.wait_for(async {
        let account = ModalAccount::open(&rig.sources()).await.unwrap();
        let ours = account.list().await.unwrap();
        let count = |fate| ours.iter().filter(|one| one.fate() == fate).count();
        assert_eq!(
            (ours.len(), count(Fate::Alive), count(Fate::Ended)),
            (4, 3, 1),
            "{ours:#?}"
        );
        for orphan in ours.iter().filter(|one| one.is_orphan()) {
            account.terminate(&orphan.id).await.unwrap();
            account.terminate(&orphan.id).await.unwrap();
        }
    });
    assert_eq!(rig.modal.alive().len(), 3);
    for target in mine {
        rig.wait_for(target.close()).unwrap();
    }
    rig.end();
}
