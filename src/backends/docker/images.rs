//! Images: whether one is there, and how it is fetched.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::CreateImageInfo;
use bollard::query_parameters::{CreateImageOptionsBuilder, InspectContainerOptions};
use futures_util::StreamExt;

use super::engine::Engine;
use super::failure;
use crate::backends::{BackendError, Phase, Progress};

/// Time in which a registry must say something.
const STALL_LIMIT: Duration = Duration::from_secs(300);

/// Sees to it that the engine has the image.
///
/// # Errors
/// When it has not, and cannot fetch it.
pub(super) async fn ensure(
    engine: &Engine,
    target: &str,
    image: &str,
    progress: &dyn Progress,
) -> Result<(), BackendError> {
    let refused = |reason: String, advice: &str| BackendError::Refused {
        target: target.to_owned(),
        reason,
        advice: advice.to_owned(),
    };
    let Some((repository, version)) = split(image) else {
        return Err(refused(
            format!("`{image}` is no name of an image"),
            "write it as NAME, NAME:TAG or REGISTRY/NAME:TAG",
        ));
    };
    match engine.docker.inspect_image(image).await {
        Ok(found) if found.os.as_deref().is_some_and(|os| os == "windows") => {
            return Err(refused(
                format!("the image {image} is one for Windows"),
                "take one for Linux",
            ));
        }
        Ok(_) => return Ok(()),
        Err(error) if failure::status(&error) == Some(404) => {}
        Err(error) => return Err(failure::engine_failed(target, &engine.address, &error)),
    }
    tracing::info!(%image, "pulling");
    progress.phase(Phase::Pull);
    progress.note(&format!("pulling {image}"));
    let options = CreateImageOptionsBuilder::default()
        .from_image(repository)
        .tag(version)
        .build();
    let mut stream = Box::pin(engine.docker.create_image(Some(options), None, None));
    let mut layers = Layers::default();
    loop {
        let reason = match tokio::time::timeout(STALL_LIMIT, stream.next()).await {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(info))) => {
                if let Some(done) = layers.add(&info) {
                    progress.note(&format!("pulling {image}: {done}"));
                }
                continue;
            }
            Ok(Some(Err(error))) => failure::words(&error),
            Err(_) => format!("nothing was heard of the registry for {} s", STALL_LIMIT.as_secs()),
        };
        let reason = format!("the image {image} is not there, and cannot be pulled: {reason}");
        return Err(match container_of_that_name(engine, image).await {
            true => refused(
                reason,
                &format!("a container of that name is there: for it, write container:{image}"),
            ),
            false => refused(
                reason,
                &format!(
                    "correct the name, or get the image yourself with `docker pull {image}` (a private one needs `docker login` first)"
                ),
            ),
        });
    }
}

async fn container_of_that_name(engine: &Engine, name: &str) -> bool {
    let is_name = !name.contains([':', '/', '@']);
    is_name
        && engine
            .docker
            .inspect_container(name, None::<InspectContainerOptions>)
            .await
            .is_ok()
}

/// The name and the tag or digest of an image; `latest` where none is said, as an engine would fetch all of them.
fn split(image: &str) -> Option<(&str, &str)> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty()
        || !image.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !image.chars().all(fine)
        || image.contains("..")
    {
        return None;
    }
    if let Some((name, digest)) = image.split_once('@') {
        // A tag before a digest says nothing more.
        return Some((split(name)?.0, digest));
    }
    // A colon before the last slash is of a registry's port.
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (!name.is_empty() && !tag.is_empty()).then_some((name, tag)),
        _ => Some((image, "latest")),
    }
}

/// How much of each layer has arrived.
#[derive(Default)]
struct Layers {
    bytes: HashMap<String, (i64, i64)>,
    said: String,
}

impl Layers {
    /// What to say now, where it differs from what was said.
    fn add(&mut self, info: &CreateImageInfo) -> Option<String> {
        let id = info.id.clone()?;
        match (info.status.as_deref(), &info.progress_detail) {
            (Some("Downloading"), Some(detail)) => {
                let pair = (detail.current?, detail.total?);
                self.bytes.insert(id, pair);
            }
            (Some("Download complete" | "Pull complete"), _) => {
                let layer = self.bytes.get_mut(&id)?;
                layer.0 = layer.1;
            }
            _ => return None,
        }
        let (done, all) = self
            .bytes
            .values()
            .fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1));
        let text = format!("{} of {} MB", done / 1_000_000, all / 1_000_000);
        let is_new = text != self.said;
        self.said.clone_from(&text);
        is_new.then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    #[test]
    fn names_of_images_are_taken_apart() {
        for (image, parts) in [
            ("python", Some(("python", "latest"))),
            ("python:3.12", Some(("python", "3.12"))),
            ("reg:5000/a/b", Some(("reg:5000/a/b", "latest"))),
            ("reg:5000/a/b:1", Some(("reg:5000/a/b", "1"))),
            ("a/b@sha256:00", Some(("a/b", "sha256:00"))),
            ("a/b:1@sha256:00", Some(("a/b", "sha256:00"))),
            ("", None),
            ("a b", None),
            ("a?x=1", None),
            ("../../info", None),
            ("a:", None),
            ("-a", None),
        ] {
            assert_eq!(split(image), parts, "{image}");
        }
    }

    #[test]
    fn progress_is_summed_over_layers_and_said_once() {
        let mut layers = Layers::default();
        let info = |id: &str, status: &str, bytes: Option<(i64, i64)>| CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: bytes.map(|(current, total)| ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        };
        assert_eq!(layers.add(&info("a", "Pulling fs layer", None)), None);
        let first = layers.add(&info("a", "Downloading", Some((1_000_000, 30_000_000))));
        assert_eq!(first.as_deref(), Some("1 of 30 MB"));
        assert_eq!(
            layers.add(&info("a", "Downloading", Some((1_000_001, 30_000_000)))),
            None
        );
        let second = layers.add(&info("b", "Downloading", Some((2_000_000, 10_000_000))));
        assert_eq!(second.as_deref(), Some("3 of 40 MB"));
        assert_eq!(
            layers.add(&info("a", "Pull complete", None)).as_deref(),
            Some("32 of 40 MB")
        );
    }
}
