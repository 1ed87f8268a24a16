//! A master connection of the user's own.

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use talaria_broker::session::{Cell, SessionOptions};

use crate::rig::Rig;
use crate::sessions::{BUSY, close, nothing_was_lost, noting, wait};

/// The user's `ssh -M`. It ends when this is dropped.
struct Own {
    process: Child,
    socket: PathBuf,
}

impl Own {
    fn start(rig: &Rig) -> Self {
        let socket = rig.path("home/m");
        let process = rig.ssh(&["-M", "-N", "-S", socket.to_str().unwrap()], &[]).spawn();
        wait("the master", || socket.exists());
        Self {
            process: process.unwrap(),
            socket,
        }
    }

    fn session(&self, rig: &Rig) -> SessionOptions {
        let mut ssh = rig.ssh_options();
        ssh.control = Some(self.socket.clone());
        rig.options_of(ssh)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[test]
fn a_master_of_the_users_is_used_and_stays() {
    let Some(rig) = Rig::new() else { return };
    let mut own = Own::start(&rig);
    let session = rig.open(own.session(&rig));
    assert_eq!(session.ok("print(6 * 7)"), "42\n");
    assert_eq!(rig.servers().len(), 1, "{:?}", rig.servers());
    close(&rig.runtime, &rig.broker);
    assert!(own.process.try_wait().unwrap().is_none());
    let said = rig
        .ssh(&["-S", own.socket.to_str().unwrap()], &["echo", "still here"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "still here\n", "{said:?}");
    drop(own);
    rig.nothing_is_left();
}

/// The cell goes on as soon as the user has connected again; who does not is told.
#[test]
fn a_master_of_the_users_that_dies_is_waited_for_and_named() {
    let Some(rig) = Rig::new() else { return };
    let mut own = Own::start(&rig);
    let mut options = own.session(&rig);
    options.reconnect_timeout = Duration::from_secs(8);
    options.lease = Duration::from_secs(12);
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 1");
    let running = session.start(Cell::new(BUSY));
    std::thread::sleep(Duration::from_secs(1));
    drop(own);
    own = Own::start(&rig);
    nothing_was_lost(running.wait(), &notes);
    let running = session.start(Cell::new("import time\nwhile True: time.sleep(0.1)"));
    std::thread::sleep(Duration::from_secs(1));
    let socket = own.socket.display().to_string();
    drop(own);
    let error = running.wait().error.unwrap();
    assert!(
        error.contains("did not come back within 8s") && error.contains(&socket),
        "{error}"
    );
    assert!(error.contains("ssh -M"), "{error}");
    rig.close();
}

#[test]
fn a_master_of_the_users_that_is_full_says_so() {
    let Some(rig) = Rig::with(&["MaxSessions 1"]) else {
        return;
    };
    let own = Own::start(&rig);
    let socket = own.socket.to_str().unwrap();
    let mut command = rig.ssh(&["-S", socket], &["sleep", "995"]).spawn().unwrap();
    wait("the user's own command", || {
        rig.there().iter().any(|seen| seen.command.contains("sleep 995"))
    });
    let error = rig.open(own.session(&rig)).cell("pass").error.unwrap();
    assert!(
        error.contains("MaxSessions") && error.contains("ssh_control_path"),
        "{error}"
    );
    drop(own);
    command.wait().unwrap();
    rig.kill_all_there();
    rig.close();
}
