//! A host for the figures of SSH: an `sshd` on a high port of this machine, with keys of its own.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use talaria_broker::backends::ssh::{SshBackend, SshOptions};
use talaria_broker::environment::Environment;
use talaria_broker::session::SessionOptions;

use crate::measure::{Result, elsewhere};

pub(crate) const SSHD: &str = "/usr/sbin/sshd";
/// How long it may take to listen.
const START: Duration = Duration::from_secs(10);

/// Whether there can be one.
pub(crate) fn is_there() -> bool {
    std::path::Path::new(SSHD).exists()
}

/// An `sshd`; it ends when this is dropped.
pub(crate) struct Host {
    pub(crate) port: u16,
    folder: tempfile::TempDir,
    sshd: Child,
}

impl Host {
    /// One whose logins have these variables.
    pub(crate) fn start(variables: &str) -> Result<Self> {
        // Its path is short, for sockets lie in it.
        let folder = tempfile::Builder::new().prefix("tbench-").tempdir_in("/tmp")?;
        let path = folder.path().display();
        for name in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            if !command.arg(folder.path().join(name)).status()?.success() {
                return Err("ssh-keygen failed".into());
            }
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        std::fs::copy(folder.path().join("user.pub"), folder.path().join("authorized_keys"))?;
        let key = std::fs::read_to_string(folder.path().join("host.pub"))?;
        std::fs::write(folder.path().join("known_hosts"), format!("[127.0.0.1]:{port} {key}"))?;
        let set = if variables.is_empty() {
            String::new()
        } else {
            format!("SetEnv {variables}\n")
        };
        std::fs::write(
            folder.path().join("sshd.conf"),
            format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host\nAuthorizedKeysFile {path}/authorized_keys\n\
                 StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n{set}"
            ),
        )?;
        // The system's own start-up would have made it; without it sshd serves nobody.
        let _ = std::fs::create_dir_all("/run/sshd");
        let sshd = Command::new(SSHD)
            .args(["-D", "-f"])
            .arg(folder.path().join("sshd.conf"))
            .stderr(Stdio::null())
            .spawn()?;
        let host = Self { port, folder, sshd };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > START {
                return Err("sshd does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(host)
    }

    /// A file of the host's.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> Vec<String> {
        let path = self.folder.path().display();
        vec![
            format!("UserKnownHostsFile={path}/known_hosts"),
            format!("IdentityFile={path}/user"),
            "IdentitiesOnly=yes".to_owned(),
        ]
    }

    /// The system's own `ssh` to it, with words before the destination.
    pub(crate) fn ssh(&self, before: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        for option in self.options() {
            command.args(["-o", &option]);
        }
        let port = self.port.to_string();
        command.args(["-o", "BatchMode=yes", "-p", &port]);
        command.args(before).arg("127.0.0.1");
        command
    }

    /// A master connection of the user's own, up until its process is dropped; and its socket.
    pub(crate) fn master(&self) -> Result<(Guard, PathBuf)> {
        let socket = self.path("master");
        let words = ["-M", "-N", "-S", &socket.display().to_string()];
        let master = Guard(self.ssh(&words).stdin(Stdio::null()).spawn()?);
        let began = Instant::now();
        while !socket.exists() {
            if began.elapsed() > START {
                return Err("the master connection is not up".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((master, socket))
    }

    /// A session there; with more options of `ssh`, over a master connection where one is given.
    pub(crate) fn session(&self, more: &[String], master: Option<PathBuf>) -> SessionOptions {
        let environment = Environment::of_this_process();
        let mut options = SshOptions::new("ssh:bench", "127.0.0.1");
        options.port = Some(self.port);
        options.extra = [self.options(), more.to_vec()].concat();
        options.control = master;
        options.environment = std::env::vars_os().collect();
        elsewhere(SessionOptions::elsewhere(
            "ssh:bench",
            Arc::new(SshBackend::new(options)),
            environment,
        ))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
    }
}

/// A process that ends when this is dropped.
pub(crate) struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
