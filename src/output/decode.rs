//! Bytes to text, chunk by chunk.

use std::borrow::Cow;

/// Decodes UTF-8 that arrives in pieces. All pieces together give what
/// [`String::from_utf8_lossy`] gives for the whole.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The first bytes of a character whose rest has not come yet: 3 at most.
    pending: Vec<u8>,
}

impl Decoder {
    /// Decodes one chunk; a character that is cut at its end waits for the next one.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        let joined: Cow<'_, [u8]> = if self.pending.is_empty() {
            bytes.into()
        } else {
            let mut joined = std::mem::take(&mut self.pending);
            joined.extend_from_slice(bytes);
            joined.into()
        };
        let mut text = String::with_capacity(joined.len());
        let mut chunks = joined.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            if chunk.invalid().is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_cut(chunk.invalid()) {
                self.pending.extend_from_slice(chunk.invalid());
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    /// Ends the text: a character that never became whole is replaced. The decoder is as new.
    pub(super) fn finish(&mut self) -> String {
        if self.pending.is_empty() {
            return String::new();
        }
        self.pending.clear();
        char::REPLACEMENT_CHARACTER.to_string()
    }
}

/// Whether these bytes begin a character and only lack its end.
fn is_cut(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(chunks: &[&[u8]]) -> String {
        let mut decoder = Decoder::default();
        let mut text: String = chunks.iter().map(|chunk| decoder.push(chunk)).collect();
        text.push_str(&decoder.finish());
        text
    }

    #[test]
    fn a_character_split_over_chunks_is_whole() {
        assert_eq!(decode(&[b"\xf0", b"\x9f\x98", b"\x80!"]), "😀!");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        let cases: &[(&[&[u8]], &str)] = &[
            (&[b"a\xffb"], "a\u{fffd}b"),
            (&[b"\xe2\x82", b"a"], "\u{fffd}a"),
            (&[b"\xe2\x82"], "\u{fffd}"),
            // An encoded surrogate, as Python's `surrogatepass` writes it.
            (&[b"\xed\xa0\x80"], "\u{fffd}\u{fffd}\u{fffd}"),
        ];
        for (chunks, expected) in cases {
            assert_eq!(decode(chunks), *expected, "{chunks:?}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_decodes_as_the_whole(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f)],
                0..40,
            ),
            size in 1_usize..6,
        ) {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(decode(&chunks), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
