//! Disks of the host that run nothing, take nothing or are full: what it has instead of them is seen by its logins alone.

use talaria_broker::outcome::Status;

use crate::rig::Rig;
use crate::sessions::succeeded;

/// Places that a session may use, in the rig's folder where they begin with no slash.
const PLACES: [&str; 5] = ["/tmp", "/var/tmp", "/dev/shm", "home", "there"];

/// Commands that mount something else on places: options of `mount`, or `full`.
fn view(what: impl Fn(&str) -> Option<&'static str>) -> String {
    let mut text = "set -e; f=$1; \
        put() { case $2 in full) o=size=64k ;; ro) o=mode=1777 ;; *) o=$2 ;; esac; mount -t tmpfs -o mode=1777,$o x \"$1\"; }; \
        close() { case $2 in full) dd if=/dev/zero of=\"$1/fill\" bs=1k 2>/dev/null || : ;; \
        ro) mount -o remount,ro \"$1\" ;; esac; }; "
        .to_owned();
    // The rig's own folder lies in the first of them.
    if let Some(how) = what("/tmp") {
        text.push_str(&format!(
            "mkdir \"$f/view\"; put \"$f/view\" {how}; mkdir \"$f/view/${{f##*/}}\"; mount --bind \"$f\" \"$f/view/${{f##*/}}\"; \
             close \"$f/view\" {how}; mount --move \"$f/view\" /tmp; "
        ));
    }
    for place in &PLACES[1..] {
        let path = if place.starts_with('/') {
            (*place).to_owned()
        } else {
            format!("$f/{place}")
        };
        if let Some(how) = what(place) {
            text.push_str(&format!("put \"{path}\" {how}; close \"{path}\" {how}; "));
        }
    }
    text + "set +e; :"
}

/// What sessions have left in places that are the rig's alone, as the host sees them.
fn left(rig: &Rig, places: &[&str]) -> Vec<String> {
    let mut left = Vec::new();
    for place in places {
        let place = if place.starts_with('/') {
            (*place).to_owned()
        } else {
            rig.path(place).display().to_string()
        };
        for entry in std::fs::read_dir(rig.seen_there(&place)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with("talaria-") {
                left.push(entry.path().display().to_string());
            }
        }
    }
    left
}

/// Uses all that a session has; prints what failed, and how.
const ALL: &str = r#"
import os, subprocess, sys
from hermes_tools import *
assert os.getcwd() == os.path.expanduser("~")
child = "from hermes_tools import read_file; print(read_file('/etc/passwd')['total_lines'] > 0)"
assert subprocess.check_output([sys.executable, "-c", child]) == b"True\n"
assert terminal("echo $((6 * 7)); pwd")["output"] == "42\n" + os.getcwd() + "\n"
assert read_file("/etc/passwd")["content"] and search_files("root", path="/etc/passwd")["matches"]
print(write_file("~/written", "text").get("error"))
"#;

#[test]
fn disks_that_run_nothing_or_take_nothing() {
    for (what, places, words) in [
        ("noexec", &PLACES[..], "None"),
        ("ro", &["home"], "the file system is read-only; choose another place"),
        ("full", &["home"], "the disk or the user's quota is full; free space"),
        ("ro", &["/tmp", "/var/tmp"], "None"),
        ("full", &["/tmp", "/dev/shm", "there"], "None"),
    ] {
        let Some(rig) = Rig::with_view(view(|place| places.contains(&place).then_some(what))) else {
            return;
        };
        let session = rig.open(rig.options());
        let printed = session.ok(ALL);
        assert!(printed.contains(words), "{what} {places:?}: {printed}");
        rig.close();
        assert_eq!(left(&rig, places), Vec::<String>::new(), "{what} {places:?}");
    }
}

#[test]
fn a_host_without_a_place_to_write_says_so() {
    for (what, words) in [("ro", "Read-only file system"), ("full", "No space left on device")] {
        let Some(rig) = Rig::with_view(view(|_| Some(what))) else {
            return;
        };
        let error = rig.open(rig.options()).cell("print('ran')").error.unwrap();
        for place in ["/tmp", "/var/tmp", "/dev/shm"] {
            assert!(error.contains(&format!("{place} ({words})")), "{error}");
        }
        assert!(
            error.contains("free space there, or set TMPDIR on the target"),
            "{error}"
        );
        assert!(!error.contains("/run/talaria"), "{error}");
        rig.close();
        assert_eq!(left(&rig, &PLACES), Vec::<String>::new());
    }
}

/// Takes all the room there is, as others do, or a quota that is reached; and gives it back.
const FILL: &str = r#"
import os
def taken(path):
    try:
        with open(path + "/fill", "wb", 0) as file:
            while True: file.write(b"x" * 4096)
    except OSError as error: return error.strerror
"#;

#[test]
fn a_disk_that_is_full_in_the_midst_of_a_session() {
    let Some(rig) = Rig::with_view(view(|_| Some("size=1m"))) else {
        return;
    };
    let session = rig.open(rig.options());
    let places = PLACES.map(|place| {
        if place.starts_with('/') {
            place.to_owned()
        } else {
            rig.path(place).display().to_string()
        }
    });
    session.ok(&format!("kept = 'kept'\n{FILL}\nplaces = {places:?}"));
    // What is full while it runs: all that it prints comes, and its calls say what is wrong.
    let outcome = session.cell(
        "from hermes_tools import write_file\nfor place in places: assert taken(place) == 'No space left on device'\n\
         print(write_file('more', 'x' * 100000).get('error'))\nfor n in range(2000): print('line', n)",
    );
    let printed = succeeded(outcome);
    let (first, rest) = printed.split_once('\n').unwrap();
    assert!(
        first.contains("is full; free space") || first.contains("No space left"),
        "{first}"
    );
    assert!(rest == (0..2000).map(|n| format!("line {n}\n")).collect::<String>());
    let refused = session.cell("print('ran')");
    assert_eq!(
        (refused.status, refused.output.as_str()),
        (Status::Error, ""),
        "{refused:#?}"
    );
    let error = refused.error.unwrap();
    assert!(
        error.contains("No space left on device") && error.contains("free space there"),
        "{error}"
    );
    for place in &places {
        let _ = std::fs::remove_file(rig.seen_there(place).join("fill"));
    }
    assert_eq!(
        session.ok("print(kept, write_file('more', 'x')['bytes_written'])"),
        "kept 1\n"
    );
    rig.close();
    assert_eq!(left(&rig, &PLACES), Vec::<String>::new());
}
