//! What a relay says first (`R`) and what the broker says back (`H`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bytes::Bytes;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// What a place is, as its survey found it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    home: Native,
    /// Name of the account; empty where it has none.
    pub user: String,
    /// Its number.
    pub uid: u32,
    cwd: Native,
    environment: BTreeMap<Native, Native>,
    shell: Option<Native>,
    bash: Option<Native>,
    python: Native,
    /// `3.11.7`, of the interpreter for the kernel.
    pub version: String,
    rejected: Vec<(Native, String)>,
    /// `linux` and the like.
    pub platform: String,
}

impl Facts {
    /// The account's home.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.home.path()
    }

    /// Where a session starts.
    #[must_use]
    pub fn cwd(&self) -> PathBuf {
        self.cwd.path()
    }

    /// The variables of an ordinary process there.
    pub fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.environment.iter().map(|(name, value)| (name.os(), value.os()))
    }

    /// The account's shell.
    #[must_use]
    pub fn shell(&self) -> Option<PathBuf> {
        self.shell.as_ref().map(Native::path)
    }

    /// `bash`, where there is one.
    #[must_use]
    pub fn bash(&self) -> Option<PathBuf> {
        self.bash.as_ref().map(Native::path)
    }

    /// The interpreter for the kernel.
    #[must_use]
    pub fn python(&self) -> PathBuf {
        self.python.path()
    }

    /// Interpreters that were passed over, and what was found.
    pub fn rejected(&self) -> impl Iterator<Item = (PathBuf, &str)> {
        self.rejected.iter().map(|(path, found)| (path.path(), found.as_str()))
    }
}

/// First frame of a link.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ready {
    pub(super) folder: String,
    /// The last command that the supervisor took.
    pub(super) taken: u64,
    /// Commands that wait for it.
    pub(super) stored: BTreeSet<u64>,
    /// Bytes that are there of each blob.
    pub(super) blobs: BTreeMap<String, u64>,
    /// Blobs that are whole.
    pub(super) complete: BTreeSet<String>,
    /// Only on the link that made the session.
    pub(super) facts: Option<Facts>,
}

/// What the broker has.
#[derive(Debug, Serialize)]
pub(super) struct Resume {
    pub(super) log: u64,
    /// The number of the last command that was ever sent.
    pub(super) sent: u64,
    pub(super) calls: BTreeMap<String, u64>,
}

impl Resume {
    pub(super) fn text(&self) -> Bytes {
        // Strings and numbers always have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// A text of the target's system: any bytes, those that are no UTF-8 escaped as Python does (`\udcXX`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Native(Vec<u8>);

impl Native {
    fn os(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.os())
    }

    /// The bytes behind escaped ones, which come as the three bytes that a lone surrogate would have.
    fn unescape(text: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((first, after)) = rest.split_first() {
            rest = match rest {
                [0xed, second @ 0xb2..=0xb3, third, after @ ..] => {
                    bytes.push((second & 3) << 6 | (third & 0x3f));
                    after
                }
                _ => {
                    bytes.push(*first);
                    after
                }
            };
        }
        Self(bytes)
    }
}

impl<'de> Deserialize<'de> for Native {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyText;
        impl Visitor<'_> for AnyText {
            type Value = Native;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Native, E> {
                Ok(Native(text.as_bytes().to_vec()))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Native, E> {
                Ok(Native::unescape(bytes))
            }
        }
        // Only as bytes does the parser let lone surrogates pass.
        deserializer.deserialize_bytes(AnyText)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_survey_is_read_with_bytes_that_are_no_text() {
        let text = br#"{"session": "ab", "folder": "/run/D", "supervisor": true, "taken": 3, "stored": [4, 5],
            "blobs": {"c-1": 70000}, "complete": [], "unknown": 1,
            "facts": {"home": "/home/m\u00fcller\udcff", "user": "u", "uid": 1000, "cwd": "/w", "shell": null,
              "environment": {"A\udc80B": "\udcfex", "PLAIN": "v\u20ac"}, "bash": "/bin/bash", "python": "/usr/bin/python3",
              "version": "3.11.2", "rejected": [["/venv/bin/python", "is Python 3.6"]], "platform": "linux"}}"#;
        let ready: Ready = serde_json::from_slice(text).unwrap();
        assert_eq!((ready.folder.as_str(), ready.taken), ("/run/D", 3));
        assert_eq!(ready.stored, BTreeSet::from([4, 5]));
        assert_eq!(ready.blobs["c-1"], 70_000);
        let facts = ready.facts.unwrap();
        assert_eq!(facts.home().as_os_str().as_bytes(), b"/home/m\xc3\xbcller\xff");
        let environment: BTreeMap<OsString, OsString> = facts.environment().collect();
        let expected = [(&b"A\x80B"[..], &b"\xfex"[..]), (b"PLAIN", "v€".as_bytes())];
        let found: Vec<(&[u8], &[u8])> = environment
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(facts.shell(), None);
        assert_eq!(facts.bash(), Some(PathBuf::from("/bin/bash")));
        assert_eq!(facts.rejected().next().unwrap().1, "is Python 3.6");
    }

    #[test]
    fn every_byte_survives_its_escape() {
        for byte in 0x80..=0xff_u8 {
            let text = format!("\"\\udc{byte:02x}\"");
            let native: Native = serde_json::from_str(&text).unwrap();
            assert_eq!(native.0, [byte]);
        }
        for text in ["", "plain", "ü€😀", "\u{fffd}"] {
            let native: Native = serde_json::from_str(&serde_json::to_string(text).unwrap()).unwrap();
            assert_eq!(native.0, text.as_bytes());
        }
    }
}
