//! The start of a supervisor on this machine: with which interpreter, in which folders, over a socket.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::{debug, info};

use super::error::SessionError;
use super::live::Live;
use super::options::SessionOptions;
use crate::backends::Target;
use crate::config::Mode;
use crate::environment::{Built, Environment};
use crate::interpreter::{Candidate, Rejected, candidates};
use crate::link::CallHandler;
use crate::socket_rpc::{SocketLink, Start, StartError};

/// Variables that an interpreter may need to start at all.
const NEEDED_TO_START: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "TZ",
];

/// Variables that say which interpreter a shim on `PATH` (pyenv) stands for; scripts do not get them.
const SHIMS: [&str; 2] = ["PYENV_ROOT", "PYENV_VERSION"];

/// Starts the supervisor with the first interpreter that is fit.
pub(super) async fn open(
    options: &SessionOptions,
    target: &dyn Target,
    folder: &Path,
    built: &Built,
    handler: Arc<dyn CallHandler>,
) -> Result<Live, SessionError> {
    let mut search = candidates(options.mode, options.python.as_deref(), folder, &options.environment);
    for candidate in search.candidates.clone() {
        let start = Start {
            target,
            python: &candidate.path,
            bases: &bases(&options.environment, options.mode, folder),
            cache: cache_folder(&options.environment),
            environment: start_environment(&options.environment, built),
            folder: Some(folder.to_owned()),
            transport: options.rpc,
            handler: handler.clone(),
        };
        match SocketLink::start(start).await {
            Ok(link) => return Ok(live(link, &candidate)),
            Err(StartError::TooOld(version)) => {
                reject(&mut search.rejected, &candidate, format!("is Python {version}"))
            }
            Err(StartError::Broken(reason)) => reject(&mut search.rejected, &candidate, reason),
            Err(StartError::Backend(error)) => reject(&mut search.rejected, &candidate, error.to_string()),
            Err(error) => return Err(SessionError::Start(error.to_string())),
        }
    }
    Err(SessionError::Interpreter(search.error()))
}

fn live(link: SocketLink, candidate: &Candidate) -> Live {
    let version = link.python_version().to_owned();
    // An interpreter that does not know its own path is called as it was found.
    let python = match link.python() {
        "" => candidate.path.clone(),
        known => PathBuf::from(known),
    };
    debug!(python = %python.display(), %version, why = %candidate.why, "interpreter");
    Live::new(Arc::new(link), python, version)
}

fn reject(rejected: &mut Vec<Rejected>, candidate: &Candidate, found: String) {
    info!(python = %candidate.path.display(), %found, "this interpreter is skipped");
    rejected.push(Rejected {
        path: candidate.path.clone(),
        found,
    });
}

/// Where the session's folder may lie, best first. A temporary folder that the user names counts;
/// else memory before disk: each cell writes its source there before it runs, and a new file on a
/// busy disk can take longer than all the rest of a cell. In strict mode scripts work in it too, and
/// what they write may be large, or be executed.
fn bases(environment: &Environment, mode: Mode, folder: &Path) -> Vec<PathBuf> {
    let path = |name: &str| environment.filled(name).map(PathBuf::from);
    let named = ["TMPDIR", "TMP", "TEMP"].map(path);
    let memory = [path("XDG_RUNTIME_DIR"), Some(PathBuf::from("/dev/shm"))];
    let disk = ["/tmp", "/var/tmp"].map(|place| Some(PathBuf::from(place)));
    let rest: Vec<Option<PathBuf>> = match mode {
        Mode::Project => memory.into_iter().chain(disk).collect(),
        Mode::Strict => disk.into_iter().chain(memory).collect(),
    };
    let mut bases: Vec<PathBuf> = named
        .into_iter()
        .chain(rest)
        .flatten()
        .chain([folder.to_owned()])
        // The link's folder is told as text.
        .filter(|base| base.is_absolute() && base.to_str().is_some())
        .collect();
    let mut seen = std::collections::HashSet::new();
    bases.retain(|base| seen.insert(base.clone()));
    bases
}

/// The user's folder for caches of ours; none where there is no home.
fn cache_folder(environment: &Environment) -> Option<PathBuf> {
    let cache = environment.filled("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = cache.or_else(|| Some(environment.home()?.join(".cache")))?;
    folder.is_absolute().then(|| folder.join("talaria"))
}

fn start_environment(environment: &Environment, built: &Built) -> BTreeMap<OsString, OsString> {
    let needed = built
        .variables
        .iter()
        .filter(|(name, _)| NEEDED_TO_START.iter().any(|needed| name.as_os_str() == *needed))
        .map(|(name, value)| (name.clone(), value.clone()));
    let shims = SHIMS
        .iter()
        .filter_map(|name| Some((OsString::from(name), environment.filled(name)?.to_owned())));
    needed.chain(shims).collect()
}
