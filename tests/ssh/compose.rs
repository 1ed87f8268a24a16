//! The SSH host of the compose rig, reached as the README says.

use std::process::{Command, Output, Stdio};

use crate::rig::Rig;

const CONTAINER: &str = "talaria-test_sshd_1";

fn docker(arguments: &[&str], input: Stdio) -> Option<Output> {
    let mut command = Command::new("docker");
    let done = command.args(arguments).stdin(input).output().ok()?;
    done.status.success().then_some(done)
}

/// `None` where the rig is not up and nobody requires it.
fn port() -> Option<String> {
    if let Some(told) = docker(&["port", CONTAINER, "22"], Stdio::null()) {
        let told = String::from_utf8(told.stdout).unwrap();
        return Some(told.lines().next().unwrap().rsplit(':').next().unwrap().to_owned());
    }
    let missing = "the container talaria-test_sshd_1 does not run (tests/rigs/docker up)";
    let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|one| one == "docker");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names docker");
    eprintln!("SKIPPED: {missing}");
    None
}

#[test]
fn the_host_of_the_rig_is_reached_as_the_readme_says() {
    let Some(rig) = Rig::new() else { return };
    let Some(port) = port() else { return };
    let key = rig.path("user");
    let public = std::fs::File::open(rig.path("user.pub")).unwrap();
    let keys = [
        "exec",
        "-i",
        "-u",
        "dev",
        CONTAINER,
        "tee",
        "-a",
        ".ssh/authorized_keys",
    ];
    assert!(docker(&keys, public.into()).is_some());
    let options = format!(
        "UserKnownHostsFile={},IdentitiesOnly=yes",
        rig.path("known_hosts").display()
    );
    let code = "import getpass, platform; from hermes_tools import terminal; print(getpass.getuser(), platform.node(), \
                terminal('pwd')['output'])";
    let done = rig
        .cli(&["run", "--on", &format!("ssh://dev@127.0.0.1:{port}"), "-c", code])
        .env("TALARIA_TERMINAL_SSH_OPTIONS", options)
        .env("TALARIA_TERMINAL_SSH_KEY", key)
        .env("TALARIA_TERMINAL_SSH_ACCEPT_NEW", "on")
        .output()
        .unwrap();
    let node = docker(&["exec", CONTAINER, "hostname"], Stdio::null()).unwrap().stdout;
    let node = String::from_utf8(node).unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert_eq!(printed, format!("dev {} /home/dev\n\n", node.trim()), "{done:?}");
    let public = std::fs::read_to_string(rig.path("user.pub")).unwrap();
    let key = public.split_whitespace().nth(1).unwrap().replace('/', ".");
    let forget = [
        "exec",
        "-u",
        "dev",
        CONTAINER,
        "sed",
        "-i",
        &format!("/{key}/d"),
        ".ssh/authorized_keys",
    ];
    assert!(docker(&forget, Stdio::null()).is_some());
    rig.nothing_is_left();
}
