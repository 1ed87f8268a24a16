//! What only a terminal sees.

use crate::rig::{Rig, python};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_status_line_is_for_terminals,
    ctrl_c_on_a_terminal,
    ctrl_c_says_what_a_second_one_does,
    a_terminal_without_a_script_is_told_what_to_give,
    a_call_is_asked_about_on_the_terminal,
    a_question_ends_with_ctrl_c,
    without_a_terminal_nobody_is_asked,
];

/// Runs `talaria ARGUMENTS` with a terminal for all three streams, types what FEED says once the
/// output holds WAIT, prints what the terminal showed, and the exit code.
const ON_A_TERMINAL: &str = "
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(os.environ['TALARIA'], [os.environ['TALARIA']] + sys.argv[1:])
wait, feed, shown, began = os.environ['WAIT'].encode(), os.environ['FEED'].encode(), b'', time.time()
while time.time() - began < 60:
    if feed and wait in shown:
        os.write(fd, feed)
        feed = b''
    if select.select([fd], [], [], 0.1)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
sys.stdout.buffer.write(shown)
print('exit', os.waitpid(pid, 0)[1] >> 8)
";

fn on_a_terminal(rig: &Rig, arguments: &[&str], wait: &str, feed: &str) -> String {
    let words: Vec<String> = arguments
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
        .collect();
    let script = rig.file("terminal.py", ON_A_TERMINAL);
    let command = format!("{} -I {} {}", python().display(), script.display(), words.join(" "));
    rig.shell(&command).env("WAIT", wait).env("FEED", feed).run().stdout
}

fn the_status_line_is_for_terminals(rig: &Rig) {
    let code = "import time\nfrom hermes_tools import terminal\nterminal('true')\nprint('before')\ntime.sleep(2.5)\nprint('after')";
    let shown = on_a_terminal(rig, &["run", "-c", code], "", "");
    assert!(shown.contains("before\r\n") && shown.contains("after\r\n"), "{shown:?}");
    assert!(shown.contains(" s · 1 tool call · Ctrl-C interrupts"), "{shown:?}");
    assert!(shown.contains("\r\u{1b}[Kafter"), "the line is taken away: {shown:?}");
    assert!(shown.trim_end().ends_with("exit 0"), "{shown:?}");
    let plain = rig.cli(["run", "-c", code]).run();
    assert_eq!(plain.stdout, "before\nafter\n");
    assert!(!plain.stderr.contains("Ctrl-C"), "{plain:?}");
    let json = on_a_terminal(rig, &["run", "--json", "-c", code], "", "");
    assert!(!json.contains("Ctrl-C interrupts"), "{json:?}");
}

fn ctrl_c_on_a_terminal(rig: &Rig) {
    let code = "import time\nprint('started', flush=True)\ntime.sleep(300)";
    let shown = on_a_terminal(rig, &["run", "-c", code], "started", "\u{3}");
    assert!(shown.trim_end().ends_with("exit 130"), "{shown:?}");
    assert!(!shown.contains("Traceback"), "{shown:?}");
}

fn ctrl_c_says_what_a_second_one_does(rig: &Rig) {
    for end in ["\\n", ""] {
        let code = format!(
            "import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print('started', end='{end}', flush=True)
time.sleep(1.5)"
        );
        let shown = on_a_terminal(rig, &["run", "-c", &code], "started", "\u{3}");
        assert!(
            shown.contains("started") && shown.contains("stopping; a second Ctrl-C kills at once"),
            "{shown:?}"
        );
    }
}

fn a_terminal_without_a_script_is_told_what_to_give(rig: &Rig) {
    let shown = on_a_terminal(rig, &["run"], "", "");
    assert!(
        shown.contains("nothing to run") && shown.trim_end().ends_with("exit 2"),
        "{shown:?}"
    );
}

/// Ends a question: what is typed is for the one that stands there then.
const PROMPT: &str = "or a reason: no > ";

fn a_call_is_asked_about_on_the_terminal(rig: &Rig) {
    let code = "import sys, threading, time
from hermes_tools import terminal
def talk():
    time.sleep(1)
    print('meanwhile', flush=True)
thread = threading.Thread(target=talk)
thread.start()
result = terminal('echo ran; : \\x1b[2K')
thread.join()
print(result.get('error') or result['output'])";
    for (typed, expected) in [
        ("y\n", "ran\r\n"),
        ("a\n", "ran\r\n"),
        ("\n", "the user refused it; do not try"),
        ("use ls\n", "the user refused it: use ls\r\n"),
    ] {
        let shown = on_a_terminal(rig, &["run", "--ask", "terminal,patch", "-c", code], PROMPT, typed);
        assert!(shown.trim_end().ends_with("exit 0"), "{shown:?}");
        assert!(shown.contains(expected), "{typed:?}: {shown:?}");
        let (question, answered) = shown.split_once(PROMPT).unwrap();
        assert!(
            question.contains(&format!("wants to call terminal on {}", rig.target.name)),
            "{shown:?}"
        );
        assert!(question.contains("command | echo ran; : \\u{1b}[2K\r\n"), "{shown:?}");
        assert!(
            !question.contains("meanwhile") && answered.contains("meanwhile\r\n"),
            "{shown:?}"
        );
    }
}

fn a_question_ends_with_ctrl_c(rig: &Rig) {
    let code = "from hermes_tools import terminal\nterminal('touch there')";
    let shown = on_a_terminal(rig, &["run", "--ask", "terminal", "-c", code], PROMPT, "\u{3}");
    assert!(shown.trim_end().ends_with("exit 130"), "{shown:?}");
    assert!(!rig.work().join("there").exists());
}

fn without_a_terminal_nobody_is_asked(rig: &Rig) {
    let code = "from hermes_tools import terminal, write_file\nprint(terminal('touch there')['error'])\nprint(terminal('true')['exit_code'])";
    let config = rig.aside().join("config.yaml");
    std::fs::write(&config, "approval:\n  tools:\n    terminal: {allow: [\"true\"]}\n").unwrap();
    let config = config.display().to_string();
    let output = rig
        .cli(["--config", &config, "run", "--ask", "terminal", "-c", code])
        .through(["setsid", "-w"])
        .run();
    assert!(
        output.stdout.contains(
            "it needs approval (approval.tools.terminal: ask), and there is no terminal to ask on; run it on a terminal"
        ) && output.stdout.contains("approval.tools.terminal")
            && output.stdout.ends_with("\n0\n"),
        "{output:?}"
    );
    assert!(!rig.work().join("there").exists());
    let output = rig.cli(["run", "--ask", "termnal", "-c", code]).run();
    assert_eq!(output.code(), 2, "{output:?}");
    assert!(
        output.stderr.contains("the flag --ask") && output.stderr.contains("`terminal`"),
        "{output:?}"
    );
}
