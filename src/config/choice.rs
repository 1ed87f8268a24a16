//! Settings that take one of a few words.

use thiserror::Error;

use crate::suggest::nearest;

/// A word that is none of those on offer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{word}` is not one of {}{}", choices.join(", "), suggestion.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default())]
pub struct UnknownChoice {
    /// What was written.
    pub word: String,
    /// What may be written.
    pub choices: &'static [&'static str],
    /// The nearest of these.
    pub suggestion: Option<&'static str>,
}

/// The choice that `word` is, by its place in `choices`.
pub(super) fn position(word: &str, choices: &'static [&'static str]) -> Result<usize, UnknownChoice> {
    choices
        .iter()
        .position(|choice| *choice == word)
        .ok_or_else(|| UnknownChoice {
            word: word.to_owned(),
            choices,
            suggestion: nearest(word, choices.iter().copied()),
        })
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])+ $variant,)+ }

        impl $name {
            /// The words that stand for the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that stands for this one.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnknownChoice;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Ok([$(Self::$variant),+][position(word, Self::WORDS)?])
            }
        }
    };
}

choice! {
    /// Where a session's scripts run, and with which interpreter.
    Mode {
        /// In the session's working directory, with the project's own Python.
        #[default]
        Project = "project",
        /// In a private temporary directory, with the configured Python.
        Strict = "strict",
    }
}

choice! {
    /// How messages travel between the broker and a kernel on this machine.
    Rpc {
        /// Over a Unix domain socket.
        #[default]
        Unix = "unix",
        /// Over a loopback TCP connection.
        Tcp = "tcp",
    }
}

choice! {
    /// What `terminal` on a target sees of the environment there.
    EnvPolicy {
        /// All of it, for it is the target's own. (On this machine secret names are left out in any case.)
        #[default]
        Normal = "normal",
        /// All but secret names.
        Scrubbed = "scrubbed",
    }
}

choice! {
    /// How the broker gets at the directory through which it talks to a target.
    Transport {
        /// The best that works.
        #[default]
        Auto = "auto",
        /// One long-lived process on the target relays it.
        Stream = "stream",
        /// Both sides see the directory itself.
        Shared = "shared",
        /// One command for each look.
        Polled = "polled",
    }
}

choice! {
    /// How Modal is reached.
    ModalMode {
        /// With the account that is set up here, else through the gateway.
        #[default]
        Auto = "auto",
        /// With an account of Modal's.
        Direct = "direct",
        /// Through the gateway, without one.
        Managed = "managed",
    }
}

choice! {
    /// Who answers `web_search`.
    SearchProvider {
        /// A SearXNG instance, wherever it runs.
        #[default]
        Searxng = "searxng",
        /// Brave's Search API.
        Brave = "brave",
        /// Tavily.
        Tavily = "tavily",
        /// Exa.
        Exa = "exa",
        /// Firecrawl.
        Firecrawl = "firecrawl",
    }
}

choice! {
    /// Who fetches and reads pages for `web_extract`.
    ExtractProvider {
        /// The broker itself.
        #[default]
        Builtin = "builtin",
        /// Tavily.
        Tavily = "tavily",
        /// Exa.
        Exa = "exa",
        /// Firecrawl.
        Firecrawl = "firecrawl",
    }
}

/// The tools that Talaria brings along, as `tools.disabled` may name them.
pub(crate) const TOOLS: [&str; 7] = [
    "read_file",
    "write_file",
    "search_files",
    "patch",
    "terminal",
    "web_search",
    "web_extract",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_shown() {
        for word in Mode::WORDS {
            assert_eq!(word.parse::<Mode>().map(Mode::as_str), Ok(*word));
        }
        assert_eq!("polled".parse(), Ok(Transport::Polled));
        assert_eq!("scrubbed".parse(), Ok(EnvPolicy::Scrubbed));
        assert_eq!((Mode::default(), Rpc::default()), (Mode::Project, Rpc::Unix));
    }

    #[test]
    fn another_word_is_refused_with_the_nearest() {
        let message = "stict".parse::<Mode>().map_err(|error| error.to_string());
        assert_eq!(
            message,
            Err("`stict` is not one of project, strict; did you mean `strict`?".to_owned())
        );
        assert!("Project".parse::<Mode>().is_err());
    }
}
