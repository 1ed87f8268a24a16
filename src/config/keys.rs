//! The table of keys. Reading, variables, suggestions, printing and the template's test all go by it.

use super::choice::{EnvPolicy, ExtractProvider, ModalMode, Mode, Rpc, SearchProvider, TOOLS, Transport};
use super::value::{Kind, Value};
use crate::approval::{Action, Policy};
use crate::limits::Limits;
use crate::suggest::nearest;

/// One key of the configuration.
#[derive(Debug)]
pub(super) struct Key {
    /// Its whole path: a name alone, `section.leaf`, or `section.part.leaf`.
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    /// The value that holds where nobody sets one; `None` where unset has a meaning of its own.
    pub(super) default: fn() -> Option<Value>,
}

/// The time after which `terminal` gives up on a command, in seconds.
const TERMINAL_TIMEOUT: u64 = 180;

/// The time for which a lost link is tried again, in seconds.
const RECONNECT_TIMEOUT: u64 = 60;

/// The time after which a target that hears nothing of the broker ends by itself, in seconds.
const LEASE: u64 = 15 * 60;

/// The time that a search may take, and reading one page, in seconds.
const SEARCH_TIMEOUT: u64 = 30;
const PAGE_TIMEOUT: u64 = 60;

/// Characters of a page that `web_extract` gives back, and bytes that it fetches of one.
const PAGE_CHARACTERS: u64 = 15_000;
const PAGE_BYTES: u64 = 10 * 1024 * 1024;

/// The memory of a container of ours, in megabytes.
const CONTAINER_MEMORY: u64 = 5_120;

/// The time that connecting to an SSH host and logging in may take, in seconds.
const SSH_CONNECT_TIMEOUT: u64 = 30;

/// The longest life of a Modal sandbox, and the time after which one ends in which nothing runs, in seconds.
const MODAL_LIFETIME: u64 = 24 * 60 * 60;
const MODAL_IDLE_TIMEOUT: u64 = 20 * 60;

/// Bytes of a file of the audit log, older files that are kept, and the age at which they are removed, in seconds.
const AUDIT_BYTES: u64 = 10 * 1024 * 1024;
const AUDIT_FILES: u64 = 10;
const AUDIT_AGE: u64 = 90 * 24 * 60 * 60;

const fn key(path: &'static str, kind: Kind, default: fn() -> Option<Value>) -> Key {
    Key { path, kind, default }
}

fn unset() -> Option<Value> {
    None
}

fn off() -> Option<Value> {
    Some(Value::Switch(false))
}

fn empty_list() -> Option<Value> {
    Some(Value::List(Vec::new()))
}

fn empty_map() -> Option<Value> {
    Some(Value::Map(Vec::new()))
}

fn seconds(seconds: u64) -> Option<Value> {
    Some(Value::Duration(std::time::Duration::from_secs(seconds)))
}

fn text(text: &str) -> Option<Value> {
    Some(Value::Text(text.to_owned()))
}

fn count(count: impl TryInto<u64>) -> Option<Value> {
    count.try_into().ok().map(Value::Count)
}

fn limits() -> Limits {
    Limits::default()
}

/// All keys but those of `targets`, in the order in which they are printed.
pub(super) const KEYS: &[Key] = &[
    key("target", Kind::Target, || text("local")),
    key("code_execution.mode", Kind::Choice(Mode::WORDS), || {
        text(Mode::default().as_str())
    }),
    key("code_execution.python", Kind::Text, unset),
    key("code_execution.kernel", Kind::Switch, || Some(Value::Switch(true))),
    key("code_execution.protect_files", Kind::Switch, || {
        Some(Value::Switch(true))
    }),
    key("code_execution.rpc", Kind::Choice(Rpc::WORDS), || {
        text(Rpc::default().as_str())
    }),
    key("code_execution.timeout", Kind::Duration, || {
        Some(Value::Duration(limits().timeout))
    }),
    key("code_execution.max_tool_calls", Kind::Count { min: 0 }, || {
        count(limits().max_tool_calls)
    }),
    key("code_execution.kernel_idle_timeout", Kind::Duration, || {
        Some(Value::Duration(limits().kernel_idle_timeout))
    }),
    key("code_execution.max_session_kernels", Kind::Count { min: 1 }, || {
        count(limits().max_session_kernels)
    }),
    key("code_execution.max_stdout_bytes", Kind::Count { min: 0 }, || {
        count(limits().max_stdout_bytes)
    }),
    key("code_execution.max_stderr_bytes", Kind::Count { min: 0 }, || {
        count(limits().max_stderr_bytes)
    }),
    key("code_execution.max_spill_bytes", Kind::Count { min: 0 }, || {
        count(limits().max_spill_bytes)
    }),
    key("code_execution.transport", Kind::Choice(Transport::WORDS), || {
        text(Transport::default().as_str())
    }),
    key("code_execution.reconnect_timeout", Kind::Duration, || {
        seconds(RECONNECT_TIMEOUT)
    }),
    key("code_execution.lease", Kind::Duration, || seconds(LEASE)),
    key("terminal.backend", Kind::Text, unset),
    key("terminal.cwd", Kind::Text, unset),
    key("terminal.env_passthrough", Kind::List, empty_list),
    key("terminal.timeout", Kind::Duration, || seconds(TERMINAL_TIMEOUT)),
    key("terminal.docker_image", Kind::Text, unset),
    key("terminal.docker_volumes", Kind::List, empty_list),
    key("terminal.docker_network", Kind::Scalar, || text("on")),
    key("terminal.container_cpu", Kind::Scalar, unset),
    key("terminal.container_memory", Kind::Scalar, || {
        text(&CONTAINER_MEMORY.to_string())
    }),
    key("terminal.docker_env", Kind::Map, empty_map),
    key("terminal.docker_forward_env", Kind::List, empty_list),
    key("terminal.docker_mount_cwd_to_workspace", Kind::Switch, off),
    key("terminal.docker_run_as_host_user", Kind::Switch, off),
    key("terminal.docker_shm_size", Kind::Scalar, unset),
    key("terminal.ssh_host", Kind::Scalar, unset),
    key("terminal.ssh_user", Kind::Scalar, unset),
    key("terminal.ssh_port", Kind::Port, unset),
    key("terminal.ssh_key", Kind::Text, unset),
    key("terminal.ssh_options", Kind::List, empty_list),
    key("terminal.ssh_accept_new", Kind::Switch, off),
    key("terminal.ssh_control_path", Kind::Text, unset),
    key("terminal.ssh_become", Kind::Text, unset),
    key("terminal.ssh_connect_timeout", Kind::Duration, || {
        seconds(SSH_CONNECT_TIMEOUT)
    }),
    key("terminal.modal_image", Kind::Text, unset),
    key("terminal.modal_mode", Kind::Choice(ModalMode::WORDS), || {
        text(ModalMode::default().as_str())
    }),
    key("terminal.modal_app", Kind::Text, || text("talaria")),
    key("terminal.modal_environment", Kind::Text, unset),
    key("terminal.modal_gpu", Kind::Text, unset),
    key("terminal.modal_region", Kind::List, empty_list),
    key("terminal.modal_network", Kind::Switch, || Some(Value::Switch(true))),
    key("terminal.modal_env", Kind::Map, empty_map),
    key("terminal.modal_registry_secret", Kind::Text, unset),
    key("terminal.modal_lifetime", Kind::Duration, || seconds(MODAL_LIFETIME)),
    key("terminal.modal_idle_timeout", Kind::Duration, || {
        seconds(MODAL_IDLE_TIMEOUT)
    }),
    key("terminal.modal_keep", Kind::Switch, off),
    key("terminal.modal_snapshot", Kind::Switch, off),
    key("tools.disabled", Kind::Some(&TOOLS), empty_list),
    key("approval.default", Kind::Choice(Action::WORDS), || {
        text(Action::default().as_str())
    }),
    key("approval.timeout", Kind::Duration, || {
        Some(Value::Duration(Policy::default().timeout))
    }),
    key("approval.tools", Kind::Actions, empty_map),
    key("web.search.provider", Kind::Choice(SearchProvider::WORDS), unset),
    key("web.search.url", Kind::Url, unset),
    key("web.search.api_key_env", Kind::VariableName, unset),
    key("web.search.timeout", Kind::Duration, || seconds(SEARCH_TIMEOUT)),
    key("web.extract.provider", Kind::Choice(ExtractProvider::WORDS), || {
        text(ExtractProvider::default().as_str())
    }),
    key("web.extract.url", Kind::Url, unset),
    key("web.extract.api_key_env", Kind::VariableName, unset),
    key("web.extract.timeout", Kind::Duration, || seconds(PAGE_TIMEOUT)),
    key("web.extract.char_limit", Kind::Count { min: 1 }, || {
        count(PAGE_CHARACTERS)
    }),
    key("web.extract.max_bytes", Kind::Count { min: 1 }, || count(PAGE_BYTES)),
    key("web.extract.allow_private", Kind::Hosts, empty_list),
    key("audit.enabled", Kind::Switch, || Some(Value::Switch(true))),
    key("audit.required", Kind::Switch, off),
    key("audit.folder", Kind::Text, unset),
    key("audit.max_bytes", Kind::Count { min: 4096 }, || count(AUDIT_BYTES)),
    key("audit.keep", Kind::Count { min: 0 }, || count(AUDIT_FILES)),
    key("audit.max_age", Kind::Duration, || seconds(AUDIT_AGE)),
];

/// The sections that the agent's own file shares with ours, and in which its unknown keys are worth a warning.
pub(super) const HERMES_SECTIONS: [&str; 2] = ["code_execution", "terminal"];

/// What an entry of `targets` may hold, beside the options of `terminal` that concern one kind of target.
const TARGET_KEYS: [(&str, Kind); 7] = [
    ("target", Kind::Target),
    ("cwd", Kind::Text),
    ("python", Kind::Text),
    ("mode", Kind::Choice(Mode::WORDS)),
    ("env_passthrough", Kind::List),
    ("env", Kind::Choice(EnvPolicy::WORDS)),
    ("transport", Kind::Choice(Transport::WORDS)),
];

/// The key of that path.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The variable that sets the key.
pub(super) fn variable(path: &str) -> String {
    format!("TALARIA_{}", path.replace('.', "_").to_ascii_uppercase())
}

/// What of a path stands below `parent`; all of it where that is empty.
fn below(path: &'static str, parent: &str) -> Option<&'static str> {
    if parent.is_empty() {
        return Some(path);
    }
    path.strip_prefix(parent)?.strip_prefix('.')
}

/// The names that may stand at the top of a file, or below one of its sections.
fn names(parent: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = KEYS
        .iter()
        .filter_map(|key| below(key.path, parent)?.split('.').next())
        .collect();
    if parent.is_empty() {
        names.push("targets");
    }
    names.dedup();
    names
}

/// Whether keys stand below that path.
pub(super) fn is_section(path: &str) -> bool {
    !path.is_empty() && KEYS.iter().any(|key| below(key.path, path).is_some())
}

/// What to do about an unknown key: the nearest right one, in its own section or elsewhere, else all of the place.
pub(super) fn advice(path: &str) -> String {
    if let Some((section, leaf)) = path.rsplit_once('.').filter(|_| find(path).is_some()) {
        return format!("write `{leaf}` on a line of its own, indented below `{section}:`");
    }
    let (parent, leaf) = path.rsplit_once('.').unwrap_or(("", path));
    let siblings = names(parent);
    let full = |name: &str| {
        if parent.is_empty() {
            name.to_owned()
        } else {
            format!("{parent}.{name}")
        }
    };
    let elsewhere = || {
        let leaves = KEYS.iter().filter_map(|key| key.path.rsplit('.').next());
        let leaf = nearest(leaf, leaves)?;
        KEYS.iter()
            .find(|key| key.path.rsplit('.').next() == Some(leaf))
            .map(|key| key.path.to_owned())
    };
    match nearest(leaf, siblings.iter().copied()).map(full).or_else(elsewhere) {
        Some(right) => format!("did you mean `{right}`?"),
        None => format!("the keys here are {}", siblings.join(", ")),
    }
}

/// The kind of a key of an entry of `targets`.
pub(super) fn target_key(name: &str) -> Option<Kind> {
    target_keys().find(|(known, _)| *known == name).map(|(_, kind)| kind)
}

/// What to do about an unknown key of an entry of `targets`.
pub(super) fn target_advice(name: &str) -> String {
    match nearest(name, target_keys().map(|(known, _)| known)) {
        Some(right) => format!("did you mean `{right}`?"),
        None => format!(
            "the keys of a target are {}, and those of `terminal` that begin with docker_, container_, ssh_ or modal_",
            TARGET_KEYS.map(|(known, _)| known).join(", ")
        ),
    }
}

/// The options of `terminal` that concern one kind of target, by name and whole path.
pub(super) fn kind_options() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter().filter_map(|key| {
        let leaf = key.path.strip_prefix("terminal.")?;
        let of_one_kind = ["docker_", "container_", "ssh_", "modal_"]
            .iter()
            .any(|prefix| leaf.starts_with(prefix));
        of_one_kind.then_some((leaf, key.path))
    })
}

fn target_keys() -> impl Iterator<Item = (&'static str, Kind)> {
    let options = kind_options().filter_map(|(leaf, path)| Some((leaf, find(path)?.kind)));
    TARGET_KEYS.into_iter().chain(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_each_key_and_each_variable_once() {
        let mut variables: Vec<_> = KEYS.iter().map(|key| variable(key.path)).collect();
        variables.sort();
        variables.dedup();
        assert_eq!(variables.len(), KEYS.len());
        assert_eq!(variable("code_execution.timeout"), "TALARIA_CODE_EXECUTION_TIMEOUT");
    }

    #[test]
    fn every_default_is_a_value_of_its_kind() {
        for key in KEYS {
            if let Some(default @ (Value::Text(_) | Value::Duration(_) | Value::Count(_) | Value::Switch(_))) =
                (key.default)()
            {
                assert_eq!(key.kind.read_text(&default.shown()), Ok(default), "{}", key.path);
            }
        }
    }

    #[test]
    fn the_nearest_right_key_is_named() {
        for (path, expected) in [
            ("code_execution.timout", "did you mean `code_execution.timeout`?"),
            ("terminal.docker_imge", "did you mean `terminal.docker_image`?"),
            ("code_exection", "did you mean `code_execution`?"),
            ("timeout", "did you mean `code_execution.timeout`?"),
            ("env_passthrough", "did you mean `terminal.env_passthrough`?"),
            ("code_execution.cwd", "did you mean `terminal.cwd`?"),
            ("target_", "did you mean `target`?"),
            ("tools.zzz", "the keys here are disabled"),
            ("web.serach", "did you mean `web.search`?"),
            ("web.search.api_key_nev", "did you mean `web.search.api_key_env`?"),
            (
                "web.search.zzz",
                "the keys here are provider, url, api_key_env, timeout",
            ),
            (
                "terminal.cwd",
                "write `cwd` on a line of its own, indented below `terminal:`",
            ),
        ] {
            assert_eq!(advice(path), expected, "{path}");
        }
        assert_eq!(target_advice("pyhton"), "did you mean `python`?");
        assert_eq!(target_advice("docker_imge"), "did you mean `docker_image`?");
        assert!(target_advice("zzz").contains("env_passthrough"));
    }
}
