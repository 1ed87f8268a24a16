//! The way between broker and cell breaks, stalls and stands still; the cell does not notice.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use talaria_broker::bundle;
use talaria_broker::config::Transport;
use talaria_broker::outcome::Status;
use talaria_broker::session::{Cell, SessionOptions};

use crate::rig::{
    LIMIT, Rig, docker, docker_succeeds, first_process, folders, relay, signal, succeeded, the_one, wait,
};
use crate::sessions::{BUSY, nothing_was_lost, noting};

/// Runs [`BUSY`] while something is done to its container again and again, and sees that it shows nowhere.
fn nothing_shows(
    options: &mut SessionOptions,
    rig: &Rig,
    container: Option<&str>,
    image: &str,
    mut harm: impl FnMut(&str) -> bool,
) {
    let notes = noting(options);
    let session = rig.open(options.clone());
    session.ok("kept = 'kept'");
    let container = container.map_or_else(|| the_one(image), str::to_owned);
    let running = session.start(Cell::new(BUSY));
    let mut harmed = 0;
    // What harms as fast as links are made leaves no time for the cell, on a machine that does much else.
    while !running.has_ended() && harmed < 8 {
        let mut random = [0];
        getrandom::fill(&mut random).unwrap();
        std::thread::sleep(Duration::from_millis(100 + 2 * u64::from(random[0])));
        harmed += u32::from(!running.has_ended() && harm(&container));
    }
    let outcome = running.wait();
    nothing_was_lost(outcome, &notes);
    assert!(harmed >= 3, "harmed {harmed} times only");
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

pub(crate) fn kill_the_relay(container: &str) -> bool {
    relay(container).is_some_and(|relay| signal(relay.pid, "KILL"))
}

#[test]
fn relays_that_are_killed_show_nowhere() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    nothing_shows(&mut options, &rig, None, &image, kill_the_relay);
}

#[test]
fn relays_that_are_killed_in_a_container_of_the_users_show_nowhere() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, name) = rig.running("base", &[]);
    nothing_shows(&mut options, &rig, Some(&name), "", kill_the_relay);
}

#[test]
fn polled_looks_that_are_killed_show_nowhere() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    options.transport = Transport::Polled;
    nothing_shows(&mut options, &rig, None, &image, kill_a_look);
}

/// Kills the next look as soon as it has taken its place.
fn kill_a_look(container: &str) -> bool {
    let Some(fence) = folders(container)
        .into_iter()
        .map(|path| path.join("fence"))
        .find(|path| path.exists())
    else {
        return false;
    };
    let space = first_process(container).to_string();
    let before = std::fs::read_to_string(&fence).unwrap_or_default();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let found = std::fs::read_to_string(&fence).unwrap_or_default();
        if found != before
            && let Some(number) = found.split_whitespace().nth(2)
        {
            let inside = ["-t", &space, "-p", "kill", "-9", number];
            return Command::new("nsenter")
                .args(inside)
                .output()
                .is_ok_and(|done| done.status.success());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn a_container_that_is_paused_goes_on() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    nothing_shows(&mut options, &rig, None, &image, |container| {
        let is_paused = pause(container);
        std::thread::sleep(Duration::from_millis(700));
        is_paused && docker_succeeds(&["unpause", container])
    });
}

/// Pauses a container. Some engines do not always freeze one that is busy, and say so.
fn pause(container: &str) -> bool {
    (0..10).any(|_| docker_succeeds(&["pause", container]))
}

/// Longer than the heartbeat allows and than the lease: the time of a pause expires none.
#[test]
fn a_long_pause_expires_no_lease() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    options.reconnect_timeout = LIMIT;
    options.lease = Duration::from_secs(10);
    let session = rig.open(options);
    session.ok("import time\nkept = 1");
    let container = the_one(&image);
    let running = session.start(Cell::new(
        "print('begun', flush=True)\ntime.sleep(2)\nprint('ended', kept)",
    ));
    std::thread::sleep(Duration::from_secs(1));
    assert!(pause(&container));
    std::thread::sleep(Duration::from_secs(25));
    assert!(!running.has_ended());
    docker(&["unpause", &container]);
    assert_eq!(succeeded(running.wait()), "begun\nended 1\n");
    rig.close();
}

/// For longer than the link is tried nobody waits, and who cancels does not wait for that.
#[test]
fn a_pause_without_end_is_an_error_that_says_so() {
    let Some(rig) = Rig::new() else { return };
    for (transport, cancels) in [
        (Transport::Stream, false),
        (Transport::Polled, false),
        (Transport::Stream, true),
    ] {
        let (mut options, image) = rig.ours("base");
        options.transport = transport;
        options.reconnect_timeout = if cancels { LIMIT } else { Duration::from_secs(3) };
        let session = rig.open(options);
        session.ok("import time");
        let container = the_one(&image);
        let cell = Cell::new("print('begun', flush=True)\ntime.sleep(60)");
        let cancel = cell.cancel.clone();
        let running = session.start(cell);
        std::thread::sleep(Duration::from_secs(1));
        assert!(pause(&container));
        let began = Instant::now();
        if cancels {
            cancel.cancel("Ctrl-C");
        }
        let outcome = running.wait();
        assert!(began.elapsed() < Duration::from_secs(50), "{outcome:#?}");
        let error = outcome.error.unwrap();
        if cancels {
            assert_eq!(outcome.status, Status::Interrupted, "{error}");
        } else {
            assert_eq!(outcome.status, Status::Error, "{error}");
            assert!(
                error.contains("is paused") && error.contains("docker unpause"),
                "{error}"
            );
        }
        docker(&["unpause", &container]);
        rig.close();
    }
}

/// Holds a process as a debugger does: whoever of us finds it stopped cannot wake it.
const HANG: &str = "
import ctypes, os, sys
pid = int(sys.argv[1])
assert ctypes.CDLL(None, use_errno=True).ptrace(16, pid, None, None) == 0, os.strerror(ctypes.get_errno())
os.waitpid(pid, 0x40000000)
os.write(1, b'ok')
os.read(0, 1)";

/// A relay that hangs is noticed by its silence, and the next one ends it.
#[test]
fn a_relay_that_hangs_is_replaced() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("from hermes_tools import note");
    let container = the_one(&image);
    let first = relay(&container).unwrap();
    let mut tracer = Command::new("python3")
        .args(["-c", HANG, &first.pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 2];
    tracer.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(session.ok("print(note(1))"), "{'value': 1}\n");
    drop(tracer.stdin.take());
    tracer.wait().unwrap();
    assert_eq!(notes.numbers(), [1]);
    assert_ne!(relay(&container).unwrap().inner, first.inner);
    rig.close();
}

/// Two relays at once: one that comes late goes away; one of another owner takes over, and the broker comes back.
#[test]
fn of_two_relays_one_goes() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("from hermes_tools import note");
    let container = the_one(&image);
    let outside = folders(&container).remove(0);
    let folder = format!("/run/talaria/{}", outside.file_name().unwrap().to_string_lossy());
    let fence = std::fs::read_to_string(outside.join("fence")).unwrap();
    let owner = fence.split_whitespace().next().unwrap().to_owned();
    let rival = |owner: &str, link: u64| {
        let arguments = bundle::arguments_of_link(&folder, owner, link, 1 << 16);
        let mut command = std::process::Command::new("docker");
        command.args(["exec", "-i", &container, "python3"]).args(arguments);
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let before = relay(&container).unwrap();
    let said = rival(&owner, 1).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("TFE"), "it must refuse: {text}");
    assert_eq!(relay(&container).unwrap().inner, before.inner);

    let other = rival("another-owner", 9);
    wait("the rival to be ended", || {
        relay(&container).is_some_and(|now| now.inner != before.inner)
    });
    for n in 0..20 {
        assert_eq!(session.ok(&format!("print(note({n}))")), format!("{{'value': {n}}}\n"));
    }
    assert_eq!(notes.numbers(), (0..20).collect::<Vec<_>>());
    let mut other = other;
    drop(other.stdin.take());
    other.kill().unwrap();
    other.wait().unwrap();
    rig.close();
}
