//! Accounts that are not let in, that run no commands, and those that one becomes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use talaria_broker::backends::ssh::{SshBackend, SshOptions};
use talaria_broker::backends::{Backend, Command, Silent};
use talaria_broker::session::SessionOptions;

use crate::account::Account;
use crate::logins::as_account;
use crate::rig::Rig;
use crate::sessions::{LIMIT, wait};

/// What sudo may do there, for as long as this lives.
struct Rights(PathBuf);

impl Rights {
    /// `None` where there is no sudo.
    fn new(account: &Account, lines: &str) -> Option<Self> {
        if !Path::new("/usr/bin/sudo").exists() || !Path::new("/etc/sudoers.d").is_dir() {
            eprintln!("SKIPPED: there is no sudo (apt-get install sudo)");
            return None;
        }
        let path = Path::new("/etc/sudoers.d").join(&account.name);
        // A file with a dot in its name is not read yet.
        let aside = path.with_extension("new");
        std::fs::write(&aside, format!("{lines}\n")).unwrap();
        std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o440)).unwrap();
        std::fs::rename(aside, &path).unwrap();
        Some(Self(path))
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn becoming(rig: &Rig, login: &Account, user: &str) -> SshOptions {
    let mut ssh = rig.ssh_options();
    ssh.destination = format!("{}@{}", login.name, ssh.destination);
    ssh.r#become = Some(user.to_owned());
    ssh
}

/// The error of a session that cannot begin.
fn error(rig: &Rig, options: SessionOptions) -> String {
    let outcome = rig.open(options).cell("print('ran')");
    assert_eq!(outcome.output, "");
    outcome.error.unwrap()
}

#[test]
fn a_session_as_another_account_is_that_accounts_alone() {
    let Some(rig) = Rig::new() else { return };
    let Some(login) = Account::new(&rig, "/bin/bash") else {
        return;
    };
    let Some(other) = Account::new(&rig, "/bin/sh") else {
        return;
    };
    let line = format!("{} ALL=({}) NOPASSWD: /bin/sh", login.name, other.name);
    let Some(_rights) = Rights::new(&login, &line) else {
        return;
    };
    let session = rig.open(rig.options_of(becoming(&rig, &login, &other.name)));
    let printed = session.ok("import getpass, os\nfrom hermes_tools import terminal, write_file\n\
         print(getpass.getuser(), os.getcwd(), os.environ['HOME'])\n\
         write_file('~/written', 'x')\nprint(terminal('id -un; pwd; touch made; stat -c %U made written')['output'])");
    let (name, home) = (&other.name, other.home.display());
    assert_eq!(
        printed,
        format!("{name} {home} {home}\n{name}\n{home}\n{name}\n{name}\n\n")
    );
    assert!(!other.folders().is_empty() && login.folders().is_empty());
    rig.close();
    other.nothing_is_left();
    login.nothing_is_left();
    // What it started is killed by it, for whoever logged in may not.
    let killed = rig.runtime.block_on(async {
        let target = SshBackend::new(becoming(&rig, &login, &other.name))
            .open(&Silent)
            .await
            .unwrap();
        let command = Command {
            program: "sleep".into(),
            arguments: vec!["777".into()],
            environment: [].into(),
            folder: None,
            input: Default::default(),
        };
        let mut process = target.spawn(command).await.unwrap();
        while other.processes().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        process.end.kill();
        drop(process);
        let began = std::time::Instant::now();
        while !other.processes().is_empty() && began.elapsed() < LIMIT / 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let killed = other.processes().is_empty();
        target.close().await.unwrap();
        killed
    });
    assert!(killed);
}

#[test]
fn a_killed_broker_leaves_nothing_of_another_account() {
    let Some(rig) = Rig::new() else { return };
    let Some(login) = Account::new(&rig, "/bin/bash") else {
        return;
    };
    let Some(other) = Account::new(&rig, "/bin/bash") else {
        return;
    };
    let line = format!("{} ALL=({}) NOPASSWD: /bin/sh", login.name, other.name);
    let Some(_rights) = Rights::new(&login, &line) else {
        return;
    };
    let code = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '777'])\ntime.sleep(777)";
    let mut broker = rig
        .cli(&["run", "--on", &format!("ssh:{}@talaria-test", login.name), "-c", code])
        .env("TALARIA_TERMINAL_SSH_BECOME", &other.name)
        .env("TALARIA_CODE_EXECUTION_LEASE", "4s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "3s")
        .spawn()
        .unwrap();
    let sleeps = || {
        let lines = other.processes().into_iter();
        lines
            .filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0")))
            .count()
    };
    wait("what a cell of another account started", || sleeps() == 1);
    broker.kill().unwrap();
    broker.wait().unwrap();
    other.nothing_is_left();
    login.nothing_is_left();
    rig.nothing_is_left();
}

#[test]
fn whoever_may_not_become_another_is_told_the_line_that_lets_them() {
    let Some(rig) = Rig::new() else { return };
    let Some(login) = Account::new(&rig, "/bin/bash") else {
        return;
    };
    let Some(other) = Account::new(&rig, "/bin/sh") else {
        return;
    };
    let (name, user) = (&login.name, &other.name);
    let of = |user: &str| error(&rig, rig.options_of(becoming(&rig, &login, user)));
    let Some(rights) = Rights::new(&login, "") else { return };
    let line = format!("{name} ALL=({user}) NOPASSWD: /bin/sh");
    let said = of(user);
    assert!(
        said.contains(&format!("no command can be run as {user} by sudo: sudo: ")),
        "{said}"
    );
    assert!(said.contains(&line), "{said}");
    drop(rights);
    for (lines, words) in [
        (format!("{name} ALL=({user}) /bin/sh"), line.as_str()),
        (
            format!("Defaults:{name} requiretty\n{line}"),
            &format!("Defaults:{name} !requiretty"),
        ),
        (format!("{name} ALL=({user}) NOPASSWD: /bin/true"), &line),
    ] {
        let _rights = Rights::new(&login, &lines);
        let said = of(user);
        assert!(said.contains(words), "{lines}: {said}");
    }
    let _rights = Rights::new(&login, &line);
    let said = of("no-such-account");
    assert!(said.contains("name an account that exists there"), "{said}");
    // A login without sudo in reach.
    login.file(".bashrc", "PATH=/nowhere");
    let said = of(user);
    assert!(said.contains("install sudo there"), "{said}");
    rig.close();
}

#[test]
fn an_account_that_runs_no_commands_says_why() {
    let Some(rig) = Rig::new() else { return };
    for (shell, words) in [
        (
            "/bin/false",
            "ran none and ended with 1; the account needs a login shell",
        ),
        (
            "/usr/sbin/nologin",
            "ended with 1: This account is currently not available.; the account needs",
        ),
        ("/bin/rbash", "restricted"),
        // sshd lets nobody in then, and does not say why.
        (
            "/no/such/shell",
            "the account may be locked, expired or without a valid shell",
        ),
    ] {
        let Some(account) = Account::new(&rig, shell) else {
            return;
        };
        let said = error(&rig, as_account(&rig, &account));
        assert!(said.contains(words), "{shell}: {said}");
    }
    rig.close();
}

#[test]
fn a_forced_command_is_named() {
    for (lines, words) in [
        ("ForceCommand internal-sftp", "may only transfer files"),
        ("ForceCommand /usr/lib/openssh/sftp-server", "may only transfer files"),
        (
            "ForceCommand echo staff only; exit 4",
            "ended with 4: staff only; the account needs",
        ),
        (
            "ForceCommand echo no; exit 255",
            "lets the account in, and runs no command for it: no;",
        ),
        ("ForceCommand exec cat", "no command began there within 2 s"),
    ] {
        let Some(rig) = Rig::with(&[lines]) else { return };
        let mut ssh = rig.ssh_options();
        ssh.connect_timeout = Duration::from_secs(2);
        let said = error(&rig, rig.options_of(ssh));
        assert!(said.contains(words), "{lines}: {said}");
        rig.close();
    }
}

#[test]
fn an_account_that_has_expired_is_told_from_a_password_that_has() {
    if !Path::new("/etc/pam.d/sshd").exists() {
        eprintln!("SKIPPED: sshd has no PAM here");
        return;
    }
    let Some(rig) = Rig::with(&["UsePAM yes"]) else { return };
    let Some(account) = Account::with(&rig, "/bin/bash", &["--expiredate", "2020-01-01"]) else {
        return;
    };
    let said = error(&rig, as_account(&rig, &account));
    assert!(
        said.contains("does not let the account in: Your account has expired"),
        "{said}"
    );
    let Some(account) = Account::new(&rig, "/bin/bash") else {
        return;
    };
    let aged = std::process::Command::new("chage")
        .args(["-d", "0", &account.name])
        .status();
    assert!(aged.unwrap().success());
    let said = error(&rig, as_account(&rig, &account));
    assert!(
        said.contains("has to change its password first") && said.contains("log in by hand (ssh "),
        "{said}"
    );
    rig.close();
}
