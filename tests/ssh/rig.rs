//! A host of the test's own: an `sshd` on a high port of this machine with its own keys and options, what connects to
//! it, and a look at what is left on either side.

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use talaria_broker::backends::ssh::{SshBackend, SshOptions};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::SessionOptions;
use tempfile::TempDir;

use crate::proxy::Proxy;
use crate::sessions::{LIMIT, Live, broker, close, limited, signal, wait};

/// The target as a user writes it.
pub(crate) const TARGET: &str = "ssh:talaria-test";
/// What its key is known under.
const NAME: &str = "talaria-test";
pub(crate) const SSHD: &str = "/usr/sbin/sshd";
/// What marks processes over there, and `ssh` here, in their environment.
const THERE: &str = "TALARIA_TEST_THERE";
const HERE: &str = "TALARIA_TEST_HERE";

/// A host and a broker. All of it goes when this is dropped, whatever became of the test.
pub(crate) struct Rig {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) broker: Broker,
    pub(crate) port: u16,
    folder: TempDir,
    sshd: Mutex<Option<Child>>,
    /// What the host sees otherwise than this machine: commands of a shell, with the rig's folder as `$1`.
    view: Option<String>,
    /// The `PATH` of its logins.
    login_path: Mutex<String>,
}

impl Rig {
    /// A host as any other, or `None` where there can be none and nobody requires one.
    pub(crate) fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// The same with lines of its `sshd`'s configuration, which win over the rig's.
    pub(crate) fn with(lines: &[&str]) -> Option<Self> {
        Self::make(lines, None)
    }

    /// A host that can be started anew: its `sshd` sees a boot id and a name of its own. Takes root.
    pub(crate) fn that_starts(name: &str) -> Option<Self> {
        const BOOT: &str = "mount --bind \"$1/boot_id\" /proc/sys/kernel/random/boot_id";
        Self::with_view(format!("{BOOT} && hostname {name}"))
    }

    /// A host that sees mounts and a name of its own, made by these commands. Nobody else sees them, and they end with the
    /// last process that does. Takes root.
    pub(crate) fn with_view(commands: String) -> Option<Self> {
        if is_root() {
            return Self::make(&[], Some(commands));
        }
        eprintln!("SKIPPED: only root can give a process a view of its own of the machine");
        None
    }

    fn make(lines: &[&str], view: Option<String>) -> Option<Self> {
        if !Path::new(SSHD).exists() {
            let missing = "there is no sshd (apt-get install openssh-server)";
            let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|one| one == "ssh");
            assert!(!is_required, "{missing}, and TALARIA_REQUIRE names ssh");
            eprintln!("SKIPPED: {missing}");
            return None;
        }
        // The system's own start-up would have made it; without it sshd serves nobody.
        if is_root() {
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        // Its path must be short: sockets lie in it.
        let folder = tempfile::Builder::new().prefix("tssh-").tempdir_in("/tmp").unwrap();
        let (runtime, broker) = broker();
        let mut rig = Self {
            runtime,
            broker,
            port: 0,
            folder,
            sshd: Mutex::new(None),
            view,
            login_path: Mutex::default(),
        };
        *rig.login_path.lock().unwrap() = format!(
            "{}:{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            rig.path("tools").display(),
            python_folder().display()
        );
        rig.furnish();
        // A port that is free now may be taken by the time that sshd asks for it.
        for _ in 0..5 {
            rig.port = free_port();
            rig.configure(lines);
            if rig.start() {
                return Some(rig);
            }
        }
        panic!("sshd does not begin: {}", rig.log());
    }

    fn furnish(&self) {
        let modes = [
            ("", 0o755),
            ("here", 0o700),
            ("there", 0o700),
            ("home", 0o700),
            ("tools", 0o755),
        ];
        for (name, mode) in modes {
            let path = self.path(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        for name in ["host", "user"] {
            self.make_key(name);
        }
        std::fs::copy(self.path("user.pub"), self.path("authorized_keys")).unwrap();
        self.know(&["host"]);
    }

    /// Makes a pair of keys.
    pub(crate) fn make_key(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path);
        assert!(command.status().unwrap().success());
        path
    }

    /// Has ssh know the host by these keys, and no others.
    pub(crate) fn know(&self, keys: &[&str]) {
        let line = |name: &&str| format!("{NAME} {}", self.read(&format!("{name}.pub")));
        let lines: String = keys.iter().map(line).collect();
        std::fs::write(self.path("known_hosts"), lines).unwrap();
    }

    /// Writes the configuration of `sshd`. Of an option that is there twice, the first counts.
    pub(crate) fn configure(&self, lines: &[&str]) {
        let folder = self.folder.path().display();
        let set = format!("{THERE}={} XDG_RUNTIME_DIR={folder}/there", self.mark());
        // Start-up files of whoever runs the tests have no part in it: some take seconds, and leave locks when killed.
        let rest = format!(
            "Port {}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPrintMotd no\nPidFile none\nLogLevel VERBOSE\n\
             SetEnv {set}\nMatch User {}\nSetEnv {set} HOME={folder}/home \
             PATH={}\n",
            self.port,
            account(),
            self.login_path.lock().unwrap(),
        );
        let text: String = lines.iter().map(|line| format!("{line}\n")).chain([rest]).collect();
        std::fs::write(self.path("sshd.conf"), text).unwrap();
    }

    /// Where logins find programs from now on.
    pub(crate) fn set_path(&self, path: &str) {
        path.clone_into(&mut self.login_path.lock().unwrap());
        self.stop();
        self.configure(&[]);
        assert!(self.start());
    }

    /// Starts `sshd`; whether it listens.
    pub(crate) fn start(&self) -> bool {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("sshd.log"))
            .unwrap();
        let mut command = if let Some(view) = &self.view {
            let mut random = [0; 16];
            getrandom::fill(&mut random).unwrap();
            std::fs::write(self.path("boot_id"), format!("{:032x}\n", u128::from_ne_bytes(random))).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--mount", "--uts", "--propagation", "private", "sh", "-c"]);
            command.arg(format!("{view} && shift && exec \"$@\"")).arg("sh");
            command.arg(self.path("")).arg(SSHD);
            command
        } else {
            Command::new(SSHD)
        };
        command.args(["-D", "-e", "-f"]).arg(self.path("sshd.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut sshd = command.spawn().unwrap();
        let began = Instant::now();
        loop {
            let has_ended = sshd.try_wait().unwrap().is_some();
            if !has_ended && TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                *self.sshd.lock().unwrap() = Some(sshd);
                return true;
            }
            if has_ended || began.elapsed() > LIMIT {
                let _ = sshd.kill();
                let _ = sshd.wait();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the `sshd` that listens. Connections stay.
    pub(crate) fn stop(&self) {
        if let Some(mut sshd) = self.sshd.lock().unwrap().take() {
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }

    /// Kills everything there but the `sshd` that listens, as the end of a machine or of a login does.
    pub(crate) fn kill_all_there(&self) {
        wait("everything there to be gone", || {
            let all = [self.servers(), self.there()].concat();
            for seen in &all {
                signal(seen.pid, "KILL");
            }
            all.is_empty()
        });
    }

    /// A program that logins of this account find before any other of that name.
    pub(crate) fn add_tool(&self, name: &str, script: &str) {
        let path = self.path("tools").join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Removes what lies in memory there.
    pub(crate) fn clear_memory(&self) {
        for folder in self.folders() {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    /// A path in the folder of the rig.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match name {
            "" => self.folder.path().to_owned(),
            name => self.folder.path().join(name),
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// What `sshd` said.
    pub(crate) fn log(&self) -> String {
        self.read("sshd.log")
    }

    /// What no other rig has.
    fn mark(&self) -> String {
        let name = self.folder.path().file_name().unwrap();
        name.to_str().unwrap().to_owned()
    }

    /// Options of `ssh` by which it finds the host.
    pub(crate) fn client_options(&self) -> Vec<String> {
        let folder = self.folder.path().display();
        vec![
            "HostName=127.0.0.1".to_owned(),
            format!("Port={}", self.port),
            format!("HostKeyAlias={NAME}"),
            "StrictHostKeyChecking=yes".to_owned(),
            format!("UserKnownHostsFile={folder}/known_hosts"),
            format!("IdentityFile={folder}/user"),
            "IdentitiesOnly=yes".to_owned(),
        ]
    }

    /// The environment of `ssh` on this side.
    fn client_environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
            ("TMPDIR".into(), self.path("here").into()),
            ("HOME".into(), self.path("home").into()),
            (HERE.into(), self.mark().into()),
        ]
    }

    /// The host as a target.
    pub(crate) fn ssh_options(&self) -> SshOptions {
        let mut options = SshOptions::new(TARGET, NAME);
        options.extra = self.client_options();
        options.environment = self.client_environment().into_iter().collect();
        options
    }

    /// Has another program be `ssh` for a target: a shell does this.
    pub(crate) fn add_client(&self, ssh: &mut SshOptions, command: &str) {
        let folder = self.path("bin");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ssh"), format!("#!/bin/sh\n{command}\n")).unwrap();
        std::fs::set_permissions(folder.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let places = std::env::var("PATH").unwrap();
        let places = format!("{}:{places}", folder.display());
        ssh.environment.insert("PATH".into(), places.into());
    }

    /// The same by another way.
    pub(crate) fn through(&self, proxy: &Proxy) -> SshOptions {
        let mut options = self.ssh_options();
        options.extra.insert(0, format!("Port={}", proxy.port));
        options
    }

    /// Options of a session there.
    pub(crate) fn options(&self) -> SessionOptions {
        self.options_of(self.ssh_options())
    }

    /// The same for a target of the test's own.
    pub(crate) fn options_of(&self, ssh: SshOptions) -> SessionOptions {
        let backend = Arc::new(SshBackend::new(ssh));
        limited(SessionOptions::elsewhere(
            TARGET,
            backend,
            Environment::of_this_process(),
        ))
    }

    /// Opens a session.
    pub(crate) fn open(&self, options: SessionOptions) -> Live<'_> {
        Live::open(&self.broker, &self.runtime, options)
    }

    /// The command line, which reaches the host as [`TARGET`].
    pub(crate) fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
        command
            .env_clear()
            .envs(self.client_environment())
            .env("TALARIA_TERMINAL_SSH_OPTIONS", self.client_options().join(","))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The system's own `ssh`, with these arguments before the destination and a command behind it.
    pub(crate) fn ssh(&self, arguments: &[&str], command: &[&str]) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.env_clear()
            .envs(self.client_environment())
            .args(["-o", "BatchMode=yes"]);
        for option in self.client_options() {
            ssh.args(["-o", &option]);
        }
        ssh.args(arguments).arg(NAME).args(command);
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ssh
    }

    /// Processes that logins have started there.
    pub(crate) fn there(&self) -> Vec<Seen> {
        with_variable(&format!("{THERE}={}", self.mark()))
    }

    /// `ssh` and its helpers on this side.
    pub(crate) fn here(&self) -> Vec<Seen> {
        let mut seen = with_variable(&format!("{HERE}={}", self.mark()));
        seen.retain(|one| !one.command.contains("/talaria "));
        seen
    }

    /// The master connections on this side.
    pub(crate) fn masters(&self) -> Vec<Seen> {
        let mut seen = self.here();
        seen.retain(|one| one.command.starts_with("ssh ") && one.command.contains(" -M "));
        seen
    }

    /// The processes of `sshd` that serve a connection.
    pub(crate) fn servers(&self) -> Vec<Seen> {
        let listener = self.sshd.lock().unwrap().as_ref().map(Child::id);
        let Some(mut family) = listener.map(|pid| vec![i32::try_from(pid).unwrap()]) else {
            return Vec::new();
        };
        let all: Vec<(i32, Seen)> = processes()
            .filter(|seen| seen.command.starts_with("sshd"))
            .filter_map(|seen| Some((parent(seen.pid)?, seen)))
            .collect();
        let mut found = Vec::new();
        let mut next = 0;
        while next < family.len() {
            let of = family[next];
            for (_, seen) in all.iter().filter(|(parent, _)| *parent == of) {
                family.push(seen.pid);
                found.push(seen.clone());
            }
            next += 1;
        }
        found
    }

    /// Folders of sessions there.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        entries(&self.path("there"))
    }

    /// How the host sees a path.
    pub(crate) fn seen_there(&self, path: &str) -> PathBuf {
        let sshd = self.sshd.lock().unwrap();
        let pid = sshd.as_ref().map(Child::id).unwrap();
        PathBuf::from(format!("/proc/{pid}/root{path}"))
    }

    /// Waits until nothing of any session is left on either side.
    pub(crate) fn nothing_is_left(&self) {
        let left = || {
            let seen = [self.there(), self.here()].concat();
            let folders = [self.folders(), entries(&self.path("here"))].concat();
            (!seen.is_empty() || !folders.is_empty()).then(|| format!("{seen:?} {folders:?}"))
        };
        let began = Instant::now();
        while let Some(left) = left() {
            assert!(began.elapsed() < LIMIT, "left behind: {left}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends all sessions, and sees that nothing of them is left.
    pub(crate) fn close(&self) {
        close(&self.runtime, &self.broker);
        self.nothing_is_left();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for seen in [self.servers(), self.there(), self.here()].concat() {
            signal(seen.pid, "KILL");
        }
        self.stop();
    }
}

/// Whether there can be other accounts.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Name of the account that runs the tests.
fn account() -> String {
    let said = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

/// Where the interpreter is that `python3` means, whatever stands before it.
fn python_folder() -> PathBuf {
    let code = ["-I", "-S", "-c", "import sys; print(sys.executable)"];
    let said = Command::new("python3").args(code).output().unwrap();
    let path = PathBuf::from(String::from_utf8(said.stdout).unwrap().trim());
    path.parent().unwrap().to_owned()
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    /// Its command line, the arguments separated by blanks.
    pub(crate) command: String,
}

/// Every living process.
fn processes() -> impl Iterator<Item = Seen> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|pid| is_alive(*pid)).filter_map(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Seen { pid, command })
    })
}

/// Living processes with this entry in their environment.
fn with_variable(entry: &str) -> Vec<Seen> {
    let has_it = |seen: &Seen| {
        let environment = std::fs::read(format!("/proc/{}/environ", seen.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == entry.as_bytes())
    };
    processes().filter(has_it).collect()
}

/// Whether a process runs (a zombie does not).
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|fields| !matches!(fields[0].as_str(), "Z" | "X"))
}

fn parent(pid: i32) -> Option<i32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// The fields of `/proc/PID/stat` behind the name.
pub(crate) fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
