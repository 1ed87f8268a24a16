//! Cells of one session: what they are written in, what they leave to the next, what they may break.

pub(crate) mod damage;
pub(crate) mod processes;
pub(crate) mod sources;
pub(crate) mod state;
pub(crate) mod tracebacks;
