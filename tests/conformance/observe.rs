//! Looks at processes from outside: who is there, who belongs to a test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its number.
    pub(crate) pid: i32,
    /// Its command line, the arguments separated by blanks.
    pub(crate) command: String,
}

/// Every living process whose environment, command line or working directory holds `mark`.
pub(crate) fn with_mark(mark: &str) -> Vec<Seen> {
    processes(|folder| {
        ["environ", "cmdline"].iter().any(|name| {
            let bytes = std::fs::read(folder.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(mark)
        }) || std::fs::read_link(folder.join("cwd")).is_ok_and(|path| path.to_string_lossy().contains(mark))
    })
}

fn processes(is_meant: impl Fn(&PathBuf) -> bool) -> Vec<Seen> {
    let own = i32::try_from(std::process::id()).unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own && is_alive(*pid))
        .map(|pid: i32| (pid, PathBuf::from(format!("/proc/{pid}"))))
        .filter(|(_, folder)| is_meant(folder))
        .map(|(pid, folder)| {
            let command = std::fs::read(folder.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            Seen { pid, command }
        })
        .collect()
}

/// The number here of a process that a target calls by a number of its own; `printed` is that number and what
/// `/proc/self/ns/pid` says there. 0, which is nobody's, where there is no such process any more.
pub(crate) fn number_here(printed: &str) -> i32 {
    let mut words = printed.split_whitespace();
    let (Some(number), Some(namespace)) = (words.next(), words.next()) else {
        panic!("this is no number and its namespace: {printed:?}");
    };
    let is_in = |pid: &str| {
        std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link.to_str() == Some(namespace))
    };
    if is_in("self") {
        return number.parse().unwrap();
    }
    let is_it = |folder: &PathBuf| {
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|line| line.split_whitespace().next_back()) == Some(number)
            && is_in(&folder.file_name().unwrap_or_default().to_string_lossy())
    };
    processes(is_it).first().map_or(0, |seen| seen.pid)
}

/// A path as this process sees it that a process, given by its number here, sees as `path`.
pub(crate) fn seen_from(pid: i32, path: &str) -> PathBuf {
    let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    if space(&pid.to_string()) == space("self") {
        PathBuf::from(path)
    } else {
        PathBuf::from(format!("/proc/{pid}/root{path}"))
    }
}

/// Whether a process runs (a zombie does not).
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// Kibibytes of a line of `/proc/PID/status`, for instance `VmHWM`.
pub(crate) fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Ends processes of a test that should have ended by themselves.
pub(crate) fn kill(processes: &[Seen]) {
    for seen in processes {
        if let Some(pid) = Pid::from_raw(seen.pid) {
            // It may be gone by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Waits until something holds; whether it came to hold within the limit.
pub(crate) fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
