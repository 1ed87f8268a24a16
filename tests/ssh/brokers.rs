//! The broker is killed or stands still.

use std::process::{Child, Stdio};

use crate::rig::{Rig, TARGET};
use crate::sessions::wait;

/// A broker of its own: the command line, with a cell that goes on for long.
struct Process(Child);

impl Process {
    fn start(rig: &Rig, code: &str) -> Self {
        let mut command = rig.cli(&["run", "--on", TARGET, "--timeout", "10m", "-c", code]);
        command
            .env("TALARIA_CODE_EXECUTION_LEASE", "4s")
            .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "3s")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        // A stopped process takes this too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Its kernel, and what that started and detached, which has a name of its own.
const LASTING: &str = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '777'])\n\
    while True: time.sleep(0.1); print('on', flush=True)";

fn has_begun(rig: &Rig) -> bool {
    rig.there().iter().any(|seen| seen.command.contains("sleep 777"))
}

#[test]
fn a_killed_broker_leaves_nothing_on_either_side() {
    let Some(rig) = Rig::new() else { return };
    let mut broker = Process::start(&rig, LASTING);
    wait("the cell", || has_begun(&rig));
    broker.kill();
    wait("its connection to be gone", || rig.here().is_empty());
    rig.nothing_is_left();
}
