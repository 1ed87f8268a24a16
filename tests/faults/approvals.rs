//! Calls that somebody has to approve, while the way to the target breaks, and where nothing of ours stays beside a cell.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use talaria_broker::approval::{Action, ApprovalRequest, Approver, Decision, Policy};
use talaria_broker::outcome::Status;
use talaria_broker::session::{Cell, SessionOptions};

use crate::links::kill_the_relay;
use crate::rig::{LIMIT, Rig, succeeded, the_one};

type Harm = Box<dyn Fn() + Send + Sync>;

/// Does some harm, takes its time, and allows.
struct Desk {
    harm: Mutex<Option<Harm>>,
    pause: Duration,
}

#[async_trait]
impl Approver for Desk {
    fn who(&self) -> String {
        "the test".to_owned()
    }

    async fn ask(&self, _request: ApprovalRequest) -> Decision {
        if let Some(harm) = self.harm.lock().unwrap().take() {
            harm();
        }
        tokio::time::sleep(self.pause).await;
        Decision::AllowOnce
    }
}

fn asking(options: &mut SessionOptions, pause: Duration) -> Arc<Desk> {
    let desk = Arc::new(Desk {
        harm: Mutex::default(),
        pause,
    });
    let mut policy = Policy::default();
    policy.set_default("write_file", Action::Ask);
    options.policy = Arc::new(policy);
    options.approver = Some(desk.clone());
    desk
}

const ASKS: &str = "from hermes_tools import write_file\nprint(write_file('/tmp/asked', 'x')['bytes_written'])";

/// A cell that may run for so long.
fn limited(seconds: u64, code: &str) -> Cell {
    let mut cell = Cell::new(code);
    cell.limits.timeout = Some(Duration::from_secs(seconds));
    cell
}

/// The clock stands still on the target, whatever becomes of the way there, and goes on when there is one again.
fn holds(rig: &Rig, options: &mut SessionOptions, image: &str, harm: fn(&str)) {
    options.reconnect_timeout = LIMIT;
    let desk = asking(options, Duration::from_secs(7));
    let session = rig.open(options.clone());
    session.ok("pass");
    let container = the_one(image);
    *desk.harm.lock().unwrap() = Some(Box::new(move || {
        // The hold has to be there first: it is the question's, and not the link's.
        std::thread::sleep(Duration::from_secs(1));
        harm(&container);
    }));
    assert_eq!(succeeded(session.run(limited(5, ASKS))), "1\n");
    assert_eq!(
        session.run(limited(2, "import time\ntime.sleep(600)")).status,
        Status::Timeout
    );
    rig.close();
}

#[test]
fn a_relay_that_is_killed_while_somebody_is_asked_loses_no_hold() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, image) = rig.ours("base");
    holds(&rig, &mut options, &image, |container| {
        for _ in 0..3 {
            kill_the_relay(container);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
}

#[test]
fn the_clock_of_a_cell_that_stands_alone_stands_still_too() {
    let Some(rig) = Rig::new() else { return };
    let (mut options, _) = rig.running_alone("base", &["--pids-limit", "2"]);
    asking(&mut options, Duration::from_secs(4));
    let session = rig.open(options);
    let outcome = session.run(limited(3, ASKS));
    assert_eq!(outcome.kernel.as_ref().unwrap().transport, "alone", "{outcome:#?}");
    assert!(outcome.duration_seconds < 3.0, "{outcome:#?}");
    assert_eq!(succeeded(outcome), "1\n");
    assert_eq!(
        session.run(limited(2, "import time\ntime.sleep(600)")).status,
        Status::Timeout
    );
    rig.close();
}
