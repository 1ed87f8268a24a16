//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses at which clouds tell a machine its credentials, in ranges that are no giveaway by themselves.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
];
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// What kind of address they are.
pub(super) const METADATA: &str = "the metadata address of a cloud";

/// Names of that service.
const METADATA_NAMES: [&str; 3] = ["metadata", "metadata.google.internal", "instance-data"];

/// What kind of address it is, when it is none of the public internet.
pub(super) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

/// Whether a name stands for something local without being resolved.
pub(super) fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || is_metadata_name(&host) || host.ends_with(".localhost") || host.ends_with(".localdomain")
}

/// Whether a name means the service at which a cloud tells credentials, whoever resolves it.
pub(super) fn is_metadata_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    METADATA_NAMES.contains(&host.as_str())
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        _ if METADATA_V4.contains(&address) => Some(METADATA),
        (0, ..) => Some("an unspecified address"),
        (127, ..) => Some("a loopback address"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("a private address"),
        (100, 64..=127, _) => Some("an address of a carrier's or cluster's own network"),
        (169, 254, _) => Some("a link-local address"),
        (192, 0, 0) | (198, 18..=19, _) => Some("an address for special use"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("an address for documentation"),
        (192, 88, 99) => Some("a relay's address"),
        (224..=239, ..) => Some("a multicast address"),
        (240..=255, ..) => Some("a reserved address"),
        _ => None,
    }
}

fn v6(address: Ipv6Addr) -> Option<&'static str> {
    let parts = address.segments();
    let embedded = |high: u16, low: u16| v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match parts {
        _ if address == METADATA_V6 => Some(METADATA),
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        // IPv4 in IPv6 clothes: mapped, compatible, translated, NAT64, 6to4. The address within counts.
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some(embedded(high, low).unwrap_or("an IPv4 address in disguise"))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        [0x64, 0xff9b, 1, ..] => Some("a translated address of the network's own"),
        [0x2001, 0, ..] => Some("a tunnel's address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("an address for documentation"),
        [0x2001, 2, 0, ..] | [0x100, 0, 0, 0, ..] => Some("an address for special use"),
        [0xfc00..=0xfdff, ..] => Some("a private address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xfec0..=0xfeff, ..] => Some("a site-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        // All that is public today lies in 2000::/3.
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "93.184.216.34",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "169.253.1.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert_eq!(not_public(public.parse().unwrap()), None, "{public}");
        }
        for (address, word) in [
            ("127.0.0.1", "loopback"),
            ("127.8.9.1", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.1", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("100.64.0.1", "network"),
            ("100.100.100.200", "metadata"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "metadata"),
            ("168.63.129.16", "metadata"),
            ("192.0.0.8", "special"),
            ("198.18.0.1", "special"),
            ("203.0.113.9", "documentation"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:1.1.1.1", "disguise"),
            ("::127.0.0.1", "loopback"),
            ("::ffff:0:10.0.0.1", "private"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "metadata"),
            ("64:ff9b:1::1", "translated"),
            ("2002:7f00:1::", "loopback"),
            ("2002:a9fe:a9fe::1", "metadata"),
            ("2001::1", "tunnel"),
            ("2001:db8::1", "documentation"),
            ("fc00::1", "private"),
            ("fd00:ec2::254", "metadata"),
            ("fe80::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("5f00::1", "reserved"),
        ] {
            let found = not_public(address.parse().unwrap()).unwrap_or("public");
            assert!(found.contains(word), "{address}: {found}");
        }
    }

    #[test]
    fn names_of_this_machine_are_known() {
        for name in ["localhost", "LOCALHOST.", "a.localhost", "metadata.google.internal"] {
            assert!(is_local_name(name), "{name}");
        }
        for name in ["localhost.example.org", "example.org", "mylocalhost"] {
            assert!(!is_local_name(name), "{name}");
        }
    }
}
