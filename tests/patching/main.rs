//! The engine of `patch` over random input, several processes that patch one file, and what is left when one is killed.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../../fuzz/bodies.rs"]
mod bodies;
mod processes;
mod random;
mod reference;
