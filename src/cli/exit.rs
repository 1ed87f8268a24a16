//! Exit codes of the command line.

use talaria_broker::outcome::{Outcome, Status};

/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// The broker or the target failed; no script is to blame.
pub(crate) const BROKER: u8 = 125;
/// Nobody reads the output any more, and scripts were left unrun: as if SIGPIPE had ended us.
pub(crate) const UNREAD: u8 = 141;

/// The exit code for an outcome.
pub(crate) fn of_outcome(outcome: &Outcome) -> u8 {
    match (outcome.status, outcome.exit_code) {
        (Status::Success, _) => 0,
        (Status::Timeout, _) => 124,
        (Status::Interrupted, _) => 130,
        (Status::Error, None) => BROKER,
        (Status::Error, Some(code)) => u8::try_from(code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1),
    }
}
