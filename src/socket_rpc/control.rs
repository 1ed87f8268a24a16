//! The start of a session's guard and supervisor, and the messages to and from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::calls::CallServer;
use super::endpoint::{Endpoint, Transport};
use super::outgoing::Outgoing;
use crate::backends::{BackendError, Command, Process, Target};
use crate::bundle;
use crate::link::introduction::{Introduction, Unfit, introduction, last_words};
use crate::link::{CallHandler, Link, LinkCommand, LinkError, LinkEvent};

/// Time in which the target side must have begun.
const START_LIMIT: Duration = Duration::from_secs(20);
/// A script may have stopped the guard, and the supervisor with it: while nothing is heard of them, they are
/// told to go on this often. The guard wakes the supervisor.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// What is started, and where.
pub struct Start<'a> {
    /// Where processes start.
    pub target: &'a dyn Target,
    /// The interpreter for guard and supervisor.
    pub python: &'a Path,
    /// Folders in which the session's own may be made, best first.
    pub bases: &'a [PathBuf],
    /// Where compiled code of the target side may be cached.
    pub cache: Option<PathBuf>,
    /// Its environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// Where it starts.
    pub folder: Option<PathBuf>,
    /// The kind of socket for tool calls.
    pub transport: Transport,
    /// Answers the calls.
    pub handler: Arc<dyn CallHandler>,
}

/// Why the target side did not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process could not be started at all.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The interpreter runs but is too old.
    #[error("version {0}")]
    TooOld(String),
    /// The interpreter ended or said something else.
    #[error("{0}")]
    Broken(String),
    /// It began but no folder could be made, or the link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No folder for the session could be made.
    #[error(
        "no folder for the session could be made in any of {0}; free space there or set TMPDIR to a folder that can be written"
    )]
    NoFolder(String),
}

/// The link of the local target.
pub struct SocketLink {
    commands: Outgoing,
    events: Mutex<Incoming>,
    calls: std::sync::Mutex<CallServer>,
    folder: String,
    python: String,
    version: String,
    socket_folder: PathBuf,
    transport: Transport,
    token: Arc<str>,
    handler: Arc<dyn CallHandler>,
    closed: CancellationToken,
}

/// A process that has not said which interpreter it is gets killed with this: it may be anything, and hang. Our program
/// ends when its input does, and must not be killed: it has made folders that only it removes.
struct Incoming {
    is_ours: bool,
    process: Process,
    buffer: BytesMut,
    ended: bool,
}

impl SocketLink {
    /// Starts guard and supervisor and opens the socket for tool calls.
    ///
    /// # Errors
    /// When the interpreter is unfit, or the session's folder or socket cannot be made.
    pub async fn start(start: Start<'_>) -> Result<Self, StartError> {
        let command = Command {
            program: start.python.as_os_str().to_owned(),
            arguments: bundle::arguments(),
            environment: start.environment,
            folder: start.folder,
            input: Bytes::new(),
        };
        let mut process = start.target.spawn(command).await?;
        let stdin = std::mem::replace(&mut process.stdin, Box::new(tokio::io::sink()));
        let commands = Outgoing::new(stdin);
        // A dead interpreter shows on its output.
        let bases: Vec<Vec<u8>> = start
            .bases
            .iter()
            .map(|base| base.as_os_str().as_encoded_bytes().to_vec())
            .collect();
        let name = format!("talaria-{}", random_hex()?);
        let cache = start.cache.map(|folder| folder.join(bundle::cache_name()));
        let _ = commands.send(Bytes::from(bundle::bundle(
            &name,
            &bases,
            cache.as_ref().map(|path| path.as_os_str().as_encoded_bytes()),
        )));
        let mut incoming = Incoming {
            is_ours: false,
            process,
            buffer: BytesMut::with_capacity(1 << 16),
            ended: false,
        };
        let (found, folders) = match tokio::time::timeout(START_LIMIT, incoming.begin()).await {
            Ok(begun) => begun?,
            Err(_) => {
                return Err(StartError::Broken(format!(
                    "said nothing for {} s",
                    START_LIMIT.as_secs()
                )));
            }
        };
        let (Some(folder), Some(socket_folder)) = (folders.first(), folders.last()) else {
            let tried: Vec<String> = start.bases.iter().map(|base| base.display().to_string()).collect();
            return Err(StartError::NoFolder(tried.join(", ")));
        };
        let socket_folder = PathBuf::from(socket_folder);
        log_stderr(&mut incoming.process);
        let token: Arc<str> = random_hex()?.into();
        let closed = CancellationToken::new();
        let endpoint = Endpoint::bind(start.transport, &socket_folder).await?;
        let calls = CallServer::new(endpoint, token.clone(), start.handler.clone(), closed.clone());
        Ok(Self {
            commands,
            folder: folder.clone(),
            python: found.python,
            version: found.version,
            events: Mutex::new(incoming),
            calls: std::sync::Mutex::new(calls),
            socket_folder,
            transport: start.transport,
            token,
            handler: start.handler,
            closed,
        })
    }

    /// `3.11.7`
    #[must_use]
    pub fn python_version(&self) -> &str {
        &self.version
    }

    /// Path of the interpreter that runs the supervisor, as it knows itself.
    #[must_use]
    pub fn python(&self) -> &str {
        &self.python
    }

    fn lock_calls(&self) -> std::sync::MutexGuard<'_, CallServer> {
        self.calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for SocketLink {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

#[async_trait]
impl Link for SocketLink {
    fn send(&self, command: LinkCommand) -> Result<(), LinkError> {
        self.commands.send(command.encode())
    }

    async fn next(&self) -> Result<LinkEvent, LinkError> {
        self.events.lock().await.next().await
    }

    async fn open_for_calls(&self) -> Result<(), LinkError> {
        if is_private(&self.socket_folder) && self.lock_calls().endpoint.is_reachable() {
            return Ok(());
        }
        // A cell removed the session's folder; its files are ours to make again.
        if let Err(source) = make_private(&self.socket_folder) {
            return Err(LinkError::Bind {
                place: self.socket_folder.display().to_string(),
                source: source.into(),
            });
        }
        let endpoint = Endpoint::bind(self.transport, &self.socket_folder).await?;
        let calls = CallServer::new(endpoint, self.token.clone(), self.handler.clone(), self.closed.clone());
        *self.lock_calls() = calls;
        Ok(())
    }

    fn variables(&self) -> Vec<(String, String)> {
        let address = self.lock_calls().endpoint.address();
        vec![("HERMES_RPC_SOCKET".to_owned(), address)]
    }

    fn token(&self) -> &str {
        &self.token
    }

    fn folder(&self) -> &str {
        &self.folder
    }

    fn transport(&self) -> &'static str {
        self.transport.name()
    }
}

/// 128 random bits: names that nobody can guess or squat.
fn random_hex() -> Result<String, StartError> {
    let mut bits = [0_u8; 16];
    getrandom::fill(&mut bits).map_err(|error| StartError::Broken(format!("no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

/// Whatever guard and supervisor have to say goes to our log.
fn log_stderr(process: &mut Process) {
    let stderr = std::mem::replace(&mut process.stderr, Box::new(tokio::io::empty()));
    tokio::spawn(async move {
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            warn!(supervisor = %line);
        }
    });
}

/// Makes the folder; what has its name and is none of ours is not used, and a link is not followed.
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let make = || std::fs::DirBuilder::new().mode(0o700).create(folder);
    match make() {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && !is_private(folder) => {
            if std::fs::symlink_metadata(folder)?.is_dir() {
                return Err(std::io::Error::other("it belongs to another user"));
            }
            std::fs::remove_file(folder)?;
            make()
        }
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whether it is a folder and ours.
fn is_private(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw())
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_ours {
            self.process.end.kill();
        }
    }
}

impl Incoming {
    /// Waits for the line that says which interpreter this is, then for the supervisor's greeting.
    async fn begin(&mut self) -> Result<(Introduction, Vec<String>), StartError> {
        let found = introduction(&mut self.process, &mut self.buffer).await;
        let found = found.map_err(|unfit| match unfit {
            Unfit::TooOld(version) => StartError::TooOld(version),
            Unfit::Ended(last_words) => StartError::Broken(last_words.to_string()),
        })?;
        self.is_ours = true;
        match self.next().await {
            Ok(LinkEvent::Hello(folders)) => Ok((found, folders)),
            Ok(_) => Err(StartError::Link(LinkError::Malformed("no greeting"))),
            Err(LinkError::Gone) => Err(StartError::Broken(last_words(&mut self.process).await.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    async fn read(&mut self) -> Result<usize, LinkError> {
        self.process
            .stdout
            .read_buf(&mut self.buffer)
            .await
            .map_err(|_| LinkError::Gone)
    }

    async fn next(&mut self) -> Result<LinkEvent, LinkError> {
        loop {
            if let Some(event) = LinkEvent::decode(&mut self.buffer)? {
                return Ok(event);
            }
            let read = if self.ended {
                Ok(0)
            } else {
                match tokio::time::timeout(WAKE_INTERVAL, self.read()).await {
                    Ok(read) => read,
                    Err(_) => {
                        (self.process.wake)();
                        continue;
                    }
                }
            };
            if read? == 0 {
                self.ended = true;
                (self.process.wake)();
                // Reaps it; the guard ends at once when the supervisor has.
                let _ = tokio::time::timeout(Duration::from_secs(2), self.process.end.wait()).await;
                return Err(LinkError::Gone);
            }
        }
    }
}
