//! The link over a directory, with real interpreters behind a command on this machine: what is carried, and what
//! happens when the process that carries it is killed, the target stands still, or is gone.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap is a failing test"
)]

mod breaking;
mod carrying;
mod rig;
mod starting;
