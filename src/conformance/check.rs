//! Comparing what was seen with what was expected.

use std::fmt::Debug;

use super::case::{Checked, Unmet};

/// Characters of a text that a message shows.
const SHOWN: usize = 1500;

/// A failure of these words.
pub(super) fn failed(words: impl Into<String>) -> Unmet {
    Unmet::Failed(words.into())
}

/// Two values are the same.
pub(super) fn equal<T: Debug + PartialEq<U> + ?Sized, U: Debug + ?Sized>(
    what: &str,
    seen: &T,
    expected: &U,
) -> Checked {
    if seen == expected {
        return Ok(());
    }
    Err(failed(format!(
        "{what}: expected {}, seen {}",
        shown(expected),
        shown(seen)
    )))
}

/// Something holds; `seen` is what it was judged by.
pub(super) fn holds(expected: &str, yes: bool, seen: &(impl Debug + ?Sized)) -> Checked {
    if yes {
        return Ok(());
    }
    Err(failed(format!("expected {expected}; seen {}", shown(seen))))
}

/// A text holds all of these.
pub(super) fn contains(what: &str, text: &str, parts: &[&str]) -> Checked {
    match parts.iter().find(|part| !text.contains(**part)) {
        None => Ok(()),
        Some(part) => Err(failed(format!(
            "{what}: expected {} in it, seen {}",
            shown(part),
            shown(text)
        ))),
    }
}

fn shown(value: &(impl Debug + ?Sized)) -> String {
    let text = format!("{value:?}");
    let length = text.chars().count();
    if length <= SHOWN {
        return text;
    }
    let head: String = text.chars().take(SHOWN * 2 / 3).collect();
    let tail: String = text.chars().skip(length - SHOWN / 3).collect();
    format!("{head} … {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_from_both_sides() {
        assert_eq!(equal("the output", "a", "a"), Ok(()));
        let told = equal("the output", "b", "a").map_err(|unmet| unmet.to_string());
        assert_eq!(told, Err("the output: expected \"a\", seen \"b\"".to_owned()));
        let long = equal("it", &"x".repeat(10_000), "a").map_err(|unmet| unmet.to_string().len());
        assert!(long.is_err_and(|length| length < 2 * SHOWN));
        assert!(contains("it", "abc", &["b", "d"]).is_err_and(|unmet| unmet.to_string().contains("\"d\"")));
    }
}
