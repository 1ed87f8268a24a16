//! Why a session could not be opened, or its target side not be started.

use std::path::PathBuf;

use crate::backends::BackendError;
use crate::interpreter::InterpreterError;
use crate::tools::SpecError;

/// Why a session could not be opened, or its target side not be started.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The target.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// It is no target that can be opened.
    #[error(transparent)]
    Target(#[from] crate::target::TargetError),
    /// An option of the target has a wrong value.
    #[error("the option {name} of {target} has a wrong value: {problem}")]
    Option {
        /// The target as the user wrote it.
        target: String,
        /// The option.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No interpreter there is fit.
    #[error(transparent)]
    Interpreter(#[from] InterpreterError),
    /// The supervisor did not begin.
    #[error("the session could not be started: {0}")]
    Start(String),
    /// The tools of the host cannot be offered.
    #[error(transparent)]
    Tools(#[from] SpecError),
    /// The values to be masked are too many.
    #[error("the withheld variables cannot be masked: {0}")]
    Mask(#[from] crate::output::MaskError),
    /// A tool that a caller allows is not among those that the session offers.
    #[error("there is no tool `{name}` here; offered: {offered}{advice}")]
    NotOffered {
        /// The name.
        name: String,
        /// What is.
        offered: String,
        /// What may have been meant, or why it is not offered; ends the sentence.
        advice: String,
    },
    /// The working directory.
    #[error("the working directory {0} does not exist or is no folder; give an existing one")]
    WorkingDirectory(PathBuf),
    /// The working directory may not be entered.
    #[error(
        "the working directory {0} cannot be entered: permission denied; give another one, or the right to enter it"
    )]
    WorkingDirectoryClosed(PathBuf),
}
