//! What clients are told, and how they are answered that ask for what is not there.

use serde_json::{Value, json};

use crate::client::{Client, result};

const TOOLS: [&str; 7] = [
    "execute_code",
    "execution_status",
    "execution_cancel",
    "session_list",
    "session_close",
    "put_file",
    "get_file",
];

#[test]
fn every_version_that_begins_with_a_handshake_is_spoken() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client::start();
        let told = client.initialize(version);
        assert_eq!(told["protocolVersion"], version);
        assert_eq!(told["serverInfo"]["name"], "talaria");
        let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
        let names: Vec<&str> = tools
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        assert_eq!(names, TOOLS);
        assert_eq!(client.print("print(6 * 7)"), "42\n");
    }
}

#[test]
fn the_version_without_a_handshake_is_spoken() {
    let mut client = Client::start();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let told = result(client.ask("server/discover", json!({"_meta": meta})));
    let versions = told["supportedVersions"].as_array().unwrap();
    assert!(versions.iter().any(|version| version == "2026-07-28"), "{told}");
    let call = json!({"name": "execute_code", "arguments": {"code": "print(6 * 7)"}, "_meta": meta});
    let answer = result(client.ask("tools/call", call));
    assert_eq!(answer["structuredContent"]["output"], "42\n");
    assert_eq!(answer["resultType"], "complete");
}

#[test]
fn tools_say_what_is_enabled_and_which_limits_hold() {
    let mut client = Client::with(|command| {
        let file = command.get_current_dir().unwrap().join("talaria.yaml");
        std::fs::write(
            &file,
            "code_execution: {timeout: 90s, max_tool_calls: 7}\ntools: {disabled: [terminal, web_search, web_extract]}\ntargets: {box: {target: local}}\n",
        )
        .unwrap();
        command.arg("--config").arg(file);
    });
    client.initialize("2025-11-25");
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let execute = &tools[0];
    let told = execute["description"].as_str().unwrap();
    for words in [
        "1m30s a script, 7 tool calls",
        "read_file(",
        "Use it for",
        "Do not use it for",
        "execution_status",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    for words in ["terminal(command", "web_search("] {
        assert!(!told.contains(words), "{words}: {told}");
    }
    assert_eq!(
        execute["inputSchema"]["properties"]["target"]["enum"],
        json!(["local", "box"])
    );
    assert_eq!(execute["inputSchema"]["properties"]["wait"]["default"], 45);
    for tool in tools.as_array().unwrap() {
        assert!(tool["outputSchema"].is_object(), "{tool}");
        let hints = &tool["annotations"];
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(hints[hint].is_boolean(), "{}: {hint}", tool["name"]);
        }
    }
    assert_eq!(tools[1]["annotations"]["readOnlyHint"], true);
    assert_eq!(tools[0]["annotations"]["destructiveHint"], true);
}

#[test]
fn arguments_that_break_the_schema_are_protocol_errors_that_say_what_is_right() {
    let mut client = Client::ready();
    for (tool, arguments, words) in [
        ("execute_code", json!({}), vec!["\"code\" is missing"]),
        (
            "execute_code",
            json!({"cod": "1"}),
            vec!["no argument \"cod\"", "did you mean \"code\"?"],
        ),
        ("execute_code", json!({"code": 5}), vec!["\"code\" must be string"]),
        (
            "execute_code",
            json!({"code": "1", "timeout": 0}),
            vec!["\"timeout\" must be greater than 0"],
        ),
        (
            "execute_code",
            json!({"code": "1", "timeout": -2}),
            vec!["greater than 0, not -2"],
        ),
        (
            "execute_code",
            json!({"code": "1", "timeout": 1e300}),
            vec!["\"timeout\" must be at most"],
        ),
        (
            "execute_code",
            json!({"code": "1", "wait": "long"}),
            vec!["\"wait\" must be number"],
        ),
        (
            "execute_code",
            json!({"code": "1", "target": "docker:x"}),
            vec!["\"target\" must be one of \"local\""],
        ),
        (
            "execute_code",
            json!({"code": "1", "idempotency_key": ""}),
            vec!["idempotency_key", "1 to 200"],
        ),
        ("execution_status", json!({}), vec!["\"execution\" is missing"]),
        (
            "session_list",
            json!({"all": true}),
            vec!["no argument \"all\"", "no arguments"],
        ),
        ("put_file", json!({"path": "x"}), vec!["\"content\"", "\"base64\""]),
        (
            "put_file",
            json!({"path": "x", "base64": "%%"}),
            vec!["\"base64\" is no base64"],
        ),
        ("run_code", json!({}), vec!["no tool \"run_code\"", "execute_code"]),
    ] {
        let answer = client.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert_eq!(answer["error"]["code"], -32602, "{tool} {arguments}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{tool} {arguments}: {message}");
        }
    }
    assert_eq!(client.print("print('still here')"), "still here\n");
}

#[test]
fn a_script_that_fails_is_an_error_with_its_outcome() {
    let mut client = Client::ready();
    let texts =
        |result: &Value| -> Value { serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap() };

    let failed = client.call("execute_code", json!({"code": "print('so far')\n1 / 0"}));
    assert_eq!(failed["isError"], true);
    let outcome = &failed["structuredContent"];
    assert_eq!(
        (&outcome["status"], &outcome["exit_code"]),
        (&json!("error"), &json!(1))
    );
    assert!(
        outcome["output"]
            .as_str()
            .unwrap()
            .starts_with("so far\n--- stderr ---\n")
    );
    assert_eq!(&texts(&failed), outcome, "the text is the same");

    let empty = client.call("execute_code", json!({"code": " \n"}));
    assert_eq!(empty["isError"], true);
    let outcome = &empty["structuredContent"];
    assert_eq!(
        (&outcome["status"], &outcome["exit_code"], &outcome["kernel"]),
        (&json!("error"), &Value::Null, &Value::Null)
    );
    assert!(outcome["error"].as_str().unwrap().contains("no code"), "{outcome}");

    let late = client.call("execute_code", json!({"code": "while True: pass", "timeout": 0.3}));
    assert_eq!(late["isError"], true);
    assert_eq!(late["structuredContent"]["status"], "timeout");

    let well = client.call(
        "execute_code",
        json!({"code": "print('well')", "reset": true, "timeout": null}),
    );
    assert_eq!(well["isError"], false);
    assert_eq!(texts(&well), well["structuredContent"]);
}

#[test]
fn garbage_is_refused_and_the_next_request_answered() {
    use std::io::Write;
    let mut client = Client::ready();
    let id = client.send("no/such/method", json!({}));
    assert_eq!(client.answer(id)["error"]["code"], -32601);
    drop(client);

    let folder = tempfile::tempdir().unwrap();
    let mut child = crate::client::server(folder.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    write!(input, "{hello}\nno json\n\u{0}\n[[[[\n{list}\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        answers
            .iter()
            .any(|answer| answer["id"] == 2 && answer["result"]["tools"].is_array()),
        "{said}"
    );
}
