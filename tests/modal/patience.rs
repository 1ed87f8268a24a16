//! What is waited for before a sandbox is there: told to whoever waits, ended by whoever cancels, and leaving nothing.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::backends::modal::gateway::{GatewayImage, GatewayOptions, GatewaySources};
use talaria_broker::backends::modal::{ModalImage, ModalSources};
use talaria_broker::backends::{Backend, Phase, Progress};
use talaria_broker::environment::Environment;
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;
use talaria_broker::web::Proxies;

use crate::rig::{Rig, TARGET};
use crate::sessions::{Live, wait};

/// What is said while a target is opened.
struct Notes(Sender<String>);

impl Progress for Notes {
    fn phase(&self, _: Phase) {}
    fn note(&self, line: &str) {
        self.0.send(line.to_owned()).ok();
    }
}

/// Both ways to a sandbox, with the methods that make and end one.
fn ways(rig: &Rig) -> [(Arc<dyn Backend>, &'static str, &'static str); 2] {
    let variables = Environment::from_iter(rig.modal.gateway_variables());
    let sources = GatewaySources::of(&variables, Proxies::default());
    [
        (
            Arc::new(ModalImage::new(rig.options())),
            "SandboxCreateV2",
            "SandboxTerminateV2",
        ),
        (
            Arc::new(GatewayImage::new(GatewayOptions::new(TARGET, "python:3.12", sources))),
            "gateway.create",
            "gateway.terminate",
        ),
    ]
}

fn throttled(method: &str) -> Value {
    let code = if method.starts_with("gateway") {
        json!(429)
    } else {
        json!("RESOURCE_EXHAUSTED")
    };
    json!([{"fault": "status", "method": method, "code": code, "retry_after": 30, "message": "slow down"}])
}

#[test]
fn patience_is_told_of_and_ends_with_whoever_waits() {
    let Some(rig) = Rig::new() else { return };
    for (backend, create, _) in ways(&rig) {
        rig.modal.faults(throttled(create));
        let (tell, told) = channel();
        let notes = Notes(tell);
        let hears = async {
            // It blocks; what is opened runs beside it on the same runtime.
            let line = tokio::task::spawn_blocking(move || {
                loop {
                    let line = told.recv_timeout(Duration::from_secs(60)).unwrap();
                    if line.contains("patience") {
                        return line;
                    }
                }
            });
            line.await.unwrap()
        };
        let line = rig.wait_for(async {
            tokio::select! {
                _ = backend.open(&notes) => panic!("it was not waited for"),
                line = hears => line,
            }
        });
        assert!(line.contains("rate limit") && line.contains("slow down"), "{line}");
        // Nobody waits for it any more, and nothing of it is left to wait for.
        rig.wait_for(backend.settle());
        let asked = rig.modal.calls(create).len();
        // As a user has it: the cell is cancelled, and its outcome is there at once.
        let session = Live::open(&rig.broker, &rig.runtime, rig.session_by(backend));
        let cell = Cell::new("print(1)");
        let cancel = cell.cancel.clone();
        let outcome = rig.wait_for(async {
            let running = session.session.execute(cell);
            tokio::pin!(running);
            loop {
                tokio::select! {
                    outcome = &mut running => break outcome,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {
                        if rig.modal.calls(create).len() > asked {
                            cancel.cancel("enough");
                        }
                    }
                }
            }
        });
        assert_eq!(outcome.status, Status::Interrupted, "{outcome:?}");
        rig.wait_for(session.session.close());
        assert_eq!(rig.modal.calls(create).len(), asked + 1);
    }
    assert!(rig.modal.sandboxes().is_empty());
    rig.end();
}

#[test]
fn what_is_made_for_nobody_is_ended_with_the_session() {
    let Some(rig) = Rig::new() else { return };
    for (backend, create, terminate) in ways(&rig) {
        rig.modal
            .faults(json!([{"fault": "late", "method": create, "seconds": 0.5}]));
        let opened = async {
            tokio::select! {
                _ = backend.open(&talaria_broker::backends::Silent) => panic!("it came too soon"),
                () = async {
                    while rig.modal.calls(create).is_empty() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                } => {}
            }
        };
        rig.wait_for(opened);
        rig.wait_for(backend.settle());
        assert_eq!(rig.modal.calls(terminate).len(), 1);
        assert!(rig.modal.alive().is_empty());
    }
    rig.end();
}

#[test]
fn a_first_connection_that_is_refused_is_tried_again() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([{"fault": "down", "which": "control"}]));
    let mut options = rig.options();
    options.sources = ModalSources {
        patience: None,
        ..options.sources
    };
    let backend = ModalImage::new(options);
    let (tell, told) = channel();
    let notes = Notes(tell);
    let opening = rig.runtime.spawn(async move { backend.open(&notes).await });
    let line = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(line.contains("127.0.0.1:") && line.contains("trying again"), "{line}");
    rig.modal.faults(json!([]));
    let target = rig.wait_for(opening).unwrap().unwrap();
    rig.wait_for(target.close()).unwrap();
    // Where it stays so, the error names the address.
    rig.modal.faults(json!([{"fault": "down", "which": "control"}]));
    let error = rig.refusal(|_| ());
    assert!(
        error.contains("no connection to 127.0.0.1:") && error.contains("status.modal.com"),
        "{error}"
    );
    rig.modal.faults(json!([]));
    wait("nothing to be left", || rig.modal.alive().is_empty());
    rig.end();
}
