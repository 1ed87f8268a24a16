//! Whether a tool call may happen: rules, and whoever is asked where the rules say so.
//!
//! [`Policy`] judges a call by its tool and by what it acts on ([`Subject`]): files by their names on the target,
//! commands by their first words. It is pure. An [`Approver`] is a person, or whatever stands for one.

mod approver;
mod command;
mod paths;
mod policy;
mod question;

pub use approver::{ApprovalRequest, Approver, Decision};
pub use paths::Names;
pub use policy::{Action, Policy, RuleError, Subject, ToolRules, Verdict, Wants};
pub use question::{Question, plain};
