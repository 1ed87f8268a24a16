//! Servers that fail, stall, lie and flood.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::server::{Server, head, html, reply};
use super::{content, open, read, refusal};

/// Fails as often as `fails` says before it gives a page.
fn failing(status: &'static str, retry_after: Option<&'static str>, fails: usize) -> Server {
    let asked = AtomicUsize::new(0);
    Server::new(move |_, stream| {
        if asked.fetch_add(1, Ordering::SeqCst) >= fails {
            return html(stream, "<p>at last");
        }
        let headers: Vec<_> = retry_after.map(|after| ("Retry-After", after)).into_iter().collect();
        reply(stream, status, &headers, b"");
    })
}

#[tokio::test]
async fn passing_trouble_is_tried_again_and_the_server_says_when() {
    for (status, retry_after, fails) in [
        ("429 Too Many Requests", Some("1"), 1),
        ("503 Service Unavailable", Some("0"), 2),
        ("500 Internal Server Error", None, 1),
    ] {
        let server = failing(status, retry_after, fails);
        let began = Instant::now();
        assert_eq!(content(&open(|_| ()), server.url("/")).await, "at last", "{status}");
        assert_eq!(server.requests().len(), fails + 1);
        assert!(
            retry_after != Some("1") || began.elapsed() >= Duration::from_secs(1),
            "it came too early"
        );
    }
}

#[tokio::test]
async fn lasting_trouble_is_an_error_after_few_attempts() {
    for (status, retry_after, attempts, word) in [
        ("500 Internal Server Error", Some("0"), 3, "the site fails"),
        ("429 Too Many Requests", Some("3600"), 1, "asks to wait 3600 s"),
        ("404 Not Found", None, 1, "no such page"),
        ("403 Forbidden", None, 1, "refuses programs"),
        ("401 Unauthorized", None, 1, "wants a login"),
    ] {
        let server = failing(status, retry_after, 100);
        let why = refusal(&open(|_| ()), server.url("/")).await;
        assert!(why.contains(word) && why.contains(&status[..3]), "{why}");
        assert_eq!(server.requests().len(), attempts, "{status}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_tried_again_and_is_never_taken_for_whole() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let server = Server::new(move |request, stream| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 && request.path() == "/once" {
            return html(stream, "<p>whole");
        }
        head(
            stream,
            "200 OK",
            &[("Content-Type", "text/html"), ("Content-Length", "1000")],
        );
        let _ = stream.write_all(b"<p>half");
    });
    assert_eq!(content(&open(|_| ()), server.url("/once")).await, "whole");
    let why = refusal(&open(|_| ()), server.url("/always")).await;
    assert!(why.contains("broke off") && why.contains("after 7 bytes"), "{why}");
}

#[tokio::test]
async fn a_server_that_dribbles_or_stalls_holds_nobody() {
    let server = Server::new(|request, stream| {
        if request.path() == "/silent" {
            std::thread::sleep(Duration::from_secs(20));
            return;
        }
        head(stream, "200 OK", &[("Content-Type", "text/html")]);
        for _ in 0..200 {
            if stream.write_all(b"x").is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let web = open(|options| options.extract.timeout = Duration::from_millis(700));
    for path in ["/dribble", "/silent"] {
        let began = Instant::now();
        let why = refusal(&web, server.url(path)).await;
        assert!(why.contains("within 0.7 s"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(10), "{path}");
    }
}

#[tokio::test]
async fn an_endless_body_is_cut() {
    let server = Server::new(|_, stream| {
        head(stream, "200 OK", &[("Content-Type", "text/plain")]);
        // Bounded, should the client go on reading.
        for _ in 0..200_000 {
            if stream.write_all(&[b'x'; 1024]).is_err() {
                return;
            }
        }
    });
    let web = open(|options| options.extract.max_bytes = 50_000);
    let text = content(&web, server.url("/")).await;
    assert!(text.len() < 50_200 && text.ends_with("was not fetched.]"));
}

#[tokio::test]
async fn a_bomb_is_decoded_no_further_than_the_limit() {
    let zeros = [0u8; 64 * 1024];
    let bomb = gzip_of(&zeros, 4096);
    assert!(bomb.len() < 2 * 1024 * 1024, "256 MiB in {} bytes", bomb.len());
    let server = Server::new(move |_, stream| {
        let headers = [("Content-Type", "text/html"), ("Content-Encoding", "gzip")];
        reply(stream, "200 OK", &headers, &bomb);
    });
    let web = open(|options| options.extract.max_bytes = 1_000_000);
    let before = peak_memory();
    // Zeros make no page, but it is the limit that ends the decoding.
    let _ = read(&web, server.url("/")).await;
    let grown = peak_memory() - before;
    assert!(grown < 150 * 1024, "{grown} KiB more at the peak");
}

/// Kibibytes that this process ever used at once.
fn peak_memory() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `piece`, so many times, in gzip's format.
fn gzip_of(piece: &[u8], times: usize) -> Vec<u8> {
    let code = "import gzip, sys\npiece = sys.stdin.buffer.read()\nout = gzip.GzipFile(fileobj=sys.stdout.buffer, mode='wb')\n\
                for _ in range(int(sys.argv[1])): out.write(piece)\nout.close()";
    let mut python = std::process::Command::new("python3")
        .args(["-c", code, &times.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(piece).unwrap();
    python.wait_with_output().unwrap().stdout
}

#[tokio::test]
async fn what_is_no_http_is_an_error() {
    let server = Server::new(|_, stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
    });
    let why = refusal(&open(|_| ()), server.url("/")).await;
    assert!(why.contains("broke off"), "{why}");
    let nobody = {
        let gone = Server::with("text/html", "");
        gone.url("/")
    };
    let why = refusal(&open(|_| ()), nobody).await;
    assert!(why.contains("no connection can be made"), "{why}");
    let why = refusal(&open(|_| ()), server.url("/").replace("http:", "https:")).await;
    assert!(why.contains("no connection can be made"), "{why}");
}

#[tokio::test]
async fn who_stops_waiting_ends_the_request() {
    let (began, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begin, end) = (began.clone(), ended.clone());
    let server = Server::new(move |_, stream| {
        begin.store(1, Ordering::SeqCst);
        head(stream, "200 OK", &[("Content-Type", "text/plain")]);
        // Ends when the reader has gone; long after the test, should it not go.
        for _ in 0..6000 {
            if stream.write_all(&[b'x'; 100]).is_err() {
                end.store(1, Ordering::SeqCst);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let web = open(|_| ());
    let urls = [server.url("/")];
    tokio::select! {
        _ = web.extract(&urls) => panic!("there was no end to read"),
        () = reached(&began) => {}
    }
    reached(&ended).await;
}

/// Waits until a count is no longer zero; a test that waits in vain fails.
async fn reached(count: &AtomicUsize) {
    let wait = async {
        while count.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(25), wait).await.unwrap();
}
