//! `search_files` of a target's Python and of this machine's own engine: the same answers; and those of `rg`.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod files;
mod patterns;
mod rig;
#[path = "../common/supervisor.rs"]
mod supervisor;
mod trees;
