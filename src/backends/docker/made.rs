//! A container that is made for a session.
//!
//! It is made when the first command is spawned, with that command as its first process: so there is no process in it
//! that is not the session's, and when that process ends the engine removes the container. Making it runs in a task of
//! its own, to its end: whoever waits for it may be dropped at any moment, and `close` still finds what was made.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder, KillContainerOptionsBuilder,
    StartContainerOptions, WaitContainerOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;

use super::container::{UserMap, create_body};
use super::engine::Engine;
use super::exec::{self, ExecOptions};
use super::failure::{self, Attempt};
use super::options::DockerOptions;
use super::{images, ours, process, random_name, running};
use crate::backends::{
    Backend, BackendError, Capabilities, Command, Phase, Process, ProcessEnd, ProcessWait, Progress, Target,
    TargetState,
};

/// Time in which the first process of a container ends when it is told to.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Time in which the engine removes a container.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// Time in which it says what happened to one.
const EVENTS_LIMIT: Duration = Duration::from_secs(2);
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(300);

/// The backend of `docker:IMAGE`.
#[derive(Clone, Debug)]
pub struct DockerImage {
    options: DockerOptions,
}

impl DockerImage {
    /// Containers that are made as `options` say.
    #[must_use]
    pub fn new(options: DockerOptions) -> Self {
        Self { options }
    }
}

#[async_trait]
impl Backend for DockerImage {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        let options = self.options.clone();
        progress.phase(Phase::Connect);
        let engine = options.engine.connect(&options.target).await?;
        images::ensure(&engine, &options.target, &options.image, progress).await?;
        let users = match options.host_user {
            Some(_) => engine.user_map(&options.target).await?,
            None => UserMap::default(),
        };
        let sweeping = engine.clone();
        tokio::spawn(async move { ours::sweep(&sweeping).await });
        Ok(Arc::new(Made {
            shared: Arc::new(Shared { options, users, engine }),
            slot: Arc::new(tokio::sync::Mutex::new(Slot::Empty)),
        }))
    }
}

/// A target whose container is made with its first process.
struct Made {
    shared: Arc<Shared>,
    slot: Arc<tokio::sync::Mutex<Slot>>,
}

struct Shared {
    options: DockerOptions,
    users: UserMap,
    engine: Engine,
}

enum Slot {
    Empty,
    Made(Container),
    Closed,
}

/// The container.
#[derive(Clone)]
struct Container {
    id: String,
    name: String,
    /// How its first process ended, once that is known.
    end: watch::Receiver<Option<ProcessEnd>>,
    /// Whether that process is what the container lives for; else the next process takes its place, in a new container.
    is_settled: Arc<AtomicBool>,
}

#[async_trait]
impl Target for Made {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ends_with_session: true,
            ..super::CAPABILITIES
        }
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let mut slot = Arc::clone(&self.slot).lock_owned().await;
        if let Slot::Made(container) = &*slot
            && !container.is_settled.load(Ordering::Acquire)
        {
            remove(&self.shared, &container.id, &container.name).await?;
            *slot = Slot::Empty;
        }
        let (target, engine) = (&self.shared.options.target, &self.shared.engine);
        match &*slot {
            Slot::Empty => {
                let making = tokio::spawn(make(Arc::clone(&self.shared), command, slot));
                making.await.map_err(|error| BackendError::Refused {
                    target: target.clone(),
                    reason: format!("making its container was given up ({error})"),
                    advice: "try again".to_owned(),
                })?
            }
            Slot::Made(container) => {
                let container = container.clone();
                drop(slot);
                let options = ExecOptions {
                    folder: self.shared.options.folder.clone(),
                    ..ExecOptions::default()
                };
                exec::start(engine, target, &container.id, &container.name, &options, command).await
            }
            Slot::Closed => Err(BackendError::Gone {
                target: target.clone(),
                reason: "it was closed".to_owned(),
                advice: "open it again".to_owned(),
            }),
        }
    }

    async fn state(&self) -> TargetState {
        let container = match &*self.slot.lock().await {
            Slot::Empty => {
                return TargetState::Running {
                    incarnation: String::new(),
                    machine: String::new(),
                };
            }
            Slot::Made(container) => container.clone(),
            Slot::Closed => return TargetState::Gone("it was closed; open it again".to_owned()),
        };
        let engine = &self.shared.engine;
        match running::inspect(engine, &container.id).await {
            Ok(Some(state)) => match running::state_of(&state) {
                TargetState::Gone(_) if state.oom_killed == Some(true) => TargetState::Gone(self.out_of_memory()),
                TargetState::Gone(_) => TargetState::Gone(self.obituary(&container, state.exit_code).await),
                state => state,
            },
            Ok(None) => TargetState::Gone(self.obituary(&container, None).await),
            Err(reason) => TargetState::Unreachable(reason),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        let mut slot = self.slot.lock().await;
        match std::mem::replace(&mut *slot, Slot::Closed) {
            Slot::Made(container) => {
                if container.is_settled.load(Ordering::Acquire) {
                    let_end(&self.shared, container.clone()).await;
                }
                remove(&self.shared, &container.id, &container.name).await
            }
            Slot::Empty | Slot::Closed => Ok(()),
        }
    }
}

impl Made {
    fn out_of_memory(&self) -> String {
        format!("its container ran {}", self.of_memory())
    }

    /// Of which memory, and what to do.
    fn of_memory(&self) -> String {
        let limit = self.shared.options.memory;
        let limit = limit.map_or("its engine's machine".to_owned(), |bytes| {
            format!("its limit of {} MB", bytes / (1024 * 1024))
        });
        format!("out of memory ({limit}); raise container_memory or hold less at once")
    }

    /// How it ended: the engine remembers for a while what happened, and removes it at once.
    async fn obituary(&self, container: &Container, code: Option<i64>) -> String {
        let of_watch = match *container.end.borrow() {
            Some(ProcessEnd::Code(code)) => Some(i64::from(code)),
            _ => None,
        };
        let code = code.or(of_watch);
        let docker = &self.shared.engine.docker;
        let mut found = cause(docker, &container.id).await;
        // The engine may hear of a lack of memory a little later than of the end, or never.
        for _ in 0..LATER_LOOKS {
            if found.is_some() || code != Some(KILLED) {
                break;
            }
            tokio::time::sleep(LATER).await;
            found = cause(docker, &container.id).await;
        }
        let how = match (found, code) {
            (Some(Cause::Memory), _) => return self.out_of_memory(),
            (Some(Cause::Outside), _) => "was stopped or removed from outside (docker stop, kill or rm)".to_owned(),
            (_, Some(KILLED)) => {
                return format!(
                    "its container was killed (exit code {KILLED}: SIGKILL), most likely for being {}; the next cell starts a new one",
                    self.of_memory()
                );
            }
            (_, Some(code)) => format!("has ended (exit code {code})"),
            (_, None) => "was removed".to_owned(),
        };
        format!("its container {how}; the next cell starts a new one")
    }
}

/// The exit code of a container whose first process got SIGKILL, which only the machine itself can send it.
const KILLED: i64 = 137;

/// How often, and how long later, the engine is asked again what ended a container that was killed.
const LATER_LOOKS: u32 = 5;
const LATER: Duration = Duration::from_millis(100);

/// What ended a container, where it was not its first process itself.
enum Cause {
    Memory,
    Outside,
}

/// What the engine says of it: what happened before, and what it says only after the end. It remembers for a while.
async fn cause(docker: &Docker, container: &str) -> Option<Cause> {
    let wanted = vec!["oom", "kill", "stop", "die", "destroy", "remove"];
    let filters = HashMap::from([("container", vec![container]), ("event", wanted)]);
    let options = EventsOptionsBuilder::default().since("0").filters(&filters).build();
    let mut stream = Box::pin(docker.events(Some(options)));
    let mut patience = EVENTS_LIMIT;
    while let Ok(Some(Ok(event))) = tokio::time::timeout(patience, stream.next()).await {
        match event.action.as_deref() {
            Some("oom") => return Some(Cause::Memory),
            Some("kill" | "stop") => return Some(Cause::Outside),
            // A signal from outside may be told last.
            Some("destroy" | "remove") => patience = LAST_WORDS_LIMIT,
            _ => {}
        }
    }
    None
}

/// Pauses before a container is made again whose first process ended while the engine's own helper still prepared it:
/// where few processes are allowed that one may lack a thread, and do better the next time.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// Makes the container and starts it. Runs to its end whoever waits for it; leaves nothing when it fails.
async fn make(shared: Arc<Shared>, command: Command, mut slot: OwnedMutexGuard<Slot>) -> Result<Process, BackendError> {
    let mut pauses = PAUSES.iter();
    loop {
        let (failed, may_pass) = match make_once(&shared, &command).await {
            Ok((process, container)) => {
                *slot = Slot::Made(container);
                return Ok(process);
            }
            Err(failed) => failed,
        };
        match pauses.next() {
            Some(pause) if may_pass => tokio::time::sleep(*pause).await,
            _ => return Err(failed),
        }
    }
}

/// The same once; when it fails, whether the next attempt may do better.
async fn make_once(shared: &Shared, command: &Command) -> Result<(Process, Container), (BackendError, bool)> {
    let Shared { options, users, engine } = shared;
    let program = command.program.to_string_lossy().into_owned();
    let name = format!("talaria-{}", random_name());
    let attempt = Attempt {
        target: &options.target,
        engine,
        program: &program,
        container: &name,
    };
    let body = create_body(options, *users, command, ours::labels(&name, options.lease));
    let request = CreateContainerOptionsBuilder::default().name(&name).build();
    let created = engine.docker.create_container(Some(request), body).await;
    let created = created.map_err(|error| (attempt.container_failed(&error), false))?;
    for warning in &created.warnings {
        tracing::debug!(warning, "the engine warns about a new container");
    }
    match start(&engine.docker, &created.id).await {
        Ok((process, end, is_settled)) => Ok((
            process,
            Container {
                id: created.id,
                name,
                end,
                is_settled,
            },
        )),
        Err(error) => {
            let failed = attempt.container_failed(&error);
            if let Err(left) = remove(shared, &created.id, &name).await {
                tracing::warn!("{left}");
            }
            Err((failed, failure::helper_ended(&error)))
        }
    }
}

type Started = (Process, watch::Receiver<Option<ProcessEnd>>, Arc<AtomicBool>);

async fn start(docker: &Docker, id: &str) -> Result<Started, Error> {
    // Before it starts, so that nothing of its output is missed.
    let attach = AttachContainerOptionsBuilder::default()
        .stream(true)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .build();
    let attached = docker.attach_container(id, Some(attach)).await?;
    let streams = process::carry(attached.input, attached.output);
    let (tell, end) = watch::channel(None);
    tokio::spawn(watch_end(docker.clone(), id.to_owned(), tell));
    docker.start_container(id, None::<StartContainerOptions>).await?;
    let kill = {
        let (docker, id) = (docker.clone(), id.to_owned());
        move |signal: &'static str| {
            let (docker, id) = (docker.clone(), id.clone());
            tokio::spawn(async move {
                let options = KillContainerOptionsBuilder::default().signal(signal).build();
                // It may have ended.
                let _ = docker.kill_container(&id, Some(options)).await;
            });
        }
    };
    let wake = kill.clone();
    let is_settled = Arc::new(AtomicBool::new(false));
    let process = Process {
        stdin: Box::new(streams.stdin),
        stdout: Box::new(streams.stdout),
        stderr: Box::new(streams.stderr),
        end: Box::new(FirstEnd {
            end: end.clone(),
            kill: Mutex::new(Some(Box::new(move || kill("SIGKILL")))),
            is_settled: is_settled.clone(),
        }),
        wake: Arc::new(move || wake("SIGCONT")),
    };
    Ok((process, end, is_settled))
}

/// Waits for the container's removal, which tells how its first process ended.
async fn watch_end(docker: Docker, id: String, tell: watch::Sender<Option<ProcessEnd>>) {
    let code = |code: i64| i32::try_from(code).map_or(ProcessEnd::Lost, ProcessEnd::Code);
    loop {
        let options = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut stream = Box::pin(docker.wait_container(&id, Some(options)));
        let end = tokio::select! {
            end = stream.next() => end,
            () = tell.closed() => return,
        };
        let end = match end {
            Some(Ok(response)) => code(response.status_code),
            Some(Err(Error::DockerContainerWaitError { code: status, .. })) => code(status),
            Some(Err(error)) if failure::status(&error) == Some(404) => ProcessEnd::Lost,
            // The engine restarts, or the request took longer than the client waits: asked again.
            Some(Err(_)) | None => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        // Whoever wanted to know may have gone.
        let _ = tell.send(Some(end));
        return;
    }
}

struct FirstEnd {
    end: watch::Receiver<Option<ProcessEnd>>,
    kill: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    is_settled: Arc<AtomicBool>,
}

#[async_trait]
impl ProcessWait for FirstEnd {
    async fn wait(&mut self) -> ProcessEnd {
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => end.unwrap_or(ProcessEnd::Lost),
            Err(_) => ProcessEnd::Lost,
        }
    }

    fn detach(&mut self) {
        self.is_settled.store(true, Ordering::Release);
    }

    fn kill(&mut self) {
        if self.is_settled.load(Ordering::Acquire) {
            return;
        }
        let kill = self.kill.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(kill) = kill {
            kill();
        }
    }
}

/// Tells the first process of a container to end, and waits a while until it has: what it made in mounts outlives the
/// container, and nobody else removes it.
async fn let_end(shared: &Shared, mut container: Container) {
    let options = KillContainerOptionsBuilder::default().signal("SIGTERM").build();
    // It may have ended, or the engine is gone.
    if shared
        .engine
        .docker
        .kill_container(&container.id, Some(options))
        .await
        .is_ok()
    {
        let _ = tokio::time::timeout(END_LIMIT, container.end.wait_for(Option::is_some)).await;
    }
}

/// Removes a container of ours and waits until it is gone.
async fn remove(shared: &Shared, id: &str, name: &str) -> Result<(), BackendError> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(5);
    let reason = loop {
        let removed = tokio::time::timeout(REMOVAL_LIMIT, ours::remove(&shared.engine, id)).await;
        let gone = running::inspect(&shared.engine, id).await;
        if matches!(gone, Ok(None)) {
            return Ok(());
        }
        if began.elapsed() > REMOVAL_LIMIT {
            break match (removed, gone) {
                (Ok(Err(error)), _) => error.to_string(),
                (_, Err(reason)) => reason,
                _ => "the engine has not removed it in time".to_owned(),
            };
        }
        pause = (pause * 2).min(Duration::from_millis(500));
        tokio::time::sleep(pause).await;
    };
    Err(BackendError::Unreachable {
        target: shared.options.target.clone(),
        reason: format!("its container {name} may be left behind: {reason}"),
        advice: format!("remove it with `talaria gc` or `docker rm -f {name}`"),
    })
}
