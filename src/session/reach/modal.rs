//! What the configuration says of Modal's sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use super::super::error::SessionError;
use super::super::options::spill_folder;
use super::super::web::proxies;
use crate::backends::docker::{parse_cpus, parse_memory};
use crate::backends::modal::{DEFAULT_IMAGE, Gpu, ModalOptions, ModalSandbox, ModalSources, check_lifetime};
use crate::config::{ModalMode, ResolvedTarget, Value};
use crate::environment::Environment;

/// The least time for which a sandbox stays after the lease of a session there ran out.
const LEAST_REST: Duration = Duration::from_secs(3);

/// The options of a target, read as what they are.
struct Options<'a>(&'a ResolvedTarget);

impl<'a> Options<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        match self.0.options.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.0.options.get(name), Some(Value::Switch(true)))
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        match self.0.options.get(name) {
            Some(Value::Duration(duration)) => Some(*duration),
            _ => None,
        }
    }

    fn bad(&self, name: &str) -> impl Fn(String) -> SessionError {
        let (target, name) = (self.0.name.clone(), name.to_owned());
        move |problem| SessionError::Option {
            target: target.clone(),
            name: name.clone(),
            problem,
        }
    }

    /// Whose account is used.
    fn sources(&self, environment: &Environment) -> Result<ModalSources, SessionError> {
        let mode = self.text("modal_mode").and_then(|word| word.parse().ok());
        match mode.unwrap_or_default() {
            ModalMode::Auto | ModalMode::Direct => Ok(ModalSources::of(environment, proxies(environment))),
            ModalMode::Managed => Err(self.bad("modal_mode")(
                "the gateway cannot be used by this version; set it to direct, with an account of Modal's".to_owned(),
            )),
        }
    }
}

/// What a sandbox of ours is made with.
pub(super) fn image(
    target: &ResolvedTarget,
    image: Option<&str>,
    lease: Duration,
    environment: &Environment,
) -> Result<ModalOptions, SessionError> {
    let options = Options(target);
    let image = image.or(options.text("modal_image")).unwrap_or(DEFAULT_IMAGE);
    let mut made = ModalOptions::new(&target.name, image, options.sources(environment)?);
    if let Some(mount) = target.mounts.first() {
        return Err(options.bad("--mount")(format!(
            "`{mount}` cannot be mounted: a sandbox is on a machine of Modal's; copy it there with --put"
        )));
    }
    if let Some(app) = options.text("modal_app") {
        app.clone_into(&mut made.app);
    }
    made.environment = options.text("modal_environment").map(str::to_owned);
    made.registry_secret = options.text("modal_registry_secret").map(str::to_owned);
    if let Some(gpu) = options.text("modal_gpu") {
        made.gpu = Some(Gpu::parse(gpu).map_err(options.bad("modal_gpu"))?);
    }
    if let Some(cpus) = options.text("container_cpu") {
        made.cpus = parse_cpus(cpus).map_err(options.bad("container_cpu"))?;
    }
    if let Some(memory) = options.text("container_memory") {
        made.memory = parse_memory(memory).map_err(options.bad("container_memory"))?;
    }
    if let Some(Value::List(regions)) = target.options.get("modal_region") {
        made.regions.clone_from(regions);
    }
    if let Some(Value::Map(variables)) = target.options.get("modal_env") {
        made.variables = variables.iter().cloned().collect();
    }
    if let Some(lifetime) = options.duration("modal_lifetime") {
        made.lifetime = check_lifetime(lifetime).map_err(options.bad("modal_lifetime"))?;
    }
    let idle = options.duration("modal_idle_timeout").unwrap_or(made.idle_timeout);
    // What is cut off from the broker goes on until its lease runs out, and needs a place for as long.
    made.idle_timeout = idle.max(lease + (lease / 3).max(LEAST_REST));
    made.is_blocked = matches!(target.options.get("modal_network"), Some(Value::Switch(false)));
    made.keep = options.is_on("modal_keep");
    if options.is_on("modal_snapshot") {
        made.snapshots = Some(snapshots(&made, environment));
    }
    Ok(made)
}

/// A sandbox that exists.
pub(super) fn existing(
    target: &ResolvedTarget,
    id: &str,
    environment: &Environment,
) -> Result<ModalSandbox, SessionError> {
    let sources = Options(target).sources(environment)?;
    Ok(ModalSandbox::new(&target.name, id, sources))
}

/// The file that says where the files of the last session on this target were kept. Two sessions at once share it: the
/// last one to end is the one that counts.
fn snapshots(options: &ModalOptions, environment: &Environment) -> PathBuf {
    let place = options.environment.as_deref().unwrap_or_default();
    let name: String = [place, &options.app, &options.target]
        .join("@")
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.@".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    let cache = spill_folder(environment);
    let cache = cache.parent().unwrap_or(&cache).to_owned();
    cache.join("modal").join(format!("{name}.json"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;
    use crate::config::{Config, Flags, Sources};
    use crate::target::TargetSpec;

    fn options(variables: &[(&str, &str)], target: &str) -> Result<ModalOptions, String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let home = [("HOME".to_owned(), "/home/bob".to_owned())];
        let environment: Environment = home.into_iter().chain(variables).collect();
        let config = Config::load(&Sources {
            environment: environment.clone(),
            flags: Flags::default(),
            ..Sources::default()
        });
        let target = config.unwrap().resolve(&TargetSpec::parse(target).unwrap()).unwrap();
        let named = target.spec.as_str().strip_prefix("modal:");
        image(&target, named, Duration::from_secs(60), &environment).map_err(|error| error.to_string())
    }

    #[test]
    fn each_key_arrives_where_it_belongs() {
        let plain = options(&[], "modal").unwrap();
        assert_eq!((plain.image.as_str(), plain.app.as_str()), (DEFAULT_IMAGE, "talaria"));
        assert_eq!((plain.memory, plain.cpus, &plain.gpu), (Some(5_120 << 20), None, &None));
        assert_eq!(plain.lifetime, Duration::from_secs(86_400));
        assert_eq!(plain.idle_timeout, Duration::from_secs(1200));
        assert!(!plain.is_blocked && !plain.keep && plain.snapshots.is_none());
        let set = options(
            &[
                ("TALARIA_TERMINAL_MODAL_IMAGE", "ubuntu:24.04"),
                ("TALARIA_TERMINAL_MODAL_APP", "lab"),
                ("TALARIA_TERMINAL_MODAL_ENVIRONMENT", "dev"),
                ("TALARIA_TERMINAL_MODAL_GPU", "h100:2"),
                ("TALARIA_TERMINAL_MODAL_REGION", "eu,us-east"),
                ("TALARIA_TERMINAL_MODAL_NETWORK", "off"),
                ("TALARIA_TERMINAL_MODAL_ENV", "A=1,B=2"),
                ("TALARIA_TERMINAL_MODAL_REGISTRY_SECRET", "login"),
                ("TALARIA_TERMINAL_MODAL_LIFETIME", "1h"),
                ("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", "5m"),
                ("TALARIA_TERMINAL_MODAL_KEEP", "on"),
                ("TALARIA_TERMINAL_MODAL_SNAPSHOT", "on"),
                ("TALARIA_TERMINAL_MODAL_MODE", "direct"),
                ("TALARIA_TERMINAL_CONTAINER_CPU", "1.5"),
                ("TALARIA_TERMINAL_CONTAINER_MEMORY", "2g"),
            ],
            "modal",
        )
        .unwrap();
        assert_eq!((set.image.as_str(), set.app.as_str()), ("ubuntu:24.04", "lab"));
        assert_eq!(set.environment.as_deref(), Some("dev"));
        assert_eq!(set.gpu, Some(Gpu::parse("H100:2").unwrap()));
        assert_eq!((set.regions.join(" ").as_str(), set.is_blocked), ("eu us-east", true));
        assert_eq!(
            set.variables
                .into_iter()
                .map(|(name, value)| name + &value)
                .collect::<Vec<_>>(),
            ["A1", "B2"]
        );
        assert_eq!(set.registry_secret.as_deref(), Some("login"));
        assert_eq!(
            (set.lifetime, set.idle_timeout),
            (Duration::from_secs(3600), Duration::from_secs(300))
        );
        assert!(set.keep);
        assert_eq!((set.cpus, set.memory), (Some(1.5), Some(2 << 30)));
        let file = set.snapshots.unwrap();
        assert_eq!(file, PathBuf::from("/home/bob/.cache/talaria/modal/dev@lab@modal.json"));
        assert_eq!(options(&[], "modal:im-1").unwrap().image, "im-1");
        let short = options(&[("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", "1s")], "modal").unwrap();
        assert_eq!(short.idle_timeout, Duration::from_secs(80), "longer than the lease");
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        for (name, value, words) in [
            ("MODAL_GPU", "0", "modal_gpu"),
            ("MODAL_LIFETIME", "25h", "24 h at most"),
            ("MODAL_LIFETIME", "1", "10 s at least"),
            ("CONTAINER_CPU", "many", "container_cpu"),
            ("CONTAINER_MEMORY", "lots", "container_memory"),
            ("MODAL_MODE", "managed", "set it to direct"),
        ] {
            let error = options(&[(&format!("TALARIA_TERMINAL_{name}"), value)], "modal").unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
