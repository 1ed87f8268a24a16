//! Containers: those that are made for a session, and those that run already.
//!
//! [`DockerImage`] makes one container per session, with the session's first command as its first process; every later
//! command is an exec in it. [`DockerContainer`] only ever execs, and never stops or removes what it was given. Both
//! work with any engine that speaks Docker's API from 1.41 on, Podman's included; [`EngineSources`] says which one.
//! What was made carries labels ([`ours`]) that name its owner, so that one broker never removes what is another's.

mod compose;
mod container;
mod engine;
mod exec;
mod failure;
mod images;
mod made;
mod options;
pub mod ours;
mod process;
mod running;
mod tunnel;

pub use compose::{ComposeService, ProjectSources};
pub use engine::{Engine, EngineAddress, EngineSources};
pub use made::DockerImage;
pub use options::{
    DEFAULT_MEMORY, DEFAULT_PROCESSES, DockerOptions, Network, Volume, VolumeSource, parse_cpus, parse_memory,
    parse_shm_size,
};
pub use running::{DockerContainer, RunningOptions, Which};

pub use super::owner::{Fate, Owner};
use super::{Capabilities, random_name};

/// What containers can do. An engine locks the whole container when more than about a megabyte of a command's output
/// waits unread: hence the window.
const CAPABILITIES: Capabilities = Capabilities::directly(512 * 1024);
