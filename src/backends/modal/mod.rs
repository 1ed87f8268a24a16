//! Modal's cloud sandboxes, spoken to as its own client does.
//!
//! [`ModalImage`] makes one sandbox per session; [`ModalSandbox`] uses one that exists, and never ends it. Two services
//! answer: the control plane (`control.rs`), which makes and ends sandboxes, and on each worker one that starts processes
//! (`router.rs`) and carries their streams (`exec.rs`, `stdin.rs`). Both are reached as `dialing.rs` says, and what fails
//! is tried again as `retry.rs` does.
//! [`ModalAccount`] lists what of ours an account holds. Without an account, [`gateway`] leads to such sandboxes.
//!
//! The messages (`wire.rs`) are a part of Modal's interface, in `proto/`; `tools/modal-codegen` makes the code for them.

mod connection;
mod control;
mod creation;
mod credentials;
mod definition;
mod dialing;
mod end;
mod exec;
mod failure;
pub mod gateway;
mod generation;
mod held;
mod images;
mod made;
mod options;
mod ours;
mod owed;
mod reached;
mod retry;
mod router;
mod sandbox;
mod snapshots;
mod stdin;
mod token;
mod trouble;
mod waiting;
mod wire;

pub use credentials::ModalSources;
pub use made::{ModalImage, ModalSandbox};
pub use options::{DEFAULT_APP, DEFAULT_IMAGE, Gpu, IDLE_TIMEOUT, LONGEST_LIFE, ModalOptions, check_lifetime};
pub use ours::{ModalAccount, OurSandbox};

use super::Capabilities;

/// What sandboxes can do. What a process writes is kept whole by its worker, and each stream has a window of its own.
const CAPABILITIES: Capabilities = Capabilities {
    takes_input: true,
    ..Capabilities::directly(1 << 20)
};

/// A name for one call, or one process: 32 hex digits that nobody else has.
fn unique() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.unwrap_or_default().as_nanos().to_be_bytes();
    }
    format!("{:032x}", u128::from_be_bytes(bytes))
}
