//! A sandbox behind the gateway as a target: made for one session and ended with it, or one that exists and that nobody
//! here ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;
use tracing::{info, warn};

use super::client::{Client, Failed, Patience, Request};
use super::credentials::GatewaySources;
use super::end::End;
use super::exec::{Place, Unstarted, uuid};
use super::failure::{self, Wanted};
use super::records;
use crate::backends::modal::end::end_in_sight;
use crate::backends::modal::options::{DEFAULT_APP, IDLE_TIMEOUT, LONGEST_LIFE};
use crate::backends::modal::owed::{Gone, Owed};
use crate::backends::{Backend, BackendError, Capabilities, Command, Phase, Process, Progress, Target, TargetState};
use crate::limits::format_duration;

/// What sandboxes can do behind the gateway. What waits unread there comes with one answer.
const CAPABILITIES: Capabilities = Capabilities {
    has_streams: false,
    takes_input: true,
    ..Capabilities::elsewhere(4 << 20)
};

/// CPUs where none are named, as the gateway's own clients ask for them.
const CPUS: f64 = 1.0;

/// Where commands start in a sandbox of ours, and in one of which nothing is known.
const FOLDERS: (&str, &str) = ("/root", "/");

/// Making a sandbox may mean fetching its image.
const CREATE: Patience = Patience {
    attempt: Duration::from_secs(180),
    total: Duration::from_secs(600),
};

/// Time in which the gateway must say whether a sandbox is there.
const STATE: Duration = Duration::from_secs(5);

/// What a sandbox is made with. Plain data: who makes it has read the configuration.
///
/// | field | key |
/// | --- | --- |
/// | `image` | the target `modal:IMAGE`, `terminal.modal_image` |
/// | `cpus`, `memory` | `terminal.container_cpu`, `terminal.container_memory` |
/// | `lifetime`, `idle_timeout` | `terminal.modal_lifetime`, `terminal.modal_idle_timeout` |
/// | `variables` | `terminal.modal_env` |
/// | `keep` | `terminal.modal_keep` |
/// | `app` | `terminal.modal_app`: with what its name begins |
/// | `snapshot` | `terminal.modal_snapshot`: its files are kept for the next session on this target |
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The target as the user wrote it.
    pub target: String,
    /// A tag in a registry.
    pub image: String,
    /// Where the gateway is, and who asks.
    pub sources: GatewaySources,
    /// CPUs.
    pub cpus: Option<f64>,
    /// Bytes of memory; as the gateway chooses when `None`.
    pub memory: Option<u64>,
    /// The time after which the sandbox ends whatever runs there.
    pub lifetime: Duration,
    /// The time after which it ends when nothing runs there: what a broker that was killed has left.
    pub idle_timeout: Duration,
    /// Variables beside the image's own.
    pub variables: BTreeMap<String, String>,
    /// Whether it stays when the session ends.
    pub keep: bool,
    /// With what its name begins.
    pub app: String,
    /// Whether its files are kept for the next session on this target. Two sessions at once share them: the last one to
    /// end is the one that counts.
    pub snapshot: bool,
}

impl GatewayOptions {
    /// A sandbox of an image with the default limits.
    pub fn new(target: impl Into<String>, image: impl Into<String>, sources: GatewaySources) -> Self {
        Self {
            target: target.into(),
            image: image.into(),
            sources,
            cpus: None,
            memory: None,
            lifetime: LONGEST_LIFE,
            idle_timeout: IDLE_TIMEOUT,
            variables: BTreeMap::new(),
            keep: false,
            app: DEFAULT_APP.to_owned(),
            snapshot: false,
        }
    }

    /// What the gateway is asked for.
    fn wish(&self) -> Value {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        // One that is there already under the same name might be taken instead of a new one.
        let name = match self.snapshot {
            true => plain(&format!("{}@{}", self.app, self.target)),
            false => plain(&format!("{}@{}", self.app, uuid())),
        };
        let mut wish = json!({
            "image": self.image,
            "cwd": FOLDERS.0,
            "cpu": self.cpus.unwrap_or(CPUS),
            "timeoutMs": millis(self.lifetime),
            "idleTimeoutMs": millis(self.idle_timeout),
            "persistentFilesystem": self.snapshot,
            "logicalKey": name,
        });
        if let Some(memory) = self.memory {
            wish["memoryMiB"] = (memory >> 20).max(1).into();
        }
        wish
    }
}

/// The backend of `modal:IMAGE` through the gateway.
#[derive(Clone, Debug)]
pub struct GatewayImage {
    options: Arc<GatewayOptions>,
    owed: Owed,
}

impl GatewayImage {
    /// Sandboxes that are made as `options` say.
    #[must_use]
    pub fn new(options: GatewayOptions) -> Self {
        Self {
            options: Arc::new(options),
            owed: Owed::default(),
        }
    }
}

/// The backend of `modal://sb-…` through the gateway.
#[derive(Clone, Debug)]
pub struct GatewaySandbox {
    target: String,
    id: String,
    sources: GatewaySources,
}

impl GatewaySandbox {
    /// The sandbox of this id; `target` is what the user wrote.
    #[must_use]
    pub fn new(target: impl Into<String>, id: impl Into<String>, sources: GatewaySources) -> Self {
        Self {
            target: target.into(),
            id: id.into(),
            sources,
        }
    }
}

pub(super) fn client(sources: &GatewaySources, target: &str) -> Result<Arc<Client>, BackendError> {
    let gateway = sources.gateway(target)?;
    let client = Client::new(&gateway).map_err(|trouble| BackendError::Refused {
        target: target.to_owned(),
        reason: trouble.reason,
        advice: trouble.advice,
    })?;
    Ok(Arc::new(client))
}

#[async_trait]
impl Backend for GatewayImage {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        let (options, target) = (self.options.clone(), self.options.target.clone());
        progress.phase(Phase::Connect);
        let client = client(&options.sources, &target)?;
        progress.note(&format!("{} makes a sandbox of {}", client.server(), options.image));
        let waits = client.waits.clone();
        let work = |gone: Gone| async move {
            let waits = client.waits.clone();
            waits.unless(gone.over(), make(client, options)).await
        };
        // It may be made when nobody waits for it any more: it is ended then.
        let end = |made: Result<Session, BackendError>| async {
            let Ok(session) = made else { return };
            if let Err(error) = session.close().await {
                warn!(%error, "a sandbox that nobody wants may be left");
            }
        };
        let made = waits.told(progress, self.owed.wanted(work, end)).await;
        let made = made.unwrap_or_else(|| {
            Err(BackendError::Refused {
                target,
                reason: "making its sandbox was given up".to_owned(),
                advice: "try again".to_owned(),
            })
        });
        Ok(Arc::new(made?))
    }

    async fn settle(&self) {
        self.owed.settled().await;
    }
}

async fn make(client: Arc<Client>, options: Arc<GatewayOptions>) -> Result<Session, BackendError> {
    let request = Request {
        key: Some(uuid()),
        ..Request::post("/v1/sandboxes".to_owned(), &options.wish())
    };
    let target = options.target.clone();
    let answer = client.ask(&request, CREATE).await;
    let answer = answer.map_err(|failed| failure::failed(&target, &client, Wanted::Sandbox, &failed))?;
    let id = answer.get("id").and_then(Value::as_str).unwrap_or_default();
    if !is_id(id) {
        let failed = Failed::Unanswered("what it says of the new sandbox names no id".to_owned());
        return Err(failure::failed(&target, &client, Wanted::Sandbox, &failed));
    }
    info!(target, sandbox = id, "a sandbox was made");
    let variables = options.variables.clone().into_iter().collect();
    let folder = options.sources.records.as_deref();
    let record = folder.and_then(|folder| records::write(folder, client.origin(), id, options.lifetime, options.keep));
    let place = Arc::new(Place::new(client, id.to_owned(), FOLDERS.0, variables));
    let end = End {
        place: place.clone(),
        target: target.clone(),
        snapshot: options.snapshot,
        idle_timeout: options.idle_timeout,
        record,
        is_under_way: Arc::new(AtomicBool::new(options.keep)),
    };
    Ok(Session {
        place,
        target,
        since: Instant::now(),
        ours: Some(Ours {
            options,
            has_told: AtomicBool::new(false),
            _dropped: end.with_guard(),
            end,
        }),
    })
}

/// A name in letters that every service takes.
fn plain(name: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.@".contains(*c);
    name.chars().map(|c| if is_plain(&c) { c } else { '_' }).collect()
}

/// Whether it can be part of an address as it is.
fn is_id(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[async_trait]
impl Backend for GatewaySandbox {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        progress.phase(Phase::Connect);
        let client = client(&self.sources, &self.target)?;
        let session = Session {
            place: Arc::new(Place::new(client, self.id.clone(), FOLDERS.1, Vec::new())),
            target: self.target.clone(),
            since: Instant::now(),
            ours: None,
        };
        if !is_id(&self.id) {
            return Err(session.gone("it has no such id"));
        }
        Ok(Arc::new(session))
    }
}

/// A sandbox, for as long as a session uses it.
struct Session {
    place: Arc<Place>,
    target: String,
    since: Instant,
    /// `None` where it exists without us.
    ours: Option<Ours>,
}

struct Ours {
    options: Arc<GatewayOptions>,
    /// Whether it was said that it stays.
    has_told: AtomicBool,
    /// One that stays is as if its end had come.
    end: End,
    _dropped: DropGuard,
}

#[async_trait]
impl Target for Session {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        match self.place.start(&command).await {
            Ok(process) => Ok(process),
            Err(Unstarted::Command(reason)) => Err(BackendError::Command {
                target: self.target.clone(),
                program: command.program.to_string_lossy().into_owned(),
                reason,
            }),
            Err(Unstarted::Call(failed)) if failed.is_missing() => Err(self.gone(&failed.line())),
            Err(Unstarted::Call(failed)) => Err(failure::failed(
                &self.target,
                &self.place.client,
                Wanted::Inside,
                &failed,
            )),
        }
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        let client = &self.place.client;
        let mut about = vec![
            (
                "gateway",
                format!("{} (the token of {})", client.server(), client.said_by),
            ),
            ("sandbox", self.place.id.clone()),
        ];
        if let Some(Ours { options, .. }) = &self.ours {
            let (whole, idle) = (format_duration(options.lifetime), format_duration(options.idle_timeout));
            about.extend([
                ("image", options.image.clone()),
                ("life", format!("{whole} at most, {idle} with nothing running")),
            ]);
        }
        about
    }

    fn notice(&self) -> Option<String> {
        let Ours { options, has_told, .. } = self.ours.as_ref()?;
        let id = &self.place.id;
        let mut notices = Vec::new();
        if options.keep && !has_told.swap(true, Ordering::AcqRel) {
            notices.push(format!(
                "the sandbox {id} stays when this session ends, and ends by itself when nothing runs in it for {}",
                format_duration(options.idle_timeout)
            ));
        }
        notices.extend(end_in_sight(id, self.since.elapsed(), options.lifetime));
        (!notices.is_empty()).then(|| notices.join(" · "))
    }

    async fn state(&self) -> TargetState {
        match self.ask().await {
            Ok(()) => TargetState::Running {
                incarnation: self.place.id.clone(),
                machine: String::new(),
            },
            Err(failed) if failed.is_missing() => {
                TargetState::Gone(format!("its sandbox {}; {}", self.ending(), self.advice()))
            }
            Err(failed) => TargetState::Unreachable(failed.line()),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        match &self.ours {
            Some(ours) => ours.end.now().await,
            None => Ok(()),
        }
    }
}

impl Session {
    /// Asks whether the sandbox is there: a command that it has taken is known there, and where there is none, or it was
    /// forgotten, one that does nothing is taken.
    async fn ask(&self) -> Result<(), Failed> {
        if let Some(last) = self.place.last() {
            match self.place.question(&last, STATE).await {
                Err(failed) if failed.is_missing() => {}
                answered => return answered,
            }
        }
        let nothing = self.place.line(&uuid(), ":", "", STATE);
        match self.place.client.once(&nothing, STATE).await {
            // It has something else to do.
            Err(Failed::Answered(refusal)) if refusal.code == 409 => Ok(()),
            answered => answered.map(drop),
        }
    }

    /// How it has ended, as far as can be told: the gateway does not say.
    fn ending(&self) -> String {
        match &self.ours {
            Some(Ours { options, .. }) if self.since.elapsed() >= options.lifetime => format!(
                "reached the end of its life of {} (modal_lifetime)",
                format_duration(options.lifetime)
            ),
            _ => "has ended: nothing ran in it for too long (modal_idle_timeout), it ran out of memory \
                  (container_memory), or it was terminated"
                .to_owned(),
        }
    }

    fn advice(&self) -> &'static str {
        match self.ours {
            Some(_) => "the next cell starts a new one",
            None => "`modal:IMAGE` makes a new one",
        }
    }

    fn gone(&self, why: &str) -> BackendError {
        BackendError::Gone {
            target: self.target.clone(),
            reason: format!("its sandbox {} ({why})", self.ending()),
            advice: self.advice().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_was_set() {
        let mut options = GatewayOptions::new("modal", "python:3.12", GatewaySources::default());
        let plain = options.wish();
        assert_eq!((&plain["image"], &plain["cpu"]), (&json!("python:3.12"), &json!(1.0)));
        assert_eq!(plain.get("memoryMiB"), None);
        assert_eq!(
            (&plain["timeoutMs"], &plain["idleTimeoutMs"]),
            (&json!(86_400_000), &json!(1_200_000))
        );
        assert_eq!(plain["persistentFilesystem"], json!(false));
        assert_ne!(plain["logicalKey"], options.wish()["logicalKey"]);
        options.cpus = Some(1.5);
        options.memory = Some(2 << 30);
        options.lifetime = Duration::from_secs(100);
        options.idle_timeout = Duration::from_secs(50);
        options.app = "lab".to_owned();
        options.snapshot = true;
        let set = options.wish();
        assert_eq!((&set["cpu"], &set["memoryMiB"]), (&json!(1.5), &json!(2048)));
        assert_eq!(
            (&set["timeoutMs"], &set["idleTimeoutMs"]),
            (&json!(100_000), &json!(50_000))
        );
        assert_eq!(
            (&set["persistentFilesystem"], &set["logicalKey"]),
            (&json!(true), &json!("lab@modal"))
        );
    }

    #[test]
    fn an_id_is_part_of_an_address_as_it_is() {
        assert!(is_id("sb-abc_1"));
        for text in ["", "a/b", "a?b", "..", "a b", "ä"] {
            assert!(!is_id(text), "{text}");
        }
    }
}
