//! What reading pages takes: one large page beside Python's own parser going through it, and eight slow ones beside one.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, Session, SessionOptions};
use talaria_broker::tools::BuiltinTools;
use talaria_broker::web::WebOptions;

use crate::measure::{Result, numbers, say};

pub(crate) const FIGURES: [&str; 2] = ["web-extract", "web-side-by-side"];

/// The time that a slow page takes.
const SLOW: Duration = Duration::from_millis(200);

/// Fetches and reads the large page, once by the tool, once by what Python brings along.
const EXTRACT: &str = "
from time import perf_counter_ns
from urllib.request import urlopen
from html.parser import HTMLParser
from hermes_tools import web_extract
def ours():
    page = web_extract('URL/large', char_limit=1_000_000)['results'][0]
    assert page['error'] is None and 'paragraph 999' in page['content'], page
def theirs():
    text = []
    class Collect(HTMLParser):
        def handle_data(self, data):
            text.append(data)
    Collect().feed(urlopen('URL/large').read().decode())
    assert 'paragraph 999' in ''.join(text)
def time_of(work):
    began = perf_counter_ns()
    work()
    return perf_counter_ns() - began
for work in (ours, theirs):
    work()
";

pub(crate) async fn measure(wanted: &impl Fn(&str) -> bool) -> Result<()> {
    let address = serve()?;
    let mut web = WebOptions::default();
    web.extract.allow_private = vec!["127.0.0.1".parse()?];
    let broker = Broker::new(1);
    let mut options = SessionOptions::local(std::env::temp_dir(), Environment::of_this_process());
    options.host = Arc::new(BuiltinTools::new(None).with_web(web));
    options.limits.max_tool_calls = 1000;
    let session = broker.open(options)?;
    if wanted("web-extract") {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        run(&session, EXTRACT.replace("URL", &address)).await?;
        for _ in 0..21 {
            let times = run(&session, TURN.to_owned()).await?;
            ours.push(times[0]);
            theirs.push(times[1]);
        }
        say("web-extract", &ours, "urlopen and html.parser", &theirs, 1.0)?;
    }
    if wanted("web-side-by-side") {
        let (mut eight, mut one) = (Vec::new(), Vec::new());
        for round in 0..9 {
            let script = format!(
                "from time import perf_counter_ns\nfrom hermes_tools import web_extract\n\
                 for count in (8, 1):\n    began = perf_counter_ns()\n    \
                 results = web_extract(['{address}/slow'] * count)['results']\n    print(perf_counter_ns() - began)\n    \
                 assert all(page['error'] is None for page in results), results"
            );
            let times = run(&session, script).await?;
            if round > 0 {
                eight.push(times[0]);
                one.push(times[1]);
            }
        }
        say("web-side-by-side", &eight, "one page of 0.2 s", &one, 1.3)?;
    }
    broker.close().await;
    Ok(())
}

/// Both sides in turns.
const TURN: &str = "print(time_of(ours), time_of(theirs))";

async fn run(session: &Session, script: String) -> Result<Vec<Duration>> {
    numbers(&session.execute(Cell::new(script)).await)
}

/// A web of its own, which ends with the program; its address.
fn serve() -> Result<String> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = format!("http://{}", listener.local_addr()?);
    let large = large();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let large = large.clone();
            std::thread::spawn(move || answer(stream, &large));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, large: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let body = if first.contains("/slow") {
        std::thread::sleep(SLOW);
        "<title>slow</title><p>A short page that takes its time."
    } else {
        large
    };
    let head = format!(
        "Content-Type: text/html\r\nContent-Length: {}\r\nConnection: close",
        body.len()
    );
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes())
}

/// An article of some 400 KiB, as pages are: links, lists, code, and much around it.
fn large() -> String {
    let around = "<li><a href=/somewhere?id=1>A link in the menu</a></li>".repeat(300);
    let paragraphs: String = (0..1000)
        .map(|number| {
            format!(
                "<p>This is <b>paragraph {number}</b>, with a <a href=\"/page/{number}\">link</a>, some <code>code()</code>, \
                 and as many words as a paragraph needs, which is to say: more than one would like to count, and then some, \
                 so that it looks like text that somebody wrote.</p>"
            )
        })
        .collect();
    format!(
        "<!doctype html><html><head><title>Large</title><style>{}</style></head><body><nav><ul>{around}</ul></nav>\
         <article><h1>Large</h1>{paragraphs}</article><footer>{around}</footer></body></html>",
        "p { color: black }\n".repeat(500)
    )
}
