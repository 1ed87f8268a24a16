//! The record that a cell ends with. All of this holds for standalone scripts too.

pub(crate) mod hints;
pub(crate) mod output;
pub(crate) mod rows;
pub(crate) mod sizes;
