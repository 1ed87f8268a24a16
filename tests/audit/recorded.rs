//! Cells and calls, what they did, and what is not told of them.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use talaria_broker::approval::{Action, ApprovalRequest, Approver, Decision, Policy};
use talaria_broker::audit::{find_script, of_bytes};
use talaria_broker::backends::docker::{DockerImage, DockerOptions, EngineSources};
use talaria_broker::environment::Environment;
use talaria_broker::outcome::Status;
use talaria_broker::session::{Cell, SessionOptions};

use crate::rig::{LIMIT, Rig, SECRET, run, story, text};

#[tokio::test(flavor = "multi_thread")]
async fn every_cell_and_every_call_has_a_line() {
    let rig = Rig::new();
    let mut options = rig.options();
    options.principal = Some("client 7".to_owned());
    let session = rig.open(options);
    let code = "from hermes_tools import terminal, write_file\n\
                write_file('a.txt', 'x' * 100)\n\
                terminal('exit 3')\n\
                print('é')";
    assert_eq!(run(&session, code).await.status, Status::Success);
    assert_eq!(run(&session, "1/0").await.exit_code, Some(1));
    assert_eq!(run(&session, " \n").await.exit_code, None);
    let name = session.name_in_log().to_owned();
    let lines = rig.lines().await;
    assert_eq!(
        story(&lines),
        [
            "1 start",
            "1 write_file allowed",
            "1 terminal allowed",
            "1 cell",
            "2 start",
            "2 cell",
            "3 cell"
        ]
    );
    for line in &lines {
        assert_eq!((line.who.as_str(), line.target.as_str()), ("client 7", "local"));
        assert_eq!((line.session.as_str(), line.pid), (name.as_str(), std::process::id()));
        assert!(line.time.len() == 24 && line.time.ends_with('Z'), "{}", line.time);
    }
    let [_, write, terminal, first, _, second, third] = &lines[..] else {
        panic!("{lines:?}")
    };
    let canonical = format!(r#"{{"content":"{}","path":"a.txt"}}"#, "x".repeat(100));
    assert_eq!(write.arguments_sha256.as_ref(), Some(&of_bytes(canonical.as_bytes())));
    assert_eq!(write.arguments.as_deref(), Some("path=\"a.txt\" content=<100 bytes>"));
    assert_eq!(write.bytes_in, Some(4 + 5 + 7 + 100));
    assert_eq!(terminal.exit_code, Some(3));
    assert_eq!(first.tool_calls, Some(2));
    assert_eq!((first.bytes_in, first.bytes_out), (Some(code.len() as u64), Some(3)));
    assert_eq!((first.ran, first.status), (Some(true), Some(Status::Success)));
    assert_eq!(second.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    assert_eq!((third.ran, third.exit_code), (Some(false), None));
    let digest = first.script.clone().unwrap();
    assert_eq!(digest, of_bytes(code.as_bytes()));
    assert_eq!(find_script(&rig.path("audit"), &digest).unwrap().1, code.as_bytes());
    let mode = |name: &str| std::fs::metadata(rig.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("audit"), mode("audit/scripts")), (0o700, 0o700));
    assert_eq!(
        (mode("audit/audit.jsonl"), mode(&format!("audit/scripts/{digest}.py"))),
        (0o600, 0o600)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_recorded_and_cannot_push_the_rest_out() {
    let rig = Rig::new();
    let mut options = rig.options();
    options.limits.max_tool_calls = 1;
    let session = rig.open(options);
    let first = r#"
import hermes_tools, threading
hermes_tools._call('delegate_task', {'goal': 'all'})
hermes_tools.read_file('a', nonsense=1) if False else hermes_tools._call('read_file', {'nonsense': 1})
hermes_tools.read_file('a')
hermes_tools.read_file('b')
go, done = threading.Event(), threading.Event()
def later():
    go.wait()
    hermes_tools.read_file('late')
    done.set()
threading.Thread(target=later, daemon=True).start()
"#;
    assert_eq!(run(&session, first).await.status, Status::Success);
    assert_eq!(run(&session, "go.set(); done.wait(30)").await.status, Status::Success);
    // A call without the session's token, as another process of the same user might send it.
    let forged = r#"
import json, os, socket, struct
with socket.socket(socket.AF_UNIX) as s:
    s.connect(os.environ['HERMES_RPC_SOCKET'])
    body = json.dumps(['forged', 3, 'terminal', {'command': 'id'}]).encode()
    s.sendall(struct.pack('>I', len(body)) + body)
    print(s.recv(4096)[4:].decode())
"#;
    assert!(run(&session, forged).await.output.contains("no valid token"));
    run(&session, "for n in range(300): hermes_tools._call('nope', {})").await;
    let lines = rig.lines().await;
    let (flood, before): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.cell == Some(4));
    assert_eq!(
        story(&before),
        [
            "1 start",
            "1 delegate_task refused",
            "1 read_file refused",
            "1 read_file allowed",
            "1 read_file refused",
            "1 cell",
            "2 start",
            "- read_file refused",
            "2 cell",
            "3 start",
            "- call refused",
            "3 cell"
        ]
    );
    assert_eq!(before[5].refused_calls, Some(3));
    assert!(
        before[7].decision.as_ref().unwrap().contains("cell 1 has ended"),
        "{:?}",
        before[7]
    );
    assert!(before[10].error.as_ref().unwrap().contains("no valid token"));
    assert_eq!(flood.len(), 102);
    assert_eq!(flood[101].refused_calls, Some(300));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_the_log_nor_in_what_is_kept_beside_it() {
    let rig = Rig::new();
    let session = rig.open(rig.options());
    let code = format!(
        "from hermes_tools import terminal, write_file, _call\n\
         terminal('echo {SECRET}; export OTHER_TOKEN=abc-123-def; curl -u bob:pa55w0rd localhost')\n\
         write_file('{SECRET}.txt', 'file of {SECRET}')\n\
         _call('{SECRET}', {{'a': ['{SECRET}'], '{SECRET}': 1}})\n\
         raise ValueError('{SECRET}')"
    );
    assert_eq!(run(&session, &code).await.exit_code, Some(1));
    // Refused before a kernel told what is masked.
    let mut refused = Cell::new(format!("print('{SECRET}')"));
    refused.allowed_tools = Some(vec![SECRET.to_owned()]);
    assert_eq!(session.execute(refused).await.exit_code, None);
    let lines = rig.lines().await;
    assert!(lines.len() >= 6, "{lines:?}");
    let mut kept = text(&rig.path("audit"));
    for script in std::fs::read_dir(rig.path("audit/scripts")).unwrap() {
        kept += &std::fs::read_to_string(script.unwrap().path()).unwrap();
    }
    for secret in [SECRET, &SECRET[..12], &SECRET[12..]] {
        assert!(!kept.contains(secret), "{secret}: {kept}");
    }
    // A script keeps what only it knows: it is what ran.
    for secret in ["pa55w0rd", "abc-123-def"] {
        assert!(!text(&rig.path("audit")).contains(secret), "{secret}: {kept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_argument_is_recorded_in_short() {
    let rig = Rig::new();
    let session = rig.open(rig.options());
    let code = "from hermes_tools import write_file, terminal\n\
                print(write_file('big', 'y' * (8 << 20))['bytes_written'])\n\
                terminal('true # ' + 'z' * 100000)";
    assert_eq!(run(&session, code).await.output, "8388608\n");
    let lines = rig.lines().await;
    assert_eq!(
        lines[1].arguments.as_deref(),
        Some("path=\"big\" content=<8388608 bytes>")
    );
    assert!(lines[2].arguments.as_ref().unwrap().ends_with("zzz\"…(100007 bytes)"));
    assert!(text(&rig.path("audit")).lines().all(|line| line.len() < 2_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_in_a_container_is_recorded_as_one_here() {
    let image = std::process::Command::new("docker")
        .args(["image", "inspect", "talaria-test:base"])
        .output();
    if !image.is_ok_and(|found| found.status.success()) {
        let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|one| one == "docker"),
            "no engine with the tests' images answers"
        );
        eprintln!("SKIPPED: no engine with the images of the tests answers");
        return;
    }
    let rig = Rig::new();
    let target = "docker:talaria-test:base";
    let docker = DockerOptions::new(
        target,
        "talaria-test:base",
        EngineSources::of(&Environment::of_this_process()),
    );
    let mut options = SessionOptions::elsewhere(target, Arc::new(DockerImage::new(docker)), rig.environment());
    options.audit = Some(rig.settings());
    options.limits.timeout = LIMIT;
    let session = rig.open(options);
    let code = format!(
        "from hermes_tools import read_file, write_file, _call\n\
         write_file('a.txt', 'x')\n\
         read_file('a.txt')\n\
         read_file('{SECRET}')\n\
         _call('nope', {{}})"
    );
    assert_eq!(run(&session, &code).await.status, Status::Success);
    let lines = rig.lines().await;
    let mut story = story(&lines);
    assert_eq!(
        (story.remove(0), story.pop().unwrap()),
        ("1 start".to_owned(), "1 cell".to_owned())
    );
    // What the target answered itself is told here a little later.
    story.sort();
    assert_eq!(
        story,
        [
            "1 nope refused",
            "1 read_file allowed",
            "1 read_file allowed",
            "1 write_file allowed"
        ]
    );
    assert!(lines.iter().all(|line| line.target == target));
    let mut calls = lines.iter().filter(|line| line.tool.as_deref() == Some("read_file"));
    assert!(calls.any(|call| call.error.is_some()), "{lines:?}");
    assert!(!text(&rig.path("audit")).contains(SECRET), "{lines:?}");
}

/// Allows what has this in its arguments, for the session if they say so.
struct Someone;

#[async_trait::async_trait]
impl Approver for Someone {
    fn who(&self) -> String {
        "someone".to_owned()
    }

    async fn ask(&self, request: ApprovalRequest) -> Decision {
        match request.arguments["command"].as_str() {
            Some("true") => Decision::AllowOnce,
            Some("echo all") => Decision::AllowForSession,
            Some("absent") => Decision::CannotAsk {
                reason: "nobody is there".to_owned(),
            },
            _ => Decision::Deny { reason: None },
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_told_who_has_decided() {
    let rig = Rig::new();
    let mut options = rig.options();
    let mut policy = Policy::default();
    policy.set_default("terminal", Action::Ask);
    policy.set_default("write_file", Action::Deny);
    options.policy = Arc::new(policy);
    options.approver = Some(Arc::new(Someone));
    let session = rig.open(options);
    let code = "from hermes_tools import read_file, terminal, write_file\n\
                read_file('a')\n\
                write_file('a', '')\n\
                for command in ('false', 'absent', 'true', 'echo all', 'false'): terminal(command)";
    run(&session, code).await;
    let lines = rig.lines().await;
    let decisions: Vec<&str> = lines.iter().filter_map(|line| line.decision.as_deref()).collect();
    assert_eq!(
        decisions,
        [
            "allowed",
            "denied: approval.tools.write_file: deny",
            "asked: denied by someone",
            "asked: denied by nobody",
            "asked: allowed by someone",
            "asked: allowed by someone",
            "asked: allowed by an answer before, for the session",
        ]
    );
}
