//! Containers as a target of the suite: what a test's containers are made with, and what of them is left.
//!
//! The folder of a test is mounted under its own path, so that files, and the mark by which its processes are known,
//! are the same on both sides. The engine must be on this machine, where the tests can see its processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use talaria_broker::backends::docker::{DockerImage, DockerOptions, EngineSources, Volume};
use talaria_broker::environment::Environment;

use crate::observe::wait_until;
use crate::rig::{Rig, runtime};

/// The target as a user writes it.
pub(crate) const TARGET: &str = "docker:talaria-test:base";
const IMAGE: &str = "talaria-test:base";

/// What every test begins with: a search as the images of the distribution have it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The engine that the user's variables say, as the one variable that names it.
fn engine() -> Result<&'static str, &'static str> {
    static HOST: OnceLock<Result<String, String>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let sources = EngineSources::of(&Environment::of_this_process());
        let engine = runtime().block_on(sources.connect("docker"));
        let host = engine.map_err(|error| error.to_string())?.address.host;
        if !host.starts_with("unix://") {
            return Err(format!("the engine at {host} is not on this machine"));
        }
        if docker(&["image", "inspect", "--format", "{{.Id}}", IMAGE]).is_none() {
            return Err(format!("{IMAGE} is not there (tests/rigs/docker up makes it)"));
        }
        Ok(host)
    });
    host.as_deref().map_err(String::as_str)
}

/// Whether there is an engine with the image of the tests. Says so, and is a failure where one is required.
#[expect(clippy::print_stderr, reason = "a skip must be seen")]
pub(crate) fn are_there() -> bool {
    let Err(missing) = engine() else { return true };
    let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|one| one == "docker");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names docker");
    eprintln!("SKIPPED: conformance on containers: {missing}");
    false
}

/// The group whose members may use the engine.
pub(crate) fn group() -> Option<u32> {
    let socket = std::fs::metadata(engine().ok()?.strip_prefix("unix://")?).ok()?;
    (socket.mode() & 0o060 == 0o060).then(|| socket.gid())
}

/// What docker's own client prints, of the engine that this process would use; `None` where it fails.
fn docker(arguments: &[&str]) -> Option<String> {
    let done = Command::new("docker").args(arguments).output().ok()?;
    let printed = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| printed.trim().to_owned())
}

fn interpreter() -> &'static (PathBuf, u32) {
    static INTERPRETER: OnceLock<(PathBuf, u32)> = OnceLock::new();
    INTERPRETER.get_or_init(|| {
        let code = "import sys; print(sys.version_info[1], sys.executable)";
        let said = docker(&["run", "--rm", "--network", "none", IMAGE, "python3", "-I", "-c", code]).unwrap();
        let (minor, path) = said.split_once(' ').unwrap();
        (path.into(), minor.parse().unwrap())
    })
}

/// The image's interpreter.
pub(crate) fn python() -> &'static Path {
    &interpreter().0
}

/// Its minor version.
pub(crate) fn python_minor() -> u32 {
    interpreter().1
}

/// The variables of a test's containers.
pub(crate) fn variables(rig: &Rig) -> impl Iterator<Item = (String, String)> {
    let text = |value: OsString| value.into_string().unwrap();
    let of_the_rig = rig.variables().into_iter();
    of_the_rig
        .map(move |(name, value)| (text(name), text(value)))
        .map(|(name, value)| match name.as_str() {
            "PATH" => (name, PATH.to_owned()),
            _ => (name, value),
        })
}

/// What makes containers for the sessions of a test.
pub(crate) fn backend(rig: &Rig, environment: BTreeMap<String, String>) -> DockerImage {
    let sources = EngineSources::of(&Environment::from_iter([("DOCKER_HOST", engine().unwrap())]));
    let mut options = DockerOptions::new(TARGET, IMAGE, sources);
    options.volumes = vec![Volume::parse(&volume(rig), rig.scratch(), None).unwrap()];
    options.environment = environment;
    options.user = Some(format!(
        "{}:{}",
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    ));
    DockerImage::new(options)
}

/// The same for the command line, as variables.
pub(crate) fn settings(rig: &Rig) -> Vec<(OsString, OsString)> {
    let environment: Vec<String> = variables(rig).map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        ("DOCKER_HOST".into(), engine().unwrap().into()),
        ("TALARIA_TERMINAL_DOCKER_VOLUMES".into(), volume(rig).into()),
        ("TALARIA_TERMINAL_DOCKER_ENV".into(), environment.join(",").into()),
        ("TALARIA_TERMINAL_DOCKER_RUN_AS_HOST_USER".into(), "on".into()),
        ("TALARIA_TERMINAL_CWD".into(), rig.work().into()),
    ]
}

fn volume(rig: &Rig) -> String {
    let folder = rig.scratch().display();
    format!("{folder}:{folder}")
}

/// Waits for the containers of a test to be gone; those that were left all the same, which are removed. A broker that was
/// killed may leave one that it had made and not started: whoever opens such a target next sweeps it.
pub(crate) fn take_what_is_left(rig: &Rig) -> Vec<String> {
    let filter = format!("volume={}", rig.scratch().display());
    let list = || {
        let shown = docker(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}} {{.Status}}"]).unwrap();
        shown.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let gone = || wait_until(Duration::from_secs(10), || list().is_empty());
    if !gone() && rig.kills_brokers() && list().iter().all(|container| container.ends_with(" Created")) {
        let next = rig.cli(["run", "-c", "pass"]).run();
        assert_eq!(next.code(), 0, "{next:?}");
        gone();
    }
    let left = list();
    for container in &left {
        let name = container.split(' ').next().unwrap_or_default();
        // It may end by itself meanwhile.
        let _ = docker(&["rm", "--force", name]);
    }
    left
}
