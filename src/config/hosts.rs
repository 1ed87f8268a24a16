//! Hosts, addresses and networks as a list in the configuration names them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// One entry of a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Every address within.
    Network(IpNet),
    /// The host of that name.
    Name(String),
    /// Every host whose name ends with a dot and this.
    Below(String),
}

/// A text that is no host, address or network.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no host, address or network; write `wiki.corp`, `*.corp`, `10.1.2.3` or `10.1.0.0/16`")]
pub struct NoHostPattern(String);

impl HostPattern {
    /// Whether the entry names this host. Names are compared in lower case, without a dot at the end.
    #[must_use]
    pub fn names(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match self {
            Self::Name(name) => *name == host,
            Self::Below(name) => host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Self::Network(_) => false,
        }
    }

    /// Whether the entry covers this address.
    #[must_use]
    pub fn covers(&self, address: IpAddr) -> bool {
        matches!(self, Self::Network(network) if network.contains(&address))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

impl FromStr for HostPattern {
    type Err = NoHostPattern;

    fn from_str(text: &str) -> Result<Self, NoHostPattern> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network));
        }
        let (is_below, name) = match text.strip_prefix("*.").or_else(|| text.strip_prefix('.')) {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !name.split('.').all(is_label) {
            return Err(NoHostPattern(text.to_owned()));
        }
        Ok(if is_below { Self::Below(name) } else { Self::Name(name) })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn names_and_networks_are_told_apart() {
        for (pattern, host, address, expected) in [
            ("wiki.corp", "Wiki.Corp.", "10.0.0.1", (true, false)),
            ("wiki.corp", "x.wiki.corp", "10.0.0.1", (false, false)),
            ("*.corp", "x.wiki.corp", "10.0.0.1", (true, false)),
            (".corp", "wiki.corp", "10.0.0.1", (true, false)),
            ("*.corp", "corp", "10.0.0.1", (false, false)),
            ("*.corp", "evilcorp", "10.0.0.1", (false, false)),
            ("10.0.0.0/8", "10.0.0.1", "10.9.9.9", (false, true)),
            ("10.0.0.0/8", "x", "11.0.0.1", (false, false)),
            ("::1", "x", "::1", (false, true)),
            ("fd00::/8", "x", "fd12::1", (false, true)),
        ] {
            let pattern: HostPattern = pattern.parse().unwrap();
            let found = (pattern.names(host), pattern.covers(address.parse().unwrap()));
            assert_eq!(found, expected, "{pattern} {host} {address}");
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "*", "*.", "a b", "http://a", "10.0.0.0/33", "a:80", "a..b"] {
            let error = text.parse::<HostPattern>().unwrap_err();
            assert!(error.to_string().contains("10.1.0.0/16"), "{text}");
        }
    }
}
