//! Starts that succeed in odd places, and those that cannot.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use talaria_broker::file_rpc::{FileLink, StartError, Transport};
use talaria_broker::link::Link;
use tempfile::TempDir;

use crate::rig::{Rig, Tools, python, start, target};

fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_fit_interpreter_is_taken() {
    let scripts = TempDir::new().unwrap();
    let old = script(scripts.path(), "old", "printf 'talaria-agent 3.7.9 /old\\n'");
    let broken = script(scripts.path(), "broken", "echo 'first words' >&2; exit 3");
    let banner = script(
        scripts.path(),
        "banner",
        &format!(
            "echo Welcome; printf 'no newline '; echo; exec {} \"$@\"",
            python().display()
        ),
    );
    let rig = Rig::with(Transport::Auto, |start| {
        start.pythons = vec![
            "no-such-python".into(),
            old.clone().into(),
            broken.clone().into(),
            banner.into(),
        ];
    });
    let rig = rig.await.unwrap();
    assert_eq!(rig.link.transport(), "stream");
    let rejected: Vec<&str> = rig.link.rejected().iter().map(|(_, found)| found.as_str()).collect();
    assert_eq!(rejected.len(), 3);
    assert_eq!(rejected[1..], ["is Python 3.7.9", "exited with 3: first words"]);
    let rig = rig.kernel().await;
    assert_eq!(rig.run("print('runs')").await.0, "runs\n");
    rig.target.cut();
    assert_eq!(rig.run("print('still')").await.0, "still\n");
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interpreter_without_zlib_gets_its_program_as_it_is() {
    let scripts = TempDir::new().unwrap();
    // Called as the broker calls it: -I -S -c PROGRAM, and the rest.
    let program =
        "import sys; sys.modules[\"zlib\"] = None; given = sys.argv[4]; sys.argv[1:] = sys.argv[5:]; exec(given)";
    let without = script(
        scripts.path(),
        "without",
        &format!("exec {} -I -S -c '{program}' \"$@\"", python().display()),
    );
    let rig = Rig::with(Transport::Auto, |start| start.pythons = vec![without.into()]);
    let rig = rig.await.unwrap().kernel().await;
    assert_eq!(rig.run("print('runs')").await.0, "runs\n");
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_fit_interpreter_names_what_was_found() {
    let result = Rig::with(Transport::Auto, |start| {
        start.pythons = vec!["no-such-python".into(), "true".into(), "/bin/false".into()];
    });
    let Err(error) = result.await else { panic!("it began") };
    assert_eq!(
        error.to_string(),
        "no fit Python on exec:test (no-such-python: it is not on the PATH; true: exited with 0; /bin/false: exited with 1); a session needs Python 3.8 or newer there: install it, or name its path as `python`"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_behind_a_command_is_no_broken_interpreter() {
    let target = target("sh -c 'exec \"$@\"' sh").await;
    let scratch = TempDir::new().unwrap();
    let tools = Arc::new(Tools::default());
    let mut options = start(&target, &tools, scratch.path(), Transport::Auto);
    options.pythons = vec!["no-such-python".into(), python()];
    let link = FileLink::start(options).await.unwrap();
    assert!(
        link.rejected()[0].1.starts_with("is not there"),
        "{:?}",
        link.rejected()
    );
    let agent = talaria_broker::kernel::Agent::new(Arc::new(link));
    agent.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_unfit_is_named() {
    let result = Rig::with(Transport::Auto, |start| {
        start.cwd = start.cwd.take().map(|cwd| cwd.join("missing"));
    });
    let Err(error) = result.await else { panic!("it began") };
    assert!(matches!(error, StartError::Place { .. }), "{error}");
    assert!(error.to_string().contains("work/missing cannot be entered"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_say_what_the_place_is() {
    let rig = Rig::new(Transport::Auto).await;
    let facts = rig.link.facts();
    assert_eq!(facts.cwd(), rig.scratch.path().join("work").canonicalize().unwrap());
    assert!(facts.python().is_absolute());
    assert_eq!(facts.version, rig.link.python_version());
    // A shim may put folders in front.
    let path = facts.environment().find(|(name, _)| name == "PATH").unwrap().1;
    let path = path.into_string().unwrap();
    assert!(path.ends_with(&std::env::var("PATH").unwrap()), "{path}");
    assert_eq!(facts.uid, rustix::process::geteuid().as_raw());
    rig.close().await;
}
