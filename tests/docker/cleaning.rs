//! Nothing is left behind, and nothing of others is removed.

use std::time::{Duration, Instant};

use talaria_broker::backends::docker::ours::{self, CREATED_LABEL, OWNER_LABEL};
use talaria_broker::backends::docker::{DockerImage, Fate, Network, Owner, Volume, VolumeSource};
use talaria_broker::backends::{Backend, BackendError, Silent};

use crate::rig::{LIMIT, command, docker, docker_succeeds, hold, open, rig, talaria};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_cannot_be_made_says_why_and_leaves_nothing() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    type Change = fn(&mut talaria_broker::backends::docker::DockerOptions);
    let bad: [(Change, &[&str]); 6] = [
        (
            |options| {
                options.volumes = vec![Volume {
                    source: VolumeSource::Path("/no/such/folder".into()),
                    target: "/x".to_owned(),
                    read_only: false,
                    label: None,
                }];
            },
            &["/no/such/folder", "must exist on the machine of the engine"],
        ),
        (
            |options| options.network = Network::Named("no-such-network".into()),
            &["no-such-network", "docker_network"],
        ),
        (
            |options| options.user = Some("nosuchuser".into()),
            &["nosuchuser", "UID:GID"],
        ),
        (|options| options.memory = Some(1 << 20), &["emory", "container_memory"]),
        (|options| options.cpus = Some(5_000.0), &["CPUs", "container_cpu"]),
        (
            |options| options.folder = Some("relative".into()),
            &["absolute path of the container"],
        ),
    ];
    for (change, words) in bad {
        let mut options = rig.options(&image);
        change(&mut options);
        let target = open(options).await;
        let error = match target.spawn(command(&["cat"])).await {
            Err(error) => error,
            // Podman does not check what it is asked for.
            Ok(_) if rig.is_podman() => {
                target.close().await.unwrap();
                continue;
            }
            Ok(_) => panic!("started, in spite of {words:?}"),
        };
        let text = error.to_string();
        assert!(matches!(error, BackendError::Refused { .. }), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
        rig.nothing_is_left(&image).await;
        target.close().await.unwrap();
    }
    assert!(!std::path::Path::new("/no/such/folder").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_nobody_waits_for_is_undone() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    for milliseconds in [0, 5, 30, 80, 150, 300] {
        let target = rig.open(&image).await;
        // At whatever point it is cut off, closing finds what was made; and without it the container ends by itself.
        let _ = tokio::time::timeout(Duration::from_millis(milliseconds), target.spawn(command(&["cat"]))).await;
        if milliseconds % 2 == 0 {
            target.close().await.unwrap();
        }
        drop(target);
        rig.nothing_is_left(&image).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_ends_with_the_connection_to_its_first_process() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let first = hold(&*target).await;
    assert_eq!(rig.ours(&image).await.len(), 1);
    drop((first, target));
    rig.nothing_is_left(&image).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_is_not_there_says_what_to_do() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let refused = |name: &str| {
        let mut options = rig.options(&image);
        options.image = name.to_owned();
        async move { DockerImage::new(options).open(&Silent).await.err().unwrap().to_string() }
    };
    // A registry that cannot be there, so that no test asks one that is.
    let error = refused("localhost:1/nothing:1").await;
    assert!(
        error.contains("the image localhost:1/nothing:1 is not there")
            && error.contains("docker pull localhost:1/nothing:1"),
        "{error}"
    );
    for name in ["Not An Image", "a:", "-x", "a?b=c"] {
        let error = refused(name).await;
        assert!(error.contains("is no name of an image"), "{error}");
    }
}

/// A container with labels of the test's choice; it runs, or was only created.
fn labelled(image: &str, owner: Option<&str>, created: u64, runs: bool) -> String {
    let labels = [
        owner.map(|owner| format!("{OWNER_LABEL}={owner}")),
        Some(format!("{CREATED_LABEL}={created}")),
    ];
    let mut arguments = if runs { vec!["run", "-d"] } else { vec!["create"] };
    for label in labels.iter().flatten() {
        arguments.extend(["--label", label]);
    }
    arguments.extend([image, "sleep", "600"]);
    docker(&arguments)
}

/// A broker of the tests' own, which does nothing but live until it is ended.
struct OtherBroker {
    process: std::process::Child,
    label: String,
}

impl OtherBroker {
    fn start() -> Self {
        let process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = process.id().to_string();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_ascii_whitespace()
            .nth(19)
            .unwrap();
        let this = Owner::this_process().to_string();
        let mut parts: Vec<&str> = this.split('/').collect();
        (parts[3], parts[4]) = (&pid, start);
        let label = parts.join("/");
        assert_eq!(Owner::parse(&label).unwrap().fate(), Fate::Alive);
        Self { process, label }
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        assert_eq!(Owner::parse(&self.label).unwrap().fate(), Fate::Ended);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_removes_what_has_no_owner_and_nothing_else() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let alive = Owner::this_process().to_string();
    let elsewhere = alive.replacen('/', "-of-another-machine/", 1);
    let mut other = OtherBroker::start();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let made = |owner: Option<&str>| labelled(&image.name, owner, now - 100_000, true);
    let dead = made(Some(&other.label));
    let others = [
        made(Some(&alive)),
        made(Some(&elsewhere)),
        made(None),
        made(Some("not of this version")),
    ];
    let there = |id: &str| docker_succeeds(&["inspect", id]);
    other.end();

    let listed = talaria().args(["ls", "--json"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let of = |id: &str| -> serde_json::Value {
        let line = listed.lines().find(|line| line.contains(id));
        let line = line.unwrap_or_else(|| panic!("{id} is not in {listed}"));
        serde_json::from_str(line).unwrap()
    };
    assert_eq!(
        (of(&dead)["owner"]["state"].as_str(), of(&dead)["orphan"].as_bool()),
        (Some("ended"), Some(true))
    );
    assert_eq!(of(&others[0])["owner"]["state"], "alive");
    assert_eq!(of(&others[1])["owner"]["state"], "elsewhere");
    assert!(!listed.contains(&others[2]), "it has no label of ours");

    let dry = talaria().args(["gc", "--dry-run"]).output().unwrap();
    assert!(dry.status.success() && there(&dead));
    let said = String::from_utf8(dry.stdout).unwrap();
    let name = docker(&["inspect", "-f", "{{.Name}}", &dead])
        .trim_start_matches('/')
        .to_owned();
    assert!(
        said.lines()
            .any(|line| line.contains("would remove") && line.contains(&name)),
        "{said}"
    );

    let gc = talaria().args(["gc"]).output().unwrap();
    assert!(gc.status.success(), "{gc:?}");
    assert!(!there(&dead));
    for other in &others {
        assert!(there(other));
        docker(&["rm", "-f", other]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_a_target_sweeps_what_was_never_started() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let mut other = OtherBroker::start();
    let left = labelled(&image.name, Some(&other.label), 0, false);
    let kept = labelled(&image.name, Some(&Owner::this_process().to_string()), 0, false);
    other.end();
    let target = rig.open(&image).await;
    let began = Instant::now();
    while docker_succeeds(&["inspect", &left]) {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(docker_succeeds(&["inspect", &kept]));
    ours::remove(&rig.engine, &kept).await.unwrap();
    assert!(!docker_succeeds(&["inspect", &kept]));
    target.close().await.unwrap();
}
