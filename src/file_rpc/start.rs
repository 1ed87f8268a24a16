//! The start of a session on another target: the first interpreter there that is fit takes the bundle and
//! becomes the first relay.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::attempts::Lost;
use super::link::FileLink;
use super::ready::Ready;
use super::shared::{Shared, Writer};
use super::site::{Connection, FIRST_LINK, Site};
use super::{polled, stream};
use crate::backends::{BackendError, Capabilities, Command, Target};
use crate::bundle::{self, DirectoryStart, Interpreters};
use crate::link::introduction::{Introduction, PAUSES, Unfit, introduction};
use crate::link::{CallHandler, LinkError};

/// Time in which an interpreter must introduce itself.
pub(crate) const INTRODUCTION_LIMIT: Duration = Duration::from_secs(30);
/// Time in which the relay must have begun: other interpreters may be tried there, 5 s each.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time in which a session is told to end after its link was dropped.
const FAREWELL: Duration = Duration::from_secs(5);
/// The least window: a frame must fit, and others beside it.
const LEAST_WINDOW: u32 = 256 << 10;

/// How the directory is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Streams where the target has them.
    #[default]
    Auto,
    /// One process that lives long.
    Stream,
    /// One process for each look.
    Polled,
}

/// What is started, and where.
#[derive(Clone)]
pub struct Start {
    /// Where processes start.
    pub target: Arc<dyn Target>,
    /// The target as the user wrote it.
    pub name: String,
    /// Interpreters to try, in this order.
    pub pythons: Vec<OsString>,
    /// Where the session starts there; `None`: where its processes start.
    pub cwd: Option<PathBuf>,
    /// Whether it gets a private working folder instead.
    pub work: bool,
    /// Which interpreters may run the kernel.
    pub interpreters: Interpreters,
    /// Folders there in which the directory may be made, best first; the target knows more.
    pub bases: Vec<PathBuf>,
    /// How long the session lives without a sign of the broker.
    pub lease: Duration,
    /// The same before the first sign.
    pub first_lease: Duration,
    /// How long it is tried to come back to it.
    pub reconnect_timeout: Duration,
    /// How the directory is reached.
    pub transport: Transport,
    /// Bytes that may be on their way to us; `None`: what the target allows.
    pub window: Option<u32>,
    /// Answers the calls.
    pub handler: Arc<dyn CallHandler>,
}

/// Why the target side did not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The target could not start a process at all.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No interpreter was fit.
    #[error(
        "no fit Python on {target} ({}); a session needs Python 3.8 or newer there: install it, or name its path as `python`",
        list(.tried)
    )]
    NoPython {
        /// The target as the user wrote it.
        target: String,
        /// What was tried, and what was found.
        tried: Vec<(String, String)>,
    },
    /// What was started said nothing. It is not the interpreter: no other one is tried.
    #[error(
        "{python} was started on {target} and said nothing for {} s: what starts programs there hangs, or waits for an answer (a password, a lock); see whether `{python} -c pass` ends when it is started that way by hand, or name another interpreter as `python`",
        INTRODUCTION_LIMIT.as_secs()
    )]
    Silent {
        /// The target as the user wrote it.
        target: String,
        /// What was started.
        python: String,
    },
    /// The target has no streams.
    #[error("{target} keeps no process with open streams, so `transport: stream` cannot be; use `auto` or `polled`")]
    NoStreams {
        /// The target as the user wrote it.
        target: String,
    },
    /// The place is unfit: no folder can be written, or the working directory is not there.
    #[error("the session on {target} could not begin: {reason}")]
    Place {
        /// The target as the user wrote it.
        target: String,
        /// What was found.
        reason: String,
    },
    /// The place lets no process start another: what can be done is one command at a time.
    #[error("the session on {target} could not begin: {reason}")]
    NoProcess {
        /// The target as the user wrote it.
        target: String,
        /// The limit that was met, and what to do.
        reason: String,
    },
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

fn list(tried: &[(String, String)]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (python, found) in tried {
        match groups.iter_mut().find(|(same, _)| same == found) {
            Some((_, names)) => names.push(python),
            None => groups.push((found, vec![python])),
        }
    }
    let lines: Vec<String> = groups
        .iter()
        .map(|(found, names)| format!("{}: {found}", names.join(", ")))
        .collect();
    lines.join("; ")
}

/// What one interpreter came to.
enum Attempt {
    Began(Box<Begun>),
    Unfit(String),
    /// Nothing came.
    Silent,
    /// It was not run; the next time it may be.
    NotRun(String),
    /// It cannot unpack what is compressed.
    NoZlib,
}

struct Begun {
    connection: Connection,
    introduction: Introduction,
    shared: Arc<Shared>,
    site: Site,
    ready: Box<Ready>,
}

pub(super) async fn start(start: Start) -> Result<FileLink, StartError> {
    let has_streams = start.target.capabilities().has_streams;
    let is_stream = match start.transport {
        Transport::Auto => has_streams,
        Transport::Stream if !has_streams => return Err(StartError::NoStreams { target: start.name }),
        Transport::Stream => true,
        Transport::Polled => false,
    };
    let mut tried = Vec::new();
    for python in &start.pythons {
        let mut pauses = PAUSES.iter();
        let mut found = attempt(&start, python, false).await?;
        while let (Attempt::NotRun(_), Some(pause)) = (&found, pauses.next()) {
            tokio::time::sleep(*pause).await;
            found = attempt(&start, python, false).await?;
        }
        if matches!(found, Attempt::NoZlib) {
            found = attempt(&start, python, true).await?;
        }
        match found {
            Attempt::Began(begun) => return Ok(drive(*begun, is_stream, tried)),
            Attempt::NoZlib => tried.push((python.to_string_lossy().into_owned(), "has no zlib".to_owned())),
            Attempt::Unfit(found) | Attempt::NotRun(found) => {
                debug!(target = %start.name, python = %python.to_string_lossy(), %found, "an interpreter is unfit");
                tried.push((python.to_string_lossy().into_owned(), found));
            }
            Attempt::Silent => {
                return Err(StartError::Silent {
                    target: start.name,
                    python: python.to_string_lossy().into_owned(),
                });
            }
        }
    }
    Err(StartError::NoPython {
        target: start.name,
        tried,
    })
}

/// Nobody waits for a driver that is gone, whatever became of it.
struct EndWithDriver(Arc<Shared>);

impl Drop for EndWithDriver {
    fn drop(&mut self) {
        self.0.end(LinkError::Gone);
    }
}

fn drive(begun: Begun, is_stream: bool, tried: Vec<(String, String)>) -> FileLink {
    let folder = begun.site.folder.clone();
    let facts = begun.ready.facts.unwrap_or_default();
    let introduction = begun.introduction;
    let shared = begun.shared.clone();
    // Without streams the first look is over.
    let has_streams = begun.site.target.capabilities().has_streams;
    let connection = has_streams.then_some(begun.connection);
    let dropped = CancellationToken::new();
    let until = dropped.clone();
    tokio::spawn(async move {
        let _end = EndWithDriver(begun.shared.clone());
        let run = async {
            match connection {
                Some(connection) if is_stream => stream::run(begun.shared, begun.site, connection).await,
                connection => polled::run(begun.shared, begun.site, connection).await,
            }
        };
        tokio::select! {
            () = run => {}
            () = async { until.cancelled().await; tokio::time::sleep(FAREWELL).await } => {}
        }
    });
    let transport = if is_stream { "stream" } else { "polled" };
    FileLink::new(shared, dropped, folder, transport, facts, introduction, tried)
}

async fn attempt(start: &Start, python: &OsString, is_plain: bool) -> Result<Attempt, StartError> {
    let can = start.target.capabilities();
    let window = start.window.unwrap_or(can.window).max(LEAST_WINDOW);
    let owner = random_hex()?;
    let bundle = bundle::directory_bundle(&DirectoryStart {
        session: random_hex()?,
        bases: start.bases.iter().map(bytes_of).collect(),
        owner: owner.clone(),
        link: FIRST_LINK,
        window,
        lease: start.lease,
        first_lease: start.first_lease,
        cwd: start.cwd.as_deref().map(bytes_of).unwrap_or_default(),
        work: start.work,
        interpreters: start.interpreters,
        is_plain,
    });
    let shared = Arc::new(Shared::new(window, random_hex()?.into(), start.handler.clone()));
    let (input, bundle) = match can {
        Capabilities { has_streams: false, .. } => {
            let look = polled::told_at_once(&shared, Duration::ZERO);
            ([bundle.as_slice(), &look].concat(), Vec::new())
        }
        Capabilities { takes_input: true, .. } => (bundle, Vec::new()),
        _ => (Vec::new(), bundle),
    };
    let command = Command {
        program: python.clone(),
        arguments: bundle::arguments(),
        environment: Default::default(),
        folder: None,
        input: input.into(),
    };
    let mut process = match start.target.spawn(command).await {
        Ok(process) => process,
        Err(BackendError::NoProgram { reason, .. }) => return Ok(Attempt::Unfit(reason)),
        Err(error) => return Err(error.into()),
    };
    let mut buffer = BytesMut::with_capacity(1 << 16);
    let stdin = std::mem::replace(&mut process.stdin, Box::new(tokio::io::sink()));
    let mut giving = std::pin::pin!(give(stdin, bundle));
    let mut given = None;
    let introduced = async {
        let introduced = introduction(&mut process, &mut buffer);
        let mut introduced = std::pin::pin!(tokio::time::timeout(INTRODUCTION_LIMIT, introduced));
        loop {
            tokio::select! {
                introduced = &mut introduced => return introduced,
                // It is on its way while the interpreter starts, but for one behind something that may read it first.
                stdin = &mut giving, if can.is_direct && given.is_none() => given = Some(stdin),
            }
        }
    };
    let introduction = match introduced.await {
        Ok(Ok(introduction)) => introduction,
        Ok(Err(Unfit::TooOld(version))) => return Ok(Attempt::Unfit(format!("is Python {version}"))),
        Ok(Err(Unfit::Ended(last_words))) if last_words.may_pass() => {
            return Ok(Attempt::NotRun(last_words.to_string()));
        }
        Ok(Err(Unfit::Ended(last_words))) if last_words.is_not_found(&python.to_string_lossy()) => {
            return Ok(Attempt::Unfit("is not there".to_owned()));
        }
        Ok(Err(Unfit::Ended(last_words))) if last_words.is_missing() => {
            return Ok(Attempt::Unfit(format!("is not there, {last_words}")));
        }
        Ok(Err(Unfit::Ended(last_words))) => return Ok(Attempt::Unfit(last_words.to_string())),
        Err(_) => {
            process.end.kill();
            return Ok(Attempt::Silent);
        }
    };
    // An interpreter that does not know its own path is called as it was found.
    let itself = match introduction.python.as_str() {
        "" => python.clone(),
        known => known.into(),
    };
    let mut site = Site::new(start, itself, owner.clone(), window);
    let mut connection = Connection::new(process, buffer);
    let begun = async {
        connection.stdin = Some(match given {
            Some(stdin) => stdin,
            None => giving.await,
        });
        begin(&shared, &site, &mut connection, start).await
    };
    let ready = match tokio::time::timeout(READY_LIMIT, begun).await {
        Ok(Ok(ready)) => ready,
        Ok(Err(Lost::Broken(reason))) => {
            return Err(StartError::Place {
                target: start.name.clone(),
                reason,
            });
        }
        Ok(Err(Lost::NoZlib)) => return Ok(Attempt::NoZlib),
        Ok(Err(Lost::NoProcess(reason))) => {
            return Err(StartError::NoProcess {
                target: start.name.clone(),
                reason,
            });
        }
        Ok(Err(Lost::Ended(error))) => return Err(error.into()),
        Err(_) => {
            return Err(StartError::Place {
                target: start.name.clone(),
                reason: format!("it did not get ready within {} s", READY_LIMIT.as_secs()),
            });
        }
    };
    site.folder.clone_from(&ready.folder);
    connection.settle();
    site.remember();
    Ok(Attempt::Began(Box::new(Begun {
        connection,
        introduction,
        shared,
        site,
        ready,
    })))
}

/// Gives the bundle to an interpreter; its input, for more. One that has ended shows on what comes from there.
async fn give(mut stdin: Writer, bundle: Vec<u8>) -> Writer {
    let _ = stdin.write_all(&bundle).await;
    let _ = stdin.flush().await;
    stdin
}

/// Waits until an interpreter that has the bundle is the first relay.
async fn begin(
    shared: &Arc<Shared>,
    site: &Site,
    connection: &mut Connection,
    start: &Start,
) -> Result<Box<Ready>, Lost> {
    if !start.target.capabilities().has_streams {
        return polled::first_look(shared, site, connection).await;
    }
    let is_stream = start.transport != Transport::Polled;
    let writer = if is_stream { connection.stdin.take() } else { None };
    shared.open(writer, false);
    stream::ready(shared, site, connection).await
}

fn bytes_of(path: impl AsRef<std::ffi::OsStr>) -> Vec<u8> {
    path.as_ref().as_encoded_bytes().to_vec()
}

/// 128 random bits: names that nobody can guess or squat.
pub(crate) fn random_hex() -> Result<String, StartError> {
    let mut bits = [0_u8; 16];
    getrandom::fill(&mut bits).map_err(|error| BackendError::Refused {
        target: "this machine".to_owned(),
        reason: format!("it gives no random numbers: {error}"),
        advice: "see that /dev/urandom can be read".to_owned(),
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}
