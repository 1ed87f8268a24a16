//! Names of files, and globs over them.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

/// What a path is called on its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The absolute path without `.` and `..`; links stay.
    pub plain: PathBuf,
    /// The last part of the path in its real folder: a link that is removed is removed here.
    pub place: PathBuf,
    /// The file behind all links.
    pub real: PathBuf,
}

impl Names {
    /// Names of a path over which no link leads.
    #[must_use]
    pub fn plain(path: impl Into<PathBuf>) -> Self {
        let plain = path.into();
        Self {
            place: plain.clone(),
            real: plain.clone(),
            plain,
        }
    }

    fn all(&self) -> [&Path; 3] {
        [&self.plain, &self.place, &self.real]
    }
}

/// A rule over paths: a folder, and a pattern for what is below it.
#[derive(Clone, Debug)]
pub(super) struct PathRule {
    /// As it is written.
    pub(super) text: String,
    /// The part before the first sign of a pattern: absolute, `~/…`, or relative to where the session starts.
    pub(super) root: String,
    /// The rest; `None`: the root itself is meant.
    pattern: Option<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    whole: GlobMatcher,
    /// Its parts, for whoever has only the beginning of a path; one that is no pattern for itself is `None`.
    parts: Vec<Part>,
    /// Whether it holds for all that is below what it fits.
    is_deep: bool,
}

#[derive(Clone, Debug)]
enum Part {
    Any,
    Glob(Option<Box<GlobMatcher>>),
}

/// A name without a meaning, to ask whether any name would do.
const ANY_NAME: &str = "\u{1}";

impl PathRule {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.trim() != text || text.is_empty() {
            return Err("is empty, or has blanks around it".to_owned());
        }
        if text.starts_with('~') && text != "~" && !text.starts_with("~/") {
            return Err("begins with the home of another account; write it as an absolute path".to_owned());
        }
        let mut parts: Vec<&str> = text.split('/').collect();
        if parts.contains(&"..") {
            return Err("holds `..`; write the path that is meant".to_owned());
        }
        // `folder/` is the folder and all that it holds.
        let whole_folder = parts.len() > 1 && parts.last().is_some_and(|part| part.is_empty());
        if whole_folder {
            parts.pop();
        }
        let plain = parts
            .iter()
            .position(|part| part.contains(['*', '?', '[', ']', '{', '}', '\\']));
        let (root, rest) = parts.split_at(plain.unwrap_or(parts.len()));
        let root = match root {
            [] if rest.first() == Some(&"**") => "/".to_owned(),
            [] => ".".to_owned(),
            [""] => "/".to_owned(),
            root => root.join("/"),
        };
        let rest = match (rest.is_empty(), whole_folder) {
            (true, false) => None,
            (true, true) => Some("**".to_owned()),
            (false, false) => Some(rest.join("/")),
            (false, true) => Some(format!("{}/**", rest.join("/"))),
        };
        Ok(Self {
            text: text.to_owned(),
            root,
            pattern: rest.map(|rest| Pattern::parse(&rest)).transpose()?,
        })
    }

    /// Whether it fits a name of the path; `roots` are the names of its root.
    pub(super) fn fits(&self, names: &Names, roots: &Names) -> bool {
        names.all().into_iter().any(|name| self.fits_one(name, roots))
    }

    /// Whether it fits both what the path leads to and the path itself.
    pub(super) fn fits_wholly(&self, names: &Names, roots: &Names) -> bool {
        self.fits_one(&names.real, roots) && self.fits_one(&names.place, roots)
    }

    /// Whether it may fit something in this folder, or the folder itself.
    pub(super) fn may_fit_below(&self, names: &Names, roots: &Names) -> bool {
        let below = |name: &Path| {
            roots.all().into_iter().any(|root| {
                root.starts_with(name)
                    || name
                        .strip_prefix(root)
                        .is_ok_and(|rest| self.pattern.as_ref().is_some_and(|pattern| pattern.may_go_on(rest)))
            })
        };
        self.fits(names, roots) || names.all().into_iter().any(below)
    }

    /// Whether it fits everything in this folder.
    pub(super) fn covers(&self, names: &Names, roots: &Names) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.is_deep)
            && [&names.real, &names.place]
                .into_iter()
                .all(|name| self.fits_one(&name.join(ANY_NAME), roots))
    }

    fn fits_one(&self, name: &Path, roots: &Names) -> bool {
        roots
            .all()
            .into_iter()
            .any(|root| match (name.strip_prefix(root), &self.pattern) {
                (Ok(rest), None) => rest.as_os_str().is_empty(),
                (Ok(rest), Some(pattern)) => {
                    // `folder/**` is also about the folder: what removes it removes all.
                    pattern.whole.is_match(rest) || (pattern.is_deep && pattern.whole.is_match(rest.join(ANY_NAME)))
                }
                (Err(_), _) => false,
            })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let glob = |text: &str| {
            GlobBuilder::new(text)
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map(|glob| glob.compile_matcher())
        };
        let whole = glob(text).map_err(|error| format!("is no pattern: {}", error.kind()))?;
        let parts = text
            .split('/')
            .map(|part| match part {
                "**" => Part::Any,
                part => Part::Glob(glob(part).ok().map(Box::new)),
            })
            .collect();
        Ok(Self {
            whole,
            parts,
            is_deep: text == "**" || text.ends_with("/**"),
        })
    }

    /// Whether what begins like this may go on so that it fits.
    fn may_go_on(&self, beginning: &Path) -> bool {
        let mut parts = self.parts.iter();
        for name in beginning.components() {
            match (parts.next(), name) {
                (Some(Part::Any | Part::Glob(None)), _) => return true,
                (Some(Part::Glob(Some(glob))), Component::Normal(name)) if glob.is_match(Path::new::<OsStr>(name)) => {}
                _ => return false,
            }
        }
        parts.next().is_some()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn rule(text: &str) -> (PathRule, Names) {
        let rule = PathRule::parse(text).unwrap();
        let root = match rule.root.strip_prefix('~') {
            Some(rest) => format!("/home/ann{rest}"),
            None if rule.root.starts_with('/') => rule.root.clone(),
            None => format!("/work/{}", rule.root),
        };
        let root: PathBuf = Path::new(&root).components().collect();
        (rule, Names::plain(root))
    }

    #[test]
    fn what_a_rule_fits() {
        for (text, yes, no) in [
            (
                "/etc/passwd",
                vec!["/etc/passwd"],
                vec!["/etc/passwd2", "/etc", "/etc/passwd/x"],
            ),
            ("/etc/*", vec!["/etc/hosts"], vec!["/etc/ssh/sshd_config", "/etc2/x"]),
            ("/etc/**", vec!["/etc/hosts", "/etc/ssh/x", "/etc"], vec!["/etcetera"]),
            ("/etc/", vec!["/etc/hosts", "/etc/ssh/x", "/etc"], vec!["/etcetera"]),
            ("~/.ssh/**", vec!["/home/ann/.ssh/id"], vec!["/home/bob/.ssh/id"]),
            ("~", vec!["/home/ann"], vec!["/home/ann/x"]),
            (
                "src/**/*.py",
                vec!["/work/src/a.py", "/work/src/x/a.py"],
                vec!["/src/a.py", "/work/src/a.rs"],
            ),
            ("*.md", vec!["/work/a.md"], vec!["/work/x/a.md", "/a.md"]),
            (
                "**/.env",
                vec!["/.env", "/work/.env", "/a/b/.env"],
                vec!["/a/.env.x", "/a/x.env"],
            ),
            ("./a b", vec!["/work/a b"], vec!["/work/a"]),
            (r"a\*", vec!["/work/a*"], vec!["/work/ab"]),
            ("{a,b}/c", vec!["/work/a/c", "/work/b/c"], vec!["/work/c"]),
            ("/", vec!["/", "/x"], vec![]),
        ] {
            let (rule, roots) = rule(text);
            for path in yes {
                assert!(rule.fits(&Names::plain(path), &roots), "{text} {path}");
            }
            for path in no {
                assert!(!rule.fits(&Names::plain(path), &roots), "{text} {path}");
            }
        }
    }

    #[test]
    fn what_it_may_fit_below_a_folder() {
        for (text, yes, no) in [
            (
                "~/.ssh/**",
                vec!["/", "/home", "/home/ann", "/home/ann/.ssh", "/home/ann/.ssh/x"],
                vec!["/home/bob", "/work"],
            ),
            ("**/.env", vec!["/", "/work", "/a/b"], vec![]),
            ("/a/*/c", vec!["/a", "/a/b", "/a/b/c", "/"], vec!["/b", "/a/b/d"]),
            ("/a/b", vec!["/", "/a", "/a/b"], vec!["/c", "/a/b/c"]),
            ("/x/{a/b,c}", vec!["/x", "/x/a"], vec!["/y"]),
        ] {
            let (rule, roots) = rule(text);
            for path in yes {
                assert!(rule.may_fit_below(&Names::plain(path), &roots), "{text} {path}");
            }
            for path in no {
                assert!(!rule.may_fit_below(&Names::plain(path), &roots), "{text} {path}");
            }
        }
    }

    #[test]
    fn what_covers_a_whole_folder() {
        for (text, yes, no) in [
            ("/a/**", vec!["/a", "/a/b"], vec!["/", "/b"]),
            ("/a/", vec!["/a", "/a/b"], vec!["/"]),
            ("/a/*", vec![], vec!["/a"]),
            ("/a/**/*.py", vec![], vec!["/a"]),
            ("**", vec!["/", "/x"], vec![]),
            ("/a/b", vec![], vec!["/a", "/a/b"]),
        ] {
            let (rule, roots) = rule(text);
            for path in yes {
                assert!(rule.covers(&Names::plain(path), &roots), "{text} {path}");
            }
            for path in no {
                assert!(!rule.covers(&Names::plain(path), &roots), "{text} {path}");
            }
        }
    }

    #[test]
    fn links_widen_what_is_forbidden_and_narrow_what_is_allowed() {
        let link_out = Names {
            plain: "/work/link".into(),
            place: "/work/link".into(),
            real: "/etc/passwd".into(),
        };
        let (here, roots) = rule("/work/**");
        assert!(here.fits(&link_out, &roots) && !here.fits_wholly(&link_out, &roots));
        let (there, roots) = rule("/etc/**");
        assert!(there.fits(&link_out, &roots) && !there.fits_wholly(&link_out, &roots));
        // A rule whose own folder is a link.
        let (rule, _) = rule("/home/ann/secret/**");
        let roots = Names {
            real: "/data/secret".into(),
            ..Names::plain("/home/ann/secret")
        };
        assert!(rule.fits(&Names::plain("/data/secret/x"), &roots));
    }

    #[test]
    fn what_is_no_rule() {
        for text in ["", " /a", "/a/../b", "~bob/x", "a[", "{a"] {
            assert!(PathRule::parse(text).is_err(), "{text:?}");
        }
    }
}
