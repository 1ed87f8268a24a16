//! Modal's sandboxes as a target of the suite, made by a stand-in on this machine. The folder of a test is seen there
//! under its own path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use talaria_broker::backends::Backend;
use talaria_broker::backends::modal::gateway::{GatewayImage, GatewayOptions, GatewaySources};
use talaria_broker::backends::modal::{ModalImage, ModalOptions, ModalSources};
use talaria_broker::environment::Environment;
use talaria_broker::web::Proxies;

use crate::hosts;
use crate::observe::wait_until;
use crate::rig::{Kind, Rig};
use crate::stand_in::StandIn;
pub(crate) use crate::stand_in::can_be as are_there;

/// The target as a user writes it.
pub(crate) const TARGET: &str = "modal:python:3.12";
const IMAGE: &str = "python:3.12";

/// Where the folders of tests are, that sandboxes see.
pub(crate) fn visible() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modal");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The one that all tests of this process use. It ends with the process.
fn stand_in() -> &'static StandIn {
    static STAND_IN: OnceLock<StandIn> = OnceLock::new();
    STAND_IN.get_or_init(|| StandIn::start(&visible()))
}

/// The variables of a test's sandboxes: folders of sessions are their own, and go with them.
pub(crate) fn variables(rig: &Rig) -> impl Iterator<Item = (String, String)> {
    hosts::variables(rig).map(|(name, value)| match name.as_str() {
        "TMPDIR" => (name, "/tmp".to_owned()),
        "XDG_RUNTIME_DIR" => (name, "/run".to_owned()),
        _ => (name, value),
    })
}

/// Whether this is the first process of a sandbox, which is there for as long as that is.
pub(crate) fn is_first(command: &str) -> bool {
    command.starts_with("/bin/sleep ")
}

/// What makes sandboxes for the sessions of a test.
pub(crate) fn backend(rig: &Rig, there: BTreeMap<String, String>) -> Arc<dyn Backend> {
    if rig.target.kind == Kind::Gateway {
        let variables = Environment::from_iter(stand_in().gateway_variables());
        let mut options = GatewayOptions::new(TARGET, IMAGE, GatewaySources::of(&variables, Proxies::default()));
        options.app = app(rig);
        options.variables = there;
        return Arc::new(GatewayImage::new(options));
    }
    let sources = ModalSources::of(&Environment::from_iter(stand_in().variables()), Proxies::default());
    let mut options = ModalOptions::new(TARGET, IMAGE, sources);
    options.app = app(rig);
    options.variables = there;
    Arc::new(ModalImage::new(options))
}

/// The same for the command line, as variables.
pub(crate) fn settings(rig: &Rig) -> Vec<(OsString, OsString)> {
    let there: Vec<String> = variables(rig).map(|(name, value)| format!("{name}={value}")).collect();
    let mut settings = match rig.target.kind {
        Kind::Gateway => stand_in().gateway_variables(),
        _ => stand_in().variables(),
    };
    settings.push(("TALARIA_TERMINAL_MODAL_ENV".into(), there.join(",").into()));
    settings.push(("TALARIA_TERMINAL_MODAL_APP".into(), app(rig).into()));
    settings.push(("TALARIA_TERMINAL_CWD".into(), rig.work().into()));
    settings
}

/// The app that the sandboxes of a test belong to.
fn app(rig: &Rig) -> String {
    rig.scratch().file_name().unwrap().to_string_lossy().into_owned()
}

/// Waits for the sandboxes of a test to end; those that are left all the same, which are ended.
pub(crate) fn take_what_is_left(rig: &Rig) -> Vec<String> {
    let left = || -> Vec<String> {
        // Behind the gateway its name begins with that.
        let name = format!("{}@", app(rig));
        let is_ours = |one: &Value| {
            let key = one["tags"]["logicalKey"].as_str().unwrap_or_default();
            one["app_name"] == app(rig) || key.starts_with(&name)
        };
        let ours = stand_in().living().into_iter().filter(is_ours);
        ours.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    wait_until(rig.left_behind(), || left().is_empty());
    let left = left();
    for id in &left {
        stand_in().ask(
            "POST",
            &format!("/sandboxes/{id}/end"),
            Some(json!({"how": "terminated"})),
        );
    }
    left
}
