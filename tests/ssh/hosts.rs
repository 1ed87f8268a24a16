//! The host ends, is started anew, or ends what a login leaves.

use std::time::{Duration, Instant};

use talaria_broker::config::Transport;
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::proxy::Proxy;
use crate::rig::{Rig, TARGET};
use crate::sessions::{signal, succeeded, wait};

/// A cell that ends when it is ended, and has something detached.
const LASTING: &str = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '777'])\n\
    print('begun', flush=True)\nwhile True: time.sleep(0.1)";

fn has_begun(rig: &Rig) -> bool {
    rig.there().iter().any(|seen| seen.command.contains("sleep 777"))
}

#[test]
fn a_host_that_does_not_come_back() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    options.reconnect_timeout = Duration::from_secs(2);
    options.lease = Duration::from_secs(4);
    let session = rig.open(options);
    session.ok("kept = 1");
    let running = session.start(Cell::new(LASTING));
    wait("the cell", || has_begun(&rig));
    let servers = rig.servers();
    rig.stop();
    let began = Instant::now();
    for seen in servers {
        signal(seen.pid, "KILL");
    }
    let outcome = running.wait();
    assert!(began.elapsed() < Duration::from_secs(60), "{outcome:#?}");
    // How the script ended nobody knows.
    assert_eq!((outcome.status, outcome.exit_code), (Status::Error, None));
    // Nothing but what had come, and in its order.
    assert!("begun\n".starts_with(&outcome.output), "{outcome:#?}");
    let error = outcome.error.unwrap();
    assert!(
        error.contains("did not come back within 2s") && error.contains("Connection refused"),
        "{error}"
    );
    wait("the lease to end what runs there", || {
        rig.there().is_empty() && rig.folders().is_empty()
    });
    let refused = session.cell("print(kept)").error.unwrap();
    assert!(refused.contains("Connection refused"), "{refused}");
    assert!(rig.start());
    let outcome = session.cell("print('kept' in globals())");
    let notice = outcome.notice.clone().unwrap_or_default();
    assert_eq!(succeeded(outcome), "False\n");
    assert!(notice.contains("are lost (the connection to"), "{notice}");
    rig.close();
}

#[test]
fn a_host_that_is_started_anew() {
    let Some(rig) = Rig::that_starts("box") else { return };
    let session = rig.open(rig.options());
    session.ok("kept = 1");
    let running = session.start(Cell::new(LASTING));
    wait("the cell", || has_begun(&rig));
    // It is asked beside the cell which start of the host this is.
    std::thread::sleep(Duration::from_secs(1));
    // What lies on a disk is still there after a start.
    let servers = rig.servers();
    rig.stop();
    for seen in servers {
        signal(seen.pid, "KILL");
    }
    rig.kill_all_there();
    assert!(rig.start());
    let outcome = running.wait();
    assert_eq!(outcome.status, Status::Error, "{outcome:#?}");
    assert!(outcome.kernel.unwrap().state_lost);
    let error = outcome.error.unwrap();
    assert!(
        error.contains("it was started anew, and what ran there is gone"),
        "{error}"
    );
    rig.clear_memory();
    let outcome = session.cell("print('kept' in globals())");
    let notice = outcome.notice.clone().unwrap_or_default();
    assert_eq!(succeeded(outcome), "False\n");
    assert!(notice.contains("it was started anew"), "{notice}");
    rig.close();
}

/// Two machines behind one address, as a name or a balancer of load may lead to them.
#[test]
fn a_name_that_leads_to_another_machine() {
    let (Some(rig), Some(other)) = (Rig::that_starts("box-a"), Rig::that_starts("box-b")) else {
        return;
    };
    other.stop();
    for file in ["host", "host.pub", "authorized_keys"] {
        std::fs::copy(rig.path(file), other.path(file)).unwrap();
    }
    assert!(other.start());
    let proxy = Proxy::to(rig.port);
    let session = rig.open(rig.options_of(rig.through(&proxy)));
    session.ok("kept = 1");
    let running = session.start(Cell::new(LASTING));
    wait("the cell", || has_begun(&rig));
    // It is asked beside the cell which machine this is.
    std::thread::sleep(Duration::from_secs(1));
    proxy.lead_to(other.port);
    assert!(proxy.reset());
    let outcome = running.wait();
    assert_eq!(outcome.status, Status::Error, "{outcome:#?}");
    let error = outcome.error.unwrap();
    assert!(
        error.contains("another machine answers there now (box-b, and not box-a"),
        "{error}"
    );
    assert_eq!(session.ok("print('kept' in globals())"), "False\n");
    rig.kill_all_there();
    rig.clear_memory();
    rig.close();
    other.nothing_is_left();
}

/// A host with a `logind` that is set to end what logins leave, or not: it answers, and the test does what it would do.
fn with_logind(kills: &str, lines: &[&str]) -> Option<Rig> {
    let rig = Rig::with(lines)?;
    let said = format!("KillUserProcesses={kills}\\nKillExcludeUsers=daemon\\nKillOnlyUsers=\\n");
    rig.add_tool("loginctl", &format!("#!/bin/sh\nprintf '{said}'\n"));
    Some(rig)
}

#[test]
fn a_host_that_ends_what_a_login_leaves_is_named() {
    for (transport, clears) in [(Transport::Stream, true), (Transport::Polled, false)] {
        let Some(rig) = with_logind("yes", &[]) else { return };
        let mut options = rig.options();
        options.transport = transport;
        let session = rig.open(options);
        session.ok("kept = 1");
        let running = session.start(Cell::new(LASTING));
        wait("the cell", || has_begun(&rig));
        // A login that comes in the midst of it is ended too.
        rig.kill_all_there();
        if clears {
            rig.clear_memory();
        }
        let outcome = running.wait();
        assert_eq!(outcome.status, Status::Error, "{outcome:#?}");
        let error = outcome.error.unwrap();
        for word in ["KillUserProcesses=yes", "loginctl enable-linger"] {
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(session.ok("print('kept' in globals())"), "False\n");
        rig.close();
    }
}

#[test]
fn doctor_tells_how_it_got_in_and_what_is_there() {
    let Some(rig) = Rig::new() else { return };
    let done = rig.cli(&["doctor", TARGET]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let key = rig.path("user").display().to_string();
    for (line, word) in [
        ("ok    ssh here: ", "OpenSSH_"),
        ("ok    sshd there: ", "OpenSSH_"),
        ("ok    login: ", &key),
        ("ok    host: ", node.trim()),
        ("ok    account: ", "home /"),
        ("ok    login shell: ", "/"),
        ("ok    room in ", "free"),
        ("ok    load: ", "processors"),
    ] {
        let found = text
            .lines()
            .any(|found| found.starts_with(line) && found.contains(word));
        assert!(found, "{line}{word}: {text}");
    }
    assert!(done.status.success(), "{text}");
    rig.nothing_is_left();
}

#[test]
fn doctor_names_a_host_that_ends_what_a_login_leaves() {
    for (kills, sessions) in [
        ("yes", "MaxSessions 9"),
        ("no", "MaxSessions 9"),
        ("yes", "MaxSessions 1"),
    ] {
        let Some(rig) = with_logind(kills, &[sessions]) else {
            return;
        };
        let done = rig.cli(&["doctor", TARGET]).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        let is_named = text.contains("warn  connection: ") && text.contains("loginctl enable-linger");
        assert_eq!(is_named, kills == "yes", "{text}");
        assert!(done.status.success(), "{text}");
        rig.nothing_is_left();
    }
}
