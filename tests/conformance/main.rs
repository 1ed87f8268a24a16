//! The contract of a session, checked against the real thing on every target.
//!
//! A test is a plain function over a [`Rig`]; it belongs to an area (a module with a table of its tests)
//! and is named `target::area::what_it_shows`. A new target is one line in `rig.rs`, a new area
//! one line in [`AREAS`].
//!
//! Beside them stand the cases that `talaria conformance` has for any target whatever ([`contract`]).
//!
//! `TALARIA_TEST_PYTHON=/path/python3.x` makes all sessions use that interpreter.
//!
//! After each test, passed or failed, its sessions are closed; then nothing may be left of it: no
//! process that carries its mark, no folder of a session.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failing test may panic")]

mod approval;
mod calls;
mod cells;
mod cli;
mod command;
mod containers;
mod contract;
mod death;
mod elsewhere;
mod files;
mod hosts;
mod interpreters;
mod life;
mod observe;
mod odd_tools;
mod outcome;
mod patch;
mod rig;
mod sandboxes;
mod search;
mod security;
mod shell_state;
mod sizes;
mod socket;
#[path = "../common/stand_in.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod stand_in;
mod standalone;
mod terminal;
mod tool_host;
mod tools;
mod web;
mod worked_examples;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use rig::Rig;

/// A test: its name, and what it does.
type Case = (&'static str, fn(&Rig));

/// What holds on every target.
const AREAS: &[(&str, &[Case])] = &[
    ("cells", cells::state::CASES),
    ("cells", cells::sources::CASES),
    ("cells", cells::tracebacks::CASES),
    ("cells", cells::processes::CASES),
    ("cells", cells::damage::CASES),
    ("outcome", outcome::rows::CASES),
    ("outcome", outcome::output::CASES),
    ("outcome", outcome::hints::CASES),
    ("outcome", outcome::sizes::CASES),
    ("cli", cli::run::CASES),
    ("cli", cli::interrupts::CASES),
    ("cli", cli::terminals::CASES),
    ("cli", cli::verbs::CASES),
    ("cli", cli::contract::CASES),
    ("life", life::CASES),
    ("death", death::CASES),
    ("security", security::CASES),
    ("interpreters", interpreters::CASES),
    ("tools", tools::CASES),
    ("calls", calls::CASES),
    ("approval", approval::CASES),
    ("sizes", sizes::CASES),
    ("files", files::CASES),
    ("search", search::CASES),
    ("patch", patch::CASES),
    ("terminal", terminal::CASES),
    ("web", web::CASES),
    ("shell_state", shell_state::CASES),
    ("worked_examples", worked_examples::CASES),
];

/// What holds on this machine alone: the environment of a cell starts from nothing, calls go over a socket, the broker
/// finds the interpreter.
const HERE: &[(&str, &[Case])] = &[
    ("security", security::CASES_HERE),
    ("interpreters", interpreters::CASES_HERE),
    ("socket", socket::CASES),
    ("calls", calls::CASES_HERE),
    ("sizes", sizes::CASES_HERE),
    ("cli", cli::contract::CASES_HERE),
    ("web", web::CASES_HERE),
];

/// What holds where calls go through a directory: the environment is the target's.
const ELSEWHERE: &[(&str, &[Case])] = &[("elsewhere", elsewhere::CASES)];

/// What holds without a kernel too, where each cell is a standalone script.
const WITHOUT_A_KERNEL: &[(&str, &[Case])] = &[
    ("oneshot", cells::sources::CASES_WITHOUT_STATE),
    ("oneshot", standalone::CASES),
    ("oneshot", approval::CASES_WITHOUT_STATE),
    ("oneshot", outcome::rows::CASES),
    ("oneshot", outcome::output::CASES),
    ("oneshot", outcome::hints::CASES),
    ("oneshot", outcome::sizes::CASES),
];

/// A table of the functions named, each under its own name.
macro_rules! cases {
    ($($case:ident),* $(,)?) => { &[$((stringify!($case), $case)),*] };
}
pub(crate) use cases;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most of a test's time is waiting: for an interpreter to start, for a grace to pass.
    arguments.test_threads.get_or_insert_with(|| {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        2 * processors
    });
    let mut trials = Vec::new();
    for target in rig::targets() {
        let of_its_kind = if target.is_here() { HERE } else { ELSEWHERE };
        for (areas, keeps_state) in [(AREAS, true), (of_its_kind, true), (WITHOUT_A_KERNEL, false)] {
            for (area, cases) in areas {
                for (name, case) in *cases {
                    let name = format!("{}::{area}::{name}", target.label);
                    trials.push(Trial::test(name, move || rig::run(target, keeps_state, *case)));
                }
            }
        }
        trials.extend(contract::trials(target));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
