//! A session: one caller's line of cells on one target.
//!
//! [`Session::execute`] queues a cell, sees that the target side and a kernel are there, rebinds the
//! authority, runs the cell and turns what came of it into an [`Outcome`](crate::outcome::Outcome).

mod approval;
mod authority;
mod cancel;
mod cell;
mod course;
mod elsewhere;
mod error;
mod files;
mod handle;
mod here;
mod hints;
mod journal;
mod live;
mod options;
mod phases;
mod prepare;
mod reach;
mod remote_changes;
mod remote_files;
mod remote_search;
mod report;
mod run;
mod slots;
mod spans;
mod standalone;
mod terminal_output;
mod web;
mod web_told;
mod workspace;

pub use cancel::Cancel;
pub use cell::{Cell, CellSource, OutputSink};
pub use error::SessionError;
pub use handle::Session;
pub use options::SessionOptions;
pub(crate) use options::spill_folder;
pub use reach::gateway_sources;
pub use web::{proxies, web_credentials, web_options};
pub use web_told::{explain_proxies, explain_with_web};

pub(crate) use slots::Slots;
