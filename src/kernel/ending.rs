//! How a process ended, in the terms of an outcome.

use crate::link::JobDone;

/// The end of a process as its supervisor judged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited by itself.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// It ran too long and was killed.
    TimedOut,
    /// It was cancelled and killed.
    Stopped,
    /// It could not be run.
    Failed(String),
}

impl Ending {
    /// From a wait status, as `waitpid(2)` gives it.
    #[must_use]
    pub fn of_status(status: Option<i32>) -> Self {
        match status {
            Some(status) if status & 0x7f == 0 => Self::Exited((status >> 8) & 0xff),
            Some(status) => Self::Signalled(status & 0x7f),
            None => Self::Failed("nothing is known of its end".to_owned()),
        }
    }

    pub(super) fn of_job(done: &JobDone) -> Self {
        match done.why.as_str() {
            "exit" => Self::of_status(done.status),
            "timeout" => Self::TimedOut,
            "stopped" => Self::Stopped,
            _ => Self::Failed(done.detail.clone()),
        }
    }
}

/// `SIGKILL` and its like (numbers of Linux), `signal N` for one without a name.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
