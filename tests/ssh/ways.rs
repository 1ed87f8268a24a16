//! The ways in that `ssh` knows: over another host, by an alias, by an agent, by certificates, over IPv6.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use talaria_broker::backends::ssh::SshOptions;
use talaria_broker::session::Cell;

use crate::rig::{Rig, TARGET, is_alive};
use crate::sessions::{BUSY, LASTING, Process, lasts, nothing_was_lost, noting, signal, wait};

/// Has `ssh` read this instead of the configuration of whoever runs the test: `HOME` means nothing to it.
fn reads(rig: &Rig, ssh: &mut SshOptions, configuration: &str) {
    let path = rig.path("ssh_config");
    std::fs::write(&path, configuration).unwrap();
    rig.add_client(ssh, &format!("exec /usr/bin/ssh -F {} \"$@\"", path.display()));
    ssh.extra.clear();
}

/// What an `ssh` configuration says of a rig's host, under a name.
fn host(name: &str, rig: &Rig, more: &str) -> String {
    let lines: String = rig
        .client_options()
        .iter()
        .map(|option| format!("  {}\n", option.replacen('=', " ", 1)))
        .collect();
    format!("Host {name}\n{more}\n{lines}")
}

/// The error of a session that cannot begin.
fn error(rig: &Rig, ssh: SshOptions) -> String {
    let outcome = rig.open(rig.options_of(ssh)).cell("print('ran')");
    assert_eq!(outcome.output, "");
    outcome.error.unwrap()
}

/// Sees that an error has these words.
fn says(error: &str, words: &[&str]) {
    for words in words {
        assert!(error.contains(words), "`{words}` is missing: {error}");
    }
}

#[test]
fn a_host_behind_another_by_an_alias_of_an_included_file() {
    let (Some(rig), Some(gate)) = (Rig::new(), Rig::new()) else {
        return;
    };
    let mut ssh = rig.ssh_options();
    let folder = rig.path("more");
    std::fs::create_dir(&folder).unwrap();
    let here = rig.path("is-here");
    let alias = format!(
        "Match originalhost inner exec \"test -f {}\"\n  HostName 127.0.0.1\n{}",
        here.display(),
        host("gate", &gate, "")
    );
    std::fs::write(folder.join("one.conf"), alias).unwrap();
    let rest = host("inner", &rig, "  ProxyJump gate");
    let text = format!(
        "Include {}/*.conf\n{}",
        folder.display(),
        rest.replace("  HostName=127.0.0.1\n", "")
    );
    reads(&rig, &mut ssh, &text);
    ssh.destination = "inner".to_owned();
    std::fs::write(&here, "").unwrap();

    let mut options = rig.options_of(ssh.clone());
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    assert!(gate.log().contains("Accepted publickey") && !gate.servers().is_empty());
    // The way there goes, and is made again.
    let running = session.start(Cell::new(BUSY));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let servers = gate.servers();
    assert!(servers.iter().filter(|seen| signal(seen.pid, "KILL")).count() > 0);
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
    wait("the way there to end", || gate.servers().is_empty());

    // The host behind is not there, and the one before it is not.
    rig.stop();
    says(
        &error(&rig, ssh.clone()),
        &[
            "the jump host does not reach it",
            "Connection refused",
            "AllowTcpForwarding",
        ],
    );
    gate.stop();
    says(
        &error(&rig, ssh),
        &["cannot be reached", "Connection refused", &gate.port.to_string()],
    );
    rig.close();
}

#[test]
fn an_address_of_the_sixth_version() {
    let Some(rig) = Rig::with(&["ListenAddress ::1"]) else {
        return;
    };
    if std::net::TcpStream::connect(("::1", rig.port)).is_err() {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    }
    let options: Vec<String> = rig.client_options().into_iter().skip(2).collect();
    for (target, port) in [
        (format!("ssh://[::1]:{}", rig.port), None),
        ("ssh:[::1]".to_owned(), Some(rig.port)),
    ] {
        let mut command = rig.cli(&[
            "run",
            "--on",
            &target,
            "-c",
            "import os; print(os.environ['SSH_CONNECTION'])",
        ]);
        command.env("TALARIA_TERMINAL_SSH_OPTIONS", options.join(","));
        if let Some(port) = port {
            command.env("TALARIA_TERMINAL_SSH_PORT", port.to_string());
        }
        let done = command.output().unwrap();
        let printed = String::from_utf8_lossy(&done.stdout);
        assert!(printed.starts_with("::1 "), "{target}: {done:?}");
    }
    rig.nothing_is_left();
}

/// An `ssh-agent` of the test's own; it ends with this.
struct Agent(Child);

impl Agent {
    /// With the user's key, to be used as `flags` say.
    fn new(rig: &Rig, flags: &[&str]) -> Self {
        let socket = rig.path("agent");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("ssh-agent");
        command
            .arg("-D")
            .arg("-a")
            .arg(&socket)
            .env_remove("DISPLAY")
            .env_remove("SSH_ASKPASS");
        let agent = Self(command.stdout(Stdio::null()).spawn().unwrap());
        wait("the agent", || socket.exists());
        let mut add = Command::new("ssh-add");
        add.args(flags).arg(rig.path("user")).env("SSH_AUTH_SOCK", socket);
        assert!(add.output().unwrap().status.success());
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_key_that_only_an_agent_has() {
    let Some(rig) = Rig::new() else { return };
    let mut ssh = rig.ssh_options();
    ssh.extra.retain(|option| !option.starts_with("Identit"));
    ssh.environment.insert("SSH_AUTH_SOCK".into(), rig.path("agent").into());
    let agent = Agent::new(&rig, &[]);
    let session = rig.open(rig.options_of(ssh.clone()));
    assert_eq!(
        session.ok("import os; print(os.environ.get('SSH_AUTH_SOCK'))"),
        "None\n"
    );
    rig.close();
    drop(agent);
    // One that asks before it signs, and has nobody to ask.
    let agent = Agent::new(&rig, &["-c"]);
    says(
        &error(&rig, ssh.clone()),
        &["the agent did not sign with the key", "ssh_key"],
    );
    drop(agent);
    let socket = rig.path("agent");
    says(
        &error(&rig, ssh),
        &[
            "no key was offered",
            &format!("no agent answers at {}", socket.display()),
        ],
    );
    rig.close();
}

/// Signs a key of the rig's with another: `NAME.pub` → `NAME-cert.pub`.
fn certify(rig: &Rig, by: &str, arguments: &[&str], name: &str) {
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-q", "-I", name, "-s"]).arg(rig.path(by)).args(arguments);
    assert!(sign.arg(rig.path(&format!("{name}.pub"))).status().unwrap().success());
}

#[test]
fn certificates_of_the_user_and_of_the_host() {
    let Some(rig) = Rig::new() else { return };
    for name in ["authority", "holder"] {
        rig.make_key(name);
    }
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let user = user.trim();
    let lines = [
        format!("TrustedUserCAKeys {}", rig.path("authority.pub").display()),
        format!("HostCertificate {}", rig.path("host-cert.pub").display()),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    certify(&rig, "authority", &["-h", "-n", "talaria-test"], "host");
    let known = format!(
        "@cert-authority talaria-* {}",
        std::fs::read_to_string(rig.path("authority.pub")).unwrap()
    );
    std::fs::write(rig.path("known_hosts"), known).unwrap();
    std::fs::write(rig.path("authorized_keys"), "").unwrap();
    let anew = || {
        rig.stop();
        rig.configure(&lines);
        assert!(rig.start());
    };
    anew();
    let mut ssh = rig.ssh_options();
    ssh.extra.retain(|option| !option.starts_with("IdentityFile="));
    ssh.key = Some(rig.path("holder"));

    certify(&rig, "authority", &["-n", user, "-V", "+1h"], "holder");
    assert_eq!(rig.open(rig.options_of(ssh.clone())).ok("print(1)"), "1\n");
    certify(&rig, "authority", &["-n", user, "-V", "-2h:-1h"], "holder");
    says(
        &error(&rig, ssh.clone()),
        &["ED25519-CERT", "the certificate may have expired", "ssh-keygen -L"],
    );

    certify(&rig, "authority", &["-h", "-n", "another"], "host");
    anew();
    says(
        &error(&rig, ssh.clone()),
        &[
            "certificate of its host key is not valid: name is not a listed principal",
            "HostKeyAlias",
        ],
    );
    std::fs::write(rig.path("known_hosts"), "").unwrap();
    says(&error(&rig, ssh), &["is not known here", " CA ssh-ed25519 SHA256:"]);
    rig.close();
}

/// What ignores the end of its streams and the usual signals, as some helpers of single sign-on do.
#[test]
fn a_proxy_command_that_does_not_end_is_ended() {
    let Some(rig) = Rig::new() else { return };
    let (pids, helper) = (rig.path("pids"), rig.path("helper"));
    let script = format!(
        "#!/bin/bash\ntrap '' HUP TERM PIPE INT\necho $$ >>{}\nexec 3<>/dev/tcp/127.0.0.1/{}\ncat <&3 &\ncat >&3\n\
         for _ in $(seq 600); do sleep 0.2; done\n",
        pids.display(),
        rig.port
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut ssh = rig.ssh_options();
    ssh.extra.push(format!("ProxyCommand={}", helper.display()));
    let session = rig.open(rig.options_of(ssh));
    session.ok("kept = 1");
    let helpers = || -> Vec<i32> {
        let text = std::fs::read_to_string(&pids).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    for seen in rig.masters() {
        assert!(signal(seen.pid, "KILL"));
    }
    assert_eq!(session.ok("print(kept)"), "1\n");
    let first = helpers()[0];
    wait("the helper of a killed ssh to end", || !is_alive(first));
    rig.close();
    assert!(helpers().iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn every_setting_of_a_target_in_the_configuration() {
    let Some(rig) = Rig::new() else { return };
    let folder = rig.path("home").join("my project");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.display();
    let known = rig.path("known_hosts");
    let known = known.display();
    let key = rig.path("user");
    rig.add_tool("python-of-mine", "#!/bin/sh\nOWN=1 exec python3 \"$@\"\n");
    let text = format!(
        "targets:\n  rig:\n    target: ssh:127.0.0.1\n    ssh_port: {}\n    ssh_key: {}\n    ssh_options: \
         [HostKeyAlias=talaria-test, UserKnownHostsFile={known}, IdentitiesOnly=yes]\n    ssh_connect_timeout: 45s\n    \
         cwd: ~/my project\n    python: {}\n    env_passthrough: [PASSED]\n    env: scrubbed\n    transport: polled\n  \
         whole:\n    target: ssh://127.0.0.1:{}\n    ssh_key: {}\n    ssh_options: [HostKeyAlias=talaria-test, \
         UserKnownHostsFile={known}]\n  lost:\n    target: ssh://127.0.0.1:{}\n    ssh_key: {}\n    ssh_options: \
         [HostKeyAlias=talaria-test, UserKnownHostsFile={known}]\n    cwd: ~/no such folder\n  nobody:\n    target: \
         ssh://127.0.0.1:{}\n    ssh_user: no-such-account\n    ssh_key: {}\n    ssh_options: \
         [HostKeyAlias=talaria-test, UserKnownHostsFile={known}]\n  keyless:\n    target: ssh://127.0.0.1:{}\n    \
         ssh_key: /no-such-key\n",
        rig.port,
        key.display(),
        rig.path("tools").join("python-of-mine").display(),
        rig.port,
        key.display(),
        rig.port,
        key.display(),
        rig.port,
        key.display(),
        rig.port,
    );
    let file = rig.path("config.yaml");
    std::fs::write(&file, text).unwrap();
    // What a login there finds in its environment.
    std::fs::write(rig.path("home").join(".profile"), "export LOGIN_API_KEY=k-87654321\n").unwrap();
    let code = "import os\nfrom hermes_tools import terminal\nprint(os.getcwd(), os.environ.get('OWN'), \
                os.environ.get('PASSED'), os.environ.get('LOGIN_API_KEY'), \
                terminal('echo ${#LOGIN_API_KEY} $PASSED')['output'].split())";
    let run = |target: &str| {
        let mut command = rig.cli(&["run", "--config", file.to_str().unwrap(), "--on", target, "-c", code]);
        command
            .env_remove("TALARIA_TERMINAL_SSH_OPTIONS")
            .env("PASSED", "passed");
        let done = command.output().unwrap();
        (
            String::from_utf8_lossy(&done.stdout).into_owned(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let (printed, error) = run("rig");
    assert_eq!(printed, format!("{folder} 1 passed None ['0', 'passed']\n"), "{error}");
    let (printed, error) = run("nobody");
    assert!(
        printed.is_empty() && error.contains("no-such-account@127.0.0.1"),
        "{error}"
    );
    let (printed, error) = run("keyless");
    assert!(
        printed.is_empty() && error.contains("ssh_key") && error.contains("there is no file"),
        "{error}"
    );
    let (printed, error) = run("whole");
    let home = rig.path("home");
    assert!(printed.ends_with(" None None None ['10']\n"), "{printed} {error}");
    let (_, error) = run("lost");
    let lost = format!(
        "the working directory {}/no such folder cannot be entered",
        home.display()
    );
    assert!(error.contains(&lost), "{error}");

    // The same from the file of an agent, which knows hosts by keys of its own.
    let terminal = format!(
        "terminal:\n  backend: ssh\n  ssh_host: 127.0.0.1\n  ssh_port: {}\n  ssh_key: {}\n  ssh_options: \
         [HostKeyAlias=talaria-test, UserKnownHostsFile={known}]\n  cwd: ~/my project\n",
        rig.port,
        key.display(),
    );
    std::fs::write(rig.path("home").join("config.yaml"), terminal).unwrap();
    let done = rig
        .cli(&[
            "run",
            "-c",
            "import os; print(os.getcwd(), 'SSH_CONNECTION' in os.environ)",
        ])
        .env_remove("TALARIA_TERMINAL_SSH_OPTIONS")
        .env("HERMES_HOME", rig.path("home"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert_eq!(printed, format!("{folder} True\n"), "{done:?}");
    rig.nothing_is_left();
}

/// Then the process that was started has ended long before the connection.
#[test]
fn a_connection_that_goes_into_the_background_ends_too() {
    let Some(rig) = Rig::new() else { return };
    let mut ssh = rig.ssh_options();
    let text = host("talaria-test", &rig, "  ForkAfterAuthentication yes");
    reads(&rig, &mut ssh, &text);
    let known = rig.path("ssh_config");
    let known = Command::new("ssh").arg("-G").arg("-F").arg(known).arg("x").output();
    if !known.unwrap().status.success() {
        return; // an older one does not know it
    }
    let session = rig.open(rig.options_of(ssh.clone()));
    assert_eq!(session.ok("kept = 1\nprint(1)"), "1\n");
    assert_eq!(session.ok("print(kept)"), "1\n");
    rig.close();

    // Nor does it stay behind a broker that is killed.
    let mut command = rig.cli(&["run", "--on", TARGET, "-c", LASTING]);
    command
        .env("PATH", &ssh.environment[OsStr::new("PATH")])
        .env("TALARIA_CODE_EXECUTION_LEASE", "4s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "3s")
        .env_remove("TALARIA_TERMINAL_SSH_OPTIONS");
    let mut broker = Process(command.spawn().unwrap());
    wait("the cell", || lasts(rig.there().iter().map(|seen| &seen.command)));
    broker.kill();
    rig.nothing_is_left();
}

/// What is of use to somebody at a terminal, and would harm a session.
#[test]
fn a_configuration_that_is_meant_for_a_terminal() {
    let Some(rig) = Rig::new() else { return };
    let mut ssh = rig.ssh_options();
    let more = format!(
        "  ControlMaster auto\n  ControlPath {}/%C\n  ControlPersist 10\n  LogLevel QUIET\n  RemoteCommand echo remote\n  \
         RequestTTY force\n  LocalForward 127.0.0.1:{} 127.0.0.1:1\n  ExitOnForwardFailure yes\n  PermitLocalCommand yes\n  \
         LocalCommand echo local; echo local >&2\n  VisualHostKey yes\n  ForwardX11 yes\n  ForwardAgent yes\n  \
         Compression yes\n  SendEnv *\n  ServerAliveInterval 0",
        rig.path("here").display(),
        rig.port,
    );
    let text = host("talaria-test", &rig, &more);
    reads(&rig, &mut ssh, &text);
    let session = rig.open(rig.options_of(ssh));
    let code = "from hermes_tools import terminal; print(terminal('echo on; tty')['output'])";
    assert_eq!(session.ok(code), "on\nnot a tty\n\n");
    rig.close();
}
