//! Where an SSH target is, as users write it. `ssh` itself does not read an IPv6 address in its own `ssh://` form.

use std::net::Ipv6Addr;

/// A destination as `ssh` takes it beside `-p`, and the port.
pub(super) type Address = (String, Option<u16>);

/// Reads what stands behind `ssh:`; an error says what is wrong with it.
pub(super) fn address(text: &str) -> Result<Address, &'static str> {
    match text.strip_prefix("//") {
        Some(address) => whole(address),
        None => plain(text),
    }
}

/// `[USER@]HOST`, where a host may be an alias of any form.
fn plain(text: &str) -> Result<Address, &'static str> {
    let (user, host) = with_user(text);
    if is_ipv6(host) {
        return joined(user, host, None);
    }
    let (host, port) = split_port(host);
    let host = unbracketed(host)?;
    match port.map(str::parse::<u16>) {
        None => joined(user, host, None),
        Some(Ok(_)) => Err("a port has its place in `ssh://USER@HOST:PORT`"),
        Some(Err(_)) => Err("a host has no `:` in it"),
    }
}

/// `[USER@]HOST[:PORT][/]`, percent-encoded.
fn whole(address: &str) -> Result<Address, &'static str> {
    let address = address.strip_suffix('/').unwrap_or(address);
    if address.contains(['/', '?', '#']) {
        return Err("nothing follows the host and its port");
    }
    let (user, host) = with_user(address);
    let (host, port) = split_port(host);
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => {
            return Err("a port is a number from 1 to 65535, and an IPv6 address stands in brackets: `[::1]:22`");
        }
    };
    // What follows a `;` are parameters that `ssh` passes over.
    let user = user.map(|user| decoded(user.split(';').next().unwrap_or(user)));
    if user.as_ref().is_some_and(|user| user.contains(':')) {
        return Err("no password is given to `ssh`: use a key");
    }
    joined(user.as_deref(), &decoded(unbracketed(host)?), port)
}

/// A name may have an `@` in it, a host has none.
fn with_user(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    }
}

/// What stands behind the last colon, where that is outside of brackets.
fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host, None),
    }
}

/// An address, with its zone or not (`fe80::1%eth0`).
fn is_ipv6(host: &str) -> bool {
    host.split('%')
        .next()
        .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

fn unbracketed(host: &str) -> Result<&str, &'static str> {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(inner) if is_ipv6(inner) => Ok(inner),
        None if !host.contains(['[', ']']) => Ok(host),
        _ => Err("what stands in brackets is no IPv6 address"),
    }
}

fn joined(user: Option<&str>, host: &str, port: Option<u16>) -> Result<Address, &'static str> {
    if host.is_empty() {
        return Err("the host is missing");
    }
    if user.is_some_and(str::is_empty) {
        return Err("the user before `@` is missing");
    }
    let destination = match user {
        Some(user) => format!("{user}@{host}"),
        None => host.to_owned(),
    };
    // A leading dash would reach `ssh` as an option.
    if destination.starts_with('-') || host.starts_with('-') {
        return Err("neither user nor host begins with `-`");
    }
    if destination.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("there is a blank in it");
    }
    Ok((destination, port))
}

/// Less percent signs; what is none of theirs stays.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(bytes.len());
    let mut next = 0;
    while next < bytes.len() {
        let code = text.get(next + 1..next + 3).filter(|_| bytes[next] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                found.push(byte);
                next += 3;
            }
            None => {
                found.push(bytes[next]);
                next += 1;
            }
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_what_ssh_takes() {
        for (text, destination, port) in [
            ("build1", "build1", None),
            ("bob@build1", "bob@build1", None),
            ("bob@corp.example@build1", "bob@corp.example@build1", None),
            ("[::1]", "::1", None),
            ("::1", "::1", None),
            ("bob@[fe80::1%eth0]", "bob@fe80::1%eth0", None),
            ("bob@2001:db8::7:22", "bob@2001:db8::7:22", None),
            ("//build1", "build1", None),
            ("//build1/", "build1", None),
            ("//bob@build1:2222", "bob@build1", Some(2222)),
            ("//bob@10.0.0.7:2222/", "bob@10.0.0.7", Some(2222)),
            ("//bob@[::1]:2222", "bob@::1", Some(2222)),
            ("//[::1]", "::1", None),
            ("//bob@[fe80::1%25eth0]:22", "bob@fe80::1%eth0", Some(22)),
            ("//bob%40corp@build1", "bob@corp@build1", None),
            ("//bob;fingerprint=x@build1", "bob@build1", None),
        ] {
            assert_eq!(address(text), Ok((destination.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn what_is_none_says_why() {
        for (text, words) in [
            ("", "host is missing"),
            ("//", "host is missing"),
            ("//bob@", "host is missing"),
            ("@build1", "user before"),
            ("build1:2222", "a port has its place in"),
            ("bob@[::1]:22", "a port has its place in"),
            ("build1:x", "no `:`"),
            ("//build1:0", "from 1 to 65535"),
            ("//build1:70000", "from 1 to 65535"),
            ("//build1:", "from 1 to 65535"),
            ("//2001:db8::x", "in brackets"),
            ("//[build1]:22", "no IPv6 address"),
            ("//[::1", "no IPv6 address"),
            ("[::1", "no"),
            ("//build1/src", "nothing follows"),
            ("//bob:secret@build1", "no password"),
            ("-oProxyCommand=x", "begins with `-`"),
            ("bob@-x", "begins with `-`"),
            ("//-x", "begins with `-`"),
            ("a b", "a blank"),
        ] {
            let said = address(text);
            assert!(matches!(said, Err(said) if said.contains(words)), "{text}: {said:?}");
        }
    }
}
