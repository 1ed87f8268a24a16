//! What the configuration says of Modal's sandboxes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::super::error::SessionError;
use super::super::options::spill_folder;
use super::super::web::proxies;
use crate::backends::Backend;
use crate::backends::docker::{parse_cpus, parse_memory};
use crate::backends::modal::gateway::{GatewayImage, GatewayOptions, GatewaySandbox, GatewaySources};
use crate::backends::modal::{
    DEFAULT_IMAGE, Gpu, ModalImage, ModalOptions, ModalSandbox, ModalSources, check_lifetime,
};
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

    fn check_mounts(&self) -> Result<(), SessionError> {
        match self.0.mounts.first() {
            Some(mount) => Err(self.bad("--mount")(format!(
                "`{mount}` cannot be mounted: a sandbox is on a machine of Modal's; leave it out, and have a script bring or make what it needs"
            ))),
            None => Ok(()),
        }
    }

    /// CPUs, and bytes of memory.
    fn size(&self) -> Result<(Option<f64>, Option<u64>), SessionError> {
        let cpus = self.text("container_cpu").map(parse_cpus).transpose();
        let memory = self.text("container_memory").map(parse_memory).transpose();
        Ok((
            cpus.map_err(self.bad("container_cpu"))?.flatten(),
            memory.map_err(self.bad("container_memory"))?.flatten(),
        ))
    }

    fn lifetime(&self) -> Result<Option<Duration>, SessionError> {
        let lifetime = self.duration("modal_lifetime").map(check_lifetime).transpose();
        lifetime.map_err(self.bad("modal_lifetime"))
    }

    /// What is cut off from the broker goes on until its lease runs out, and needs a place for as long; and where it is
    /// looked at only now and then, nothing runs there meanwhile.
    fn idle_timeout(&self, default: Duration, lease: Duration) -> Duration {
        let idle = self.duration("modal_idle_timeout").unwrap_or(default);
        idle.max(lease + (lease / 3).max(LEAST_REST))
    }

    fn variables(&self) -> BTreeMap<String, String> {
        match self.0.options.get("modal_env") {
            Some(Value::Map(variables)) => variables.iter().cloned().collect(),
            _ => BTreeMap::new(),
        }
    }

    /// By which of two ways Modal is reached.
    fn way(&self, environment: &Environment) -> Way {
        let direct = ModalSources::of(environment, proxies(environment));
        let managed = gateway_sources(environment);
        let mode = self.text("modal_mode").and_then(|word| word.parse().ok());
        match mode.unwrap_or_default() {
            ModalMode::Auto if !direct.are_there() && managed.has_token() => Way::Managed(managed),
            ModalMode::Auto | ModalMode::Direct => Way::Direct(direct),
            ModalMode::Managed => Way::Managed(managed),
        }
    }

    /// Says what has no effect behind the gateway; refuses what must not be ignored.
    fn check_managed(&self) -> Result<(), SessionError> {
        if matches!(self.0.options.get("modal_network"), Some(Value::Switch(false))) {
            return Err(self.bad("modal_network")(
                "a sandbox behind the gateway (modal_mode: managed) always has a network; use an account of Modal's to \
                 be without one (modal_mode: direct)"
                    .to_owned(),
            ));
        }
        let is_set = |name: &str| match self.0.options.get(name) {
            Some(Value::Text(text)) => !text.is_empty(),
            Some(Value::List(items)) => !items.is_empty(),
            _ => false,
        };
        for name in [
            "modal_gpu",
            "modal_region",
            "modal_environment",
            "modal_registry_secret",
        ] {
            if is_set(name) {
                warn!(target = %self.0.name, "`{name}` has no effect behind Modal's gateway (modal_mode: managed)");
            }
        }
        Ok(())
    }
}

/// By which way Modal is reached, and as whom.
enum Way {
    Direct(ModalSources),
    Managed(GatewaySources),
}

/// A sandbox that is made for the session.
pub(super) fn new(
    target: &ResolvedTarget,
    named: Option<&str>,
    lease: Duration,
    environment: &Environment,
) -> Result<Arc<dyn Backend>, SessionError> {
    Ok(match Options(target).way(environment) {
        Way::Direct(sources) => Arc::new(ModalImage::new(image(target, named, lease, sources, environment)?)),
        Way::Managed(sources) => Arc::new(GatewayImage::new(managed(target, named, lease, sources)?)),
    })
}

/// A sandbox that exists.
pub(super) fn existing(
    target: &ResolvedTarget,
    id: &str,
    environment: &Environment,
) -> Result<Arc<dyn Backend>, SessionError> {
    Ok(match Options(target).way(environment) {
        Way::Direct(sources) => Arc::new(ModalSandbox::new(&target.name, id, sources)),
        Way::Managed(sources) => Arc::new(GatewaySandbox::new(&target.name, id, sources)),
    })
}

/// What a sandbox of ours is made with.
fn image(
    target: &ResolvedTarget,
    image: Option<&str>,
    lease: Duration,
    sources: ModalSources,
    environment: &Environment,
) -> Result<ModalOptions, SessionError> {
    let options = Options(target);
    let image = image.or(options.text("modal_image")).unwrap_or(DEFAULT_IMAGE);
    let mut made = ModalOptions::new(&target.name, image, sources);
    options.check_mounts()?;
    if let Some(app) = options.text("modal_app") {
        app.clone_into(&mut made.app);
    }
    made.environment = options.text("modal_environment").map(str::to_owned);
    made.registry_secret = options.text("modal_registry_secret").map(str::to_owned);
    if let Some(gpu) = options.text("modal_gpu") {
        made.gpu = Some(Gpu::parse(gpu).map_err(options.bad("modal_gpu"))?);
    }
    (made.cpus, made.memory) = options.size()?;
    if let Some(Value::List(regions)) = target.options.get("modal_region") {
        made.regions.clone_from(regions);
    }
    made.variables = options.variables();
    if let Some(lifetime) = options.lifetime()? {
        made.lifetime = lifetime;
    }
    made.idle_timeout = options.idle_timeout(made.idle_timeout, lease);
    made.is_blocked = matches!(target.options.get("modal_network"), Some(Value::Switch(false)));
    made.keep = options.is_on("modal_keep");
    if options.is_on("modal_snapshot") {
        made.snapshots = Some(snapshots(&made, environment));
    }
    Ok(made)
}

/// The same behind the gateway.
fn managed(
    target: &ResolvedTarget,
    image: Option<&str>,
    lease: Duration,
    sources: GatewaySources,
) -> Result<GatewayOptions, SessionError> {
    let options = Options(target);
    options.check_mounts()?;
    options.check_managed()?;
    let image = image.or(options.text("modal_image")).unwrap_or(DEFAULT_IMAGE);
    let mut made = GatewayOptions::new(&target.name, image, sources);
    (made.cpus, made.memory) = options.size()?;
    made.variables = options.variables();
    if let Some(lifetime) = options.lifetime()? {
        made.lifetime = lifetime;
    }
    made.idle_timeout = options.idle_timeout(made.idle_timeout, lease);
    made.keep = options.is_on("modal_keep");
    if let Some(app) = options.text("modal_app") {
        app.clone_into(&mut made.app);
    }
    made.snapshot = options.is_on("modal_snapshot");
    Ok(made)
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
    folder(environment).join(format!("{name}.json"))
}

/// Where it is written down what became of sandboxes.
fn folder(environment: &Environment) -> PathBuf {
    let cache = spill_folder(environment);
    cache.parent().unwrap_or(&cache).join("modal")
}

/// Who asks the gateway to Modal, and where it is written down what it made.
#[must_use]
pub fn gateway_sources(environment: &Environment) -> GatewaySources {
    GatewaySources {
        records: Some(folder(environment).join("gateway")),
        ..GatewaySources::of(environment, proxies(environment))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;
    use crate::config::{Config, Flags, Sources};
    use crate::target::TargetSpec;

    const LEASE: Duration = Duration::from_secs(60);

    fn resolved(variables: &[(&str, &str)], target: &str) -> (ResolvedTarget, Environment) {
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
        (target, environment)
    }

    fn options(variables: &[(&str, &str)], target: &str) -> Result<ModalOptions, String> {
        let (target, environment) = resolved(variables, target);
        let named = target.spec.as_str().strip_prefix("modal:");
        image(&target, named, LEASE, ModalSources::default(), &environment).map_err(|error| error.to_string())
    }

    fn behind(variables: &[(&str, &str)]) -> Result<GatewayOptions, String> {
        let (target, _) = resolved(variables, "modal");
        managed(&target, None, LEASE, GatewaySources::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_gateway_gets_what_it_knows_and_nothing_is_ignored_that_protects() {
        let plain = behind(&[]).unwrap();
        assert_eq!(
            (plain.image.as_str(), plain.memory, plain.cpus),
            (DEFAULT_IMAGE, Some(5_120 << 20), None)
        );
        assert!(!plain.keep && !plain.snapshot);
        let set = behind(&[
            ("TALARIA_TERMINAL_MODAL_IMAGE", "ubuntu:24.04"),
            ("TALARIA_TERMINAL_MODAL_APP", "lab"),
            ("TALARIA_TERMINAL_MODAL_GPU", "h100"),
            ("TALARIA_TERMINAL_MODAL_ENV", "A=1"),
            ("TALARIA_TERMINAL_MODAL_LIFETIME", "1h"),
            ("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", "5m"),
            ("TALARIA_TERMINAL_MODAL_KEEP", "on"),
            ("TALARIA_TERMINAL_MODAL_SNAPSHOT", "on"),
            ("TALARIA_TERMINAL_CONTAINER_CPU", "1.5"),
        ])
        .unwrap();
        assert_eq!(
            (set.image.as_str(), set.cpus, set.keep),
            ("ubuntu:24.04", Some(1.5), true)
        );
        assert_eq!((set.lifetime.as_secs(), set.idle_timeout.as_secs()), (3600, 300));
        let short = behind(&[("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", "1s")]).unwrap();
        assert_eq!(short.idle_timeout.as_secs(), 80, "longer than the lease");
        assert_eq!((set.snapshot, set.app.as_str(), set.variables.len()), (true, "lab", 1));
        let error = behind(&[("TALARIA_TERMINAL_MODAL_NETWORK", "off")]).unwrap_err();
        assert!(
            error.contains("modal_network") && error.contains("modal_mode: direct"),
            "{error}"
        );
    }

    #[test]
    fn the_way_is_the_one_that_is_set_up_or_asked_for() {
        let account = ("MODAL_TOKEN_ID", "ak-1");
        let token = ("MODAL_GATEWAY_TOKEN", "t");
        let mode = |word| ("TALARIA_TERMINAL_MODAL_MODE", word);
        for (variables, is_managed) in [
            (&[][..], false),
            (&[account], false),
            (&[account, token], false),
            (&[token], true),
            (&[token, mode("direct")], false),
            (&[account, mode("managed")], true),
        ] {
            let (target, environment) = resolved(variables, "modal");
            let way = Options(&target).way(&environment);
            assert_eq!(matches!(way, Way::Managed(_)), is_managed, "{variables:?}");
        }
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
        ] {
            let error = options(&[(&format!("TALARIA_TERMINAL_{name}"), value)], "modal").unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
