//! `talaria conformance`: what it says of a target that is right, of one that is not, and of one that is not there.

use rustix::process::Signal;
use serde_json::Value;

use crate::observe;
use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![each_case_has_a_line_and_all_a_summary];

/// What says nothing of the target.
pub(crate) const CASES_HERE: &[Case] = cases![
    a_target_that_is_broken_fails_where_it_is,
    a_target_that_is_not_there_is_no_failure_of_a_case,
    what_is_listed_can_be_chosen,
    a_case_that_hangs_is_given_up_and_the_next_one_runs,
    ctrl_c_closes_its_sessions,
];

fn each_case_has_a_line_and_all_a_summary(rig: &Rig) {
    let chosen = [
        "a_cell_that_ran_to_its_end",
        "keys_of_write_file",
        "sessions_run_side_by_side",
    ];
    let arguments = [&["conformance", "--json", "-j", "1", rig.target.name][..], &chosen].concat();
    let output = rig.cli(arguments).run();
    assert_eq!(output.code(), 0, "{output:?}");
    let lines: Vec<Value> = output.outcomes();
    assert_eq!(lines.len(), 4, "{output:?}");
    for (line, name) in lines.iter().zip(chosen) {
        assert!(line["case"].as_str().unwrap().contains(name), "{line}");
        assert_eq!(line["status"], "ok", "{line}");
    }
    let summary = &lines[3]["summary"];
    assert_eq!(
        (&summary["ok"], &summary["failed"], &summary["sessions"]),
        (&3.into(), &0.into(), &2.into()),
        "{summary}"
    );
}

fn a_target_that_is_broken_fails_where_it_is(rig: &Rig) {
    // No file there can have more than a mebibyte.
    let broken = "exec:sh -c 'ulimit -f 2048; exec \"$@\"' sh";
    let chosen = ["large_files_are_written", "a_cell_that_ran_to_its_end"];
    let output = rig.cli([&["conformance", broken][..], &chosen].concat()).run();
    assert_eq!(output.code(), 1, "{output:?}");
    for said in [
        "FAILED   limits::large_files_are_written_and_read_whole",
        "ok       outcomes::a_cell_that_ran_to_its_end",
        "2 cases: 1 ok, 1 FAILED, 0 skipped; ",
    ] {
        assert!(output.stdout.contains(said), "{said}: {output:?}");
    }
    // What was expected, and what was seen.
    assert!(
        output.stdout.contains("expected") && output.stdout.contains("seen"),
        "{output:?}"
    );
}

fn a_target_that_is_not_there_is_no_failure_of_a_case(rig: &Rig) {
    for target in ["exec:false", "nowhere", "exec:/no/such/program"] {
        let output = rig.cli(["conformance", target, "outcomes"]).run();
        assert_eq!((output.code(), output.stdout.as_str()), (125, ""), "{output:?}");
        assert!(output.stderr.starts_with("error: "), "{output:?}");
    }
    let output = rig
        .cli(["conformance", "local", "outcomes"])
        .env("TALARIA_CODE_EXECUTION_PYTHON", "/bin/false")
        .run();
    assert_eq!((output.code(), output.stdout.as_str()), (125, ""), "{output:?}");
    assert!(
        output.stderr.contains("/bin/false") && output.stderr.contains("talaria doctor local"),
        "{output:?}"
    );
}

fn what_is_listed_can_be_chosen(rig: &Rig) {
    let all = rig.cli(["conformance", "--list"]).run();
    let names: Vec<&str> = all.stdout.lines().collect();
    assert!(all.code() == 0 && names.len() > 60, "{all:?}");
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "a name stands twice");
    let one = rig.cli(["conformance", "--list", "local", names[7]]).run();
    assert_eq!(one.stdout, format!("{}\n", names[7]));
    for (arguments, said) in [
        (["conformance", "local", "no_such_case"], "--list prints all names"),
        (["conformance", "local", "-j0"], "-j"),
    ] {
        let output = rig.cli(arguments).run();
        assert!(output.code() == 2 && output.stderr.contains(said), "{output:?}");
    }
}

fn a_case_that_hangs_is_given_up_and_the_next_one_runs(rig: &Rig) {
    // It takes a second and a half, as it must.
    let chosen = ["phases_are_time_before", "cells_that_are_refused"];
    let arguments = [&["conformance", "-j1", "--limit", "1200ms", "local"][..], &chosen].concat();
    let output = rig.cli(arguments).run();
    assert_eq!(output.code(), 1, "{output:?}");
    assert!(
        output.stdout.contains("did not end within 1.2 s") && output.stdout.contains("2 cases: "),
        "{output:?}"
    );
}

fn ctrl_c_closes_its_sessions(rig: &Rig) {
    let started = rig.cli(["conformance", "-j2", "local", "limits::", "calls::"]).start();
    started.wait_for("ok ");
    started.signal(Signal::INT);
    let output = started.wait();
    assert_eq!(output.code(), 130, "{output:?}");
    assert!(output.stdout.contains(" not run; "), "{output:?}");
    let left = observe::with_mark(rig.scratch().to_str().unwrap());
    assert!(left.is_empty(), "{left:#?}");
}
