//! Containers, sessions on them, and a look at their processes from the host.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use talaria_broker::backends::docker::{
    DockerContainer, DockerImage, DockerOptions, EngineSources, RunningOptions, Which,
};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::SessionOptions;

pub(crate) use crate::engine::{docker, docker_succeeds};
pub(crate) use crate::sessions::{LIMIT, Live, Notes, signal, succeeded, wait};
use crate::sessions::{broker, close, limited};

/// A broker of the test's own, an engine, and images under names of the test's own, by which what it leaves behind can
/// be told from the rest. Containers and images go when this is dropped, whatever became of the test.
pub(crate) struct Rig {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) broker: Broker,
    tag: String,
    images: Mutex<Vec<String>>,
    containers: Mutex<Vec<String>>,
}

impl Rig {
    /// The rig, or `None` where there is none and nobody requires one.
    pub(crate) fn new() -> Option<Self> {
        if !docker_succeeds(&["image", "inspect", "talaria-test:base"]) {
            let missing = "no engine answers, or it has not the images of the tests (tests/rigs/docker up makes them)";
            let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|one| one == "docker");
            assert!(!is_required, "{missing}, and TALARIA_REQUIRE names docker");
            eprintln!("SKIPPED: {missing}");
            return None;
        }
        let (runtime, broker) = broker();
        let mut random = [0; 6];
        getrandom::fill(&mut random).unwrap();
        Some(Self {
            runtime,
            broker,
            tag: random.iter().map(|byte| format!("{byte:02x}")).collect(),
            images: Mutex::default(),
            containers: Mutex::default(),
        })
    }

    /// One of the rig's images under a name of its own.
    pub(crate) fn image(&self, variant: &str) -> String {
        let name = format!("talaria-test:{variant}-{}", self.tag);
        docker(&["tag", &format!("talaria-test:{variant}"), &name]);
        self.images.lock().unwrap().push(name.clone());
        name
    }

    /// Options of a session in a container of ours.
    pub(crate) fn ours(&self, variant: &str) -> (SessionOptions, String) {
        let image = self.image(variant);
        let options = self.docker_options(&image, |_| {});
        (options, image)
    }

    /// The same, of an image by name, with options of the container.
    pub(crate) fn docker_options(&self, image: &str, change: impl FnOnce(&mut DockerOptions)) -> SessionOptions {
        let sources = EngineSources::of(&Environment::of_this_process());
        let mut options = DockerOptions::new(format!("docker:{image}"), image, sources);
        change(&mut options);
        let target = options.target.clone();
        limited(SessionOptions::elsewhere(
            target,
            Arc::new(DockerImage::new(options)),
            Environment::of_this_process(),
        ))
    }

    /// A container of the user's own that runs until the test ends, and options of a session in it.
    pub(crate) fn running(&self, variant: &str, more: &[&str]) -> (SessionOptions, String) {
        self.running_alone(variant, &[&["--init"], more].concat())
    }

    /// The same without a program that collects what has ended.
    pub(crate) fn running_alone(&self, variant: &str, more: &[&str]) -> (SessionOptions, String) {
        let image = self.image(variant);
        let name = format!("faults-{variant}-{}", self.tag);
        let words = [
            &["run", "-d", "--name", &name][..],
            more,
            &["--entrypoint", "sleep", &image, "900"],
        ]
        .concat();
        docker(&words);
        self.containers.lock().unwrap().push(name.clone());
        (self.in_container(&name), name)
    }

    /// Options of a session in a container that runs.
    pub(crate) fn in_container(&self, name: &str) -> SessionOptions {
        let options = RunningOptions {
            target: format!("container:{name}"),
            which: Which::Name(name.to_owned()),
            engine: EngineSources::of(&Environment::of_this_process()),
            user: None,
            folder: None,
            environment: [].into(),
        };
        let target = options.target.clone();
        limited(SessionOptions::elsewhere(
            target,
            Arc::new(DockerContainer::new(options)),
            Environment::of_this_process(),
        ))
    }

    /// Opens a session.
    pub(crate) fn open(&self, options: SessionOptions) -> Live<'_> {
        Live::open(&self.broker, &self.runtime, options)
    }

    /// Ends all sessions; containers of ours with these images are gone then, or go soon.
    pub(crate) fn close(&self) {
        close(&self.runtime, &self.broker);
        let images = self.images.lock().unwrap().clone();
        for image in images {
            wait(&format!("the containers of {image} to be gone"), || {
                ours(&image).is_empty()
            });
        }
        for container in self.containers.lock().unwrap().iter() {
            nothing_of_ours_in(container);
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for name in self.containers.get_mut().unwrap() {
            docker_succeeds(&["rm", "-f", "-v", name]);
        }
        for image in self.images.get_mut().unwrap() {
            for container in ours(image) {
                docker_succeeds(&["rm", "-f", "-v", &container]);
            }
            docker_succeeds(&["rmi", "--no-prune", image]);
        }
    }
}

impl Live<'_> {
    /// Discards the kernel.
    pub(crate) fn reset(&self) {
        self.runtime.block_on(self.session.reset());
    }
}

/// Containers that were made for sessions of this image, by identifier.
pub(crate) fn ours(image: &str) -> Vec<String> {
    let all = docker(&["ps", "-aq", "--no-trunc", "--filter", &format!("ancestor={image}")]);
    // By its own name, not by that of what it was tagged from.
    let has_name = |id: &&str| {
        let output = Command::new("docker")
            .args(["inspect", "-f", "{{.Config.Image}} {{.Name}}", id])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        said.starts_with(&format!("{image} ")) && !said.contains("/faults-")
    };
    all.lines().filter(has_name).map(str::to_owned).collect()
}

/// The one container that was made for a session of this image.
pub(crate) fn the_one(image: &str) -> String {
    let found = ours(image);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

/// A process of a container as the host sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    pub(crate) inner: i32,
    pub(crate) command: String,
}

/// The number on the host of a container's first process.
pub(crate) fn first_process(container: &str) -> i32 {
    docker(&["inspect", "-f", "{{.State.Pid}}", container]).parse().unwrap()
}

/// Every living process of a container.
pub(crate) fn processes(container: &str) -> Vec<Seen> {
    let space = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = space(first_process(container));
    if wanted.is_none() {
        return Vec::new();
    }
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| space(*pid) == wanted)
        .filter_map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
            if field("State:")?.trim_start().starts_with(['Z', 'X']) {
                return None;
            }
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(Seen {
                pid,
                inner: field("NSpid:")?.split_whitespace().last()?.parse().ok()?,
                command: String::from_utf8_lossy(&command).replace('\0', " "),
            })
        })
        .collect()
}

/// The folders of sessions in a container, as the host reaches them.
pub(crate) fn folders(container: &str) -> Vec<PathBuf> {
    let root = PathBuf::from(format!("/proc/{}/root", first_process(container)));
    let bases = [
        "run/talaria",
        "dev/shm",
        "tmp",
        "var/tmp",
        "root/.cache",
        "home/worker/.cache",
    ];
    let entries = bases
        .iter()
        .flat_map(|base| std::fs::read_dir(root.join(base)).into_iter().flatten().flatten());
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("talaria-"));
    named.map(|entry| entry.path()).collect()
}

/// Kills guard and supervisor of the one session in a container at once.
pub(crate) fn kill_guard_and_supervisor(container: &str) {
    const KILL: &str = "
import fcntl, os, struct, sys
with open(sys.argv[1], 'r+b') as file:
    for byte in (1, 0):
        asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, byte, 1, 0)
        os.kill(struct.unpack('hhqqi4x', fcntl.fcntl(file, fcntl.F_GETLK, asked))[4], 9)
";
    let found = folders(container).into_iter().map(|path| path.join("lock"));
    let lock = found
        .into_iter()
        .find(|path| path.exists() && !path.to_string_lossy().contains("-disk/"));
    let done = Command::new("python3")
        .arg("-c")
        .arg(KILL)
        .arg(lock.unwrap())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// The relay that holds the directory of the one session in a container.
pub(crate) fn relay(container: &str) -> Option<Seen> {
    let folder = folders(container)
        .into_iter()
        .find(|path| path.join("fence").exists())?;
    let fence = std::fs::read_to_string(folder.join("fence")).ok()?;
    let inner: i32 = fence.split_whitespace().nth(2)?.parse().ok()?;
    processes(container).into_iter().find(|seen| seen.inner == inner)
}

/// Waits until nothing of a session is left in a container of the user's own.
pub(crate) fn nothing_of_ours_in(container: &str) {
    if docker(&["ps", "-q", "--filter", &format!("name={container}")]).is_empty() {
        return;
    }
    wait("the container to be as it was", || {
        let left = processes(container);
        left.iter().all(|seen| seen.command.contains("sleep 900")) && folders(container).is_empty()
    });
}
