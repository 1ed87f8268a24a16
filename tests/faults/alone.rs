//! Places where no process of ours can be started beside another: cells as standalone scripts, one command each.

use talaria_broker::outcome::{KernelMode, Outcome, Status};
use talaria_broker::session::Cell;

use crate::rig::{Live, Notes, Rig, nothing_of_ours_in, processes, succeeded, wait};

/// That a cell ran alone, and that this is said, with the limit.
fn says_so(outcome: &Outcome, limit: &str) {
    let kernel = outcome.kernel.as_ref().unwrap_or_else(|| panic!("{outcome:#?}"));
    assert_eq!(kernel.mode, KernelMode::OneShot, "{outcome:#?}");
    assert_eq!(kernel.transport, "alone", "{outcome:#?}");
    let notice = outcome.notice.as_deref().unwrap_or_default();
    assert!(
        notice.contains(limit) && notice.contains("standalone script"),
        "{outcome:#?}"
    );
}

/// What needs no process but that of the cell.
fn keeps_the_contract(session: &Live, limit: &str) {
    let outcome = session.cell("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 1");
    says_so(&outcome, limit);
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Success, Some(0)),
        "{outcome:#?}"
    );
    assert_eq!(
        (outcome.output.as_str(), outcome.stderr.as_deref()),
        ("out\n", Some("err\n"))
    );

    let outcome = session.cell("print('a')\nprint(x)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(1)),
        "no state: {outcome:#?}"
    );
    assert_eq!(outcome.error.as_deref(), Some("NameError: name 'x' is not defined"));
    assert!(
        outcome.output.starts_with("a\n--- stderr ---\nTraceback"),
        "{outcome:#?}"
    );
    assert!(!outcome.kernel.unwrap().state_lost);

    let outcome = session.cell("import sys\nsys.exit(3)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(3)),
        "{outcome:#?}"
    );
    let outcome = session.cell("import os\nprint('so far')\nos._exit(0)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(0)),
        "{outcome:#?}"
    );
    assert_eq!(outcome.output, "so far\n");
    let outcome = session.cell("import os\nos.kill(os.getpid(), 9)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(137)),
        "{outcome:#?}"
    );
    assert!(outcome.error.unwrap().contains("SIGKILL"));

    // More than any pipe or buffer on the way holds.
    let outcome =
        session.cell("import sys\nfor n in range(40):\n    print('x' * 99999)\nprint('y' * 5, file=sys.stderr)");
    assert_eq!(outcome.stdout_bytes_total, 4_000_000, "{outcome:#?}");
    assert_eq!(outcome.stderr.as_deref(), Some("yyyyy\n"));

    let notes = Notes::new();
    let mut cell = Cell::new(
        "from hermes_tools import note\nbig = 'z' * 300000\nprint([note(n)['value'] for n in range(20)])\nprint(note(99) == {'value': 99})",
    );
    cell.host = Some(notes.clone());
    assert!(succeeded(session.run(cell)).ends_with("18, 19]\nTrue\n"));
    assert_eq!(notes.numbers(), (0..20).chain([99]).collect::<Vec<u64>>());

    let mut cell = Cell::new("import sys\nprint('begun')\nsys.stdout.flush()\nwhile True:\n    pass");
    cell.limits.timeout = Some(std::time::Duration::from_secs(2));
    let outcome = session.run(cell);
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Timeout, Some(124)),
        "{outcome:#?}"
    );
    assert!(outcome.output.starts_with("begun\n"), "{outcome:#?}");
}

/// A cell that is cancelled is gone from the container, whatever it does about signals.
fn can_be_cancelled(session: &Live, name: &str) {
    let cell = Cell::new(
        "import signal, time\nfor number in set(range(1, 65)) - {9, 19, 32, 33}:\n    try:\n        signal.signal(number, signal.SIG_IGN)\n    except OSError:\n        pass\ntime.sleep(600)",
    );
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    wait("the cell to run", || processes(name).len() > 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    cancel.cancel("enough");
    let outcome = running.wait();
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Interrupted, Some(130)),
        "{outcome:#?}"
    );
    wait("the cell to be gone", || processes(name).len() == 1);
}

#[test]
fn a_limit_of_processes() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running_alone("base", &["--pids-limit", "2"]);
    {
        let session = rig.open(options);
        keeps_the_contract(&session, "allows 2 processes at once");
        can_be_cancelled(&session, &name);
        // What an engine starts does not meet the limit, what that starts does.
        let said = session.ok("from hermes_tools import terminal\nprint(terminal('echo hi; $(echo)', timeout=2))");
        assert!(said.contains("hi\\n") && said.contains("fork"), "{said}");
    }
    rig.close();
    nothing_of_ours_in(&name);
}

#[test]
fn a_command_and_a_file_where_one_process_more_fits() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running_alone("base", &["--pids-limit", "3"]);
    {
        let session = rig.open(options);
        let code = "from hermes_tools import read_file, terminal, write_file\n\
             print(terminal('echo hi; cd /usr; export A=b')['output'], end='')\n\
             print(terminal('pwd; echo $A; exit 3'))\n\
             write_file('/tmp/alone.txt', 'one\\ntwo\\n')\n\
             print(read_file('/tmp/alone.txt', raw=True)['content'], end='')";
        let mut outcome = session.cell(code);
        // The engine's own helper counts towards the limit while it starts a process, and may lose sight of another
        // one by that; which is said, and no fault of ours.
        for _ in 0..3 {
            if outcome.error.as_deref() != Some("the Python process is gone") {
                break;
            }
            outcome = session.cell(code);
        }
        says_so(&outcome, "allows 3 processes at once");
        assert!(
            outcome
                .output
                .starts_with("hi\n{'output': '/usr\\nb\\n', 'exit_code': 3"),
            "{outcome:#?}"
        );
        assert!(outcome.output.ends_with("one\ntwo\n"), "{outcome:#?}");
        // The folder is the session's.
        assert_eq!(session.ok("import os\nprint(os.getcwd())"), "/usr\n");
        let said =
            session.ok("from hermes_tools import terminal\nprint(terminal('echo a; while :; do :; done', timeout=1))");
        assert!(said.contains("'output': 'a\\n', 'exit_code': 124"), "{said}");
    }
    rig.close();
    nothing_of_ours_in(&name);
}

/// A supervisor fits, but no kernel beneath it.
#[test]
fn a_limit_at_which_only_a_supervisor_fits() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running_alone("base", &["--pids-limit", "5"]);
    {
        let session = rig.open(options);
        for _ in 0..2 {
            let outcome =
                session.cell("from hermes_tools import terminal\nprint(terminal('echo hi')['output'], end='')");
            says_so(&outcome, "allows 5 processes at once");
            assert_eq!(outcome.output, "hi\n", "{outcome:#?}");
        }
        // Threads call side by side; a process that the script starts hears why it cannot.
        let mut cell = Cell::new(
            "import subprocess, sys\n\
             from concurrent.futures import ThreadPoolExecutor\n\
             from hermes_tools import note\n\
             with ThreadPoolExecutor(2) as pool:\n    \
                 print([found['value'] for found in pool.map(note, range(40))] == list(range(40)))\n\
             code = 'from hermes_tools import note; print(note(1))'\n\
             print(subprocess.run([sys.executable, '-c', code], stdout=-1).stdout.decode())",
        );
        let notes = Notes::new();
        cell.host = Some(notes.clone());
        let said = succeeded(session.run(cell));
        assert!(
            said.starts_with("True\n{'error': \"tools can be called only from"),
            "{said}"
        );
        assert_eq!(notes.numbers(), (0..40).collect::<Vec<u64>>());
        // These end at the latest with the session.
        session.ok("import subprocess\n\
             from hermes_tools import terminal\n\
             subprocess.Popen(['sleep', '501'], start_new_session=True)\n\
             terminal('sleep 502 &')");
    }
    rig.close();
    nothing_of_ours_in(&name);
}

#[test]
fn forbidden_forks() {
    let Some(rig) = Rig::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rule =
        serde_json::json!({"names": ["fork", "vfork", "clone", "clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1});
    let profile = serde_json::json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]});
    let path = folder.path().join("profile.json");
    std::fs::write(&path, profile.to_string()).unwrap();
    let option = format!("seccomp={}", path.display());
    let (options, name) = rig.running_alone("base", &["--security-opt", &option]);
    {
        let session = rig.open(options);
        keeps_the_contract(&session, "forbids it (operation not permitted; a seccomp profile");
        can_be_cancelled(&session, &name);
        assert_eq!(
            session.ok("from hermes_tools import terminal\nprint(terminal('echo hi')['output'], end='')"),
            "hi\n"
        );
    }
    rig.close();
    nothing_of_ours_in(&name);
}
