//! State that is kept, as in one interpreter, and what each cell finds clean.

use talaria_broker::outcome::Status;

use crate::rig::Rig;
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    state_is_kept,
    the_interpreter_is_the_one_named,
    modules_of_the_project_are_found,
    modules_that_shadow_the_standard_library_break_nothing,
    tools_answer_in_every_cell,
    replaced_streams_are_put_back,
    closed_streams_are_made_anew,
    signal_handlers_and_timers_are_put_back,
    a_folder_that_is_gone_is_left,
    threads_of_an_earlier_cell_harm_no_later_one,
    logging_goes_on_over_cells,
    warnings_are_shown,
    an_unfinished_loop_is_used_again,
    hooks_of_the_interpreter_are_put_back,
];

fn state_is_kept(rig: &Rig) {
    let session = rig.session();
    session.ok("import math\nx = 20\ndef f(n): return n + x");
    assert_eq!(session.ok("print(f(1), math.floor(2.5), __name__)"), "21 2 __main__\n");
    let outcome =
        session.cell("import __main__; print(__main__.x, 'pack' in dir(), [n for n in dir() if 'talaria' in n])");
    assert_eq!(outcome.output, "20 False []\n");
    let kernel = outcome.kernel.unwrap();
    assert!(kernel.reused && !kernel.state_lost);
    assert_eq!(kernel.execution_count, 3);
}

fn the_interpreter_is_the_one_named(rig: &Rig) {
    let outcome = rig.session().cell("import sys; print(sys.version_info[1])");
    assert_eq!(outcome.output, format!("{}\n", rig.python_minor()));
    let python = outcome.kernel.unwrap().python;
    assert!(python.contains(&format!(" (3.{}.", rig.python_minor())), "{python}");
}

fn modules_of_the_project_are_found(rig: &Rig) {
    rig.file("shop/__init__.py", "");
    rig.file("shop/cart.py", "TOTAL = 3");
    let printed = rig
        .session()
        .ok("from shop.cart import TOTAL; print(TOTAL, open('shop/cart.py').read())");
    assert_eq!(printed, "3 TOTAL = 3\n");
}

fn modules_that_shadow_the_standard_library_break_nothing(rig: &Rig) {
    // Whatever the kernel or the stub import themselves, and what a traceback or a tool call needs.
    let names = [
        "json",
        "signal",
        "types",
        "struct",
        "socket",
        "threading",
        "traceback",
        "linecache",
        "tokenize",
        "io",
        "asyncio",
        "contextvars",
        "random",
        "time",
        "fcntl",
        "marshal",
        "re",
        "ast",
        "atexit",
        "queue",
        "select",
        "selectors",
        "subprocess",
        "shlex",
        "warnings",
        "typing",
        "functools",
        "textwrap",
        "tempfile",
        "os",
        "codecs",
        "collections",
        "encodings",
        "abc",
        "enum",
        "inspect",
        "string",
        "token",
        "keyword",
        "site",
        "stat",
    ];
    for name in names {
        rig.file(
            &format!("{name}.py"),
            "raise RuntimeError('the module of the project ran')",
        );
    }
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools.clone());
    let printed =
        session.ok("from hermes_tools import echo, shell_quote, json_parse\nprint(echo([1]), shell_quote('a b'))");
    assert_eq!(printed, "{'value': [1]} 'a b'\n");
    let outcome = session.cell("def f():\n    return 1 / 0\nf()");
    assert!(outcome.output.contains("    return 1 / 0\n"), "{outcome:#?}");
    assert!(
        outcome.output.ends_with("ZeroDivisionError: division by zero\n"),
        "{outcome:#?}"
    );
    let outcome = session.cell("async def main():\n    return echo(2)['value']\nprint(await main())");
    // `asyncio` is the cell's own import, so it finds what a script would find here.
    assert!(
        outcome.output == "2\n" || outcome.output.contains("the module of the project ran"),
        "{outcome:#?}"
    );
}

fn tools_answer_in_every_cell(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools.clone());
    session.ok("from hermes_tools import echo, slow, count, fail");
    for number in 1..4 {
        let code = format!("print(echo({number})['value'], slow(0.01, 'x'), count(), 'error' in fail())");
        assert_eq!(
            session.ok(&code),
            format!("{number} {{'value': 'x'}} {{'count': {number}}} True\n")
        );
    }
    assert_eq!(tools.calls("echo").len(), 3);
}

fn replaced_streams_are_put_back(rig: &Rig) {
    let session = rig.session();
    let outcome =
        session.cell("import io, sys\nsys.stdout = io.StringIO()\nsys.stderr = None\nsys.stdin = 5\nprint('lost')");
    assert_eq!((outcome.status, outcome.output.as_str()), (Status::Success, ""));
    assert_eq!(session.ok("print('seen')\nprint('err', file=sys.stderr)"), "seen\n");
    // Something that a cell wraps around stdout is flushed at its end.
    assert_eq!(
        session.ok("sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)))\nprint('kept')"),
        "kept\n"
    );
    assert_eq!(
        session.ok("from contextlib import redirect_stdout\nwith redirect_stdout(io.StringIO()) as text:\n    print('in')\nprint(text.getvalue())"),
        "in\n\n"
    );
    session.ok(
        "class Bad:\n    def write(self, t): raise OSError('no')\n    flush = write\nsys.stdout = sys.stderr = Bad()",
    );
    assert_eq!(session.ok("print('again')"), "again\n");
}

fn closed_streams_are_made_anew(rig: &Rig) {
    let session = rig.session();
    for code in [
        "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import os\nos.close(1); os.close(2); os.close(0)",
        "import os\nos.closerange(0, 64)",
        "import os\nfd = os.open('/dev/null', os.O_RDWR)\nos.dup2(fd, 1); os.dup2(fd, 2)",
        "import sys\nsys.stdout.detach()\nsys.stderr.detach()",
        "import os\nos.set_blocking(1, False); os.set_blocking(2, False)",
        "import sys\nsys.stdout.reconfigure(encoding='latin-1', errors='strict', newline='\\r\\n')",
    ] {
        let outcome = session.cell(code);
        assert_eq!(outcome.status, Status::Success, "{code}: {outcome:#?}");
        let outcome =
            session.cell("import sys, os\nprint('\u{fc}\u{4e2d}')\nprint('e', file=sys.stderr)\nos.write(1, b'w\\n')");
        assert_eq!(
            (outcome.output.as_str(), outcome.stderr.as_deref()),
            ("\u{fc}\u{4e2d}\nw\n", Some("e\n")),
            "after {code}: {outcome:#?}"
        );
        assert!(outcome.kernel.unwrap().reused, "after {code}");
    }
}

fn signal_handlers_and_timers_are_put_back(rig: &Rig) {
    let session = rig.session();
    session.ok("import signal
signal.signal(signal.SIGTERM, lambda *_: print('handler'))
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
signal.setitimer(signal.ITIMER_REAL, 0.2)");
    let printed = session.ok("import time; time.sleep(0.4)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))");
    assert_eq!(printed, "True True\nTrue set()\n");
}

fn a_folder_that_is_gone_is_left(rig: &Rig) {
    let session = rig.session();
    session.ok("import os, tempfile, shutil\nd = tempfile.mkdtemp(dir='.')\nos.chdir(d)\nshutil.rmtree(os.getcwd())");
    let printed = session.ok("import os\nprint(os.getcwd())");
    assert_eq!(printed, format!("{}\n", rig.work().display()));
}

fn threads_of_an_earlier_cell_harm_no_later_one(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools.clone());
    session.ok("import threading, time
from hermes_tools import echo
answers = []
stop = threading.Event()
def work():
    while not stop.is_set():
        answers.append(echo('late'))
        time.sleep(0.05)
def answered():
    end = time.monotonic() + 60
    while not answers and time.monotonic() < end: time.sleep(0.05)
threading.Thread(target=work).start()
answered()");
    let made = tools.calls("echo").len();
    assert!(made > 0);
    let outcome = session.cell(
        "answers.clear(); answered(); time.sleep(0.2); print(len(answers) > 0, all('error' in a for a in answers))",
    );
    assert_eq!((outcome.output.as_str(), outcome.tool_calls_made), ("True True\n", 0));
    // One call may have been under way when the first cell ended.
    assert!(tools.calls("echo").len() <= made + 1);
    // Nor does a thread that is no daemon hold the end of the session.
}

fn logging_goes_on_over_cells(rig: &Rig) {
    let session = rig.session();
    let outcome = session
        .cell("import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\nlogging.info('one')");
    assert_eq!(outcome.stderr.as_deref(), Some("one\n"));
    session.ok("import sys\nsys.stderr.close()");
    let outcome = session.cell("logging.getLogger('x').info('two')");
    assert_eq!(outcome.status, Status::Success);
    let outcome = session
        .cell("logging.basicConfig(level=logging.INFO, format='%(message)s', force=True)\nlogging.info('three')");
    assert_eq!(outcome.stderr.as_deref(), Some("three\n"));
}

fn warnings_are_shown(rig: &Rig) {
    let session = rig.session();
    for _ in 0..2 {
        let outcome = session.cell("import warnings\n\nwarnings.warn('mind the gap')");
        let stderr = outcome.stderr.unwrap();
        assert!(stderr.contains(":3: UserWarning: mind the gap\n"), "{stderr}");
        assert!(stderr.contains("  warnings.warn('mind the gap')\n"), "{stderr}");
    }
}

fn an_unfinished_loop_is_used_again(rig: &Rig) {
    let session = rig.session();
    session.ok("import asyncio\nasync def later():\n    await asyncio.sleep(0.05)\n    return 'done'\ntask = asyncio.ensure_future(later())\nawait asyncio.sleep(0)");
    assert_eq!(session.ok("print(await task)"), "done\n");
    assert_eq!(session.ok("print(asyncio.run(later()))"), "done\n");
    assert_eq!(session.ok("print(await later())"), "done\n");
    assert_eq!(session.ok("async with asyncio.Lock():\n    print(1)"), "1\n");
}

fn hooks_of_the_interpreter_are_put_back(rig: &Rig) {
    let session = rig.session();
    session.ok("import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
sys.excepthook = lambda *a: print('hook')
sys.displayhook = None
sys.setrecursionlimit(500)");
    let outcome =
        session.cell("import sys; print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)\n1/0");
    assert!(
        outcome.output.starts_with("None None True\n--- stderr ---\nTraceback"),
        "{outcome:#?}"
    );
}
