//! Head and tail of a text that may be too long to show.

/// Keeps the beginning and the end of a text within a limit of bytes.
///
/// Text that fits is kept whole. Otherwise its first 40 % of the limit and its last 60 % stay, both
/// cut between characters.
#[derive(Debug)]
pub(super) struct Window {
    limit: usize,
    head: String,
    /// Whether text still goes to the head.
    head_open: bool,
    /// The text after the head, trimmed from the front now and then.
    tail: String,
    /// Bytes of text that were pushed.
    total: u64,
    /// Bytes that never came, between two pushes.
    missing: u64,
}

/// What a [`Window`] shows in the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All of the text.
    Whole(String),
    /// Its two ends.
    Cut {
        /// The beginning.
        head: String,
        /// The end.
        tail: String,
        /// Bytes between the two.
        omitted: u64,
    },
}

impl Window {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            head: String::new(),
            head_open: true,
            tail: String::new(),
            total: 0,
            missing: 0,
        }
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str) {
        self.total += text.len() as u64;
        let mut rest = text;
        if self.head_open {
            let room = self.head_limit() - self.head.len();
            let (head, after) = text.split_at(text.floor_char_boundary(room));
            self.head.push_str(head);
            self.head_open = after.is_empty();
            rest = after;
        }
        // What the head left unused at a character border still counts as room.
        let room = self.limit - self.head.len();
        if rest.len() >= room {
            self.tail.clear();
            self.tail.push_str(last_bytes(rest, room));
        } else {
            self.tail.push_str(rest);
            // Trimmed at twice the size, so that each byte is moved once at most.
            if self.tail.len() > room.saturating_mul(2) {
                let start = self.tail.len() - last_bytes(&self.tail, room).len();
                self.tail.drain(..start);
            }
        }
    }

    /// Notes that so many bytes never came. What was before them can only be shown in the head,
    /// what comes after them only in the tail.
    pub(super) fn gap(&mut self, missing: u64) {
        self.missing += missing;
        self.head_open = false;
        self.tail.clear();
    }

    /// What is to be shown.
    pub(super) fn finish(self) -> View {
        let (head, tail) = (&self.head, &self.tail);
        if self.missing == 0 && self.total <= self.limit as u64 {
            return View::Whole(format!("{head}{tail}"));
        }
        let tail = last_bytes(tail, self.limit - self.head_limit()).to_owned();
        let shown = (head.len() + tail.len()) as u64;
        View::Cut {
            omitted: self.total - shown + self.missing,
            head: self.head,
            tail,
        }
    }

    fn head_limit(&self) -> usize {
        // In this order because a limit may be as large as the type allows.
        self.limit / 5 * 2 + self.limit % 5 * 2 / 5
    }
}

/// The last `count` bytes of a text, fewer if that would cut a character.
fn last_bytes(text: &str, count: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(count))..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(limit: usize, chunks: &[&str]) -> View {
        let mut window = Window::new(limit);
        for chunk in chunks {
            window.push(chunk);
        }
        window.finish()
    }

    fn cut(head: &str, tail: &str, omitted: u64) -> View {
        View::Cut {
            head: head.to_owned(),
            tail: tail.to_owned(),
            omitted,
        }
    }

    #[test]
    fn forty_percent_head_and_sixty_percent_tail() {
        assert_eq!(view(10, &["0123456789"]), View::Whole("0123456789".to_owned()));
        assert_eq!(view(10, &["0123456789a"]), cut("0123", "56789a", 1));
        assert_eq!(view(10, &["01", "23456", "789abc"]), cut("0123", "789abc", 3));
        assert_eq!(view(0, &["ab"]), cut("", "", 2));
        assert_eq!(view(0, &[]), View::Whole(String::new()));
    }

    #[test]
    fn characters_stay_whole() {
        // Ten bytes that fit are shown although the head's border falls into a character.
        assert_eq!(view(10, &["012€45é"]), View::Whole("012€45é".to_owned()));
        assert_eq!(view(10, &["012€456€€"]), cut("012", "€€", 6));
    }

    #[test]
    fn nothing_from_before_a_gap_is_shown_after_it() {
        let mut window = Window::new(10);
        window.push("abcdefgh");
        window.gap(100);
        window.push("XY");
        assert_eq!(window.finish(), cut("abcd", "XY", 104));

        let mut short = Window::new(10);
        short.push("ab");
        short.gap(1);
        short.push("YZ");
        assert_eq!(short.finish(), cut("ab", "YZ", 1));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_the_chunks(
            parts in prop::collection::vec("[aé€😀]{0,9}", 0..12),
            limit in 0_usize..40,
        ) {
            let chunks: Vec<&str> = parts.iter().map(String::as_str).collect();
            let whole = parts.concat();
            let shown = view(limit, &chunks);
            prop_assert_eq!(&shown, &view(limit, &[&whole]));
            match shown {
                View::Whole(text) => {
                    prop_assert_eq!(&text, &whole);
                    prop_assert!(text.len() <= limit);
                }
                View::Cut { head, tail, omitted } => {
                    prop_assert!(whole.len() > limit);
                    prop_assert!(whole.starts_with(&head) && whole.ends_with(&tail));
                    prop_assert!(head.len() <= limit * 2 / 5 && head.len() + tail.len() <= limit);
                    prop_assert_eq!(head.len() + tail.len() + omitted as usize, whole.len());
                }
            }
        }
    }
}
