//! Modal's sandboxes as a target of the suite, made by a stand-in on this machine. The folder of a test is seen there
//! under its own path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use talaria_broker::backends::modal::{ModalImage, ModalOptions, ModalSources};
use talaria_broker::environment::Environment;
use talaria_broker::web::Proxies;

use crate::hosts;
use crate::rig::Rig;
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

/// What makes sandboxes for the sessions of a test.
pub(crate) fn backend(there: BTreeMap<String, String>) -> ModalImage {
    let sources = ModalSources::of(&Environment::from_iter(stand_in().variables()), Proxies::default());
    let mut options = ModalOptions::new(TARGET, IMAGE, sources);
    options.variables = there;
    ModalImage::new(options)
}

/// The same for the command line, as variables.
pub(crate) fn settings(rig: &Rig) -> Vec<(OsString, OsString)> {
    let there: Vec<String> = hosts::variables(rig)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut settings = stand_in().variables();
    settings.push(("TALARIA_TERMINAL_MODAL_ENV".into(), there.join(",").into()));
    settings.push(("TALARIA_TERMINAL_CWD".into(), rig.work().into()));
    settings
}
