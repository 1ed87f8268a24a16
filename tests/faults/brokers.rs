//! The broker is killed, is stopped, or is not alone.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{LIMIT, Rig, docker, nothing_of_ours_in, ours, processes, signal, the_one, wait};
use crate::sessions::{LASTING, Process, lasts};

fn start(target: &str, code: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
    command.args(["run", "--on", target, "--timeout", "10m", "-c", code]);
    command
        .env("TALARIA_AUDIT_ENABLED", "off")
        .env("TALARIA_CODE_EXECUTION_LEASE", "8s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "6s")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process(command.spawn().unwrap())
}

fn has_begun(container: &str) -> bool {
    lasts(processes(container).iter().map(|seen| &seen.command))
}

#[test]
fn what_a_killed_broker_leaves_ends_by_itself() {
    let Some(rig) = Rig::new() else { return };
    let image = rig.image("base");
    let mut broker = start(&format!("docker:{image}"), LASTING);
    wait("the cell", || ours(&image).first().is_some_and(|one| has_begun(one)));
    broker.kill();
    wait("the container to be gone", || ours(&image).is_empty());
    rig.close();
}

#[test]
fn what_a_killed_broker_leaves_in_a_container_of_the_users_ends_by_itself() {
    let Some(rig) = Rig::new() else { return };
    let (_, name) = rig.running("base", &[]);
    let mut broker = start(&format!("container:{name}"), LASTING);
    wait("the cell", || has_begun(&name));
    broker.kill();
    nothing_of_ours_in(&name);
    rig.close();
}

/// An engine locks a container whose output nobody takes; a broker that stands still must not do that to its user.
#[test]
fn the_users_own_commands_run_while_the_broker_stands_still() {
    let Some(rig) = Rig::new() else { return };
    let image = rig.image("base");
    let flood =
        "import time\nopen('/tmp/began', 'w').close()\nwhile True: print('x' * 100000, flush=True); time.sleep(0.001)";
    let mut broker = start(&format!("docker:{image}"), flood);
    wait("the cell", || {
        ours(&image).first().is_some_and(|one| {
            let root = crate::rig::first_process(one);
            std::path::Path::new(&format!("/proc/{root}/root/tmp/began")).exists()
        })
    });
    let container = the_one(&image);
    assert!(signal(broker.pid(), "STOP"));
    std::thread::sleep(Duration::from_secs(2));
    let seconds = LIMIT.as_secs().to_string();
    let own = Command::new("timeout")
        .args([&seconds, "docker", "exec", &container, "echo", "still here"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&own.stdout), "still here\n", "{own:?}");
    broker.kill();
    wait("the container to be gone", || ours(&image).is_empty());
    rig.close();
}

/// Two brokers on one engine leave each other alone.
#[test]
fn two_brokers_share_an_engine() {
    let Some(rig) = Rig::new() else { return };
    let (one, image) = rig.ours("base");
    let (inside, name) = rig.running("base", &[]);
    let session = rig.open(one);
    let neighbour = rig.open(inside);
    session.ok("kept = 'one'");
    neighbour.ok("kept = 'neighbour'");
    let mut broker = start(&format!("docker:{image}"), LASTING);
    wait("the other broker's cell", || {
        ours(&image).iter().any(|one| has_begun(one))
    });
    let mut inner = start(&format!("container:{name}"), LASTING);
    wait("its cell in the same container", || has_begun(&name));
    assert_eq!(session.ok("print(kept)"), "one\n");
    assert_eq!(neighbour.ok("print(kept)"), "neighbour\n");
    broker.kill();
    inner.kill();
    wait("the other's container to be gone", || ours(&image).len() == 1);
    wait("the other's processes to be gone", || !has_begun(&name));
    assert_eq!(session.ok("print(kept)"), "one\n");
    assert_eq!(neighbour.ok("print(kept)"), "neighbour\n");
    assert!(docker(&["ps", "-q"]).lines().count() >= 2);
    rig.close();
}
