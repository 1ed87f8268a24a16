//! The control plane as one account asks it, and what is looked up there before a sandbox is made.

use std::sync::Arc;

use super::control::{CallFailed, Control};
use super::credentials::{Account, ModalSources};
use super::failure::Asked;
use super::retry::Policy;
use super::waiting::Waits;
use super::wire::client::{
    AppGetOrCreateRequest, EnvironmentGetOrCreateRequest, ObjectCreationType, SecretGetOrCreateRequest,
};
use crate::backends::BackendError;

/// The control plane, and as whom it is asked.
#[derive(Clone)]
pub(super) struct Reached {
    pub(super) control: Arc<Control>,
    pub(super) account: Arc<Account>,
    pub(super) server: Arc<str>,
}

impl Reached {
    /// # Errors
    /// When there is no account, or Modal does not answer.
    pub(super) async fn of(sources: &ModalSources, target: &str, waits: Waits) -> Result<Self, BackendError> {
        let account = sources.account(target)?;
        let asked = Asked {
            target,
            server: "",
            said_by: &account.said_by,
        };
        let control = Control::connect(&account, waits).await;
        let control = control.map_err(|trouble| asked.unreachable(&trouble))?;
        Ok(Self {
            server: super::connection::named(&control.server).into(),
            control: Arc::new(control),
            account: Arc::new(account),
        })
    }

    /// Whom was asked, for messages.
    pub(super) fn asked<'a>(&'a self, target: &'a str) -> Asked<'a> {
        Asked {
            target,
            server: &self.server,
            said_by: &self.account.said_by,
        }
    }
}

/// The app of that name, which is made where there is none.
pub(super) async fn app(control: &Control, name: &str, environment: &str) -> Result<String, CallFailed> {
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
pub(super) async fn builder(control: &Control, environment: &str) -> Result<String, CallFailed> {
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
pub(super) async fn registry_secret(
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
