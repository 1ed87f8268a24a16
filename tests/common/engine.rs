//! The engine of the tests, as its own command sees it.

use std::process::Command;

/// The docker command, on the same engine.
pub(crate) fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        output.status.success(),
        "docker {arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Whether that succeeds.
pub(crate) fn docker_succeeds(arguments: &[&str]) -> bool {
    let output = Command::new("docker").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
