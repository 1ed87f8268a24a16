//! Processes that a cell starts.

use std::time::{Duration, Instant};

use talaria_broker::outcome::Status;

use crate::observe;
use crate::rig::{Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_process_pool_runs_functions_of_cells,
    a_fork_that_falls_through_ends_quietly,
    a_fork_that_raises_or_exits_is_not_the_cell,
    a_child_that_holds_stdout_does_not_hold_the_cell,
    a_child_of_a_session_ends_with_it,
    a_process_that_is_gone_is_named,
];

fn a_process_pool_runs_functions_of_cells(rig: &Rig) {
    let session = rig.session();
    session.ok(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(x):\n    return x * x",
    );
    let code = "with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:\n    print(list(pool.map(square, range(5))))";
    for _ in 0..2 {
        assert_eq!(session.ok(code), "[0, 1, 4, 9, 16]\n");
    }
    let code = "with multiprocessing.get_context('fork').Pool(2) as pool:\n    print(pool.map(square, [3]))\n    try:\n        pool.map(square, ['x'])\n    except TypeError:\n        print('TypeError')";
    assert_eq!(session.ok(code), "[9]\nTypeError\n");
}

fn a_fork_that_falls_through_ends_quietly(rig: &Rig) {
    let session = rig.session();
    let printed =
        session.ok("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('child' if pid == 0 else 'parent')");
    assert_eq!(printed, "child\nparent\n");
    assert_eq!(session.ok("print(pid > 0)"), "True\n");
}

fn a_fork_that_raises_or_exits_is_not_the_cell(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("import os, sys\npid = os.fork()\nif pid == 0:\n    raise ValueError('in the child')\nprint(os.waitpid(pid, 0)[1] >> 8)");
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "1\n"),
        "{outcome:#?}"
    );
    assert!(outcome.stderr.unwrap().contains("ValueError: in the child"));
    let printed = session.ok("pid = os.fork()\nif pid == 0:\n    sys.exit(7)\nprint(os.waitpid(pid, 0)[1] >> 8)");
    assert_eq!(printed, "7\n");
    let outcome =
        session.cell("if os.fork() == 0:\n    import time; time.sleep(0.3)\n    sys.exit(3)\nprint('parent')");
    assert_eq!((outcome.status, outcome.output.as_str()), (Status::Success, "parent\n"));
    assert_eq!(
        session.ok("import time; time.sleep(0.5); print('still here')"),
        "still here\n"
    );
}

fn a_child_that_holds_stdout_does_not_hold_the_cell(rig: &Rig) {
    let session = rig.session();
    let began = Instant::now();
    let printed = session.ok("import subprocess\nchild = subprocess.Popen('echo out; while :; do sleep 0.1; echo more; done', shell=True)\nimport time; time.sleep(0.5)\nprint('end')");
    assert!(printed.contains("out\n") && printed.contains("end\n"), "{printed}");
    // What it prints later belongs to no cell, and does not kill it.
    assert_eq!(session.ok("time.sleep(0.5)\nprint(child.poll())"), "None\n");
    assert!(began.elapsed() < Duration::from_secs(60));
}

fn start_child(session: &TestSession) -> i32 {
    let code = "import subprocess\nprint(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)";
    session.process(code)
}

fn a_child_of_a_session_ends_with_it(rig: &Rig) {
    let session = rig.session();
    let pid = start_child(&session);
    assert!(observe::is_alive(pid));
    session.close();
    assert!(!observe::is_alive(pid));
}

fn a_process_that_is_gone_is_named(rig: &Rig) {
    let session = rig.session();
    for (code, exit_code, named) in [
        ("import os; os._exit(0)", 0, "exited with 0"),
        ("import os; os._exit(9)", 9, "exited with 9"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "SIGKILL",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            143,
            "SIGTERM",
        ),
        ("import os; os.abort()", 134, "SIGABRT"),
    ] {
        let pid = start_child(&session);
        let outcome = session.cell(format!("print('before')\n{code}"));
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, Some(exit_code)),
            "{outcome:#?}"
        );
        assert!(outcome.output.starts_with("before\n"), "{outcome:#?}");
        let error = outcome.error.unwrap();
        assert!(error.contains(named) && error.contains("lost"), "{error}");
        assert!(outcome.kernel.unwrap().state_lost);
        assert!(!observe::is_alive(pid), "a child outlived the kernel");
        let next = session.cell("print(1)");
        assert!(next.notice.unwrap().contains(named));
        assert!(!next.kernel.unwrap().reused);
    }
}
