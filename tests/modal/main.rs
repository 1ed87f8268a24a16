//! Modal's sandboxes against a stand-in of Modal (`tests/rigs/modal/`): what goes wrong on the way, how sandboxes end, and
//! what may be left of them. The contract itself is checked by the conformance suite, target `modal`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap is a failing test"
)]

mod calls;
mod ends;
mod gateway;
mod images;
mod lives;
mod patience;
mod refusals;
mod rig;
mod secrets;
#[path = "../common/sessions.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod sessions;
#[path = "../common/stand_in.rs"]
mod stand_in;
mod streams;
mod ways;
