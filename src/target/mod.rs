//! Where a session runs, as a user writes it.
//!
//! Every form is read, so that a configuration written for another target loses nothing; which of them this version
//! opens is another matter ([`TargetKind::can_be_opened`]).

mod address;
mod error;
mod spec;

pub use error::TargetError;
pub use spec::{TargetKind, TargetSpec};
