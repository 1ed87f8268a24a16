//! What of a page is its content.
//!
//! A page that marks its content (`<main>`, `<article>`) is taken at its word: all that is in there stays, whatever its
//! classes are called, but for boxes that are nothing except links to elsewhere. Of any other page the content is guessed
//! by its text, and there classes count only for boxes, never for headings, paragraphs, lists, tables and code.

use std::collections::HashMap;

use dom_query::{Document, NodeId, NodeRef, Selection};

use super::html::NEVER_CONTENT;

/// Characters outside of links with which a `<main>` is surely the content.
const CERTAIN: usize = 250;

/// What is content wherever it stands within the content.
const CONTENT: [&str; 15] = [
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "p",
    "pre",
    "code",
    "table",
    "ul",
    "ol",
    "dl",
    "blockquote",
    "figure",
];

/// Boxes that may hold content, or forms and hints beside it.
const BESIDE: [&str; 3] = ["aside", "footer", "form"];

/// Of these there is nothing to read, even within the content.
const NEVER_READ: [&str; 14] = [
    "script", "style", "noscript", "template", "iframe", "object", "embed", "svg", "canvas", "button", "select", "nav",
    "dialog", "head",
];

/// Words in the class of a box that holds links to elsewhere.
const FURNITURE: [&str; 16] = [
    "ad",
    "ads",
    "advert",
    "breadcrumb",
    "breadcrumbs",
    "cookie",
    "newsletter",
    "pager",
    "pagination",
    "promo",
    "related",
    "share",
    "sharing",
    "sidebar",
    "social",
    "sponsored",
];

/// Parts of class names that say nothing of a box which holds headings, paragraphs or code.
const HARMLESS: [&str; 24] = [
    "header",
    "heading",
    "menu",
    "footer",
    "share",
    "tool",
    "banner",
    "community",
    "extra",
    "pager",
    "popup",
    "legends",
    "remark",
    "media",
    "meta",
    "scroll",
    "tags",
    "widget",
    "contact",
    "hid",
    "com-",
    "related",
    "sponsor",
    "supplemental",
];

/// How much there is in an element: text, in characters that are no spaces, and elements that are content.
#[derive(Clone, Copy, Default)]
struct Size {
    text: usize,
    linked: usize,
    content: usize,
}

impl Size {
    fn own(self) -> usize {
        self.text - self.linked
    }

    fn is_mostly_links(self) -> bool {
        self.linked * 2 > self.text
    }
}

/// The sizes of all elements of a page, found in one pass.
struct Sizes(HashMap<NodeId, Size>);

impl Sizes {
    fn of(document: &Document) -> Self {
        let mut order: Vec<(NodeId, Option<usize>)> = Vec::new();
        let mut sizes: Vec<Size> = Vec::new();
        let mut open: Vec<(NodeRef<'_>, Option<usize>, bool)> = vec![(document.root(), None, false)];
        while let Some((node, parent, is_linked)) = open.pop() {
            if let Some(next) = node.next_sibling() {
                open.push((next, parent, is_linked));
            }
            if node.is_text() {
                let text = node.text().chars().filter(|letter| !letter.is_whitespace()).count();
                if let Some(parent) = parent {
                    let size = &mut sizes[parent];
                    size.text += text;
                    size.linked += if is_linked { text } else { 0 };
                }
                continue;
            }
            if is_one_of(&node, &NEVER_READ) {
                continue;
            }
            if let Some(parent) = parent {
                let size = &mut sizes[parent];
                size.content += usize::from(is_one_of(&node, &CONTENT));
            }
            let number = order.len();
            order.push((node.id, parent));
            sizes.push(Size::default());
            if let Some(child) = node.first_child() {
                open.push((child, Some(number), is_linked || node.has_name("a")));
            }
        }
        // Who comes later in the order lies deeper, or beside.
        for number in (0..order.len()).rev() {
            if let Some(parent) = order[number].1 {
                let size = sizes[number];
                sizes[parent].text += size.text;
                sizes[parent].linked += size.linked;
                sizes[parent].content += size.content;
            }
        }
        Self(order.into_iter().map(|(id, _)| id).zip(sizes).collect())
    }

    fn get(&self, node: &NodeRef<'_>) -> Size {
        self.0.get(&node.id).copied().unwrap_or_default()
    }
}

/// The content that a page marks as such, as markdown; `None` where it marks none. Takes from the page what is no content.
pub(super) fn marked(document: &Document) -> Option<String> {
    let sizes = Sizes::of(document);
    let roots = chosen(document, &sizes)?;
    let mut parts = Vec::new();
    for root in &roots {
        let within = Selection::from(*root);
        take_boxes_away(root, &sizes);
        keep_buttons_that_are_headings(&within);
        within.select(NEVER_CONTENT).iter().for_each(|never| {
            let is_beside = never.nodes().first().is_some_and(|node| is_one_of(node, &BESIDE));
            if !is_beside {
                never.remove();
            }
        });
        parts.push(root.md(None).trim().to_owned());
    }
    parts.retain(|part| !part.is_empty());
    Some(parts.join("\n\n"))
}

/// The elements that are the content by the page's own word, if they can be believed.
fn chosen<'a>(document: &'a Document, sizes: &Sizes) -> Option<Vec<NodeRef<'a>>> {
    let whole = sizes.get(&document.body()?).own();
    let own = |roots: &[NodeRef<'_>]| roots.iter().map(|root| sizes.get(root).own()).sum::<usize>();
    let mains = outermost(document, "main, [role=\"main\"]", &["main"]);
    if !mains.is_empty() && (own(&mains) >= CERTAIN || own(&mains) * 2 > whole) {
        return Some(mains);
    }
    let mut articles = outermost(document, "article", &["article"]);
    // Teasers of other articles are links.
    articles.retain(|article| !sizes.get(article).is_mostly_links());
    (!articles.is_empty() && own(&articles) * 2 > whole).then_some(articles)
}

/// What a selector finds, less what lies within another of its kind.
fn outermost<'a>(document: &'a Document, selector: &str, names: &[&str]) -> Vec<NodeRef<'a>> {
    let is_within = |node: &NodeRef<'_>| node.ancestors_it(None).any(|parent| is_one_of(&parent, names));
    let found = document.select(selector);
    found.nodes().iter().filter(|node| !is_within(node)).copied().collect()
}

fn is_one_of(node: &NodeRef<'_>, names: &[&str]) -> bool {
    names.iter().any(|name| node.has_name(name))
}

/// Takes boxes of links away, and forms and notes that hold no content.
fn take_boxes_away(root: &NodeRef<'_>, sizes: &Sizes) {
    let whole = sizes.get(root).text;
    let boxes = Selection::from(*root).select("div, section, span, aside, footer, form");
    for node in boxes.nodes() {
        let size = sizes.get(node);
        let is_beside = is_one_of(node, &BESIDE);
        let is_furniture =
            size.is_mostly_links() && size.text * 3 < whole && (is_beside || has_word_of_furniture(node));
        let is_empty = is_beside && size.content == 0;
        if is_furniture || is_empty && size.text * 2 < whole {
            node.remove_from_parent();
        }
    }
}

fn names_of(node: &NodeRef<'_>) -> String {
    format!("{} {}", node.attr_or("class", ""), node.attr_or("id", "")).to_ascii_lowercase()
}

fn has_word_of_furniture(node: &NodeRef<'_>) -> bool {
    names_of(node)
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .any(|word| FURNITURE.contains(&word))
}

/// Headings that fold what is below them are buttons.
fn keep_buttons_that_are_headings(within: &Selection<'_>) {
    let buttons = ["h1", "h2", "h3", "h4", "h5", "h6"].map(|heading| format!("{heading} > button:only-child"));
    for button in within.select(&buttons.join(", ")).nodes() {
        let is_all = button
            .parent()
            .is_some_and(|heading| heading.text().trim() == button.text().trim());
        if is_all {
            button.rename("span");
        }
    }
}

/// Takes from a page the names by which content would be taken for something else.
pub(super) fn without_misleading_names(document: &Document) {
    let sizes = Sizes::of(document);
    for node in document.select("[class], [id]").nodes() {
        let size = sizes.get(node);
        let is_letters = is_one_of(
            node,
            &[
                "h1",
                "h2",
                "h3",
                "h4",
                "h5",
                "h6",
                "pre",
                "code",
                "figure",
                "blockquote",
            ],
        );
        let is_text = is_one_of(
            node,
            &["p", "table", "ul", "ol", "dl", "li", "tr", "td", "th", "tbody", "thead"],
        );
        let is_misleading = if is_letters {
            true
        } else if size.is_mostly_links() || is_one_of(node, &["html", "body"]) {
            false
        } else {
            is_text || {
                let names = names_of(node);
                HARMLESS.iter().any(|part| names.contains(part)) && !has_word_of_furniture(node) && size.content > 0
            }
        };
        if is_misleading {
            node.remove_attrs(&["class", "id"]);
        }
    }
    for table in document.select("table").nodes() {
        // It says that this is a table, not a layout.
        if !sizes.get(table).is_mostly_links() {
            table.set_attr("summary", "");
        }
    }
}

/// Writes the language of code where it is looked for, and is not lost with the classes.
pub(super) fn mark_languages(document: &Document) {
    for pre in document.select("pre").nodes() {
        let code = pre.element_children().into_iter().find(|child| child.has_name("code"));
        let around = pre.ancestors_it(Some(2));
        let language = std::iter::once(*pre).chain(code).chain(around).find_map(|node| {
            let class = node.attr("class")?;
            let word = |class: &str| {
                ["language-", "lang-", "highlight-source-"]
                    .iter()
                    .find_map(|prefix| class.strip_prefix(prefix).map(str::to_owned))
            };
            class.split_whitespace().find_map(word)
        });
        if let Some(language) = language.filter(|language| !language.is_empty()) {
            pre.set_attr("data-lang", &language);
        }
    }
}

/// Takes away the marks by which a heading or method links to itself.
pub(super) fn take_anchors_away(document: &Document) {
    for link in document.select("a[href^=\"#\"]").nodes() {
        let is_mark = !link.text().chars().any(char::is_alphanumeric);
        if is_mark && !Selection::from(*link).select_single("img").exists() {
            link.remove_from_parent();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::html::testing::{article, at};

    /// Elements of the content whose classes are also those of what stands around it.
    fn misnamed() -> (String, Vec<String>) {
        let mut html = String::new();
        let mut words = Vec::new();
        for class in [
            "header",
            "menu",
            "related",
            "comment",
            "sponsor",
            "share",
            "tool",
            "banner",
            "community",
            "extra",
            "pager",
            "popup",
            "social",
            "footer",
            "sidebar",
            "hidden",
            "widget",
        ] {
            for (tag, start, end) in [
                ("h1", "", ""),
                ("h2", "", ""),
                ("h4", "", ""),
                ("h6", "", ""),
                ("pre", "", ""),
                ("pre", "<code>", "</code>"),
                ("p", "", ""),
                ("ul", "<li>", "</li>"),
                ("ol", "<li>", "</li>"),
                ("table", "<tr><th>a<th>b<tr><td>1<td>", ""),
                ("table", "<tr><td>", "<td>2"),
                ("blockquote", "", ""),
                ("figure", "<figcaption>", "</figcaption>"),
            ] {
                let word = format!("{class}{}", words.len());
                html.push_str(&format!(
                    "<{tag} class='{class}-{tag}' id='{class}'>{start}{word}{end}</{tag}>"
                ));
                words.push(word);
            }
        }
        (html, words)
    }

    #[test]
    fn content_stays_whatever_its_class_is_called() {
        let (html, words) = misnamed();
        let marked = article(&html);
        for (name, html) in [
            ("article", marked.clone()),
            ("main", marked.replace("article>", "main>")),
            ("neither", marked.replace("article>", "div>")),
            (
                "in sections",
                marked
                    .replace("<article>", "<main><section><div class=header>")
                    .replace("</article>", "</div></section></main>"),
            ),
        ] {
            let text = at(&html, "http://h/").markdown;
            for word in &words {
                assert!(text.contains(word), "{word:?} of {name} in {text}");
            }
            for gone in ["evil", "Log in", "Copyright"] {
                assert!(!text.contains(gone), "{gone:?} of {name} in {text}");
            }
        }
    }

    #[test]
    fn boxes_of_links_are_no_content_and_notes_are() {
        let text = at(
            &article(
                "<div class=share><a href=/x>Tell it</a> <a href=/y>Post it</a></div>\
                 <aside class=note><p>Foxes bite.</p></aside><form><label>Your mail<input></label></form>\
                 <div class=menu><h2>Menus</h2><p>Foxes eat mice.</p></div>\
                 <h3 class=accordion-header><button>Dens</button></h3>\
                 <section class='related posts'><h3>Also read</h3><ul><li><a href=/z>Of geese and ganders</a></ul></section>",
            ),
            "http://h/",
        )
        .markdown;
        for expected in ["Foxes bite", "Menus", "Foxes eat mice", "### Dens"] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        for gone in ["Tell it", "Post it", "Your mail", "geese"] {
            assert!(!text.contains(gone), "{gone:?} in {text}");
        }
    }

    #[test]
    fn signatures_of_generated_documentation_stay() {
        let method = |name: &str| {
            format!(
                "<details class='toggle method-toggle' open><summary><section id='method.{name}' class=method>\
                 <a href='#method.{name}' class=anchor>§</a><h4 class=code-header>pub fn <a href='#method.{name}' \
                 class=fn>{name}</a>(&amp;mut self, value: T)</h4></section></summary><div class=docblock><p>Does {name}.</p>\
                 <h5 id=panics><a class=doc-anchor href='#panics'>§</a>Panics</h5><p>If it must.</p></div></details>"
            )
        };
        let methods: String = (0..40).map(|number| method(&format!("push_{number}"))).collect();
        let html = format!(
            "<title>Vec in std::vec - Rust</title><body><nav class=sidebar><h2><a href=#>Vec</a></h2></nav><main>\
             <section id=main-content class=content><h1>Struct Vec</h1><div id=implementations-list>{methods}</div></section></main>"
        );
        let text = at(&html, "http://h/vec").markdown;
        for number in 0..40 {
            assert!(text.contains(&format!("#### pub fn [push\\_{number}](")), "{text}");
        }
        assert!(text.contains("##### Panics") && !text.contains('§'), "{text}");
    }

    #[test]
    fn the_language_of_code_is_kept() {
        for code in [
            "<pre><code class='hljs language-rust'>fox()</code></pre>",
            "<pre class=language-rust><code>fox()</code></pre>",
            "<pre class='lang-rust'>fox()</pre>",
            "<div class='highlight highlight-source-rust'><pre>fox()</pre></div>",
        ] {
            for html in [article(code), article(code).replace("article>", "div>")] {
                let text = at(&html, "http://h/").markdown;
                assert!(text.contains("```rust\nfox()\n```"), "{code}: {text}");
            }
        }
    }

    #[test]
    fn marks_by_which_a_heading_links_to_itself_go() {
        for mark in ["§", "¶", "#", "", "🔗", "<span></span>"] {
            let heading =
                format!("<h2 id=x>Where<a class=anchor href='#x'>{mark}</a></h2><p>See <a href='#y'>note 1</a>.</p>");
            let text = at(&article(&heading), "http://h/").markdown;
            assert!(
                text.contains("## Where\n") && text.contains("[note 1](http://h/#y)"),
                "{mark}: {text}"
            );
        }
    }
}
