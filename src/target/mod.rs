//! Where a session runs, as a user writes it.
//!
//! Every form is read, so that a configuration written for another target loses nothing; which of them can be
//! opened is another matter: this version opens `local`, and names that are configured to mean it.

mod error;
mod spec;

pub use error::TargetError;
pub use spec::{TargetKind, TargetSpec};
