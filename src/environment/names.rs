//! Which names are secret, safe, or the broker's own.

use std::ffi::OsStr;

/// A name that contains one of these words, in any case, is a secret name.
pub const SECRET_WORDS: [&str; 12] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "CREDS",
    "AUTH",
    "BEARER",
    "DSN",
    "WEBHOOK",
    "APIKEY",
];

/// The variables that the broker itself reads as credentials. Beside them count all secret names that begin with `TALARIA_`.
pub const BROKER_CREDENTIALS: [&str; 11] = [
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
    "MODAL_GATEWAY_TOKEN",
    "TOOL_GATEWAY_USER_TOKEN",
    "BRAVE_API_KEY",
    "TAVILY_API_KEY",
    "EXA_API_KEY",
    "FIRECRAWL_API_KEY",
    "SEARXNG_API_KEY",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

/// The only variables of the `HERMES_` family that pass without being named.
pub const HERMES_PASSED: [&str; 4] = ["HERMES_HOME", "HERMES_PROFILE", "HERMES_CONFIG", "HERMES_ENV"];

/// Names that a cell gets as they are.
const SAFE_NAMES: [&str; 19] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TERM",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TZ",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
];

/// Families that a cell gets, but for the secret names among them.
const SAFE_PREFIXES: [&str; 3] = ["LC_", "XDG_", "CONDA"];

/// Names that look secret and that commands cannot do without.
const TERMINAL_NAMES: [&str; 3] = ["SSH_AUTH_SOCK", "XAUTHORITY", "TOKENIZERS_PARALLELISM"];

/// The same as families; the word in the family's own name does not count, one in the rest does.
const TERMINAL_PREFIXES: [&str; 2] = ["GIT_AUTHOR_", "GIT_COMMITTER_"];

const PROXIES: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"];

/// Whether the name says that the value is a secret.
#[must_use]
pub fn is_secret_name(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().to_string_lossy().to_ascii_uppercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Whether the broker reads this variable as a credential of its own.
#[must_use]
pub fn is_broker_credential(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().to_string_lossy();
    BROKER_CREDENTIALS.contains(&name.as_ref()) || name.starts_with("TALARIA_") && is_secret_name(name.as_ref())
}

/// Whether the variable belongs to the `HERMES_` family and is none of the four that pass.
pub(super) fn is_other_hermes(name: &str) -> bool {
    name.starts_with("HERMES_") && !HERMES_PASSED.contains(&name)
}

/// Whether a cell gets the variable without its being named.
pub(super) fn is_safe_for_cells(name: &str) -> bool {
    SAFE_NAMES.contains(&name)
        || HERMES_PASSED.contains(&name)
        || is_proxy(name)
        || SAFE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !is_secret_name(name)
}

/// Whether `terminal` gets the variable as far as secrecy goes.
pub(super) fn is_open_to_terminal(name: &str) -> bool {
    TERMINAL_NAMES.contains(&name)
        || TERMINAL_PREFIXES
            .iter()
            .any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| !is_secret_name(rest)))
        || !is_secret_name(name)
}

/// Whether the variable names a proxy, in either case.
pub(super) fn is_proxy(name: &str) -> bool {
    PROXIES
        .iter()
        .any(|proxy| name == *proxy || name == proxy.to_ascii_uppercase())
}

/// A proxy's address without user and password. A list of hosts (`no_proxy`) holds no `@` and stays as it is.
pub(crate) fn without_login(value: &str) -> String {
    let (scheme, rest) = match value.find("://") {
        Some(at) => value.split_at(at + 3),
        None => ("", value),
    };
    // A careless password may hold `/`, `?` or `#` unescaped, so the last `@` of all counts: at worst a proxy's
    // path (which has no meaning) is lost, never is a part of the password kept.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{host}"),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_words_count_anywhere_and_in_any_case() {
        for name in [
            "API_KEY",
            "my_api_key",
            "GITHUB_TOKEN",
            "Secret",
            "PGPASSWORD",
            "X_PASSWD_Y",
            "AWS_CREDENTIALS",
            "SOME_CREDS",
            "BASIC_AUTH",
            "BEARER",
            "SENTRY_DSN",
            "SLACK_WEBHOOK_URL",
            "APIKEY",
            "MONKEY",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["PATH", "DATABASE_URL", "HOME", "PWD", "LC_ALL", ""] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_family_on_the_safe_list_does_not_cover_its_secrets() {
        for (name, safe) in [
            ("LC_ALL", true),
            ("XDG_RUNTIME_DIR", true),
            ("XDG_SESSION_TOKEN", false),
            ("CONDA_PREFIX", true),
            ("CONDA_AUTH", false),
            ("LC_SECRET", false),
            ("PATH", true),
            ("path", false),
            ("HERMES_HOME", true),
            ("HERMES_HOMES", false),
            ("LD_PRELOAD", false),
            ("https_proxy", true),
            ("HTTPS_PROXY", true),
            ("Https_Proxy", false),
            ("DATABASE_URL", false),
        ] {
            assert_eq!(is_safe_for_cells(name), safe, "{name}");
        }
    }

    #[test]
    fn commands_keep_what_only_looks_secret() {
        for (name, open) in [
            ("SSH_AUTH_SOCK", true),
            ("XAUTHORITY", true),
            ("TOKENIZERS_PARALLELISM", true),
            ("GIT_AUTHOR_NAME", true),
            ("GIT_COMMITTER_EMAIL", true),
            ("GIT_AUTHOR_TOKEN", false),
            ("GIT_AUTH", false),
            ("SSH_AUTH_SOCKET", false),
            ("EDITOR", true),
            ("DATABASE_URL", true),
        ] {
            assert_eq!(is_open_to_terminal(name), open, "{name}");
        }
    }

    #[test]
    fn the_login_is_cut_out_of_a_proxy() {
        for (value, expected) in [
            ("http://bob:pw@proxy:3128/", "http://proxy:3128/"),
            ("http://bob@proxy:3128", "http://proxy:3128"),
            ("http://bob:p@ss/w@proxy:3128", "http://proxy:3128"),
            ("bob:pw@proxy:3128", "proxy:3128"),
            ("socks5h://proxy:1080", "socks5h://proxy:1080"),
            ("localhost,127.0.0.1,.corp", "localhost,127.0.0.1,.corp"),
            ("", ""),
        ] {
            assert_eq!(without_login(value), expected, "{value}");
        }
    }

    #[test]
    fn the_brokers_credentials_are_known_by_list_and_by_family() {
        for name in [
            "MODAL_TOKEN_SECRET",
            "BRAVE_API_KEY",
            "TALARIA_HTTP_TOKEN",
            "TALARIA_MCP_AUTH",
        ] {
            assert!(is_broker_credential(name), "{name}");
        }
        for name in ["GITHUB_TOKEN", "TALARIA_LOG", "MODAL_PROFILE"] {
            assert!(!is_broker_credential(name), "{name}");
        }
    }
}
