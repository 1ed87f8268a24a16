//! `talaria run` records, `talaria log` shows.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::rig::{LIMIT, Rig, lines, texts};

const HERE: &str = ".local/state/talaria/audit";

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_shown_to_people_and_filtered() {
    let rig = Rig::new();
    let code = "from hermes_tools import terminal, read_file\n\
                terminal('echo \\x1b[2J\\u202e')\nread_file('nothing')\nprint(1)";
    assert_eq!(rig.says(&["run", "-c", code]).0, "1\n");
    rig.says(&["run", "-c", "1/0"]);
    // An unknown target never gets a session; a target that cannot be reached has one.
    rig.says(&["run", "--on", "exec:false", "-c", "pass"]);
    let (all, _) = rig.says(&["log"]);
    assert_eq!(all.lines().count(), 5, "{all}");
    assert!(all.contains(r#"terminal(command="echo \u{1b}[2J\u{202e}")"#), "{all}");
    assert!(all.contains("read_file(path=\"nothing\""), "{all}");
    assert!(all.contains("exec:false  cell: did not run"), "{all}");
    assert!(!all.chars().any(|c| c.is_control() && c != '\n'));
    let count = |more: &[&str]| {
        let (shown, errors) = rig.says(&[&["log"], more].concat());
        assert_eq!(errors, "", "{more:?}");
        shown.lines().count()
    };
    assert_eq!(count(&["--failed"]), 3);
    assert_eq!(count(&["--tool", "terminal"]), 1);
    assert_eq!(count(&["--target", "exec:false"]), 1);
    assert_eq!(count(&["-n", "2"]), 2);
    assert_eq!(count(&["--since", "1h"]), 5);
    assert_eq!(count(&["--since", "1ms"]), 0);
    let log = lines(&rig.path(HERE));
    assert_eq!(count(&["--session", &log[0].session[..8]]), 3);
    assert_eq!(count(&["--json"]), log.len());
    let (shown, _) = rig.says(&["log", "--script", "--target", "local"]);
    assert!(shown.contains("\n    1/0\n"), "{shown}");
    let digest = log[0].script.clone().unwrap();
    assert_eq!(rig.says(&["log", "show", &digest[..10]]).0, code);
    let (_, error) = rig.says(&["log", "show", "ffff"]);
    assert!(error.contains("no script"), "{error}");
    let account = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    assert!(log.iter().all(|line| line.who == account.trim()));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_torn_lines_are_passed_over_and_counted() {
    let rig = Rig::new();
    let folder = rig.path(HERE);
    std::fs::create_dir_all(&folder).unwrap();
    let line = |number: u32| {
        format!(
            "{{\"time\":\"2026-01-01T00:00:00.00{number}Z\",\"event\":\"call\",\"tool\":\"t{number}\\u001b\",\"new\":1}}\n"
        )
    };
    std::fs::write(folder.join("audit-000010.jsonl"), line(2) + "not ours\n" + &line(3)).unwrap();
    std::fs::write(folder.join("audit-000009.jsonl"), line(1) + "\n\u{0}\n").unwrap();
    let mut last = line(4).into_bytes();
    last.extend(b"\xff\xfe\n{\"event\":\"torn");
    std::fs::write(folder.join("audit.jsonl"), last).unwrap();
    let (shown, errors) = rig.says(&["log"]);
    let tools: Vec<&str> = shown
        .lines()
        .map(|line| &line[line.find('t').unwrap()..][..2])
        .collect();
    assert_eq!(tools, ["t1", "t2", "t3", "t4"], "{shown}");
    assert!(shown.contains("t1\\u{1b}("), "{shown}");
    assert!(errors.contains("4 lines of the log could not be read"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_leaves_a_log_that_can_be_read() {
    let rig = Rig::new();
    let code =
        "from hermes_tools import read_file\nimport time\nread_file('x')\nprint('.', flush=True)\ntime.sleep(600)";
    let mut broker = rig
        .talaria(&["run", "-c", code])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(broker.stdout.as_mut().unwrap())
        .read_line(&mut first)
        .unwrap();
    wait("the line of the call", || lines(&rig.path(HERE)).len() == 2);
    broker.kill().unwrap();
    broker.wait().unwrap();
    rig.says(&["run", "-c", "print(2)"]);
    let (shown, errors) = rig.says(&["log"]);
    assert_eq!(errors, "");
    assert!(shown.contains("cell: no end is recorded"), "{shown}");
    assert_eq!(shown.lines().count(), 3, "{shown}");
    let (script, _) = rig.says(&["log", "show", &lines(&rig.path(HERE))[0].script.clone().unwrap()]);
    assert_eq!(script, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_follows_sees_what_comes() {
    let rig = Rig::new();
    rig.says(&["run", "-c", "print(1)"]);
    let mut follower = rig
        .talaria(&["log", "--follow", "-n", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(seen.next().unwrap().unwrap().contains("cell: success"));
    rig.says(&["run", "-c", "1/0"]);
    assert!(seen.next().unwrap().unwrap().contains("ZeroDivisionError"));
    drop(seen);
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_switched_off_or_put_elsewhere_and_warns_on_the_terminal() {
    let rig = Rig::new();
    let off = rig
        .talaria(&["run", "-c", "pass"])
        .env("TALARIA_AUDIT_ENABLED", "off")
        .output();
    assert_eq!(texts(&off.unwrap()).1, "");
    assert!(!rig.path(".local").exists());
    let (_, errors) = rig.says(&["log"]);
    assert!(errors.contains("nothing is recorded in"), "{errors}");
    let elsewhere = rig
        .talaria(&["run", "-c", "pass"])
        .env("TALARIA_AUDIT_FOLDER", "~/mine")
        .output();
    assert_eq!(texts(&elsewhere.unwrap()).1, "");
    assert_eq!(lines(&rig.path("mine")).len(), 2);
    std::fs::File::create(rig.path("file"))
        .unwrap()
        .write_all(b"in the way")
        .unwrap();
    let broken = rig
        .talaria(&["run", "-c", "print(5)", "-c", "print(6)"])
        .env("TALARIA_AUDIT_FOLDER", "~/file")
        .output();
    let (shown, errors) = texts(&broken.unwrap());
    assert_eq!(shown, "5\n6\n");
    assert_eq!(errors.matches("WARN").count(), 1, "{errors}");
    assert_eq!(errors.matches("notice: ").count(), 1, "{errors}");
}
