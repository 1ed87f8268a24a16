//! The text of a page whose structure is not fit to be used: its characters between tags, in one pass.

use std::cell::RefCell;
use std::time::Duration;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

use super::html::{Pieces, spaces_joined};

/// The time that it may take; what a page holds beyond that is left out.
const LONGEST_READ: Duration = Duration::from_secs(10);

/// Tags that stand within a line.
const INLINE: [&str; 14] = [
    "a", "abbr", "b", "code", "em", "font", "i", "small", "span", "strong", "sub", "sup", "tt", "u",
];

/// Title and text of a page.
pub(super) fn text(html: &str) -> (String, String) {
    let tokenizer = Tokenizer::new(Collected::default(), TokenizerOpts::default());
    let input = BufferQueue::default();
    let mut pieces = Pieces::of(html, LONGEST_READ);
    for piece in &mut pieces {
        input.push_back(StrTendril::from(piece));
        let _ = tokenizer.feed(&input);
    }
    tokenizer.end();
    let parts = tokenizer.sink.parts.into_inner();
    let mut lines: Vec<String> = parts
        .text
        .lines()
        .map(spaces_joined)
        .filter(|line| !line.is_empty())
        .collect();
    if !pieces.is_done() {
        lines.push("[The page takes too long to be read; the rest of it is left out.]".to_owned());
    }
    (spaces_joined(&parts.title), lines.join("\n"))
}

#[derive(Default)]
struct Collected {
    parts: RefCell<Parts>,
}

#[derive(Default)]
struct Parts {
    title: String,
    text: String,
    is_in_title: bool,
    /// The tag whose content is no text of the page.
    hidden: Option<String>,
}

impl TokenSink for Collected {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let parts = &mut *self.parts.borrow_mut();
        match token {
            Token::CharacterTokens(text) if parts.hidden.is_none() => {
                let place = if parts.is_in_title {
                    &mut parts.title
                } else {
                    &mut parts.text
                };
                place.push_str(&text);
            }
            Token::TagToken(tag) => return parts.tag(&tag),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl Parts {
    fn tag(&mut self, tag: &Tag) -> TokenSinkResult<()> {
        let name: &str = &tag.name;
        let begins = tag.kind == TagKind::StartTag;
        if !INLINE.contains(&name) {
            self.text.push('\n');
        }
        match name {
            "title" => {
                self.is_in_title = begins && self.title.is_empty();
                if begins {
                    return TokenSinkResult::RawData(RawKind::Rcdata);
                }
            }
            "script" | "style" | "noscript" | "template" => {
                self.hidden = begins.then(|| name.to_owned());
                if begins && name != "template" {
                    return TokenSinkResult::RawData(RawKind::Rawtext);
                }
            }
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_between_tags_are_the_text() {
        let html = "<!doctype html><title>A &amp; B</title><style>p{}</style><p>One <b>line</b> &eacute;<div>Two\n  lines\
                    <script>if (a < b) evil('</p>')</script><br>Three<!-- no --><template>no</template><p>End";
        let (title, text) = text(html);
        assert_eq!(title, "A & B");
        assert_eq!(text, "One line é\nTwo\nlines\nThree\nEnd");
    }
}
