//! The link to targets where scripts cannot reach a socket of ours: a directory there, and whatever process
//! carries it to us. `docs/protocol.md` has the protocol, `remote_agent/` its other half.
//!
//! `host.rs` is our half as a state machine without I/O, made of `commands.rs`, `uploads.rs`, `calls.rs` and `log.rs`;
//! `stream.rs` and `polled.rs` drive it.

mod attempts;
mod calls;
mod commands;
mod frame;
mod host;
mod link;
mod log;
#[cfg(test)]
mod model;
mod polled;
mod ready;
mod shared;
mod site;
mod start;
mod stream;
mod uploads;

pub use crate::bundle::Interpreters;
pub use link::FileLink;
pub use ready::Facts;
pub(crate) use start::{INTRODUCTION_LIMIT, random_hex};
pub use start::{Start, StartError, Transport};
