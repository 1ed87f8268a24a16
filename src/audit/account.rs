//! Who runs the broker.

use std::sync::OnceLock;

/// The account of this process: its name, or its number where it has none here.
#[must_use]
pub fn account() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let uid = rustix::process::getuid().as_raw();
        let accounts = std::fs::read("/etc/passwd").unwrap_or_default();
        named(&String::from_utf8_lossy(&accounts), uid).unwrap_or_else(|| format!("uid {uid}"))
    })
}

fn named(accounts: &str, uid: u32) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_told_by_its_number() {
        let accounts = "root:x:0:0::/root:/bin/sh\n# a note\n\n:x:7::::\nbob:x:1000:1000::/home/bob:/bin/sh\n";
        assert_eq!(named(accounts, 0).as_deref(), Some("root"));
        assert_eq!(named(accounts, 1000).as_deref(), Some("bob"));
        assert_eq!((named(accounts, 7), named(accounts, 8)), (None, None));
    }
}
