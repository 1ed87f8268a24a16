//! Sandboxes are opened: made for one session and ended with it, or found, and then nobody here ends them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::creation::Plan;
use super::credentials::ModalSources;
use super::definition::definition;
use super::end::End;
use super::failure::Wanted;
use super::held::{Kind, Session};
use super::images::{self, Wish};
use super::options::ModalOptions;
use super::ours;
use super::owed::{Gone, Owed};
use super::reached::{Reached, app, builder, registry_secret};
use super::sandbox::Sandbox;
use super::snapshots;
use super::waiting::Waits;
use crate::backends::{Backend, BackendError, Phase, Progress, Target};

/// The backend of `modal:IMAGE`.
#[derive(Clone, Debug)]
pub struct ModalImage {
    options: Arc<ModalOptions>,
    owed: Owed,
}

impl ModalImage {
    /// Sandboxes that are made as `options` say.
    #[must_use]
    pub fn new(options: ModalOptions) -> Self {
        Self {
            options: Arc::new(options),
            owed: Owed::default(),
        }
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
        let waits = Waits::new();
        waits.told(progress, self.opened(progress, &waits)).await
    }

    async fn settle(&self) {
        self.owed.settled().await;
    }
}

impl ModalImage {
    async fn opened(&self, progress: &dyn Progress, waits: &Waits) -> Result<Arc<dyn Target>, BackendError> {
        let (options, target) = (&self.options, &self.options.target);
        progress.phase(Phase::Connect);
        let reached = Reached::of(&options.sources, target, waits.clone()).await?;
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
                progress.note(&format!("Modal makes a sandbox of {}", options.image));
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

    /// Makes the sandbox. One that nobody waits for any more when it is there is ended.
    async fn make(&self, reached: &Reached, plan: Plan) -> Result<Sandbox, BackendError> {
        let (reached, target) = (reached.clone(), self.options.target.clone());
        let work = |gone: Gone| async move {
            let waits = reached.control.waits.clone();
            let made = Sandbox::create(reached.control.clone(), reached.asked(&target), &plan);
            waits.unless(gone.over(), made).await
        };
        let end = |made: Result<Sandbox, BackendError>| async {
            let Ok(sandbox) = made else { return };
            if let Err(failed) = sandbox.terminate().await {
                warn!(
                    sandbox = sandbox.id,
                    message = failed.message,
                    "a sandbox that nobody wants may be left"
                );
            }
        };
        self.owed.wanted(work, end).await.unwrap_or_else(|| {
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
        let waits = Waits::new();
        let found = async {
            let reached = Reached::of(&self.sources, &self.target, waits.clone()).await?;
            let asked = reached.asked(&self.target);
            let sandbox = Sandbox::attach(reached.control.clone(), asked, &self.id).await?;
            Ok((reached, sandbox))
        };
        let (reached, sandbox) = waits.told(progress, found).await?;
        Ok(Arc::new(Session {
            reached,
            sandbox: Arc::new(sandbox),
            target: self.target.clone(),
            kind: Kind::Foreign,
        }))
    }
}
