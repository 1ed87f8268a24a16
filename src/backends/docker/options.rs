//! What a container of ours is made with. Plain data: who makes it has read the configuration.
//!
//! | field | key |
//! | --- | --- |
//! | `image` | the target `docker:IMAGE`, `terminal.docker_image` |
//! | `volumes` | `terminal.docker_volumes` and `--mount`, each by [`Volume::parse`]; `terminal.docker_mount_cwd_to_workspace` adds the working directory as `/workspace` |
//! | `network` | `terminal.docker_network`, by [`Network::parse`] |
//! | `cpus` | `terminal.container_cpu`, by [`parse_cpus`] |
//! | `memory` | `terminal.container_memory`, by [`parse_memory`] |
//! | `shm_size` | `terminal.docker_shm_size`, by [`parse_shm_size`] |
//! | `environment` | `terminal.docker_env`, and of the variables that `terminal.docker_forward_env` names the broker's values |
//! | `host_user` | `terminal.docker_run_as_host_user`: the broker's own user and group |
//! | `folder` | `terminal.cwd`; `/workspace` where that is mounted; else the image's own |
//! | `lease` | `code_execution.lease` |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::engine::EngineSources;

/// The memory of a container of ours: 5,120 MB.
pub const DEFAULT_MEMORY: u64 = 5_120 * MEGABYTE;

/// Processes that a container of ours may hold. 256 would be too few for builds and thread pools.
pub const DEFAULT_PROCESSES: i64 = 1024;

const MEGABYTE: u64 = 1024 * 1024;

/// What a container of ours is made with. [`DockerOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The target as the user wrote it.
    pub target: String,
    /// The image, for instance `python:3.12`.
    pub image: String,
    /// Which engine.
    pub engine: EngineSources,
    /// What is mounted.
    pub volumes: Vec<Volume>,
    /// What it is connected to.
    pub network: Network,
    /// CPUs; all when `None`.
    pub cpus: Option<f64>,
    /// Bytes of memory (swap there is none); unlimited when `None`.
    pub memory: Option<u64>,
    /// Bytes of `/dev/shm`; the engine's default when `None`.
    pub shm_size: Option<u64>,
    /// Processes and threads that may be there at once.
    pub processes: i64,
    /// Variables beside the image's own. The engine shows them to everybody who may use it.
    pub environment: BTreeMap<String, String>,
    /// `USER[:GROUP]`; the image's own when `None`.
    pub user: Option<String>,
    /// The user and group of this machine that files in mounts shall belong to, whatever the engine makes of numbers.
    /// Beats `user`.
    pub host_user: Option<(u32, u32)>,
    /// Where processes start; the image's own when `None`.
    pub folder: Option<String>,
    /// The time after which the container ends by itself when it hears nothing of the broker; a label tells others.
    pub lease: Duration,
}

impl DockerOptions {
    /// A container of an image with the default limits, on the network, with nothing mounted.
    pub fn new(target: impl Into<String>, image: impl Into<String>, engine: EngineSources) -> Self {
        Self {
            target: target.into(),
            image: image.into(),
            engine,
            volumes: Vec::new(),
            network: Network::On,
            cpus: None,
            memory: Some(DEFAULT_MEMORY),
            shm_size: None,
            processes: DEFAULT_PROCESSES,
            environment: BTreeMap::new(),
            user: None,
            host_user: None,
            folder: None,
            lease: Duration::from_secs(15 * 60),
        }
    }
}

/// What a container is connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// The engine's default network.
    #[default]
    On,
    /// Nothing but itself.
    Off,
    /// A network of the engine, by name.
    Named(String),
}

impl Network {
    /// Reads `on`, `off` or a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "" | "on" | "true" | "yes" => Self::On,
            "off" | "false" | "no" | "none" => Self::Off,
            name => Self::Named(name.to_owned()),
        }
    }
}

/// Something that a container has from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Where it comes from.
    pub source: VolumeSource,
    /// Where it is seen in the container; absolute.
    pub target: String,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// `z` or `Z`: the engine labels a path so that containers may use it (SELinux).
    pub label: Option<char>,
}

/// Where a volume comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A path of the engine's machine.
    Path(PathBuf),
    /// A volume that the engine keeps, by name.
    Named(String),
    /// A volume that goes with the container.
    Own,
}

impl Volume {
    /// Reads `SOURCE:/TARGET[:OPTION,...]`, or `/TARGET` alone for a volume that goes with the container. A source with a
    /// slash, or that begins with a dot or a tilde, is a path, and a relative one starts at `here`.
    ///
    /// # Errors
    /// As a sentence, when it is none.
    pub fn parse(text: &str, here: &Path, home: Option<&Path>) -> Result<Self, String> {
        let text = text.trim();
        let wrong =
            |what: &str| format!("`{text}` is no mount: {what}; write it as SOURCE:/TARGET or SOURCE:/TARGET:ro");
        let mut parts = text.split(':');
        let (source, target, options) = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (_, _, _, Some(_)) => return Err(wrong("it has too many colons")),
            (Some(target), None, ..) => (None, target, ""),
            (Some(source), Some(target), options, None) => (Some(source), target, options.unwrap_or("")),
            _ => return Err(wrong("it is empty")),
        };
        if !target.starts_with('/') {
            return Err(wrong("its target is no absolute path"));
        }
        let source = match source {
            None => VolumeSource::Own,
            Some("") => return Err(wrong("its source is missing")),
            Some(source) if source.contains('/') || source.starts_with(['.', '~']) => {
                let path = match (Path::new(source).strip_prefix("~"), home) {
                    (Ok(rest), Some(home)) => home.join(rest),
                    (Ok(_), None) => return Err(wrong("its source begins with `~`, and no home directory is known")),
                    (Err(_), _) => here.join(source),
                };
                // A path that ends in `.` is the same to everybody but the engine.
                VolumeSource::Path(path.components().collect())
            }
            Some(source) => VolumeSource::Named(source.to_owned()),
        };
        let mut volume = Self {
            source,
            target: target.to_owned(),
            read_only: false,
            label: None,
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option {
                "ro" => volume.read_only = true,
                "rw" => volume.read_only = false,
                "z" => volume.label = Some('z'),
                "Z" => volume.label = Some('Z'),
                // Of no effect but on a Mac's Docker, where it is a matter of speed.
                "cached" | "delegated" | "consistent" => {}
                other => return Err(wrong(&format!("`{other}` is none of its options ro, rw, z, Z"))),
            }
        }
        Ok(volume)
    }
}

/// Reads a number of CPUs.
///
/// # Errors
/// As a sentence, when it is none.
pub fn parse_cpus(text: &str) -> Result<Option<f64>, String> {
    match text.trim().parse::<f64>() {
        // As other tools of containers have it: none is no limit.
        Ok(0.0) => Ok(None),
        Ok(cpus) if (0.01..100_000.0).contains(&cpus) => Ok(Some(cpus)),
        _ => Err(format!(
            "`{text}` is no number of CPUs; write for instance 2 or 0.5 (0: all of them)"
        )),
    }
}

/// Reads an amount of memory: a number of megabytes, or one with a unit (`512m`, `2g`). 0 is no limit.
///
/// # Errors
/// As a sentence, when it is none.
pub fn parse_memory(text: &str) -> Result<Option<u64>, String> {
    match size(text, MEGABYTE) {
        Some(0) => Ok(None),
        Some(bytes) if bytes >= 6 * MEGABYTE => Ok(Some(bytes)),
        Some(_) => Err(format!(
            "`{text}` is too little memory; a container needs at least 6 megabytes"
        )),
        None => Err(format!(
            "`{text}` is no amount of memory; write megabytes (5120) or a unit (512m, 2g), or 0 for no limit"
        )),
    }
}

/// Reads the size of `/dev/shm`: a number of bytes, or one with a unit (`64m`, `1g`).
///
/// # Errors
/// As a sentence, when it is none.
pub fn parse_shm_size(text: &str) -> Result<u64, String> {
    size(text, 1)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("`{text}` is no size; write bytes or a unit (64m, 1g)"))
}

fn size(text: &str, plain: u64) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "" => plain,
        "b" => 1,
        "k" | "kb" | "kib" => 1024,
        "m" | "mb" | "mib" => MEGABYTE,
        "g" | "gb" | "gib" => 1024 * MEGABYTE,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).filter(|bytes| i64::try_from(*bytes).is_ok());
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was checked")]
    (0.0..9e18).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let read = |text| Volume::parse(text, Path::new("/project"), Some(Path::new("/home/bob")));
        let path = |source: &str, target: &str| Volume {
            source: VolumeSource::Path(source.into()),
            target: target.into(),
            read_only: false,
            label: None,
        };
        for (text, volume) in [
            ("/a:/b", path("/a", "/b")),
            ("/a:/b:rw,cached", path("/a", "/b")),
            ("./a:/b", path("/project/a", "/b")),
            (".:/b", path("/project", "/b")),
            ("~/a:/b", path("/home/bob/a", "/b")),
            (
                "/a:/b:ro",
                Volume {
                    read_only: true,
                    ..path("/a", "/b")
                },
            ),
            (
                "/a:/b:ro,Z",
                Volume {
                    read_only: true,
                    label: Some('Z'),
                    ..path("/a", "/b")
                },
            ),
            (
                "data:/b",
                Volume {
                    source: VolumeSource::Named("data".into()),
                    ..path("/a", "/b")
                },
            ),
            (
                "/b",
                Volume {
                    source: VolumeSource::Own,
                    ..path("/a", "/b")
                },
            ),
        ] {
            assert_eq!(read(text).unwrap(), volume, "{text}");
        }
        for text in ["", "/a:b", "a:b:c:d", ":/b", "/a:/b:rx", "data"] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("SOURCE:/TARGET"),
                "{error}"
            );
        }
        assert!(
            Volume::parse("~/a:/b", Path::new("/"), None)
                .unwrap_err()
                .contains("home")
        );
    }

    #[test]
    fn amounts_are_read() {
        for (text, bytes) in [
            ("5120", Some(DEFAULT_MEMORY)),
            ("512m", Some(512 << 20)),
            ("1.5 GB", Some(3 << 29)),
            ("0", None),
        ] {
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "lots", "5", "-1", "12 parsecs", "99999999999g", "1e30", "nan"] {
            let error = parse_memory(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!(parse_shm_size("64m"), Ok(64 << 20));
        assert_eq!(parse_shm_size("65536"), Ok(65_536));
        assert!(parse_shm_size("0").is_err());
        assert_eq!(parse_cpus("1.5"), Ok(Some(1.5)));
        assert_eq!(parse_cpus("0"), Ok(None));
        for text in ["", "two", "-1", "nan", "inf", "0.0001"] {
            assert!(parse_cpus(text).unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }

    #[test]
    fn networks_are_read() {
        for (text, network) in [
            ("on", Network::On),
            ("true", Network::On),
            ("off", Network::Off),
            ("none", Network::Off),
            ("false", Network::Off),
            ("host", Network::Named("host".into())),
            ("shop_default", Network::Named("shop_default".into())),
        ] {
            assert_eq!(Network::parse(text), network);
        }
    }
}
