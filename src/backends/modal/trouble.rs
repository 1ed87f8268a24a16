//! Why no connection stands, and what to do about it: servers that do not listen, names, proxies, certificates.

use std::error::Error;
use std::{fmt, io};

use rustls::{AlertDescription, CertificateError};

/// What to do where nothing more is known.
pub(super) const NETWORK: &str =
    "check the network and the proxy; https://status.modal.com says whether Modal has a problem";

/// The proxy that a connection goes through.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    /// The variable that names it.
    pub(super) variable: &'static str,
    /// Where it is, without what may be secret.
    pub(super) address: String,
    /// Whether the variable holds a user and a password.
    pub(super) has_login: bool,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy {} ({})", self.address, self.variable)
    }
}

/// Why no connection stands. Travels in the causes of other errors.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// What happened, as a sentence.
    pub(super) reason: String,
    /// What to do.
    pub(super) advice: String,
    /// Whether another attempt may do better.
    pub(super) may_pass: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Trouble {}

impl Trouble {
    /// What no other attempt mends.
    pub(super) fn lasting(reason: String, advice: impl Into<String>) -> Self {
        Self {
            reason,
            advice: advice.into(),
            may_pass: false,
        }
    }

    /// What may be over soon.
    pub(super) fn passing(reason: String, advice: impl Into<String>) -> Self {
        Self {
            may_pass: true,
            ..Self::lasting(reason, advice)
        }
    }

    /// One that was told in the causes of an error.
    pub(super) fn told<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        causes(error).find_map(|cause| cause.downcast_ref())
    }

    /// What an attempt to connect to `server` came to, by way of a proxy or directly.
    pub(super) fn of(error: &(dyn Error + 'static), server: &str, proxy: Option<&Proxy>) -> Self {
        if let Some(told) = Self::told(error) {
            return told.clone();
        }
        if let Some(tls) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
            return Self::of_encryption(tls, server);
        }
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let said = deepest(error);
        let names_proxy = |cause: &(dyn Error + 'static)| {
            let text = cause.to_string();
            let [tunnel, socks] = ["tunnel error: ", "SOCKS error: "].map(|start| text.strip_prefix(start));
            tunnel.or(socks).map(str::to_owned)
        };
        if let (Some(proxy), Some(words)) = (proxy, causes(error).find_map(names_proxy)) {
            return Self::of_proxy(&words, &said, host, proxy);
        }
        let is_name = causes(error).any(|cause| cause.to_string() == "dns error");
        match proxy {
            Some(proxy) => Self::passing(
                format!("{proxy} does not let a connection to {server} through: {said}"),
                format!("correct that variable, or name {host} in no_proxy where it can be reached without"),
            ),
            None if is_name => Self::passing(
                format!("the name {host} cannot be looked up: {said}"),
                "check the name and the network; where a proxy leads out, https_proxy must name it",
            ),
            None => Self::passing(format!("no connection to {server} can be made: {said}"), NETWORK),
        }
    }

    fn of_proxy(words: &str, said: &str, host: &str, proxy: &Proxy) -> Self {
        let wants_login = ["authorization required", "user/pass", "credentials"]
            .iter()
            .any(|part| words.contains(part));
        if wants_login {
            let (what, how) = match proxy.has_login {
                true => (
                    "does not accept the user and password that the variable holds",
                    "correct",
                ),
                false => ("wants a user and a password", "write"),
            };
            return Self::lasting(
                format!("{proxy} {what}"),
                format!("{how} them in it: SCHEME://USER:PASSWORD@{}", proxy.address),
            );
        }
        let without = format!("or name {host} in no_proxy where it can be reached without");
        if words.contains("underlying connection") {
            return Self::passing(
                format!("{proxy} cannot be reached: {said}"),
                format!("correct that variable, {without}"),
            );
        }
        if words.contains("unsuccessful") || words.contains("not allowed") {
            return Self::lasting(
                format!("{proxy} refuses to connect to {host}"),
                format!("have it let {host} through, {without}"),
            );
        }
        Self::passing(
            format!("{proxy} does not connect to {host}: {said}"),
            format!("try again; is it a proxy of that kind? {without}"),
        )
    }

    /// A server that speaks another version of HTTP than the one that is needed.
    pub(super) fn of_older_http(server: &str) -> Self {
        Self::lasting(
            format!("{server} speaks no HTTP/2"),
            "correct the address; a proxy on the way that reads along must let it through unread",
        )
    }

    fn of_encryption(error: &rustls::Error, server: &str) -> Self {
        if matches!(
            error,
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
        ) {
            return Self::of_older_http(server);
        }
        let rustls::Error::InvalidCertificate(certificate) = error else {
            return Self::lasting(
                format!("no encrypted connection to {server} can be made: {error}"),
                "correct the address and its port; something on the way may also answer in its place",
            );
        };
        let (what, advice) = match certificate {
            // An authority of the same name as one that is trusted, with another key, is none that is.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                "is signed by nobody who is trusted here",
                "where a proxy on the way makes certificates, name the file with those that are to be trusted in \
                 SSL_CERT_FILE, or install its authority's in the system; else do not trust this network",
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                "has expired",
                "check the clock of this machine; if it is right, nobody but its owner can renew the certificate",
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                ("is not valid yet", "check the clock of this machine")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                "is made out to another name",
                "correct the address; something on the way may also answer in its place",
            ),
            other => {
                return Self::lasting(
                    format!("the certificate of {server} is not accepted: {other}"),
                    "something on the way may answer in its place",
                );
            }
        };
        Self::lasting(format!("the certificate of {server} {what}"), advice)
    }
}

/// An error and what lies below it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| below(*error))
}

fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    // One that is wrapped in an error of I/O is none of its causes.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// What lies at the bottom of an error.
pub(super) fn deepest(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a cause, as connections wrap them.
    #[derive(Debug)]
    struct Above(&'static str, Box<dyn Error + Send + Sync>);

    impl fmt::Display for Above {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Above {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.1)
        }
    }

    fn above(words: &'static str, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Above {
        Above(words, cause.into())
    }

    fn certificate(error: CertificateError) -> Above {
        let tls = rustls::Error::InvalidCertificate(error);
        above(
            "connect",
            io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls)),
        )
    }

    #[test]
    fn each_trouble_is_told_apart_with_what_to_do() {
        let proxy = |has_login| Proxy {
            variable: "https_proxy",
            address: "proxy:3128".to_owned(),
            has_login,
        };
        let (open, closed) = (proxy(false), proxy(true));
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, proxy, may_pass, words) in [
            (
                above("x", refused()),
                None,
                true,
                ["api.modal.com:443 can be made: connection refused", "status.modal.com"],
            ),
            (
                above("dns error", io::Error::other("no such name")),
                None,
                true,
                ["name api.modal.com cannot", "https_proxy"],
            ),
            (
                above("tunnel error: failed to create underlying connection", refused()),
                Some(&open),
                true,
                [
                    "proxy:3128 (https_proxy) cannot be reached: connection refused",
                    "no_proxy",
                ],
            ),
            (
                above("x", io::Error::other("tunnel error: proxy authorization required")),
                Some(&open),
                false,
                ["wants a user and a password", "USER:PASSWORD@proxy:3128"],
            ),
            (
                above("x", io::Error::other("tunnel error: proxy authorization required")),
                Some(&closed),
                false,
                ["does not accept the user", "correct them"],
            ),
            (
                above("x", io::Error::other("SOCKS error: credentials not accepted")),
                Some(&closed),
                false,
                ["does not accept the user", "correct them"],
            ),
            (
                above("x", io::Error::other("tunnel error: unsuccessful")),
                Some(&open),
                false,
                ["refuses to connect to api.modal.com", "no_proxy"],
            ),
            (
                above("x", io::Error::other("tunnel error: unexpected end of file")),
                Some(&open),
                true,
                ["does not connect to api.modal.com", "try again"],
            ),
            (
                above("x", io::Error::other("reset")),
                Some(&open),
                true,
                ["api.modal.com:443 through: reset", "no_proxy"],
            ),
            (
                certificate(CertificateError::UnknownIssuer),
                None,
                false,
                ["signed by nobody", "SSL_CERT_FILE"],
            ),
            (
                certificate(CertificateError::BadSignature),
                None,
                false,
                ["signed by nobody", "SSL_CERT_FILE"],
            ),
            (
                certificate(CertificateError::Expired),
                Some(&open),
                false,
                ["has expired", "clock"],
            ),
            (
                certificate(CertificateError::NotValidYet),
                None,
                false,
                ["not valid yet", "clock"],
            ),
            (
                certificate(CertificateError::NotValidForName),
                None,
                false,
                ["another name", "address"],
            ),
            (
                certificate(CertificateError::Revoked),
                None,
                false,
                ["not accepted", "in its place"],
            ),
            (
                above(
                    "x",
                    io::Error::other(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)),
                ),
                None,
                false,
                ["speaks no HTTP/2", "unread"],
            ),
            (
                above("x", io::Error::other(rustls::Error::DecryptError)),
                None,
                false,
                ["no encrypted connection to api.modal.com:443", "port"],
            ),
        ] {
            let trouble = Trouble::of(&error, "api.modal.com:443", proxy);
            let text = format!("{}; {}", trouble.reason, trouble.advice);
            assert!(words.iter().all(|word| text.contains(word)), "{error:?}: {text}");
            assert_eq!(trouble.may_pass, may_pass, "{text}");
            // Wrapped again, it is what it was.
            let wrapped = io::Error::other(above("transport error", trouble.clone()));
            assert_eq!(Trouble::told(&wrapped).map(|told| &told.reason), Some(&trouble.reason));
            assert_eq!(Trouble::of(&wrapped, "other", None).reason, trouble.reason);
        }
    }
}
