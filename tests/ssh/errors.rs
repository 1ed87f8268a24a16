//! What goes wrong before a session begins: each kind has its own words, and ends in time.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use talaria_broker::backends::ssh::SshOptions;

use crate::account::Account;
use crate::logins::as_account;
use crate::rig::{Rig, free_port};
use crate::sessions::LIMIT;

/// The error of a session on such a host.
fn error(rig: &Rig, change: impl FnOnce(&mut SshOptions)) -> String {
    let mut ssh = rig.ssh_options();
    change(&mut ssh);
    let began = Instant::now();
    let outcome = rig.open(rig.options_of(ssh)).cell("print('ran')");
    assert!(began.elapsed() < LIMIT);
    assert_eq!((outcome.output.as_str(), outcome.exit_code), ("", None));
    outcome.error.unwrap()
}

/// Gives an option another value.
fn set(ssh: &mut SshOptions, option: &str) {
    let name = option.split_once('=').unwrap().0;
    ssh.extra.retain(|one| !one.starts_with(&format!("{name}=")));
    ssh.extra.push(option.to_owned());
}

/// Sees that an error has these words.
fn says(error: &str, words: &[&str]) {
    for words in words {
        assert!(error.contains(words), "`{words}` is missing: {error}");
    }
}

#[test]
fn a_host_that_cannot_be_reached_says_how_it_fails() {
    let Some(rig) = Rig::new() else { return };
    let said = error(&rig, |ssh| set(ssh, "HostName=no-such-host.invalid"));
    says(
        &said,
        &[
            "cannot be reached",
            "Could not resolve hostname no-such-host.invalid",
            "correct the name",
        ],
    );
    let said = error(&rig, |ssh| set(ssh, &format!("Port={}", free_port())));
    says(&said, &["cannot be reached", "Connection refused", "that sshd runs"]);
    let tools = rig.path("few");
    std::fs::create_dir(&tools).unwrap();
    for tool in ["sh", "mkdir", "rm"] {
        std::os::unix::fs::symlink(format!("/bin/{tool}"), tools.join(tool)).unwrap();
    }
    let said = error(&rig, |ssh| {
        ssh.environment.insert("PATH".into(), tools.into());
    });
    says(&said, &["ssh cannot be started here", "install the OpenSSH client"]);
    let said = error(&rig, |ssh| set(ssh, "ProxyCommand=no-such-program %h"));
    says(
        &said,
        &["cannot be reached", "no-such-program: not found", "ProxyCommand"],
    );
    let said = error(&rig, |ssh| ssh.extra.push("Nonsense=1".to_owned()));
    says(
        &said,
        &["cannot be used", "Bad configuration option: nonsense", "ssh_options"],
    );
    // Nothing answers, neither before a connection is made nor after.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let said = error(&rig, |ssh| {
        set(ssh, &format!("Port={port}"));
        ssh.connect_timeout = Duration::from_secs(1);
    });
    says(&said, &["cannot be reached", "network and firewall"]);
    // What listens there is something else, and hangs up.
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let other = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = silent.accept()
            && !ends.load(Ordering::SeqCst)
        {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0]);
        }
    });
    let said = error(&rig, |ssh| {
        set(ssh, &format!("Port={port}"));
        // It is tried again for as long.
        ssh.connect_timeout = Duration::from_secs(3);
    });
    is_over.store(true, Ordering::SeqCst);
    let _ = std::net::TcpStream::connect(("127.0.0.1", port));
    says(&said, &["cannot be reached", "what listens there is no sshd"]);
    other.join().unwrap();
    rig.close();
}

#[test]
fn a_login_that_never_ends_is_given_up() {
    // Its banner never comes to an end.
    let Some(rig) = Rig::new() else { return };
    let said = error(&rig, |ssh| {
        set(
            ssh,
            "ProxyCommand=sh -c \"printf 'SSH-2.0-x\\r\\n'; cat >/dev/null; true\"",
        );
        ssh.connect_timeout = Duration::from_secs(2);
    });
    says(
        &said,
        &["ssh did not get in within 2 s: it was connected, but the login did not end"],
    );
    rig.close();
}

#[test]
fn a_host_key_is_never_taken_unasked() {
    let Some(rig) = Rig::new() else { return };
    let fingerprint = Command::new("ssh-keygen").arg("-lf").arg(rig.path("host.pub")).output();
    let fingerprint = String::from_utf8(fingerprint.unwrap().stdout).unwrap();
    let fingerprint = fingerprint.split(' ').nth(1).unwrap();
    rig.know(&[]);
    let said = error(&rig, |_| ());
    let shown = format!(
        "its host key (ssh-ed25519 {fingerprint}, shown by 127.0.0.1:{}) is not known",
        rig.port
    );
    says(&said, &["cannot be used", &shown, "ssh_accept_new"]);
    // The very command that it names asks, and takes the key.
    let (_, by_hand) = said.split_once("before you say yes: ").unwrap();
    let by_hand = by_hand.split("; or set").next().unwrap();
    let asks = rig.path("asks");
    std::fs::write(&asks, "#!/bin/sh\necho yes\n").unwrap();
    std::fs::set_permissions(&asks, std::fs::Permissions::from_mode(0o755)).unwrap();
    // In its own session, it has no terminal and asks by that.
    let taken = Command::new("setsid")
        .args(["sh", "-c", &format!("{by_hand} true")])
        .env("SSH_ASKPASS", &asks)
        .env("SSH_ASKPASS_REQUIRE", "force")
        .output()
        .unwrap();
    assert!(taken.status.success(), "{by_hand}: {taken:?}");
    assert_eq!(rig.open(rig.options()).ok("print(1)"), "1\n");

    rig.make_key("other");
    rig.know(&["other"]);
    let said = error(&rig, |ssh| ssh.accept_new = true);
    let known = rig.path("known_hosts");
    says(
        &said,
        &[
            "is not the one that is known",
            fingerprint,
            "ssh-keygen -f",
            known.to_str().unwrap(),
            "-R",
        ],
    );
    // So is that one.
    let (_, forget) = said.split_once("forget the old one (").unwrap();
    let forget = forget.split(") and take").next().unwrap();
    assert!(
        Command::new("sh")
            .args(["-c", forget])
            .output()
            .unwrap()
            .status
            .success(),
        "{forget}"
    );
    let mut ssh = rig.ssh_options();
    // By setting, the first key that is seen is taken; the options of the rig would win.
    ssh.extra.retain(|one| !one.starts_with("StrictHostKeyChecking"));
    ssh.accept_new = true;
    assert_eq!(rig.open(rig.options_of(ssh)).ok("print(2)"), "2\n");
    assert!(std::fs::read_to_string(known).unwrap().contains("ssh-ed25519"));
    rig.close();
}

#[test]
fn a_key_that_lets_nobody_in_says_what_is_wrong_with_it() {
    let Some(rig) = Rig::new() else { return };
    let with = |name: &str| {
        let key = rig.path(name);
        error(&rig, |ssh| {
            ssh.extra.retain(|one| !one.starts_with("IdentityFile="));
            ssh.key = Some(key);
        })
    };
    rig.make_key("unknown");
    let path = rig.path("unknown");
    says(
        &with("unknown"),
        &[
            "Permission denied (publickey)",
            &format!("these keys were offered: {}", path.display()),
            "ssh-copy-id",
        ],
    );
    says(
        &with("missing"),
        &["not accessible: No such file or directory", "ssh_key"],
    );
    std::fs::copy(rig.path("user"), rig.path("open")).unwrap();
    std::fs::set_permissions(rig.path("open"), std::fs::Permissions::from_mode(0o644)).unwrap();
    says(
        &with("open"),
        &["bad permissions", &format!("chmod 600 {}", rig.path("open").display())],
    );
    std::fs::write(rig.path("garbage"), "nonsense\n").unwrap();
    std::fs::set_permissions(rig.path("garbage"), std::fs::Permissions::from_mode(0o600)).unwrap();
    says(&with("garbage"), &["could not be used", "IdentityFile"]);
    for file in ["user", "user.pub"] {
        std::fs::copy(rig.path(file), rig.path(&file.replace("user", "locked"))).unwrap();
    }
    let mut lock = Command::new("ssh-keygen");
    let lock = lock.args(["-q", "-p", "-N", "secret", "-f"]).arg(rig.path("locked"));
    assert!(lock.status().unwrap().success());
    says(
        &with("locked"),
        &[
            "needs its passphrase",
            &format!("ssh-add {}", rig.path("locked").display()),
        ],
    );
    rig.close();
}

#[test]
fn a_key_is_not_all_that_is_asked_for() {
    let lines = ["AuthenticationMethods publickey,password", "PasswordAuthentication yes"];
    let Some(rig) = Rig::with(&lines) else { return };
    says(&error(&rig, |_| ()), &["asks for more than a key", "ssh_control_path"]);
    rig.close();
    let Some(rig) = Rig::with(&["HostKeyAlgorithms rsa-sha2-512"]) else {
        return;
    };
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-f"])
        .arg(rig.path("rsa"))
        .status();
    assert!(made.unwrap().success());
    let line = format!("HostKey {}", rig.path("rsa").display());
    rig.stop();
    rig.configure(&["HostKeyAlgorithms rsa-sha2-512", &line]);
    assert!(rig.start());
    let said = error(&rig, |ssh| set(ssh, "HostKeyAlgorithms=ssh-ed25519"));
    says(&said, &["Unable to negotiate", "rsa-sha2-512", "HostKeyAlgorithms"]);
    rig.close();
}

#[test]
fn python_that_is_missing_too_old_or_broken_is_named() {
    let Some(rig) = Rig::new() else { return };
    let Some(account) = Account::new(&rig, "/bin/sh") else {
        return;
    };
    let with = |python: &str| {
        let mut options = as_account(&rig, &account);
        options.python = Some(python.into());
        rig.open(options).cell("print('ran')")
    };
    let missing = with("/no/such/python").error.unwrap();
    says(
        &missing,
        &[
            "no fit Python on ssh:talaria-test (/no/such/python: ",
            "Python 3.8 or newer",
            "`python`",
        ],
    );
    account.program("old", "#!/bin/sh\necho talaria-agent 3.6.15 /opt/python3.6\n");
    says(&with("~/old").error.unwrap(), &["~/old: is Python 3.6.15"]);
    account.program("broken", "#!/bin/sh\necho libpython3.so is missing >&2; exit 3\n");
    says(
        &with("~/broken").error.unwrap(),
        &["exited with 3: libpython3.so is missing"],
    );
    for real in ["3.6", "3.7"].into_iter().filter_map(real_python) {
        says(&with(&real).error.unwrap(), &["is Python 3."]);
    }
    // One that is found nowhere but below its home.
    account.program(
        ".pyenv/versions/3.11.9/bin/python3.11",
        "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n",
    );
    if Path::new("/usr/bin/python3").exists() {
        let outcome = with("python3.11");
        assert_eq!(outcome.output, "ran\n", "{:?}", outcome.error);
    }
    rig.close();
    account.nothing_is_left();
}

/// A host that has but this program in the place of all its interpreters.
fn with_only(python: &Path) -> Option<Rig> {
    let hide = format!(
        "for name in python python3 $(cd /usr/bin && ls -d python3.*[0-9]); do for f in /usr/bin /usr/local/bin; do \
         if test -e $f/$name; then mount --bind {} $f/$name; fi; done; done",
        python.display()
    );
    let rig = Rig::with_view(hide)?;
    // Nothing is looked for where the rig has its own.
    rig.set_path("/usr/bin:/bin");
    Some(rig)
}

#[test]
fn the_only_interpreter_is_named_where_it_is_too_old_and_used_where_it_is_not() {
    let versions = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
    let found: Vec<_> = versions
        .and_then(|folder| std::fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    let mut seen = 0;
    for (version, is_fit) in [("3.6.", false), ("3.7.", false), ("3.8.", true)] {
        let name = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let Some(entry) = found.iter().find(|entry| name(entry).starts_with(version)) else {
            eprintln!("SKIPPED: there is no Python {version}x below ~/.pyenv/versions");
            continue;
        };
        let Some(rig) = with_only(&entry.path().join("bin/python")) else {
            return;
        };
        let outcome = rig
            .open(rig.options())
            .cell("import platform; print(platform.python_version())");
        if is_fit {
            assert_eq!(outcome.output, format!("{}\n", name(entry)), "{:?}", outcome.error);
        } else {
            let error = outcome.error.unwrap();
            says(
                &error,
                &[
                    &format!("is Python {}", name(entry)),
                    ": is not there",
                    "name its path as `python`",
                ],
            );
            assert!(error.len() < 400, "{error}");
        }
        rig.close();
        seen += 1;
    }
    assert!(seen > 0 || found.is_empty());
}

/// An interpreter of that version which any account can run.
fn real_python(version: &str) -> Option<String> {
    let path = format!("/usr/bin/python{version}");
    Path::new(&path).exists().then_some(path)
}
