//! Where a session runs, as a user writes it.

mod address;
mod error;
mod spec;

pub use error::TargetError;
pub use spec::{TargetKind, TargetSpec};
