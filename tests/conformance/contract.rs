//! The cases that the library has for any target: each of them on all targets of this suite.

use std::sync::Arc;

use libtest_mimic::Trial;
use talaria_broker::conformance::{AREAS, Bench, Case, Unmet, suited};

use crate::rig::{self, Kind, Rig, Target, runtime};

/// Areas that are checked without a kernel as well; cases that are about state are left out.
const WITHOUT_A_KERNEL: &[&str] = &["outcomes", "output"];

/// Their names begin with `contract`, without a kernel with `oneshot`.
pub(crate) fn trials(target: &'static Target) -> Vec<Trial> {
    let mut trials = Vec::new();
    for area in AREAS {
        for case in area.cases {
            let name = |kind: &str| format!("{}::{kind}::{}::{}", target.label, area.name, case.name);
            trials.push(Trial::test(name("contract"), move || {
                rig::run(target, true, |rig| check(rig, case))
            }));
            if WITHOUT_A_KERNEL.contains(&area.name) && !case.needs_kernel() {
                trials.push(Trial::test(name("oneshot"), move || {
                    rig::run(target, false, |rig| check(rig, case))
                }));
            }
        }
    }
    trials
}

fn check(rig: &Rig, case: &Case) {
    let checked = runtime().block_on(async {
        let bench = Bench::new(rig.broker.clone(), suited(rig.options()), Arc::default()).unwrap();
        let checked = bench.check(case).await;
        bench.close().await.unwrap();
        checked
    });
    match checked {
        Ok(()) => {}
        Err(Unmet::Failed(told)) => panic!("{told}"),
        Err(Unmet::Skipped(why)) => assert!(may_skip(rig, case), "it was skipped: {why}"),
    }
}

/// What says nothing on a target of this suite; all else is checked on all of them.
fn may_skip(rig: &Rig, case: &Case) -> bool {
    match case.name {
        "a_directory_that_is_polled_does_the_same" => rig.target.is_here(),
        "nothing_is_left_of_a_session_that_was_closed" => {
            matches!(rig.target.kind, Kind::Docker | Kind::Modal | Kind::Gateway)
        }
        _ => false,
    }
}
