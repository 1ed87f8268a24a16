//! The configuration: which file is read, what may stand in it, and which value is in force.
//!
//! [`Config::load`] puts four layers on top of each other: the defaults, one file, the environment's `TALARIA_*`
//! variables, and the command line's flags. One table of keys says for every setting what it is called, what values it
//! takes and what its default is; reading a file, reading variables, suggesting the right spelling and printing what is
//! in force all go by it. Every value remembers where it came from ([`Origin`]), for `talaria config` and for messages.
//!
//! The file is Talaria's own, in which a key that does not exist is an error, or the agent's (`$HERMES_HOME/config.yaml`),
//! of which only the sections `code_execution`, `terminal`, `targets` and `web` are looked at, and a key in them that
//! Talaria does not know makes a warning.
//!
//! [`template`] is the documentation of all keys: a file to start from, in which every default is spelt out.

mod approval;
mod audit;
mod choice;
mod error;
mod file;
mod hosts;
mod keys;
mod layers;
mod locate;
mod section;
mod settings;
mod targets;
mod value;
mod web;

pub use audit::AuditLog;
#[cfg(test)]
pub(crate) use choice::TOOLS;
pub use choice::{EnvPolicy, ExtractProvider, ModalMode, Mode, Rpc, SearchProvider, Transport, UnknownChoice};
pub use error::{ConfigError, Origin};
pub use hosts::{HostPattern, NoHostPattern};
pub use layers::Flags;
pub use settings::{Config, Explained, Sources, template};
pub use targets::{ResolvedTarget, TargetOptions};
pub use value::Value;
pub(crate) use value::web_address;
pub use web::{Web, WebExtract, WebSearch};

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests;
