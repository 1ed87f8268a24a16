//! The container ends under a cell.

use std::time::{Duration, Instant};

use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::rig::{Live, Rig, docker, folders, kill_guard_and_supervisor, ours, processes, the_one, wait};

/// Far below what a link that is lost is tried for.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Ends a container under a cell; the outcome's error.
fn ended_under_a_cell(session: &Live<'_>, container: &str, how: &[&str]) -> String {
    session.ok("kept = 1");
    let running = session.start(Cell::new("print('begun', flush=True)\nimport time\ntime.sleep(80)"));
    std::thread::sleep(Duration::from_millis(700));
    docker(&[how, &[container]].concat());
    let since = Instant::now();
    let outcome = running.wait();
    assert!(since.elapsed() < AT_ONCE, "{how:?}: after {:?}", since.elapsed());
    assert_eq!(outcome.status, Status::Error, "{outcome:#?}");
    assert!(outcome.output.starts_with("begun\n"), "{outcome:#?}");
    assert!(outcome.kernel.as_ref().unwrap().state_lost, "{outcome:#?}");
    outcome.error.unwrap()
}

#[test]
fn a_container_of_ours_that_ends_is_replaced() {
    let Some(rig) = Rig::new() else { return };
    for how in [
        &["stop", "-t", "0"][..],
        &["kill"],
        &["rm", "-f"],
        &["restart", "-t", "0"],
    ] {
        let (options, image) = rig.ours("base");
        let session = rig.open(options);
        session.ok("open('/tmp/left', 'w').close()");
        let container = the_one(&image);
        let error = ended_under_a_cell(&session, &container, how);
        assert!(
            error.contains("container") || error.contains("anew"),
            "{how:?}: {error}"
        );
        let next = session.cell("import os\nprint('kept' in globals(), os.path.exists('/tmp/left'))");
        assert_eq!(
            (next.status, next.output.as_str()),
            (Status::Success, "False False\n"),
            "{how:?}: {next:#?}"
        );
        let notice = next.notice.unwrap_or_default();
        assert!(notice.contains("lost"), "{how:?}: {notice}");
        assert!(!next.kernel.unwrap().reused);
        assert_ne!(the_one(&image), container);
        rig.close();
        drop(session);
    }
}

/// A container of the user's is not made anew; once it runs again the session does too.
#[test]
fn a_container_of_the_users_that_ends_says_so() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running("base", &[]);
    let session = rig.open(options);
    let error = ended_under_a_cell(&session, &name, &["stop", "-t", "0"]);
    assert!(error.contains("container"), "{error}");
    let next = session.cell("print(1)");
    assert_eq!(next.status, Status::Error, "{next:#?}");
    let error = next.error.unwrap();
    assert!(
        error.contains("not running") || error.contains("stopped") || error.contains("start"),
        "{error}"
    );
    docker(&["start", &name]);
    let next = session.cell("print('kept' in globals())");
    assert_eq!(
        (next.status, next.output.as_str()),
        (Status::Success, "False\n"),
        "{next:#?}"
    );
    assert!(next.notice.unwrap_or_default().contains("lost"));

    let error = ended_under_a_cell(&session, &name, &["restart", "-t", "0"]);
    assert!(error.contains("anew") || error.contains("container"), "{error}");
    let next = session.cell("print('kept' in globals())");
    assert_eq!(
        (next.status, next.output.as_str()),
        (Status::Success, "False\n"),
        "{next:#?}"
    );
    assert!(next.notice.unwrap_or_default().contains("lost"));

    ended_under_a_cell(&session, &name, &["rm", "-f"]);
    let next = session.cell("print(1)");
    assert_eq!(next.status, Status::Error, "{next:#?}");
    let error = next.error.unwrap();
    assert!(error.contains(&name), "{error}");
    rig.close();
}

/// Who kills all of ours leaves nobody to clean up: the next link does, also what commands had left in the background.
#[test]
fn guard_and_supervisor_are_killed_at_once() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running("base", &[]);
    let session = rig.open(options);
    session.ok("from hermes_tools import terminal\nkept = 1\nterminal('export A=b')\nprint(terminal('setsid sleep 888 & echo on'))");
    let is_left = || processes(&name).iter().any(|seen| seen.command.contains("sleep 888"));
    assert!(is_left());
    kill_guard_and_supervisor(&name);
    wait("the next link to have cleaned up", || {
        !is_left() && folders(&name).is_empty()
    });
    let mut next = session.cell("print('kept' in globals())");
    if next.status == Status::Error {
        // It met the end of the session, which it was told of; the one after it does not.
        next = session.cell("print('kept' in globals())");
    }
    assert_eq!(
        (next.status, next.output.as_str()),
        (Status::Success, "False\n"),
        "{next:#?}"
    );
    assert!(next.notice.unwrap_or_default().contains("lost"));
    let terminal = "from hermes_tools import terminal\nprint(terminal('echo $A')['output'])";
    assert_eq!(session.ok(terminal), "b\n\n");
    rig.close();
}

/// A container that is started anew keeps its disk; what lay there goes with the next session, once it is old.
#[test]
fn what_a_restart_leaves_on_a_disk_is_removed_later() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running("base", &[]);
    let session = rig.open(options.clone());
    session.ok("kept = 1");
    docker(&["restart", "-t", "0", &name]);
    let left = folders(&name);
    assert_eq!(left.len(), 1, "{left:?}");
    let kept = left[0].with_file_name("talaria-notes");
    std::fs::create_dir(&kept).unwrap();
    for path in [&left[0], &left[0].join("lock"), &kept] {
        let path = path.to_string_lossy().into_owned();
        let touched = std::process::Command::new("touch")
            .args(["-d", "1 hour ago", &path])
            .output();
        assert!(touched.unwrap().status.success());
    }
    // A cell may still meet the end of the session before.
    wait("the next session", || {
        session.cell("print(1)").status == Status::Success
    });
    wait("the old folder to be gone", || !left[0].exists());
    assert!(kept.exists());
    std::fs::remove_dir(&kept).unwrap();
    rig.close();
}

/// Between two cells nobody looks; the next cell finds out.
#[test]
fn a_container_that_ended_between_cells_is_replaced() {
    let Some(rig) = Rig::new() else { return };
    let (options, image) = rig.ours("base");
    let session = rig.open(options);
    session.ok("kept = 1");
    docker(&["rm", "-f", &the_one(&image)]);
    // What ends while a cell is on its way ends that cell, which says so; this is about the time between.
    std::thread::sleep(Duration::from_secs(1));
    let next = session.cell("print('kept' in globals())");
    assert_eq!(
        (next.status, next.output.as_str()),
        (Status::Success, "False\n"),
        "{next:#?}"
    );
    assert!(next.notice.clone().unwrap_or_default().contains("lost"), "{next:#?}");
    assert_eq!(ours(&image).len(), 1);
    rig.close();
}
