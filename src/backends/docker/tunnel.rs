//! An engine on another machine, reached as Docker's own client does: `ssh DEST docker system dial-stdio`.
//!
//! The system's `ssh` does it, so that aliases, keys, jumps and known hosts are the user's own. One master connection
//! carries all; the client of the engine talks to a socket of ours, and every connection to it is one command there.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::task::{AbortHandle, JoinSet};

use crate::environment::Environment;

/// Time in which a connection is made.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A way to an engine; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// Where the engine's client connects.
    pub(super) socket: PathBuf,
    accepting: AbortHandle,
    _master: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What is behind `ssh://`: the destination for ssh, and the engine's socket there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    destination: String,
    socket: Option<String>,
}

impl Place {
    fn parse(host: &str) -> Result<Self, String> {
        let rest = host.strip_prefix("ssh://").unwrap_or(host);
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        if place.is_empty() || place.starts_with('-') {
            return Err("it names no host; write ssh://USER@HOST".to_owned());
        }
        Ok(Self {
            destination: format!("ssh://{place}"),
            socket: Some(path)
                .filter(|path| !path.is_empty())
                .map(|path| format!("unix:///{path}")),
        })
    }

    /// One argument for the shell there, which may be any.
    fn command(&self) -> Result<String, String> {
        let Some(socket) = &self.socket else {
            return Ok("docker system dial-stdio".to_owned());
        };
        if !socket.chars().all(|c| c.is_ascii_alphanumeric() || "/:._-".contains(c)) {
            return Err("the path of its socket holds signs that no shell would leave alone".to_owned());
        }
        Ok(format!("docker --host {socket} system dial-stdio"))
    }
}

impl Tunnel {
    /// Connects; `environment` is what `ssh` gets.
    ///
    /// # Errors
    /// As a sentence, in ssh's own words where it has any.
    pub(super) async fn open(host: &str, environment: &Environment) -> Result<Self, String> {
        let place = Place::parse(host)?;
        let remote = place.command()?;
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        // A socket's path is limited to about a hundred bytes; a temporary folder of the user's may be too deep.
        let folder = tempfile::Builder::new().prefix("talaria-").tempdir_in(short_folder());
        let folder = folder.map_err(|error| failed("no folder for its sockets could be made", error))?;
        let control = folder.path().join("m");
        let ssh = Ssh {
            environment: environment.clone(),
            control,
            destination: place.destination,
        };
        let mut master = ssh.command(&["-M", "-N", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]);
        let master = master
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut master = master.map_err(|error| failed("ssh cannot be started", error))?;
        match tokio::time::timeout(CONNECT_LIMIT, ready(&mut master, &ssh.control)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(format!("ssh did not connect within {} s", CONNECT_LIMIT.as_secs())),
        }
        let socket = folder.path().join("e");
        let listener = UnixListener::bind(&socket).map_err(|error| failed("no socket could be made", error))?;
        let accepting = tokio::spawn(accept(listener, ssh, remote)).abort_handle();
        Ok(Self {
            socket,
            accepting,
            _master: master,
            _folder: folder,
        })
    }
}

fn short_folder() -> PathBuf {
    let usual = std::env::temp_dir();
    if usual.as_os_str().len() > 60 {
        PathBuf::from("/tmp")
    } else {
        usual
    }
}

/// Waits until the master has a connection, which is when it makes its socket.
async fn ready(master: &mut Child, control: &Path) -> Result<(), String> {
    let mut stderr = master.stderr.take();
    loop {
        if control.exists() {
            if let Some(mut stderr) = stderr {
                // What it says from now on is for the log; it must be read, or it would stop.
                tokio::spawn(async move {
                    let mut text = Vec::new();
                    let _ = stderr.read_to_end(&mut text).await;
                    tracing::debug!(said = %String::from_utf8_lossy(&text), "ssh to an engine has ended");
                });
            }
            return Ok(());
        }
        if let Ok(Some(status)) = master.try_wait() {
            let mut text = Vec::new();
            if let Some(stderr) = &mut stderr {
                let _ = stderr.read_to_end(&mut text).await;
            }
            let text = String::from_utf8_lossy(&text);
            let said: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            return Err(match said.last() {
                Some(_) => format!("ssh says: {}", said.join(" ")),
                None => format!("ssh ended with {status}"),
            });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Ssh {
    environment: Environment,
    control: PathBuf,
    destination: String,
}

impl Ssh {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command
            .env_clear()
            .envs(self.environment.iter())
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-T", "-S"])
            .arg(&self.control)
            .args(arguments)
            .arg("--")
            .arg(&self.destination)
            .kill_on_drop(true);
        command
    }
}

async fn accept(listener: UnixListener, ssh: Ssh, remote: String) {
    let mut carried = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let mut command = ssh.command(&[]);
        command.arg(&remote);
        carried.spawn(carry(stream, command));
        while carried.try_join_next().is_some() {}
    }
}

/// Carries one connection of the engine's client. Either side may end alone.
async fn carry(stream: UnixStream, mut command: Command) {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return };
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return;
    };
    let (mut from_client, mut to_client) = stream.into_split();
    let up = async move {
        let copied = tokio::io::copy(&mut from_client, &mut stdin).await;
        // A client that broke off wants nothing more; one that has said its last waits for the answer.
        (copied.is_ok(), drop(stdin)).0
    };
    let down = async {
        let _ = tokio::io::copy(&mut stdout, &mut to_client).await;
    };
    tokio::pin!(down);
    tokio::select! {
        () = &mut down => {}
        is_well = up => if is_well { down.await },
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn addresses_are_read_as_dockers_client_reads_them() {
        for (host, destination, command) in [
            ("ssh://box", "ssh://box", "docker system dial-stdio"),
            ("ssh://bob@box:2222", "ssh://bob@box:2222", "docker system dial-stdio"),
            ("ssh://box/", "ssh://box", "docker system dial-stdio"),
            (
                "ssh://bob@box/run/user/7/docker.sock",
                "ssh://bob@box",
                "docker --host unix:///run/user/7/docker.sock system dial-stdio",
            ),
        ] {
            let place = Place::parse(host).unwrap();
            assert_eq!(
                (place.destination.as_str(), place.command().unwrap().as_str()),
                (destination, command)
            );
        }
        assert!(Place::parse("ssh://").is_err());
        assert!(Place::parse("ssh://-oProxyCommand=x").is_err());
        assert!(Place::parse("ssh://box/a b;c").unwrap().command().is_err());
    }

    /// An ssh of the tests: its master makes the socket and waits, its commands are `cat`.
    fn environment(script: &str) -> (tempfile::TempDir, Environment) {
        let folder = tempfile::tempdir().unwrap();
        let ssh = folder.path().join("ssh");
        std::fs::write(&ssh, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        (folder, Environment::from_iter([("PATH", path)]))
    }

    #[tokio::test]
    async fn connections_are_carried_both_ways_and_end_with_the_tunnel() {
        let script = "case \" $* \" in *\" -M \"*) while [ \"$1\" != -S ]; do shift; done; : >\"$2\"; exec sleep 600;; esac\nexec cat";
        let (_folder, environment) = environment(script);
        let tunnel = Tunnel::open("ssh://box", &environment).await.unwrap();
        let mut stream = UnixStream::connect(&tunnel.socket).await.unwrap();
        stream.write_all(b"there and back").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "there and back");
        let socket = tunnel.socket.clone();
        drop(tunnel);
        assert!(!socket.exists());
    }

    #[tokio::test]
    async fn what_ssh_says_is_the_reason() {
        let (_folder, environment) = environment("echo 'Host key verification failed.' >&2; exit 255");
        let error = Tunnel::open("ssh://box", &environment).await.unwrap_err();
        assert_eq!(error, "ssh says: Host key verification failed.");
    }
}
