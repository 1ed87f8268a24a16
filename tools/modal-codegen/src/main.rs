//! Writes `src/backends/modal/generated/` from `src/backends/modal/proto/`, without a `protoc`:
//!
//!     cargo run --manifest-path tools/modal-codegen/Cargo.toml
//!
//! The version of `tonic-prost-build` must be the minor version of `tonic` in the broker's `Cargo.toml`.

use std::path::Path;

const FILES: [&str; 3] = ["client.proto", "router.proto", "status.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let modal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/backends/modal");
    let descriptors = protox::compile(FILES, [modal.join("proto")])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        // Pieces of streams are not copied when they are decoded.
        .bytes(".modal")
        .out_dir(modal.join("generated"))
        .compile_fds(descriptors)?;
    Ok(())
}
