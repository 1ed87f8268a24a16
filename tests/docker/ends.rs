//! What became of a container.

use std::sync::Arc;
use std::time::Instant;

use talaria_broker::backends::docker::{DockerContainer, EngineSources, RunningOptions, Which};
use talaria_broker::backends::{Backend, BackendError, Silent, Target, TargetState};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use crate::rig::{Image, LIMIT, Rig, command, docker, docker_succeeds, hold, open, rig, talaria};

/// A container of the tests' own that runs until it is dropped.
struct Foreign {
    name: String,
}

impl Foreign {
    fn start(image: &Image) -> Self {
        let name = image.name.replace(':', "-");
        docker(&["run", "-d", "--init", "--name", &name, &image.name, "sleep", "600"]);
        Self { name }
    }

    async fn open(&self, rig: &Rig) -> Result<Arc<dyn Target>, BackendError> {
        DockerContainer::new(running(rig, Which::Name(self.name.clone())))
            .open(&Silent)
            .await
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        docker_succeeds(&["rm", "-f", "-v", &self.name]);
    }
}

fn running(rig: &Rig, which: Which) -> RunningOptions {
    RunningOptions {
        target: "container:x".to_owned(),
        which,
        engine: rig.sources.clone(),
        user: None,
        folder: None,
        environment: [].into(),
    }
}

/// Waits until the target says that it is gone; why.
async fn gone(target: &dyn Target) -> String {
    let began = Instant::now();
    loop {
        match target.state().await {
            TargetState::Gone(why) => return why,
            other => assert!(began.elapsed() < LIMIT, "{other:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn incarnation(state: &TargetState) -> String {
    match state {
        TargetState::Running { incarnation, .. } => incarnation.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_of_ours_that_ended_says_how() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    for (how, words) in [
        (&["kill"][..], "stopped or removed from outside"),
        (&["stop", "-t", "0"], "stopped or removed from outside"),
        (&["rm", "-f"], "stopped or removed from outside"),
    ] {
        let target = rig.open(&image).await;
        assert!(matches!(target.state().await, TargetState::Running { .. }));
        let _first = hold(&*target).await;
        assert!(!incarnation(&target.state().await).is_empty());
        let name = rig.one(&image).await;
        docker(&[how, &[name.as_str()]].concat());
        let why = gone(&*target).await;
        assert!(why.contains(words), "{how:?}: {why}");
        let error = target.spawn(command(&["true"])).await.err().unwrap();
        assert!(matches!(error, BackendError::Gone { .. }), "{how:?}: {error}");
        target.close().await.unwrap();
    }
    let target = rig.open(&image).await;
    let mut first = target.spawn(command(&["sh", "-c", "read x; exit 3"])).await.unwrap();
    first.stdin.write_all(b"go\n").await.unwrap();
    let why = gone(&*target).await;
    assert!(why.contains("exit code 3"), "{why}");
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_runs_out_of_memory_names_the_limit() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let mut options = rig.options(&image);
    options.memory = Some(64 << 20);
    let target = open(options).await;
    let script = "import sys; sys.stdin.readline(); x = bytearray(10**9)";
    let mut first = target.spawn(command(&["python3", "-c", script])).await.unwrap();
    first.stdin.write_all(b"go\n").await.unwrap();
    let why = gone(&*target).await;
    assert!(why.contains("out of memory") && why.contains("64 MB"), "{why}");
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_container_is_paused_and_goes_on() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let _first = hold(&*target).await;
    let name = rig.one(&image).await;
    let before = incarnation(&target.state().await);
    docker(&["pause", &name]);
    assert_eq!(target.state().await, TargetState::Paused);
    let error = target.spawn(command(&["true"])).await.err().unwrap();
    assert!(
        matches!(&error, BackendError::Unreachable { .. })
            && error.to_string().contains(&format!("docker unpause {name}")),
        "{error}"
    );
    docker(&["unpause", &name]);
    assert_eq!(incarnation(&target.state().await), before);
    docker(&["pause", &name]);
    target.close().await.unwrap();
    rig.nothing_is_left(&image).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_runs_already_is_used_and_left_as_it_was() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("user");
    let foreign = Foreign::start(&image);
    let target = foreign.open(&rig).await.unwrap();
    let printed = crate::rig::run(&*target, &["sh", "-c", "id -u; pwd"]).await.unwrap();
    assert_eq!(printed.out, "1000\n/srv/app\n");
    let mut options = running(&rig, Which::Name(foreign.name.clone()));
    options.user = Some("0:0".to_owned());
    options.folder = Some("/tmp".to_owned());
    options.environment = [("GIVEN".to_owned(), "yes".to_owned())].into();
    let other = DockerContainer::new(options).open(&Silent).await.unwrap();
    let printed = crate::rig::run(&*other, &["sh", "-c", "id -u; pwd; echo $GIVEN"])
        .await
        .unwrap();
    assert_eq!(printed.out, "0\n/tmp\nyes\n");
    let before = incarnation(&target.state().await);
    target.close().await.unwrap();
    other.close().await.unwrap();
    assert_eq!(incarnation(&target.state().await), before);
    docker(&["restart", "-t", "0", &foreign.name]);
    assert_ne!(incarnation(&target.state().await), before);
    docker(&["stop", "-t", "0", &foreign.name]);
    let why = gone(&*target).await;
    assert!(
        why.contains("stopped") && why.contains(&format!("docker start {}", foreign.name)),
        "{why}"
    );
    let error = target.spawn(command(&["true"])).await.err().unwrap();
    assert!(matches!(&error, BackendError::Gone { .. }), "{error}");
    let error = foreign.open(&rig).await.err().unwrap().to_string();
    assert!(
        error.contains("does not run (exited with code") && error.contains(&format!("docker start {}", foreign.name)),
        "{error}"
    );
    docker(&["rm", &foreign.name]);
    let why = gone(&*target).await;
    assert!(why.contains("was removed"), "{why}");
    let again = Foreign::start(&image);
    let why = gone(&*target).await;
    assert!(why.contains("replaced by a new one"), "{why}");
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_none_is_refused_with_what_there_is() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let foreign = Foreign::start(&image);
    for (name, words) in [
        (
            format!("{}x", foreign.name),
            format!("did you mean container:{}?", foreign.name),
        ),
        ("quite-another-thing".to_owned(), foreign.name.clone()),
        ("../x".to_owned(), "no name of a container".to_owned()),
        ("a b".to_owned(), "no name of a container".to_owned()),
    ] {
        let which = Which::Name(name);
        let error = DockerContainer::new(running(&rig, which))
            .open(&Silent)
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains(&words), "{error}");
    }
    docker(&["pause", &foreign.name]);
    let error = foreign.open(&rig).await.err().unwrap().to_string();
    assert!(error.contains(&format!("docker unpause {}", foreign.name)), "{error}");
    docker(&["unpause", &foreign.name]);
}

/// An engine behind a socket of ours that can be cut off.
struct Proxy {
    folder: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    fn start(rig: &Rig) -> Option<Self> {
        let real = rig.engine.address.host.strip_prefix("unix://")?.to_owned();
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let task = tokio::spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let real = real.clone();
                carried.spawn(async move {
                    let mut far = UnixStream::connect(real).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Some(Self { folder, task })
    }

    fn sources(&self) -> EngineSources {
        EngineSources {
            host: Some(format!("unix://{}", self.folder.path().join("s").display())),
            ..EngineSources::default()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_gone_is_unreachable() {
    let Some(rig) = rig().await else { return };
    let Some(proxy) = Proxy::start(&rig) else { return };
    let image = rig.image("base");
    let mut options = rig.options(&image);
    options.engine = proxy.sources();
    let target = open(options).await;
    let mut first = hold(&*target).await;
    let name = rig.one(&image).await;
    assert!(matches!(target.state().await, TargetState::Running { .. }));
    // Its streams end with it, and so does a process that lives by them.
    proxy.task.abort();
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut first.stdout, &mut rest);
    tokio::time::timeout(LIMIT, read).await.unwrap().unwrap();
    let state = target.state().await;
    assert!(
        matches!(&state, TargetState::Unreachable(why) if why.contains("an option of the target")),
        "{state:?}"
    );
    let error = target.spawn(command(&["true"])).await.err().unwrap();
    assert!(matches!(&error, BackendError::Unreachable { .. }), "{error}");
    let error = target.close().await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("docker rm -f {name}")) && error.contains("talaria gc"),
        "{error}"
    );
    rig.nothing_is_left(&image).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_stopped_leaves_all_of_a_patch_or_none() {
    let Some(rig) = rig().await else { return };
    patch_while(&rig, |name| docker(&["stop", name]), "stop").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_is_killed_leaves_all_of_a_patch_or_none() {
    let Some(rig) = rig().await else { return };
    // The child of the first process that has children itself.
    let script = "import os\nkids = {}\nfor p in os.listdir('/proc'):\n    try:\n        with open('/proc/%s/stat' % p) as f: \
                  kids.setdefault(f.read().rsplit(')', 1)[1].split()[1], []).append(p)\n    except OSError: pass\n\
                  os.kill(int(next(p for p in kids['1'] if p in kids)), 9)";
    patch_while(&rig, |name| docker(&["exec", name, "python3", "-c", script]), "killed").await;
}

/// Makes a patch of several files wait for one of them, and does something to its container meanwhile.
async fn patch_while(rig: &Rig, what: impl Fn(&str) -> String, said: &str) {
    let image = rig.image("base");
    let shared = tempfile::tempdir().unwrap();
    let held = shared.path().join("z");
    std::fs::write(&held, "old\n").unwrap();
    let lock = std::fs::File::open(&held).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let code = "from hermes_tools import patch\npatch(mode='patch', patch='*** Begin Patch\\n*** Add File: /data/made/below/new\\n+x\\n\
                *** Update File: /data/z\\n-old\\n+new\\n*** End Patch')";
    let on = format!("docker:{}", image.name);
    let mount = format!("{}:/data", shared.path().display());
    let run = talaria()
        .args(["run", "--on", &on, "--mount", &mount, "--json", "-c", code])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !shared.path().join("made/below").exists() {
        assert!(began.elapsed() < LIMIT, "the patch does not begin");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let name = rig.one(&image).await;
    what(&name);
    let outcome = run.wait_with_output().unwrap();
    let outcome: serde_json::Value = serde_json::from_slice(&outcome.stdout).unwrap();
    rig.nothing_is_left(&image).await;
    let mut left: Vec<String> = std::fs::read_dir(shared.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    let text = std::fs::read_to_string(&held).unwrap();
    // On a machine that does much else the file may have been waited for long enough before the container was stopped.
    if text == "new\n" {
        let new = std::fs::read_to_string(shared.path().join("made/below/new")).unwrap();
        assert_eq!((left, new.as_str()), (vec!["made".to_owned(), "z".to_owned()], "x\n"));
    } else {
        assert_eq!((left, text.as_str()), (vec!["z".to_owned()], "old\n"), "{outcome:#}");
    }
    assert_eq!(outcome["status"], "error", "{outcome:#}");
    assert!(outcome["error"].as_str().unwrap().contains(said), "{outcome:#}");
}
