//! Reading a target's text.

use std::fmt;
use std::str::FromStr;

use super::address::address;
use super::error::{SCHEME_WORDS, TargetError, lacks};
use crate::suggest::nearest;

/// What a target's text means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// This machine.
    Local,
    /// A container that is made for the session.
    Docker {
        /// The image it is made from.
        image: String,
    },
    /// A container that runs already.
    Container {
        /// Its name or id.
        name: String,
    },
    /// A running service of a compose project.
    Compose {
        /// The project; `None` is the one of the working directory.
        project: Option<String>,
        /// The service.
        service: String,
        /// Which of its replicas, from 1.
        index: Option<u32>,
    },
    /// Any command that runs a program somewhere.
    Exec {
        /// The command as written; the program to run is appended to it.
        command: String,
    },
    /// An SSH host.
    Ssh {
        /// What `ssh` takes: a host, an alias, or `user@host`.
        destination: String,
        /// The port, where one was written.
        port: Option<u16>,
    },
    /// A Modal sandbox that is made for the session.
    Modal {
        /// The image it is made from; `None` is the default one.
        image: Option<String>,
    },
    /// A Modal sandbox that exists.
    ModalSandbox {
        /// Its id, `sb-…`.
        id: String,
    },
    /// An entry of `targets` in the configuration.
    Configured {
        /// The entry's name.
        name: String,
    },
}

/// A target's text together with what it means. Displays as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    text: String,
    kind: TargetKind,
}

impl TargetSpec {
    /// This machine.
    #[must_use]
    pub fn local() -> Self {
        Self {
            text: "local".to_owned(),
            kind: TargetKind::Local,
        }
    }

    /// Reads a target. A word without a colon that is no kind of its own is taken for a configured name;
    /// whether there is such a name shows when it is looked up.
    ///
    /// # Errors
    /// An empty text, an unknown kind before a colon, and a kind without what it needs are refused.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let text = text.trim();
        let kind = match text.split_once(':') {
            _ if text.is_empty() => return Err(TargetError::Empty),
            None if text == "local" => TargetKind::Local,
            None if text == "modal" => TargetKind::Modal { image: None },
            None if SCHEME_WORDS.contains(&text) => {
                return Err(lacks(text, "it does not say which one"));
            }
            None => TargetKind::Configured { name: text.to_owned() },
            Some((scheme, rest)) => with_scheme(text, scheme, rest)?,
        };
        Ok(Self {
            text: text.to_owned(),
            kind,
        })
    }

    /// What the text means.
    #[must_use]
    pub fn kind(&self) -> &TargetKind {
        &self.kind
    }

    /// The text as the user wrote it, without surrounding blanks.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TargetSpec {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TargetKind {
    /// The kind in one word, as it stands before the colon.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker { .. } => "docker",
            Self::Container { .. } => "container",
            Self::Compose { .. } => "compose",
            Self::Exec { .. } => "exec",
            Self::Ssh { .. } => "ssh",
            Self::Modal { .. } | Self::ModalSandbox { .. } => "modal",
            Self::Configured { .. } => "a configured name",
        }
    }
}

/// Reads what stands behind `scheme:`.
fn with_scheme(text: &str, scheme: &str, rest: &str) -> Result<TargetKind, TargetError> {
    let needed = |what: &str| {
        if rest.trim().is_empty() {
            Err(lacks(text, what))
        } else {
            Ok(rest.trim().to_owned())
        }
    };
    Ok(match scheme {
        "local" => return Err(lacks(text, "nothing may follow `local`")),
        "docker" => TargetKind::Docker {
            image: needed("the image is missing")?,
        },
        "container" => TargetKind::Container {
            name: needed("the container's name is missing")?,
        },
        "compose" => compose(text, &needed("the service is missing")?)?,
        // Without a command programs start on this machine, but everything goes through the directory.
        "exec" => TargetKind::Exec {
            command: rest.trim().to_owned(),
        },
        "ssh" => {
            let (destination, port) =
                address(&needed("the host is missing")?).map_err(|problem| lacks(text, problem))?;
            TargetKind::Ssh { destination, port }
        }
        "modal" => match needed("the image is missing")?.strip_prefix("//") {
            Some(id) if id.strip_prefix("sb-").is_some_and(|id| !id.is_empty()) => {
                TargetKind::ModalSandbox { id: id.to_owned() }
            }
            Some(_) => return Err(lacks(text, "a sandbox id begins with `sb-`")),
            None => TargetKind::Modal {
                image: Some(rest.trim().to_owned()),
            },
        },
        _ => {
            return Err(TargetError::UnknownScheme {
                text: text.to_owned(),
                scheme: scheme.to_owned(),
                suggestion: nearest(scheme, SCHEME_WORDS).map(str::to_owned),
            });
        }
    })
}

fn compose(text: &str, rest: &str) -> Result<TargetKind, TargetError> {
    let (path, index) = match rest.rsplit_once('#') {
        None => (rest, None),
        Some((path, number)) => match number.parse::<u32>() {
            Ok(number) if number > 0 => (path, Some(number)),
            _ => return Err(lacks(text, "the replica after `#` is a number from 1")),
        },
    };
    let (project, service) = match path.split_once('/') {
        None => (None, path),
        Some((project, service)) => (Some(project), service),
    };
    if service.is_empty() || service.contains('/') || project.is_some_and(str::is_empty) {
        return Err(lacks(text, "the project or the service is missing"));
    }
    Ok(TargetKind::Compose {
        project: project.map(str::to_owned),
        service: service.to_owned(),
        index,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn compose_kind(project: Option<&str>, service: &str, index: Option<u32>) -> TargetKind {
        TargetKind::Compose {
            project: project.map(str::to_owned),
            service: service.to_owned(),
            index,
        }
    }

    #[test]
    fn every_form_is_read_and_shown_as_written() {
        for (text, kind) in [
            ("local", TargetKind::Local),
            (
                "docker:python:3.12",
                TargetKind::Docker {
                    image: "python:3.12".into(),
                },
            ),
            (
                "docker:reg:5000/a/b@sha256:00",
                TargetKind::Docker {
                    image: "reg:5000/a/b@sha256:00".into(),
                },
            ),
            ("container:web-1", TargetKind::Container { name: "web-1".into() }),
            ("compose:api", compose_kind(None, "api", None)),
            ("compose:shop/api#2", compose_kind(Some("shop"), "api", Some(2))),
            (
                "exec:kubectl exec -i p --",
                TargetKind::Exec {
                    command: "kubectl exec -i p --".into(),
                },
            ),
            (
                "ssh:bob@build1",
                TargetKind::Ssh {
                    destination: "bob@build1".into(),
                    port: None,
                },
            ),
            (
                "ssh://bob@build1:2222",
                TargetKind::Ssh {
                    destination: "bob@build1".into(),
                    port: Some(2222),
                },
            ),
            ("modal", TargetKind::Modal { image: None }),
            (
                "modal:python:3.12",
                TargetKind::Modal {
                    image: Some("python:3.12".into()),
                },
            ),
            ("modal://sb-abc", TargetKind::ModalSandbox { id: "sb-abc".into() }),
            (
                "build-box",
                TargetKind::Configured {
                    name: "build-box".into(),
                },
            ),
        ] {
            let spec = TargetSpec::parse(text).unwrap();
            assert_eq!((spec.kind(), spec.to_string().as_str()), (&kind, text));
        }
    }

    #[test]
    fn half_a_target_is_refused_with_its_form() {
        for (text, form) in [
            ("docker", "docker:IMAGE"),
            ("docker:", "docker:IMAGE"),
            ("local:x", "local"),
            ("container: ", "container:NAME"),
            ("compose:shop/", "compose:[PROJECT/]SERVICE[#N]"),
            ("compose:/api", "compose:[PROJECT/]SERVICE[#N]"),
            ("compose:a/b/c", "compose:[PROJECT/]SERVICE[#N]"),
            ("compose:api#0", "compose:[PROJECT/]SERVICE[#N]"),
            ("compose:api#two", "compose:[PROJECT/]SERVICE[#N]"),
            ("ssh:", "ssh:DEST or ssh://USER@HOST:PORT"),
            ("ssh://", "ssh:DEST or ssh://USER@HOST:PORT"),
            ("ssh:build1:2222", "ssh:DEST or ssh://USER@HOST:PORT"),
            ("ssh:-oProxyCommand=x", "ssh:DEST or ssh://USER@HOST:PORT"),
            ("modal:", "modal[:IMAGE]"),
            ("modal://abc", "modal://sb-ID"),
        ] {
            let error = TargetSpec::parse(text).unwrap_err();
            assert!(
                matches!(&error, TargetError::Malformed { form: f, .. } if *f == form),
                "{text}: {error}"
            );
        }
        assert_eq!(TargetSpec::parse("  "), Err(TargetError::Empty));
    }

    #[test]
    fn an_unknown_kind_suggests_the_nearest() {
        let error = TargetSpec::parse("dokcer:alpine").unwrap_err().to_string();
        assert!(error.contains("did you mean `docker`?"), "{error}");
        let error = TargetSpec::parse("ftp:alpine").unwrap_err().to_string();
        assert!(
            !error.contains("did you mean") && error.contains("docker:IMAGE"),
            "{error}"
        );
    }

    #[test]
    fn a_misspelt_name_suggests_and_lists_what_works() {
        let error = TargetError::unknown_name("lcoal", ["rig"], vec!["rig".into()]).to_string();
        assert!(error.contains("`lcoal` (did you mean `local`?)"), "{error}");
        assert!(error.contains("modal[:IMAGE] and the configured names rig"), "{error}");
    }
}
