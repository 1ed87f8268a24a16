//! Hosts that let few connections in, or few commands over one.

use std::os::unix::fs::PermissionsExt;

use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::sessions::{BUSY, nothing_was_lost, noting, signal, succeeded, wait};

/// What ends processes, and looks for the host, needs a command of its own beside the one that carries the session.
#[test]
fn few_commands_over_one_connection() {
    for limit in [1, 2] {
        let Some(rig) = Rig::with(&[&format!("MaxSessions {limit}")]) else {
            return;
        };
        let mut options = rig.options();
        let notes = noting(&mut options);
        let session = rig.open(options);
        session.ok("kept = 'kept'");
        let running = session.start(Cell::new(BUSY));
        std::thread::sleep(std::time::Duration::from_millis(500));
        for seen in rig.servers() {
            signal(seen.pid, "KILL");
        }
        nothing_was_lost(running.wait(), &notes);
        assert_eq!(session.ok("print(kept)"), "kept\n");
        rig.close();
    }
}

/// A command that hangs takes the only place that there is for one that would end it.
#[test]
fn a_command_that_hangs_is_ended_where_one_connection_carries_one() {
    let Some(rig) = Rig::with(&["MaxSessions 1"]) else {
        return;
    };
    let python = rig.path("home/python");
    std::fs::write(&python, "#!/bin/sh\nsleep 998 & wait\n").unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = rig.options();
    options.python = Some(python);
    let session = rig.open(options);
    let cell = Cell::new("pass");
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    wait("the interpreter", || {
        rig.there().iter().any(|seen| seen.command.contains("sleep 998"))
    });
    cancel.cancel("Ctrl-C");
    assert_eq!(running.wait().status, Status::Interrupted);
    rig.close();
}

#[test]
fn several_sessions_on_one_host_and_more_logins_than_it_lets_in_at_once() {
    let Some(rig) = Rig::with(&["MaxStartups 2:100:2"]) else {
        return;
    };
    let sessions: Vec<_> = (0..6).map(|_| rig.open(rig.options())).collect();
    let cells: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(n, session)| session.start(Cell::new(format!("kept = {n}"))))
        .collect();
    for running in cells {
        succeeded(running.wait());
    }
    assert!(rig.log().contains("MaxStartups"), "{}", rig.log());
    for (n, session) in sessions.iter().enumerate() {
        // The longest idle of them had to make room.
        let outcome = session.cell("print(globals().get('kept'))");
        let printed = succeeded(outcome.clone());
        let is_lost = !outcome.kernel.unwrap().reused;
        assert_eq!(printed, if is_lost { "None\n".to_owned() } else { format!("{n}\n") });
    }
    rig.close();
}
