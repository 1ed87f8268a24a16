//! The contract as a suite that runs against any target: what an account holder or the author of a backend starts with
//! `talaria conformance TARGET`, and what `tests/conformance` runs on every target that it has.
//!
//! A [`Case`] needs nothing but a session: cells, outcomes, and files that its own scripts make there in a fresh folder.
//! Cases stand in one file per area ([`AREAS`]); a [`Bench`] is what a case works with, [`run`] works through many of them.

mod bench;
mod calls;
mod case;
mod check;
mod environment;
mod files;
mod host;
mod limits;
mod outcomes;
mod output;
mod run;
mod search_and_patch;
mod seat;
mod sessions;
mod state;
mod terminal;
mod tools;

pub use bench::{Bench, suited};
pub use case::{Area, Case, Checked, Unmet};
pub use run::{Plan, Reached, Summary, Verdict, VerdictKind, run};
pub use seat::Seat;

/// All areas, in the order in which they are reported.
pub const AREAS: &[Area] = &[
    Area {
        name: "outcomes",
        cases: outcomes::CASES,
    },
    Area {
        name: "output",
        cases: output::CASES,
    },
    Area {
        name: "state",
        cases: state::CASES,
    },
    Area {
        name: "tools",
        cases: tools::CASES,
    },
    Area {
        name: "files",
        cases: files::CASES,
    },
    Area {
        name: "search_and_patch",
        cases: search_and_patch::CASES,
    },
    Area {
        name: "terminal",
        cases: terminal::CASES,
    },
    Area {
        name: "calls",
        cases: calls::CASES,
    },
    Area {
        name: "limits",
        cases: limits::CASES,
    },
    Area {
        name: "environment",
        cases: environment::CASES,
    },
    Area {
        name: "sessions",
        cases: sessions::CASES,
    },
];
