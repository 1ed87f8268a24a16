//! Engines by context, containers by service of compose.

use std::path::{Path, PathBuf};

use talaria_broker::backends::docker::{
    ComposeService, DockerContainer, EngineSources, ProjectSources, RunningOptions, Which,
};
use talaria_broker::backends::{Backend, BackendError, ProcessEnd, Silent};

use crate::rig::{Rig, command, docker, docker_succeeds, finish, hold, open, rig, run, talaria};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_is_found_by_its_context() {
    let Some(rig) = rig().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let host = &rig.engine.address.host;
    let context = |arguments: &[&str]| {
        let output = std::process::Command::new("docker")
            .arg("context")
            .args(arguments)
            .env("DOCKER_CONFIG", folder.path())
            .env_remove("DOCKER_HOST")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    // As Docker's own client writes them.
    context(&["create", "desk", "--docker", &format!("host={host}")]);
    context(&["create", "far", "--docker", "host=tcp://127.0.0.1:1"]);
    context(&["use", "desk"]);
    let mut sources = EngineSources {
        config_folder: Some(folder.path().to_owned()),
        ..EngineSources::default()
    };
    let engine = sources.connect("docker").await.unwrap();
    assert_eq!(&engine.address.host, host);
    assert!(engine.address.said_by.contains("desk") && engine.address.said_by.contains("config.json"));
    assert_eq!(engine.name, rig.engine.name);
    sources.docker_context = Some("far".to_owned());
    let error = sources.connect("docker").await.unwrap_err().to_string();
    assert!(
        error.contains("tcp://127.0.0.1:1") && error.contains("\"far\" of DOCKER_CONTEXT"),
        "{error}"
    );
    sources.docker_context = Some("gone".to_owned());
    let error = sources.connect("docker").await.unwrap_err();
    assert!(matches!(&error, BackendError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("desk, far, default"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_behind_ssh_is_reached_as_dockers_client_reaches_it() {
    use std::os::unix::fs::PermissionsExt;
    let Some(rig) = rig().await else { return };
    // In place of ssh, a program that runs the command here: what is tested is our side of it.
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    let script = "#!/bin/sh\ncase \" $* \" in *\" -M \"*) while [ \"$1\" != -S ]; do shift; done; : >\"$2\"; exec sleep 600;; esac\n\
                  while [ \"$1\" != -- ]; do shift; done\n[ \"$2\" = ssh://bob@box ] || exit 255\nexec $3\n";
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| name != "PATH").collect();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    variables.push(("PATH".into(), path.into()));
    let image = rig.image("base");
    let mut options = rig.options(&image);
    options.engine = EngineSources {
        host: Some("ssh://bob@box".to_owned()),
        environment: variables.into_iter().collect(),
        ..EngineSources::default()
    };
    let target = open(options).await;
    let _first = hold(&*target).await;
    let printed = finish(target.spawn(command(&["cat"])).await.unwrap(), b"there and back").await;
    assert_eq!(
        (printed.out.as_str(), printed.end),
        ("there and back", ProcessEnd::Code(0))
    );
    target.close().await.unwrap();
    rig.nothing_is_left(&image).await;
}

/// Containers as compose makes them.
struct Project {
    name: String,
}

impl Project {
    fn start(rig: &Rig, replicas: &[(&str, u32, bool)]) -> Self {
        let image = rig.image("base");
        let name = image.name.replace([':', '.'], "-");
        let project = Self { name: name.clone() };
        for (service, number, runs) in replicas {
            let (number, container) = (number.to_string(), format!("{name}_{service}_{number}"));
            let labels = [
                ("project", name.as_str()),
                ("service", service),
                ("container-number", &number),
                ("oneoff", "False"),
                ("version", "2.20.0"),
            ]
            .map(|(label, value)| format!("com.docker.compose.{label}={value}"));
            let mut arguments = if *runs { vec!["run", "-d"] } else { vec!["create"] };
            arguments.extend(["--name", &container]);
            arguments.extend(labels.iter().flat_map(|label| ["--label", label]));
            arguments.extend(["talaria-test:base", "sleep", "600"]);
            docker(&arguments);
        }
        project
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let filter = format!("label=com.docker.compose.project={}", self.name);
        let ids = docker(&["ps", "-aq", "--filter", &filter]);
        for id in ids.lines() {
            docker_succeeds(&["rm", "-f", id]);
        }
    }
}

fn service(rig: &Rig, project: &str, service: &str, index: Option<u32>) -> DockerContainer {
    DockerContainer::new(RunningOptions {
        target: format!("compose:{project}/{service}"),
        which: Which::Service(ComposeService {
            project: Some(project.to_owned()),
            service: service.to_owned(),
            index,
            sources: ProjectSources::default(),
        }),
        engine: rig.sources.clone(),
        user: None,
        folder: None,
        environment: [].into(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_its_container_or_what_to_do_is_said() {
    let Some(rig) = rig().await else { return };
    let project = Project::start(
        &rig,
        &[
            ("app", 1, true),
            ("worker", 1, true),
            ("worker", 2, true),
            ("cache", 1, false),
        ],
    );
    let name = &project.name;
    let hostname = |container: String| docker(&["inspect", "-f", "{{.Config.Hostname}}", &container]);
    for (asked, index, container) in [("app", None, "app_1"), ("worker", Some(2), "worker_2")] {
        let target = service(&rig, name, asked, index).open(&Silent).await.unwrap();
        let printed = run(&*target, &["cat", "/etc/hostname"]).await.unwrap();
        assert_eq!(printed.out.trim(), hostname(format!("{name}_{container}")));
        target.close().await.unwrap();
    }
    for (asked, index, words) in [
        (
            "worker",
            None,
            format!("compose:{name}/worker#1, compose:{name}/worker#2"),
        ),
        ("worker", Some(3), format!("compose:{name}/worker#1")),
        ("cache", None, format!("`docker compose -p {name} start cache`")),
        ("cach", None, format!("did you mean compose:{name}/cache?")),
        ("database", None, "app, cache, worker".to_owned()),
    ] {
        let error = service(&rig, name, asked, index).open(&Silent).await.err().unwrap();
        assert!(matches!(&error, BackendError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rig_of_three_services_is_reached_from_its_folder() {
    let Some(rig) = rig().await else { return };
    let Some(here) = folder_of_the_rig() else { return };
    let target = DockerContainer::new(RunningOptions {
        target: "compose:app".to_owned(),
        which: Which::Service(ComposeService {
            project: None,
            service: "app".to_owned(),
            index: None,
            sources: ProjectSources {
                variable: Some("talaria-test".to_owned()),
                file: None,
                folder: here,
            },
        }),
        engine: rig.sources.clone(),
        user: None,
        folder: None,
        environment: [].into(),
    });
    let target = target.open(&Silent).await.unwrap();
    let tests = run(&*target, &["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .await
        .unwrap();
    assert!(tests.out.contains("3 passed"), "{tests:?}");
}

/// The folder of the compose project, where it runs.
fn folder_of_the_rig() -> Option<PathBuf> {
    if !docker(&["ps", "-q", "--filter", "name=talaria-test_app_1"]).is_empty() {
        return Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("docker"));
    }
    let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
    let missing = "the compose project talaria-test does not run (tests/rigs/docker up)";
    let is_required = required.split(',').any(|one| one == "docker");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names docker");
    eprintln!("SKIPPED: {missing}");
    None
}

/// What an agent does with a rig: it finds the service from the project's folder, runs the tests that are there against
/// the other two, and sees what they wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_runs_the_tests_of_the_rig() {
    if rig().await.is_none() {
        return;
    }
    let Some(here) = folder_of_the_rig() else { return };
    let script = r#"
import os
from hermes_tools import read_file, terminal, write_file
done = terminal("python3 -m pytest -q -p no:cacheprovider | tee /tmp/report-$$ && echo $SECRET_KEY && rm /tmp/report-$$")
print(done["exit_code"], done["output"])
print(os.environ.get("SECRET_KEY"), os.getcwd())
# The password is a word like any other, and no secret is altered on its way.
print("postgres", read_file("shop.py")["total_lines"] > 10)
written = write_file("note.txt", os.environ.get("DATABASE_URL", "none"))
print(written["resolved_path"], terminal("cat note.txt; rm note.txt")["output"])
"#;
    let mut command = talaria();
    command.args(["run", "--on", "compose:app", "--json", "-c", script]);
    let output = command
        .current_dir(here)
        .env("COMPOSE_PROJECT_NAME", "talaria-test")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let outcome: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(outcome["status"], "success", "{outcome:#}");
    let printed = outcome["output"].as_str().unwrap();
    for words in [
        "0 ",
        "3 passed",
        "None /srv/app",
        "postgres True",
        "/srv/app/note.txt postgres://shop",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!printed.contains("s3cret-key"), "{printed}");
    assert_eq!(outcome["tool_calls_made"], 4, "{outcome:#}");
}

/// The script that users start from, word for word, on a project with a test that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_builds_and_tests_a_project() {
    if rig().await.is_none() {
        return;
    }
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/conformance/worked_examples/build_and_test.py"
    );
    let mut command = talaria();
    command.args(["run", "--on", "docker:talaria-test:project", "--json", script]);
    let output = command.output().unwrap();
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["status"], "success", "{outcome:#}");
    let report: serde_json::Value = serde_json::from_str(outcome["output"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&report["passed"], &report["failed"], &report["errors"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert_eq!(report["exit_code"], 1);
    let summary = report["summary"].as_str().unwrap();
    assert!(
        summary.contains("test_discounted") && summary.contains("1 failed, 2 passed"),
        "{summary}"
    );
    assert_eq!(outcome["tool_calls_made"], 1);
}
