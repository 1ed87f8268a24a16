//! Cells that break the interpreter around them: the next one works, or starts fresh and says so.

use talaria_broker::outcome::Status;

use crate::rig::{Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    descriptors_that_are_closed,
    descriptors_that_are_used_up,
    an_exit_whose_code_raises,
    a_dump_that_is_still_to_come,
    modules_that_are_emptied,
    variables_that_are_cleared,
    builtins_that_are_replaced,
    functions_that_are_patched,
    import_machinery_that_is_broken,
    names_that_are_overwritten,
    limits_that_are_lowered,
    a_crash_in_c_is_named_and_costs_the_state,
    recursion_in_c_ends_the_cell_at_most,
    exit_handlers_run_when_the_session_ends,
];

/// A session with test tools that has kept a variable.
fn session(rig: &Rig) -> TestSession {
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools.clone());
    session.ok("kept = 'state'\nfrom hermes_tools import echo");
    session
}

/// Runs a cell that breaks something, then sees that the next one works: with its state, or fresh
/// and with a word about it.
fn survives(rig: &Rig, code: &str) {
    let session = session(rig);
    let outcome = session.cell(code);
    let said = outcome.kernel.as_ref().unwrap().state_lost;
    if said {
        assert_eq!(outcome.status, Status::Error, "{code}: {outcome:#?}");
    }
    let next =
        session.cell("import sys, os\nfrom hermes_tools import echo\nprint(echo(5)['value'], 'kept' in globals())");
    assert_eq!(next.status, Status::Success, "after {code}: {next:#?}\n{outcome:#?}");
    let fresh = !next.kernel.as_ref().unwrap().reused;
    assert_eq!(
        next.output,
        format!("5 {}\n", if fresh { "False" } else { "True" }),
        "{code}"
    );
    assert_eq!(fresh, next.notice.is_some(), "after {code}: {next:#?}");
    let failing = session.cell("1 / 0");
    assert!(
        failing.output.ends_with("ZeroDivisionError: division by zero\n"),
        "after {code}: {failing:#?}"
    );
}

/// The same, and the state must be there.
fn keeps_state(rig: &Rig, code: &str) {
    survives(rig, code);
    let session = session(rig);
    let outcome = session.cell(code);
    assert!(!outcome.kernel.unwrap().state_lost, "{code}");
    let next = session.cell("print(kept, echo(1)['value'])");
    assert_eq!(next.output, "state 1\n", "after {code}: {next:#?}");
}

fn descriptors_that_are_closed(rig: &Rig) {
    keeps_state(rig, "import os\nos.closerange(3, 256)");
    survives(rig, "import os\nos.closerange(3, 65536)");
    survives(rig, "import os\nos.closerange(0, 65536)");
}

fn descriptors_that_are_used_up(rig: &Rig) {
    let code = "import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True: held.append(open('/dev/null'))
except OSError: pass";
    survives(rig, code);
}

fn an_exit_whose_code_raises(rig: &Rig) {
    let session = session(rig);
    let code = "class Odd(SystemExit):
    @property
    def code(self): raise ValueError('no code')
raise Odd";
    let outcome = session.cell(code);
    assert!(!outcome.kernel.as_ref().unwrap().state_lost, "{outcome:#?}");
    assert_eq!(outcome.exit_code, Some(1), "{outcome:#?}");
}

fn a_dump_that_is_still_to_come(rig: &Rig) {
    let session = session(rig);
    session.ok("import faulthandler\nfaulthandler.dump_traceback_later(0.4, exit=True)");
    assert_eq!(session.ok("import time\ntime.sleep(0.8)\nprint(kept)"), "state\n");
}

fn modules_that_are_emptied(rig: &Rig) {
    keeps_state(rig, "import sys\nsys.modules.clear()");
    keeps_state(
        rig,
        "import sys\nfor name in ('os', 'io', 'json', 'threading', 'socket', 'hermes_tools', '__main__', 'traceback', 'linecache'):\n    sys.modules.pop(name, None)",
    );
    keeps_state(
        rig,
        "import sys\nfor name in ('json', 'threading', 'hermes_tools', 'traceback', 'linecache', 'asyncio'):\n    sys.modules[name] = None",
    );
}

fn variables_that_are_cleared(rig: &Rig) {
    keeps_state(rig, "import os\nos.environ.clear()");
    keeps_state(rig, "import os\nfor name in list(os.environ): os.unsetenv(name)");
    let session = session(rig);
    session.ok("import os\nos.environ.clear()");
    // Children that a later cell starts can still call tools.
    let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'from hermes_tools import echo; print(echo(7))'])";
    assert_eq!(session.ok(code), "{'value': 7}\n");
}

fn builtins_that_are_replaced(rig: &Rig) {
    for name in [
        "len",
        "isinstance",
        "dict",
        "zip",
        "open",
        "getattr",
        "Exception",
        "BaseException",
        "OSError",
    ] {
        survives(rig, &format!("import builtins\nbuiltins.{name} = None"));
    }
    let session = session(rig);
    session.ok("import builtins\nbuiltins.len = None\ndel builtins.print");
    assert_eq!(session.ok("print(kept, echo(2)['value'], len([1]))"), "state 2 1\n");
    // What can be called is no damage: it is state.
    session.ok("builtins.ascii = lambda x: 'mine'");
    assert_eq!(session.ok("print(ascii(1))"), "mine\n");
}

fn functions_that_are_patched(rig: &Rig) {
    for code in [
        "import time\ntime.sleep = time.monotonic = time.time = None",
        "import os\nos.getpid = os.open = os.makedirs = os.path.exists = os.getcwd = os.rename = os.write = None",
        "import os\ndef no(*a, **k): raise OSError('patched')\nos.stat = os.open = os.getcwd = os.chdir = no",
        "import json\njson.dumps = json.loads = None\njson = None",
        "import threading\nthreading.Lock = threading.Thread = threading.current_thread = None",
        "import socket\nsocket.socket = None",
        "import signal\nsignal.signal = None",
        "import sys\nsys.exit = sys.exc_info = sys.settrace = sys.setprofile = None",
        "import io\nio.open = io.TextIOWrapper = None",
        "import os\nos.dup2 = os.close = os.fsdecode = os.fsencode = os._exit = None",
    ] {
        survives(rig, code);
    }
}

fn import_machinery_that_is_broken(rig: &Rig) {
    for code in [
        "import sys\nsys.path.clear()",
        "import sys\nsys.meta_path.clear()",
        "import sys\nsys.path_hooks.clear(); sys.path_importer_cache.clear()",
        "import sys\nsys.path[:] = ['/nowhere']",
        "import sys\nsys.path = None",
        "import sys\nsys.meta_path = None",
        "import builtins\nbuiltins.__import__ = None",
    ] {
        survives(rig, code);
    }
}

fn names_that_are_overwritten(rig: &Rig) {
    keeps_state(
        rig,
        "json = os = sys = print = None\nopen = len = 5\ndel print, len, open",
    );
    let session = session(rig);
    session.ok("globals().clear()");
    assert_eq!(session.ok("print(__name__, 'kept' in globals())"), "__main__ False\n");
    keeps_state(rig, "__builtins__ = {}\ndel __builtins__");
    keeps_state(rig, "__name__ = 'other'\n__file__ = None\ndel __doc__");
    keeps_state(
        rig,
        "import hermes_tools\nhermes_tools.echo = hermes_tools._call = None\ndel hermes_tools",
    );
}

fn limits_that_are_lowered(rig: &Rig) {
    survives(
        rig,
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))",
    );
    survives(rig, "import sys\nsys.setrecursionlimit(150)");
    survives(rig, "import gc, sys\ngc.disable()\nsys.setswitchinterval(10)");
    // Elsewhere calls go through files.
    if rig.target.is_here() {
        survives(
            rig,
            "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        );
    }
}

fn a_crash_in_c_is_named_and_costs_the_state(rig: &Rig) {
    let session = session(rig);
    let outcome = session.cell("print('before')\nimport ctypes\nctypes.string_at(0)");
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Error, Some(139)),
        "{outcome:#?}"
    );
    assert!(outcome.output.starts_with("before\n"), "{outcome:#?}");
    let error = outcome.error.unwrap();
    assert!(error.contains("SIGSEGV") && error.contains("lost"), "{error}");
    assert!(outcome.kernel.unwrap().state_lost);
    let next = session.cell("print('kept' in globals())");
    assert_eq!(next.output, "False\n");
    assert!(next.notice.unwrap().contains("SIGSEGV"));
    let kernel = next.kernel.unwrap();
    assert!(!kernel.reused && !kernel.state_lost);
}

fn recursion_in_c_ends_the_cell_at_most(rig: &Rig) {
    for code in [
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr([self])\nrepr(A())",
        "x = []\nfor _ in range(200000): x = [x]\nimport pickle\npickle.dumps(x)",
        "x = ()\nfor _ in range(500000): x = (x,)\nhash(x)",
    ] {
        let session = session(rig);
        let outcome = session.cell(code);
        assert_eq!(outcome.status, Status::Error, "{code}: {outcome:#?}");
        let error = outcome.error.as_deref().unwrap();
        if outcome.kernel.unwrap().state_lost {
            assert!(error.contains("SIG"), "{code}: {error}");
        } else {
            assert!(
                error.contains("RecursionError") || error.contains("MemoryError"),
                "{code}: {error}"
            );
        }
        assert_eq!(session.ok("print(1)"), "1\n");
    }
}

fn exit_handlers_run_when_the_session_ends(rig: &Rig) {
    let session = session(rig);
    session.ok("import atexit, os\natexit.register(lambda: open('left.txt', 'w').write('bye'))");
    session.close();
    assert_eq!(std::fs::read_to_string(rig.work().join("left.txt")).unwrap(), "bye");
}
