//! Pages of every kind, and how they read.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::server::{Server, html, redirect, reply};
use super::{content, open, read, refusal};

/// A document of one page that says `text`.
pub(crate) fn pdf(text: &str) -> Vec<u8> {
    let content = format!("BT /F1 24 Tf 72 700 Td ({text}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    let mut document = "%PDF-1.4\n".to_owned();
    let mut table = "0000000000 65535 f \n".to_owned();
    for (number, object) in objects.iter().enumerate() {
        table.push_str(&format!("{:010} 00000 n \n", document.len()));
        document.push_str(&format!("{} 0 obj\n{object}\nendobj\n", number + 1));
    }
    let start = document.len();
    document.push_str(&format!(
        "xref\n0 6\n{table}trailer << /Size 6 /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    ));
    document.into_bytes()
}

fn article(title: &str) -> String {
    let text =
        "Foxes are small to medium-sized, omnivorous mammals with a flattened skull and upright ears. ".repeat(6);
    format!("<title>{title}</title><nav>Menu</nav><article><h2>Habits</h2><p>{text}<a href=next>More</a></p></article>")
}

#[tokio::test]
async fn a_page_is_read_as_markdown_with_its_title() {
    let server = Server::new(|_, stream| html(stream, &article("Of foxes")));
    let page = read(&open(|_| ()), server.url("/dir/foxes")).await.unwrap();
    assert_eq!(page.title, "Of foxes");
    assert!(page.content.contains("## Habits"), "{}", page.content);
    assert!(
        page.content.contains(&format!("[More]({})", server.url("/dir/next"))),
        "{}",
        page.content
    );
    assert!(!page.content.contains("Menu"), "{}", page.content);
    let asked = &server.requests()[0];
    assert!(asked.header("user-agent").unwrap().contains("Talaria"));
    assert!(asked.header("cookie").is_none() && asked.header("referer").is_none());
}

#[tokio::test]
async fn text_json_and_markdown_come_as_they_are() {
    for (content_type, body) in [
        ("text/plain", "a  <b>\n\n c"),
        ("text/markdown; charset=utf-8", "# é\n* <b>"),
        ("application/json", "{\"a\": [1, 2]}\n"),
        ("application/problem+json", "{}"),
        ("text/csv", "a,b\n1,2\n"),
        ("application/octet-stream", "plain after all"),
    ] {
        let server = Server::with(content_type, body);
        let page = read(&open(|_| ()), server.url("/files/data.txt?x=1")).await.unwrap();
        assert_eq!(
            (page.title.as_str(), page.content.as_str()),
            ("data.txt", body),
            "{content_type}"
        );
    }
}

#[tokio::test]
async fn the_text_of_a_pdf_is_read_by_a_process_of_its_own() {
    let server = Server::with("application/pdf", pdf("Hello from a document"));
    let page = read(&open(|_| ()), server.url("/papers/fox.pdf")).await.unwrap();
    assert_eq!(
        (page.title.as_str(), page.content.as_str()),
        ("fox.pdf", "Hello from a document")
    );

    let named = String::from_utf8(pdf("Hello")).unwrap();
    for (title, expected) in [
        ("(Of foxes and  dens)", "Of foxes and dens"),
        ("(Untitled)", "fox.pdf"),
        ("5", "fox.pdf"),
    ] {
        let info = format!("/Info << /Title {title} >> /Root");
        let server = Server::with("application/pdf", named.replace("/Root", &info));
        let page = read(&open(|_| ()), server.url("/papers/fox.pdf")).await.unwrap();
        assert_eq!((page.title.as_str(), page.content.as_str()), (expected, "Hello"));
    }

    let unnamed = Server::with("application/octet-stream", pdf("Found out"));
    assert_eq!(content(&open(|_| ()), unnamed.url("/")).await, "Found out");
    let server = Server::with("application/pdf", &b"%PDF-1.4\nbroken"[..]);
    let why = refusal(&open(|_| ()), server.url("/")).await;
    assert!(why.contains("PDF that cannot be read"), "{why}");
    let server = Server::with("application/pdf", pdf(""));
    let why = refusal(&open(|_| ()), server.url("/")).await;
    assert!(why.contains("without text"), "{why}");
    let web = open(|options| options.extract.max_bytes = 100);
    let why = refusal(&web, unnamed.url("/")).await;
    assert!(why.contains("more than 100 bytes"), "{why}");
}

#[test]
fn the_process_that_reads_a_pdf_has_no_more_than_its_memory() {
    let mut reader = Command::new(env!("CARGO_BIN_EXE_talaria"))
        .arg(talaria_broker::web::PDF_VERB)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = reader.stdin.take().unwrap();
    let piece = vec![b'x'; 1 << 20];
    let taken = (0..1200).take_while(|_| input.write_all(&piece).is_ok()).count();
    drop(input);
    assert!(!reader.wait().unwrap().success());
    assert!(taken < 1100, "{taken} MiB were taken");
}

#[tokio::test]
async fn what_holds_no_text_says_its_kind_and_size() {
    for (content_type, body, words) in [
        ("image/png", &b"\x89PNG\r\n\x1a\n1234"[..], ["an image", "12 bytes"]),
        (
            "application/octet-stream",
            b"\x7fELF\x02\x01\0\0",
            ["a program", "8 bytes"],
        ),
        ("text/plain", b"a\0b", ["a binary file", "3 bytes"]),
        ("video/mp4", b"", ["a video", "0 bytes"]),
    ] {
        let server = Server::with(content_type, body);
        let why = refusal(&open(|_| ()), server.url("/")).await;
        assert!(words.iter().all(|word| why.contains(word)), "{content_type}: {why}");
    }
    let server = Server::with("text/html", "<body><script>render()</script><div id=app></div>");
    let why = refusal(&open(|_| ()), server.url("/")).await;
    assert!(why.contains("holds no text"), "{why}");
}

#[tokio::test]
async fn the_charset_is_found_where_the_server_is_wrong() {
    for (content_type, body, expected) in [
        (
            "text/html; charset=iso-8859-1",
            "<p>žluťoučký kůň</p>".as_bytes(),
            "žluťoučký kůň",
        ),
        (
            "text/html; charset=windows-1252",
            b"<p>caf\xe9 \x93q\x94</p>",
            "café “q”",
        ),
        (
            "text/html",
            b"<meta charset=koi8-r><p>\xf0\xd2\xc9\xd7\xc5\xd4</p>",
            "Привет",
        ),
        (
            "text/html; charset=utf-8",
            b"<meta charset=koi8-r><p>\xf0\xd2\xc9\xd7\xc5\xd4</p>",
            "Привет",
        ),
        ("text/plain", b"\xff\xfeh\x00\xe9\x00", "hé"),
    ] {
        let server = Server::with(content_type, body);
        assert_eq!(
            content(&open(|_| ()), server.url("/")).await,
            expected,
            "{content_type}"
        );
    }
}

#[tokio::test]
async fn compressed_pages_are_decoded() {
    // What those compressors make of "<p>compressed text</p>".
    for (encoding, hex) in [
        (
            "gzip",
            "1f8b0800000000000203b329b04bcecf2d284a2d2e4e4d512849ad28b1d12fb00300b0e3ca3416000000",
        ),
        (
            "deflate",
            "789cb329b04bcecf2d284a2d2e4e4d512849ad28b1d12fb003005f8a081e",
        ),
        ("br", "8b0a803c703e636f6d7072657373656420746578743c2f703e03"),
        (
            "zstd",
            "28b52ffd0458b100003c703e636f6d7072657373656420746578743c2f703e503972a9",
        ),
    ] {
        let body: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let server = Server::new(move |_, stream| {
            let headers = [("Content-Type", "text/html"), ("Content-Encoding", encoding)];
            reply(stream, "200 OK", &headers, &body);
        });
        assert_eq!(
            content(&open(|_| ()), server.url("/")).await,
            "compressed text",
            "{encoding}"
        );
        let accepted = server.requests()[0].header("accept-encoding").unwrap().to_owned();
        for encoding in ["gzip", "br", "deflate", "zstd"] {
            assert!(accepted.contains(encoding), "{accepted}");
        }
    }
    let server = Server::new(|_, stream| reply(stream, "200 OK", &[("Content-Encoding", "exotic")], b"xx"));
    let why = refusal(&open(|_| ()), server.url("/")).await;
    assert!(why.contains("exotic"), "{why}");
}

#[tokio::test]
async fn redirects_are_followed_and_circles_are_noticed() {
    let server = Server::new(|request, stream| match request.path() {
        "/a" => redirect(stream, "/b#part"),
        "/b" => reply(stream, "308 Permanent Redirect", &[("Location", "c?x=1")], b""),
        "/round" => redirect(stream, "/and-round"),
        "/and-round" => redirect(stream, "/round"),
        "/nowhere" => reply(stream, "301 Moved Permanently", &[], b""),
        "/odd" => redirect(stream, "http://"),
        "/lost" => redirect(stream, "/missing"),
        "/missing" => reply(stream, "404 Not Found", &[], b"no"),
        path if path.starts_with("/far") => redirect(stream, &format!("{path}x")),
        _ => html(stream, &article("Arrived")),
    });
    let web = open(|_| ());
    assert_eq!(read(&web, server.url("/a")).await.unwrap().title, "Arrived");
    for (path, word) in [
        ("/round", "in a circle"),
        ("/nowhere", "without saying where"),
        ("/odd", "no address"),
        ("/far", "more than 10 redirects"),
        ("/lost", "/missing: the answer is 404"),
    ] {
        let why = refusal(&web, server.url(path)).await;
        assert!(why.contains(word), "{path}: {why}");
    }
}

#[tokio::test]
async fn a_page_that_sends_its_reader_on_is_followed_once() {
    let server = Server::new(|request, stream| match request.path() {
        "/start" => html(
            stream,
            "<meta http-equiv=refresh content='0; url=/end'><p>You are being redirected.",
        ),
        "/ring" => html(stream, "<meta http-equiv=refresh content='0; url=/ring2'><p>first"),
        "/ring2" => html(stream, "<meta http-equiv=refresh content='0; url=/ring'><p>second"),
        "/self" => html(stream, "<meta http-equiv=refresh content='0; url=/self'><p>itself"),
        _ => html(stream, &article("The end")),
    });
    let web = open(|_| ());
    assert_eq!(read(&web, server.url("/start")).await.unwrap().title, "The end");
    assert_eq!(content(&web, server.url("/ring")).await, "second");
    assert_eq!(content(&web, server.url("/self")).await, "itself");
}

#[tokio::test]
async fn several_pages_are_read_side_by_side_and_keep_their_order() {
    let server = Server::new(|request, stream| match request.path() {
        "/slow" => {
            std::thread::sleep(Duration::from_millis(300));
            html(stream, "<p>slow one");
        }
        "/fails" => reply(stream, "410 Gone", &[], b""),
        _ => html(stream, "<p>quick one"),
    });
    let urls: Vec<String> = ["/slow", "/fails", "/quick"].map(|path| server.url(path)).into();
    let pages = open(|_| ()).extract(&urls).await;
    assert_eq!(pages[0].as_ref().unwrap().content, "slow one");
    assert!(pages[1].as_ref().unwrap_err().to_string().contains("410"));
    assert_eq!(pages[2].as_ref().unwrap().content, "quick one");
}

#[tokio::test]
async fn a_huge_page_is_read_as_far_as_the_limit_goes() {
    let server = Server::new(|_, stream| html(stream, &format!("<p>begin{}", " word".repeat(100_000))));
    let web = open(|options| options.extract.max_bytes = 10_000);
    let text = content(&web, server.url("/")).await;
    assert!(text.starts_with("begin word"), "{}", &text[..100]);
    assert!(
        text.ends_with("the rest was not fetched.]"),
        "{}",
        &text[text.len() - 100..]
    );
    assert!(text.len() < 10_200);
}
