//! Talaria: an execution broker for AI agents.

pub mod backends;
pub mod broker;
mod bundle;
pub mod config;
pub mod environment;
pub mod interpreter;
pub mod kernel;
pub mod limits;
pub mod link;
pub mod outcome;
pub mod output;
pub mod privacy;
pub mod schema;
pub mod session;
pub mod socket_rpc;
mod suggest;
pub mod target;
pub mod tools;
