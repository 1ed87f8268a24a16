//! What `talaria doctor` tells of a host that SSH reaches.

use serde::Deserialize;
use talaria_broker::backends::Silent;
use talaria_broker::session::{Cell, Session, SessionOptions};

use super::doctor::{Report, passed};

/// Finds out what a user of the host would look at. What cannot be told is left out.
const SURVEY: &str = r#"
import json, os, platform, sys
def told(ask):
    try: return ask()
    except Exception: return None
def room(path):
    found = os.statvfs(path)
    return [path, found.f_bavail * found.f_frsize, bool(found.f_flag & 8), os.access(path, os.W_OK)]
import pwd
entry = told(lambda: pwd.getpwuid(os.getuid()))
home = os.path.expanduser('~')
places = [home, os.environ.get('TMPDIR') or '/tmp', '/dev/shm']
print(json.dumps({
    'system': '%s, %s %s %s' % (platform.node(), platform.system(), platform.release(), platform.machine()),
    'account': '%s (%d), home %s' % (entry.pw_name if entry else 'unnamed', os.getuid(), home),
    'shell': (entry.pw_shell or '/bin/sh') if entry else 'unknown',
    'rooms': [found for found in (told(lambda: room(path)) for path in dict.fromkeys(places)) if found],
    'load': told(os.getloadavg),
    'processors': os.cpu_count() or 1,
}))
"#;

/// Bytes below which a place counts as full: what a session keeps there is small, what scripts write is not.
const LITTLE: u64 = 50 << 20;

#[derive(Deserialize)]
struct Facts {
    system: String,
    account: String,
    shell: String,
    rooms: Vec<Room>,
    load: Option<(f64, f64, f64)>,
    processors: u32,
}

/// A path, the bytes free there, whether programs there are not run, whether it can be written.
#[derive(Deserialize)]
struct Room(String, u64, bool, bool);

/// Logs in and out again; whether that can be done.
pub(super) async fn login(report: &mut Report, options: &SessionOptions) -> bool {
    let target = match options.backend.open(&Silent).await {
        Ok(target) => target,
        Err(error) => {
            report.fault("login", &error.to_string());
            return false;
        }
    };
    for (what, found) in target.about() {
        report.line(what, &found);
    }
    if let Err(error) = target.close().await {
        report.fault("logout", &error.to_string());
    }
    true
}

/// Looks around there.
pub(super) async fn survey(report: &mut Report, session: &Session) {
    let outcome = session.execute(Cell::new(SURVEY)).await;
    if !passed(report, "host", &outcome) {
        return;
    }
    match serde_json::from_str(outcome.output.trim()) {
        Ok(facts) => tell(report, &facts),
        Err(error) => report.fault("host", &format!("it told nothing that can be read: {error}")),
    }
}

fn tell(report: &mut Report, facts: &Facts) {
    report.line("host", &facts.system);
    report.line("account", &facts.account);
    report.line("login shell", &facts.shell);
    for (number, Room(path, free, is_noexec, is_open)) in facts.rooms.iter().enumerate() {
        let what = format!("room in {path}");
        let mut text = format!("{} free", size(*free));
        if *is_noexec {
            text.push_str("; programs there are not run (noexec), which a session does without");
        }
        if !is_open {
            let advice = match number {
                0 => "the account needs a home that it can write, or cwd set to a folder that it can",
                _ => "a session does without, as long as another of these folders can be written",
            };
            text = format!("it cannot be written; {advice}");
            match number {
                0 => report.fault(&what, &text),
                _ => report.line(&what, &text),
            }
        } else if *free < LITTLE {
            report.fault(
                &what,
                &format!("{text}; remove something there, or set TMPDIR there to a folder with more room"),
            );
        } else {
            report.line(&what, &text);
        }
    }
    if let Some((now, _, long)) = facts.load {
        let processors = facts.processors;
        report.line(
            "load",
            &format!("{now:.2} (over a quarter of an hour {long:.2}) on {processors} processors"),
        );
    }
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        small @ 1..10_240 => format!("{small} MiB"),
        large => format!("{} GiB", large >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_full_or_closed_says_what_to_do() {
        let room = |path: &str, free: u64, is_noexec, is_open| Room(path.to_owned(), free, is_noexec, is_open);
        let mut report = Report::default();
        let facts = Facts {
            system: "box, Linux".to_owned(),
            account: "bob (1000), home /home/bob".to_owned(),
            shell: "/usr/bin/fish".to_owned(),
            rooms: vec![
                room("/home/bob", 1 << 40, false, false),
                room("/tmp", 3 << 30, true, true),
                room("/dev/shm", 4096, false, true),
            ],
            load: Some((0.5, 0.4, 12.0)),
            processors: 8,
        };
        tell(&mut report, &facts);
        for line in [
            "FAIL  room in /home/bob: it cannot be written; the account needs a home",
            "ok    room in /tmp: 3072 MiB free; programs there are not run (noexec)",
            "FAIL  room in /dev/shm: 4 KiB free; remove something there",
            "ok    load: 0.50 (over a quarter of an hour 12.00) on 8 processors",
            "ok    login shell: /usr/bin/fish",
        ] {
            assert!(report.text.contains(line), "{line}: {}", report.text);
        }
    }
}
