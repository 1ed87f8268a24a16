//! Standalone scripts: when a kernel is not wanted, and when there cannot be one.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use talaria_broker::outcome::{KernelMode, Outcome, Status};

use crate::rig::{Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_notice_says_that_and_why,
    an_ordinary_user_needs_no_kernel_either,
    a_kernel_that_cannot_be_spawned_is_done_without,
    nothing_is_kept_but_files_and_the_working_directory,
    tools_and_their_budget_work,
    what_a_script_leaves_running_ends_with_it,
    await_and_exit_handlers_work,
    a_damaged_script_harms_no_later_one,
    nothing_of_a_script_stays_in_its_folder,
];

fn is_standalone(outcome: &Outcome) {
    assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
    let kernel = outcome.kernel.as_ref().unwrap();
    assert_eq!(
        (kernel.mode, kernel.reused, kernel.execution_count),
        (KernelMode::OneShot, false, 1)
    );
}

fn the_notice_says_that_and_why(rig: &Rig) {
    let session = rig.session();
    for _ in 0..2 {
        let outcome = session.cell("print(__name__)");
        is_standalone(&outcome);
        assert_eq!(outcome.output, "__main__\n");
        let notice = outcome.notice.unwrap();
        assert!(
            notice.contains("kernel: off") && notice.contains("standalone script"),
            "{notice}"
        );
    }
}

/// Where the session's folder lies in one of root's, as /tmp is.
fn an_ordinary_user_needs_no_kernel_either(rig: &Rig) {
    let arguments = ["run", "-c", "print(6 * 7)"];
    let cli = match rig.other_user() {
        Some(user) => user.cli(rig, arguments).through(user.prefix()),
        None => rig.cli(arguments),
    };
    let output = cli
        .env("TMPDIR", "/tmp")
        .env("TALARIA_CODE_EXECUTION_KERNEL", "off")
        .run();
    assert_eq!(output.stdout, "42\n", "{output:?}");
}

/// An interpreter in which kernels do not start.
fn python_without_kernels(rig: &Rig, instead: &str) -> PathBuf {
    let script = format!(
        "#!/bin/bash\ncase \"$*\" in *CHANNEL*) {instead};; esac\nexec -a \"$0\" {} \"$@\"\n",
        rig.python().display()
    );
    let path = rig.file("bin/python3", script);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn a_kernel_that_cannot_be_spawned_is_done_without(rig: &Rig) {
    for (instead, why) in [
        ("exit 3", "exited with 3"),
        ("kill -9 $$", "SIGKILL"),
        ("exit 0", "exited with 0"),
    ] {
        let path = python_without_kernels(rig, instead);
        let tools = TestTools::new();
        let session = rig.session_with(|options| {
            options.keep_kernel = true;
            options.python = Some(path);
            options.host = tools.clone();
        });
        for number in 1..3 {
            let outcome = session.cell("from hermes_tools import echo\nprint(echo(5), 'kept' in globals())\nkept = 1");
            is_standalone(&outcome);
            assert_eq!(outcome.output, "{'value': 5} False\n", "{outcome:#?}");
            assert_eq!(tools.calls("echo").len(), number);
            let notice = outcome.notice.unwrap();
            assert!(
                notice.contains("could not be started") && notice.contains(why),
                "{notice}"
            );
        }
        assert_eq!(session.cell("raise SystemExit(3)").exit_code, Some(3));
        assert_eq!(session.cell_for(1.0, "while True: pass").exit_code, Some(124));
        session.close();
    }
}

fn nothing_is_kept_but_files_and_the_working_directory(rig: &Rig) {
    rig.file("sub/x.txt", "");
    let session = rig.session();
    session.cell("import os\nx = 1\nos.environ['A'] = 'b'\nos.chdir('sub')\nopen('y.txt', 'w').close()");
    let outcome = session.cell("import os\nprint('x' in globals(), os.environ.get('A'), sorted(os.listdir('.')))");
    assert_eq!(outcome.output, "False None ['sub']\n");
    session.cell("from hermes_tools import terminal\nterminal('cd sub; export B=c')");
    let outcome = session.cell(
        "import os\nfrom hermes_tools import terminal\nprint(sorted(os.listdir('.')), terminal('echo $B')['output'])",
    );
    assert_eq!(outcome.output, "['x.txt', 'y.txt'] c\n\n");
}

fn tools_and_their_budget_work(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| {
        options.host = tools.clone();
        options.limits.max_tool_calls = 4;
    });
    let code = "import subprocess, sys, threading
from hermes_tools import echo
answers = []
threads = [threading.Thread(target=lambda i=i: answers.append(echo(i)['value'])) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(answers), flush=True)
subprocess.run([sys.executable, '-c', 'from hermes_tools import echo; print(echo(7))'])
print('error' in echo(8))";
    for _ in 0..2 {
        let outcome = session.cell(code);
        assert_eq!(outcome.output, "[0, 1, 2]\n{'value': 7}\nTrue\n", "{outcome:#?}");
        assert_eq!(outcome.tool_calls_made, 4);
    }
}

fn sleeper(session: &TestSession) -> i32 {
    let code = "import subprocess\nprint(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)";
    session.process(code)
}

fn what_a_script_leaves_running_ends_with_it(rig: &Rig) {
    let session = rig.session();
    let pid = sleeper(&session);
    assert!(crate::observe::wait_until(crate::rig::HANG, || {
        !crate::observe::is_alive(pid)
    }));
    // A thread that is no daemon does not hold it either: a cell ends when its main thread ends.
    let outcome =
        session.cell("import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\nprint('end')");
    is_standalone(&outcome);
    assert_eq!(outcome.output, "end\n");
}

fn await_and_exit_handlers_work(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("import asyncio\nawait asyncio.sleep(0)\nprint('awaited')");
    assert_eq!(outcome.output, "awaited\n", "{outcome:#?}");
    let outcome = session.cell("import atexit\natexit.register(print, 'at exit')\nprint('end')");
    assert_eq!(outcome.output, "end\nat exit\n", "{outcome:#?}");
}

fn a_damaged_script_harms_no_later_one(rig: &Rig) {
    let session = rig.session();
    for code in [
        "import os\nos.closerange(3, 65536)",
        "import sys\nsys.modules.clear()",
        "import builtins\nbuiltins.len = builtins.open = None",
        "import os\nos.environ.clear()\nos.rename = os.open = None",
        "import sys\nsys.stdout.close()\nsys.stderr.close()",
        "import shutil, hermes_tools, os\nshutil.rmtree(os.path.dirname(os.path.dirname(hermes_tools.__file__)))",
    ] {
        let outcome = session.cell(code);
        assert_eq!(outcome.status, Status::Success, "{code}: {outcome:#?}");
        let next = session.cell("from hermes_tools import terminal\nprint(terminal('echo hi')['output'])");
        assert_eq!(next.output, "hi\n\n", "{code}: {next:#?}");
    }
}

fn nothing_of_a_script_stays_in_its_folder(rig: &Rig) {
    let session = rig.session();
    session.cell("print(1)");
    session.cell("1/0");
    session.cell("import os; os._exit(1)");
    let code = "import os, hermes_tools\nfolder = os.path.dirname(os.path.dirname(hermes_tools.__file__))\nprint(sorted(name for name in os.listdir(folder) if name.startswith('once')))";
    let outcome = session.cell(code);
    assert!(outcome.output.matches("once").count() <= 2, "{outcome:#?}");
    assert!(!outcome.output.contains("once-1."), "{outcome:#?}");
}
