//! What ssh says, and what is made of it.

use super::*;

#[test]
fn only_a_host_that_hung_up_without_a_reason_is_asked_again() {
    for (said, expected) in [
        (
            "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 1.2.3.4 port 22",
            true,
        ),
        (
            "debug1: x\nkex_exchange_identification: Connection closed by remote host\n",
            true,
        ),
        (
            "kex_exchange_identification: banner line contains invalid characters\nExceeded MaxStartups",
            true,
        ),
        (
            "bash: nc: command not found\nkex_exchange_identification: Connection closed by remote host",
            false,
        ),
        ("ssh: connect to host box port 22: Connection refused", false),
        ("bob@box: Permission denied (publickey).", false),
        ("debug1: x", false),
    ] {
        assert_eq!(may_pass(said), expected, "{said}");
    }
}

#[test]
fn a_login_is_described() {
    let said = "OpenSSH_9.2p1, OpenSSL 3\ndebug1: Remote protocol version 2.0, remote software version OpenSSH_8.4\n\
                debug1: Server accepts key: /k ED25519 SHA256:x\nAuthenticated to box ([10.0.0.7]:22) using \"publickey\".";
    let expected = [
        ("ssh here", "OpenSSH_9.2p1, OpenSSL 3"),
        ("sshd there", "OpenSSH_8.4"),
        (
            "login",
            "box ([10.0.0.7]:22) using \"publickey\", with /k ED25519 SHA256:x",
        ),
    ];
    assert_eq!(about(said), expected.map(|(what, found)| (what, found.to_owned())));
    assert_eq!(about(""), []);
}

#[test]
fn each_failure_says_what_to_do() {
    let mut options = SshOptions::new("ssh://bob@box:2222", "bob@box");
    options.port = Some(2222);
    options.extra = vec!["UserKnownHostsFile=/a b".to_owned()];
    options
        .environment
        .insert("SSH_AUTH_SOCK".into(), "/no/such/agent".into());
    let attempt = Attempt { options: &options };
    for (said, words) in [
        (
            "ssh: Could not resolve hostname box: Name or service not known",
            "correct the name",
        ),
        (
            "ssh: connect to host box port 2222: Connection refused",
            "nothing listens there",
        ),
        ("ssh: connect to host box port 2222: Connection timed out", "firewall"),
        (
            "debug1: Authenticating to box:2222 as 'bob'\ndebug1: Server host key: ssh-ed25519 SHA256:x\n\
             No ED25519 host key is known for box and you have requested strict checking.\nHost key verification failed.",
            "(ssh-ed25519 SHA256:x, shown by box:2222) is not known here, and none is accepted without being asked for; \
             connect once by hand and compare the fingerprint before you say yes: \
             ssh -o StrictHostKeyChecking=ask -o 'UserKnownHostsFile=/a b' -p 2222 bob@box; or set ssh_accept_new",
        ),
        (
            "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nOffending ED25519 key in /a/known:1\n\
             Host key verification failed.",
            "ssh-keygen -f /a/known -R '[box]:2222'",
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n  remove with:\n  ssh-keygen -f \"/b\" -R \"alias\"",
            "(ssh-keygen -f \"/b\" -R \"alias\")",
        ),
        (
            "debug1: Offering public key: /k ED25519 SHA256:x\nbob@box: Permission denied (publickey).",
            "offered: /k ED25519 SHA256:x",
        ),
        (
            "debug1: x\nbob@box: Permission denied (password).",
            "no key was offered; no agent answers at /no/such/agent, which SSH_AUTH_SOCK names: No such file",
        ),
        (
            "debug1: Offering public key: /k ED25519-CERT SHA256:x\nbob@box: Permission denied (publickey).",
            "the certificate may have expired or be for other accounts",
        ),
        (
            "debug1: Authenticating to box:2222 as 'bob'\ndebug1: Server host certificate: ssh-ed25519-cert SHA256:x\n\
             Certificate invalid: expired\nHost key verification failed.",
            "not valid: expired (ssh-ed25519-cert SHA256:x, shown by box:2222); reach it by a name",
        ),
        (
            "@ WARNING: REVOKED HOST KEY DETECTED! @\nHost key verification failed.",
            "is marked as revoked here",
        ),
        (
            "gate: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535",
            "it refused the login (gate: Permission denied",
        ),
        (
            "debug1: Server accepts key: /k ED25519 SHA256:x explicit\nbob@box: Permission denied (publickey).",
            "ssh-add /k",
        ),
        (
            "debug1: Server accepts key: me@here ED25519 SHA256:x agent\nsign_and_send_pubkey: signing failed\n\
             bob@box: Permission denied (publickey).",
            "the agent did not sign",
        ),
        (
            "Load key \"/my key\": bad permissions\nbob@box: Permission denied (publickey).",
            "chmod 600 '/my key'",
        ),
        (
            "Warning: Identity file /k not accessible: No such file or directory.\nbob@box: Permission denied (publickey).",
            "Identity file /k not accessible: No such file or directory (bob@box",
        ),
        (
            "Authenticated using \"publickey\" with partial success.\nbob@box: Permission denied (password).",
            "ssh_control_path",
        ),
        (
            "debug1: Server accepts key: /k x explicit\nYour account has expired\nConnection closed by 10.0.0.7 port 22",
            "does not let the account in: Your account has expired; Connection closed",
        ),
        (
            "debug1: Server accepts key: /k x explicit\nchannel 0: open failed: connect failed: Connection refused\n\
             stdio forwarding failed\nkex_exchange_identification: Connection closed by remote host",
            "cannot be reached: the jump host does not reach it: channel 0: open failed: connect failed: Connection",
        ),
        (
            "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures",
            "IdentitiesOnly=yes",
        ),
        (
            "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found. Their offer: ssh-rsa",
            "HostKeyAlgorithms",
        ),
        (
            "/x/config: line 1: Bad configuration option: nonsense",
            "correct the configuration",
        ),
        (
            "kex_exchange_identification: Connection closed by remote host",
            "what listens there is no sshd",
        ),
        (
            "sh: 1: ssh: not found",
            "ssh cannot be started here: it is not on the PATH; install",
        ),
        ("sh: line 1: ssh: command not found", "install the OpenSSH client"),
        (
            "strange",
            "see what `ssh -o 'UserKnownHostsFile=/a b' -p 2222 bob@box` says",
        ),
    ] {
        let error = attempt.failed(said).to_string();
        assert!(
            error.starts_with("ssh://bob@box:2222 ") && error.contains(words),
            "{error}"
        );
        assert!(!error.contains("debug1"), "{error}");
    }
    for (said, words) in [
        ("debug1: Connecting to box", "within 30 s: nobody answered;"),
        ("debug1: Connection established.", "as an SSH server does"),
        ("debug1: Authenticating to box:22 as 'bob'", "the login did not end"),
    ] {
        let error = attempt.late(said).to_string();
        assert!(error.contains(words), "{error}");
    }
}
