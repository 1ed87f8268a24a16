//! Settings of the audit log.

use std::path::PathBuf;
use std::time::Duration;

use super::layers::Layers;
use super::settings::{duration, effective};
use super::value::Value;
use crate::audit::{Settings, default_folder};
use crate::environment::Environment;

/// Whether, where and how much is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLog {
    /// Whether anything is.
    pub enabled: bool,
    /// The folder, as written, instead of the usual one.
    pub folder: Option<PathBuf>,
    /// Bytes above which a new file is begun.
    pub max_bytes: u64,
    /// Older files that are kept.
    pub keep: usize,
    /// Age at which an older file is removed.
    pub max_age: Duration,
    /// Whether nothing runs that cannot be recorded.
    pub required: bool,
}

impl AuditLog {
    pub(super) fn of(layers: &Layers) -> Self {
        let is_on = |path: &str| matches!(effective(layers, path), Some(Value::Switch(true)));
        let count = |path: &str| match effective(layers, path) {
            Some(Value::Count(count)) => count,
            _ => 0,
        };
        Self {
            enabled: is_on("audit.enabled"),
            folder: layers.text("audit.folder").map(PathBuf::from),
            max_bytes: count("audit.max_bytes"),
            keep: usize::try_from(count("audit.keep")).unwrap_or(usize::MAX),
            max_age: duration(layers, "audit.max_age"),
            required: is_on("audit.required"),
        }
    }

    /// The folder of the log, whether it is written or not.
    #[must_use]
    pub fn folder(&self, environment: &Environment) -> PathBuf {
        match &self.folder {
            Some(folder) => {
                let folder = environment.expand_home(folder);
                std::path::absolute(&folder).unwrap_or(folder)
            }
            None => default_folder(environment),
        }
    }

    /// What a log is opened with; `None` where nothing is recorded.
    #[must_use]
    pub fn settings(&self, environment: &Environment) -> Option<Settings> {
        self.enabled.then(|| Settings {
            folder: self.folder(environment),
            max_bytes: self.max_bytes,
            keep: self.keep,
            max_age: self.max_age,
            required: self.required,
        })
    }
}
