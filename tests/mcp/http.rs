//! Over HTTP: who may ask, whose is what, and what happens to the scripts of a client that goes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::client::{LIMIT, mark, sleeper, sleeps, until};

const ADA: &str = "0123456789abcdef-ada";
const BOB: &str = "0123456789abcdef-bob";

/// A server, and where it listens.
struct Server {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = crate::client::server(folder.path());
        command
            .args(["--http", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line);
        let address = address.strip_suffix("/mcp").unwrap().to_owned();
        // What else it says is read, so that it can say it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self { child, address, folder }
    }

    /// With two principals.
    fn with_tokens() -> Self {
        Self::start(|command| {
            let file = command.get_current_dir().unwrap().join("tokens");
            std::fs::write(&file, format!("ada {ADA}\nbob {BOB}\n")).unwrap();
            command.arg("--token-file").arg(file);
        })
    }

    /// Sends a request; the connection, for whoever reads the answer.
    fn send(&self, headers: &[(&str, &str)], message: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let body = message.to_string();
        let mut head = String::from(
            "POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n",
        );
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    /// The status of an answer, and all of it.
    fn ask(&self, headers: &[(&str, &str)], message: &Value) -> (u16, String) {
        let mut text = Vec::new();
        self.send(headers, message).read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
    }

    /// The result of a call, of the version that knows no connections.
    fn call(&self, token: Option<&str>, tool: &str, arguments: Value) -> Value {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers = modern(tool);
        if let Some(bearer) = &bearer {
            headers.push(("Authorization", bearer));
        }
        let (status, text) = self.ask(&headers, &call(tool, arguments));
        assert_eq!(status, 200, "{text}");
        let answer = text.lines().find_map(|line| {
            let start = line.find('{')?;
            serde_json::from_str::<Value>(&line[start..])
                .ok()
                .filter(|message| message["id"] == 1)
        });
        answer.unwrap_or_else(|| panic!("{text}"))
    }

    fn execute(&self, token: Option<&str>, arguments: Value) -> Value {
        self.call(token, "execute_code", arguments)["result"]["structuredContent"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        assert!(self.folder.path().exists());
    }
}

fn call(tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": tool, "arguments": arguments, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
    }}})
}

fn modern(tool: &str) -> Vec<(&str, &str)> {
    vec![
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
    ]
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
}

#[test]
fn only_who_has_a_token_may_ask() {
    let server = Server::with_tokens();
    for headers in [
        vec![],
        vec![("Authorization", "Bearer")],
        vec![("Authorization", "Bearer 0123456789abcdef")],
        vec![("Authorization", ADA)],
        vec![("Authorization", "Basic 0123456789abcdef-ada")],
    ] {
        let (status, text) = server.ask(&headers, &initialize());
        assert_eq!(status, 401, "{headers:?}: {text}");
        assert!(text.to_lowercase().contains("www-authenticate: bearer"), "{text}");
    }
    let bearer = format!("Bearer {ADA}");
    assert_eq!(server.ask(&[("Authorization", &bearer)], &initialize()).0, 200);
}

#[test]
fn web_pages_and_strange_names_are_refused() {
    let server = Server::start(|command| {
        command.args([
            "--allow-origin",
            "https://app.example:443",
            "--allow-host",
            "box.example",
        ]);
    });
    for (header, value, expected) in [
        ("Origin", "https://evil.example", 403),
        ("Origin", "http://localhost:1234", 403),
        ("Origin", "null", 403),
        ("Host", "evil.example", 403),
        ("Origin", "https://app.example", 200),
        ("Host", "box.example", 200),
        ("Host", "localhost:1", 200),
    ] {
        let (status, text) = server.ask(&[(header, value)], &initialize());
        assert_eq!(status, expected, "{header}: {value}: {text}");
    }
    let huge = json!({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"text": "x".repeat(17 << 20)}});
    // The server may hang up before it has read all.
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.ask(&[], &huge).0));
    assert!(refused.is_err() || refused.is_ok_and(|status| status == 413));
    assert_eq!(server.ask(&[], &initialize()).0, 200);
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let output = crate::client::server(folder.path())
        .args(["--http", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("every client needs a token") && said.contains("TALARIA_MCP_TOKEN"),
        "{said}"
    );
}

#[test]
fn what_a_principal_has_no_other_finds() {
    let server = Server::with_tokens();
    let of_ada = server.execute(Some(ADA), json!({"code": "print('x' * 60000)", "idempotency_key": "k"}));
    assert_eq!(of_ada["status"], "success", "{of_ada}");
    let session = of_ada["session"].clone();
    assert_eq!(
        server.execute(Some(ADA), json!({"code": "print(1)", "session": session}))["output"],
        "1\n"
    );
    let not = |answer: &Value, words: &str| {
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer.to_string().contains(words), "{answer}");
    };
    not(
        &server.call(Some(BOB), "execute_code", json!({"code": "1", "session": session})),
        "there is no session",
    );
    not(
        &server.call(Some(BOB), "session_close", json!({"session": session})),
        "there is no session",
    );
    not(
        &server.call(Some(BOB), "execution_status", json!({"execution": of_ada["execution"]})),
        "there is no execution",
    );
    not(
        &server.call(Some(BOB), "execution_cancel", json!({"execution": of_ada["execution"]})),
        "there is no execution",
    );
    let listed = server.call(Some(BOB), "session_list", json!({}));
    assert_eq!(listed["result"]["structuredContent"]["sessions"], json!([]));
    // The same key is another one's own.
    let of_bob = server.execute(Some(BOB), json!({"code": "print(2)", "idempotency_key": "k"}));
    assert_eq!(of_bob["output"], "2\n");

    let uri = format!("talaria://executions/{}/stdout", of_ada["execution"].as_str().unwrap());
    for (token, is_there) in [(ADA, true), (BOB, false)] {
        let bearer = format!("Bearer {token}");
        let mut message = call("", json!({}));
        message["method"] = json!("resources/read");
        message["params"] = json!({"uri": uri, "_meta": message["params"]["_meta"]});
        let headers = [
            ("Authorization", &*bearer),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "resources/read"),
            ("Mcp-Name", &uri),
        ];
        let (_, text) = server.ask(&headers, &message);
        assert_eq!(
            text.contains("xxxxx"),
            is_there,
            "{token}: {}",
            &text[..text.len().min(600)]
        );
    }
}

#[test]
fn sessions_are_new_unless_named() {
    let server = Server::start(|_| {});
    let first = server.execute(None, json!({"code": "x = 1"}));
    let second = server.execute(None, json!({"code": "print('x' in globals())"}));
    assert_eq!(second["output"], "False\n");
    let third = server.execute(None, json!({"code": "print(x)", "session": first["session"]}));
    assert_eq!(third["output"], "1\n");
}

#[test]
fn idle_sessions_are_bounded() {
    let server = Server::start(|_| {});
    for _ in 0..40 {
        // Opens one, and starts nothing there.
        server.execute(None, json!({"code": ""}));
    }
    let listed = server.call(None, "session_list", json!({}));
    let count = listed["result"]["structuredContent"]["sessions"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(count, 32);
}

#[test]
fn a_client_that_hangs_up_cancels_unless_it_is_detached() {
    let server = Server::start(|_| {});
    let (attached, detached) = (mark(), mark());
    let one = server.send(
        &modern("execute_code"),
        &call("execute_code", json!({"code": sleeper(&attached)})),
    );
    let arguments = json!({"code": sleeper(&detached), "detach": true, "idempotency_key": "d"});
    let other = server.send(&modern("execute_code"), &call("execute_code", arguments.clone()));
    until("both run", || sleeps(&attached) && sleeps(&detached));
    drop((one, other));
    until("what was not detached ends", || !sleeps(&attached));
    assert!(sleeps(&detached));
    let mut arguments = arguments;
    arguments["wait"] = json!(0);
    let found = server.execute(None, arguments);
    assert_eq!(found["status"], "running", "{found}");
    let ended = server.call(None, "execution_cancel", json!({"execution": found["execution"]}));
    assert_eq!(ended["result"]["structuredContent"]["status"], "interrupted");
    assert!(!sleeps(&detached));
}

#[test]
fn a_client_of_an_older_version_cancels_by_a_message_or_by_hanging_up() {
    let server = Server::start(|_| {});
    let (_, text) = server.ask(&[], &initialize());
    let session = text
        .lines()
        .find_map(|line| {
            line.split_once(": ")
                .filter(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"))
        })
        .unwrap()
        .1
        .trim()
        .to_owned();
    let headers = [("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", "2025-06-18")];
    let accepted = server.ask(
        &headers,
        &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    );
    assert_eq!(accepted.0, 202);
    let old = |id: u64, code: String| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "execute_code", "arguments": {"code": code}}})
    };
    let (told, hung_up) = (mark(), mark());
    let _open = server.send(&headers, &old(2, sleeper(&told)));
    until("the first runs", || sleeps(&told));
    server.ask(
        &headers,
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}),
    );
    until("the first ends", || !sleeps(&told));
    let open = server.send(&headers, &old(3, sleeper(&hung_up)));
    until("the second runs", || sleeps(&hung_up));
    drop(open);
    until("the second ends", || !sleeps(&hung_up));
    let (_, text) = server.ask(&headers, &old(4, "print('well')".to_owned()));
    assert!(text.contains("well\\n"), "{text}");
}

/// A session of an older version: what names it.
fn begin(server: &Server, token: &str) -> String {
    let bearer = format!("Bearer {token}");
    let (_, text) = server.ask(&[("Authorization", &bearer)], &initialize());
    let named = text.lines().find_map(|line| {
        line.split_once(": ")
            .filter(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"))
    });
    named.unwrap().1.trim().to_owned()
}

#[test]
fn a_session_of_the_protocol_is_its_principals() {
    let server = Server::with_tokens();
    let session = begin(&server, ADA);
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for (token, expected) in [(BOB, 404), (ADA, 202), (BOB, 404)] {
        let bearer = format!("Bearer {token}");
        let headers = [
            ("Authorization", &*bearer),
            ("Mcp-Session-Id", &*session),
            ("MCP-Protocol-Version", "2025-06-18"),
        ];
        assert_eq!(server.ask(&headers, &told).0, expected);
    }
}

#[test]
fn the_user_is_asked_in_an_answer_and_answers_over_another_connection() {
    let server = Server::start(|command| {
        command.env("TALARIA_APPROVAL_TOOLS", "write_file=ask");
    });
    let code = "from hermes_tools import write_file\nprint(write_file('a', 'x')['bytes_written'])";
    let mut message = call("execute_code", json!({"code": code}));
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {"form": {}}});
    let ask = |message: &Value| {
        let (_, text) = server.ask(&modern("execute_code"), message);
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok());
        let mut answers = lines.filter(|message: &Value| message["id"] == 1);
        answers.next().unwrap_or_else(|| panic!("{text}"))["result"].clone()
    };
    let asked = ask(&message);
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let id = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    message["params"]["requestState"] = asked["requestState"].clone();
    message["params"]["inputResponses"] = json!({id: {"action": "accept", "content": {"decision": "once"}}});
    let answer = ask(&message);
    assert_eq!(answer["structuredContent"]["output"], "1\n", "{answer}");
}
