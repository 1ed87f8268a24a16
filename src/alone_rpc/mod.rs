//! The link to places where no process can be started beside another (a limit of processes, a system call that is
//! forbidden): no supervisor, no kernel, each cell a standalone script, and whatever is to be done one command of the
//! target. `docs/protocol.md` has a section on it, `remote_agent/alone.py` the other half.
//!
//! It plays the part of the supervisor: commands come in as everywhere, and events go out.

mod cell;
mod clock;
mod command;
mod job;
mod link;
mod splitter;

pub use link::AloneLink;
