//! Where the gateway is, and as whom it is asked: as the users of Hermes expect it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Deserialize;
use url::{Host, Url};

use crate::backends::BackendError;
use crate::environment::{Environment, Secret};
use crate::web::Proxies;

/// Where the gateway is when nobody says otherwise.
const ORIGIN: &str = "https://modal-gateway.nousresearch.com";

/// The variables that may hold the token, the first that is set counts: our own name for it, and Hermes's.
const VARIABLES: [&str; 2] = ["MODAL_GATEWAY_TOKEN", "TOOL_GATEWAY_USER_TOKEN"];

/// What to do where there is no token that can be used.
const NEW_TOKEN: &str = "sign in with Hermes, set MODAL_GATEWAY_TOKEN where the broker starts, or use an account of \
    Modal's (modal_mode: direct)";

/// What says where the gateway is, and who asks. [`GatewaySources::of`] takes it from a user's variables.
#[derive(Clone, Debug, Default)]
pub struct GatewaySources {
    /// `MODAL_GATEWAY_URL`
    pub url: Option<String>,
    /// The token, and the variable that holds it.
    pub token: Option<(Secret, &'static str)>,
    /// The file in which Hermes keeps who is signed in: `auth.json` of its home.
    pub file: Option<PathBuf>,
    /// Through whom connections go.
    pub proxies: Proxies,
    /// The folder in which it is written down which sandboxes were made; they are not when `None`.
    pub records: Option<PathBuf>,
}

/// A gateway that can be asked.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    /// Without a slash at its end.
    pub(super) origin: String,
    pub(super) token: Secret,
    /// Where the token came from, as a phrase.
    pub(super) said_by: String,
    pub(super) proxies: Proxies,
}

#[derive(Default, Deserialize)]
struct Store {
    #[serde(default)]
    providers: Providers,
}

#[derive(Default, Deserialize)]
struct Providers {
    nous: Option<SignedIn>,
}

#[derive(Deserialize)]
struct SignedIn {
    access_token: Option<String>,
    expires_at: Option<String>,
}

impl GatewaySources {
    /// What a user's variables and home directory say.
    #[must_use]
    pub fn of(environment: &Environment, proxies: Proxies) -> Self {
        let text = |name: &str| Some(environment.filled(name)?.to_string_lossy().trim().to_owned());
        let hermes = environment.filled("HERMES_HOME").map(PathBuf::from);
        let hermes = hermes.or_else(|| Some(environment.home()?.join(".hermes")));
        Self {
            url: text("MODAL_GATEWAY_URL"),
            token: VARIABLES
                .iter()
                .find_map(|name| Some((Secret::new(text(name).filter(|text| !text.is_empty())?), *name))),
            file: hermes.map(|folder| folder.join("auth.json")),
            proxies,
            records: None,
        }
    }

    /// Whether there is a token, fit or not.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some() || matches!(self.signed_in(), Ok(Some(_)))
    }

    /// Where the gateway is, without a slash at its end.
    pub(super) fn origin(&self) -> Result<String, String> {
        origin(self.url.as_deref().unwrap_or(ORIGIN))
    }

    /// The gateway that is meant.
    ///
    /// # Errors
    /// When there is no token, or no address.
    pub(super) fn gateway(&self, target: &str) -> Result<Gateway, BackendError> {
        let refused = |reason: String, advice: &str| BackendError::Refused {
            target: target.to_owned(),
            reason,
            advice: advice.to_owned(),
        };
        let origin = self
            .origin()
            .map_err(|reason| refused(reason, "correct MODAL_GATEWAY_URL"))?;
        let shown = self.file.as_ref().map(|file| file.display().to_string());
        let shown = shown.unwrap_or_else(|| "~/.hermes/auth.json".to_owned());
        let (token, said_by) = match &self.token {
            Some((token, variable)) => (token.clone(), (*variable).to_owned()),
            None => match self.signed_in() {
                Ok(Some((token, false))) => (token, shown),
                Ok(Some((_, true))) => {
                    let reason = format!("the token for the gateway in {shown} has run out");
                    return Err(refused(reason, "sign in again with Hermes, or set MODAL_GATEWAY_TOKEN"));
                }
                Ok(None) => {
                    let reason = format!(
                        "there is no token for Modal's gateway: none in {}, and none in {shown}",
                        VARIABLES.join(" or ")
                    );
                    return Err(refused(reason, NEW_TOKEN));
                }
                Err(reason) => return Err(refused(format!("{shown} cannot be read: {reason}"), NEW_TOKEN)),
            },
        };
        if !token.reveal().bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = format!("the token for the gateway of {said_by} has characters that no token has");
            return Err(refused(reason, "copy it again, without quotes and line ends"));
        }
        Ok(Gateway {
            origin,
            token,
            said_by,
            proxies: self.proxies.clone(),
        })
    }

    /// The token of Hermes's own file, and whether it has run out.
    fn signed_in(&self) -> Result<Option<(Secret, bool)>, String> {
        let Some(file) = &self.file else { return Ok(None) };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        // What the parser says may quote the text, and with it a token.
        let store: Store = serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|error| format!("line {} is not as Hermes writes it", error.line()))?;
        let Some(found) = store.providers.nous else {
            return Ok(None);
        };
        let token = found.access_token.map(|token| token.trim().to_owned());
        let has_run_out = found.expires_at.as_deref().is_some_and(has_passed);
        Ok(token
            .filter(|token| !token.is_empty())
            .map(|token| (Secret::new(token), has_run_out)))
    }
}

/// Whether a moment, as RFC 3339 writes it, has passed; what cannot be read has not.
fn has_passed(moment: &str) -> bool {
    let Some(seconds) = unix_seconds(moment.trim()) else {
        return false;
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.is_ok_and(|now| i64::try_from(now.as_secs()).is_ok_and(|now| now >= seconds))
}

/// `2026-11-30T12:00:00[.5](Z|+01:00|)` as seconds since 1970.
fn unix_seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let rest = text
        .get(19..)?
        .trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match rest {
        "" | "Z" | "z" => 0,
        _ => {
            let (sign, rest) = (rest.get(..1)?, rest.get(1..)?);
            let (hours, minutes) = rest.split_once(':')?;
            let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
            if sign == "-" { -seconds } else { seconds }
        }
    };
    // Days since 1970, with the year beginning in March.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// Reads the address of the gateway.
fn origin(text: &str) -> Result<String, String> {
    let text = text.trim().trim_end_matches('/');
    let wrong = |why: &str| format!("`{text}` is no address of the gateway: {why}");
    let url = Url::parse(text).map_err(|_| wrong("write it as https://HOST"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the address of the gateway must not hold a user or password".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() || url.host().is_none() {
        return Err(wrong("write it as https://HOST"));
    }
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => Ok(text.to_owned()),
        "http" if is_here => Ok(text.to_owned()),
        "http" => Err(wrong("a token travels only by https, but to this machine itself")),
        _ => Err(wrong("write it as https://HOST")),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn sources(variables: &[(&str, &str)], file: Option<&str>) -> (GatewaySources, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        if let Some(text) = file {
            std::fs::create_dir(home.path().join(".hermes")).unwrap();
            std::fs::write(home.path().join(".hermes/auth.json"), text).unwrap();
        }
        let own = [("HOME".to_owned(), home.path().display().to_string())];
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment: Environment = own.into_iter().chain(variables).collect();
        (GatewaySources::of(&environment, Proxies::default()), home)
    }

    const SIGNED_IN: &str = r#"{"providers": {"other": {}, "nous": {"access_token": "of-file", "expires_at": "2999-01-01T00:00:00Z", "x": 1}}}"#;

    #[test]
    fn the_first_token_that_is_set_counts() {
        let ours = ("MODAL_GATEWAY_TOKEN", "of-ours");
        let hermes = ("TOOL_GATEWAY_USER_TOKEN", "of-hermes");
        for (variables, file, token, said_by) in [
            (&[ours, hermes][..], Some(SIGNED_IN), "of-ours", "MODAL_GATEWAY_TOKEN"),
            (&[hermes], Some(SIGNED_IN), "of-hermes", "TOOL_GATEWAY_USER_TOKEN"),
            (&[("MODAL_GATEWAY_TOKEN", " ")], Some(SIGNED_IN), "of-file", "auth.json"),
            (&[], Some(SIGNED_IN), "of-file", "auth.json"),
        ] {
            let (sources, _home) = sources(variables, file);
            let gateway = sources.gateway("modal").unwrap();
            assert!(sources.has_token());
            assert_eq!(gateway.token.reveal(), token);
            assert!(gateway.said_by.ends_with(said_by), "{}", gateway.said_by);
            assert_eq!(gateway.origin, ORIGIN);
            assert!(!format!("{sources:?} {gateway:?}").contains(token));
        }
    }

    #[test]
    fn without_a_token_it_is_said_what_to_do() {
        let old = SIGNED_IN.replace("2999", "1999");
        for (variables, file, words) in [
            (&[][..], None, ["there is no token", "sign in with Hermes"]),
            (&[], Some("{}"), ["there is no token", "modal_mode: direct"]),
            (
                &[],
                Some(r#"{"providers": {"nous": {}}}"#),
                ["there is no token", "MODAL_GATEWAY_TOKEN"],
            ),
            (&[], Some("hunter2"), ["auth.json cannot be read", "line 1"]),
            (&[], Some(&*old), ["has run out", "sign in again"]),
            (
                &[("MODAL_GATEWAY_TOKEN", "a b")],
                None,
                ["characters that no token has", "MODAL_GATEWAY_TOKEN"],
            ),
        ] {
            let (sources, _home) = sources(variables, file);
            let error = sources.gateway("modal:x").unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(
                error.starts_with("modal:x cannot be used") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_token_travels_by_https_but_on_this_machine() {
        for text in [
            "https://gateway.example",
            "https://gateway.example/modal/",
            "http://localhost:1",
            "http://127.0.0.1:8/",
            "http://[::1]:8",
        ] {
            assert_eq!(origin(text).unwrap(), text.trim_end_matches('/'));
        }
        for (text, words) in [
            ("http://gateway.example", "only by https"),
            ("http://localhost.example", "only by https"),
            ("gateway.example", "https://HOST"),
            ("ftp://gateway.example", "https://HOST"),
            ("https://gateway.example?x=1", "https://HOST"),
            ("https://bob:pw@gateway.example", "must not hold"),
        ] {
            let error = origin(text).unwrap_err();
            assert!(error.contains(words) && !error.contains("pw@"), "{text}: {error}");
        }
    }

    #[test]
    fn moments_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2024-02-29T12:30:15.25Z", Some(1_709_209_815)),
            ("2024-02-29T13:30:15+01:00", Some(1_709_209_815)),
            ("2000-03-01T00:00:00-00:30", Some(951_870_600)),
            ("2024-02-29T12:30:15", Some(1_709_209_815)),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(unix_seconds(text), seconds, "{text}");
        }
    }
}
