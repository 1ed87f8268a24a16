//! Hosts that SSH reaches: a real `sshd` of the test's own, and the system's own `ssh`.
//! Without an `sshd` these tests are skipped, loudly, unless `TALARIA_REQUIRE` names ssh.
//!
//! The tests drive the library as an agent does, or the command line, and look from outside: at `/proc`, at sockets and
//! folders. A sentence of an outcome is believed only where something else says the same.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

mod account;
mod accounts;
mod brokers;
mod compose;
mod connections;
mod crowds;
mod disks;
mod distance;
mod errors;
mod hosts;
mod logins;
mod masters;
mod networks;
mod proxy;
mod rig;
#[path = "../common/sessions.rs"]
mod sessions;
mod ways;
