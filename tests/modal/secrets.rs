//! Tokens and variables of the account show nowhere: not in logs, command lines, outcomes or files.

use std::process::Command;

use crate::rig::Rig;
use crate::stand_in::TOKEN;

#[test]
fn tokens_show_neither_in_logs_nor_in_sandboxes() {
    let Some(rig) = Rig::new() else { return };
    let look = "import os, glob\n\
        found = [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline')]\n\
        print(any(b'as-stand-in' in text or b'ak-stand-in' in text for text in found), 'MODAL_TOKEN_ID' in os.environ)\n\
        from hermes_tools import terminal\n\
        print('stand-in' in terminal('env; cat /proc/*/cmdline')['output'])";
    for log in ["-vv", "-v"] {
        let done = Command::new(env!("CARGO_BIN_EXE_talaria"))
            .args(["run", "--on", "modal", log, "--env", "GREETING=hello", "-c", look])
            .env_clear()
            .envs(rig.modal.variables())
            .env("TALARIA_TERMINAL_MODAL_ENV", "DATABASE_PASSWORD=hunter2-hunter2")
            .env("HOME", rig.shared.path())
            .output()
            .unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
        );
        assert_eq!(stdout, "False False\nFalse\n", "{stderr}");
        assert!(stderr.contains("Modal") || log == "-v", "{stderr}");
        for secret in [TOKEN.0, TOKEN.1, "hunter2-hunter2", "Bearer ey"] {
            assert!(!stderr.contains(secret), "{secret} shows: {stderr}");
        }
    }
    // What is asked holds no token but in its head.
    for call in rig.modal.ask("GET", "/calls", None).as_array().unwrap() {
        assert!(!call["request"].to_string().contains("as-stand-in"), "{call}");
    }
    rig.end();
}

#[test]
fn the_brokers_tokens_cannot_be_passed() {
    let Some(rig) = Rig::new() else { return };
    for name in ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"] {
        let done = Command::new(env!("CARGO_BIN_EXE_talaria"))
            .args([
                "run",
                "--on",
                "modal",
                "--env",
                name,
                "-c",
                "import os; print(os.environ)",
            ])
            .env_clear()
            .envs(rig.modal.variables())
            .env("HOME", rig.shared.path())
            .output()
            .unwrap();
        let shown = format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(!shown.contains(TOKEN.0) && !shown.contains(TOKEN.1), "{shown}");
    }
    rig.end();
}
