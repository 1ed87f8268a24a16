//! Large outputs, and what they cost the broker.

use std::time::Duration;

use talaria_broker::outcome::Status;

use crate::observe;
use crate::rig::{HANG, Rig};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    what_is_beyond_every_cap_is_counted,
    yes_for_the_whole_timeout_costs_the_broker_little,
    a_large_output_after_a_timeout_is_kept,
];

/// What the broker may need at most.
const BOUND_KIB: u64 = 100 * 1024;

fn what_is_beyond_every_cap_is_counted(rig: &Rig) {
    let session = rig.session();
    let outcome =
        session.cell("import sys\nfor _ in range(100): sys.stdout.write('x' * (1 << 20))\nprint('\\nlast line')");
    assert_eq!(outcome.status, Status::Success);
    assert_eq!(outcome.stdout_bytes_total, (100 << 20) + 11);
    assert!(outcome.output.ends_with("\nlast line\n"));
    let kept = std::fs::metadata(outcome.stdout_spill_path.unwrap()).unwrap().len();
    assert!(((64 << 20)..(65 << 20)).contains(&kept), "{kept}");
}

fn yes_for_the_whole_timeout_costs_the_broker_little(rig: &Rig) {
    for code in [
        "import subprocess\nsubprocess.run('yes')",
        "import subprocess\nsubprocess.run('yes >&2', shell=True)",
    ] {
        let started = rig.cli(["run", "--json", "--timeout", "2", "-c", code]).start();
        let mut most = 0;
        let outcome = loop {
            if let Some(size) = observe::status_kib(started.pid(), "VmHWM") {
                most = most.max(size);
            }
            if !observe::is_alive(i32::try_from(started.pid()).unwrap()) {
                break started.wait().outcomes().remove(0);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(outcome["status"], "timeout", "{:.500}", outcome["output"]);
        assert!(most > 0 && most < BOUND_KIB, "{most} KiB");
        let output = outcome["output"].as_str().unwrap();
        assert!(output.contains("y\ny\ny\n") && output.len() < 70_000);
    }
}

fn a_large_output_after_a_timeout_is_kept(rig: &Rig) {
    let session = rig.session();
    let code = "import sys, time\nfor i in range(20000): print('line', i)\nsys.stdout.flush()\ntime.sleep(60)";
    let outcome = session.cell_for(3.0, code);
    assert_eq!(outcome.status, Status::Timeout);
    assert!(
        outcome
            .output
            .contains("line 19999\nScript timed out after 3s and was killed.")
    );
    assert!(outcome.stdout_spill_path.is_some());
    assert!(outcome.duration_seconds < HANG.as_secs_f64());
}
