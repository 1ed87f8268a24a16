//! This machine as an SSH host: the system's own `ssh`, and an `sshd` for each connection, whose standard streams it is.
//!
//! What is set for a test's processes there is in the configuration of its `sshd`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use talaria_broker::backends::ssh::{SshBackend, SshOptions};

use crate::rig::Rig;

/// The target as a user writes it.
pub(crate) const TARGET: &str = "ssh:talaria-test";
const SSHD: &str = "/usr/sbin/sshd";

/// Keys of a host and of a user that it lets in.
fn keys() -> Result<&'static Path, &'static str> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = FOLDER.get_or_init(|| make_keys().map_err(|error| error.to_string()));
    made.as_deref().map_err(String::as_str)
}

fn make_keys() -> std::io::Result<PathBuf> {
    if !Path::new(SSHD).exists() {
        return Err(std::io::Error::other(
            "there is no sshd (apt-get install openssh-server)",
        ));
    }
    // The system's own start-up would have made it; without it sshd serves nobody.
    if rustix::process::geteuid().is_root() {
        std::fs::create_dir_all("/run/sshd")?;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ssh-keys");
    if folder.is_dir() {
        return Ok(folder);
    }
    // Others may be at it too: the first that is done wins.
    let making = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    for name in ["host", "user"] {
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(making.path().join(name));
        if !command.status()?.success() {
            return Err(std::io::Error::other("ssh-keygen made no key"));
        }
    }
    std::fs::copy(making.path().join("user.pub"), making.path().join("authorized_keys"))?;
    let host = std::fs::read_to_string(making.path().join("host.pub"))?;
    std::fs::write(making.path().join("known_hosts"), format!("talaria-test {host}"))?;
    std::fs::set_permissions(making.path(), std::fs::Permissions::from_mode(0o755))?;
    match std::fs::rename(making.path(), &folder) {
        Err(_) if folder.is_dir() => Ok(folder),
        done => done.map(|()| folder),
    }
}

/// Whether this machine can be one. Says so, and is a failure where it is required.
#[expect(clippy::print_stderr, reason = "a skip must be seen")]
pub(crate) fn are_there() -> bool {
    let Err(missing) = keys() else { return true };
    let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|one| one == "ssh");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names ssh");
    eprintln!("SKIPPED: conformance on an SSH host: {missing}");
    false
}

/// What makes connections for the sessions of a test, to a host whose processes have these variables.
pub(crate) fn backend(rig: &Rig, there: &BTreeMap<String, String>) -> SshBackend {
    let mut options = SshOptions::new(TARGET, "talaria-test");
    options.extra = ssh_options(rig, there);
    // Nothing that bears the mark of the test: it is not part of a session.
    options.environment = [("PATH".into(), std::env::var_os("PATH").unwrap_or_default())].into();
    SshBackend::new(options)
}

/// The same for the command line, as variables.
pub(crate) fn settings(rig: &Rig) -> Vec<(OsString, OsString)> {
    let there: BTreeMap<String, String> = variables(rig).collect();
    vec![
        (
            "TALARIA_TERMINAL_SSH_OPTIONS".into(),
            ssh_options(rig, &there).join(",").into(),
        ),
        ("TALARIA_TERMINAL_CWD".into(), rig.work().into()),
    ]
}

/// What a test's processes have there.
pub(crate) fn variables(rig: &Rig) -> impl Iterator<Item = (String, String)> {
    let text = |value: OsString| value.into_string().unwrap();
    rig.variables()
        .into_iter()
        .map(move |(name, value)| (text(name), text(value)))
}

fn ssh_options(rig: &Rig, there: &BTreeMap<String, String>) -> Vec<String> {
    let keys = keys().unwrap().display();
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let set: Vec<String> = there
        .iter()
        .map(|(name, value)| quoted(&format!("{name}={value}")))
        .collect();
    let configuration = format!(
        "HostKey {keys}/host\nAuthorizedKeysFile {keys}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nPidFile none\nSetEnv {}\n",
        set.join(" ")
    );
    let path = rig.aside().join(format!("sshd-{:x}.conf", seal(&configuration)));
    std::fs::write(&path, configuration).unwrap();
    vec![
        format!("ProxyCommand={SSHD} -i -e -f {}", path.display()),
        "HostKeyAlias=talaria-test".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        format!("UserKnownHostsFile={keys}/known_hosts"),
        format!("IdentityFile={keys}/user"),
        "IdentitiesOnly=yes".to_owned(),
    ]
}

/// Tells configurations of one test apart.
fn seal(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
