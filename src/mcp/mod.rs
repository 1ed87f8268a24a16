//! The MCP server: any agent or editor that speaks the Model Context Protocol gets `execute_code` on every target.
//!
//! [`Server`] answers requests, whichever way they come: over the process's own standard streams ([`stdio`]) or over HTTP
//! ([`http`]). What a request may reach belongs to its principal: the one client of the standard streams, or whose token
//! it is.

mod answers;
mod approval;
mod arguments;
mod calls;
mod files;
pub mod http;
mod kind;
mod server;
mod spill;
pub mod stdio;
mod targets;
mod tools;

pub use server::{Server, Settings};
pub use targets::Targets;
