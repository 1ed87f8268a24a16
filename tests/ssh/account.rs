//! Accounts of the host that a test makes and removes. Only root can.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::rig::{Rig, is_root};
use crate::sessions::{LIMIT, wait};

/// An account with a home of its own.
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    uid: u32,
}

impl Account {
    /// Makes one with this login shell; `None` where there can be none.
    pub(crate) fn new(rig: &Rig, shell: &str) -> Option<Self> {
        Self::with(rig, shell, &[])
    }

    /// The same with more arguments of `useradd`.
    pub(crate) fn with(rig: &Rig, shell: &str, more: &[&str]) -> Option<Self> {
        if !is_root() || !Path::new("/usr/sbin/useradd").exists() {
            eprintln!("SKIPPED: only root can make accounts, with useradd (apt-get install passwd)");
            return None;
        }
        let mut random = [0; 5];
        getrandom::fill(&mut random).unwrap();
        let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("tssh{random}");
        let home = rig.path(&name);
        let mut command = Command::new("/usr/sbin/useradd");
        // A password that nobody has: without any, sshd takes the account for locked.
        command.args([
            "--create-home",
            "--skel",
            "/nonexistent",
            "--no-log-init",
            "--password",
            "*",
        ]);
        command.args(["--shell", shell, "--home-dir"]).arg(&home);
        run(command.args(more).arg(&name));
        let told = run(Command::new("id").args(["-u", &name]));
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
        Some(Self {
            uid: String::from_utf8(told.stdout).unwrap().trim().parse().unwrap(),
            name,
            home,
        })
    }

    /// Writes a file of its own, below its home.
    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.home.join(path);
        let mut folder = path.parent().unwrap();
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(&path, text).unwrap();
        std::os::unix::fs::chown(&path, Some(self.uid), Some(self.uid)).unwrap();
        while folder != self.home {
            std::os::unix::fs::chown(folder, Some(self.uid), Some(self.uid)).unwrap();
            folder = folder.parent().unwrap();
        }
    }

    /// Writes a program of its own.
    pub(crate) fn program(&self, path: &str, text: &str) {
        self.file(path, text);
        let path = self.home.join(path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Its processes.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let told = Command::new("ps").args(["-o", "pid=,stat=", "-u", &self.name]).output();
        let told = String::from_utf8(told.unwrap().stdout).unwrap();
        let lines = told.lines().filter(|line| !line.contains('Z'));
        lines
            .filter_map(|line| line.split_whitespace().next()?.parse().ok())
            .collect()
    }

    /// Folders of sessions that are its own.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        use std::os::unix::fs::MetadataExt;
        let bases = ["/dev/shm", "/tmp", "/var/tmp"].map(PathBuf::from);
        let bases = bases.into_iter().chain([self.home.join(".cache")]);
        bases
            .filter_map(|base| std::fs::read_dir(base).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("talaria-"))
            .filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == self.uid))
            .map(|entry| entry.path())
            .collect()
    }

    /// Waits until nothing of any session is left that it owns.
    pub(crate) fn nothing_is_left(&self) {
        wait("what an account runs to end, and its folders to go", || {
            self.processes().is_empty() && self.folders().is_empty()
        });
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = Command::new("pkill").args(["-KILL", "-u", &self.name]).status();
        for folder in self.folders() {
            let _ = std::fs::remove_dir_all(folder);
        }
        // What it still runs is a zombie by now.
        attempt(Command::new("/usr/sbin/userdel").args(["--force", "--remove", &self.name]));
    }
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Output {
    let output = attempt(command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Runs one, again while others change the accounts.
fn attempt(command: &mut Command) -> Output {
    let began = Instant::now();
    loop {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains("lock") || began.elapsed() > LIMIT {
            return output;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
