//! Which engine is meant: an option, `DOCKER_HOST`, a Docker context, or a socket in one of the usual places.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use serde::Deserialize;

use super::container::UserMap;
use super::failure;
use super::tunnel::Tunnel;
use crate::backends::BackendError;
use crate::environment::Environment;

/// Time for the head of an answer of the engine; what streams behind it may take longer.
const ANSWER_LIMIT: u64 = 120;

/// Time in which an engine says what it is.
const GREETING_LIMIT: Duration = Duration::from_secs(20);

/// Where an engine of this machine listens when nobody says otherwise.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// What says which engine is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSources {
    /// The address as an option of the target says it; beats all others.
    pub host: Option<String>,
    /// `DOCKER_HOST`
    pub docker_host: Option<String>,
    /// `DOCKER_CONTEXT`
    pub docker_context: Option<String>,
    /// The folder with `config.json` and `contexts/`: `DOCKER_CONFIG`, else `~/.docker`.
    pub config_folder: Option<PathBuf>,
    /// Sockets to try in turn when nothing else says which.
    pub sockets: Vec<PathBuf>,
    /// Variables for `ssh`, where the engine is reached by it.
    pub environment: Environment,
}

/// The address of an engine, and who named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAddress {
    /// For instance `unix:///var/run/docker.sock`.
    pub host: String,
    /// Who says so, as a phrase: `DOCKER_HOST`, `the Docker context "desk"`.
    pub said_by: String,
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.host, self.said_by)
    }
}

/// An engine that answered.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) docker: Docker,
    /// Where it is.
    pub address: EngineAddress,
    /// What it calls itself, for instance `Docker 28.2.2`.
    pub name: String,
    /// The newest version of its API that it speaks, for instance `1.41`.
    pub api: String,
    pub(super) is_podman: bool,
    /// The way to it, which ends with the last who uses it.
    _tunnel: Option<Arc<Tunnel>>,
}

impl EngineSources {
    /// What a user's variables and home directory say.
    #[must_use]
    pub fn of(environment: &Environment) -> Self {
        let text = |name: &str| Some(environment.filled(name)?.to_string_lossy().into_owned());
        let path = |name: &str| environment.filled(name).map(PathBuf::from);
        let mut sockets = vec![PathBuf::from(DEFAULT_SOCKET)];
        if let Some(runtime) = path("XDG_RUNTIME_DIR") {
            sockets.extend([runtime.join("docker.sock"), runtime.join("podman/podman.sock")]);
        }
        if let Some(home) = environment.home() {
            sockets.push(home.join(".docker/run/docker.sock"));
        }
        sockets.push(PathBuf::from("/run/podman/podman.sock"));
        Self {
            host: None,
            docker_host: text("DOCKER_HOST"),
            docker_context: text("DOCKER_CONTEXT"),
            config_folder: path("DOCKER_CONFIG").or_else(|| Some(environment.home()?.join(".docker"))),
            sockets,
            environment: environment.clone(),
        }
    }

    /// Whether somebody said which engine is meant.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.host.is_some() || self.docker_host.is_some() || !matches!(self.context(), Ok(None))
    }

    /// The address of the engine.
    ///
    /// # Errors
    /// As a sentence, when what is said cannot be read or does not exist.
    pub fn locate(&self) -> Result<EngineAddress, String> {
        let named = |host: &str, said_by: &str| EngineAddress {
            host: host.to_owned(),
            said_by: said_by.to_owned(),
        };
        if let Some(host) = &self.host {
            return Ok(named(host, "an option of the target"));
        }
        if let Some(host) = &self.docker_host {
            return Ok(named(host, "DOCKER_HOST"));
        }
        if let Some((context, said_by)) = self.context()? {
            let host = self.host_of_context(&context, said_by)?;
            return Ok(named(&host, &format!("the Docker context {context:?} of {said_by}")));
        }
        let default = Path::new(DEFAULT_SOCKET);
        let socket = self.sockets.iter().find(|socket| socket.exists());
        let socket = socket.map_or(default, PathBuf::as_path);
        let said_by = if socket == default {
            "the default"
        } else {
            "found there"
        };
        Ok(named(&format!("unix://{}", socket.display()), said_by))
    }

    /// The context in force and who says so; `None` for the default one.
    fn context(&self) -> Result<Option<(String, &'static str)>, String> {
        let (context, said_by) = match &self.docker_context {
            Some(context) => (Some(context.clone()), "DOCKER_CONTEXT"),
            None => (self.configured_context()?, "config.json"),
        };
        Ok(context
            .filter(|context| !context.is_empty() && context != "default")
            .map(|context| (context, said_by)))
    }

    fn configured_context(&self) -> Result<Option<String>, String> {
        #[derive(Deserialize)]
        struct File {
            #[serde(rename = "currentContext")]
            current_context: Option<String>,
        }
        let Some(path) = self.config_folder.as_ref().map(|folder| folder.join("config.json")) else {
            return Ok(None);
        };
        let Ok(bytes) = std::fs::read(&path) else {
            // None, or none for us: Docker's own client goes on with its defaults too.
            return Ok(None);
        };
        let file: File = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{} cannot be read ({error}); correct or remove it", path.display()))?;
        Ok(file.current_context)
    }

    /// Looks through all contexts: the name of a context's folder is a hash of no further use.
    fn host_of_context(&self, wanted: &str, said_by: &str) -> Result<String, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Meta {
            name: String,
            #[serde(default)]
            endpoints: Endpoints,
        }
        #[derive(Default, Deserialize)]
        struct Endpoints {
            docker: Option<Endpoint>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Endpoint {
            host: Option<String>,
        }
        let folder = self.config_folder.as_ref().map(|folder| folder.join("contexts/meta"));
        let entries = folder.iter().filter_map(|folder| std::fs::read_dir(folder).ok());
        let mut names = Vec::new();
        for entry in entries.flatten().flatten() {
            let Ok(bytes) = std::fs::read(entry.path().join("meta.json")) else {
                continue;
            };
            let Ok(meta) = serde_json::from_slice::<Meta>(&bytes) else {
                continue;
            };
            if meta.name != wanted {
                names.push(meta.name);
                continue;
            }
            return match meta.endpoints.docker.and_then(|endpoint| endpoint.host) {
                Some(host) if !host.is_empty() => Ok(host),
                _ => Err(format!(
                    "the Docker context {wanted:?} names no engine; set one with `docker context update {wanted} --docker host=...`"
                )),
            };
        }
        names.sort();
        names.push("default".to_owned());
        Err(format!(
            "there is no Docker context {wanted:?}, which {said_by} names; there are {} (`docker context use NAME` chooses one)",
            names.join(", ")
        ))
    }

    /// Reaches the engine.
    ///
    /// # Errors
    /// When there is none, it does not answer, or this user may not use it; `target` is who wants to know.
    pub async fn connect(&self, target: &str) -> Result<Engine, BackendError> {
        let address = self.locate().map_err(|reason| BackendError::Refused {
            target: target.to_owned(),
            reason,
            advice: "or set DOCKER_HOST to the address of the engine".to_owned(),
        })?;
        let unreachable = |reason: String| failure::no_engine(target, &address, &reason);
        let tunnel = if address.host.starts_with("ssh://") {
            let tunnel = Tunnel::open(&address.host, &self.environment).await;
            Some(Arc::new(tunnel.map_err(unreachable)?))
        } else {
            None
        };
        let docker = match &tunnel {
            Some(tunnel) => client(&format!("unix://{}", tunnel.socket.display())),
            None => client(&address.host),
        };
        let docker = docker.map_err(unreachable)?;
        let version = tokio::time::timeout(GREETING_LIMIT, docker.version()).await;
        let version = match version {
            Ok(Ok(version)) => version,
            Ok(Err(error)) => return Err(failure::engine_failed(target, &address, &error)),
            Err(_) => {
                let reason = format!("it did not answer within {} s", GREETING_LIMIT.as_secs());
                return Err(failure::no_engine(target, &address, &reason));
            }
        };
        let api = version.api_version.unwrap_or_default();
        let components = version.components.unwrap_or_default();
        let is_podman = components.iter().any(|component| component.name.contains("Podman"));
        let name = format!(
            "{} {}",
            if is_podman { "Podman" } else { "Docker" },
            version.version.unwrap_or_default()
        );
        tracing::debug!(%address, %name, "engine found");
        Ok(Engine {
            docker,
            address,
            name,
            api,
            is_podman,
            _tunnel: tunnel,
        })
    }
}

impl Engine {
    /// How its containers' users relate to those of its machine.
    pub(super) async fn user_map(&self, target: &str) -> Result<UserMap, BackendError> {
        let info = self.docker.info().await;
        let info = info.map_err(|error| failure::engine_failed(target, &self.address, &error))?;
        let options = info.security_options.unwrap_or_default();
        Ok(if !options.iter().any(|option| option.contains("rootless")) {
            UserMap::Same
        } else if self.is_podman {
            UserMap::KeepId
        } else {
            UserMap::Root
        })
    }
}

fn client(host: &str) -> Result<Docker, String> {
    let made = match host.split_once("://").map(|(scheme, _)| scheme) {
        Some("unix") => Docker::connect_with_unix(host, ANSWER_LIMIT, API_DEFAULT_VERSION),
        Some("tcp" | "http") => Docker::connect_with_http(host, ANSWER_LIMIT, API_DEFAULT_VERSION),
        _ => {
            return Err(
                "it is no address that can be used here; use unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"
                    .to_owned(),
            );
        }
    };
    made.map_err(|error| failure::words(&error))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn folder_with(config: &str, contexts: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        for (number, (name, host)) in contexts.iter().enumerate() {
            let place = folder.path().join(format!("contexts/meta/{number:064x}"));
            std::fs::create_dir_all(&place).unwrap();
            let meta = serde_json::json!({"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}});
            std::fs::write(place.join("meta.json"), meta.to_string()).unwrap();
        }
        folder
    }

    fn sources(folder: &Path) -> EngineSources {
        EngineSources {
            config_folder: Some(folder.to_owned()),
            sockets: vec![PathBuf::from(DEFAULT_SOCKET)],
            ..EngineSources::default()
        }
    }

    #[test]
    fn the_nearest_word_counts() {
        let folder = folder_with(
            r#"{"auths": {}, "currentContext": "desk"}"#,
            &[("desk", "unix:///desk.sock"), ("far", "tcp://far:2375")],
        );
        let mut sources = sources(folder.path());
        let found = |sources: &EngineSources| {
            let address = sources.locate().unwrap();
            (address.host, address.said_by)
        };
        assert_eq!(
            found(&sources),
            (
                "unix:///desk.sock".into(),
                "the Docker context \"desk\" of config.json".into()
            )
        );
        sources.docker_context = Some("far".into());
        assert_eq!(
            found(&sources),
            (
                "tcp://far:2375".into(),
                "the Docker context \"far\" of DOCKER_CONTEXT".into()
            )
        );
        sources.docker_context = Some("default".into());
        assert_eq!(found(&sources).0, format!("unix://{DEFAULT_SOCKET}"));
        assert!(!sources.is_named());
        sources.docker_host = Some("unix:///host.sock".into());
        assert_eq!(found(&sources), ("unix:///host.sock".into(), "DOCKER_HOST".into()));
        sources.host = Some("unix:///option.sock".into());
        assert_eq!(found(&sources).0, "unix:///option.sock");
        assert!(sources.is_named());
    }

    #[test]
    fn a_context_that_is_not_there_names_those_that_are() {
        let folder = folder_with(
            r#"{"currentContext": "gone"}"#,
            &[("far", "tcp://far:2375"), ("empty", "")],
        );
        let mut sources = sources(folder.path());
        let error = sources.locate().unwrap_err();
        assert!(
            error.contains("\"gone\"") && error.contains("config.json") && error.contains("empty, far, default"),
            "{error}"
        );
        sources.docker_context = Some("empty".into());
        let error = sources.locate().unwrap_err();
        assert!(error.contains("names no engine"), "{error}");
    }

    #[test]
    fn files_that_are_missing_or_broken() {
        let folder = tempfile::tempdir().unwrap();
        assert!(sources(folder.path()).locate().is_ok());
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        let error = sources(folder.path()).locate().unwrap_err();
        assert!(error.contains("config.json cannot be read"), "{error}");
    }

    #[test]
    fn the_first_socket_that_is_there_is_taken_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("podman.sock");
        std::fs::write(&there, "").unwrap();
        let sources = EngineSources {
            sockets: vec![folder.path().join("docker.sock"), there.clone()],
            ..EngineSources::default()
        };
        let address = sources.locate().unwrap();
        assert_eq!(address.to_string(), format!("unix://{} (found there)", there.display()));
    }

    #[test]
    fn variables_say_where_to_look() {
        let environment = Environment::from_iter([
            ("HOME", "/home/bob"),
            ("XDG_RUNTIME_DIR", "/run/user/7"),
            ("DOCKER_HOST", ""),
        ]);
        let sources = EngineSources::of(&environment);
        assert_eq!(sources.docker_host, None);
        assert_eq!(sources.config_folder.as_deref(), Some(Path::new("/home/bob/.docker")));
        assert!(
            sources
                .sockets
                .contains(&PathBuf::from("/run/user/7/podman/podman.sock"))
        );
        let other = EngineSources::of(&Environment::from_iter([("DOCKER_CONFIG", "/etc/d")]));
        assert_eq!(other.config_folder.as_deref(), Some(Path::new("/etc/d")));
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let silent = folder.path().join("closed.sock");
        drop(std::os::unix::net::UnixListener::bind(&silent).unwrap());
        for (host, words) in [
            ("unix:///nowhere/docker.sock".to_owned(), "there is no socket"),
            (format!("unix://{}", silent.display()), "refused"),
            ("tcp://127.0.0.1:1".to_owned(), "refused"),
            ("gopher://x".to_owned(), "no address"),
        ] {
            let sources = EngineSources {
                docker_host: Some(host.clone()),
                ..EngineSources::default()
            };
            let error = sources.connect("docker:x").await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, BackendError::Unreachable { .. }), "{text}");
            assert!(
                text.contains(&host) && text.contains("DOCKER_HOST") && text.contains(words),
                "{text}"
            );
        }
    }
}
