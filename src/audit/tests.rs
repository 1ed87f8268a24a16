//! The writer and its files, as several brokers use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::files::Files;
use super::*;
use crate::outcome::{Phases, Status};
use crate::output::Masker;

fn settings(folder: &Path) -> Settings {
    Settings {
        folder: folder.join("audit"),
        max_bytes: 20_000,
        keep: 1_000,
        max_age: Duration::from_secs(3600),
        required: false,
    }
}

fn lines(folder: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    for file in in_order(folder).unwrap() {
        for line in fs::read_to_string(file)
            .unwrap()
            .lines()
            .filter(|line| !line.is_empty())
        {
            lines.push(serde_json::from_str(line).unwrap());
        }
    }
    lines
}

fn call(session: &str, number: u64) -> Record {
    let arguments = json!({"path": "x".repeat(number as usize % 300), "number": number});
    let call = CallStart::of("note", arguments.as_object().unwrap(), &Masker::none());
    record(
        session,
        Some(number),
        Event::Call(Box::new(CallEnd::answered(
            Some(call),
            Decision::Allowed,
            Duration::from_millis(2),
            &json!({"content": "abc"}),
        ))),
    )
}

fn record(session: &str, cell: Option<u64>, event: Event) -> Record {
    Record {
        at: SystemTime::now(),
        origin: Arc::new(Origin {
            who: "bob".to_owned(),
            session: session.to_owned(),
            target: "local".to_owned(),
        }),
        cell,
        masker: Masker::none(),
        event,
    }
}

fn script(text: &str) -> Event {
    Event::Start(Script(text.as_bytes().into()))
}

#[tokio::test]
async fn eight_writers_lose_no_line_and_tear_none_while_files_are_rotated() {
    const LINES: u64 = 100;
    let temp = tempfile::tempdir().unwrap();
    let settings = settings(temp.path());
    // Writers of their own, as those of eight processes are.
    let writers: Vec<Arc<writer::Writer>> = (0..8)
        .map(|_| Arc::new(writer::Writer::start(settings.clone())))
        .collect();
    let tasks: Vec<_> = writers
        .iter()
        .enumerate()
        .map(|(index, writer)| {
            let writer = writer.clone();
            tokio::spawn(async move {
                for number in 0..LINES {
                    writer.write(call(&format!("s{index}"), number)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let lines = lines(&settings.folder);
    assert_eq!(lines.len() as u64, 8 * LINES);
    for index in 0..8 {
        let of_one = lines.iter().filter(|line| line.session == format!("s{index}"));
        let numbers: Vec<u64> = of_one.filter_map(|line| line.cell).collect();
        assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "in order");
    }
    let files = in_order(&settings.folder).unwrap();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let found = fs::metadata(&file).unwrap();
        // Those that were about to write when it became full still do.
        assert!(
            found.len() <= settings.max_bytes + 8 * 1_000,
            "{file:?}: {}",
            found.len()
        );
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_torn_line_spoils_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let settings = settings(temp.path());
    let mut files = Files::new(settings.clone());
    files.append(br#"{"event":"one"}"#, None).unwrap();
    let log = in_order(&settings.folder).unwrap().pop().unwrap();
    // As a broker leaves it that is killed, or whose disk is full, in the midst of a line.
    let mut text = fs::read(&log).unwrap();
    text.extend_from_slice(br#"{"event":"to"#);
    fs::write(&log, text).unwrap();
    files.append(br#"{"event":"two"}"#, None).unwrap();
    let text = fs::read_to_string(&log).unwrap();
    assert_eq!(text, "{\"event\":\"one\"}\n{\"event\":\"to\n{\"event\":\"two\"}\n");
}

#[test]
fn a_log_that_is_taken_away_begins_anew() {
    let temp = tempfile::tempdir().unwrap();
    let settings = settings(temp.path());
    let mut files = Files::new(settings.clone());
    files.append(b"one", None).unwrap();
    fs::rename(settings.folder.join("audit.jsonl"), temp.path().join("mine")).unwrap();
    files.append(b"two", None).unwrap();
    fs::remove_dir_all(&settings.folder).unwrap();
    let _ = files.append(b"three", Some(("00", b"pass")));
    files.append(b"four", Some(("00", b"pass"))).unwrap();
    let text = fs::read_to_string(settings.folder.join("audit.jsonl")).unwrap();
    assert!(text.ends_with("four\n") && !text.contains("two"), "{text}");
}

#[test]
fn files_beyond_number_and_age_go_and_scripts_with_their_last_line() {
    let temp = tempfile::tempdir().unwrap();
    let mut settings = settings(temp.path());
    (settings.max_bytes, settings.keep) = (4_096, 2);
    let mut files = Files::new(settings.clone());
    let scripts = settings.folder.join("scripts");
    let kept = |number: u64| scripts.join(format!("{:064x}.py", number)).exists();
    let an_hour_ago = SystemTime::now() - Duration::from_secs(4_000);
    for number in 0..40 {
        let digest = format!("{number:064x}");
        // The first is named by the last line, too.
        let line = if number == 39 {
            format!("{:064x}", 0)
        } else {
            digest.clone()
        };
        let line = format!("{{\"script\":\"{line}\",\"filler\":\"{}\"}}", "x".repeat(900));
        files
            .append(
                line.as_bytes(),
                Some((if number == 39 { &line[11..75] } else { &digest }, b"pass")),
            )
            .unwrap();
        let script = fs::File::open(scripts.join(format!("{digest}.py")));
        if let Ok(script) = script {
            script.set_modified(an_hour_ago).unwrap();
        }
    }
    assert!(!kept(1) && kept(38), "what is named is kept, and nothing else");
    let left = in_order(&settings.folder).unwrap();
    assert_eq!(left.len(), 3, "{left:?}");
    // The older files have come of age.
    for file in &left[..2] {
        fs::File::options()
            .write(true)
            .open(file)
            .unwrap()
            .set_modified(an_hour_ago)
            .unwrap();
    }
    Files::new(settings.clone()).open().unwrap();
    assert_eq!(in_order(&settings.folder).unwrap().len(), 1);
}

#[test]
fn scripts_take_no_more_room_than_the_log_may() {
    let temp = tempfile::tempdir().unwrap();
    let mut settings = settings(temp.path());
    (settings.max_bytes, settings.keep) = (10_000, 2);
    let mut files = Files::new(settings.clone());
    for number in 0..60 {
        let digest = format!("{number:064x}");
        let line = format!("{{\"script\":\"{digest}\"}}");
        files.append(line.as_bytes(), Some((&digest, &[b'x'; 1_500]))).unwrap();
    }
    let kept = fs::read_dir(settings.folder.join("scripts")).unwrap();
    let total: u64 = kept.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(total <= 32_000, "{total}");
}

#[tokio::test]
async fn what_is_masked_is_neither_written_nor_kept() {
    let temp = tempfile::tempdir().unwrap();
    let settings = settings(temp.path());
    let audit = Audit::open(&settings);
    let source = "print('v3ry-s3cret')";
    let with_masker = |event| Record {
        masker: Masker::new(["v3ry-s3cret".to_owned()]).unwrap(),
        ..record("s", Some(1), event)
    };
    audit.record(with_masker(script(source)));
    audit.record(with_masker(Event::Cell(Box::new(CellEnd {
        script: Script(source.as_bytes().into()),
        ran: true,
        status: Status::Error,
        exit_code: Some(1),
        seconds: 0.5,
        phases: Phases::default(),
        tool_calls: 0,
        refused_calls: 0,
        printed: 3,
        error: Some("ValueError: v3ry-s3cret\u{1b}[2J".to_owned()),
    }))));
    audit.flush().await;
    let lines = lines(&settings.folder);
    assert_eq!(lines[1].error.as_deref(), Some("ValueError: ***\\u{1b}[2J"));
    assert!(lines[1].is_failure() && !lines[0].is_failure());
    let digest = of_bytes(source.as_bytes());
    assert_eq!(lines[0].script.as_ref(), Some(&digest));
    let (found, kept) = find_script(&settings.folder, &digest[..8]).unwrap();
    assert_eq!((found, kept), (digest, b"print('***')".to_vec()));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_says_so_and_tells_what_is_missing_when_it_can() {
    let temp = tempfile::tempdir().unwrap();
    let mut settings = settings(temp.path());
    fs::write(&settings.folder, "in the way").unwrap();
    let audit = Audit::open(&settings);
    settings.required = true;
    let required = Audit::open(&settings);
    audit.record(call("s", 1));
    audit.announce(record("s", None, script("pass"))).await.unwrap();
    audit.flush().await;
    assert!(audit.failure().unwrap().contains("cannot be written"));
    assert_eq!(audit.refusal(), None);
    let refusal = required.announce(record("s", None, script("pass"))).await.unwrap_err();
    assert!(
        refusal.contains("audit.folder") && required.refusal().is_some(),
        "{refusal}"
    );
    fs::remove_file(&settings.folder).unwrap();
    audit.record(call("s", 2));
    audit.flush().await;
    assert_eq!(audit.failure(), None);
    let lines = lines(&settings.folder);
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[0].event.as_str(), lines[0].lost), ("gap", Some(2)));
    assert_eq!(lines[1].cell, Some(2));
    required.announce(record("s", None, script("pass"))).await.unwrap();
    assert_eq!(required.refusal(), None);
}

#[test]
fn who_follows_gets_every_line_across_files() {
    let temp = tempfile::tempdir().unwrap();
    let mut settings = settings(temp.path());
    settings.max_bytes = 4_096;
    let mut files = Files::new(settings.clone());
    files.append(b"before", None).unwrap();
    let mut follower = Follower::new(&settings.folder).unwrap();
    let mut seen = Vec::new();
    for number in 0..100 {
        files
            .append(format!("{number} {}", "x".repeat(400)).as_bytes(), None)
            .unwrap();
        seen.extend(follower.read().unwrap());
    }
    let seen = String::from_utf8(seen).unwrap();
    let numbers: Vec<usize> = seen
        .lines()
        .map(|line| line.split_once(' ').unwrap().0.parse().unwrap())
        .collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}
