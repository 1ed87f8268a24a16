//! What a cell that raises shows: its own lines, and nothing of ours.

use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_traceback_names_cell_line_and_source,
    frames_of_earlier_cells_are_shown_with_their_source,
    chained_exceptions_are_shown_whole,
    groups_of_exceptions_show_no_frame_of_ours,
    exceptions_that_cannot_be_shown_are_errors_all_the_same,
    an_exception_in_a_thread_is_shown,
    keyboard_interrupt_is_an_ordinary_error,
    deep_recursion_is_an_ordinary_error,
    the_error_is_the_last_line_of_the_exception,
    tracebacks_survive_the_staging_folder,
];

fn raised(outcome: &Outcome) {
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(1)),
        "{outcome:#?}"
    );
    assert!(!outcome.kernel.as_ref().unwrap().state_lost, "{outcome:#?}");
    for ours in [
        "talaria kernel",
        "_evaluate",
        "_execute",
        "run_until_complete",
        "base_events",
    ] {
        assert!(!outcome.output.contains(ours), "{ours}: {outcome:#?}");
    }
}

fn a_traceback_names_cell_line_and_source(rig: &Rig) {
    let session = rig.session();
    let mut cell = Cell::new("print('before')\n\ndef broken(n):\n    return n / 0\n\nbroken(3)\n");
    cell.name = Some("report".to_owned());
    let outcome = session.run(cell);
    raised(&outcome);
    let (stdout, stderr) = outcome.output.split_once("--- stderr ---\n").unwrap();
    assert_eq!(stdout, "before\n");
    let mut lines = stderr.lines().filter(|line| !line.trim().starts_with(['^', '~']));
    assert_eq!(lines.next(), Some("Traceback (most recent call last):"));
    let frame = lines.next().unwrap();
    assert!(frame.ends_with("cell_1_report.py\", line 6, in <module>"), "{frame}");
    assert_eq!(lines.next(), Some("    broken(3)"));
    assert!(lines.next().unwrap().ends_with("line 4, in broken"));
    assert_eq!(lines.next(), Some("    return n / 0"));
    assert_eq!(lines.next(), Some("ZeroDivisionError: division by zero"));
    assert_eq!(lines.next(), None);
    assert_eq!(outcome.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    let outcome = session.cell("async def inner():\n    raise KeyError('k')\nawait inner()");
    raised(&outcome);
    assert!(
        outcome.output.contains("line 3, in <module>\n    await inner()\n"),
        "{outcome:#?}"
    );
}

fn frames_of_earlier_cells_are_shown_with_their_source(rig: &Rig) {
    let session = rig.session();
    session.ok("def helper(x):\n    return {}[x]  # in the first cell");
    session.ok("def other(x):\n    return helper(x)");
    let outcome = session.cell("other('k')");
    raised(&outcome);
    let first = outcome.output.find("cell_3.py\", line 1").unwrap();
    let second = outcome.output.find("cell_2.py\", line 2").unwrap();
    let third = outcome.output.find("cell_1.py\", line 2").unwrap();
    assert!(first < second && second < third);
    assert!(outcome.output.contains("    return {}[x]  # in the first cell\n"));
}

fn chained_exceptions_are_shown_whole(rig: &Rig) {
    let session = rig.session();
    let outcome =
        session.cell("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('no') from error");
    raised(&outcome);
    assert!(
        outcome
            .output
            .contains("ZeroDivisionError: division by zero\n\nThe above exception was the direct cause")
    );
    assert_eq!(outcome.error.as_deref(), Some("ValueError: no"));
    let outcome = session.cell("a = ValueError('a'); b = ValueError('b'); a.__cause__ = b; b.__cause__ = a\nraise a");
    raised(&outcome);
    assert_eq!(outcome.error.as_deref(), Some("ValueError: a"));
}

fn groups_of_exceptions_show_no_frame_of_ours(rig: &Rig) {
    if rig.python_minor() < 11 {
        return;
    }
    let source = "from hermes_tools import _call\nimport asyncio
async def fail(n):
    raise OSError(n)
async with asyncio.TaskGroup() as group:
    for n in range(2):
        group.create_task(fail(n))";
    let outcome = rig.session().cell(source);
    assert_eq!(outcome.exit_code, Some(1), "{outcome:#?}");
    assert!(!outcome.output.contains("talaria kernel"), "{outcome:#?}");
    assert!(outcome.output.contains("OSError: 1"), "{outcome:#?}");
    assert!(
        outcome.error.unwrap().starts_with("ExceptionGroup: "),
        "{}",
        outcome.output
    );
}

fn exceptions_that_cannot_be_shown_are_errors_all_the_same(rig: &Rig) {
    let session = rig.session();
    session.ok("class Mute(Exception):\n    def __str__(self): raise RuntimeError('never')\n    __repr__ = __str__");
    let outcome = session.cell("raise Mute()");
    raised(&outcome);
    assert!(outcome.error.as_deref().unwrap().contains("Mute"), "{outcome:#?}");
    let outcome = session.cell("class Odd(BaseException): pass\nraise Odd('\\ud800 \\x1b[31mred')");
    raised(&outcome);
    assert!(outcome.error.as_deref().unwrap().contains("Odd: "), "{outcome:#?}");
    assert!(!outcome.error.as_deref().unwrap().contains('\u{1b}'), "{outcome:#?}");
    let outcome = session.cell("import traceback\ntraceback.format_exception = None\n1 / 0");
    raised(&outcome);
    assert!(
        outcome.error.as_deref().unwrap().starts_with("ZeroDivisionError"),
        "{outcome:#?}"
    );
    let outcome = session.cell("raise SystemExit(Mute())");
    assert_eq!(outcome.exit_code, Some(1), "{outcome:#?}");
    assert_eq!(session.ok("print(1)"), "1\n");
}

fn an_exception_in_a_thread_is_shown(rig: &Rig) {
    let source =
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start(); thread.join()\nprint('on')";
    let outcome = rig.session().cell(source);
    assert_eq!((outcome.status, outcome.output.as_str()), (Status::Success, "on\n"));
    let stderr = outcome.stderr.unwrap();
    assert!(stderr.contains("ZeroDivisionError: division by zero"), "{stderr}");
    assert!(stderr.contains("cell_1.py\", line 2"), "{stderr}");
    assert!(
        !stderr.contains("talaria kernel") && !stderr.contains("hermes_tools"),
        "{stderr}"
    );
}

fn keyboard_interrupt_is_an_ordinary_error(rig: &Rig) {
    let session = rig.session();
    for source in [
        "x = 1\nraise KeyboardInterrupt",
        "import os, signal\nx = 1\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(5)",
        "raise GeneratorExit",
    ] {
        let outcome = session.cell(source);
        raised(&outcome);
        assert!(
            ["KeyboardInterrupt", "GeneratorExit"].contains(&outcome.error.as_deref().unwrap()),
            "{outcome:#?}"
        );
    }
    assert_eq!(session.ok("print(x)"), "1\n");
}

fn deep_recursion_is_an_ordinary_error(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("def down(n):\n    return down(n + 1)\ndown(0)");
    raised(&outcome);
    assert!(
        outcome
            .error
            .as_deref()
            .unwrap()
            .starts_with("RecursionError: maximum recursion depth"),
        "{outcome:#?}"
    );
    assert!(outcome.output.contains("more times]"), "{outcome:#?}");
    assert_eq!(session.ok("print(1)"), "1\n");
}

fn the_error_is_the_last_line_of_the_exception(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools);
    for (source, error) in [
        ("raise ValueError", "ValueError"),
        ("raise ValueError('')", "ValueError"),
        ("raise ValueError('one\\ntwo')", "ValueError: one"),
        (
            "import json\njson.loads('{')",
            "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes",
        ),
        ("class Own(Exception): pass\nraise Own('x')", "__main__.Own: x"),
        ("assert False, 'must hold'", "AssertionError: must hold"),
        (
            "import no_such_module_at_all",
            "ModuleNotFoundError: No module named 'no_such_module_at_all'",
        ),
    ] {
        let outcome = session.cell(source);
        raised(&outcome);
        let said = outcome.error.unwrap();
        assert!(
            said.starts_with(error) || format!("__main__.{said}").starts_with(error),
            "{source}: {said}"
        );
    }
}

fn tracebacks_survive_the_staging_folder(rig: &Rig) {
    let session = rig.session();
    session.ok("import shutil, hermes_tools, os\nfolder = os.path.dirname(os.path.dirname(hermes_tools.__file__))\ndef f():\n    return 1 / 0  # shown");
    session.ok("shutil.rmtree(folder)");
    let outcome = session.cell("f()");
    raised(&outcome);
    assert!(outcome.output.contains("    return 1 / 0  # shown\n"), "{outcome:#?}");
    assert_eq!(session.ok("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'from hermes_tools import json_parse; print(json_parse(\"5\"))'])"), "5\n");
    assert_eq!(
        session.ok("from hermes_tools import terminal\nprint(terminal('echo hi')['output'])"),
        "hi\n\n"
    );
}
