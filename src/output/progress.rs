//! Collapsing progress bars: of a line that is redrawn with `\r` only the last drawing counts.

/// Bytes of one drawing of a line that are held back; a longer one is passed on as it is.
pub(super) const MAX_DRAWING: usize = 64 * 1024;

/// Collapses redrawn lines of text that arrives in pieces.
///
/// A line keeps its last drawing that is not empty. `\r\n` is a line end and stays one; a `\r` at
/// the end of the stream goes.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The last whole drawing of the line.
    kept: String,
    /// The drawing since the last `\r`.
    current: String,
    /// Whether the last character was a `\r`.
    after_return: bool,
    /// Whether the line grew too long: its rest goes through untouched.
    passing: bool,
}

impl Progress {
    /// Collapses one chunk and hands what is settled to `sink`, in order.
    pub(super) fn push(&mut self, text: &str, sink: &mut impl FnMut(&str)) {
        let mut rest = text;
        while !rest.is_empty() {
            let end = if self.passing {
                self.pass(rest, sink)
            } else {
                let end = rest.find('\r').unwrap_or(rest.len());
                self.lines(&rest[..end], sink);
                end
            };
            rest = &rest[end..];
            if !self.passing
                && let Some(after) = rest.strip_prefix('\r')
            {
                self.carriage_return();
                rest = after;
            }
        }
    }

    /// Ends the text: the last drawing of an open line is passed on.
    pub(super) fn finish(&mut self, sink: &mut impl FnMut(&str)) {
        sink(self.drawing());
        *self = Self::default();
    }

    /// Passes the rest of an overlong line on and returns where it ends in `text`.
    fn pass(&mut self, text: &str, sink: &mut impl FnMut(&str)) -> usize {
        let end = text.find('\n').map_or(text.len(), |at| at + 1);
        sink(&text[..end]);
        self.passing = !text[..end].ends_with('\n');
        end
    }

    /// Takes text without any `\r`: all whole lines but the first are settled as they stand.
    fn lines(&mut self, text: &str, sink: &mut impl FnMut(&str)) {
        let (Some(first), Some(last)) = (text.find('\n'), text.rfind('\n')) else {
            return self.draw(text, sink);
        };
        self.draw(&text[..first], sink);
        self.end_line(sink);
        if last > first {
            sink(&text[first + 1..=last]);
        }
        self.draw(&text[last + 1..], sink);
    }

    fn draw(&mut self, text: &str, sink: &mut impl FnMut(&str)) {
        if text.is_empty() {
            return;
        }
        self.after_return = false;
        if self.current.len() + text.len() > MAX_DRAWING {
            sink(&self.current);
            sink(text);
            self.current.clear();
            self.kept.clear();
            self.passing = true;
        } else {
            self.current.push_str(text);
        }
    }

    fn carriage_return(&mut self) {
        if !self.current.is_empty() {
            std::mem::swap(&mut self.kept, &mut self.current);
            self.current.clear();
        }
        self.after_return = true;
    }

    fn end_line(&mut self, sink: &mut impl FnMut(&str)) {
        sink(self.drawing());
        sink(if self.after_return { "\r\n" } else { "\n" });
        self.kept.clear();
        self.current.clear();
        self.after_return = false;
        self.passing = false;
    }

    fn drawing(&self) -> &str {
        if self.current.is_empty() {
            &self.kept
        } else {
            &self.current
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collapse(chunks: &[&str]) -> String {
        let mut progress = Progress::default();
        let mut out = String::new();
        for chunk in chunks {
            progress.push(chunk, &mut |text| out.push_str(text));
        }
        progress.finish(&mut |text| out.push_str(text));
        out
    }

    #[test]
    fn a_redrawn_line_keeps_its_last_drawing() {
        let cases = [
            ("plain\ntext", "plain\ntext"),
            ("10%\r50%\r100%\ndone\n", "100%\ndone\n"),
            ("\r10%\r50%\r", "50%"),
            ("a\r\nb\r\n", "a\r\nb\r\n"),
            ("10%\r100%\r\nend", "100%\r\nend"),
            ("a\r\r\n", "a\r\n"),
            ("\r\n\r\n", "\r\n\r\n"),
            ("a\r\n\n", "a\r\n\n"),
            ("x\n1\r2\n\ny\n", "x\n2\n\ny\n"),
            ("\r", ""),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(collapse(&[text]), expected, "{text:?}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_on() {
        let long = "x".repeat(MAX_DRAWING + 1);
        let line = format!("{long}\rmore\r\n1\r2\n");
        assert_eq!(collapse(&[&line]), format!("{long}\rmore\r\n2\n"));
        let (a, b) = line.split_at(MAX_DRAWING / 2);
        assert_eq!(collapse(&["old\r", a, b]), format!("{long}\rmore\r\n2\n"));
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let mut progress = Progress::default();
        let mut passed = 0;
        for _ in 0..1000 {
            progress.push(&"x".repeat(8192), &mut |text| passed += text.len());
            assert!(progress.current.capacity() <= 2 * MAX_DRAWING);
        }
        assert_eq!(passed, 8192 * 1000);
    }

    proptest! {
        #[test]
        fn any_cut_collapses_as_the_whole(parts in prop::collection::vec("[ab\r\n]{0,5}", 0..10)) {
            let chunks: Vec<&str> = parts.iter().map(String::as_str).collect();
            prop_assert_eq!(collapse(&chunks), collapse(&[&parts.concat()]));
        }

        #[test]
        fn text_without_returns_is_untouched(text in "[a-c\n]{0,60}") {
            prop_assert_eq!(collapse(&[&text]), text);
        }
    }
}
