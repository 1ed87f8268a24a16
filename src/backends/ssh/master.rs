//! The master connection: one login, over which all commands go.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openssh::Session;
use rustix::fs::Access;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::trace;

use super::failure;
use super::line::{self, Numbered};
use super::options::SshOptions;
use super::process::Unbegun;
use crate::backends::{BackendError, ProcessEnd};

/// ssh with what keeps it from living on when the broker is killed: the end of standard input ends it. The folder of its
/// socket is made and removed here, so that no kill of the broker leaves it. What the shell itself has to say of a signal
/// would end it, for nobody may read it any more. It is told more than once: a signal that comes right before ssh
/// goes to sleep is heeded only when it wakes. One that somebody stopped is woken for it. One that has gone into the
/// background, as the user's configuration may have it, is asked to end. Last goes the whole group: a `ProxyCommand` that
/// takes no note of the end of its streams would stay.
const HELD: &str = r#"exec 3<&0; d=$1; shift; mkdir -m 700 -- "$d" || exit 98; "$@" </dev/null & s=$!; { read -r x <&3; while kill "$s"; do kill -CONT "$s"; sleep 1; done; } 2>/dev/null & r=$!; exec 2>/dev/null; wait "$s"; [ "$?" != 0 ] || [ ! -S "$d/m" ] || { kill "$r"; read -r x <&3; "$1" -S "$d/m" -O exit x; }; rm -rf -- "$d"; kill -9 0"#;
/// How long a connection of ours may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How long ssh may take to say that it is there: it does nothing for that but look.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// How long what ssh said last may take to come.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long after its socket ssh may tell how it was let in.
const WORDS_LIMIT: Duration = Duration::from_millis(300);
/// Lines of what ssh says that are kept.
const KEPT_LINES: usize = 400;
/// The longest path of a socket (108 on Linux, 104 elsewhere), less what ssh adds while it makes one.
const SOCKET_PATH: usize = 80;

/// Milliseconds before it is tried again to log in where too many do; each may be up to twice as long, so that those who were
/// turned away together do not come back together.
const CROWD_PAUSES: [u64; 4] = [200, 500, 1000, 2000];

/// Why it was not let in.
enum Refusal {
    /// The next time it may be.
    MayPass(BackendError),
    /// Time was over.
    Late(BackendError),
    Final(BackendError),
}

/// Lines of what ssh says, as they come.
#[derive(Clone, Default)]
struct Words(Arc<Mutex<Vec<String>>>);

impl Words {
    fn all(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < KEPT_LINES {
            lines.push(line);
        }
    }
}

/// A connection that is up, or was.
pub(super) struct Master {
    options: Arc<SshOptions>,
    session: Arc<Session>,
    own: Mutex<Option<Own>>,
    /// What ssh has said so far.
    said: Words,
    /// Commands that end others, under way.
    kills: Mutex<Vec<JoinHandle<()>>>,
}

/// What ends with a master of ours: when nobody holds its standard input.
struct Own {
    process: Child,
    _held: ChildStdin,
}

impl Master {
    /// Connects, or joins the user's own master where the options name its socket.
    pub(super) async fn connect(options: &Arc<SshOptions>) -> Result<Self, BackendError> {
        match &options.control {
            Some(control) => Self::join(options, control).await,
            None => Self::log_in(options).await,
        }
    }

    fn new(options: &Arc<SshOptions>, control: PathBuf, own: Option<Own>, said: Words) -> Self {
        Self {
            options: options.clone(),
            session: Arc::new(Session::resume_mux(control.into_boxed_path(), None)),
            own: Mutex::new(own),
            said,
            kills: Mutex::default(),
        }
    }

    async fn join(options: &Arc<SshOptions>, control: &Path) -> Result<Self, BackendError> {
        let master = Self::new(options, control.to_owned(), None, Words::default());
        let why = match tokio::time::timeout(CHECK_LIMIT, master.session.check()).await {
            Ok(Ok(())) => return Ok(master),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it said nothing for {} s", CHECK_LIMIT.as_secs()),
        };
        Err(options.attempt().unreachable(
            &format!("no master connection answers at {} ({why})", control.display()),
            "start it (ssh -M), or leave ssh_control_path out",
        ))
    }

    /// Logs in; again after a while where too many do so at once.
    async fn log_in(options: &Arc<SshOptions>) -> Result<Self, BackendError> {
        let deadline = Instant::now() + options.connect_timeout;
        let mut pauses = CROWD_PAUSES.iter().map(|pause| spread(Duration::from_millis(*pause)));
        let mut before = None;
        loop {
            let error = match Self::try_to_log_in(options, deadline).await {
                Ok(master) => return Ok(master),
                Err(Refusal::Final(error)) => return Err(error),
                // What was found before says more.
                Err(Refusal::Late(error)) => return Err(before.unwrap_or(error)),
                Err(Refusal::MayPass(error)) => error,
            };
            match pauses.next() {
                Some(pause) if Instant::now() + pause < deadline => tokio::time::sleep(pause).await,
                _ => return Err(error),
            }
            before = Some(error);
        }
    }

    async fn try_to_log_in(options: &Arc<SshOptions>, deadline: Instant) -> Result<Self, Refusal> {
        let attempt = options.attempt();
        let Some(folder) = folder(&options.environment) else {
            return Err(Refusal::Final(attempt.refused(
                "no folder for its socket can be made in the temporary folders",
                "set TMPDIR to one that can be written, with a short path",
            )));
        };
        let control = folder.join("m");
        let mut command = Command::new("sh");
        command
            .env_clear()
            .envs(&options.environment)
            .args(["-c", HELD, "sh"])
            .arg(&folder)
            .arg("ssh")
            .args(arguments(options, &control))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| Refusal::Final(attempt.no_ssh(&error.to_string())))?;
        let (Some(held), Some(stderr)) = (process.stdin.take(), process.stderr.take()) else {
            return Err(Refusal::Final(
                attempt.refused("its standard streams could not be opened", "try it again"),
            ));
        };
        let said = Words::default();
        let listening = tokio::spawn(listen(stderr, said.clone()));
        match tokio::time::timeout_at(deadline, ready(&mut process, &control)).await {
            Ok(true) => Ok(Self::new(options, control, Some(Own { process, _held: held }), said)),
            Ok(false) => {
                // Whatever ssh has started may hold on to it.
                let _ = tokio::time::timeout(LAST_WORDS, listening).await;
                let said = said.all();
                let error = attempt.failed(&said);
                Err(match failure::may_pass(&said) {
                    true => Refusal::MayPass(error),
                    false => Refusal::Final(error),
                })
            }
            Err(_) => Err(Refusal::Late(attempt.late(&said.all()))),
        }
    }

    /// Kills a process over there with all of its group, as whoever it runs as, then lets go of the command.
    pub(super) fn kill(&self, process: Numbered, command: JoinHandle<ProcessEnd>) {
        let (session, options) = (self.session(), self.options.clone());
        let killing = async move {
            let r#become = options.r#become.as_deref();
            let line = line::kill(&process, r#become);
            let done = Session::to_raw_command(session, line).output().await;
            if let Err(error) = done
                && matches!(Unbegun::of(&error), Unbegun::Full)
                && options.control.is_none()
                && let Some(line) = line::kill_elsewhere(&process, r#become)
                && let Ok(another) = Self::log_in(&options).await
            {
                let _ = Session::to_raw_command(another.session(), line).output().await;
                another.discard();
            }
            command.abort();
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut kills = self.kills.lock().unwrap_or_else(PoisonError::into_inner);
            kills.retain(|kill| !kill.is_finished());
            kills.push(runtime.spawn(killing));
        }
    }

    /// Ends a connection of ours; one of the user's stays. False: it may still be there.
    pub(super) async fn end(&self) -> bool {
        let kills = std::mem::take(&mut *self.kills.lock().unwrap_or_else(PoisonError::into_inner));
        let killed = async {
            for kill in kills {
                let _ = kill.await;
            }
        };
        let killed = tokio::time::timeout(END_LIMIT, killed).await.is_ok();
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Own { mut process, _held }) = own else {
            return killed;
        };
        drop(_held);
        killed && tokio::time::timeout(END_LIMIT, process.wait()).await.is_ok()
    }

    /// Gives up a connection of ours over which nothing comes any more, whatever still runs over it.
    pub(super) fn discard(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(Own { mut process, _held }), Ok(runtime)) = (own, tokio::runtime::Handle::try_current()) {
            drop(_held);
            runtime.spawn(async move { process.wait().await });
        }
    }

    /// What it was connected to and how, as far as ssh says so.
    pub(super) async fn about(&self) -> Vec<(&'static str, String)> {
        if let Some(control) = &self.options.control {
            return vec![("login", format!("your own connection at {}", control.display()))];
        }
        // Its socket may be seen before its words are read; one that is told to be quiet says none.
        let told = async {
            while !self.said.all().contains(failure::LET_IN) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(WORDS_LIMIT, told).await;
        failure::about(&self.said.all())
    }

    /// Whether it is the user's own.
    pub(super) fn is_the_users(&self) -> bool {
        self.options.control.is_some()
    }

    pub(super) fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// Whether it still carries commands, as far as can be seen from here.
    pub(super) async fn is_up(&self) -> bool {
        let is_there = match &mut *self.own.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(own) => matches!(own.process.try_wait(), Ok(None)),
            None => self.is_the_users(),
        };
        if !is_there {
            return false;
        }
        matches!(
            tokio::time::timeout(CHECK_LIMIT, self.session.check()).await,
            Ok(Ok(()))
        )
    }
}

fn spread(pause: Duration) -> Duration {
    let mut random = [0; 2];
    // Without random numbers all come at once.
    let _ = getrandom::fill(&mut random);
    pause + pause * u32::from(u16::from_ne_bytes(random)) / u32::from(u16::MAX)
}

fn arguments(options: &SshOptions, control: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["-v", "-M", "-N", "-T", "-S"].map(OsString::from).into();
    words.push(control.into());
    let seconds = options.connect_timeout.as_secs().max(1);
    let fixed = BTreeMap::from([
        ("BatchMode", "yes".to_owned()),
        ("ConnectTimeout", seconds.to_string()),
        ("ServerAliveInterval", "15".to_owned()),
        ("ServerAliveCountMax", "3".to_owned()),
        ("ControlPersist", "no".to_owned()),
        // Of the user's configuration, what is meant for somebody at a terminal.
        ("ClearAllForwardings", "yes".to_owned()),
        ("RemoteCommand", "none".to_owned()),
        ("RequestTTY", "no".to_owned()),
        ("ForwardX11", "no".to_owned()),
    ]);
    let mut set: Vec<String> = options.extra.clone();
    if options.accept_new {
        set.push("StrictHostKeyChecking=accept-new".to_owned());
    }
    set.extend(fixed.into_iter().map(|(name, value)| format!("{name}={value}")));
    for option in set {
        words.push("-o".into());
        words.push(option.into());
    }
    if let Some(port) = options.port {
        words.push("-p".into());
        words.push(port.to_string().into());
    }
    if let Some(key) = &options.key {
        words.push("-i".into());
        words.push(key.into());
    }
    words.push("--".into());
    words.push((&options.destination).into());
    words
}

/// Where a folder for a socket can be made, whose path must not be long; one that nobody can guess.
fn folder(environment: &BTreeMap<OsString, OsString>) -> Option<PathBuf> {
    let mut name = [0; 8];
    getrandom::fill(&mut name).ok()?;
    let name = format!("talaria-{:016x}", u64::from_ne_bytes(name));
    let usual = ["XDG_RUNTIME_DIR", "TMPDIR"].map(|name| environment.get(OsStr::new(name)).map(PathBuf::from));
    let bases = usual.into_iter().flatten().chain(["/tmp".into(), "/var/tmp".into()]);
    bases
        .filter(|base| base.is_absolute() && base.as_os_str().len() + name.len() < SOCKET_PATH)
        .find(|base| rustix::fs::access(base, Access::WRITE_OK | Access::EXEC_OK).is_ok())
        .map(|base| base.join(name))
}

/// Waits until ssh has a connection, which is when it makes its socket; false: it has ended.
async fn ready(process: &mut Child, control: &Path) -> bool {
    while !control.exists() {
        if !matches!(process.try_wait(), Ok(None)) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    true
}

/// Reads what ssh says for as long as it lives, for it would stop otherwise.
async fn listen(stderr: tokio::process::ChildStderr, said: Words) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        trace!(%line, "ssh");
        said.push(line);
    }
}
