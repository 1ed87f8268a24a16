//! What is recorded of sessions, and how it is read; traces, as a collector gets them.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod command;
mod failures;
mod recorded;
mod rig;
mod traces;
