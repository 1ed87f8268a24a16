//! Why a configuration cannot be used, and where a value came from.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Where an effective value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

/// Written so that it can begin a message: `PATH:LINE`, `the variable NAME`, `the flag --name`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Flag(name) => write!(f, "the flag {name}"),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file that was asked for by name is not there.
    #[error(
        "the configuration file {} ({asked_by}) does not exist; create it (`talaria config --template` prints a start) or leave {asked_by} out",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// What asked for it: `--config` or `TALARIA_CONFIG`.
        asked_by: &'static str,
    },
    /// A file that is there cannot be read.
    #[error("the configuration file {} cannot be read: {source}; make it a readable file or remove it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is no YAML.
    #[error("{}:{line}: the file is no valid YAML: {problem}; correct the line", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong, as the parser puts it.
        problem: String,
    },
    /// A key that does not exist.
    #[error("{origin}: there is no key `{key}`; {advice}")]
    UnknownKey {
        /// Where it stands.
        origin: Origin,
        /// Its whole path.
        key: String,
        /// The nearest right key, or all keys of the place.
        advice: String,
    },
    /// A value of the wrong type, or out of range.
    #[error("{origin}: `{key}` {problem}")]
    Value {
        /// Where it stands.
        origin: Origin,
        /// The key's whole path.
        key: String,
        /// What is wrong and what would be right; reads after the key.
        problem: String,
    },
}
