//! What of the broker's environment a script and its commands get to see.
//!
//! [`Environment`] is the snapshot that the broker takes of its own variables when it starts. From it two environments
//! are built, each under the same [`PassRules`]: that of a cell on this machine, which starts from nothing and takes what
//! is on the safe list, and that of `terminal` on this machine, which starts from everything and leaves out secret names.
//! What both have in common: a variable that the user names passes although its name looks secret, a credential of the
//! broker's own never passes, and what was left out is on record, for the log, for `talaria doctor` and for masking.
//!
//! What the link adds (the socket's path, the staging directory on `PYTHONPATH`) is not built here.

mod build;
mod elsewhere;
mod mask;
mod names;
mod secret;
mod snapshot;

pub use build::{Built, PassRules, Withheld, WithheldReason};
pub(crate) use names::without_login;
pub use names::{BROKER_CREDENTIALS, HERMES_PASSED, SECRET_WORDS, is_broker_credential, is_secret_name};
pub use secret::Secret;
pub use snapshot::Environment;
