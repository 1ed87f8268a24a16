//! The command line as people and scripts use it.

use rustix::process::Signal;

use crate::observe::{self, wait_until};
use crate::rig::{HANG, Rig};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    json_is_one_line_a_cell,
    a_script_from_stdin,
    ctrl_c_interrupts_and_cleans_up,
    the_configured_target_counts,
];

fn json_is_one_line_a_cell(rig: &Rig) {
    let output = rig.cli(["run", "--json", "-c", "x = 1", "-c", "print(x)"]).run();
    let outcomes = output.outcomes();
    assert_eq!(outcomes.len(), 2, "{output:?}");
    assert_eq!(outcomes[1]["output"], "1\n");
    assert_eq!((output.code(), output.stderr.as_str()), (0, ""));
}

fn a_script_from_stdin(rig: &Rig) {
    let output = rig.cli(["run"]).stdin("import sys; sys.exit(7)").run();
    assert_eq!(output.code(), 7, "{output:?}");
}

fn ctrl_c_interrupts_and_cleans_up(rig: &Rig) {
    let code = "import time\nprint('started', flush=True)\ntime.sleep(300)";
    let started = rig.cli(["run", "-c", code]).start();
    started.wait_for("started");
    assert!(observe::status_kib(started.pid(), "VmHWM").unwrap() > 0);
    started.signal(Signal::INT);
    assert_eq!(started.wait().code(), 130);
    let mark = rig.scratch().to_str().unwrap();
    assert!(wait_until(HANG, || observe::with_mark(mark).is_empty()));
}

fn the_configured_target_counts(rig: &Rig) {
    let output = rig
        .cli(["run", "-c", "print(1)"])
        .without("TALARIA_TARGET")
        .env("TALARIA_TARGET", "nowhere")
        .run();
    assert_eq!(output.code(), 125, "{output:?}");
    assert!(output.stderr.contains("nowhere"), "{output:?}");
}
