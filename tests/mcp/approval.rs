//! Calls that the client's user has to approve.

use serde_json::{Value, json};

use crate::client::{Client, result};

const CODE: &str = "from hermes_tools import write_file\nfor name in 'ab':\n    answer = write_file(name, 'x')\n    print(answer.get('error') or answer['bytes_written'])";

fn asking() -> Client {
    Client::with(|command| {
        command.env("TALARIA_APPROVAL_TOOLS", "write_file=ask");
    })
}

/// One whose client can ask its user, in a version with a handshake.
fn asking_by_request() -> Client {
    let mut client = asking();
    let told = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    });
    client.ask("initialize", told);
    client.notify("notifications/initialized", json!({}));
    client
}

/// The next request of the server's own.
fn question(client: &mut Client) -> (Value, String) {
    let message = client.next_message();
    assert_eq!(message["method"], "elicitation/create", "{message}");
    assert_eq!(
        message["params"]["requestedSchema"]["required"],
        json!(["decision"]),
        "{message}"
    );
    let shown = message["params"]["message"].as_str().unwrap().to_owned();
    (message["id"].clone(), shown)
}

fn says(decision: &str) -> Value {
    json!({"action": "accept", "content": {"decision": decision, "reason": "not now"}})
}

#[test]
fn the_user_is_asked_by_a_request() {
    let mut client = asking_by_request();
    let call = client.send_call("execute_code", json!({"code": CODE}));
    let (id, shown) = question(&mut client);
    assert!(
        shown.starts_with("A script wants to call write_file on local\n"),
        "{shown}"
    );
    assert!(shown.contains("path") && shown.contains("| a\n"), "{shown}");
    assert!(!client.folder().join("a").exists());
    client.reply(&id, &says("no"));
    let (id, _) = question(&mut client);
    client.reply(&id, &says("session"));
    let outcome = result(client.answer(call))["structuredContent"].clone();
    assert_eq!(
        outcome["output"], "write_file was not run: the user refused it: not now\n1\n",
        "{outcome}"
    );
    assert_eq!(outcome["tool_calls_made"], 1);
    assert!(!client.folder().join("a").exists() && client.folder().join("b").exists());
    // For the session.
    let again = client.execute(json!({"code": CODE, "session": outcome["session"]}));
    assert_eq!(again["output"], "1\n1\n");
}

#[test]
fn a_question_is_withdrawn_with_its_call() {
    let mut client = asking_by_request();
    let call = client.send_call("execute_code", json!({"code": CODE}));
    let (id, _) = question(&mut client);
    client.notify("notifications/cancelled", json!({"requestId": call}));
    loop {
        let message = client.next_message();
        if message["method"] == "notifications/cancelled" {
            assert_eq!(message["params"]["requestId"], id, "{message}");
            break;
        }
    }
    assert!(!client.folder().join("a").exists());
}

#[test]
fn the_user_is_asked_in_an_answer() {
    let mut client = asking();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call = json!({"name": "execute_code", "arguments": {"code": CODE}, "_meta": meta});
    let mut answer = result(client.ask("tools/call", call.clone()));
    for decision in ["no", "once"] {
        assert_eq!(answer["resultType"], "input_required", "{answer}");
        let requests = answer["inputRequests"].as_object().unwrap();
        let (id, request) = requests.iter().next().unwrap();
        assert_eq!(request["method"], "elicitation/create", "{answer}");
        let mut again = call.clone();
        again["requestState"] = answer["requestState"].clone();
        again["inputResponses"] = json!({id: says(decision)});
        answer = result(client.ask("tools/call", again));
    }
    assert_eq!(answer["resultType"], "complete", "{answer}");
    let outcome = &answer["structuredContent"];
    assert_eq!(
        outcome["output"], "write_file was not run: the user refused it: not now\n1\n",
        "one script, whatever the number of calls: {outcome}"
    );
    // What it was is the server's to know.
    let mut forged = call;
    forged["requestState"] = json!("execution-0");
    forged["inputResponses"] = json!({"approval-1": says("once")});
    assert_eq!(client.ask("tools/call", forged)["error"]["code"], -32602);
}

#[test]
fn where_nobody_can_be_asked_it_is_refused() {
    let mut client = asking();
    client.initialize("2025-11-25");
    let outcome = client.execute(json!({"code": CODE}));
    let told = outcome["output"].as_str().unwrap();
    assert_eq!(told.matches("has not declared elicitation").count(), 2, "{outcome}");
    drop(client);

    let mut client = asking_by_request();
    let outcome = client.execute(json!({"code": CODE, "detach": true}));
    let told = outcome["output"].as_str().unwrap();
    assert_eq!(told.matches("the script is detached").count(), 2, "{outcome}");
    assert!(!client.folder().join("a").exists());
}
