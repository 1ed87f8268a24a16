//! Blacking out secret values.

use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Input, MatchKind};

/// What stands in the place of a secret value.
const MASK: &str = "***";

/// The shortest piece of a value, at the edge of output that was lost, that is masked as well:
/// shorter ones give nothing away and are too often ordinary text.
const MIN_PIECE: usize = 4;

/// Why a [`Masker`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MaskError {
    /// The values are too many or too long.
    #[error(
        "the secret values to mask in the output are too large for one search; \
         take some of the variables that hold them out of the environment"
    )]
    TooLarge(#[from] BuildError),
}

/// Replaces secret values in text by `***`. Cheap to clone; the values never show in its `Debug`.
///
/// Where several values begin at one place, the longest is taken.
#[derive(Clone, Default)]
pub struct Masker(Option<Arc<Values>>);

struct Values {
    search: AhoCorasick,
    /// Sorted, each once, none empty.
    sorted: Vec<String>,
    /// Length of the longest value in bytes.
    longest: usize,
    /// Whether any value begins with a byte.
    begins: [bool; 256],
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map_or(0, |values| values.sorted.len());
        write!(f, "Masker({count} values)")
    }
}

impl Masker {
    /// A masker for these values; empty ones are ignored.
    ///
    /// # Errors
    /// [`MaskError::TooLarge`] when the values exceed what one search automaton can hold (about
    /// 2 GiB).
    pub fn new(values: impl IntoIterator<Item = String>) -> Result<Self, MaskError> {
        let mut sorted: Vec<String> = values.into_iter().filter(|v| !v.is_empty()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.is_empty() {
            return Ok(Self::none());
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // The dense kind would take megabytes for a value as long as a private key.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&sorted)?;
        let mut begins = [false; 256];
        for value in &sorted {
            begins[usize::from(value.as_bytes()[0])] = true;
        }
        let longest = sorted.iter().map(String::len).max().unwrap_or(0);
        Ok(Self(Some(Arc::new(Values {
            search,
            sorted,
            longest,
            begins,
        }))))
    }

    /// A masker that changes nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The text with every value replaced.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        match &self.0 {
            Some(values) => values.mask(text, text.len()).0,
            None => text.to_owned(),
        }
    }

    /// The first `limit` bytes, or a few more, with every value replaced that begins there. What is further behind than
    /// the longest value is not looked at.
    pub(crate) fn mask_beginning(&self, text: &str, limit: usize) -> String {
        let limit = text.floor_char_boundary(limit);
        match &self.0 {
            Some(values) => {
                let seen = text.floor_char_boundary(limit.saturating_add(values.longest));
                values.mask(&text[..seen], limit).0
            }
            None => text[..limit].to_owned(),
        }
    }

    /// Bytes of the longest value.
    pub(crate) fn longest(&self) -> usize {
        self.0.as_ref().map_or(0, |values| values.longest)
    }
}

impl Values {
    /// Masks the values that begin before `open`, where a value may have been cut. Returns the
    /// masked text and how much of `text` it stands for.
    fn mask(&self, text: &str, mut open: usize) -> (String, usize) {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        while let Some(found) = self.search.find(Input::new(text).range(done..)) {
            if found.start() >= open {
                break;
            }
            out.push_str(&text[done..found.start()]);
            out.push_str(MASK);
            done = found.end();
            if done > open {
                open = self.first_cut(text, done);
            }
        }
        out.push_str(&text[done..open]);
        (out, open)
    }

    /// The first place at or after `from` where a value may begin whose rest has not come yet;
    /// the length of the text if there is none.
    fn first_cut(&self, text: &str, from: usize) -> usize {
        let bytes = text.as_bytes();
        let from = from.max((bytes.len() + 1).saturating_sub(self.longest));
        (from..bytes.len())
            .find(|&at| {
                if !self.begins[usize::from(bytes[at])] {
                    return false;
                }
                let start = &bytes[at..];
                // Of the values after `start` in order, those that continue it come first.
                let next = self.sorted.partition_point(|v| v.as_bytes() <= start);
                self.sorted.get(next).is_some_and(|v| v.as_bytes().starts_with(start))
            })
            .unwrap_or(bytes.len())
    }

    /// The length of the longest end of a value that the text begins with.
    fn leading_piece(&self, text: &str) -> usize {
        let ends = self
            .sorted
            .iter()
            .flat_map(|value| (1..value.len()).filter_map(|at| value.get(at..)));
        ends.filter(|end| end.len() >= MIN_PIECE && text.starts_with(end))
            .map(str::len)
            .max()
            .unwrap_or(0)
    }
}

/// Masks text that arrives in pieces. Holds back no more than what may be the beginning of a value.
#[derive(Debug)]
pub(super) struct MaskStream {
    masker: Masker,
    held: String,
}

impl MaskStream {
    pub(super) fn new(masker: Masker) -> Self {
        Self {
            masker,
            held: String::new(),
        }
    }

    /// Masks one chunk.
    pub(super) fn push(&mut self, text: String) -> String {
        let Some(values) = &self.masker.0 else {
            return text;
        };
        let text = if self.held.is_empty() {
            text
        } else {
            std::mem::take(&mut self.held) + &text
        };
        let (out, done) = values.mask(&text, values.first_cut(&text, 0));
        self.held.push_str(&text[done..]);
        out
    }

    /// Ends the text; the stream is as new.
    pub(super) fn finish(&mut self) -> String {
        self.masker.mask(&std::mem::take(&mut self.held))
    }

    /// Ends the text where the next bytes were lost: a value may have lost its end, so what there
    /// is of it is masked too.
    pub(super) fn break_off(&mut self) -> String {
        if self.held.len() >= MIN_PIECE {
            self.held.clear();
            return MASK.to_owned();
        }
        self.finish()
    }

    /// Goes on after lost bytes: a value may have lost its beginning.
    pub(super) fn resume(&mut self, text: String) -> String {
        let piece = match &self.masker.0 {
            Some(values) => values.leading_piece(&text),
            None => 0,
        };
        if piece == 0 {
            return self.push(text);
        }
        MASK.to_owned() + &self.push(text[piece..].to_owned())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masker(values: &[&str]) -> Masker {
        Masker::new(values.iter().map(|v| (*v).to_owned())).unwrap()
    }

    fn stream(masker: &Masker, chunks: &[&str]) -> String {
        let mut stream = MaskStream::new(masker.clone());
        let mut out: String = chunks.iter().map(|chunk| stream.push((*chunk).to_owned())).collect();
        out.push_str(&stream.finish());
        out
    }

    #[test]
    fn values_are_replaced() {
        let masker = masker(&["secret-1", "secret-1-long", "pässwörd1", ""]);
        let cases = [
            ("a secret-1 b", "a *** b"),
            ("a secret-1-long b", "a *** b"),
            ("secret-1-lon", "***-lon"),
            ("secret-1secret-1", "******"),
            ("pässwörd1!", "***!"),
            ("secret-", "secret-"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(masker.mask(text), expected, "{text}");
            assert_eq!(stream(&masker, &[text]), expected, "{text}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chunks: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(stream(&masker, &chunks), expected, "{text} char by char");
        }
    }

    #[test]
    fn of_a_beginning_no_value_is_shown_in_part() {
        let masker = masker(&["secret-1", "a-much-longer-secret"]);
        for (text, limit, expected) in [
            ("x secret-1 y", 4, "x *** y"),
            ("x secret-1", 2, "x "),
            ("a-much-longer-secret secret-1", 2, "*** "),
            ("a-much-longer-secretsecret-1 x", 21, "****** x"),
            ("short", 100, "short"),
            ("é", 1, ""),
        ] {
            assert_eq!(masker.mask_beginning(text, limit), expected, "{text} {limit}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_value_is_held_back() {
        let mut stream = MaskStream::new(masker(&["secret-1"]));
        assert_eq!(stream.push("done\n".to_owned()), "done\n");
        assert_eq!(stream.push("a sec".to_owned()), "a ");
        assert_eq!(stream.push("ond".to_owned()), "second");
    }

    #[test]
    fn pieces_at_the_edge_of_lost_output_are_masked() {
        let mut stream = MaskStream::new(masker(&["secret-123"]));
        assert_eq!(stream.push("x secret-1".to_owned()), "x ");
        assert_eq!(stream.break_off(), "***");
        assert_eq!(stream.resume("et-123 y".to_owned()), "*** y");
        assert_eq!(stream.push("se".to_owned()), "");
        assert_eq!(stream.break_off(), "se");
        assert_eq!(stream.resume("23 y".to_owned()), "23 y");
    }

    #[test]
    fn no_value_shows_in_debug() {
        let shown = format!("{:?}", masker(&["secret-1"]));
        assert_eq!(shown, "Masker(1 values)");
    }

    #[test]
    fn without_values_nothing_changes() {
        assert_eq!(masker(&[""]).mask("secret"), "secret");
        assert_eq!(stream(&Masker::none(), &["sec", "ret"]), "secret");
    }

    proptest! {
        #[test]
        fn any_cut_masks_as_the_whole(
            values in prop::collection::vec("[abé]{1,5}", 1..5),
            parts in prop::collection::vec("[abé]{0,5}", 0..12),
        ) {
            let masker = Masker::new(values).unwrap();
            let chunks: Vec<&str> = parts.iter().map(String::as_str).collect();
            prop_assert_eq!(stream(&masker, &chunks), masker.mask(&parts.concat()));
        }
    }
}
