//! Talaria: an execution broker for AI agents.

#[cfg(not(unix))]
compile_error!("talaria-broker is built for Linux; other systems are not supported");

pub mod limits;
pub mod outcome;
pub mod tools;
