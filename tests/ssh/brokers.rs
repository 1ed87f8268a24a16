//! The broker is killed or stands still.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use crate::rig::{Rig, TARGET};
use crate::sessions::{LASTING, Process, lasts, signal, wait};

fn start(rig: &Rig, code: &str) -> Process {
    let mut command = rig.cli(&["run", "--on", TARGET, "--timeout", "10m", "-c", code]);
    command
        .env("TALARIA_CODE_EXECUTION_LEASE", "4s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "3s")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process(command.spawn().unwrap())
}

fn has_begun(rig: &Rig) -> bool {
    lasts(rig.there().iter().map(|seen| &seen.command))
}

#[test]
fn a_killed_broker_leaves_nothing_on_either_side() {
    let Some(rig) = Rig::new() else { return };
    let mut broker = start(&rig, LASTING);
    wait("the cell", || has_begun(&rig));
    broker.kill();
    wait("its connection to be gone", || rig.here().is_empty());
    rig.nothing_is_left();
}

/// A laptop that sleeps for longer than a link is tried, and whose connection is dead when it wakes.
#[test]
fn a_broker_that_stood_still_goes_on() {
    const COUNTING: &str = "
import time
from hermes_tools import terminal
for n in range(40):
    answer = terminal('echo %d >>counted; tail -n 1 counted' % n)
    print(answer['output'].strip(), flush=True)
    time.sleep(0.05)
";
    let Some(rig) = Rig::new() else { return };
    let folder = rig.path("home");
    let mut command = rig.cli(&["run", "--on", TARGET, "--cwd", folder.to_str().unwrap(), "-c", COUNTING]);
    command
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "3s")
        .env("TALARIA_CODE_EXECUTION_LEASE", "60s");
    let mut broker = Process(command.spawn().unwrap());
    wait("the cell", || rig.path("home/counted").exists());
    assert!(signal(broker.pid(), "STOP"));
    for seen in rig.servers() {
        signal(seen.pid, "KILL");
    }
    std::thread::sleep(Duration::from_secs(5));
    assert!(signal(broker.pid(), "CONT"));
    let mut printed = String::new();
    broker.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let mut said = String::new();
    broker.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let expected: String = (0..40).map(|n| format!("{n}\n")).collect();
    assert_eq!(printed, expected, "{said}");
    assert_eq!(std::fs::read_to_string(rig.path("home/counted")).unwrap(), expected);
    assert!(broker.0.wait().unwrap().success());
    rig.nothing_is_left();
}
