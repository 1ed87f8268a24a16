//! Links that break.

use std::sync::atomic::Ordering;
use std::time::Duration;

use talaria_broker::backends::{BackendError, TargetState};
use talaria_broker::file_rpc::Transport;
use talaria_broker::link::{Link, LinkError};

use crate::rig::{Rig, bounded, wait_until};

/// Lease of sessions that are given up.
const SHORT_LEASE: Duration = Duration::from_secs(4);

/// Threads that call and print, while the process that carries it is killed again and again.
async fn nothing_is_lost_or_doubled(transport: Transport, kills: u64, calls: u64) {
    let rig = Rig::new(transport).await.kernel().await;
    let source = format!(
        "
import threading
from hermes_tools import call
def work(who):
    for n in range({calls}):
        name = '%d-%d' % (who, n)
        answer = call('make', size=150000) if n % 50 == 7 else call('echo', name=name)
        assert answer == {{'name': name}} or len(answer['text']) == 150000, answer
        lock.acquire()
        print('line', name, flush=True)
        lock.release()
lock = threading.Lock()
threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('end')
"
    );
    let killer = async {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..kills {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            tokio::time::sleep(Duration::from_millis(random % 120)).await;
            rig.target.cut();
        }
    };
    let (ran, ()) = tokio::join!(rig.run(&source), killer);
    let (output, done) = ran;
    assert_eq!(done.why, "done");
    let mut lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.pop(), Some("end"), "{:?}", done.result);
    // Every line once.
    let mut expected = Vec::new();
    for who in 0..4 {
        for n in 0..calls {
            expected.push(format!("line {who}-{n}"));
            if n % 50 != 7 {
                assert_eq!(rig.tools.count(&format!("echo {who}-{n}")), 1, "{who}-{n}");
            }
        }
    }
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(rig.tools.count("make "), 4 * ((calls + 42) / 50));
    assert!(rig.link.relinks().count > 0);
    let (output, _) = rig.run("print('after')").await;
    assert_eq!(output, "after\n");
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_over_streams() {
    nothing_is_lost_or_doubled(Transport::Stream, 50, 250).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_in_looks() {
    nothing_is_lost_or_doubled(Transport::Polled, 25, 10).await;
}

async fn large_bodies_survive(transport: Transport) {
    let rig = Rig::new(transport).await.kernel().await;
    let source = "
from hermes_tools import call
for n in range(3):
    size = 9 << 20
    assert call('measure', text='x' * size) == {'size': size, 'same': True}
    assert call('make', size=size)['text'] == 'y' * size
print('end')
";
    let killer = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            rig.target.cut();
        }
    };
    let (ran, ()) = tokio::join!(rig.run(source), killer);
    assert_eq!(ran.0, "end\n", "{:?}", ran.1.result);
    assert_eq!(rig.tools.count("measure "), 3);
    assert_eq!(rig.tools.count("make "), 3);
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_survive_over_streams() {
    large_bodies_survive(Transport::Stream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_survive_in_looks() {
    large_bodies_survive(Transport::Polled).await;
}

/// What a session comes to when its target says so after the link was cut.
async fn end_of(transport: Transport, state: TargetState) -> String {
    let rig = Rig::with(transport, |start| start.lease = SHORT_LEASE).await;
    let rig = rig.unwrap().kernel().await;
    let ended = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        *rig.target.state.lock().unwrap() = Some(state);
        *rig.target.refusal.lock().unwrap() = Some(BackendError::Unreachable {
            target: "exec:test".to_owned(),
            reason: "no way".to_owned(),
            advice: "wait".to_owned(),
        });
        rig.target.cut();
    };
    let run = rig.run_to_error("import time\ntime.sleep(1000)");
    let (error, ()) = tokio::join!(run, ended);
    let said = rig.link.send(talaria_broker::link::LinkCommand::EndKernel);
    let said = said.unwrap_err().to_string();
    *rig.target.refusal.lock().unwrap() = None;
    *rig.target.state.lock().unwrap() = None;
    rig.expire().await;
    assert!(!error.is_empty());
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_gone_ends_the_link_at_once() {
    for transport in [Transport::Stream, Transport::Polled] {
        let said = end_of(transport, TargetState::Gone("it was removed; start another".to_owned())).await;
        assert_eq!(
            said,
            "the session on exec:test has ended: it was removed; start another"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_was_started_anew_ends_the_link() {
    let state = TargetState::Running {
        incarnation: "another".to_owned(),
        machine: String::new(),
    };
    let said = end_of(Transport::Stream, state).await;
    assert!(said.contains("it was started anew"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_does_not_come_back_is_given_up() {
    for transport in [Transport::Stream, Transport::Polled] {
        let rig = Rig::with(transport, |start| {
            start.reconnect_timeout = Duration::from_millis(700);
            start.lease = SHORT_LEASE;
        })
        .await;
        let rig = rig.unwrap();
        *rig.target.refusal.lock().unwrap() = Some(BackendError::Unreachable {
            target: "exec:test".to_owned(),
            reason: "no way".to_owned(),
            advice: "wait".to_owned(),
        });
        rig.target.cut();
        if transport == Transport::Polled {
            rig.link.send(talaria_broker::link::LinkCommand::StopJob(1)).unwrap();
        }
        let said = loop {
            match bounded(rig.link.next()).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(said, LinkError::Lost { .. }), "{said}");
        assert_eq!(
            said.to_string(),
            "the connection to exec:test was lost and did not come back within 0.7s: exec:test cannot be reached: no way; wait; what ran there may go on until its lease runs out, and ends then: look before you run it again"
        );
        rig.expire().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_stands_still_is_waited_for() {
    let rig = Rig::with(Transport::Stream, |start| {
        start.reconnect_timeout = Duration::from_secs(60)
    })
    .await;
    let rig = rig.unwrap().kernel().await;
    *rig.target.state.lock().unwrap() = Some(TargetState::Paused);
    rig.target.cut();
    let wait = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        *rig.target.state.lock().unwrap() = None;
    };
    let (ran, ()) = tokio::join!(rig.run("print('here')"), wait);
    assert_eq!(ran.0, "here\n");
    assert_eq!(rig.link.relinks().count, 1);
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_stopped_holds_up_nothing() {
    let rig = Rig::new(Transport::Stream).await.kernel().await;
    // Only later relays have the folder on their command line.
    rig.target.cut();
    assert_eq!(rig.run("print('one')").await.0, "one\n");
    let relays = rig.relays();
    assert_eq!(relays.len(), 1);
    rustix::process::kill_process(relays[0], rustix::process::Signal::STOP).unwrap();
    assert_eq!(rig.run("print('two')").await.0, "two\n");
    rig.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_dropped_ends_the_session_and_its_calls() {
    let rig = Rig::new(Transport::Stream).await.kernel().await;
    let folder = std::path::PathBuf::from(rig.link.folder());
    {
        let run = rig.run("import hermes_tools\nhermes_tools.call('wait')");
        let started = wait_until("the call runs", || rig.tools.count("wait ") == 1);
        tokio::select! {
            _ = run => panic!("it cannot end"),
            () = started => {}
        }
    }
    let tools = rig.tools.clone();
    let scratch = rig.scratch;
    drop((rig.agent, rig.link));
    wait_until("the call is cancelled", || tools.cancelled.load(Ordering::Relaxed) == 1).await;
    wait_until("the session is gone", || !folder.exists()).await;
    drop(scratch);
}
