//! Images: a tag of a registry becomes one of Modal's, which builds it where it does not have it. Its log is progress.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::control::{CallFailed, Control, failed};
use super::failure::{Asked, Wanted};
use super::retry::{Next, Policy, Retry, chance};
use super::wire::client::generic_result::GenericStatus;
use super::wire::client::{
    GenericResult, Image, ImageGetOrCreateRequest, ImageJoinStreamingRequest, ImageRegistryConfig, RegistryAuthType,
};
use crate::backends::{BackendError, Phase, Progress};

/// Seconds for which one look at a build's log waits there.
const LOOK: f32 = 55.0;

/// Time after which a look that says nothing is given up.
const LOOK_LIMIT: Duration = Duration::from_secs(90);

/// Time that a build may take.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Lines of the log that an error shows.
const LAST_LINES: usize = 15;

/// Where an image comes from, and for whom.
pub(super) struct Wish<'a> {
    pub(super) image: &'a str,
    pub(super) app: &'a str,
    pub(super) builder: &'a str,
    /// The secret with the login to its registry.
    pub(super) secret: Option<String>,
}

/// Whether this is an image that Modal has.
pub(super) fn is_built(image: &str) -> bool {
    image.strip_prefix("im-").is_some_and(|id| !id.is_empty())
}

/// Has the image at hand: its id.
pub(super) async fn ensure(
    control: &Control,
    asked: Asked<'_>,
    wish: &Wish<'_>,
    progress: &dyn Progress,
) -> Result<String, BackendError> {
    if is_built(wish.image) {
        return Ok(wish.image.to_owned());
    }
    let fails = |failed: CallFailed| asked.failed(Wanted::Image(wish.image), &failed);
    let request = ImageGetOrCreateRequest {
        image: Some(Image {
            dockerfile_commands: vec![format!("FROM {}", wish.image)],
            image_registry_config: wish.secret.clone().map(|secret_id| ImageRegistryConfig {
                registry_auth_type: RegistryAuthType::StaticCreds.into(),
                secret_id,
            }),
        }),
        app_id: wish.app.to_owned(),
        builder_version: wish.builder.to_owned(),
    };
    let answer = control
        .call(
            "ImageGetOrCreate",
            Policy::CREATE,
            request,
            |mut client, request| async move { client.image_get_or_create(request).await },
        )
        .await
        .map_err(fails)?;
    let mut lines = VecDeque::new();
    let result = match answer.result {
        Some(result) if result.status() != GenericStatus::Unspecified => result,
        _ => {
            progress.phase(Phase::Pull);
            progress.note(&format!("Modal builds the image {}", wish.image));
            let build = join(control, &answer.image_id, &mut lines, progress);
            match tokio::time::timeout(BUILD_LIMIT, build).await {
                Ok(result) => result.map_err(fails)?,
                Err(_) => GenericResult {
                    status: GenericStatus::Timeout.into(),
                    exception: format!("it was not done after {} min", BUILD_LIMIT.as_secs() / 60),
                    exitcode: 0,
                },
            }
        }
    };
    match result.status() {
        GenericStatus::Success => Ok(answer.image_id),
        _ => Err(asked.unbuilt(wish.image, &result, lines.make_contiguous())),
    }
}

/// Follows a build to its end.
async fn join(
    control: &Control,
    image: &str,
    lines: &mut VecDeque<String>,
    progress: &dyn Progress,
) -> Result<GenericResult, CallFailed> {
    let mut last_entry = String::new();
    let mut retry = Retry::new(Policy::STREAM);
    let began = Instant::now();
    loop {
        let before = last_entry.clone();
        let status = match look(control, image, &mut last_entry, lines, progress).await {
            Ok(Some(result)) => return Ok(result),
            // It said all that it had to say for now.
            Ok(None) => None,
            Err(status) => Some(status),
        };
        if last_entry != before {
            retry.progress();
        }
        match status {
            None => {}
            Some(status) => match retry.next(failed(&status), began.elapsed(), chance()) {
                Next::After(pause) => tokio::time::sleep(pause).await,
                Next::Renewed | Next::GiveUp => return Err(CallFailed::of(&status)),
            },
        }
        // A server that ends each look at once is not asked without a pause.
        tokio::time::sleep(PAUSE).await;
    }
}

const PAUSE: Duration = Duration::from_millis(50);

/// One look at the log, from the entry after the last one on: how the build ended, once it has.
async fn look(
    control: &Control,
    image: &str,
    last_entry: &mut String,
    lines: &mut VecDeque<String>,
    progress: &dyn Progress,
) -> Result<Option<GenericResult>, Status> {
    let request = ImageJoinStreamingRequest {
        image_id: image.to_owned(),
        timeout: LOOK,
        last_entry_id: last_entry.clone(),
    };
    let mut stream = control
        .stream(request, LOOK_LIMIT, |mut client, request| async move {
            client.image_join_streaming(request).await
        })
        .await?;
    loop {
        let message = super::control::within(LOOK_LIMIT, stream.message()).await?;
        let Some(message) = message else { return Ok(None) };
        if !message.entry_id.is_empty() {
            last_entry.clone_from(&message.entry_id);
        }
        for line in message.task_logs.iter().flat_map(|log| log.data.lines()) {
            let line = line.trim_end();
            if line.is_empty() {
                continue;
            }
            progress.note(line);
            lines.push_back(line.to_owned());
            if lines.len() > LAST_LINES {
                lines.pop_front();
            }
        }
        if let Some(result) = message
            .result
            .filter(|result| result.status() != GenericStatus::Unspecified)
        {
            return Ok(Some(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_of_modals_is_one() {
        for (image, is) in [("im-123", true), ("im-", false), ("python:3.12", false), ("imx", false)] {
            assert_eq!(is_built(image), is, "{image}");
        }
    }
}
