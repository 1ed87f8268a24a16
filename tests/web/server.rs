//! An HTTP server that answers as a test says, byte for byte where it wants to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A server that lives as long as this value.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    /// Answers each request by what `answer` writes; the connection ends after it.
    pub(crate) fn new(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", answer)
    }

    pub(crate) fn at(address: &str, answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            is_over: Arc::default(),
        };
        let (requests, is_over) = (server.requests.clone(), server.is_over.clone());
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (requests, answer) = (requests.clone(), answer.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &requests, &*answer));
            }
        });
        server
    }

    /// Always the same answer.
    pub(crate) fn with(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self::new(move |_, stream| reply(stream, "200 OK", &[("Content-Type", content_type)], &body))
    }

    /// The address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All that was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, requests: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request, &mut TcpStream)) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let Some(request) = request(&stream) else {
        return;
    };
    requests.lock().unwrap().push(request.clone());
    answer(&request, &mut stream);
}

fn request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut request = Request {
        method,
        target,
        headers,
        body: String::new(),
    };
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

/// Writes an answer with its length. A reader that has gone is no fault of the server.
pub(crate) fn reply(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) {
    head(
        stream,
        status,
        &[headers, &[("Content-Length", &body.len().to_string())]].concat(),
    );
    let _ = stream.write_all(body);
}

/// Writes the head of an answer alone.
pub(crate) fn head(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)]) {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.write_all(format!("{text}\r\n").as_bytes());
}

pub(crate) fn html(stream: &mut TcpStream, body: &str) {
    reply(
        stream,
        "200 OK",
        &[("Content-Type", "text/html; charset=utf-8")],
        body.as_bytes(),
    );
}

pub(crate) fn redirect(stream: &mut TcpStream, to: &str) {
    reply(stream, "302 Found", &[("Location", to)], b"");
}
