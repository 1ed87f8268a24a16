//! The start of a supervisor on another target, over its directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info};

use super::error::SessionError;
use super::live::Live;
use super::options::SessionOptions;
use crate::alone_rpc::AloneLink;
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

/// Starts the supervisor with the first interpreter there that is fit; says what the place is. Where no process can be
/// started beside another, a session without one.
pub(super) async fn open(
    options: &SessionOptions,
    target: Arc<dyn Target>,
    folder: Option<&Path>,
    handler: Arc<dyn CallHandler>,
) -> Result<(Live, Place), SessionError> {
    let began = Instant::now();
    let start = start(options, target, folder, handler)?;
    // A target that is made for a session ends with the first process; without streams nothing can answer a call.
    let capabilities = start.target.capabilities();
    let may_be_alone = !capabilities.ends_with_session && capabilities.has_streams;
    let link = match FileLink::start(start.clone()).await {
        Err(StartError::NoProcess { reason, .. }) if may_be_alone => {
            return stand_alone(options, start, reason, began).await;
        }
        link => link.map_err(failed)?,
    };
    let (place, python) = settle(options, link.facts());
    Ok((Live::new(Arc::new(link), python.0, python.1), place))
}

/// A session without a supervisor, for this reason: `began` is when it was tried to do better.
pub(super) async fn alone(
    options: &SessionOptions,
    target: Arc<dyn Target>,
    folder: Option<&Path>,
    handler: Arc<dyn CallHandler>,
    reason: String,
    began: Instant,
) -> Result<(Live, Place), SessionError> {
    let start = start(options, target, folder, handler)?;
    stand_alone(options, start, reason, began).await
}

async fn stand_alone(
    options: &SessionOptions,
    start: Start,
    reason: String,
    began: Instant,
) -> Result<(Live, Place), SessionError> {
    info!(target = %start.name, %reason, "there is room for one process at a time");
    let link = AloneLink::start(start, reason).await.map_err(failed)?;
    let (place, python) = settle(options, link.facts());
    let mut live = Live::new(Arc::new(link), python.0, python.1);
    live.alone = Some(began.elapsed());
    Ok((live, place))
}

fn failed(error: StartError) -> SessionError {
    match error {
        StartError::Backend(error) => SessionError::Backend(error),
        error => SessionError::Start(error.to_string()),
    }
}

/// What was found there: the place, and the interpreter of the cells with its version.
fn settle(options: &SessionOptions, facts: &Facts) -> (Place, (PathBuf, String)) {
    for (python, found) in facts.rejected() {
        info!(python = %python.display(), %found, "this interpreter is skipped");
    }
    let place = place(options, facts);
    let (python, version) = (facts.python(), facts.version.clone());
    debug!(python = %python.display(), %version, folder = %place.folder.display(), "interpreter");
    (place, (python, version))
}

fn start(
    options: &SessionOptions,
    target: Arc<dyn Target>,
    folder: Option<&Path>,
    handler: Arc<dyn CallHandler>,
) -> Result<Start, SessionError> {
    // No other place has that.
    let bases = match target.capabilities().ends_with_session {
        true => vec![PathBuf::from(OWN_MEMORY)],
        false => Vec::new(),
    };
    Ok(Start {
        target,
        name: options.target.clone(),
        pythons: pythons(options),
        cwd: folder.map(Path::to_owned),
        work: options.mode == Mode::Strict,
        interpreters: interpreters(options),
        bases,
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
    })
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
