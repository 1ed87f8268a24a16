//! From a page to its main content as markdown.
//!
//! A page may be written to harm its reader: nested a million levels deep, or so that every tag repeats all open ones. The
//! tree is therefore built piece by piece under a watch, and a page that is too deep is read for its text alone.

use std::time::{Duration, Instant};

use dom_query::Document;
use dom_smoothie::{Config, Readability, TextMode};
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{ParseOpts, parse_document};
use url::Url;

use super::{content, plain};

/// Bytes that are parsed between two looks at the tree.
const PIECE: usize = 1024;

/// Nodes of a tree, and levels.
const MOST_NODES: usize = 200_000;
const DEEPEST: usize = 256;

/// The time that building a tree may take.
const LONGEST_PARSE: Duration = Duration::from_secs(3);

/// Bytes that made-out links may add to a page.
const MOST_LINK_BYTES: usize = 16 * 1024 * 1024;

/// Of a page with a shorter article (in characters) all is given, for what was chosen may be anything.
const SHORT_ARTICLE: usize = 250;

/// The longest delay, in seconds, after which a page that sends its reader on counts as a redirect.
const LONGEST_REFRESH: f64 = 10.0;

/// What never belongs to the content of a page.
pub(super) const NEVER_CONTENT: &str = "script, style, noscript, template, iframe, object, embed, svg, canvas, form, button, select, \
    nav, footer, aside, dialog, [hidden], [aria-hidden=\"true\"], [role=\"navigation\"]";

/// A page as it is to be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Readable {
    pub(super) title: String,
    pub(super) markdown: String,
    /// Where the page sends its reader by itself.
    pub(super) refresh: Option<String>,
}

/// Reads a page that was found at `url`.
pub(super) fn read(html: &str, url: &Url) -> Readable {
    // The parser keeps an account of each of these, which takes hundreds of times their size.
    let without_zeros;
    let html = if html.contains('\0') {
        without_zeros = html.replace('\0', "");
        &without_zeros
    } else {
        html
    };
    let Some(document) = parse(html) else {
        let (title, markdown) = plain::text(html);
        return Readable {
            title,
            markdown,
            refresh: None,
        };
    };
    let title = spaces_joined(&document.select_single("title").text());
    let refresh = refresh(&document);
    content::take_anchors_away(&document);
    content::mark_languages(&document);
    complete_links(&document, url);
    let readability = |document: Document| {
        let config = Config {
            text_mode: TextMode::Markdown,
            ..Config::default()
        };
        Readability::with_document(document, None, Some(config)).ok()
    };
    let article_title = readability(document.clone())
        .map(|readability| readability.get_article_metadata(readability.parse_json_ld()).title)
        .unwrap_or_default();
    let article = content::marked(&document).unwrap_or_else(|| {
        content::without_misleading_names(&document);
        readability(document.clone())
            .and_then(|mut readability| readability.parse().ok())
            .map(|article| article.text_content.trim().to_owned())
            .unwrap_or_default()
    });
    let is_poor = article.chars().count() < SHORT_ARTICLE;
    let whole = if is_poor {
        document.select(NEVER_CONTENT).remove();
        document
            .body()
            .map(|body| body.md(None).trim().to_owned())
            .unwrap_or_default()
    } else {
        String::new()
    };
    Readable {
        title: if article_title.trim().is_empty() {
            title
        } else {
            spaces_joined(&article_title)
        },
        markdown: if whole.is_empty() { article } else { whole },
        refresh,
    }
}

pub(super) fn spaces_joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Builds the tree; `None` where the page is not fit to be made one.
fn parse(html: &str) -> Option<Document> {
    let options = ParseOpts {
        tree_builder: TreeBuilderOpts {
            scripting_enabled: false,
            ..TreeBuilderOpts::default()
        },
        ..ParseOpts::default()
    };
    let mut parser = parse_document(Document::default(), options);
    let mut pieces = Pieces::of(html, LONGEST_PARSE);
    for piece in &mut pieces {
        parser.process(StrTendril::from(piece));
        let document = &parser.tokenizer.sink.sink;
        if document.tree.len() > MOST_NODES || is_too_deep_at_the_end(document) {
            return None;
        }
    }
    if !pieces.is_done() {
        return None;
    }
    let document = parser.finish();
    (depth(&document) <= DEEPEST).then_some(document)
}

/// The pieces of a page, as long as there is time for them.
pub(super) struct Pieces<'a> {
    rest: &'a str,
    end: Instant,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(html: &'a str, time: Duration) -> Self {
        Self {
            rest: html,
            end: Instant::now() + time,
        }
    }

    /// Whether all of them were given.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() || Instant::now() > self.end {
            return None;
        }
        let (piece, rest) = self
            .rest
            .split_at(self.rest.ceil_char_boundary(PIECE.min(self.rest.len())));
        self.rest = rest;
        Some(piece)
    }
}

/// Whether what was added last lies too deep: found from the root by last children.
fn is_too_deep_at_the_end(document: &Document) -> bool {
    let mut node = document.root();
    for _ in 0..DEEPEST {
        match node.last_child() {
            Some(child) => node = child,
            None => return false,
        }
    }
    true
}

/// The levels of a tree, without recursion.
fn depth(document: &Document) -> usize {
    let mut deepest = 0;
    let mut open = vec![(document.root(), 0)];
    while let Some((node, depth)) = open.pop() {
        deepest = deepest.max(depth);
        if let Some(next) = node.next_sibling() {
            open.push((next, depth));
        }
        if let Some(child) = node.first_child() {
            open.push((child, depth + 1));
        }
    }
    deepest
}

/// Makes links and pictures whole addresses, and takes away those that lead nowhere outside the page.
fn complete_links(document: &Document, url: &Url) {
    let base = document
        .base_uri()
        .filter(|base| base.len() < 2048)
        .and_then(|base| url.join(&base).ok());
    let base = base.as_ref().unwrap_or(url);
    let mut room = MOST_LINK_BYTES;
    for (selector, attribute) in [("a[href]", "href"), ("img[src]", "src")] {
        for node in document.select(selector).nodes() {
            let Some(written) = node.attr(attribute) else {
                continue;
            };
            let whole = base.join(written.trim()).ok();
            match whole.filter(|whole| matches!(whole.scheme(), "http" | "https" | "mailto" | "ftp")) {
                Some(whole) if whole.as_str().len() <= room => {
                    room -= whole.as_str().len();
                    node.set_attr(attribute, whole.as_str());
                }
                // Pictures within the page are megabytes of letters.
                _ => node.remove_attr(attribute),
            }
        }
    }
    document.select("img:not([src])").remove();
}

/// The address of a `<meta http-equiv=refresh>` that acts soon, outside of what is for readers without scripts.
fn refresh(document: &Document) -> Option<String> {
    let metas = document.select("meta[http-equiv]");
    metas.nodes().iter().find_map(|meta| {
        let kind = meta.attr("http-equiv")?;
        let is_for_all = !meta.ancestors_it(Some(8)).any(|parent| parent.has_name("noscript"));
        if !kind.eq_ignore_ascii_case("refresh") || !is_for_all {
            return None;
        }
        target(&meta.attr("content")?)
    })
}

/// The address in `0; url=…`, unless the delay is long.
fn target(content: &str) -> Option<String> {
    let (delay, rest) = content.split_once([';', ','])?;
    if !delay
        .trim()
        .parse::<f64>()
        .is_ok_and(|delay| (0.0..=LONGEST_REFRESH).contains(&delay))
    {
        return None;
    }
    let rest = rest.trim();
    let is_named = rest.get(..3).is_some_and(|name| name.eq_ignore_ascii_case("url"));
    let address = if is_named {
        rest[3..].trim_start().strip_prefix('=')?
    } else {
        rest
    };
    let address = address.trim().trim_matches(['"', '\'']).trim();
    (!address.is_empty()).then(|| address.to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
pub(super) mod testing {
    //! Pages to be read.

    use super::*;

    pub(in crate::web) fn at(html: &str, url: &str) -> Readable {
        read(html, &Url::parse(url).unwrap())
    }

    pub(in crate::web) fn article(body: &str) -> String {
        let words = "The quick brown fox, as every typist knows, jumps over the lazy dog. ".repeat(8);
        format!(
            "<!doctype html><html><head><title>Of foxes</title><script>evil()</script></head><body>\
             <nav><a href=/home>Home</a> <a href=/login>Log in</a></nav>\
             <article><h1>Of foxes</h1><p>{words}</p>{body}<p>{words}</p></article>\
             <footer>Copyright by nobody</footer></body></html>"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::charset::decode;
    use super::testing::{article, at};
    use super::*;

    #[test]
    fn the_main_content_becomes_markdown() {
        let page = at(
            &article(
                "<h2>Where</h2><p>In <b>woods</b> and <a href='../map?x=1#top'>elsewhere</a>.</p>\
                 <ul><li>one</li><li>two</li></ul><pre><code>fox()\n  .jump()</code></pre>\
                 <table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>\
                 <img src=\"data:image/png;base64,AAAA\" alt=\"inline\"><a href='javascript:x()'>click</a>",
            ),
            "https://example.org/docs/foxes",
        );
        assert_eq!(page.title, "Of foxes");
        let text = &page.markdown;
        for expected in [
            "## Where",
            "**woods**",
            "[elsewhere](https://example.org/map?x=1#top)",
            "one",
            "fox()\n  .jump()",
            "| a | b |",
            "jumps over the lazy dog",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        for gone in ["evil", "Log in", "Copyright", "base64", "javascript", "<"] {
            assert!(!text.contains(gone), "{gone:?} in {text}");
        }
    }

    #[test]
    fn a_page_without_an_article_is_given_whole() {
        let page = at(
            "<title>Index</title><nav><a href=/>Top</a></nav><ul><li><a href=a.html>First</a></li><li><a href=b.html>Second</a></li></ul>",
            "http://h/dir/",
        );
        assert_eq!(page.title, "Index");
        assert!(
            page.markdown.contains("[First](http://h/dir/a.html)"),
            "{}",
            page.markdown
        );
        assert!(
            page.markdown.contains("[Second](http://h/dir/b.html)"),
            "{}",
            page.markdown
        );
        assert!(!page.markdown.contains("Top"), "{}", page.markdown);
        assert_eq!(at("", "http://h/").markdown, "");
    }

    #[test]
    fn a_base_counts_and_a_long_one_does_not() {
        let page = |base: &str| at(&format!("<base href='{base}'><p><a href=x>link</a>"), "http://h/a/").markdown;
        assert!(page("http://other/b/").contains("http://other/b/x"));
        assert!(page("/c/").contains("http://h/c/x"));
        assert!(page(&format!("http://other/{}/", "y".repeat(3000))).contains("http://h/a/x"));
    }

    #[test]
    fn pages_that_are_built_to_harm_end_soon_and_keep_their_text() {
        let deep = format!("{}deep down{}", "<div>".repeat(50_000), "</div>".repeat(50_000));
        let deep_lists = format!("{}deep down", "<ul><li>".repeat(20_000));
        let many = format!("<title>T</title>{}", "<p>word".repeat(110_000));
        let fonts: String = (0..5_000).map(|n| format!("<font a={n}>")).collect();
        let repeated = format!("{fonts}deep down{}", "<p>x".repeat(20_000));
        let attributes: String = (0..10_000).map(|n| format!("a{n} ")).collect();
        let attributes = format!("<p>deep down</p><p {attributes}>");
        let notes = format!(
            "<main>deep down{}{}",
            "<aside>".repeat(240),
            "<span>x</span>".repeat(60_000)
        );
        let buttons = format!("<main>deep down<h1>{}", "<button>x</button>".repeat(60_000));
        for (name, html) in [
            ("deep", deep),
            ("lists", deep_lists),
            ("many", many),
            ("repeated", repeated),
            ("attributes", attributes),
            ("notes", notes),
            ("buttons", buttons),
        ] {
            let page = at(&html, "http://h/");
            let word = if name == "many" { "word" } else { "deep down" };
            assert!(page.markdown.contains(word), "{name}");
            assert!(page.markdown.len() <= html.len(), "{name}");
        }
    }

    #[test]
    fn a_page_is_read_only_as_long_as_there_is_time() {
        let page = "<p>é".repeat(1000);
        let whole: String = Pieces::of(&page, Duration::from_secs(60)).collect();
        assert_eq!(whole, page);
        let mut none = Pieces::of(&page, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert!(none.next().is_none() && !none.is_done());
    }

    #[test]
    fn links_do_not_make_a_page_grow_without_bound() {
        let base = format!("http://h/{}/", "y".repeat(1900));
        let html = format!("<base href='{base}'><p>{}", "<a href=x>l</a> ".repeat(20_000));
        assert!(at(&html, "http://h/").markdown.len() < 3 * MOST_LINK_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            pieces in prop::collection::vec(prop_oneof![
                "[a-z<>/&;='\" -]{0,8}",
                prop::sample::select(vec![
                    "<p>", "</p>", "<a href=x>", "</a>", "<table>", "<tr><td>", "</table>", "<b>", "<i>", "</b>", "<ul><li>",
                    "<pre><code>", "</pre>", "<script>", "</script>", "<title>", "<meta http-equiv=refresh content='0;x'>",
                    "<base href=//b/>", "<svg>", "<template>", "<select>", "<!--", "-->", "<img src=data:x>", "\0", "é",
                ]).prop_map(str::to_owned),
            ], 0..60),
            noise in prop::collection::vec(any::<u8>(), 0..20),
            label in prop::option::of(prop::sample::select(vec!["utf-8", "utf-16", "shift_jis", "gb18030", "x"])),
        ) {
            let bytes = [pieces.concat().as_bytes(), &noise].concat();
            let page = at(&decode(&bytes, label, true), "http://h/a/b");
            prop_assert!(!page.title.contains('\n'));
            let (title, _) = plain::text(&pieces.concat());
            prop_assert!(!title.contains('\n'));
        }
    }

    #[test]
    fn a_refresh_that_acts_soon_is_a_redirect() {
        for (content, expected) in [
            ("0; url=/next", Some("/next")),
            ("0;URL='http://a/b'", Some("http://a/b")),
            ("5, url = \"x\"", Some("x")),
            ("0; /plain", Some("/plain")),
            ("60; url=/later", None),
            ("30", None),
            ("x; url=/y", None),
            ("0; url=", None),
        ] {
            assert_eq!(target(content).as_deref(), expected, "{content}");
        }
        let refresh = |html| at(html, "http://h/").refresh;
        assert_eq!(
            refresh("<meta http-equiv=Refresh content='0; url=/next'>").as_deref(),
            Some("/next")
        );
        assert_eq!(
            refresh("<noscript><meta http-equiv=refresh content='0; url=/next'></noscript>"),
            None
        );
    }
}
