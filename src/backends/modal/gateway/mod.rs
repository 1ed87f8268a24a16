//! Modal's sandboxes without an account of Modal's: through a gateway, which makes them for the users of a service.
//!
//! It speaks plain HTTPS and JSON (`client.rs`). A command is a line for a shell, with its standard input as text; there is
//! one at a time, and its output comes as text too, both streams in one, when it has ended. So a command here is wrapped
//! (`wrap.rs`), started once and asked for (`exec.rs`), and the target has no streams (`place.rs`, `end.rs`). Who may use
//! it, and where it is, says `credentials.rs`; what it refuses, `failure.rs`. It has no list of what it made: `records.rs`.

mod client;
mod credentials;
mod end;
mod exec;
mod failure;
mod place;
mod records;
mod wrap;

pub use credentials::GatewaySources;
pub use place::{GatewayImage, GatewayOptions, GatewaySandbox};
pub use records::GatewayRecords;
