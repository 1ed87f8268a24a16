//! What runs out: time, room, processes; and what is large.

use std::time::{Duration, Instant};

use talaria_broker::config::Transport;
use talaria_broker::outcome::{KernelMode, Status};
use talaria_broker::session::{Cell, SessionOptions};

use crate::rig::{Rig, docker, processes, the_one};

fn for_seconds(seconds: u64, code: &str) -> Cell {
    let mut cell = Cell::new(code);
    cell.limits.timeout = Some(Duration::from_secs(seconds));
    cell
}

/// A tree of processes, one of them detached, one that ignores to be asked.
const TREE: &str = "import subprocess, time\nsubprocess.Popen(['sleep', '771'])\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 772; sleep 772'])\nprint('begun', flush=True)\ntime.sleep(80)";

/// Processes of the tree, on the host.
fn of_the_tree(container: &str) -> Vec<String> {
    let all = processes(container).into_iter().map(|seen| seen.command);
    all.filter(|command| command.contains("sleep 77")).collect()
}

fn the_tree_is_gone(rig: &Rig, options: SessionOptions, image: &str) {
    let session = rig.open(options);
    // A background child of a command is the session's, not the cell's.
    session.ok("from hermes_tools import terminal\nprint(terminal('sleep 888 & echo started'))");
    let container = the_one(image);
    let outcome = session.run(for_seconds(2, TREE));
    let ended = Instant::now();
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Timeout, Some(124)),
        "{outcome:#?}"
    );
    assert!(outcome.output.starts_with("begun\n"), "{outcome:#?}");
    loop {
        let left = of_the_tree(&container);
        if left.is_empty() {
            break;
        }
        assert!(ended.elapsed() < Duration::from_secs(2), "{left:?}");
    }
    let has_background = || {
        processes(&container)
            .iter()
            .any(|seen| seen.command.contains("sleep 888"))
    };
    assert!(has_background());
    let next = session.cell("print('on')");
    assert!(next.notice.unwrap_or_default().contains("lost"));
    assert!(has_background());
    rig.close();
}

#[test]
fn a_timeout_ends_the_whole_tree() {
    let Some(rig) = Rig::new() else { return };
    let (options, image) = rig.ours("base");
    the_tree_is_gone(&rig, options, &image);
}

#[test]
fn a_timeout_ends_the_whole_tree_where_looks_are_polled() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    options.transport = Transport::Polled;
    the_tree_is_gone(&rig, options, &image);
}

/// A background child of a command ends with the session in a container of the user's too.
#[test]
fn background_children_end_with_the_session() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running("base", &[]);
    let session = rig.open(options);
    session.ok("from hermes_tools import terminal\nprint(terminal('setsid sleep 888 & sleep 889 & echo started'))");
    assert!(processes(&name).iter().any(|seen| seen.command.contains("sleep 888")));
    rig.close();
}

/// Whatever cannot be written, each cell ends, and says something.
fn cells_end_without_room(rig: &Rig, options: SessionOptions, container: impl Fn() -> String, fill: &str) {
    let session = rig.open(options);
    session.ok("import os, time\nfrom hermes_tools import terminal");
    session.ok(fill);
    let outcome = session.cell("for n in range(200000): print('line', n)");
    assert!(
        outcome.output.starts_with("line 0\n") || outcome.error.is_some(),
        "{outcome:#?}"
    );
    let outcome =
        session.cell("print(terminal('echo on'))\nprint(terminal('head -c 900000 /dev/zero | tr \"\\\\0\" x').keys())");
    assert!(!outcome.output.is_empty() || outcome.error.is_some(), "{outcome:#?}");
    let outcome = session.cell("1 / 0");
    assert_eq!(outcome.status, Status::Error, "{outcome:#?}");
    let outcome = session.run(for_seconds(2, "time.sleep(60)"));
    assert!(
        matches!(outcome.status, Status::Timeout | Status::Error),
        "{outcome:#?}"
    );
    // A cell itself may need room to begin, so that somebody else makes some.
    docker(&[
        "exec",
        &container(),
        "sh",
        "-c",
        "rm -f /run/talaria/fill /dev/shm/fill /tmp/fill",
    ]);
    assert_eq!(
        session.ok("from hermes_tools import terminal\nprint(terminal('echo on')['output'])"),
        "on\n\n"
    );
    rig.close();
}

/// A kernel that cannot start for want of room is tried again: the next cell after there is room has one.
#[test]
fn a_kernel_comes_back_once_there_is_room() {
    let Some(rig) = Rig::new() else { return };
    let small = ["--read-only", "--tmpfs", "/tmp:size=3m", "--shm-size", "3m"];
    let (options, name) = rig.running("base", &small);
    let session = rig.open(options);
    session.ok(&format!("{FILL}\nfill('/tmp')\nfill('/dev/shm')"));
    session.reset();
    let without = session.cell("print(1)");
    assert!(
        without.notice.clone().unwrap_or_default().contains("No space"),
        "{without:#?}"
    );
    docker(&["exec", &name, "rm", "-f", "/tmp/fill", "/dev/shm/fill"]);
    crate::rig::wait("a kernel", || {
        let outcome = session.cell("print(1)");
        assert_eq!(outcome.output, "1\n", "{outcome:#?}");
        outcome.kernel.is_some_and(|kernel| kernel.mode == KernelMode::Session)
    });
    session.ok("kept = 1");
    assert_eq!(session.ok("print(kept)"), "1\n");
    rig.close();
}

const FILL: &str = "
def fill(folder):
    size = 1 << 20
    with open(folder + '/fill', 'wb', buffering=0) as file:
        while size:
            try: file.write(b'x' * size)
            except OSError: size //= 2
";

#[test]
fn a_full_directory_of_the_session() {
    let Some(rig) = Rig::new() else { return };
    let (options, image) = rig.ours("base");
    cells_end_without_room(
        &rig,
        options,
        || the_one(&image),
        &format!("{FILL}\nfill('/run/talaria')\nfill('/dev/shm')"),
    );
}

#[test]
fn full_disks_of_a_container_of_the_users() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running(
        "base",
        &[
            "--read-only",
            "--tmpfs",
            "/tmp:size=3m",
            "--shm-size",
            "3m",
            "-e",
            "TMPDIR=/tmp",
        ],
    );
    cells_end_without_room(
        &rig,
        options,
        || name.clone(),
        &format!("{FILL}\nfill('/tmp')\nfill('/dev/shm')"),
    );
}

/// What is large does not hold up what is small.
#[test]
fn large_messages_pass_beside_small_ones() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, _) = rig.ours("base");
    let notes = crate::rig::Notes::new();
    options.host = notes;
    let session = rig.open(options);
    let code = r#"
import threading
from hermes_tools import note
small, done = 0, threading.Event()
def calls():
    global small
    while not done.is_set():
        assert note(1) == {"value": 1}
        small += 1
thread = threading.Thread(target=calls); thread.start()
text = "x" * (64 * 1024 * 1024 - 100)
answer = note(text)
done.set(); thread.join()
print(answer.get("error"), len(answer["value"]) == len(text), small > 5)
"#;
    assert_eq!(session.ok(code), "None True True\n");
    rig.close();
}

#[test]
fn sixteen_calls_side_by_side() {
    let Some(rig) = Rig::new() else { return };
    for polled in [false, true] {
        let (mut options, _) = rig.ours("base");
        if polled {
            options.transport = Transport::Polled;
        }
        let session = rig.open(options);
        let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import terminal\nwith ThreadPoolExecutor(16) as pool: print(sorted(int(r['output']) for r in pool.map(lambda n: terminal(f'echo {n}'), range(48))) == list(range(48)))";
        assert_eq!(session.ok(code), "True\n");
    }
    rig.close();
}

fn one_shot(rig: &Rig, options: SessionOptions) {
    let session = rig.open(options);
    for _ in 0..2 {
        let outcome = session.cell(
            "from hermes_tools import terminal\nprint('kept' in globals(), terminal('echo on')['output'])\nkept = 1",
        );
        assert_eq!(
            (outcome.status, outcome.output.as_str()),
            (Status::Success, "False on\n\n"),
            "{outcome:#?}"
        );
        assert_eq!(outcome.kernel.unwrap().mode, KernelMode::OneShot);
        assert!(outcome.notice.unwrap_or_default().contains("standalone"));
    }
    let outcome = session.run(for_seconds(
        1,
        "print('begun', flush=True)\nimport time\ntime.sleep(60)",
    ));
    assert_eq!(outcome.status, Status::Timeout, "{outcome:#?}");
    assert!(outcome.output.starts_with("begun\n"), "{outcome:#?}");
}

#[test]
fn without_a_kernel() {
    let Some(rig) = Rig::new() else { return };
    for polled in [false, true] {
        let (mut options, _) = rig.ours("base");
        options.keep_kernel = false;
        if polled {
            options.transport = Transport::Polled;
        }
        one_shot(&rig, options);
    }
    rig.close();
}

/// Memory runs out in a cell: the outcome names the signal and the limit, and the session goes on.
fn memory_runs_out(session: &crate::rig::Live<'_>) {
    session.ok("x = 1");
    let outcome = session.cell("blocks = []\nwhile True: blocks.append(bytearray(1 << 22))");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(137)),
        "{outcome:#?}"
    );
    let error = outcome.error.unwrap_or_default();
    assert!(error.contains("SIGKILL") && error.contains("96 MiB"), "{error}");
    // Killed by somebody else, it is not said to have run out of memory.
    let outcome = session.cell("import os\nos.kill(os.getpid(), 9)");
    let error = outcome.error.unwrap_or_default();
    assert!(error.contains("SIGKILL") && !error.contains("96 MiB"), "{error}");
    assert_eq!(session.ok("print('on')"), "on\n");
}

#[test]
fn a_cell_that_uses_up_the_memory_names_the_limit() {
    let Some(rig) = Rig::new() else { return };
    let image = rig.image("base");
    let session = rig.open(rig.docker_options(&image, |docker| docker.memory = Some(96 << 20)));
    memory_runs_out(&session);
    let (options, _) = rig.running("base", &["--memory", "96m", "--memory-swap", "96m"]);
    let session = rig.open(options);
    memory_runs_out(&session);
    rig.close();
}
