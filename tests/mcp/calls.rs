//! Sessions and executions: who goes on where, who waits, who asks again, who gives up.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, mark, sleeper, sleeps, until};

#[test]
fn state_lives_on_from_call_to_call_and_sessions_do_not_see_each_other() {
    let mut client = Client::ready();
    let first = client.execute(json!({"code": "x = 41"}));
    let second = client.execute(json!({"code": "print(x + 1)"}));
    assert_eq!(
        (&second["output"], &second["session"]),
        (&json!("42\n"), &first["session"])
    );
    assert_ne!(second["execution"], first["execution"]);

    // The default session is busy: what comes meanwhile neither waits for it nor sees its state.
    let busy = client.send_call(
        "execute_code",
        json!({"code": "import time\nwhile x == 41: time.sleep(.05)\n", "wait": 0}),
    );
    let busy = client.answer(busy)["result"]["structuredContent"].clone();
    assert_eq!(busy["session"], first["session"]);
    let other = client.execute(json!({"code": "print('x' in globals())\ny = 1"}));
    assert_eq!(other["output"], "False\n");
    assert_ne!(other["session"], first["session"]);
    let again = client.execute(json!({"code": "print(y)", "session": other["session"]}));
    assert_eq!(again["output"], "1\n");

    let listed = client.call("session_list", json!({}))["structuredContent"]["sessions"].clone();
    let busy_of = |handle: &serde_json::Value| {
        let all = listed.as_array().unwrap();
        all.iter().find(|one| &one["session"] == handle).unwrap()["busy"].clone()
    };
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(
        (busy_of(&first["session"]), busy_of(&other["session"])),
        (json!(true), json!(false))
    );

    let closed = client.call("session_close", json!({"session": other["session"]}));
    assert_eq!(closed["structuredContent"]["closed"], true);
    let gone = client.call("execute_code", json!({"code": "1", "session": other["session"]}));
    assert_eq!(gone["isError"], true);
    assert!(
        gone["structuredContent"]["error"]
            .as_str()
            .unwrap()
            .contains("there is no session"),
        "{gone}"
    );
    let cancelled = client.call("execution_cancel", json!({"execution": busy["execution"]}));
    assert_eq!(cancelled["structuredContent"]["status"], "interrupted");
    assert_eq!(cancelled["isError"], false);
}

#[test]
fn a_script_that_takes_longer_than_a_call_waits_goes_on() {
    let mut client = Client::ready();
    let code =
        "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(.02)\nprint('second')";
    let running = client.call("execute_code", json!({"code": code, "wait": 0.5}));
    assert_eq!(running["isError"], false);
    let running = running["structuredContent"].clone();
    assert!(
        ["queued", "running"].contains(&running["status"].as_str().unwrap()),
        "{running}"
    );
    let handle = json!({"execution": running["execution"], "wait": 0});
    until("the script begins", || {
        let seen = client.call("execution_status", handle.clone())["structuredContent"].clone();
        seen["status"] == "running" && seen["last_line"] == "first" && seen["elapsed_seconds"].is_number()
    });
    let waiting = client.send_call("execution_status", json!({"execution": running["execution"]}));
    std::fs::write(client.folder().join("go"), "").unwrap();
    let ended = client.answer(waiting)["result"]["structuredContent"].clone();
    assert_eq!(
        (&ended["status"], &ended["output"]),
        (&json!("success"), &json!("first\nsecond\n"))
    );
    assert_eq!(ended["execution"], running["execution"]);
    // As often as one likes.
    assert_eq!(client.call("execution_status", handle)["structuredContent"], ended);
    let unknown = client.call("execution_status", json!({"execution": "execution-0"}));
    assert_eq!(unknown["isError"], true);
}

#[test]
fn who_lost_a_handle_finds_it_in_the_list() {
    let mut client = Client::ready();
    // Given up before an answer named it.
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(.02)\nprint('found')";
    let id = client.send_call("execute_code", json!({"code": code, "detach": true}));
    client.notify("notifications/cancelled", json!({"requestId": id}));
    let mut listed = json!(null);
    until("it is listed", || {
        listed = client.call("session_list", json!({}))["structuredContent"]["sessions"][0]["executions"][0].clone();
        listed["status"] == "running"
    });
    std::fs::write(client.folder().join("go"), "").unwrap();
    let ended = client.call("execution_status", json!({"execution": listed["execution"]}));
    assert_eq!(ended["structuredContent"]["output"], "found\n");
    let failed = client.execute(json!({"code": "1 / 0"}));
    let listed = client.call("session_list", json!({}))["structuredContent"]["sessions"][0]["executions"].clone();
    let statuses: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].clone())
        .collect();
    assert_eq!(statuses, ["success", "error"]);
    assert_eq!(listed[1]["execution"], failed["execution"]);
}

#[test]
fn asking_again_never_runs_it_twice() {
    let mut client = Client::ready();
    let code = "import time\nopen('runs', 'a').write('x')\ntime.sleep(.5)\nprint('once')";
    let asked = json!({"code": code, "idempotency_key": "a", "wait": 0});
    let first = client.execute(asked.clone());
    // At once, while it runs, and when it has ended; waiting longer is the same request.
    let again = client.execute(asked);
    assert_eq!(again["execution"], first["execution"]);
    let ended = client.execute(json!({"code": code, "idempotency_key": "a"}));
    assert_eq!(
        (&ended["execution"], &ended["output"]),
        (&first["execution"], &json!("once\n"))
    );
    let later = client.execute(json!({"code": code, "idempotency_key": "a", "wait": 1}));
    assert_eq!(later, ended);
    assert_eq!(std::fs::read_to_string(client.folder().join("runs")).unwrap(), "x");

    let other = client.call(
        "execute_code",
        json!({"code": "print('other')", "idempotency_key": "a"}),
    );
    assert_eq!(other["isError"], true);
    let error = other["structuredContent"]["error"].as_str().unwrap();
    assert!(
        error.contains("\"a\" was used for a call with other arguments"),
        "{error}"
    );
    let new = client.execute(json!({"code": code, "idempotency_key": "b"}));
    assert_ne!(new["execution"], first["execution"]);
    assert_eq!(std::fs::read_to_string(client.folder().join("runs")).unwrap(), "xx");
}

#[test]
fn progress_is_told_to_who_asked_for_it() {
    let mut client = Client::ready();
    let code = "import os, time\nfrom hermes_tools import terminal\nterminal('true')\nprint('half way', flush=True)\n\
                while not os.path.exists('go'): time.sleep(.02)";
    let call = json!({"name": "execute_code", "arguments": {"code": code}, "_meta": {"progressToken": "t"}});
    let id = client.send("tools/call", call);
    let mut last = -1.0;
    loop {
        let message = client.next_message();
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(message["params"]["progressToken"], "t");
        let progress = message["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{progress} after {last}");
        last = progress;
        let told = message["params"]["message"].as_str().unwrap();
        if told.ends_with("1 tool call: half way") {
            break;
        }
    }
    std::fs::write(client.folder().join("go"), "").unwrap();
    assert_eq!(client.answer(id)["result"]["structuredContent"]["status"], "success");
    // No token, no progress.
    client.unasked.clear();
    client.execute(json!({"code": "import time; time.sleep(.6)"}));
    assert!(client.unasked.is_empty(), "{:?}", client.unasked);
}

#[test]
fn a_cancelled_call_interrupts_the_script_and_leaves_nothing() {
    let mut client = Client::ready();
    client.execute(json!({"code": "x = 1"}));
    let mark = mark();
    let id = client.send_call("execute_code", json!({"code": sleeper(&mark)}));
    until("the script begins", || sleeps(&mark));
    client.notify(
        "notifications/cancelled",
        json!({"requestId": id, "reason": "changed my mind"}),
    );
    until("its processes end", || !sleeps(&mark));
    let next = client.execute(json!({"code": "print('x' in globals())"}));
    assert_eq!(next["output"], "False\n");
    assert!(next["notice"].as_str().unwrap().contains("interrupted"), "{next}");
    assert!(
        client.unasked.iter().all(|message| message["id"] != id),
        "a cancelled call is not answered"
    );
}

#[test]
fn a_cancelled_call_in_a_session_of_its_own_takes_that_with_it() {
    let mut client = Client::ready();
    let (first, second) = (mark(), mark());
    let busy = client.send_call("execute_code", json!({"code": sleeper(&first)}));
    until("the first begins", || sleeps(&first));
    let id = client.send_call("execute_code", json!({"code": sleeper(&second)}));
    until("the second begins", || sleeps(&second));
    client.notify("notifications/cancelled", json!({"requestId": id}));
    until("its processes end", || !sleeps(&second));
    until("its session ends", || {
        let listed = client.call("session_list", json!({}));
        listed["structuredContent"]["sessions"].as_array().unwrap().len() == 1
    });
    assert!(sleeps(&first), "the other one goes on");
    client.notify("notifications/cancelled", json!({"requestId": busy}));
    until("the first ends", || !sleeps(&first));
}

#[test]
fn who_waits_may_give_up_and_a_detached_script_goes_on() {
    let mut client = Client::ready();
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(.02)\nprint('done')";
    let started = client.execute(json!({"code": code, "wait": 0}));
    let id = client.send_call("execution_status", json!({"execution": started["execution"]}));
    client.notify("notifications/cancelled", json!({"requestId": id}));
    let detached = client.send_call(
        "execute_code",
        json!({"code": code, "detach": true, "idempotency_key": "d"}),
    );
    client.notify("notifications/cancelled", json!({"requestId": detached}));
    std::fs::write(client.folder().join("go"), "").unwrap();
    let ended = client.execute(json!({"code": code, "detach": true, "idempotency_key": "d"}));
    assert_eq!(ended["output"], "done\n");
    let ended = client.call("execution_status", json!({"execution": started["execution"]}));
    assert_eq!(ended["structuredContent"]["output"], "done\n");
}

#[test]
fn many_scripts_run_side_by_side() {
    let mut client = Client::ready();
    let count = 12;
    // Each waits for all others.
    let code = format!(
        "import os, time\nopen('here-%d' % os.getpid(), 'w')\n\
         while sum(name.startswith('here-') for name in os.listdir('.')) < {count}: time.sleep(.02)\nprint('met')"
    );
    let ids: Vec<u64> = (0..count)
        .map(|_| client.send_call("execute_code", json!({"code": code, "wait": 600})))
        .collect();
    let mut sessions = std::collections::BTreeSet::new();
    for id in ids {
        let ended = client.answer(id)["result"]["structuredContent"].clone();
        assert_eq!(ended["output"], "met\n", "{ended}");
        sessions.insert(ended["session"].as_str().unwrap().to_owned());
    }
    assert_eq!(sessions.len(), count);
}

#[test]
fn a_target_is_one_of_those_that_are_offered() {
    let mut client = Client::with(|command| {
        command.arg("--any-target");
    });
    client.initialize("2025-11-25");
    let elsewhere = client.execute(json!({"code": "print('there')", "target": "exec:env"}));
    assert_eq!(
        (&elsewhere["output"], &elsewhere["target"]),
        (&json!("there\n"), &json!("exec:env"))
    );
    let moved = client.call(
        "execute_code",
        json!({"code": "1", "target": "local", "session": elsewhere["session"]}),
    );
    assert_eq!(moved["isError"], true);
    assert!(
        moved["structuredContent"]["error"]
            .as_str()
            .unwrap()
            .contains("runs on exec:env"),
        "{moved}"
    );
    let none = client.call("execute_code", json!({"code": "1", "target": "nowhere"}));
    assert_eq!(
        (&none["isError"], &none["structuredContent"]["kernel"]),
        (&json!(true), &json!(null))
    );
}

#[test]
fn a_short_call_does_not_wait_for_the_time_that_it_may() {
    let mut client = Client::ready();
    let began = Instant::now();
    client.execute(json!({"code": "1", "wait": 3600}));
    assert!(began.elapsed() < Duration::from_secs(600));
}
