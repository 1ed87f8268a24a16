//! Sandboxes behind the gateway: what goes wrong on the way there, and that nothing is done twice. The contract itself is
//! checked by the conformance suite, target `modal-managed`.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::backends::modal::gateway::{GatewayImage, GatewayOptions, GatewaySandbox, GatewaySources};
use talaria_broker::backends::{Backend, Silent};
use talaria_broker::config::Transport;
use talaria_broker::environment::{Environment, Secret};
use talaria_broker::outcome::Status;
use talaria_broker::session::{Cell, SessionOptions};
use talaria_broker::web::Proxies;

use crate::rig::{Rig, TARGET, pause};
use crate::sessions::{Live, limited};
use crate::stand_in::GATEWAY_TOKEN;

fn sources(rig: &Rig) -> GatewaySources {
    GatewaySources::of(
        &Environment::from_iter(rig.modal.gateway_variables()),
        Proxies::default(),
    )
}

fn options(rig: &Rig) -> GatewayOptions {
    GatewayOptions::new(TARGET, "python:3.12", sources(rig))
}

fn session_options(options: GatewayOptions) -> SessionOptions {
    let backend = Arc::new(GatewayImage::new(options));
    limited(SessionOptions::elsewhere(TARGET, backend, Environment::default()))
}

fn session_on(rig: &Rig, options: GatewayOptions) -> Live<'_> {
    Live::open(&rig.broker, &rig.runtime, session_options(options))
}

/// What a sandbox cannot be made for: the sentence.
fn refusal(rig: &Rig, change: impl FnOnce(&mut GatewayOptions)) -> String {
    let mut options = options(rig);
    change(&mut options);
    let image = GatewayImage::new(options);
    match rig.wait_for(image.open(&Silent)) {
        Ok(_) => panic!("a sandbox was made"),
        Err(error) => error.to_string(),
    }
}

/// How often each command was sent, and what it was: by id.
fn sent(rig: &Rig) -> BTreeMap<String, Vec<Value>> {
    let mut sent: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for call in rig.modal.calls("gateway.start") {
        let id = call["request"]["body"]["execId"].as_str().unwrap().to_owned();
        sent.entry(id).or_default().push(call);
    }
    sent
}

fn fails(method: &str, code: u16, count: u32) -> Value {
    json!({"fault": "status", "method": format!("gateway.{method}"), "code": code, "count": count})
}

fn lost(method: &str, count: u32, skip: u32) -> Value {
    json!({"fault": "lost", "method": format!("gateway.{method}"), "count": count, "skip": skip})
}

/// Counts its runs in a file of the sandbox, with calls of tools between.
const COUNTS: &str = "from hermes_tools import terminal\n\
    for n in range(6): terminal('echo x >> /tmp/count')\n\
    print(open('/tmp/count').read().count('x'))";

#[test]
fn a_lost_answer_of_the_gateways_does_nothing_twice() {
    let Some(rig) = Rig::new() else { return };
    rig.modal
        .faults(json!([lost("create", 1, 0), lost("start", 4, 0), lost("poll", 2, 0)]));
    let session = session_on(&rig, options(&rig));
    session.ok("x = 1");
    let made = rig.modal.calls("gateway.create");
    let key = |call: &Value| call["metadata"]["x-idempotency-key"].as_str().unwrap().to_owned();
    assert_eq!((made.len(), key(&made[0])), (2, key(&made[1])));
    assert_eq!(rig.modal.sandboxes().len(), 1);
    rig.modal
        .faults(json!([lost("start", 5, 1), lost("poll", 5, 1), fails("poll", 502, 5)]));
    assert_eq!(session.ok(COUNTS), "6\n");
    // What arrived was asked for, and never sent again.
    for (id, calls) in sent(&rig) {
        assert_eq!(calls.len(), 1, "{id} was sent again: {calls:#?}");
    }
    rig.modal.faults(json!([lost("terminate", 1, 0)]));
    rig.end();
}

#[test]
fn what_did_not_arrive_is_sent_again_under_the_same_name() {
    let Some(rig) = Rig::new() else { return };
    let session = session_on(&rig, options(&rig));
    session.ok("x = 1");
    rig.modal.ask("DELETE", "/calls", None);
    // Nothing is done, and nobody can know.
    rig.modal.faults(json!([fails("start", 502, 3)]));
    assert_eq!(session.ok(COUNTS), "6\n");
    let again: Vec<usize> = sent(&rig).values().map(Vec::len).filter(|sent| *sent > 1).collect();
    assert_eq!(again.iter().sum::<usize>(), again.len() + 3, "{again:?}");
    rig.end();
}

#[test]
fn a_gateway_that_asks_for_patience_or_is_away_for_a_while_is_waited_for() {
    let Some(rig) = Rig::new() else { return };
    let asks = |method: &str, count: u32| json!({"fault": "status", "method": format!("gateway.{method}"), "code": 429, "retry_after": 0.3, "count": count});
    rig.modal
        .faults(json!([asks("create", 2), asks("start", 2), asks("poll", 2)]));
    let session = session_on(&rig, options(&rig));
    session.ok("x = 1");
    let made = rig.modal.calls("gateway.create");
    assert_eq!(made.len(), 3);
    for (call, next) in made.iter().zip(&made[1..]) {
        let pause = next["time"].as_f64().unwrap() - call["time"].as_f64().unwrap();
        assert!(pause >= 0.3, "{pause}");
    }
    let running = session.start(Cell::new("import time\nfor n in range(4): print(n); time.sleep(0.5)"));
    pause(700);
    rig.modal.faults(json!([{"fault": "down", "which": "gateway"}]));
    pause(2500);
    rig.modal.faults(json!([]));
    let outcome = running.wait();
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "0\n1\n2\n3\n"),
        "{outcome:#?}"
    );
    rig.end();
}

#[test]
fn each_refusal_of_the_gateways_is_an_error_of_its_own() {
    let Some(rig) = Rig::new() else { return };
    let is = |error: String, words: &[&str]| {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!error.contains(GATEWAY_TOKEN) && !error.contains("hunter2"), "{error}");
    };
    is(
        refusal(&rig, |options| {
            options.sources.token = Some((Secret::new("hunter2"), "MODAL_GATEWAY_TOKEN"))
        }),
        &["does not accept the token of MODAL_GATEWAY_TOKEN", "sign in again"],
    );
    is(
        refusal(&rig, |options| options.sources.token = None),
        &["there is no token for Modal's gateway", "MODAL_GATEWAY_TOKEN"],
    );
    for (code, words) in [
        (402, ["quota of its account is used up", "modal_mode: direct"]),
        (403, ["may not make the sandbox", "account that may"]),
        (404, ["there is no gateway at", "MODAL_GATEWAY_URL"]),
        (422, ["could not make the sandbox: injected", "image's name"]),
    ] {
        rig.modal.ask("DELETE", "/calls", None);
        rig.modal.faults(json!([fails("create", code, 9)]));
        is(refusal(&rig, |_| ()), &words);
        assert_eq!(rig.modal.calls("gateway.create").len(), 1, "{code}");
    }
    rig.modal
        .faults(json!([{"fault": "status", "method": "gateway.create", "code": 429, "retry_after": 4000}]));
    is(
        refusal(&rig, |_| ()),
        &["asks for patience (rate limit)", "wait 1h6m40s"],
    );
    rig.modal.faults(json!([]));
    let nowhere = GatewaySandbox::new("modal://sb-nobody", "sb-nobody", sources(&rig));
    let target = rig.wait_for(nowhere.open(&Silent)).unwrap();
    let stream = limited(SessionOptions::elsewhere(
        "modal://sb-nobody",
        Arc::new(nowhere),
        Environment::default(),
    ));
    drop(target);
    let outcome = Live::open(&rig.broker, &rig.runtime, stream).cell("1");
    is(
        outcome.error.unwrap(),
        &["modal://sb-nobody is gone", "`modal:IMAGE` makes a new one"],
    );
    let mut stream = session_options(options(&rig));
    stream.transport = Transport::Stream;
    let outcome = Live::open(&rig.broker, &rig.runtime, stream).cell("1");
    is(outcome.error.unwrap(), &["`transport: stream` cannot be", "`polled`"]);
    rig.end();
}

#[test]
fn a_sandbox_that_has_ended_is_told_and_another_takes_its_place() {
    let Some(rig) = Rig::new() else { return };
    let session = session_on(&rig, options(&rig));
    session.ok("x = 1");
    rig.modal.end(&rig.modal.alive()[0], "idle");
    pause(300);
    // Nobody looks at a session that does nothing, so the first cell after that finds out.
    let outcome = session.cell("print('x' in dir())");
    let error = outcome.error.clone().unwrap_or_default();
    let state_lost = outcome.kernel.as_ref().is_some_and(|kernel| kernel.state_lost);
    assert!(outcome.status == Status::Error && state_lost, "{outcome:#?}");
    assert!(
        error.contains("its sandbox has ended") && error.contains("are lost"),
        "{error}"
    );
    assert_eq!(session.ok("print('x' in dir())"), "False\n");
    let running = session.start(Cell::new("import time; time.sleep(60)"));
    pause(500);
    rig.modal.end(&rig.modal.alive()[0], "oom");
    let outcome = running.wait();
    let error = outcome.error.clone().unwrap_or_default();
    assert!(
        outcome.status == Status::Error && error.contains("its sandbox has ended"),
        "{outcome:#?}"
    );
    // What was lost is not said to be there again.
    assert!(!outcome.notice.unwrap_or_default().contains("made again"));
    rig.end();
}

#[test]
fn one_command_at_a_time_and_a_look_that_nobody_needs_is_cancelled() {
    let Some(rig) = Rig::new() else { return };
    let image = GatewayImage::new(options(&rig));
    let target = rig.wait_for(image.open(&Silent)).unwrap();
    let command = |script: &str| talaria_broker::backends::Command {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: Default::default(),
        folder: None,
        input: b"in".as_slice().into(),
    };
    let mut long = rig.wait_for(target.spawn(command("sleep 60"))).unwrap();
    long.end.kill();
    // It has its turn as soon as that one has ended.
    let mut next = rig.wait_for(target.spawn(command("cat; echo on >&2; exit 3"))).unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    rig.wait_for(async {
        use tokio::io::AsyncReadExt;
        next.stdout.read_to_string(&mut out).await.unwrap();
        next.stderr.read_to_string(&mut err).await.unwrap();
    });
    assert_eq!((out.as_str(), err.as_str()), ("in", "on\n"));
    assert_eq!(
        rig.wait_for(next.end.wait()),
        talaria_broker::backends::ProcessEnd::Code(3)
    );
    assert_eq!(rig.modal.calls("gateway.cancel").len(), 1);
    rig.wait_for(target.close()).unwrap();
    rig.end();
}

#[test]
fn files_are_kept_under_a_name_and_a_sandbox_may_stay() {
    let Some(rig) = Rig::new() else { return };
    let mut kept = options(&rig);
    kept.snapshot = true;
    for (code, output) in [
        ("open('/root/kept', 'w').write('it'); print(1)", "1\n"),
        ("print(open('/root/kept').read())", "it\n"),
    ] {
        let session = session_on(&rig, kept.clone());
        assert_eq!(session.ok(code), output);
        rig.wait_for(session.session.close());
    }
    let mut stays = options(&rig);
    stays.keep = true;
    let session = session_on(&rig, stays);
    let outcome = session.cell("1");
    let [id] = &rig.modal.alive()[..] else {
        panic!("{:?}", rig.modal.alive())
    };
    let notice = outcome.notice.unwrap_or_default();
    assert!(
        notice.contains(id) && notice.contains("stays when this session ends"),
        "{notice}"
    );
    rig.wait_for(session.session.close());
    assert_eq!(&rig.modal.alive()[..], std::slice::from_ref(id));
    // Whoever knows it may use it, and does not end it.
    let backend = Arc::new(GatewaySandbox::new(format!("modal://{id}"), id, sources(&rig)));
    let there = limited(SessionOptions::elsewhere(
        format!("modal://{id}"),
        backend,
        Environment::default(),
    ));
    let session = Live::open(&rig.broker, &rig.runtime, there);
    assert_eq!(session.ok("print(1)"), "1\n");
    rig.wait_for(session.session.close());
    assert_eq!(&rig.modal.alive()[..], std::slice::from_ref(id));
    rig.modal.end(id, "terminated");
    rig.end();
}

#[test]
fn the_token_shows_nowhere_and_cannot_be_passed() {
    let Some(rig) = Rig::new() else { return };
    let look = "import os, glob\n\
        found = [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline')]\n\
        print(any(b'gw-stand-in' in text for text in found), any(b'hunter2-hunter2' in open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/cmdline')))\n\
        print('MODAL_GATEWAY_TOKEN' in os.environ)\n\
        from hermes_tools import terminal\n\
        print(terminal('echo $DATABASE_PASSWORD')['output'].strip() == 'hunter2-' + 'hunter2')";
    let done = Command::new(env!("CARGO_BIN_EXE_talaria"))
        .args(["run", "--on", "modal", "-vv", "-c", look])
        .env_clear()
        .envs(rig.modal.gateway_variables())
        .env("TALARIA_TERMINAL_MODAL_ENV", "DATABASE_PASSWORD=hunter2-hunter2")
        .env("HOME", rig.shared.path())
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert_eq!(stdout, "False False\nFalse\nTrue\n", "{stderr}");
    assert!(stderr.contains("the gateway answers"), "{stderr}");
    for secret in [GATEWAY_TOKEN, "hunter2-hunter2"] {
        assert!(!stderr.contains(secret), "{secret} shows: {stderr}");
    }
    for call in rig.modal.ask("GET", "/calls", None).as_array().unwrap() {
        assert!(!call["request"].to_string().contains(GATEWAY_TOKEN), "{call}");
    }
    rig.end();
}

/// The command line as a user has it who asks the gateway.
fn talaria(rig: &Rig) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_talaria"));
    command
        .env_clear()
        .envs(rig.modal.gateway_variables())
        .env("TALARIA_CODE_EXECUTION_LEASE", "2s")
        .env("TALARIA_CODE_EXECUTION_RECONNECT_TIMEOUT", "1s")
        .env("DOCKER_HOST", "unix:///nowhere")
        .env("HOME", rig.shared.path());
    command
}

/// Starts a broker with a sandbox, and kills it.
fn killed(rig: &Rig, idle_timeout: &str) {
    let mut broker = talaria(rig)
        .args(["run", "--on", "modal", "-c", "import time; time.sleep(300)"])
        .env("TALARIA_TERMINAL_MODAL_IDLE_TIMEOUT", idle_timeout)
        .spawn()
        .unwrap();
    crate::sessions::wait("a sandbox", || !rig.modal.alive().is_empty());
    std::thread::sleep(Duration::from_millis(500));
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn a_broker_that_is_killed_leaves_a_sandbox_that_ends_by_itself() {
    let Some(rig) = Rig::new() else { return };
    killed(&rig, "1s");
    rig.end();
}

#[test]
fn what_a_broker_that_was_killed_has_left_is_found_and_ended() {
    let Some(rig) = Rig::new() else { return };
    let said = |arguments: &[&str]| {
        let done = talaria(&rig).args(arguments).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    // One that was ended is not found.
    assert_eq!(said(&["run", "--on", "modal", "-c", "print(1)"]), "1\n");
    assert_eq!(said(&["ls"]), "");
    killed(&rig, "20m");
    let id = rig.modal.alive().pop().unwrap();
    let listed = said(&["ls"]);
    assert!(
        listed.contains(&id) && listed.contains("(ended)") && listed.contains("gateway"),
        "{listed}"
    );
    let listed: Value = serde_json::from_str(&said(&["ls", "--json"])).unwrap();
    assert_eq!(
        (&listed["id"], &listed["orphan"], &listed["state"]),
        (&json!(id), &json!(true), &json!("unknown"))
    );
    // Of another gateway nothing is known here.
    let elsewhere = talaria(&rig)
        .arg("ls")
        .env("MODAL_GATEWAY_URL", "https://other.example")
        .output()
        .unwrap();
    assert_eq!(elsewhere.stdout, b"");
    assert!(said(&["gc", "--dry-run"]).contains(&format!("would remove {id}")));
    assert_eq!(rig.modal.alive().len(), 1);
    assert!(said(&["gc"]).contains(&format!("removed {id}")));
    assert!(rig.modal.alive().is_empty());
    assert_eq!(said(&["ls"]), "");
    rig.end();
}
