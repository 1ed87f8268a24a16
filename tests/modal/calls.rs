//! Calls that fail: made again as often and as patiently as Modal's own client does, with the effect of one.

use serde_json::{Value, json};

use crate::rig::{Rig, fails};

fn keys(calls: &[Value]) -> Vec<&str> {
    let mut keys: Vec<&str> = calls
        .iter()
        .map(|call| call["metadata"]["x-idempotency-key"].as_str().unwrap())
        .collect();
    keys.dedup();
    keys
}

#[test]
fn a_lost_answer_does_nothing_twice() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([{"fault": "lost", "method": "SandboxCreateV2", "count": 1}, {"fault": "lost", "method": "TaskExecStart", "count": 1}]));
    let session = rig.session();
    session.ok("print(1)");
    let made = rig.modal.calls("SandboxCreateV2");
    assert_eq!((made.len(), keys(&made).len()), (2, 1), "{made:#?}");
    assert_eq!(rig.modal.sandboxes().len(), 1);
    let started = rig.modal.calls("TaskExecStart");
    assert_eq!(started.len(), 2);
    assert_eq!(started[0]["request"]["exec_id"], started[1]["request"]["exec_id"]);
    rig.modal
        .faults(json!([{"fault": "lost", "method": "SandboxTerminateV2", "count": 1}]));
    rig.end();
}

#[test]
fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([fails("AppGetOrCreate", "UNAVAILABLE", 3)]));
    let target = rig.open(rig.options()).unwrap();
    let calls = rig.modal.calls("AppGetOrCreate");
    let attempts: Vec<_> = calls.iter().map(|call| call["attempt"].as_u64().unwrap()).collect();
    assert_eq!((attempts.as_slice(), keys(&calls).len()), (&[0, 1, 2, 3][..], 1));
    rig.wait_for(target.close()).unwrap();
    for (code, attempts) in [("INTERNAL", 4), ("PERMISSION_DENIED", 1), ("RESOURCE_EXHAUSTED", 1)] {
        rig.modal.ask("DELETE", "/calls", None);
        rig.modal.faults(json!([fails("SandboxCreateV2", code, 100)]));
        rig.refusal(|_| ());
        assert_eq!(rig.modal.calls("SandboxCreateV2").len(), attempts, "{code}");
    }
    rig.end();
}

#[test]
fn the_patience_that_is_asked_for_is_had() {
    let Some(rig) = Rig::new() else { return };
    let throttled = |seconds: f64, count: u32| json!([{"fault": "status", "method": "SandboxCreateV2", "code": "RESOURCE_EXHAUSTED", "retry_after": seconds, "count": count}]);
    rig.modal.faults(throttled(0.2, 5));
    let target = rig.open(rig.options()).unwrap();
    let calls = rig.modal.calls("SandboxCreateV2");
    assert_eq!(calls.len(), 6);
    for (call, next) in calls.iter().zip(&calls[1..]) {
        let pause = next["time"].as_f64().unwrap() - call["time"].as_f64().unwrap();
        assert!(pause >= 0.199, "{pause}");
    }
    let counted = &calls[5]["metadata"]["x-throttle-retry-attempt"];
    assert_eq!((counted.as_str(), calls[5]["attempt"].as_u64()), (Some("5"), Some(0)));
    rig.wait_for(target.close()).unwrap();
    // Longer than anybody waits.
    rig.modal.faults(throttled(9999.0, 1));
    let error = rig.refusal(|_| ());
    assert!(error.contains("rate limit"), "{error}");
    rig.end();
}

#[test]
fn output_is_asked_for_with_the_start() {
    let Some(rig) = Rig::new() else { return };
    rig.modal.faults(json!([{"fault": "late", "method": "TaskExecStart", "seconds": 0.5, "count": 1}, fails("TaskExecStdioRead", "NOT_FOUND", 1)]));
    let session = rig.session();
    session.ok("print(1)");
    let (start, read) = (rig.modal.calls("TaskExecStart"), rig.modal.calls("TaskExecStdioRead"));
    let passed = read[0]["time"].as_f64().unwrap() - start[0]["time"].as_f64().unwrap();
    assert!(passed < 0.5, "{passed}");
    // It was too early, and came again once the process was known.
    assert_eq!(read.len(), 3, "{read:#?}");
    rig.end();
}

#[test]
fn every_call_says_who_asks() {
    let Some(rig) = Rig::new() else { return };
    let session = rig.session();
    session.ok("print(1)");
    for method in ["AppGetOrCreate", "ImageGetOrCreate", "SandboxCreateV2", "AuthTokenGet"] {
        let call = &rig.modal.calls(method)[0]["metadata"];
        for name in [
            "x-modal-client-version",
            "x-modal-client-type",
            "x-modal-token-id",
            "x-modal-token-secret",
        ] {
            assert!(call[name].is_string(), "{method} {name}: {call}");
        }
        assert_eq!(
            call["x-modal-auth-token"].is_string(),
            method == "SandboxCreateV2",
            "{method}"
        );
    }
    let start = &rig.modal.calls("TaskExecStart")[0]["metadata"];
    assert!(start["authorization"].as_str().unwrap().starts_with("Bearer "));
    assert!(start["x-modal-token-secret"].is_null(), "{start}");
    rig.end();
}
