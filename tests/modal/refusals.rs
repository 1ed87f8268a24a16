//! What cannot be is an error of its own, with what to do; all of it in bounded time.

use serde_json::json;
use talaria_broker::backends::modal::ModalSources;

use crate::rig::{Rig, fails, with_token};

#[test]
fn each_reason_is_an_error_of_its_own() {
    let Some(rig) = Rig::new() else { return };
    let is = |error: String, words: &[&str]| {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!error.contains("as-stand-in"), "{error}");
    };
    let wrong = with_token(&rig.sources(), "ak-nobody", "as-nothing");
    is(
        rig.refusal(|options| options.sources = wrong.clone()),
        &["does not accept the token of MODAL_TOKEN_ID", "modal token new"],
    );
    is(
        rig.refusal(|options| options.sources = ModalSources::default()),
        &["there is no token for Modal", "modal token new"],
    );
    is(
        rig.refusal(|options| options.environment = Some("nowhere".to_owned())),
        &["environment `nowhere`", "modal environment list"],
    );
    is(
        rig.refusal(|options| options.regions = vec!["mars".to_owned()]),
        &["make the sandbox", "modal_region (mars)"],
    );
    rig.modal
        .faults(json!([fails("SandboxCreateV2", "RESOURCE_EXHAUSTED", 1)]));
    is(rig.refusal(|_| ()), &["limit is reached", "talaria gc"]);
    rig.modal
        .faults(json!([fails("AppGetOrCreate", "PERMISSION_DENIED", 1)]));
    is(rig.refusal(|_| ()), &["may not take or make the app `talaria`"]);
    let missing = rig.attach("sb-nobody").err().unwrap().to_string();
    is(missing, &["find the sandbox sb-nobody", "modal:IMAGE"]);
    rig.modal.faults(json!([{"fault": "down", "which": "all"}]));
    is(rig.refusal(|_| ()), &["Modal does not answer", "check the network"]);
    assert!(rig.modal.sandboxes().is_empty());
    rig.end();
}

#[test]
fn a_second_server_takes_over_where_the_first_cannot_be_reached() {
    let Some(rig) = Rig::new() else { return };
    let mut options = rig.options();
    let there = options.sources.servers.clone().unwrap();
    options.sources.servers = Some(format!("http://127.0.0.1:1,{there}"));
    let target = rig.open(options).unwrap();
    rig.wait_for(target.close()).unwrap();
    rig.end();
}
