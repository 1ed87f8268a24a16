//! Calls that somebody has to approve: the clock that stands still meanwhile, and that nothing happens before.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use talaria_broker::approval::{Action, ApprovalRequest, Approver, Decision, Policy, ToolRules};
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::observe::wait_until;
use crate::rig::{HANG, Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_clock_stands_still_while_somebody_is_asked,
    what_is_refused_never_happened_and_is_free,
    whoever_makes_the_call_it_is_asked,
    an_interrupt_withdraws_the_question,
    it_fails_closed,
    rules_look_at_what_is_meant,
    what_changes_while_it_is_asked_about_is_not_run,
    a_grant_is_for_its_rule_in_its_session,
    authority_is_that_of_the_cell,
];

/// What holds without a kernel too.
pub(crate) const CASES_WITHOUT_STATE: &[Case] = cases![
    the_clock_stands_still_while_somebody_is_asked,
    what_is_refused_never_happened_and_is_free,
];

type Answer = Box<dyn Fn(&ApprovalRequest) -> Option<(Duration, Decision)> + Send + Sync>;

/// Answers as a test wants it, and keeps what it was asked; `None`: never.
struct Desk {
    answer: Answer,
    asked: Mutex<Vec<ApprovalRequest>>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Desk {
    fn new(answer: impl Fn(&ApprovalRequest) -> Option<(Duration, Decision)> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            answer: Box::new(answer),
            asked: Mutex::default(),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        })
    }

    fn saying(decision: Decision) -> Arc<Self> {
        Self::new(move |_| Some((Duration::ZERO, decision.clone())))
    }

    /// What it was asked since the last time.
    fn take(&self) -> Vec<ApprovalRequest> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[async_trait]
impl Approver for Desk {
    fn who(&self) -> String {
        "the test".to_owned()
    }

    async fn ask(&self, request: ApprovalRequest) -> Decision {
        let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_open.fetch_max(open, Ordering::AcqRel);
        let _open = Open(&self.open);
        let answer = (self.answer)(&request);
        self.asked.lock().unwrap().push(request);
        match answer {
            Some((pause, decision)) => {
                tokio::time::sleep(pause).await;
                decision
            }
            None => std::future::pending().await,
        }
    }
}

fn refusal(reason: &str) -> Decision {
    Decision::Deny {
        reason: Some(reason.to_owned()),
    }
}

fn asking(tools: &[&str]) -> Policy {
    let mut policy = Policy::default();
    for tool in tools {
        policy.set_default(tool, Action::Ask);
    }
    policy
}

fn session(rig: &Rig, policy: Policy, desk: &Arc<Desk>) -> TestSession {
    rig.session_with(|options| {
        options.policy = Arc::new(policy);
        options.approver = Some(desk.clone());
    })
}

fn the_clock_stands_still_while_somebody_is_asked(rig: &Rig) {
    // Two are asked one after the other, and together they take longer than the cell may.
    let desk = Desk::new(|_| Some((Duration::from_millis(2200), Decision::AllowOnce)));
    let session = session(rig, asking(&["write_file"]), &desk);
    let code = "
import threading
from hermes_tools import write_file
work = lambda name: print(write_file(name, 'x')['bytes_written'])
threads = [threading.Thread(target=work, args=(name,)) for name in 'ab']
for thread in threads: thread.start()
for thread in threads: thread.join()
";
    let outcome = session.cell_for(4.0, code);
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "1\n1\n"),
        "{outcome:#?}"
    );
    assert!(outcome.duration_seconds < 4.0, "the wait was counted: {outcome:#?}");
    assert_eq!((desk.take().len(), desk.most_open.load(Ordering::Acquire)), (2, 1));
    // Afterwards it goes on.
    let code = "from hermes_tools import write_file\nprint(write_file('c', 'x')['bytes_written'], flush=True)\n\
                import time\ntime.sleep(600)";
    let outcome = session.cell_for(2.0, code);
    assert_eq!(outcome.status, Status::Timeout, "{outcome:#?}");
    assert_eq!(
        outcome.output, "1\nScript timed out after 2s and was killed.",
        "{outcome:#?}"
    );
    assert!(outcome.duration_seconds >= 1.9, "{outcome:#?}");
}

fn what_is_refused_never_happened_and_is_free(rig: &Rig) {
    let file = rig.work().join("a");
    let seen = file.clone();
    let desk = Desk::new(move |request| {
        assert!(!seen.exists(), "it happened before it was decided");
        let is_fine = request.arguments["content"] == "fine";
        let decision = if is_fine {
            Decision::AllowOnce
        } else {
            refusal("not on my watch")
        };
        // As long as the target would take to do it by itself.
        Some((Duration::from_millis(200), decision))
    });
    let session = rig.session_with(|options| {
        options.policy = Arc::new(asking(&["write_file"]));
        options.approver = Some(desk.clone());
        options.limits.max_tool_calls = 1;
    });
    let outcome = session.cell(
        "from hermes_tools import write_file\nx = 1\nfor _ in range(3): print(write_file('a', 'bad')['error'])\n\
         print(write_file('a', 'fine')['bytes_written'])\nprint('limit of 1' in write_file('b', 'bad')['error'])",
    );
    let expected = "write_file was not run: the user refused it: not on my watch\n".repeat(3) + "4\nTrue\n";
    assert_eq!(
        (outcome.output.as_str(), outcome.tool_calls_made),
        (expected.as_str(), 1),
        "{outcome:#?}"
    );
    let asked = desk.take();
    assert_eq!(asked.len(), 4, "one beyond the limit is not asked about");
    assert_eq!(asked[0].target, rig.target.name);
    assert_eq!(asked[0].folder, rig.work().display().to_string());
    assert_eq!(asked[0].rules, ["approval.tools.write_file: ask"]);
    assert!(!rig.work().join("b").exists());
    if rig.keeps_state {
        assert_eq!(session.ok("print(x)"), "1\n");
    }
}

fn whoever_makes_the_call_it_is_asked(rig: &Rig) {
    let desk = Desk::saying(refusal("no"));
    let session = session(rig, asking(&["write_file", "patch", "terminal"]), &desk);
    let code = "
import os, subprocess, sys, threading
import hermes_tools
def work(): hermes_tools.write_file('thread', 'x')
thread = threading.Thread(target=work); thread.start(); thread.join()
subprocess.run([sys.executable, '-c', 'import hermes_tools; hermes_tools.write_file(\"child\", \"x\")'], check=True)
pid = os.fork()
if pid == 0:
    hermes_tools.write_file('fork', 'x')
    os._exit(0)
os.waitpid(pid, 0)
hermes_tools._call('write_file', {'path': 'forged', 'content': 'x'})
hermes_tools._call('terminal', {'command': 'touch command'})
hermes_tools.patch(patch='*** Begin Patch\\n*** Add File: patched\\n+x\\n*** End Patch')
print(sorted(os.listdir()))
";
    assert_eq!(session.ok(code), "[]\n");
    let tools: Vec<String> = desk.take().into_iter().map(|request| request.tool).collect();
    assert_eq!(
        tools,
        [
            "write_file",
            "write_file",
            "write_file",
            "write_file",
            "terminal",
            "patch"
        ]
    );
}

fn an_interrupt_withdraws_the_question(rig: &Rig) {
    let desk = Desk::new(|_| None);
    let session = session(rig, asking(&["terminal"]), &desk);
    session.ok("pass");
    let cell = Cell::new("from hermes_tools import terminal\nterminal('touch there')");
    let cancel = cell.cancel.clone();
    let running = session.start(cell);
    assert!(wait_until(HANG, || !desk.asked.lock().unwrap().is_empty()));
    cancel.cancel("enough");
    assert!(wait_until(HANG, || desk.open.load(Ordering::Acquire) == 0));
    let outcome = running.wait();
    assert_eq!(outcome.status, Status::Interrupted, "{outcome:#?}");
    assert!(!rig.work().join("there").exists());
    // So does the end of the cell.
    let outcome = session.cell(
        "import threading, time\nfrom hermes_tools import terminal\n\
         threading.Thread(target=terminal, args=('touch there',), daemon=True).start()\ntime.sleep(1)",
    );
    assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
    assert!(wait_until(HANG, || desk.open.load(Ordering::Acquire) == 0));
    assert!(!rig.work().join("there").exists());
}

fn it_fails_closed(rig: &Rig) {
    let code = "from hermes_tools import write_file\nfor _ in range(2): print(write_file('a', 'x')['error'])";
    let silent = |policy: &mut Policy| policy.timeout = Duration::from_millis(300);
    for (desk, adjust, words) in [
        (None, None, "no way to ask"),
        (Some(Desk::new(|_| panic!("it breaks"))), None, "broke down"),
        (
            Some(Desk::saying(Decision::CannotAsk {
                reason: "there is no terminal".to_owned(),
            })),
            None,
            "there is no terminal",
        ),
        (
            Some(Desk::new(|_| None)),
            Some(&silent as &dyn Fn(&mut Policy)),
            "nobody answered",
        ),
    ] {
        let mut policy = asking(&["write_file"]);
        if let Some(adjust) = adjust {
            adjust(&mut policy);
        }
        let session = rig.session_with(|options| {
            options.policy = Arc::new(policy);
            options.approver = desk.clone().map(|desk| desk as Arc<dyn Approver>);
        });
        let outcome = session.cell(code);
        assert_eq!(outcome.tool_calls_made, 0, "{words}");
        assert_eq!(outcome.output.matches(words).count(), 2, "{words}: {outcome:#?}");
        if words == "nobody answered" {
            assert_eq!(
                desk.map(|desk| desk.take().len()),
                Some(1),
                "nobody is asked who did not answer"
            );
        }
        session.close();
    }
    assert!(!rig.work().join("a").exists());
}

fn rules_look_at_what_is_meant(rig: &Rig) {
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let outside = rig.scratch().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir(rig.work().join("src")).unwrap();
    std::fs::write(outside.join("old"), "old\n").unwrap();
    std::os::unix::fs::symlink(&outside, rig.work().join("src/link")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), rig.work().join("src/dangling")).unwrap();
    std::os::unix::fs::symlink(rig.work().join("src"), rig.scratch().join("way")).unwrap();
    let mut policy = Policy::default();
    let files = ToolRules {
        default: Some(Action::Ask),
        allow: list(&["src/**"]),
        deny: list(&["~/.config/**", "**/.env"]),
        ask: Vec::new(),
    };
    for tool in ["write_file", "patch", "read_file"] {
        policy.set(tool, &files).unwrap();
    }
    let folders = ToolRules {
        deny: list(&["~/.config/**"]),
        ..files
    };
    policy.set("search_files", &folders).unwrap();
    let commands = ToolRules {
        default: Some(Action::Ask),
        allow: list(&["echo", "true"]),
        deny: list(&["rm -rf"]),
        ask: Vec::new(),
    };
    policy.set("terminal", &commands).unwrap();
    let desk = Desk::saying(refusal("no"));
    let session = session(rig, policy, &desk);
    let scratch = rig.scratch().display();
    let mut code = "import hermes_tools as t\n".to_owned();
    let moved = "*** Begin Patch\\n*** Update File: src/a\\n*** Move to: b\\n@@\\n-x\\n+y\\n*** End Patch";
    let (allow, ask, deny) = ('+', '?', '-');
    let calls = [
        ("write_file('src/a', 'x\\n')".to_owned(), allow),
        ("write_file('./src/../src/b', 'x')".to_owned(), allow),
        (format!("write_file('{scratch}/way/c', 'x')"), allow),
        ("read_file('src/a')".to_owned(), allow),
        ("search_files('x', path='src/link')".to_owned(), ask),
        ("search_files('x', path='src/link/..')".to_owned(), deny),
        ("search_files('x', path='src')".to_owned(), allow),
        ("search_files('x')".to_owned(), ask),
        ("search_files('x', path='~')".to_owned(), deny),
        ("write_file('a', 'x')".to_owned(), ask),
        ("write_file('src/../a', 'x')".to_owned(), ask),
        ("write_file('src/link/a', 'x')".to_owned(), ask),
        ("write_file('src/link/../a', 'x')".to_owned(), ask),
        ("write_file('src/dangling', 'x')".to_owned(), ask),
        ("write_file('~/src/a', 'x')".to_owned(), ask),
        ("write_file('~/.config/x/y', 'x')".to_owned(), deny),
        (
            format!("write_file('{scratch}/home/./.config/../.config/y', 'x')"),
            deny,
        ),
        ("write_file('src/.env', 'x')".to_owned(), deny),
        ("read_file('src/.env')".to_owned(), deny),
        (format!("patch(patch='{moved}')"), ask),
        ("patch('src/a', 'x', 'y')".to_owned(), allow),
        ("patch('src/link/old', 'old', 'y')".to_owned(), ask),
        (
            "patch(patch='*** Begin Patch\\n*** Delete File: src/link/old\\n*** End Patch')".to_owned(),
            ask,
        ),
        ("terminal('echo a && true | echo')".to_owned(), allow),
        ("terminal('cd src')".to_owned(), ask),
        ("terminal('echo a > src/x')".to_owned(), ask),
        ("terminal('echo $(touch x)')".to_owned(), ask),
        ("terminal('echo a\\ntouch x')".to_owned(), ask),
        ("terminal('PATH=. echo a')".to_owned(), ask),
        ("terminal('true; /bin/rm -rf x')".to_owned(), deny),
        ("terminal('bash -c \"rm -rf x\"')".to_owned(), deny),
    ];
    for (call, _) in &calls {
        writeln!(
            code,
            "r = t.{call}; e = str(r.get('error') or ''); print('-' if 'forbidden' in e else '?' if 'refused' in e else e or '+')"
        )
        .unwrap();
    }
    let printed = session.ok(&code);
    let found: Vec<&str> = printed.lines().collect();
    assert_eq!(found.len(), calls.len(), "{printed}");
    for ((call, expected), found) in calls.iter().zip(found) {
        assert_eq!(found, expected.to_string(), "{call}");
    }
    assert_eq!(std::fs::read_to_string(outside.join("old")).unwrap(), "old\n");
    let asked = desk.take();
    let link = asked
        .iter()
        .find(|request| request.arguments.get("path") == Some(&"src/link/a".into()));
    let real = std::fs::canonicalize(&outside).unwrap().join("a");
    assert_eq!(link.unwrap().files, [real.display().to_string()]);
    let diff = asked.iter().find_map(|request| request.diff.as_deref());
    assert!(diff.is_some_and(|diff| diff.contains("+++ b/b\n")), "{asked:#?}");
}

fn what_changes_while_it_is_asked_about_is_not_run(rig: &Rig) {
    std::fs::create_dir(rig.work().join("sub")).unwrap();
    let (link, elsewhere) = (rig.work().join("link"), rig.scratch().join("elsewhere"));
    std::os::unix::fs::symlink(rig.work().join("here"), &link).unwrap();
    let desk = Desk::new(move |request| {
        // As the script itself can do it, which goes on meanwhile.
        if request.arguments["path"] == "link" {
            std::fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        }
        let is_slow = request.arguments["path"] == "file";
        Some((
            Duration::from_millis(if is_slow { 1500 } else { 0 }),
            Decision::AllowOnce,
        ))
    });
    let session = session(rig, asking(&["write_file"]), &desk);
    let code = "
import threading, time
from hermes_tools import terminal, write_file
print(write_file('link', 'x')['error'])
def move():
    time.sleep(0.5)
    terminal('cd sub')
thread = threading.Thread(target=move); thread.start()
print(write_file('file', 'x')['error'])
thread.join()
print(write_file('file', 'x')['resolved_path'])
";
    let printed = session.ok(code);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(
        lines[0].contains("has changed") && lines[1].contains("has changed"),
        "{printed}"
    );
    assert!(lines[2].ends_with("/work/sub/file"), "{printed}");
    assert!(!rig.scratch().join("elsewhere").exists() && !rig.work().join("file").exists());
}

fn a_grant_is_for_its_rule_in_its_session(rig: &Rig) {
    let mut policy = asking(&["write_file", "patch"]);
    let rules = ToolRules {
        default: Some(Action::Ask),
        ask: vec!["secret/**".to_owned()],
        ..ToolRules::default()
    };
    policy.set("write_file", &rules).unwrap();
    let desk = Desk::saying(Decision::AllowForSession);
    let code = "
import threading
from hermes_tools import patch, write_file
threads = [threading.Thread(target=write_file, args=(name, 'x')) for name in 'abcd']
for thread in threads: thread.start()
for thread in threads: thread.join()
write_file('e', 'x')
";
    let first = session(rig, policy.clone(), &desk);
    first.ok(code);
    assert_eq!(desk.take().len(), 1, "also those that waited");
    first.ok("write_file('f', 'x')");
    assert_eq!(desk.take().len(), 0);
    first.ok("write_file('secret/a', 'x'); write_file('secret/b', 'x'); patch('a', 'x', 'y')");
    let asked: Vec<Vec<String>> = desk.take().into_iter().map(|request| request.rules).collect();
    assert_eq!(
        asked,
        [
            ["approval.tools.write_file.ask: secret/**"],
            ["approval.tools.patch: ask"]
        ]
    );
    first.close();
    let second = session(rig, policy, &desk);
    second.ok("from hermes_tools import write_file\nwrite_file('a', 'x')");
    assert_eq!(desk.take().len(), 1, "another session");
}

fn authority_is_that_of_the_cell(rig: &Rig) {
    let (theirs, ours) = (Desk::saying(Decision::AllowOnce), Desk::saying(refusal("not you")));
    let session = session(rig, asking(&["write_file"]), &theirs);
    session.ok("from hermes_tools import write_file\nwrite_file('a', 'x')");
    let mut cell = Cell::new("print(write_file('b', 'x')['error'])");
    cell.approver = Some(ours.clone());
    let outcome = session.run(cell);
    assert!(outcome.output.contains("not you"), "{outcome:#?}");
    let mut cell = Cell::new("print(write_file('c', 'x')['error'])");
    let mut policy = Policy::default();
    policy.set_default("write_file", Action::Deny);
    cell.policy = Some(Arc::new(policy));
    let outcome = session.run(cell);
    assert!(
        outcome.output.contains("forbidden (approval.tools.write_file: deny)"),
        "{outcome:#?}"
    );
    assert_eq!((theirs.take().len(), ours.take().len()), (1, 1));
}
