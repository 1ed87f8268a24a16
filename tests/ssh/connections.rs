//! Connections go at any moment; the cell does not notice.

use std::time::Duration;

use talaria_broker::session::{Cell, SessionOptions};

use crate::proxy::Proxy;
use crate::rig::Rig;
use crate::sessions::{BUSY, nothing_was_lost, noting, signal};

/// Runs [`BUSY`] while something is done to its connection again and again, and sees that it shows nowhere.
fn nothing_shows(rig: &Rig, options: &mut SessionOptions, mut harm: impl FnMut() -> bool) {
    let notes = noting(options);
    let session = rig.open(options.clone());
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    let mut harmed = 0;
    // What harms as fast as links are made leaves no time for the cell, on a machine that does much else.
    while !running.has_ended() && harmed < 4 {
        let mut random = [0];
        getrandom::fill(&mut random).unwrap();
        std::thread::sleep(Duration::from_millis(300 + 2 * u64::from(random[0])));
        harmed += u32::from(!running.has_ended() && harm());
    }
    let outcome = running.wait();
    let notice = outcome.notice.clone().unwrap_or_default();
    nothing_was_lost(outcome, &notes);
    assert!(notice.contains("made again while the cell ran"), "{notice}");
    assert!(harmed >= 2, "harmed {harmed} times only");
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

#[test]
fn the_sshd_of_a_connection_is_killed() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    nothing_shows(&rig, &mut options, || {
        let servers = rig.servers();
        servers.iter().filter(|seen| signal(seen.pid, "KILL")).count() > 0
    });
}

#[test]
fn the_master_connection_is_killed() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    nothing_shows(&rig, &mut options, || {
        let masters = rig.masters();
        masters.iter().filter(|seen| signal(seen.pid, "KILL")).count() > 0
    });
}

#[test]
fn the_connection_is_reset() {
    let Some(rig) = Rig::new() else { return };
    let proxy = Proxy::to(rig.port);
    let mut options = rig.options_of(rig.through(&proxy));
    nothing_shows(&rig, &mut options, || proxy.reset());
}

/// What takes the time is to notice it: nobody says anything.
#[test]
#[ignore = "takes half a minute"]
fn the_master_connection_is_stopped() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    std::thread::sleep(Duration::from_millis(500));
    for seen in rig.masters() {
        assert!(signal(seen.pid, "STOP"));
    }
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

/// As after a night in another network: nobody says that the connection is dead, and to notice it takes some time.
#[test]
fn the_connection_is_dead_and_says_nothing() {
    let Some(rig) = Rig::new() else { return };
    let proxy = Proxy::to(rig.port);
    let mut options = rig.options_of(rig.through(&proxy));
    options.reconnect_timeout = Duration::from_secs(30);
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    std::thread::sleep(Duration::from_millis(500));
    proxy.forget();
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

/// Logging in takes longer than all else that a link is made of: it is waited for as long as is set.
#[test]
#[ignore = "takes half a minute"]
fn a_login_that_takes_long_comes_back_too() {
    let Some(rig) = Rig::new() else { return };
    let slow = rig.path("slow");
    let mut ssh = rig.ssh_options();
    ssh.connect_timeout = Duration::from_secs(60);
    rig.add_client(
        &mut ssh,
        &format!("test ! -e {} || sleep 25\nexec /usr/bin/ssh \"$@\"", slow.display()),
    );
    let mut options = rig.options_of(ssh);
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&slow, "").unwrap();
    for seen in rig.masters() {
        assert!(signal(seen.pid, "KILL"));
    }
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

/// The network is silent for less than it takes to notice, and for longer.
#[test]
#[ignore = "takes half a minute"]
fn the_network_is_silent_for_a_while() {
    let Some(rig) = Rig::new() else { return };
    let proxy = Proxy::to(rig.port);
    let mut options = rig.options_of(rig.through(&proxy));
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    for seconds in [2, 17] {
        std::thread::sleep(Duration::from_millis(500));
        proxy.fall_silent();
        std::thread::sleep(Duration::from_secs(seconds));
        proxy.go_on();
    }
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}
