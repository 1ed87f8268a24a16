//! Which hosts pages may come from.
//!
//! Addresses are judged when a connection is made to them: the client connects to those that passed here and looks up
//! no name by itself, so that a name cannot mean one address when it is checked and another when it is used.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::address::{METADATA, is_local_name, is_metadata_name, not_public};
use super::options::{Lookup, Names};
use super::thread;
use crate::config::HostPattern;

/// The longest address of a page.
const LONGEST_URL: usize = 8 * 1024;

/// Judges addresses, and looks names up for the client that fetches pages.
#[derive(Clone)]
pub(super) struct Guard {
    allowed: Arc<[HostPattern]>,
    names: Arc<dyn Names>,
}

/// A host that pages must not come from.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}, which pages are not fetched from{}", self.advice())]
pub(super) struct Refused {
    host: String,
    what: String,
    /// Whether a cloud tells credentials there; nobody is advised to open that.
    tells_credentials: bool,
}

impl Refused {
    fn advice(&self) -> String {
        if self.tells_credentials {
            ": a cloud tells a machine its credentials there; choose another page".to_owned()
        } else {
            format!("; if they may be, add {} to web.extract.allow_private", self.host)
        }
    }
}

/// What is said of an address that is neither `http` nor `https`.
pub(super) fn other_scheme(scheme: &str) -> String {
    let advice = match scheme {
        "file" => "files are read with read_file()",
        "ftp" | "ftps" | "sftp" => "download it with terminal(), or give its address with https:// if it has one",
        _ => "give an address that begins with https://",
    };
    let scheme: String = scheme.chars().take(40).collect();
    format!("only http and https addresses can be fetched, and this one is {scheme}:; {advice}")
}

impl Guard {
    pub(super) fn new(allowed: &[HostPattern], names: Option<Arc<dyn Names>>) -> Self {
        Self {
            allowed: allowed.into(),
            names: names.unwrap_or_else(|| Arc::new(SystemNames)),
        }
    }

    /// Judges an address as it is written, before anything is looked up.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(other_scheme(url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the address holds a user or password; leave them out".to_owned());
        }
        if url.as_str().len() > LONGEST_URL {
            return Err(format!("the address is longer than {LONGEST_URL} bytes"));
        }
        let refused = match url.host() {
            None => return Err("the address names no host".to_owned()),
            Some(Host::Ipv4(address)) => self.judge("", address.into()),
            Some(Host::Ipv6(address)) => self.judge("", address.into()),
            Some(Host::Domain(name)) if is_local_name(name) && !self.is_allowed(name) => Err(Refused {
                host: name.to_owned(),
                what: format!("{name} is a name of this machine or its network"),
                tells_credentials: is_metadata_name(name),
            }),
            Some(Host::Domain(_)) => Ok(()),
        };
        refused.map_err(|refused| refused.to_string())
    }

    fn is_allowed(&self, host: &str) -> bool {
        self.allowed.iter().any(|pattern| pattern.names(host))
    }

    /// Judges one address of a host; the host's name is empty where the address itself was written.
    fn judge(&self, host: &str, address: IpAddr) -> Result<(), Refused> {
        let Some(kind) = not_public(address) else {
            return Ok(());
        };
        if self.is_allowed(host)
            || self
                .allowed
                .iter()
                .any(|pattern| pattern.covers(address.to_canonical()))
        {
            return Ok(());
        }
        let what = if host.is_empty() {
            format!("{address} is {kind}")
        } else {
            format!("{host} is at {address}, {kind}")
        };
        Err(Refused {
            host: if host.is_empty() {
                address.to_string()
            } else {
                host.to_owned()
            },
            what,
            tells_credentials: kind == METADATA,
        })
    }

    /// The addresses of a host that may be connected to; an error where there is none.
    fn admitted(&self, host: &str, found: Vec<IpAddr>) -> Result<Vec<SocketAddr>, Refused> {
        let mut refused = None;
        let mut admitted = Vec::new();
        for address in found {
            match self.judge(host, address) {
                // The port is the address's own; the client puts it in.
                Ok(()) => admitted.push(SocketAddr::new(address, 0)),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if admitted.is_empty() => Err(error),
            _ => Ok(admitted),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = guard.names.lookup(name.as_str()).await?;
            let admitted = guard.admitted(name.as_str(), found)?;
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

/// The system's own resolver. It cannot be interrupted, so it works on a thread that nobody waits for at the end.
struct SystemNames;

impl Names for SystemNames {
    fn lookup(&self, host: &str) -> Lookup {
        let host = host.to_owned();
        Box::pin(async move {
            thread::run("lookup", thread::SMALL, move || {
                let found = (host.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip()).collect())
            })
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let allowed: Vec<HostPattern> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Guard::new(&allowed, None)
    }

    #[test]
    fn addresses_are_judged_as_they_are_written() {
        for (url, allowed, word) in [
            ("http://example.org/", "", None),
            ("https://1.1.1.1/", "", None),
            ("ftp://example.org/", "", Some("only http and https")),
            ("file:///etc/passwd", "", Some("only http and https")),
            ("http://bob:pw@example.org/", "", Some("leave them out")),
            ("http://bob@example.org/", "", Some("leave them out")),
            ("http://localhost:8080/", "", Some("localhost is a name")),
            ("http://localhost./", "", Some("localhost. is a name")),
            ("http://127.0.0.1/", "", Some("127.0.0.1 is a loopback address")),
            ("http://2130706433/", "", Some("127.0.0.1 is a loopback address")),
            ("http://0x7f.1/", "", Some("127.0.0.1 is a loopback address")),
            ("http://0177.0.0.1/", "", Some("127.0.0.1 is a loopback address")),
            ("http://[::1]/", "", Some("::1 is a loopback address")),
            ("http://[::ffff:10.0.0.1]/", "", Some("a private address")),
            ("http://[fe80::1]/", "", Some("link-local")),
            ("http://169.254.169.254/latest/meta-data/", "", Some("metadata")),
            ("http://localhost/", "localhost", None),
            ("http://10.1.2.3/", "10.0.0.0/8", None),
            ("http://[::ffff:10.1.2.3]/", "10.0.0.0/8", None),
            ("http://10.1.2.3/", "11.0.0.0/8", Some("allow_private")),
        ] {
            let allowed: &[&str] = if allowed.is_empty() { &[] } else { &[allowed] };
            let found = guard(allowed).check(&Url::parse(url).unwrap());
            match (found, word) {
                (Ok(()), None) => {}
                (Err(error), Some(word)) => assert!(error.contains(word), "{url}: {error}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
        let long = Url::parse(&format!("http://a/{}", "x".repeat(9000))).unwrap();
        assert!(guard(&[]).check(&long).unwrap_err().contains("longer"));
    }

    #[test]
    fn of_the_addresses_of_a_name_only_public_ones_are_used() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let both = guard(&[])
            .admitted("a.org", addresses(&["10.0.0.1", "1.1.1.1"]))
            .unwrap();
        assert_eq!(both, ["1.1.1.1:0".parse().unwrap()]);
        let error = guard(&[]).admitted("a.org", addresses(&["10.0.0.1"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.org is at 10.0.0.1, a private address, which pages are not fetched from; if they may be, add a.org to \
             web.extract.allow_private"
        );
        for allowed in ["a.org", "*.org", "10.0.0.0/24"] {
            let found = guard(&[allowed]).admitted("a.org", addresses(&["10.0.0.1"])).unwrap();
            assert_eq!(found.len(), 1, "{allowed}");
        }
    }
}
