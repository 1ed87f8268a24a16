//! The command line as people and scripts use it.

pub(crate) mod contract;
pub(crate) mod interrupts;
pub(crate) mod run;
pub(crate) mod terminals;
pub(crate) mod verbs;
