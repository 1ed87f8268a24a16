//! The link of the local target: messages to the supervisor over its standard streams, tool calls
//! over a socket that scripts connect to.

mod calls;
mod control;
mod endpoint;
mod outgoing;

pub use control::{SocketLink, Start, StartError};
pub use endpoint::Transport;
