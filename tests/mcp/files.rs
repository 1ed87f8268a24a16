//! Files that are put and got, and output that was too long to be shown.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Client, result};

#[test]
fn a_file_comes_back_as_what_it_is() {
    let mut client = Client::ready();
    let png = b"\x89PNG\r\n\x1a\nthe rest";
    let put = client.call(
        "put_file",
        json!({"path": "made/for it/plot", "base64": STANDARD.encode(png)}),
    );
    assert_eq!(put["structuredContent"]["bytes_written"], png.len());
    assert_eq!(std::fs::read(client.folder().join("made/for it/plot")).unwrap(), png);
    let got = client.call("get_file", json!({"path": "made/for it/plot"}));
    assert_eq!(
        got["content"][0],
        json!({"type": "image", "data": STANDARD.encode(png), "mimeType": "image/png"})
    );
    assert_eq!(got["structuredContent"]["mime_type"], "image/png");

    // Written over, whole.
    for text in ["long: ä€🦀\nmore", "short", ""] {
        client.call("put_file", json!({"path": "text", "content": text}));
        assert_eq!(client.print("print(open('text').read(), end='')"), text);
        let got = client.call("get_file", json!({"path": "text"}));
        assert_eq!(got["content"][0], json!({"type": "text", "text": text}));
    }
    client.print("open('blob', 'wb').write(bytes(range(256)))");
    let got = client.call("get_file", json!({"path": "blob"}));
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(got["content"][0]["resource"]["blob"], STANDARD.encode(all));
    assert_eq!(got["structuredContent"]["size"], 256);
}

#[test]
fn paths_start_where_the_session_is() {
    let mut client = Client::ready();
    client.print("from hermes_tools import terminal\nterminal('mkdir -p deep && cd deep')");
    client.call("put_file", json!({"path": "here", "content": "x"}));
    assert!(client.folder().join("deep/here").is_file());
    let missing = client.call("get_file", json!({"path": "there"}));
    assert_eq!(missing["isError"], true);
    assert!(
        missing["content"][0]["text"].as_str().unwrap().contains("deep/there"),
        "{missing}"
    );
    let folder = client.call("get_file", json!({"path": "/tmp"}));
    assert_eq!(folder["isError"], true);
}

#[test]
fn a_file_moves_while_a_script_runs() {
    let mut client = Client::ready();
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(.02)\nprint(open('go').read())";
    let id = client.send_call("execute_code", json!({"code": code}));
    // In its session, which is known by its being busy.
    let mut session = Value::Null;
    crate::client::until("the script runs", || {
        let listed = client.call("session_list", json!({}))["structuredContent"]["sessions"].clone();
        session = listed[0]["session"].clone();
        listed[0]["busy"] == true && listed[0]["working_directory"].is_string()
    });
    client.call("put_file", json!({"path": "go", "content": "now", "session": session}));
    assert_eq!(client.answer(id)["result"]["structuredContent"]["output"], "now\n");
}

#[test]
fn what_is_too_large_or_not_ours_to_write_is_refused() {
    let mut client = Client::ready();
    client.print("open('large', 'wb').truncate((8 << 20) + 1)");
    let got = client.call("get_file", json!({"path": "large"}));
    assert_eq!(got["isError"], true);
    assert!(got["content"][0]["text"].as_str().unwrap().contains("8 MiB"), "{got}");
    let put = client.call("put_file", json!({"path": "x", "content": "x".repeat(20 << 20)}));
    assert_eq!(put["isError"], true);
    assert!(!client.folder().join("x").exists());
    let keys = client.call("put_file", json!({"path": "~/.ssh/authorized_keys", "content": "x"}));
    assert_eq!(keys["isError"], true);
}

#[test]
fn long_output_is_a_resource_that_is_read_in_ranges() {
    let mut client = Client::ready();
    let call = client.call(
        "execute_code",
        json!({"code": "for n in range(20000): print('line', n, 'ä€🦀')"}),
    );
    let whole: String = (0..20000).map(|n| format!("line {n} ä€🦀\n")).collect();
    let link = &call["content"][1];
    assert_eq!(
        (&link["type"], &link["size"]),
        (&json!("resource_link"), &json!(whole.len()))
    );
    assert_eq!(call["structuredContent"]["stdout_truncated"], true);
    let uri = link["uri"].as_str().unwrap().to_owned();
    let listed = result(client.ask("resources/list", json!({})));
    assert_eq!(listed["resources"][0]["uri"], uri);
    let templates = result(client.ask("resources/templates/list", json!({})));
    assert!(
        templates["resourceTemplates"][0]["uriTemplate"]
            .as_str()
            .unwrap()
            .contains("{?offset,limit}")
    );

    let (mut text, mut next) = (String::new(), json!(0));
    while !next.is_null() {
        let part = result(client.ask(
            "resources/read",
            json!({"uri": format!("{uri}?offset={next}&limit=100001")}),
        ));
        let part = &part["contents"][0];
        text.push_str(part["text"].as_str().unwrap());
        assert_eq!(part["_meta"]["total_bytes"], whole.len());
        next = part["_meta"]["next_offset"].clone();
    }
    assert!(text == whole, "{} bytes of {}", text.len(), whole.len());

    for uri in [
        "file:///etc/passwd",
        "talaria://executions/execution-0/stdout",
        &uri.replace("stdout", "stderr"),
    ] {
        let answer = client.ask("resources/read", json!({"uri": uri}));
        assert_eq!(answer["error"]["code"], -32002, "{answer}");
    }
    let answer = client.ask("resources/read", json!({"uri": format!("{uri}?limit=0")}));
    assert_eq!(answer["error"]["code"], -32602);
}

#[test]
fn what_was_lost_is_told_by_the_next_script_and_not_swallowed_by_a_file() {
    let mut client = Client::ready();
    client.call("execute_code", json!({"code": "import os; os._exit(3)"}));
    client.call("put_file", json!({"path": "x", "content": "1"}));
    let next = client.execute(json!({"code": "print(open('x').read())"}));
    assert_eq!(next["output"], "1\n");
    assert!(next["notice"].as_str().unwrap().contains("lost"), "{next}");
}
