//! `talaria mcp`, driven by what clients write.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap is a failing test"
)]

mod approval;
mod calls;
mod client;
mod files;
mod http;
mod lives;
mod protocol;
