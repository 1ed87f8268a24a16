//! The engine of the tests, its images, and what is left on it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use talaria_broker::backends::docker::{DockerImage, DockerOptions, Engine, EngineSources, ours};
use talaria_broker::backends::{Backend, BackendError, Command, Process, ProcessEnd, Silent, Target};
use talaria_broker::environment::Environment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use crate::engine::{docker, docker_succeeds};

/// Time within which whatever must happen happens, on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// An engine with the images of the rig.
pub(crate) struct Rig {
    pub(crate) sources: EngineSources,
    pub(crate) engine: Engine,
}

/// The rig, or `None` where there is none and nobody requires one.
pub(crate) async fn rig() -> Option<Rig> {
    let environment = Environment::of_this_process();
    let sources = EngineSources::of(&environment);
    let missing = match sources.connect("docker").await {
        Err(error) => error.to_string(),
        Ok(engine) => {
            if docker_succeeds(&["image", "inspect", "talaria-test:base"]) {
                return Some(Rig { sources, engine });
            }
            "the images of the tests are not there (tests/rigs/docker up makes them)".to_owned()
        }
    };
    let required = environment.get("TALARIA_REQUIRE").unwrap_or_default().to_string_lossy();
    let is_required = required.split(',').any(|one| one == "docker");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names docker");
    eprintln!("SKIPPED: {missing}");
    None
}

/// An image under a name of its own, by which what a test leaves behind can be told from the rest.
pub(crate) struct Image {
    pub(crate) name: String,
}

impl Drop for Image {
    fn drop(&mut self) {
        docker_succeeds(&["rmi", "--no-prune", &self.name]);
    }
}

impl Rig {
    /// One of the rig's images under a name of its own.
    pub(crate) fn image(&self, variant: &str) -> Image {
        let mut random = [0; 6];
        getrandom::fill(&mut random).unwrap();
        let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("talaria-test:{variant}-{random}");
        docker(&["tag", &format!("talaria-test:{variant}"), &name]);
        Image { name }
    }

    pub(crate) fn is_podman(&self) -> bool {
        self.engine.name.starts_with("Podman")
    }

    pub(crate) fn options(&self, image: &Image) -> DockerOptions {
        DockerOptions::new(format!("docker:{}", image.name), &image.name, self.sources.clone())
    }

    /// A target of that image with default options.
    pub(crate) async fn open(&self, image: &Image) -> Arc<dyn Target> {
        open(self.options(image)).await
    }

    /// Containers of ours with that image.
    pub(crate) async fn ours(&self, image: &Image) -> Vec<ours::OurContainer> {
        let all = ours::list(&self.engine).await.unwrap();
        all.into_iter()
            // Podman shows the registry too.
            .filter(|container| container.image.ends_with(&image.name))
            .collect()
    }

    /// The one container of ours with that image.
    pub(crate) async fn one(&self, image: &Image) -> String {
        let found = self.ours(image).await;
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap().name
    }

    /// Waits until nothing of that image is left.
    pub(crate) async fn nothing_is_left(&self, image: &Image) {
        let began = Instant::now();
        loop {
            let left = self.ours(image).await;
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < LIMIT, "left behind: {left:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(crate) async fn open(options: DockerOptions) -> Arc<dyn Target> {
    DockerImage::new(options).open(&Silent).await.unwrap()
}

pub(crate) fn command(words: &[&str]) -> Command {
    Command {
        program: OsString::from(words[0]),
        arguments: words[1..].iter().map(OsString::from).collect(),
        environment: [].into(),
        folder: None,
        input: Default::default(),
    }
}

/// What a process printed, and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) end: ProcessEnd,
}

/// Gives a process its whole input and takes its whole output.
pub(crate) async fn finish(process: Process, input: &[u8]) -> Printed {
    let Process {
        mut stdin,
        mut stdout,
        mut stderr,
        mut end,
        ..
    } = process;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let give = async move {
        // It may end before it has read everything.
        let _ = stdin.write_all(input).await;
        let _ = stdin.shutdown().await;
    };
    let all = async {
        let (_, read_out, read_err) = tokio::join!(give, stdout.read_to_end(&mut out), stderr.read_to_end(&mut err));
        read_out.unwrap();
        read_err.unwrap();
        end.wait().await
    };
    let end = tokio::time::timeout(LIMIT * 2, all).await.unwrap();
    Printed {
        out: String::from_utf8_lossy(&out).into_owned(),
        err: String::from_utf8_lossy(&err).into_owned(),
        end,
    }
}

/// Runs a command to its end.
pub(crate) async fn run(target: &dyn Target, words: &[&str]) -> Result<Printed, BackendError> {
    Ok(finish(target.spawn(command(words)).await?, b"").await)
}

/// A first process that does nothing until its input ends; whoever drops it ends the container.
pub(crate) async fn hold(target: &dyn Target) -> Process {
    let mut process = target.spawn(command(&["cat"])).await.unwrap();
    process.end.detach();
    process
}

/// Where the tested binary is.
pub(crate) fn talaria() -> std::process::Command {
    let mut command = std::process::Command::new(PathBuf::from(env!("CARGO_BIN_EXE_talaria")));
    command.env("TALARIA_AUDIT_ENABLED", "off");
    command
}
