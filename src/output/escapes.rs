//! Dropping terminal escape sequences, chunk by chunk.
//!
//! The state machine is our own because the strippers at hand forget where they were when a
//! sequence is cut by a chunk, and let an unfinished string sequence swallow all that follows.

/// Bytes of a string sequence (OSC, DCS, APC, …) after which it is taken for ordinary text.
const MAX_STRING: usize = 64 * 1024;

/// Characters of any other sequence after which it is taken to be over.
const MAX_PARAMETERS: usize = 256;

const BELL: char = '\u{07}';
const CANCEL: char = '\u{18}';
const SUBSTITUTE: char = '\u{1a}';
const ESCAPE: char = '\u{1b}';
/// The one-character form of `ESC [`.
const CSI: char = '\u{9b}';

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Ordinary text.
    #[default]
    Ground,
    /// After `ESC`.
    Escape,
    /// After `ESC` and so many intermediates, as in `ESC ( B`.
    Intermediates(usize),
    /// In a control sequence, after so many parameter characters.
    Parameters(usize),
    /// In a string sequence whose text is in `held`.
    Text,
}

/// Drops escape sequences from text that arrives in pieces.
///
/// A string sequence ends with BEL, ST or another escape. One that is still open at the end of its
/// line, after 64 KiB or at the end of the stream was none: its text is given back. Control
/// characters that are no part of a sequence stay as they are.
#[derive(Debug, Default)]
pub(super) struct Escapes {
    state: State,
    held: String,
}

impl Escapes {
    /// Strips one chunk.
    pub(super) fn push(&mut self, text: String) -> String {
        if self.state == State::Ground && next_introducer(&text).is_none() {
            return text;
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(next) = rest.chars().next() {
            rest = match self.state {
                State::Ground => self.ground(rest, &mut out),
                State::Text => self.text(rest, &mut out),
                State::Escape | State::Intermediates(_) | State::Parameters(_) => {
                    if self.sequence(next) {
                        &rest[next.len_utf8()..]
                    } else {
                        // Seen again as ordinary text.
                        self.state = State::Ground;
                        rest
                    }
                }
            };
        }
        out
    }

    /// Ends the text and gives back what was held for a string sequence that never ended. The
    /// stripper is as new.
    pub(super) fn finish(&mut self) -> String {
        self.state = State::Ground;
        std::mem::take(&mut self.held)
    }

    fn ground<'t>(&mut self, text: &'t str, out: &mut String) -> &'t str {
        let Some(at) = next_introducer(text) else {
            out.push_str(text);
            return "";
        };
        let (plain, rest) = text.split_at(at);
        out.push_str(plain);
        let mut rest = rest.chars();
        self.introduce(rest.next());
        rest.as_str()
    }

    /// Enters the state that an introducer leads to. The one-character forms of the string
    /// introducers are only dropped: text that was decoded with the wrong character set holds
    /// them by accident.
    fn introduce(&mut self, introducer: Option<char>) {
        self.state = match introducer {
            Some(ESCAPE) => State::Escape,
            Some(CSI) => State::Parameters(0),
            _ => State::Ground,
        };
    }

    /// Takes one character of a sequence that is no string; false when it is no part of it.
    fn sequence(&mut self, next: char) -> bool {
        let state = match (self.state, next) {
            (_, ESCAPE) => State::Escape,
            (_, CANCEL | SUBSTITUTE) => State::Ground,
            (State::Escape, '[') => State::Parameters(0),
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => State::Text,
            (State::Escape, ' '..='/') => State::Intermediates(1),
            (State::Escape | State::Intermediates(_), '0'..='~') => State::Ground,
            (State::Intermediates(seen), ' '..='/') if seen < MAX_PARAMETERS => State::Intermediates(seen + 1),
            (State::Parameters(_), '@'..='~') => State::Ground,
            (State::Parameters(seen), ' '..='?') if seen < MAX_PARAMETERS => State::Parameters(seen + 1),
            _ => return false,
        };
        self.state = state;
        true
    }

    fn text<'t>(&mut self, text: &'t str, out: &mut String) -> &'t str {
        let end = text.find(ends_string).unwrap_or(text.len());
        if self.held.len() + end > MAX_STRING {
            out.push_str(&self.finish());
            return text;
        }
        let (part, rest) = text.split_at(end);
        let mut after = rest.chars();
        match after.next() {
            None => {
                self.held.push_str(part);
                ""
            }
            Some('\n' | '\r') => {
                self.held.push_str(part);
                out.push_str(&self.finish());
                rest
            }
            end => {
                self.held.clear();
                self.introduce(end);
                after.as_str()
            }
        }
    }
}

fn ends_string(c: char) -> bool {
    matches!(c, '\n' | '\r' | BELL | CANCEL | SUBSTITUTE | ESCAPE)
        || matches!(c, '\u{90}' | '\u{98}' | '\u{9b}'..='\u{9f}')
}

/// Where the next sequence begins: at `ESC`, or at the one-character form of an introducer.
fn next_introducer(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(offset) = bytes[from..].iter().position(|b| matches!(b, 0x1b | 0xc2)) {
        let at = from + offset;
        if bytes[at] == 0x1b || matches!(bytes.get(at + 1), Some(0x90 | 0x98 | 0x9b..=0x9f)) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strip(chunks: &[&str]) -> String {
        let mut escapes = Escapes::default();
        let mut out: String = chunks.iter().map(|chunk| escapes.push((*chunk).to_owned())).collect();
        out.push_str(&escapes.finish());
        out
    }

    #[test]
    fn sequences_go_and_text_stays() {
        let cases = [
            ("\x1b[1;31mred\x1b[0m", "red"),
            ("\x1b[?25l\x1b[2J\x1b[Hx", "x"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://h/\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bPq#0\x1b\\after", "after"),
            ("\x1bPtmux;\x1b\x1b]0;t\x07\x1b\\after", "after"),
            ("\x1b(B\x1b)0\x1b7\x1b8\x1b=\x1bcx", "x"),
            ("\u{9b}31mred", "red"),
            ("a\tb\r\nc\x0cd\x08\x00e", "a\tb\r\nc\x0cd\x08\x00e"),
            ("£°\u{a0}é\u{85}", "£°\u{a0}é\u{85}"),
            // Broken ones take no text with them.
            ("\x1b[12\nnext", "\nnext"),
            ("\x1b[12é", "é"),
            ("\x1b[3\x1b[4mx", "x"),
            ("\x1b[3\x18x", "x"),
            ("end\x1b", "end"),
            ("\u{9d}latin", "latin"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip(&[text]), expected, "{text:?}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chunks: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(strip(&chunks), expected, "{text:?} char by char");
        }
    }

    #[test]
    fn an_unfinished_string_swallows_nothing() {
        assert_eq!(strip(&["\x1b]0;tit", "le\nresult\n"]), "0;title\nresult\n");
        assert_eq!(strip(&["\x1b]0;", "result"]), "0;result");
        let long = "x".repeat(MAX_STRING + 1);
        assert_eq!(strip(&["\x1b]", &long, "result\x07"]), long + "result\x07");
    }

    #[test]
    fn memory_is_bounded_inside_a_sequence() {
        let mut escapes = Escapes::default();
        escapes.push("\x1b]".to_owned());
        for _ in 0..100 {
            escapes.push("x".repeat(4096));
            assert!(escapes.held.len() <= MAX_STRING);
        }
        assert_eq!(strip(&["\x1b[", &"1".repeat(1000), "z"]).len(), 1001 - MAX_PARAMETERS);
    }

    proptest! {
        #[test]
        fn any_cut_strips_as_the_whole(
            parts in prop::collection::vec(
                "[\x1b\\[\\]P0-9;m\x07\n\ra\u{9b}\u{9c}\u{9d}é\\\\(]{0,6}", 0..12)
        ) {
            let chunks: Vec<&str> = parts.iter().map(String::as_str).collect();
            let whole = parts.concat();
            let stripped = strip(&[&whole]);
            prop_assert_eq!(strip(&chunks), stripped.clone());
            let left = stripped.contains(['\x1b', '\u{9b}']);
            prop_assert!(!left, "{stripped:?}");
        }
    }
}
