//! Kernels: started, given cells, collected, ended; and the jobs that run beside them.
//!
//! [`Agent`] is a session's guard and supervisor on its target. It keeps at most one kernel, which
//! may come and go, and any number of jobs, which outlive kernels.

mod agent;
mod ending;
mod jobs;
mod starting;

pub use agent::{Agent, AgentError, KernelEnd, KernelInfo};
pub use ending::{Ending, signal_name};
pub use jobs::{JobHandle, JobResult};
pub use starting::KernelStarting;
