//! The start of a supervisor on another target, over its directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use super::error::SessionError;
use super::live::Live;
use super::options::SessionOptions;
use crate::backends::Target;
use crate::config::{EnvPolicy, Mode, Transport};
use crate::file_rpc::{self, Facts, FileLink, Interpreters, Start, StartError};
use crate::interpreter::PYTHON_NAMES;
use crate::link::CallHandler;
use crate::place::Place;

/// How long a target side lives that has not heard a second word of the broker.
const FIRST_LEASE: Duration = Duration::from_secs(120);
/// Where a container of ours has memory for the session's directory.
const OWN_MEMORY: &str = "/run/talaria";

/// Starts the supervisor with the first interpreter there that is fit; says what the place is.
pub(super) async fn open(
    options: &SessionOptions,
    target: Arc<dyn Target>,
    folder: Option<&Path>,
    handler: Arc<dyn CallHandler>,
) -> Result<(Live, Place), SessionError> {
    let start = Start {
        target,
        name: options.target.clone(),
        pythons: pythons(options),
        cwd: folder.map(Path::to_owned),
        work: options.mode == Mode::Strict,
        interpreters: interpreters(options),
        bases: vec![PathBuf::from(OWN_MEMORY)],
        lease: options.lease,
        first_lease: FIRST_LEASE.min(options.lease),
        reconnect_timeout: options.reconnect_timeout,
        transport: match options.transport {
            Transport::Auto => file_rpc::Transport::Auto,
            Transport::Stream => file_rpc::Transport::Stream,
            Transport::Polled => file_rpc::Transport::Polled,
            Transport::Shared => {
                return Err(SessionError::Start(
                    "transport: shared is not built yet; use auto, stream or polled".to_owned(),
                ));
            }
        },
        window: None,
        handler,
    };
    let link = FileLink::start(start).await.map_err(|error| match error {
        StartError::Backend(error) => SessionError::Backend(error),
        error => SessionError::Start(error.to_string()),
    })?;
    for (python, found) in link.facts().rejected() {
        info!(python = %python.display(), %found, "this interpreter is skipped");
    }
    let place = place(options, link.facts());
    let (python, version) = (link.facts().python(), link.facts().version.clone());
    debug!(python = %python.display(), %version, folder = %place.folder.display(), "interpreter");
    Ok((Live::new(Arc::new(link), python, version), place))
}

/// A configured interpreter is the only one; else those that a search by name finds.
fn pythons(options: &SessionOptions) -> Vec<OsString> {
    match &options.python {
        Some(python) => vec![python.clone().into_os_string()],
        None => PYTHON_NAMES.map(OsString::from).to_vec(),
    }
}

/// Whether the project's own interpreter goes before the one that was found.
fn interpreters(options: &SessionOptions) -> Interpreters {
    match (&options.python, options.mode) {
        (None, Mode::Project) => Interpreters::Project,
        _ => Interpreters::Own,
    }
}

fn place(options: &SessionOptions, facts: &Facts) -> Place {
    let home = facts.home();
    Place::elsewhere(
        facts.environment().collect(),
        home.is_absolute().then_some(home),
        facts.cwd(),
        facts.bash(),
        facts.shell(),
        options.environment.clone(),
        options.env == EnvPolicy::Scrubbed,
    )
}
