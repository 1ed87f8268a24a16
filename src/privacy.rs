//! Keeps the broker's secrets out of reach of scripts that run as the same user.
//!
//! The kernel shows `/proc/PID/environ`, `maps`, `fd` and `mem` of a process to others of its user
//! as long as the process is *dumpable*; and whatever it is, to root. So the broker makes itself not
//! dumpable, and wipes the block that its environment came in.

use std::ffi::CStr;

use crate::environment::{Environment, is_broker_credential, is_secret_name};

#[expect(unsafe_code, reason = "the C library's own variable")]
unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// Takes the environment of this process out of its initial block and keeps only what is not secret
/// for the rest of the process. To be called first in `main`, before any thread is started: other
/// threads may be reading the environment.
///
/// Embedding programs whose other parts read secret variables later should not call it; they can
/// call [`forbid_inspection`] alone.
#[must_use]
pub fn take_environment() -> Environment {
    forbid_inspection();
    let environment = Environment::of_this_process();
    wipe_initial_block();
    for (name, value) in environment.iter() {
        // SAFETY: no other thread exists yet, as the caller promises.
        #[expect(unsafe_code, reason = "changing the environment of a process is")]
        unsafe {
            std::env::remove_var(name);
            if !is_secret_name(name) && !is_broker_credential(name) {
                std::env::set_var(name, value);
            }
        }
    }
    environment
}

/// Hides memory, environment and descriptors of this process from others of its user (not from root).
pub fn forbid_inspection() {
    // A kernel that refuses leaves things as they were; nothing depends on it.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error instead of the end of this process.
pub fn survive_file_size_limit() {
    // SAFETY: setting a disposition to "ignore" installs no handler. Children are started with the
    // default again: by Python for itself, by the supervisor for what it starts.
    #[expect(unsafe_code, reason = "signal dispositions are C's")]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Overwrites the values in the block that the kernel handed over and that `/proc/PID/environ` shows.
fn wipe_initial_block() {
    // SAFETY: `environ` points to an array of NUL-terminated strings that ends with a null pointer.
    // Nothing has changed the environment since the start, so the strings lie in the initial block,
    // which is writable; no other thread reads them.
    #[expect(unsafe_code, reason = "the block is only reachable through C's environ")]
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let bytes = CStr::from_ptr(*entry).to_bytes();
            let length = bytes.len();
            let name = bytes.iter().position(|byte| *byte == b'=').unwrap_or(length);
            if name < length {
                std::ptr::write_bytes((*entry).add(name + 1), 0, length - name - 1);
            }
            entry = entry.add(1);
        }
    }
}
