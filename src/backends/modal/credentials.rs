//! Whose account is used, and where Modal is: as the users of its own tools expect it. `~/.modal.toml` holds a table for
//! each profile; variables go before it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::backends::BackendError;
use crate::environment::{Environment, Secret};
use crate::web::Proxies;

/// Where Modal answers when nobody says otherwise: the second one when the first cannot be reached.
const SERVERS: &str = "https://api.modal.com,https://api.modal2.com";

/// How long the first connection is tried again, as Modal's own client does.
const PATIENCE: Duration = Duration::from_secs(63);

/// What a switch says that is off.
const NO: [&str; 4] = ["", "0", "false", "no"];

/// What to do where there is no token.
const NEW_TOKEN: &str = "make one with `modal token new` (https://modal.com/settings/tokens), or set MODAL_TOKEN_ID and \
    MODAL_TOKEN_SECRET where the broker starts";

/// What says whose account is used. [`ModalSources::of`] takes it from a user's variables.
#[derive(Clone, Debug, Default)]
pub struct ModalSources {
    /// `MODAL_CONFIG_PATH`, else `~/.modal.toml`.
    pub file: Option<PathBuf>,
    /// `MODAL_PROFILE`: the table of that file; else the one that is active.
    pub profile: Option<String>,
    /// `MODAL_TOKEN_ID`
    pub token_id: Option<Secret>,
    /// `MODAL_TOKEN_SECRET`
    pub token_secret: Option<Secret>,
    /// `MODAL_ENVIRONMENT`
    pub environment: Option<String>,
    /// `MODAL_SERVER_URL`: several, with commas between, are tried in turn.
    pub servers: Option<String>,
    /// Through whom connections go.
    pub proxies: Proxies,
    /// How long the first connection is tried again; as long as Modal's own client does when `None`.
    pub patience: Option<Duration>,
}

/// An account.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) token_id: Secret,
    pub(super) token_secret: Secret,
    /// Where the token came from, as a phrase.
    pub(super) said_by: String,
    /// The environment that is used where an option names none; empty: the account's own default.
    pub(super) environment: String,
    /// Where Modal is, best first.
    pub(super) servers: Vec<http::Uri>,
    pub(super) proxies: Proxies,
    /// How long the first connection is tried again.
    pub(super) patience: Duration,
}

/// A table of the file. There may be more in it.
#[derive(Debug, Default, Deserialize)]
struct Profile {
    #[serde(default)]
    active: bool,
    token_id: Option<String>,
    token_secret: Option<String>,
    environment: Option<String>,
    server_url: Option<String>,
}

impl ModalSources {
    /// What a user's variables and home directory say.
    #[must_use]
    pub fn of(environment: &Environment, proxies: Proxies) -> Self {
        let text = |name: &str| Some(environment.filled(name)?.to_string_lossy().trim().to_owned());
        let path = environment.filled("MODAL_CONFIG_PATH").map(PathBuf::from);
        Self {
            file: path.or_else(|| Some(environment.home()?.join(".modal.toml"))),
            profile: text("MODAL_PROFILE"),
            token_id: text("MODAL_TOKEN_ID").map(Secret::new),
            token_secret: text("MODAL_TOKEN_SECRET").map(Secret::new),
            environment: text("MODAL_ENVIRONMENT"),
            servers: text("MODAL_SERVER_URL"),
            proxies: match text("MODAL_DISABLE_API_PROXY") {
                Some(word) if !NO.contains(&word.to_ascii_lowercase().as_str()) => Proxies::default(),
                _ => proxies,
            },
            patience: None,
        }
    }

    /// Whether somebody uses Modal here: a token is named, or there is a file that holds one.
    #[must_use]
    pub fn are_there(&self) -> bool {
        self.token_id.is_some() || self.token_secret.is_some() || self.file.as_ref().is_some_and(|file| file.exists())
    }

    /// The account that is meant.
    ///
    /// # Errors
    /// When there is none, or it cannot be told which one.
    pub(super) fn account(&self, target: &str) -> Result<Account, BackendError> {
        let refused = |reason: String, advice: &str| BackendError::Refused {
            target: target.to_owned(),
            reason,
            advice: advice.to_owned(),
        };
        let (name, profile) = self.profile().map_err(|reason| {
            refused(
                reason,
                "correct that file, or activate one profile with `modal profile activate`",
            )
        })?;
        let of_file = format!("the profile `{name}` of {}", self.shown_file());
        let half = |variable: &'static str, said: &Option<Secret>, written: Option<String>| {
            let of_variable = said.clone().map(|value| (value, variable.to_owned()));
            of_variable.or_else(|| Some((Secret::new(written.filter(|text| !text.is_empty())?), of_file.clone())))
        };
        let id = half("MODAL_TOKEN_ID", &self.token_id, profile.token_id);
        let secret = half("MODAL_TOKEN_SECRET", &self.token_secret, profile.token_secret);
        let ((token_id, said_by), (token_secret, _)) = match (id, secret) {
            (Some(id), Some(secret)) => (id, secret),
            (None, None) => {
                let reason = format!("there is no token for Modal: none in MODAL_TOKEN_ID, and none in {of_file}");
                return Err(refused(reason, NEW_TOKEN));
            }
            (Some((_, there)), None) => {
                let reason = format!("{there} has the id of a token for Modal, and its secret is nowhere");
                return Err(refused(reason, NEW_TOKEN));
            }
            (None, Some((_, there))) => {
                let reason = format!("{there} has the secret of a token for Modal, and its id is nowhere");
                return Err(refused(reason, NEW_TOKEN));
            }
        };
        if [&token_id, &token_secret].iter().any(|half| !is_plain(half.reveal())) {
            let reason = format!("the token for Modal of {said_by} has characters that no token has");
            return Err(refused(reason, "copy it again, without quotes and line ends"));
        }
        let servers = self.servers.clone().or(profile.server_url);
        let servers = servers.unwrap_or_else(|| SERVERS.to_owned());
        Ok(Account {
            token_id,
            token_secret,
            said_by,
            environment: self.environment.clone().or(profile.environment).unwrap_or_default(),
            servers: addresses(&servers).map_err(|reason| refused(reason, "correct MODAL_SERVER_URL"))?,
            proxies: self.proxies.clone(),
            patience: self.patience.unwrap_or(PATIENCE),
        })
    }

    fn shown_file(&self) -> String {
        self.file
            .as_ref()
            .map_or("~/.modal.toml".to_owned(), |file| file.display().to_string())
    }

    /// The table of the file that counts, with its name; an empty one where there is no such file.
    fn profile(&self) -> Result<(String, Profile), String> {
        let (file, shown) = (self.file.as_ref(), self.shown_file());
        let text = match file.map(std::fs::read_to_string) {
            Some(Ok(text)) => text,
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("{shown} cannot be read: {error}"));
            }
            _ => String::new(),
        };
        // What the parser says may quote the line, and with it a token.
        let mut profiles: BTreeMap<String, Profile> = toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
            format!("{shown}{line} is not as Modal's tools write it ({})", error.message())
        })?;
        let has_token = self.token_id.is_some() && self.token_secret.is_some();
        let active: Vec<&String> = profiles
            .iter()
            .filter_map(|(name, profile)| profile.active.then_some(name))
            .collect();
        let name = match (&self.profile, active.as_slice()) {
            (Some(name), _) if !profiles.contains_key(name) && !has_token => {
                return Err(format!("MODAL_PROFILE is `{name}`, and {shown} has no such profile"));
            }
            (Some(name), _) => name.clone(),
            (None, [name]) => (*name).clone(),
            (None, [_, _, ..]) if !has_token => return Err(format!("{shown} has more than one active profile")),
            (None, []) if profiles.len() > 1 && !profiles.contains_key("default") && !has_token => {
                return Err(format!("{shown} has several profiles, and none is active"));
            }
            (None, _) => "default".to_owned(),
        };
        let profile = profiles.remove(&name).unwrap_or_default();
        Ok((name, profile))
    }
}

/// Whether a token can travel in the head of a request.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads addresses with commas between them.
fn addresses(text: &str) -> Result<Vec<http::Uri>, String> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let uri: Option<http::Uri> = part.trim_end_matches('/').parse().ok();
        match uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()) {
            Some(uri) => found.push(uri),
            None => {
                return Err(format!(
                    "`{part}` is no address of Modal: https://HOST or http://HOST:PORT"
                ));
            }
        }
    }
    if found.is_empty() {
        return Err("the address of Modal is empty".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn sources(variables: &[(&str, &str)], file: Option<&str>) -> (ModalSources, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        if let Some(file) = file {
            std::fs::write(home.path().join(".modal.toml"), file).unwrap();
        }
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables = variables.chain([("HOME".to_owned(), home.path().display().to_string())]);
        let environment: Environment = variables.collect();
        (ModalSources::of(&environment, Proxies::default()), home)
    }

    const ONE: &str = "[main]\ntoken_id = 'ak-1'\ntoken_secret = 'as-1'\nactive = true\nenvironment = 'dev'\n";
    const TWO: &str = "[a]\ntoken_id = 'ak-a'\ntoken_secret = 'as-a'\n[b]\ntoken_id = 'ak-b'\ntoken_secret = 'as-b'\n";

    #[test]
    fn variables_go_before_the_file_and_the_active_profile_counts() {
        let id = ("MODAL_TOKEN_ID", "ak-v");
        let secret = ("MODAL_TOKEN_SECRET", "as-v");
        let default = "[default]\ntoken_id = 'ak-d'\ntoken_secret = 'as-d'\nloglevel = 'DEBUG'\n";
        let active = format!("{TWO}active = true\n");
        for (variables, file, expected) in [
            (&[][..], Some(ONE), ("ak-1", "as-1", "dev")),
            (&[], Some(default), ("ak-d", "as-d", "")),
            (&[], Some(&active), ("ak-b", "as-b", "")),
            (&[("MODAL_PROFILE", "a")], Some(&active), ("ak-a", "as-a", "")),
            (&[("MODAL_PROFILE", "")], Some(&active), ("ak-b", "as-b", "")),
            (&[id, secret], None, ("ak-v", "as-v", "")),
            (&[id, secret], Some(ONE), ("ak-v", "as-v", "dev")),
            (&[id, secret], Some(TWO), ("ak-v", "as-v", "")),
            (&[id], Some(ONE), ("ak-v", "as-1", "dev")),
            (&[("MODAL_ENVIRONMENT", "prod")], Some(ONE), ("ak-1", "as-1", "prod")),
        ] {
            let (sources, _home) = sources(variables, file);
            let account = sources.account("modal").unwrap();
            let found = (
                account.token_id.reveal(),
                account.token_secret.reveal(),
                &*account.environment,
            );
            assert_eq!(found, expected, "{variables:?} {file:?}");
        }
    }

    #[test]
    fn an_account_that_cannot_be_told_says_what_to_do() {
        let both = TWO.replace("[b]", "active = true\n[b]\nactive = true");
        for (variables, file, words) in [
            (&[][..], None, ["there is no token", "modal token new"]),
            (&[], Some(""), ["there is no token", "modal token new"]),
            (
                &[("MODAL_TOKEN_ID", "ak-1")],
                None,
                ["MODAL_TOKEN_ID has the id", "its secret is nowhere"],
            ),
            (
                &[("MODAL_TOKEN_SECRET", "as-1")],
                None,
                ["has the secret", "its id is nowhere"],
            ),
            (&[], Some(TWO), ["none is active", "modal profile activate"]),
            (
                &[],
                Some(&both),
                ["more than one active profile", "modal profile activate"],
            ),
            (&[("MODAL_PROFILE", "c")], Some(TWO), ["no such profile", "`c`"]),
            (&[], Some("x = 1\n[a"), [".modal.toml, line", "correct that file"]),
            (
                &[],
                Some("[a]\ntoken_secret = as-hunter2\n"),
                [".modal.toml, line 2", "correct that file"],
            ),
            (
                &[("MODAL_SERVER_URL", "api.modal.com")],
                Some(ONE),
                ["`api.modal.com` is no address", "MODAL_SERVER_URL"],
            ),
            (
                &[("MODAL_SERVER_URL", ",")],
                Some(ONE),
                ["is empty", "MODAL_SERVER_URL"],
            ),
            (
                &[("MODAL_TOKEN_ID", "a b")],
                Some(ONE),
                ["characters that no token has", "copy it again"],
            ),
        ] {
            let (sources, _home) = sources(variables, file);
            let error = sources.account("modal:x").unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{variables:?}: {error}");
            assert!(
                error.starts_with("modal:x cannot be used") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn fallbacks_are_read_in_their_order() {
        let shown = |variables: &[(&str, &str)], file| {
            let (sources, _home) = sources(variables, Some(file));
            let servers = sources.account("modal").unwrap().servers;
            servers
                .iter()
                .map(|server| server.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown(&[], ONE), "https://api.modal.com/ https://api.modal2.com/");
        let with_server = format!("{ONE}server_url = 'http://localhost:9900'\n");
        assert_eq!(shown(&[], &with_server), "http://localhost:9900/");
        let variable = ("MODAL_SERVER_URL", "https://one.example , https://two.example/");
        assert_eq!(
            shown(&[variable], &with_server),
            "https://one.example/ https://two.example/"
        );
    }

    #[test]
    fn the_proxy_may_be_left_aside() {
        let proxies = Proxies {
            https: "http://proxy:3128".to_owned(),
            ..Proxies::default()
        };
        for (word, is_used) in [("1", false), ("true", false), ("0", true), ("false", true), ("", true)] {
            let pair = ("MODAL_DISABLE_API_PROXY".to_owned(), word.to_owned());
            let sources = ModalSources::of(&[pair].into_iter().collect(), proxies.clone());
            assert_eq!(!sources.proxies.https.is_empty(), is_used, "{word}");
        }
    }

    #[test]
    fn neither_sources_nor_accounts_show_a_token() {
        let variables = [("MODAL_TOKEN_ID", "ak-hunter2"), ("MODAL_TOKEN_SECRET", "as-hunter2")];
        let (sources, _home) = sources(&variables, None);
        let shown = format!("{sources:?} {:?}", sources.account("modal").unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
