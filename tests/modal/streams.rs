//! Streams that are cut, connections that break, a worker that moves: nothing is lost, and nothing is done twice.

use serde_json::json;
use talaria_broker::backends::{BackendError, Command, Process, ProcessEnd};
use talaria_broker::session::Cell;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::Rig;
use crate::sessions::{BUSY, Notes, nothing_was_lost, noting, succeeded};

fn command(words: &[&str]) -> Command {
    Command {
        program: words[0].into(),
        arguments: words[1..].iter().map(Into::into).collect(),
        environment: Default::default(),
        folder: None,
        input: Default::default(),
    }
}

/// Bytes in which no part is like another.
fn data(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Sends bytes to a process and takes what comes back, both at once.
async fn exchange(process: Process, sent: &[u8]) -> (Vec<u8>, ProcessEnd) {
    let Process {
        mut stdin,
        mut stdout,
        mut end,
        ..
    } = process;
    let mut got = Vec::new();
    let write = async {
        stdin.write_all(sent).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let (read, ()) = tokio::join!(stdout.read_to_end(&mut got), write);
    read.unwrap();
    (got, end.wait().await)
}

#[test]
fn streams_that_are_cut_lose_nothing_and_double_nothing() {
    cut_streams(150);
}

#[test]
#[ignore = "as many cuts as are promised take their time"]
fn a_thousand_cuts_lose_nothing_and_double_nothing() {
    cut_streams(1000);
}

fn cut_streams(least: usize) {
    let Some(rig) = Rig::new() else { return };
    let notes = Notes::new();
    let session = rig.session_with(|options| {
        options.host = notes.clone();
        options.limits.max_stdout_bytes = 1 << 20;
    });
    session.ok("pass");
    rig.modal.faults(json!([
        {"fault": "cut", "stream": "stdout", "after": 200},
        {"fault": "cut", "stream": "stdin", "after": 150},
    ]));
    // Only what is opened from now on is cut.
    rig.modal
        .ask("POST", "/connections/break", Some(json!({"which": "router"})));
    let (mut cuts, mut rounds) = (0, 0);
    while cuts < least {
        let from = rounds * 200;
        let outcome = session.run(Cell::new(format!(
            "from hermes_tools import note\nfrom concurrent.futures import ThreadPoolExecutor\n\
             with ThreadPoolExecutor(4) as pool:\n    for n in pool.map(note, range({from}, {from} + 200)): print(n['value'], 'x' * 300)"
        )));
        let expected: String = (from..from + 200)
            .map(|n| format!("{n} {}\n", "x".repeat(300)))
            .collect();
        // It happened below the link.
        assert_eq!((outcome.tool_calls_made, outcome.notice.clone()), (200, None));
        assert!(succeeded(outcome) == expected);
        rounds += 1;
        cuts = rig.modal.calls("TaskExecStdioRead").len() + rig.modal.calls("TaskExecStdinWriteStream").len();
    }
    assert_eq!(notes.numbers(), (0..rounds * 200).collect::<Vec<_>>());
    assert_eq!(rig.modal.calls("TaskExecStart").len(), 1);
    rig.end();
}

#[test]
fn bytes_pass_whole_both_ways_whatever_is_cut() {
    let Some(rig) = Rig::new() else { return };
    let target = rig.open(rig.options()).unwrap();
    for (faults, length) in [
        (json!([]), 24 << 20),
        (json!([{"fault": "cut", "stream": "stdin", "after": 100_000}]), 3 << 20),
        (json!([{"fault": "cut", "stream": "stdout", "after": 70_001}]), 3 << 20),
        (
            json!([
                {"fault": "cut", "stream": "stdin", "after": 65_536, "how": "disconnect", "count": 5},
                {"fault": "cut", "stream": "stdout", "after": 50_000, "how": "UNAVAILABLE"},
            ]),
            1 << 20,
        ),
        // No stream comes to stand: each piece is a call of its own.
        (json!([{"fault": "cut", "stream": "stdin", "after": 0}]), 1 << 20),
    ] {
        rig.modal.faults(faults.clone());
        let sent = data(length);
        let process = rig.wait_for(target.spawn(command(&["cat"]))).unwrap();
        let (got, end) = rig.wait_for(exchange(process, &sent));
        assert_eq!((got.len(), end), (sent.len(), ProcessEnd::Code(0)), "{faults}");
        assert!(got == sent, "{faults}");
    }
    rig.wait_for(target.close()).unwrap();
    rig.end();
}

#[test]
fn one_output_that_nobody_reads_holds_up_no_other() {
    let Some(rig) = Rig::new() else { return };
    let target = rig.open(rig.options()).unwrap();
    let flood = rig
        .wait_for(target.spawn(command(&["head", "-c", "300000000", "/dev/zero"])))
        .unwrap();
    for number in 0..8 {
        let process = rig.wait_for(target.spawn(command(&["cat"]))).unwrap();
        let sent = data(200_000 + number);
        let (got, end) = rig.wait_for(exchange(process, &sent));
        assert!(got == sent && end == ProcessEnd::Code(0));
    }
    drop(flood);
    rig.wait_for(target.close()).unwrap();
    rig.end();
}

#[test]
fn ends_of_processes_are_told_apart() {
    let Some(rig) = Rig::new() else { return };
    let target = rig.open(rig.options()).unwrap();
    for (words, end) in [
        (&["true"][..], ProcessEnd::Code(0)),
        (&["sh", "-c", "exit 42"], ProcessEnd::Code(42)),
        (&["sh", "-c", "kill -TERM $$"], ProcessEnd::Signal(15)),
    ] {
        let process = rig.wait_for(target.spawn(command(words))).unwrap();
        assert_eq!(rig.wait_for(exchange(process, b"")).1, end, "{words:?}");
    }
    // A process whose holder is gone is told that its input has ended.
    let mut process = rig.wait_for(target.spawn(command(&["cat"]))).unwrap();
    process.end.kill();
    assert_eq!(rig.wait_for(process.end.wait()), ProcessEnd::Code(0));
    let missing = rig.wait_for(target.spawn(command(&["/no/such/program"])));
    assert!(matches!(missing, Err(BackendError::NoProgram { .. })));
    let long = "x".repeat(70_000);
    let refused = rig.wait_for(target.spawn(command(&["echo", &long])));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("65536"), "{error}");
    rig.wait_for(target.close()).unwrap();
    rig.end();
}

#[test]
fn a_cell_goes_on_whatever_becomes_of_the_way_to_the_worker() {
    let Some(rig) = Rig::new() else { return };
    let mut notes = None;
    let session = rig.session_with(|options| notes = Some(noting(options)));
    session.ok("pass");
    let running = session.start(Cell::new(BUSY));
    for step in 0..4 {
        crate::rig::pause(400);
        match step {
            0 => rig
                .modal
                .ask("POST", "/connections/break", Some(json!({"which": "router"}))),
            1 => rig.modal.ask("POST", "/router/move", None),
            2 => {
                rig.modal.faults(json!([{"fault": "down", "which": "router"}]));
                rig.modal
                    .ask("POST", "/connections/break", Some(json!({"which": "router"})))
            }
            _ => {
                rig.modal.faults(json!([]));
                rig.modal
                    .ask("POST", "/connections/break", Some(json!({"which": "control"})))
            }
        };
    }
    nothing_was_lost(running.wait(), &notes.unwrap());
    rig.end();
}

#[test]
fn tokens_that_end_are_renewed() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([{"fault": "jwt", "of": "both", "seconds": 1}]));
    let session = rig.session();
    session.ok("x = 1");
    let break_off = || {
        rig.modal
            .ask("POST", "/connections/break", Some(json!({"which": "router"})))
    };
    for _ in 0..2 {
        crate::rig::pause(1200);
        break_off();
        assert_eq!(session.ok("print(x)"), "1\n");
    }
    assert!(rig.modal.calls("AuthTokenGet").len() > 1);
    assert!(rig.modal.calls("SandboxGetCommandRouterAccess").len() > 1);
    // A refusal is met as well as foreseen.
    rig.modal
        .faults(json!([{"fault": "status", "method": "TaskExec*", "code": "UNAUTHENTICATED", "count": 2}]));
    break_off();
    assert_eq!(session.ok("print(x)"), "1\n");
    rig.end();
}
