//! Places that allow few processes, or forbid system calls.

use talaria_broker::outcome::{KernelMode, Outcome, Status};

use crate::rig::{Rig, nothing_of_ours_in};

const CELL: &str = "from hermes_tools import terminal\nprint(terminal('echo on')['output'], end='')";

/// Whatever a container's limit of processes, each cell ends with an outcome, and what is wrong names the limit.
#[test]
fn few_processes() {
    let Some(rig) = Rig::new() else { return };
    let image = rig.image("base");
    let names_the_limit = |text: &str, limit: i64| {
        let words = format!("allows {limit} processes at once");
        assert!(text.contains(&words) && text.contains("raise the limit"), "{text}");
    };
    for limit in [2, 3, 4, 5, 8, 16] {
        let options = rig.docker_options(&image, |options| options.processes = limit);
        let session = rig.open(options);
        let outcome = session.cell("print('ran')");
        match outcome.status {
            Status::Success => assert_eq!(outcome.output, "ran\n", "{outcome:#?}"),
            _ => {
                assert_eq!(outcome.exit_code, None, "nothing ran: {outcome:#?}");
                names_the_limit(&outcome.error.unwrap(), limit);
            }
        }
        let outcome = session.cell("from hermes_tools import terminal\nprint(terminal('echo on'))");
        let says = outcome.error.unwrap_or(outcome.output);
        if !says.contains("'output': 'on\\n'") {
            names_the_limit(&says, limit);
        }
        assert!(limit < 16 || says.contains("'output': 'on\\n'"), "{says}");
    }
    rig.close();
}

/// What a session in a container says in which these system calls fail.
fn without(rig: &Rig, calls: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let rule = serde_json::json!({"names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": 1});
    let profile = serde_json::json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]});
    let path = folder.path().join("profile.json");
    std::fs::write(&path, profile.to_string()).unwrap();
    let option = format!("seccomp={}", path.display());
    // No init: it would fork.
    let (options, name) = rig.running_alone("base", &["--security-opt", &option]);
    let outcome = rig.open(options).cell(CELL);
    rig.close();
    nothing_of_ours_in(&name);
    outcome
}

#[test]
fn sessions_of_processes_may_be_forbidden() {
    let Some(rig) = Rig::new() else { return };
    let outcome = without(&rig, &["setsid"]);
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "on\n"),
        "{outcome:#?}"
    );
    assert_eq!(outcome.kernel.unwrap().mode, KernelMode::Session);
}

#[test]
fn forbidden_fifos_are_named() {
    let Some(rig) = Rig::new() else { return };
    let outcome = without(&rig, &["mknod", "mknodat"]);
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, None),
        "{outcome:#?}"
    );
    let error = outcome.error.unwrap();
    assert!(error.contains("/dev/shm (it takes no FIFO"), "{error}");
}
