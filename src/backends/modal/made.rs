//! A sandbox as a target: made for one session and ended with it, or one that exists and that nobody here ends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;
use tracing::{info, warn};

use super::control::{CallFailed, Control};
use super::credentials::{Account, ModalSources};
use super::exec::{self, Unstarted};
use super::failure::{Asked, Wanted};
use super::images::{self, Wish};
use super::options::ModalOptions;
use super::retry::Policy;
use super::sandbox::{Health, Plan, Sandbox};
use super::snapshots::{self, Snapshot};
use super::wire::client::network_access::NetworkAccessType;
use super::wire::client::{
    AppGetOrCreateRequest, EnvironmentGetOrCreateRequest, GpuConfig, NetworkAccess, ObjectCreationType, Resources,
    Sandbox as Definition, SchedulerPlacement, SecretGetOrCreateRequest,
};
use super::{CAPABILITIES, ours};
use crate::backends::{
    Backend, BackendError, Capabilities, Command, Phase, Process, Progress, Silent, Target, TargetState, random_name,
};
use crate::limits::format_duration;

/// From which part of its life on outcomes say when a sandbox will end.
const LATE: f64 = 0.8;

/// The time in which a close must have kept files and ended the sandbox.
const CLOSE_LIMIT: Duration = Duration::from_secs(150);

/// The backend of `modal:IMAGE`.
#[derive(Clone, Debug)]
pub struct ModalImage {
    options: Arc<ModalOptions>,
}

impl ModalImage {
    /// Sandboxes that are made as `options` say.
    #[must_use]
    pub fn new(options: ModalOptions) -> Self {
        let options = Arc::new(options);
        Self { options }
    }
}

/// The backend of `modal://sb-…`.
#[derive(Clone, Debug)]
pub struct ModalSandbox {
    target: String,
    id: String,
    sources: ModalSources,
}

impl ModalSandbox {
    /// The sandbox of this id; `target` is what the user wrote.
    #[must_use]
    pub fn new(target: impl Into<String>, id: impl Into<String>, sources: ModalSources) -> Self {
        Self {
            target: target.into(),
            id: id.into(),
            sources,
        }
    }
}

#[async_trait]
impl Backend for ModalImage {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        let (options, target) = (&self.options, &self.options.target);
        progress.phase(Phase::Connect);
        let reached = Reached::of(&options.sources, target).await?;
        let asked = reached.asked(target);
        let environment = options.environment.as_ref().unwrap_or(&reached.account.environment);
        let control = &reached.control;
        let (app, builder, secret, token) = tokio::join!(
            app(control, &options.app, environment),
            builder(control, environment),
            registry_secret(control, options.registry_secret.as_deref(), environment),
            control.token(),
        );
        token.map_err(|failed| asked.failed(Wanted::App(&options.app), &failed))?;
        let builder = builder.map_err(|failed| asked.failed(Wanted::Environment(environment), &failed))?;
        let app = app.map_err(|failed| asked.failed(Wanted::App(&options.app), &failed))?;
        let named = options.registry_secret.as_deref().unwrap_or_default();
        let secret = secret.map_err(|failed| asked.failed(Wanted::Secret(named), &failed))?;
        let kept = options
            .snapshots
            .as_deref()
            .and_then(|file| snapshots::read(file, &options.image));
        let plan = |image: String| Plan {
            app: app.clone(),
            environment: environment.clone(),
            definition: definition(options, image),
            tags: ours::tags(options.keep),
            variables: options.variables.clone().into_iter().collect(),
        };
        let restored = match kept {
            Some(image) => match self.make(&reached, plan(image.clone())).await {
                Ok(sandbox) => Some(sandbox),
                // Modal keeps nothing for ever.
                Err(BackendError::Refused { reason, .. }) => {
                    warn!(
                        target,
                        image, reason, "the files of the last session cannot be had again"
                    );
                    None
                }
                Err(error) => return Err(error),
            },
            None => None,
        };
        let is_restored = restored.is_some();
        let sandbox = match restored {
            Some(sandbox) => sandbox,
            None => {
                let wish = Wish {
                    image: &options.image,
                    app: &app,
                    builder: &builder,
                    secret,
                };
                let image = images::ensure(control, asked, &wish, progress).await?;
                progress.phase(Phase::Connect);
                self.make(&reached, plan(image)).await?
            }
        };
        info!(target, sandbox = sandbox.id, generation = %sandbox.generation, is_restored, "a sandbox was made");
        let sandbox = Arc::new(sandbox);
        let end = End {
            sandbox: sandbox.clone(),
            options: options.clone(),
            is_under_way: Arc::default(),
        };
        let dropped = CancellationToken::new();
        tokio::spawn(end.clone().when(dropped.clone()));
        Ok(Arc::new(Session {
            reached,
            sandbox,
            target: target.clone(),
            kind: Kind::Ours {
                options: options.clone(),
                has_told: AtomicBool::new(false),
                end,
                _dropped: dropped.drop_guard(),
            },
        }))
    }
}

impl ModalImage {
    /// Makes the sandbox. One that nobody waits for any more when it is there is ended.
    async fn make(&self, reached: &Reached, plan: Plan) -> Result<Sandbox, BackendError> {
        let (give, take) = tokio::sync::oneshot::channel();
        let (reached, target) = (reached.clone(), self.options.target.clone());
        tokio::spawn(async move {
            let made = Sandbox::create(reached.control.clone(), reached.asked(&target), &plan, &Silent).await;
            if let Err(Ok(sandbox)) = give.send(made)
                && let Err(failed) = sandbox.terminate().await
            {
                warn!(
                    sandbox = sandbox.id,
                    message = failed.message,
                    "a sandbox that nobody wants may be left"
                );
            }
        });
        take.await.unwrap_or_else(|_| {
            Err(BackendError::Refused {
                target: self.options.target.clone(),
                reason: "making its sandbox was given up".to_owned(),
                advice: "try again".to_owned(),
            })
        })
    }
}

#[async_trait]
impl Backend for ModalSandbox {
    async fn open(&self, progress: &dyn Progress) -> Result<Arc<dyn Target>, BackendError> {
        progress.phase(Phase::Connect);
        let reached = Reached::of(&self.sources, &self.target).await?;
        let asked = reached.asked(&self.target);
        let sandbox = Sandbox::attach(reached.control.clone(), asked, &self.id).await?;
        Ok(Arc::new(Session {
            reached,
            sandbox: Arc::new(sandbox),
            target: self.target.clone(),
            kind: Kind::Foreign,
        }))
    }
}

/// The control plane, and as whom it is asked.
#[derive(Clone)]
struct Reached {
    control: Arc<Control>,
    account: Arc<Account>,
    server: Arc<str>,
}

impl Reached {
    async fn of(sources: &ModalSources, target: &str) -> Result<Self, BackendError> {
        let account = sources.account(target)?;
        let asked = Asked {
            target,
            server: "",
            said_by: &account.said_by,
        };
        let control = Control::connect(&account).await;
        let control = control.map_err(|reason| asked.unreachable(&reason))?;
        Ok(Self {
            server: super::connection::named(&control.server).into(),
            control: Arc::new(control),
            account: Arc::new(account),
        })
    }

    fn asked<'a>(&'a self, target: &'a str) -> Asked<'a> {
        Asked {
            target,
            server: &self.server,
            said_by: &self.account.said_by,
        }
    }
}

async fn app(control: &Control, name: &str, environment: &str) -> Result<String, CallFailed> {
    let request = AppGetOrCreateRequest {
        app_name: name.to_owned(),
        environment_name: environment.to_owned(),
        object_creation_type: ObjectCreationType::CreateIfMissing.into(),
    };
    let found = control.call(
        "AppGetOrCreate",
        Policy::CONTROL,
        request,
        |mut client, request| async move { client.app_get_or_create(request).await },
    );
    Ok(found.await?.app_id)
}

/// The version of Modal's image builder that an environment uses.
async fn builder(control: &Control, environment: &str) -> Result<String, CallFailed> {
    let request = EnvironmentGetOrCreateRequest {
        deployment_name: environment.to_owned(),
        ..EnvironmentGetOrCreateRequest::default()
    };
    let found = control.call(
        "EnvironmentGetOrCreate",
        Policy::CONTROL,
        request,
        |mut client, request| async move { client.environment_get_or_create(request).await },
    );
    let settings = found.await?.metadata.and_then(|metadata| metadata.settings);
    Ok(settings.unwrap_or_default().image_builder_version)
}

/// The secret of that name.
async fn registry_secret(
    control: &Control,
    name: Option<&str>,
    environment: &str,
) -> Result<Option<String>, CallFailed> {
    let Some(name) = name else { return Ok(None) };
    let request = SecretGetOrCreateRequest {
        deployment_name: name.to_owned(),
        environment_name: environment.to_owned(),
        ..SecretGetOrCreateRequest::default()
    };
    let found = control.call(
        "SecretGetOrCreate",
        Policy::CONTROL,
        request,
        |mut client, request| async move { client.secret_get_or_create(request).await },
    );
    Ok(Some(found.await?.secret_id))
}

/// What Modal is asked for.
fn definition(options: &ModalOptions, image: String) -> Definition {
    let seconds = |duration: Duration| u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
    let cpus = options
        .cpus
        .map_or(0, |cpus| (cpus * 1000.0).round().clamp(1.0, f64::from(u32::MAX)) as u32);
    let memory = options
        .memory
        .map_or(0, |bytes| u32::try_from(bytes >> 20).unwrap_or(u32::MAX));
    let network = match options.is_blocked {
        true => NetworkAccessType::Blocked,
        false => NetworkAccessType::Open,
    };
    Definition {
        // It does nothing for longer than the sandbox lives. Not every `sleep` knows the word "infinity", and a variable
        // may say that programs are found elsewhere.
        entrypoint_args: vec![
            "/bin/sleep".to_owned(),
            (2 * seconds(options.lifetime).max(1)).to_string(),
        ],
        image_id: image,
        secret_ids: Vec::new(),
        resources: Some(Resources {
            memory_mb: memory,
            memory_mb_max: memory,
            milli_cpu: cpus,
            milli_cpu_max: cpus,
            gpu_config: options.gpu.as_ref().map(|gpu| GpuConfig {
                count: gpu.count,
                gpu_type: gpu.kind.clone(),
            }),
        }),
        timeout_secs: seconds(options.lifetime),
        workdir: None,
        scheduler_placement: (!options.regions.is_empty()).then(|| SchedulerPlacement {
            regions: options.regions.clone(),
        }),
        network_access: Some(NetworkAccess {
            network_access_type: network.into(),
        }),
        name: Some(format!("talaria-{}", random_name())),
        idle_timeout_secs: Some(seconds(options.idle_timeout)),
    }
}

/// A sandbox, for as long as a session uses it.
struct Session {
    reached: Reached,
    sandbox: Arc<Sandbox>,
    target: String,
    kind: Kind,
}

enum Kind {
    /// It was made for the session.
    Ours {
        options: Arc<ModalOptions>,
        /// Whether it was said that it stays.
        has_told: AtomicBool,
        end: End,
        /// The end comes when it is gone.
        _dropped: DropGuard,
    },
    /// It exists without us.
    Foreign,
}

#[async_trait]
impl Target for Session {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn spawn(&self, command: Command) -> Result<Process, BackendError> {
        let failed = match exec::start(&self.sandbox.router, &self.sandbox.task, &command).await {
            Ok(process) => return Ok(process),
            Err(Unstarted::Command(reason)) => return Err(self.unstarted(&command, reason)),
            Err(Unstarted::Call(failed)) => failed,
        };
        if let Health::Ended(how) = self.health().await {
            let reason = format!("its sandbox {how}");
            return Err(self.asked().gone(&reason, self.advice()));
        }
        Err(match failed.code {
            _ if failed.unanswered => self.asked().failed(Wanted::Inside, &failed),
            _ if says_missing(&failed.message) => BackendError::NoProgram {
                target: self.target.clone(),
                program: command.program.to_string_lossy().into_owned(),
                reason: "is not there, or cannot be executed".to_owned(),
            },
            Code::InvalidArgument => self.unstarted(&command, failed.message),
            _ => self.asked().failed(Wanted::Inside, &failed),
        })
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        let mut about = vec![
            (
                "modal",
                format!(
                    "{} (the token of {})",
                    self.reached.server, self.reached.account.said_by
                ),
            ),
            ("sandbox", format!("{}, {}", self.sandbox.id, self.sandbox.generation)),
            ("worker", self.sandbox.router.shown().unwrap_or_default()),
        ];
        if let Kind::Ours { options, .. } = &self.kind {
            let environment = options
                .environment
                .as_ref()
                .unwrap_or(&self.reached.account.environment);
            let environment = match environment.as_str() {
                "" => "the account's default environment".to_owned(),
                name => format!("environment {name}"),
            };
            about.extend([
                ("app", format!("{}, {environment}", options.app)),
                ("image", options.image.clone()),
                ("life", life(options)),
            ]);
        }
        about
    }

    fn notice(&self) -> Option<String> {
        let Kind::Ours { options, has_told, .. } = &self.kind else {
            return None;
        };
        let id = &self.sandbox.id;
        let mut notices = Vec::new();
        if options.keep && !has_told.swap(true, Ordering::AcqRel) {
            notices.push(format!(
                "the sandbox {id} stays when this session ends; modal://{id} is the way back to it"
            ));
        }
        let passed = self.sandbox.since.elapsed();
        notices.extend(end_in_sight(id, passed, options.lifetime));
        (!notices.is_empty()).then(|| notices.join(" · "))
    }

    async fn state(&self) -> TargetState {
        match self.health().await {
            Health::Runs => TargetState::Running {
                incarnation: self.sandbox.task.clone(),
                machine: String::new(),
            },
            Health::Ended(how) => TargetState::Gone(format!("its sandbox {how}; {}", self.advice())),
            Health::Unknown(failed) => TargetState::Unreachable(failed.message),
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        match &self.kind {
            Kind::Ours { end, .. } => end.clone().now().await,
            Kind::Foreign => Ok(()),
        }
    }
}

impl Session {
    async fn health(&self) -> Health {
        let (lifetime, idle) = match &self.kind {
            Kind::Ours { options, .. } => (Some(options.lifetime), Some(options.idle_timeout)),
            Kind::Foreign => (None, None),
        };
        self.sandbox.health(lifetime, idle).await
    }

    fn asked(&self) -> Asked<'_> {
        self.reached.asked(&self.target)
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            Kind::Ours { .. } => "the next cell starts a new one",
            Kind::Foreign => "`modal:IMAGE` makes a new one",
        }
    }

    fn unstarted(&self, command: &Command, reason: String) -> BackendError {
        BackendError::Command {
            target: self.target.clone(),
            program: command.program.to_string_lossy().into_owned(),
            reason,
        }
    }
}

/// The end of a sandbox of ours: once, whoever asks for it.
#[derive(Clone)]
struct End {
    sandbox: Arc<Sandbox>,
    options: Arc<ModalOptions>,
    is_under_way: Arc<AtomicBool>,
}

impl End {
    /// Ends it when nobody holds it any more and it was not closed.
    async fn when(self, dropped: CancellationToken) {
        dropped.cancelled().await;
        if let Err(left) = self.now().await {
            warn!("{left}");
        }
    }

    async fn now(self) -> Result<(), BackendError> {
        if self.is_under_way.swap(true, Ordering::AcqRel) || self.options.keep {
            return Ok(());
        }
        let end = async {
            if let Some(file) = &self.options.snapshots {
                self.keep_files(file).await;
            }
            let ended = self.sandbox.terminate().await;
            ended.map_err(|failed| self.left(&failed.message))
        };
        match tokio::time::timeout(CLOSE_LIMIT, end).await {
            Ok(ended) => ended,
            Err(_) => Err(self.left("it took too long")),
        }
    }

    /// Keeps the files for the next session. What fails here fails nothing else.
    async fn keep_files(&self, file: &Path) {
        let sandbox = &self.sandbox.id;
        match self.sandbox.snapshot().await {
            Ok(image) => {
                let snapshot = Snapshot {
                    image,
                    of: self.options.image.clone(),
                };
                match snapshots::write(file, &snapshot) {
                    Ok(()) => info!(sandbox, image = snapshot.image, "the files of a sandbox were kept"),
                    Err(error) => {
                        warn!(sandbox, image = snapshot.image, file = %file.display(), %error, "it cannot be written down where the files of a sandbox are kept");
                    }
                }
            }
            Err(failed) => warn!(
                sandbox,
                message = failed.message,
                "the files of a sandbox could not be kept"
            ),
        }
    }

    fn left(&self, reason: &str) -> BackendError {
        BackendError::Unreachable {
            target: self.options.target.clone(),
            reason: format!("its sandbox {} could not be ended: {reason}", self.sandbox.id),
            advice: "it ends by itself once nothing runs in it any more (modal_idle_timeout); https://modal.com/apps shows it"
                .to_owned(),
        }
    }
}

/// Whether a worker says that there is no such program. Its words are all that there is.
fn says_missing(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "no such file or directory",
        "not found in $path",
        "command not found",
        "permission denied",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// How long a sandbox lives, in words.
fn life(options: &ModalOptions) -> String {
    let (whole, idle) = (format_duration(options.lifetime), format_duration(options.idle_timeout));
    format!("{whole} at most, {idle} with nothing running")
}

/// What outcomes say of a sandbox that will end soon.
pub(super) fn end_in_sight(id: &str, passed: Duration, lifetime: Duration) -> Option<String> {
    if passed < lifetime.mul_f64(LATE) {
        return None;
    }
    let left = Duration::from_secs(lifetime.saturating_sub(passed).as_secs());
    Some(format!(
        "the sandbox {id} ends in {}, at the end of its life of {} (modal_lifetime); what is in memory and on its disk \
         is lost then",
        format_duration(left),
        format_duration(lifetime)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_told_of_from_four_fifths_of_a_life_on() {
        let life = Duration::from_secs(3600);
        for (passed, words) in [
            (0, None),
            (2879, None),
            (2880, Some("ends in 12m, at the end of its life of 1h (modal_lifetime)")),
            (3541, Some("ends in 59s")),
            (4000, Some("ends in 0s")),
        ] {
            let said = end_in_sight("sb-1", Duration::from_secs(passed), life);
            assert_eq!(said.is_some(), words.is_some(), "{passed}: {said:?}");
            let said = said.unwrap_or_default();
            assert!(words.is_none_or(|words| said.contains(words)), "{passed}: {said}");
        }
    }

    #[test]
    fn what_is_asked_for_is_what_was_set() {
        let mut options = ModalOptions::new("modal", "python:3.12", ModalSources::default());
        let plain = definition(&options, "im-1".into());
        let resources = plain.resources.unwrap_or_default();
        assert_eq!(
            (resources.memory_mb, resources.milli_cpu, &resources.gpu_config),
            (0, 0, &None)
        );
        assert_eq!((plain.timeout_secs, plain.idle_timeout_secs), (86_400, Some(1200)));
        assert_eq!(
            plain.network_access.unwrap_or_default().network_access_type(),
            NetworkAccessType::Open
        );
        assert!(plain.scheduler_placement.is_none());
        options.cpus = Some(1.5);
        options.memory = Some(5_120 << 20);
        options.is_blocked = true;
        options.regions = vec!["eu".into()];
        options.lifetime = Duration::from_secs(100);
        options.idle_timeout = Duration::from_secs(50);
        let set = definition(&options, "im-1".into());
        let resources = set.resources.unwrap_or_default();
        assert_eq!((resources.memory_mb, resources.memory_mb_max), (5_120, 5_120));
        assert_eq!((resources.milli_cpu, resources.milli_cpu_max), (1500, 1500));
        assert_eq!((set.timeout_secs, set.idle_timeout_secs), (100, Some(50)));
        assert_eq!(
            set.network_access.unwrap_or_default().network_access_type(),
            NetworkAccessType::Blocked
        );
        assert_eq!(set.scheduler_placement.unwrap_or_default().regions, ["eu"]);
        assert_eq!(set.entrypoint_args, ["/bin/sleep", "200"]);
    }
}
