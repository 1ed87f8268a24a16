//! What only a terminal sees.

use crate::rig::{Rig, python};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_status_line_is_for_terminals,
    ctrl_c_on_a_terminal,
    ctrl_c_says_what_a_second_one_does,
    a_terminal_without_a_script_is_told_what_to_give,
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
