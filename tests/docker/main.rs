//! Containers on a real engine: `tests/rigs/docker up` makes what these tests need. Without it they are skipped, loudly,
//! unless `TALARIA_REQUIRE` names docker.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod cleaning;
mod confinement;
mod ends;
#[path = "../common/engine.rs"]
mod engine;
mod finding;
mod pulling;
mod rig;
mod streams;
