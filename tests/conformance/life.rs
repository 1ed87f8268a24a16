//! The life of a session: queueing, idling, losing its kernel, ending; and what a script can do to the
//! processes that watch over it.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use talaria_broker::broker::Broker;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::Cell;

use crate::observe::{self, is_alive, wait_until};
use crate::rig::{HANG, PRINT_NAMESPACE, Rig, TestSession, runtime};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    whatever_of_ours_is_killed_the_outcome_says_so,
    whatever_of_ours_is_stopped_goes_on,
    who_keeps_the_reaper_stopped_is_ended_all_the_same,
    a_kernel_killed_between_cells_is_said_to_be_lost,
    a_kernel_stopped_between_cells_goes_on,
    waiting_for_a_turn_does_not_count,
    cells_run_in_the_order_in_which_they_were_handed_over,
    sessions_run_side_by_side,
    an_idle_kernel_ends_and_the_next_cell_says_so,
    the_longest_idle_makes_room_and_a_busy_one_never,
    what_exceeds_the_limit_goes_once_it_is_idle,
    reset_discards_the_state,
    a_dropped_execution_is_cancelled,
    a_session_dropped_without_close_leaves_nothing,
    a_cell_cancelled_in_the_queue_never_runs,
    a_cell_cancelled_while_its_session_starts_leaves_nothing,
    many_sessions_at_once,
];

/// Names the processes above a cell.
const OURS: &str = "
import os, signal, time
def parent(pid):
    return int(open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[1])
kernel = os.getpid(); reaper = parent(kernel); supervisor = parent(reaper); guard = parent(supervisor)
";

fn pid(session: &TestSession) -> i32 {
    session.process("import os; print(os.getpid())")
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The next cell must find a fresh kernel and be told why.
fn assert_fresh(session: &TestSession, because: &str) {
    let next = session.cell("print('kept' in globals())");
    assert_eq!(
        (next.status, next.output.as_str()),
        (Status::Success, "False\n"),
        "{next:#?}"
    );
    let notice = next.notice.unwrap();
    assert!(notice.contains("lost") && notice.contains(because), "{notice}");
    let kernel = next.kernel.unwrap();
    assert_eq!((kernel.reused, kernel.execution_count), (false, 1));
}

fn whatever_of_ours_is_killed_the_outcome_says_so(rig: &Rig) {
    for (who, said) in [
        ("kernel", "SIGKILL"),
        ("reaper", "killed"),
        ("supervisor", "killed"),
        ("guard", "killed"),
    ] {
        let session = rig.session();
        session.ok("kept = 1");
        // From outside: the first process of a container cannot be killed from within.
        let running = session.start(Cell::new(format!(
            "import subprocess\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\n{OURS}
with open('{who}.aside', 'w') as file: print({who}, os.readlink('/proc/self/ns/pid'), file=file)
os.rename('{who}.aside', '{who}')\ntime.sleep(60)"
        )));
        let named = rig.work().join(who);
        assert!(wait_until(HANG, || named.exists()), "{who}");
        let pid = observe::number_here(&std::fs::read_to_string(named).unwrap());
        signal(pid, Signal::KILL);
        let outcome = running.wait();
        assert_eq!(outcome.status, Status::Error, "{who}: {outcome:#?}");
        assert!(outcome.kernel.as_ref().unwrap().state_lost, "{who}: {outcome:#?}");
        let error = outcome.error.unwrap();
        assert!(error.contains(said) && error.contains("lost"), "{who}: {error}");
        assert_fresh(&session, "killed");
    }
}

fn whatever_of_ours_is_stopped_goes_on(rig: &Rig) {
    for who in [
        "[reaper]",
        "[supervisor]",
        "[guard]",
        "[guard, supervisor]",
        "[guard, supervisor, reaper]",
    ] {
        let session = rig.session();
        session.ok("kept = 1");
        let printed = session.ok(&format!(
            "{OURS}\nfor pid in {who}: os.kill(pid, signal.SIGSTOP)\nprint('on')"
        ));
        assert_eq!(printed, "on\n", "{who}");
        assert_eq!(session.ok("print(kept)"), "1\n", "{who}");
        session.close();
        assert!(observe::with_mark(rig.scratch().to_str().unwrap()).is_empty(), "{who}");
    }
}

fn who_keeps_the_reaper_stopped_is_ended_all_the_same(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell_for(
        0.5,
        &format!(
            "{OURS}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0: os.setsid()\nwhile True: os.kill(reaper, signal.SIGSTOP)"
        ),
    );
    assert_eq!(outcome.status, Status::Timeout, "{outcome:#?}");
    assert_fresh(&session, "timed out");
    session.close();
}

fn a_kernel_killed_between_cells_is_said_to_be_lost(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    let pid = pid(&session);
    signal(pid, Signal::KILL);
    assert!(wait_until(HANG, || !is_alive(pid)));
    assert_fresh(&session, "SIGKILL");
}

fn a_kernel_stopped_between_cells_goes_on(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    signal(pid(&session), Signal::STOP);
    assert_eq!(session.ok("print(kept)"), "1\n");
}

fn waiting_for_a_turn_does_not_count(rig: &Rig) {
    let session = rig.session();
    session.ok("import time");
    let first = session.start(Cell::new("time.sleep(2)"));
    std::thread::sleep(Duration::from_millis(200));
    let second = session.cell_for(1.0, "print('in time')");
    assert_eq!(second.output, "in time\n", "{second:#?}");
    assert!(second.phases.queue.unwrap() > 1.0, "{second:#?}");
    assert_eq!(first.wait().status, Status::Success);
}

fn cells_run_in_the_order_in_which_they_were_handed_over(rig: &Rig) {
    let session = rig.session();
    session.ok("order = []");
    let handle = session.session.clone();
    runtime().block_on(async {
        for number in 0..60 {
            let one = handle.execute(Cell::new(format!("order.append({})", 2 * number)));
            let two = handle.execute(Cell::new(format!("order.append({})", 2 * number + 1)));
            tokio::join!(biased; one, two);
        }
    });
    assert_eq!(session.ok("print(order == sorted(order), len(order))"), "True 120\n");
}

fn sessions_run_side_by_side(rig: &Rig) {
    let meet = |own: &str, other: &str| {
        Cell::new(format!(
            "import os, time\nopen('{own}', 'w').close()\nwhile not os.path.exists('{other}'): time.sleep(0.01)\nprint('met')"
        ))
    };
    let (one, two) = (rig.session(), rig.session());
    let waiting = one.start(meet("a", "b"));
    assert_eq!(two.run(meet("b", "a")).output, "met\n");
    assert_eq!(waiting.wait().output, "met\n");
}

fn an_idle_kernel_ends_and_the_next_cell_says_so(rig: &Rig) {
    let session = rig.session_with(|options| options.limits.kernel_idle_timeout = Duration::from_millis(400));
    session.ok("kept = 1");
    let pid = pid(&session);
    assert!(wait_until(HANG, || !is_alive(pid)));
    assert_fresh(&session, "idle");
    // Busy is not idle.
    assert_eq!(session.ok("import time\ntime.sleep(1.5)\nprint('on')"), "on\n");
}

/// A broker with a limit of its own.
fn broker(limit: usize) -> Broker {
    let _inside = runtime().enter();
    Broker::new(limit)
}

fn open(broker: &Broker, rig: &Rig) -> TestSession {
    TestSession {
        session: broker.open(rig.options()).unwrap(),
    }
}

fn the_longest_idle_makes_room_and_a_busy_one_never(rig: &Rig) {
    let broker = broker(2);
    let (busy, idle) = (open(&broker, rig), open(&broker, rig));
    busy.ok("kept = 'busy'");
    let busy_cell = busy.start(Cell::new(
        "import os, time\nwhile not os.path.exists('end'): time.sleep(0.01)\nprint(kept)",
    ));
    idle.ok("kept = 'idle'");
    let pid = pid(&idle);
    let third = open(&broker, rig);
    third.ok("kept = 'third'");
    assert!(!is_alive(pid));
    assert_fresh(&idle, "max_session_kernels");
    rig.file("end", "");
    assert_eq!(busy_cell.wait().output, "busy\n");
    runtime().block_on(broker.close());
}

fn what_exceeds_the_limit_goes_once_it_is_idle(rig: &Rig) {
    let broker = broker(1);
    let sessions = [open(&broker, rig), open(&broker, rig), open(&broker, rig)];
    let wait = |number| {
        Cell::new(format!(
            "import os, time\nprint(os.getpid())\n{PRINT_NAMESPACE}\nopen('ran-{number}', 'w').close()\n\
             while not os.path.exists('end'): time.sleep(0.01)"
        ))
    };
    let numbered = (0..).zip(&sessions);
    let running: Vec<_> = numbered.map(|(number, session)| session.start(wait(number))).collect();
    let ran = || {
        let names = std::fs::read_dir(rig.work()).unwrap().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("ran-"))
            .count()
    };
    assert!(wait_until(HANG, || ran() == 3));
    rig.file("end", "");
    let pids: Vec<i32> = running
        .into_iter()
        .map(|cell| observe::number_here(&cell.wait().output))
        .collect();
    let alive = || pids.iter().filter(|pid| is_alive(**pid)).count();
    assert!(wait_until(HANG, || alive() == 1), "{} kernels are left", alive());
    runtime().block_on(broker.close());
}

fn reset_discards_the_state(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    let mut cell = Cell::new("print('kept' in globals())");
    cell.reset = true;
    let outcome = session.run(cell);
    assert_eq!((outcome.output.as_str(), outcome.notice), ("False\n", None));
    session.ok("kept = 1");
    runtime().block_on(session.session.reset());
    assert_eq!(session.ok("print('kept' in globals())"), "False\n");
}

fn a_dropped_execution_is_cancelled(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    let pid = pid(&session);
    runtime().block_on(async {
        let execution = session.session.execute(Cell::new("import time\ntime.sleep(300)"));
        assert!(
            tokio::time::timeout(Duration::from_millis(300), execution)
                .await
                .is_err()
        );
    });
    assert!(wait_until(HANG, || !is_alive(pid)));
    assert_fresh(&session, "interrupted");
}

fn a_session_dropped_without_close_leaves_nothing(rig: &Rig) {
    let mark = rig.scratch().to_str().unwrap().to_owned();
    let broker = broker(4);
    let session = open(&broker, rig);
    session.ok("import subprocess\nsubprocess.Popen(['sleep', '300'], start_new_session=True)");
    session.ok("from hermes_tools import terminal\nterminal('sleep 300 >/dev/null 2>&1 &')");
    assert!(!observe::with_mark(&mark).is_empty());
    drop(session);
    drop(broker);
    assert!(wait_until(HANG, || observe::with_mark(&mark).is_empty()));
    assert!(wait_until(HANG, || std::fs::read_dir(rig.tmp())
        .unwrap()
        .next()
        .is_none()));
}

fn interrupted(outcome: &Outcome) {
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Interrupted, Some(130)),
        "{outcome:#?}"
    );
    assert!(outcome.kernel.is_none(), "{outcome:#?}");
}

fn a_cell_cancelled_in_the_queue_never_runs(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1");
    let first = session.start(Cell::new("import time\ntime.sleep(1.5)"));
    std::thread::sleep(Duration::from_millis(100));
    let second = Cell::new("kept = 2");
    let cancel = second.cancel.clone();
    let second = session.start(second);
    cancel.cancel("changed my mind");
    let outcome = second.wait();
    interrupted(&outcome);
    assert!(outcome.output.contains("changed my mind"), "{outcome:#?}");
    assert_eq!(first.wait().status, Status::Success);
    assert_eq!(session.ok("print(kept)"), "1\n");
}

fn a_cell_cancelled_while_its_session_starts_leaves_nothing(rig: &Rig) {
    for delay in [0, 2, 10, 30, 60, 100] {
        let session = rig.session();
        let cell = Cell::new("kept = 1\nimport time\ntime.sleep(60)");
        let cancel = cell.cancel.clone();
        let running = session.start(cell);
        std::thread::sleep(Duration::from_millis(delay));
        cancel.cancel("changed my mind");
        assert_eq!(running.wait().status, Status::Interrupted);
        assert_eq!(session.ok("print('kept' in globals())"), "False\n");
        session.close();
        let gone = || observe::with_mark(rig.scratch().to_str().unwrap()).is_empty();
        assert!(wait_until(Duration::from_secs(10), gone));
    }
}

fn many_sessions_at_once(rig: &Rig) {
    let sessions: Vec<_> = (0..10).map(|_| rig.session()).collect();
    let started: Vec<_> = sessions
        .iter()
        .map(|session| session.start(Cell::new("kept = 1\nprint(kept)")))
        .collect();
    for running in started {
        let outcome = running.wait();
        assert_eq!(outcome.output, "1\n", "{outcome:#?}");
    }
}
