//! Modal's messages and calls. Made by `tools/modal-codegen/` from `proto/` beside this file, and never changed by hand.
#![expect(
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "the code is made by a tool"
)]

/// The control plane.
pub(super) mod client {
    include!("generated/modal.client.rs");
}

/// The exec service of a worker.
pub(super) mod task_command_router {
    include!("generated/modal.task_command_router.rs");
}

/// What failed calls carry.
pub(super) mod status {
    include!("generated/modal.status.rs");
}
