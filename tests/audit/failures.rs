//! A log that cannot be written.

use std::io::Write;
use std::process::Command;

use talaria_broker::outcome::Status;

use crate::rig::{Rig, run, story};

/// A small file system of its own, where this account may mount one.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(path: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs"])
            .arg(&path)
            .output();
        mounted.is_ok_and(|done| done.status.success()).then_some(Self(path))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_no_cell_and_is_told_once() {
    let rig = Rig::new();
    let Some(small) = Small::mount(rig.path("audit")) else {
        eprintln!("SKIPPED: nothing can be mounted here");
        return;
    };
    let session = rig.open(rig.options());
    assert_eq!(run(&session, "print(1)").await.notice, None);
    let filler = small.0.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    let mut notices = Vec::new();
    for number in 0..30 {
        let outcome = run(&session, &format!("print('{}')", format!("{number} ").repeat(200))).await;
        assert_eq!(outcome.status, Status::Success);
        notices.extend(outcome.notice);
    }
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains("audit log") && notices[0].contains("cannot be written"),
        "{notices:?}"
    );
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(run(&session, "print('again')").await.notice, None);
    rig.broker.close().await;
    let log = crate::rig::text(&small.0);
    let whole: Vec<talaria_broker::audit::Line> =
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // The one that the disk was full in may be torn.
    let torn = log.lines().filter(|line| !line.is_empty()).count() - whole.len();
    assert!(torn <= 1, "{log}");
    let gap = whole.iter().position(|line| line.event == "gap").unwrap();
    assert!(whole[gap].lost.unwrap() > 0);
    assert_eq!(whole.iter().filter(|line| line.event == "gap").count(), 1, "{log}");
    assert_eq!(story(&whole[whole.len() - 2..]), ["32 start", "32 cell"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_log_is_required_nothing_runs_without_it() {
    let rig = Rig::new();
    let mut options = rig.options();
    std::fs::write(rig.path("audit"), "in the way").unwrap();
    options.audit.as_mut().unwrap().required = true;
    let session = rig.open(options);
    let ran = rig.path("ran");
    let code = format!("open({:?}, 'w')", ran.to_str().unwrap());
    let refused = run(&session, &code).await;
    assert_eq!((refused.status, refused.exit_code), (Status::Error, None));
    let error = refused.error.unwrap();
    assert!(
        error.contains("audit.required") && error.contains("nothing ran"),
        "{error}"
    );
    assert!(!ran.exists());
    std::fs::remove_file(rig.path("audit")).unwrap();
    // It is lost in the midst of a cell: calls are refused from then on.
    let code = format!(
        "import os, time\nfrom hermes_tools import read_file\n\
         read_file('a')\n\
         os.rename({0:?}, {0:?} + '-moved'); open({0:?}, 'w').close()\n\
         for _ in range(500):\n    \
             answer = read_file('b')\n    \
             if 'cannot be written' in answer['error']: break\n    \
             time.sleep(0.01)\n\
         print(answer['error'])",
        rig.path("audit").to_str().unwrap()
    );
    let outcome = run(&session, &code).await;
    assert!(outcome.output.contains("read_file was not run"), "{outcome:?}");
    rig.broker.close().await;
}
