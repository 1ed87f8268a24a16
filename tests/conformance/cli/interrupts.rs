//! Signals to the command line, and what is left afterwards: nothing.

use std::time::Duration;

use rustix::process::Signal;

use crate::command::Started;
use crate::observe::{self, wait_until};
use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    ctrl_c_interrupts_and_cleans_up,
    ctrl_c_gives_processes_the_grace,
    a_second_ctrl_c_is_at_once,
    ctrl_c_runs_no_further_script,
    signals_that_end_programs_clean_up,
    a_command_of_a_tool_ends_too,
    a_broken_pipe_ends_quietly,
    a_broken_pipe_with_scripts_left_is_not_success,
];

fn nothing_is_left(rig: &Rig) {
    let mark = rig.scratch().to_str().unwrap();
    let clean = wait_until(rig.left_behind(), || observe::with_mark(mark).is_empty());
    assert!(clean, "{:#?}", observe::with_mark(mark));
    let folders = std::fs::read_dir(rig.tmp()).unwrap().count();
    assert_eq!(folders, 0);
}

fn start(rig: &Rig, code: &str) -> Started {
    let started = rig.mortal_cli(["run", "-c", code, "-c", "open('next', 'w')"]).start();
    started.wait_for("started");
    started
}

fn ctrl_c_interrupts_and_cleans_up(rig: &Rig) {
    let code = "import subprocess, time
subprocess.Popen(['sleep', '300'], start_new_session=True)
print('started', flush=True)
time.sleep(300)";
    let started = start(rig, code);
    assert!(observe::status_kib(started.pid(), "VmHWM").unwrap() > 0);
    started.signal(Signal::INT);
    let output = started.wait();
    assert_eq!(output.code(), 130, "{output:?}");
    assert_eq!(output.stdout, "started\n");
    nothing_is_left(rig);
    let code = "print('started', flush=True)\nimport time; time.sleep(300)";
    let started = rig.cli(["run", "--json", "-c", "print('first')", "-c", code]).start();
    started.wait_for("first");
    std::thread::sleep(Duration::from_millis(300));
    started.signal(Signal::INT);
    let output = started.wait();
    let outcome = output.outcomes().pop().unwrap();
    assert_eq!(outcome["status"], "interrupted", "{output:?}");
    assert!(
        outcome["output"]
            .as_str()
            .unwrap()
            .ends_with("[execution interrupted — Ctrl-C]"),
        "{output:?}"
    );
    let error = outcome["error"].as_str().unwrap();
    assert!(error.starts_with("the cell was interrupted (Ctrl-C)"), "{error}");
    nothing_is_left(rig);
}

/// Takes SIGTERM calmly: ends half a second later, having said so in a file.
const CALM: &str = "import signal, sys, time
def end(*_):
    time.sleep(1.5)
    open('tidied', 'w').close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('started', flush=True)
time.sleep(300)";

fn ctrl_c_gives_processes_the_grace(rig: &Rig) {
    let started = start(rig, CALM);
    started.signal(Signal::INT);
    assert_eq!(started.wait().code(), 130);
    assert!(rig.work().join("tidied").exists());
    nothing_is_left(rig);
}

fn a_second_ctrl_c_is_at_once(rig: &Rig) {
    let started = start(rig, CALM);
    started.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(200));
    started.signal(Signal::INT);
    assert_eq!(started.wait().code(), 130);
    nothing_is_left(rig);
    assert!(!rig.work().join("tidied").exists());
}

fn ctrl_c_runs_no_further_script(rig: &Rig) {
    let code = "print('started', flush=True)\nimport time; time.sleep(300)";
    let started = rig
        .cli(["run", "--keep-going", "-c", code, "-c", "open('next', 'w')"])
        .start();
    started.wait_for("started");
    started.signal(Signal::INT);
    assert_eq!(started.wait().code(), 130);
    assert!(!rig.work().join("next").exists());
}

fn signals_that_end_programs_clean_up(rig: &Rig) {
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::KILL] {
        let code = "import subprocess\nprint('started', flush=True)\nsubprocess.run(['sh', '-c', 'trap \"\" TERM; sleep 300'])";
        let started = start(rig, code);
        started.signal(signal);
        assert_ne!(started.wait().code(), 0, "{signal:?}");
        nothing_is_left(rig);
    }
    assert!(!rig.work().join("next").exists());
}

fn a_command_of_a_tool_ends_too(rig: &Rig) {
    let code = "from hermes_tools import terminal
terminal('sleep 300 & echo bg > bg')
print('started', flush=True)
terminal('sleep 301')";
    let started = start(rig, code);
    started.signal(Signal::INT);
    assert_eq!(started.wait().code(), 130);
    nothing_is_left(rig);
}

fn a_broken_pipe_ends_quietly(rig: &Rig) {
    for code in [
        "while True: print('y' * 1000)",
        "print('y')\nimport time; time.sleep(0.5)\nprint('z' * 100000)",
    ] {
        let output = rig
            .shell("\"$TALARIA\" run -c \"$CODE\" | head -n 1; echo \"${PIPESTATUS[0]}\"")
            .env("CODE", code)
            .run();
        assert!(
            output.stdout.starts_with('y') && output.stdout.ends_with("\n0\n"),
            "{output:?}"
        );
        assert!(
            !output.stderr.contains("error") && !output.stderr.contains("panicked"),
            "{output:?}"
        );
        nothing_is_left(rig);
    }
    let output = rig
        .shell("\"$TALARIA\" config --template | head -n 1; echo \"${PIPESTATUS[0]}\"")
        .run();
    assert!(
        output.stdout.ends_with("\n0\n") && output.stderr.is_empty(),
        "{output:?}"
    );
}

fn a_broken_pipe_with_scripts_left_is_not_success(rig: &Rig) {
    let code = "print('y')\nimport time; time.sleep(0.5)\nprint('z' * 100000)";
    for (json, output_begins) in [("", "y\n"), ("--json", "")] {
        let reader = if json.is_empty() { "head -n 1" } else { "true" };
        let output = rig
            .shell(&format!(
                "\"$TALARIA\" run {json} -c \"$CODE\" -c \"open('next', 'w')\" | {reader}; echo \"${{PIPESTATUS[0]}}\""
            ))
            .env("CODE", code)
            .run();
        assert_eq!(output.stdout, format!("{output_begins}141\n"), "{output:?}");
        assert_eq!(output.stderr, "", "{output:?}");
        assert!(!rig.work().join("next").exists());
        nothing_is_left(rig);
    }
}
