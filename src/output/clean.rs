//! The stages that every byte passes: decode, strip escapes, mask.

use super::decode::Decoder;
use super::escapes::Escapes;
use super::mask::{MaskStream, Masker};
use super::progress::Progress;

/// Turns raw bytes into text that may be shown, chunk by chunk.
#[derive(Debug)]
pub(super) struct Cleaner {
    decoder: Decoder,
    escapes: Escapes,
    mask: MaskStream,
}

impl Cleaner {
    pub(super) fn new(masker: Masker) -> Self {
        Self {
            decoder: Decoder::default(),
            escapes: Escapes::default(),
            mask: MaskStream::new(masker),
        }
    }

    /// Cleans one chunk; what cannot be decided yet waits for the next.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let text = self.escapes.push(self.decoder.push(bytes));
        self.mask.push(text)
    }

    /// Ends the stream and returns what was held back.
    pub(super) fn finish(&mut self) -> String {
        let open = self.settle();
        self.mask.push(open) + &self.mask.finish()
    }

    /// Ends the stream where the next bytes were lost and returns what was held back.
    pub(super) fn break_off(&mut self) -> String {
        let open = self.settle();
        self.mask.push(open) + &self.mask.break_off()
    }

    /// Goes on with the first bytes after lost ones.
    pub(super) fn resume(&mut self, bytes: &[u8]) -> String {
        // The rest of a character whose beginning was lost is no character.
        let rest = bytes.iter().take(3).take_while(|b| (**b & 0xc0) == 0x80);
        let text = self.decoder.push(&bytes[rest.count()..]);
        let text = self.escapes.push(text);
        self.mask.resume(text)
    }

    /// Ends the stages before the mask.
    fn settle(&mut self) -> String {
        let rest = self.decoder.finish();
        self.escapes.push(rest) + &self.escapes.finish()
    }
}

/// Cleans a short text in one go: UTF-8 with invalid bytes replaced, escape sequences dropped,
/// values masked, redrawn lines collapsed. Nothing is cut.
#[must_use]
pub fn clean_text(bytes: &[u8], masker: &Masker) -> String {
    let mut cleaner = Cleaner::new(masker.clone());
    let text = cleaner.push(bytes) + &cleaner.finish();
    let mut out = String::with_capacity(text.len());
    let mut progress = Progress::default();
    progress.push(&text, &mut |part| out.push_str(part));
    progress.finish(&mut |part| out.push_str(part));
    out
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_cleaned_in_one_go() {
        let masker = Masker::new(["hunter-22".to_owned()]).unwrap();
        let cases: &[(&[u8], &str)] = &[
            (b"10%\r\x1b[32m100%\x1b[0m\r\n", "100%\r\n"),
            (b"pw hun\x1b[1mter-22\n", "pw ***\n"),
            (b"\xff\x1b]0;t\x07ok", "\u{fffd}ok"),
            (b"open \x1b]hunter-22", "open ***"),
            (b"", ""),
        ];
        for (bytes, expected) in cases {
            assert_eq!(clean_text(bytes, &masker), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn nothing_of_a_character_that_lost_its_beginning_remains() {
        let mut cleaner = Cleaner::new(Masker::none());
        assert_eq!(cleaner.push(b"a\xe2\x82"), "a");
        assert_eq!(cleaner.break_off(), "\u{fffd}");
        assert_eq!(cleaner.resume("€b".as_bytes().split_at(1).1), "b");
    }
}
