//! What happens when client or server go, and what else is written to the standard output.

use serde_json::json;

use crate::client::{Client, mark, sleeper, sleeps, until};

#[test]
fn a_client_that_goes_takes_its_scripts_with_it() {
    let mut client = Client::ready();
    let (waited, running, background) = (mark(), mark(), mark());
    client.execute(json!({"code": format!("import subprocess\nsubprocess.Popen(['sleep', '{background}'])")}));
    client.execute(json!({"code": sleeper(&running), "wait": 0}));
    client.send_call("execute_code", json!({"code": sleeper(&waited)}));
    until("both run", || sleeps(&waited) && sleeps(&running));
    let (code, folder) = client.leave();
    assert_eq!(code, Some(0));
    for mark in [waited, running, background] {
        assert!(!sleeps(&mark), "a process is left");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(left.iter().all(|name| name == "hermes"), "{left:?}");
}

#[test]
fn a_detached_script_outlives_its_client() {
    let mut client = Client::ready();
    let code = "import time\ntime.sleep(1)\nopen('done', 'w').write('yes')";
    client.execute(json!({"code": code, "detach": true, "wait": 0}));
    let (code, folder) = client.leave();
    assert_eq!(code, Some(0));
    assert_eq!(std::fs::read_to_string(folder.path().join("done")).unwrap(), "yes");
}

#[test]
fn a_server_that_is_killed_leaves_no_process() {
    let mut client = Client::ready();
    let mark = mark();
    client.send_call("execute_code", json!({"code": sleeper(&mark)}));
    until("the script begins", || sleeps(&mark));
    client.child.kill().unwrap();
    until("its processes end", || !sleeps(&mark));
}

#[test]
fn a_server_that_is_told_to_end_ends_even_what_is_detached() {
    let mut client = Client::ready();
    let mark = mark();
    client.execute(json!({"code": sleeper(&mark), "wait": 0, "detach": true}));
    until("the script begins", || sleeps(&mark));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(client.child.id().cast_signed()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    until("the server ends", || client.child.try_wait().unwrap().is_some());
    assert!(!sleeps(&mark), "a process is left");
}

#[test]
fn nothing_but_the_protocol_is_written_whatever_children_do() {
    let mut client = Client::ready();
    let code = r"
import os, subprocess, sys
os.write(1, b'by hand\n')
subprocess.run(['sh', '-c', 'echo by a child; echo by a child >&2'])
from hermes_tools import terminal
terminal('echo by a command; echo once more > /dev/stdout')
server = os.getppid()
while server > 1:
    status = dict(line.split(':', 1) for line in open('/proc/%d/status' % server))
    if status['Name'].strip() == 'talaria':
        break
    server = int(status['PPid'])
for number in (0, 1):
    try:
        fd = os.open('/proc/%d/fd/%d' % (server, number), os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b'into the stream\n')
    except OSError:
        pass
print('found', server > 1)
";
    // `next_message` fails on every line that is none of the protocol.
    let told = client.print(code);
    assert!(told.contains("found True"), "{told}");
    assert_eq!(client.print("print('after')"), "after\n");
    assert!(client.unasked.is_empty());
}

#[test]
fn a_script_finds_no_input_of_the_server() {
    let mut client = Client::ready();
    let told = client.print("import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)");
    assert_eq!(told, "b''\n");
}

#[test]
fn a_default_target_that_is_none_is_said_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let output = crate::client::server(folder.path())
        .args(["--on", "nowhere"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere"));
}

#[test]
fn the_agent_loop_of_the_examples_comes_to_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.md"), "the cat the dog\n").unwrap();
    std::fs::write(folder.path().join("b.md"), "The end\n").unwrap();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/agent_loop.py");
    let output = std::process::Command::new("python3")
        .args([example, env!("CARGO_BIN_EXE_talaria")])
        .current_dir(folder.path())
        .env("PWD", folder.path())
        .env("HERMES_HOME", folder.path().join("hermes"))
        .env("XDG_CONFIG_HOME", folder.path().join("config"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer = said.lines().last().unwrap();
    assert!(
        answer.starts_with("answer 4 different words; most frequent: [('the', 3)"),
        "{said}"
    );
    assert!(said.contains("result error"), "{said}");
}

#[test]
#[ignore = "10,000 calls take a minute"]
fn memory_and_descriptors_stay_as_they_are() {
    let mut client = Client::ready();
    let mut seen = Vec::new();
    for number in 1..=10_000 {
        let key = format!("key-{number}");
        client.execute(json!({"code": "print('x' * 1000)", "idempotency_key": key}));
        if number == 1_000 || number == 10_000 {
            let process = std::path::Path::new("/proc").join(client.child.id().to_string());
            let status = std::fs::read_to_string(process.join("status")).unwrap();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            let kibibytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
            seen.push((kibibytes, std::fs::read_dir(process.join("fd")).unwrap().count()));
        }
    }
    assert!(seen[1].0 < seen[0].0 + 5 * 1024, "KiB and descriptors: {seen:?}");
    assert!(seen[1].1 <= seen[0].1, "KiB and descriptors: {seen:?}");
}
