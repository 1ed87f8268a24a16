//! The engine of `patch` over random input, and what is left when a process is killed in its midst.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../../fuzz/bodies.rs"]
mod bodies;
mod kills;
mod random;
mod reference;
