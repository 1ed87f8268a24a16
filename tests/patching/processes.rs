//! Several processes and one file, here and on another target: those that patch side by side, and those that are killed
//! while they do.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Bounds a hang; says nothing of speed.
const HANG: Duration = Duration::from_secs(60);
const KILLS: u32 = 6;
/// Large enough that writing takes its time.
const FILLER: usize = 4 << 20;

/// Changes the first and the last line of two files, again and again.
const SCRIPT: &str = "
from hermes_tools import patch
number = int(open('a').readline().split()[1])
def section(name):
    hunk = '@@\\n-%s {0}\\n+%s {1}\\n'
    return '*** Update File: %s\\n' % name + hunk % ('head', 'head') + hunk % ('tail', 'tail')
while True:
    result = patch(mode='patch', patch=(section('a') + section('b')).format(number, number + 1))
    assert 'error' not in result, result
    number += 1
";

fn content(number: u32) -> Vec<u8> {
    let filler = "x".repeat(79) + "\n";
    format!("head {number}\n{}tail {number}\n", filler.repeat(FILLER / filler.len())).into_bytes()
}

/// The number of a file that is whole.
fn number_of(path: &Path) -> u32 {
    let found = std::fs::read(path).unwrap();
    let line: Vec<u8> = found.iter().copied().take_while(|byte| *byte != b'\n').collect();
    let number = String::from_utf8(line).unwrap()[5..].parse().unwrap();
    assert!(found == content(number), "{} is not whole", path.display());
    number
}

fn talaria(target: &str, folder: &Path, script: &str) -> Child {
    command(target, folder, script).spawn().unwrap()
}

fn command(target: &str, folder: &Path, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
    command
        .args(["run", "--on", target, "--max-tool-calls", "1000000", "-c", script])
        .current_dir(folder.join("work"))
        .env("TMPDIR", folder.join("tmp"))
        .env("XDG_RUNTIME_DIR", folder.join("tmp"))
        .env("HOME", folder)
        .env("TALARIA_CODE_EXECUTION_LEASE", "3s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "1s")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    command
}

/// Processes of a test, by the folder in their environment.
fn processes(folder: &Path) -> Vec<rustix::process::Pid> {
    let mark = folder.to_str().unwrap().as_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|part| part == mark)
        })
        .filter_map(|entry| rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

fn until(what: &str, is_true: impl Fn() -> bool) {
    let end = Instant::now() + HANG;
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is in the folder that is worked in.
fn names(work: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(work).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Two files to patch, in a folder of their own beside one for sessions.
fn two_files() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("kills-").tempdir().unwrap();
    let work = folder.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(folder.path().join("tmp")).unwrap();
    for name in ["a", "b"] {
        std::fs::write(work.join(name), content(0)).unwrap();
    }
    folder
}

/// Kills what patches, `KILLS` times, each time a little later.
fn kill_again_and_again(target: &str, kills_all: bool) {
    let folder = two_files();
    let work = folder.path().join("work");
    let (a, b) = (work.join("a"), work.join("b"));
    for round in 0..KILLS {
        let before = number_of(&a);
        let mut broker = talaria(target, folder.path(), SCRIPT);
        // Whoever reads meanwhile finds whole files too.
        until("nothing was patched", || {
            number_of(&a) > before + 2 && number_of(&b) > before + 2
        });
        std::thread::sleep(Duration::from_millis(u64::from(7 * round)));
        if kills_all {
            for process in processes(folder.path()) {
                // One that has just ended is none to kill.
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
        }
        let _ = broker.kill();
        broker.wait().unwrap();
        until("processes are left", || processes(folder.path()).is_empty());
        if !kills_all {
            until("files are left beside", || names(&work) == ["a", "b"]);
        }
        let (one, other) = (number_of(&a), number_of(&b));
        assert!(one.abs_diff(other) <= 1, "{one} {other}");
        // Not all or none, where a kill comes between: what follows starts from one state.
        std::fs::copy(&a, &b).unwrap();
    }
    // The next patch removes what was left beside.
    for entry in std::fs::read_dir(&work).unwrap().flatten() {
        let file = File::options().write(true).open(entry.path()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
    }
    let last = "from hermes_tools import patch\nprint(patch('b', 'tail', 'tail '))";
    assert!(talaria(target, folder.path(), last).wait().unwrap().success());
    assert_eq!(names(&work), ["a", "b"]);
}

/// Ends the session, `KILLS` times, while a patch is being made.
fn end_again_and_again(target: &str) {
    let folder = two_files();
    let work = folder.path().join("work");
    for _ in 0..KILLS {
        let mut broker = talaria(target, folder.path(), SCRIPT);
        until("nothing was patched", || names(&work).len() > 2);
        let pid = rustix::process::Pid::from_child(&broker);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        broker.wait().unwrap();
        until("processes are left", || processes(folder.path()).is_empty());
        assert_eq!(names(&work), ["a", "b"]);
        assert_eq!(number_of(&work.join("a")), number_of(&work.join("b")), "all or none");
    }
}

#[test]
fn a_session_that_ends_while_it_patches_leaves_nothing_half_done() {
    end_again_and_again("exec:");
    end_again_and_again("local");
}

#[test]
fn a_broker_killed_while_it_patches_leaves_whole_files() {
    kill_again_and_again("local", false);
}

#[test]
fn a_target_killed_while_it_patches_leaves_whole_files() {
    kill_again_and_again("exec:", true);
}

/// Each changes its own lines of one file; NAME is who it is.
const SIDE_BY_SIDE: &str = "
from hermes_tools import patch
for number in range(25):
    line = 'NAME %02d;' % number
    result = patch('f', line, 'done ' + line)
    assert 'error' not in result or 'meanwhile' in result['error'], result
    print('done' if 'error' not in result else 'not done', line)
";

#[test]
fn brokers_that_patch_one_file_side_by_side_lose_nothing() {
    let folder = tempfile::Builder::new().prefix("kills-").tempdir().unwrap();
    let (work, tmp) = (folder.path().join("work"), folder.path().join("tmp"));
    std::fs::create_dir(&work).unwrap();
    std::fs::create_dir(&tmp).unwrap();
    let names = ["one", "two", "six"];
    let lines = names.map(|name| {
        (0..25)
            .map(|number| format!("{name} {number:02};\n"))
            .collect::<String>()
    });
    std::fs::write(work.join("f"), lines.concat()).unwrap();
    let brokers = names.map(|name| {
        let target = if name == "two" { "exec:" } else { "local" };
        command(target, folder.path(), &SIDE_BY_SIDE.replace("NAME", name))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let said: String = brokers
        .map(|broker| {
            let output = broker.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
        .concat();
    let text = std::fs::read_to_string(work.join("f")).unwrap();
    assert_eq!((said.lines().count(), text.lines().count()), (75, 75));
    for line in said.lines() {
        let landed = line.strip_prefix("not ").unwrap_or(line);
        assert_eq!(
            text.lines().any(|found| found == landed),
            !line.starts_with("not "),
            "{line}"
        );
    }
    until("processes are left", || processes(folder.path()).is_empty());
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1);
}
