//! Images: built where Modal does not have them, with their log as progress, or not at all.

use std::sync::Mutex;

use serde_json::json;
use talaria_broker::backends::{Phase, Progress};

use crate::rig::Rig;

/// Remembers what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn phase(&self, phase: Phase) {
        self.0.lock().unwrap().push(format!("{phase:?}"));
    }

    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

#[test]
fn the_log_of_a_build_is_progress_in_a_phase_of_its_own() {
    let Some(rig) = Rig::new() else { return };
    for how in ["slow", "no_result"] {
        rig.modal
            .faults(json!([{"fault": "build", "how": how, "seconds": 0.3, "count": 1}]));
        let told = Told::default();
        let mut options = rig.options();
        options.image = format!("python:{how}");
        let target = rig.open_with(options, &told).unwrap();
        let told = told.0.into_inner().unwrap();
        assert_eq!((told[0].as_str(), told[1].as_str()), ("Connect", "Pull"), "{told:?}");
        let last = ["Connect".to_owned(), format!("Modal makes a sandbox of python:{how}")];
        assert!(told.len() > 4 && told.ends_with(&last), "{told:?}");
        rig.wait_for(target.close()).unwrap();
    }
    rig.end();
}

#[test]
fn a_build_that_fails_says_why() {
    let Some(rig) = Rig::new() else { return };
    rig.modal
        .faults(json!([{"fault": "build", "how": "failure", "seconds": 0.1, "message": "no such tag"}]));
    let error = rig.refusal(|options| options.image = "python:nope".to_owned());
    for words in [
        "python:nope could not be built",
        "no such tag",
        "the last lines",
        "correct the image's name",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert!(rig.modal.sandboxes().is_empty());
    rig.end();
}

#[test]
fn an_image_that_modal_has_is_taken_as_it_is() {
    let Some(rig) = Rig::new() else { return };
    let target = rig.open(rig.options()).unwrap();
    let image = rig.modal.sandboxes()[0]["image"].as_str().unwrap().to_owned();
    rig.wait_for(target.close()).unwrap();
    rig.modal.ask("DELETE", "/calls", None);
    let mut options = rig.options();
    options.image = image;
    let target = rig.open(options).unwrap();
    assert!(rig.modal.calls("ImageGetOrCreate").is_empty());
    rig.wait_for(target.close()).unwrap();
    rig.end();
}

#[test]
fn a_private_registry_is_opened_by_a_secret() {
    let Some(rig) = Rig::new() else { return };
    let secret = json!({"name": "login", "env": {"REGISTRY_USERNAME": "u", "REGISTRY_PASSWORD": "p"}});
    rig.modal.ask("POST", "/secrets", Some(secret));
    let mut options = rig.options();
    options.registry_secret = Some("login".to_owned());
    let target = rig.open(options).unwrap();
    let asked = &rig.modal.calls("ImageGetOrCreate")[0]["request"]["image"]["image_registry_config"];
    assert!(asked["secret_id"].as_str().unwrap().starts_with("st-"), "{asked}");
    rig.wait_for(target.close()).unwrap();
    let error = rig.refusal(|options| options.registry_secret = Some("nobodys".to_owned()));
    assert!(
        error.contains("secret `nobodys`") && error.contains("modal_registry_secret"),
        "{error}"
    );
    rig.end();
}

#[test]
fn files_are_kept_for_the_next_session() {
    let Some(rig) = Rig::new() else { return };
    let file = rig.shared.path().join("kept/modal.json");
    let open = || {
        let mut options = rig.options();
        options.snapshots = Some(file.clone());
        crate::sessions::Live::open(&rig.broker, &rig.runtime, rig.session_on(options))
    };
    let first = open();
    first.ok("open('/root/note', 'w').write('kept')");
    rig.wait_for(first.session.close());
    assert!(file.exists());
    let second = open();
    assert_eq!(second.ok("print(open('/root/note').read())"), "kept\n");
    rig.wait_for(second.session.close());
    // What Modal does not have any more costs the files, and not the session.
    std::fs::write(&file, r#"{"image": "im-gone", "of": "python:3.12"}"#).unwrap();
    let third = open();
    assert_eq!(third.ok("import os; print(os.path.exists('/root/note'))"), "False\n");
    rig.wait_for(third.session.close());
    rig.end();
}
