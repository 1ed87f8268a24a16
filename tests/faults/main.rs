//! What goes wrong on a real engine, and what a session makes of it: `tests/rigs/docker up` makes what these tests need.
//! Without it they are skipped, loudly, unless `TALARIA_REQUIRE` names docker.
//!
//! The tests drive the library as an agent does, and look from outside: at the engine, and at the processes of a container as
//! the host sees them. A sentence of an outcome is believed only where something else says the same.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod alone;
mod approvals;
mod brokers;
mod ends;
#[path = "../common/engine.rs"]
mod engine;
mod forbidden;
mod limits;
mod links;
mod places;
mod rig;
#[path = "../common/sessions.rs"]
mod sessions;
