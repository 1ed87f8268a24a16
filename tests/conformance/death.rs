//! How things end: cells that will not, places that cannot be written, and the death of the broker.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::observe::{self, wait_until};
use crate::rig::{HANG, Kind, Rig};
use crate::sandboxes;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_timeout_ends_whatever_ignores_it,
    a_timeout_ends_loops_that_nothing_interrupts,
    an_interrupt_ends_the_tree_too,
    a_broker_killed_while_a_session_starts,
    a_broker_killed_while_a_cell_holds_the_gil,
    a_broker_killed_while_a_command_runs,
    a_broker_killed_with_children_everywhere,
    a_broker_killed_with_guard_and_supervisor_stopped,
    a_broker_told_to_end,
    a_temporary_folder_of_any_kind,
    a_working_directory_that_goes_away,
    a_working_directory_that_may_not_be_entered,
    too_few_processes_allowed,
];

/// Starts children of every kind, all of which ignore SIGTERM.
const FAMILY: &str = "
import os, signal, subprocess, sys, time
stubborn = 'import signal, time\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\\n'
child = [sys.executable, '-c', stubborn + 'time.sleep(300)']
subprocess.Popen(child)
subprocess.Popen(child, start_new_session=True)
# A double fork, and one that goes on forking (for half a minute: should it ever get away, it ends by itself).
subprocess.run([sys.executable, '-c', 'import os\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0:\\n        ' + (stubborn + 'time.sleep(300)').replace('\\n', '\\n        ')])
subprocess.Popen([sys.executable, '-c', stubborn + 'import os\\nfor _ in range(3000):\\n    if os.fork():\\n        os._exit(0)\\n    os.setsid()\\n    time.sleep(0.01)'])
print('family', flush=True)
";

fn nothing_left(rig: &Rig) -> bool {
    observe::with_mark(rig.scratch().to_str().unwrap()).is_empty()
        && std::fs::read_dir(rig.tmp()).unwrap().next().is_none()
}

fn a_timeout_ends_whatever_ignores_it(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell_for(
        1.5,
        &format!("{FAMILY}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)"),
    );
    assert_eq!(outcome.status, Status::Timeout, "{outcome:#?}");
    assert!(outcome.output.starts_with("family\n"), "{outcome:#?}");
    // The supervisor is there for the next cell, and nothing else.
    let left = observe::with_mark(rig.scratch().to_str().unwrap());
    let is_expected = |command: &str| command.contains("-I -S -c") || sandboxes::is_first(command);
    assert!(left.iter().all(|seen| is_expected(&seen.command)), "{left:#?}");
    assert_eq!(session.ok("print('next')"), "next\n");
}

fn a_timeout_ends_loops_that_nothing_interrupts(rig: &Rig) {
    let loops = [
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "sum(range(10**12))",
        "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    ];
    let sessions = loops.map(|code| {
        let session = rig.session();
        session.ok("print('before')");
        let mut cell = Cell::new(format!("print('begun')\n{code}"));
        cell.limits.timeout = Some(Duration::from_millis(500));
        let running = session.start(cell);
        (session, running)
    });
    for ((session, running), code) in sessions.into_iter().zip(loops) {
        let outcome = running.wait();
        assert_eq!(outcome.status, Status::Timeout, "{code}: {outcome:#?}");
        assert!(outcome.output.starts_with("begun\n"), "{code}: {outcome:#?}");
        assert!(outcome.kernel.unwrap().state_lost);
        assert_eq!(session.ok("print('next')"), "next\n", "{code}");
    }
}

fn an_interrupt_ends_the_tree_too(rig: &Rig) {
    let session = rig.session();
    let cell = Cell::new(format!("{FAMILY}\nopen('ready', 'w').close()\ntime.sleep(300)"));
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    assert!(wait_until(HANG, || rig.work().join("ready").exists()));
    cancel.cancel_at_once("enough");
    let outcome = running.wait();
    assert_eq!((outcome.status, outcome.exit_code), (Status::Interrupted, Some(130)));
    assert!(
        outcome.output.ends_with("[execution interrupted — enough]"),
        "{outcome:#?}"
    );
    let left = observe::with_mark(rig.scratch().to_str().unwrap());
    let is_expected = |command: &str| command.contains("-I -S -c") || sandboxes::is_first(command);
    assert!(left.iter().all(|seen| is_expected(&seen.command)), "{left:#?}");
}

/// Kills a command line at moments that differ from run to run; nothing may be left.
fn killed_at(rig: &Rig, code: &str, ready: Option<&str>, delays: &[u64], signal: Signal) {
    let shift = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_micros()) % 13;
    for delay in delays {
        let started = rig.mortal_cli(["run", "-c", code]).start();
        if let Some(text) = ready {
            started.wait_for(text);
        }
        let delay = delay + shift;
        std::thread::sleep(Duration::from_millis(delay));
        started.signal(signal);
        started.wait();
        assert!(
            wait_until(rig.left_behind(), || nothing_left(rig)),
            "{delay} ms: {:#?} {:#?}",
            observe::with_mark(rig.scratch().to_str().unwrap()),
            std::fs::read_dir(rig.tmp()).unwrap().flatten().collect::<Vec<_>>()
        );
    }
}

fn a_broker_killed_while_a_session_starts(rig: &Rig) {
    let delays = [0, 3, 8, 15, 25, 40, 60, 80, 100, 130, 170];
    killed_at(rig, "import time\ntime.sleep(300)", None, &delays, Signal::KILL);
}

fn a_broker_killed_while_a_cell_holds_the_gil(rig: &Rig) {
    let code = "print('begun', flush=True)\nsum(range(10**12))";
    killed_at(rig, code, Some("begun"), &[0, 50, 300], Signal::KILL);
}

fn a_broker_killed_while_a_command_runs(rig: &Rig) {
    let code = "from hermes_tools import terminal\nprint('begun', flush=True)\n
terminal(\"trap '' TERM HUP; (setsid sleep 300 &); sleep 300\")";
    killed_at(rig, code, Some("begun"), &[0, 20, 100, 400], Signal::KILL);
}

fn a_broker_killed_with_children_everywhere(rig: &Rig) {
    let code = format!(
        "{FAMILY}\nfrom hermes_tools import terminal\nterminal('nohup sleep 300 >/dev/null 2>&1 &')\nprint('begun', flush=True)\ntime.sleep(300)"
    );
    killed_at(rig, &code, Some("begun"), &[0, 100], Signal::KILL);
}

fn a_broker_killed_with_guard_and_supervisor_stopped(rig: &Rig) {
    let code = "import os, signal, time
def parent(pid):
    return int(open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[1])
reaper = parent(os.getpid()); supervisor = parent(reaper); guard = parent(supervisor)
os.write(1, b'begun')
for pid in (guard, reaper, supervisor): os.kill(pid, signal.SIGSTOP)
time.sleep(300)";
    killed_at(rig, code, Some("begun"), &[30, 100, 300], Signal::KILL);
}

fn a_broker_told_to_end(rig: &Rig) {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let code = "print('begun', flush=True)\nimport time\ntime.sleep(300)";
        killed_at(rig, code, Some("begun"), &[0], signal);
        killed_at(rig, code, None, &[20, 90], signal);
    }
}

fn a_temporary_folder_of_any_kind(rig: &Rig) {
    let long = rig.scratch().join("long".repeat(40));
    std::fs::create_dir(&long).unwrap();
    let file = rig.file("a-file", "");
    for folder in [
        long.as_path(),
        &rig.scratch().join("missing"),
        &file,
        "relative".as_ref(),
    ] {
        let code =
            "from hermes_tools import read_file, terminal\nprint(read_file('a-file'), terminal('echo on')['output'])";
        let output = rig.cli(["run", "-c", code]).env("TMPDIR", folder).run();
        assert_eq!(output.code(), 0, "{}: {output:?}", folder.display());
        assert!(output.stdout.contains("on"), "{output:?}");
    }
    assert!(std::fs::read_dir(&long).unwrap().next().is_none());
}

fn a_working_directory_that_goes_away(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    std::fs::create_dir(rig.work().join("below")).unwrap();
    session.ok("from hermes_tools import terminal\nimport os\nterminal('cd below')\nos.chdir('below')");
    std::fs::remove_dir(rig.work().join("below")).unwrap();
    let outcome = session.cell("import os\nprint(os.getcwd(), terminal('pwd')['output'])");
    assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
    assert!(outcome.notice.unwrap().contains("below is gone"));
    std::fs::remove_dir_all(rig.work()).unwrap();
    let outcome = session.cell("print(kept)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, None),
        "{outcome:#?}"
    );
    assert!(outcome.error.unwrap().contains("working directory"));
    std::fs::create_dir(rig.work()).unwrap();
    assert_eq!(session.ok("print(kept)"), "1\n");
}

/// As another user, for root may enter everything.
fn a_working_directory_that_may_not_be_entered(rig: &Rig) {
    let closed = rig.scratch().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let other = rig.other_user();
    if other.is_none() && rustix::process::geteuid().is_root() {
        return;
    }
    let cli = |arguments: [&str; 5]| match &other {
        Some(user) => user.cli(rig, arguments).through(user.prefix()),
        None => rig.cli(arguments),
    };
    let folder = closed.to_str().unwrap().to_owned();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o600)).unwrap();
    let output = cli(["run", "--cwd", &folder, "-c", "print(1)"]).run();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(
        output.stderr.contains("cannot be entered") && output.stderr.contains(&folder),
        "{output:?}"
    );
}

/// As another user, so that the limit counts what that user runs and nobody else.
fn too_few_processes_allowed(rig: &Rig) {
    if rig.target.kind == Kind::Docker {
        return; // it would limit the broker, which starts no process here: a container has a limit of its own
    }
    let Some(user) = rig.other_user() else { return };
    for limit in 6..12 {
        let bomb =
            "import os, time\nprint('begun', flush=True)\nfor _ in range(50):\n    if os.fork() == 0: time.sleep(300)";
        let command = ["prlimit".to_owned(), format!("--nproc={limit}")]
            .into_iter()
            .chain(user.prefix());
        let arguments = ["run", "--timeout", "1", "-c", bomb];
        let output = user.cli(rig, arguments).through(command).run();
        assert!(
            output.code() != 0
                && ["temporarily unavailable", "processes at once"]
                    .iter()
                    .any(|words| output.stderr.contains(words)),
            "{limit}: {output:?}"
        );
        assert!(wait_until(HANG, || nothing_left(rig)), "{limit}: {output:?}");
    }
    // A bomb that goes off ends with its cell.
    let bomb = "import os\nprint('begun', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    let command = ["prlimit".to_owned(), "--nproc=60".to_owned()]
        .into_iter()
        .chain(user.prefix());
    let output = user
        .cli(rig, ["run", "--timeout", "1", "-c", bomb])
        .through(command)
        .run();
    assert_eq!(output.code(), 124, "{output:?}");
    assert!(wait_until(HANG, || nothing_left(rig)), "{output:?}");
}
