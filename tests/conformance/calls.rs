//! Calls from wherever a script works: threads, pools, event loops, child processes; and which of them
//! have authority.

use std::sync::atomic::Ordering;

use serde_json::json;
use talaria_broker::session::Cell;
use talaria_broker::socket_rpc::Transport;

use crate::observe::{wait_until, with_mark};
use crate::odd_tools::OddTools;
use crate::rig::{HANG, Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    calls_run_side_by_side,
    forked_children_call_too,
    subprocesses_call_too,
    pools_of_processes_call_too,
    event_loops_call_too,
    pools_work_for_the_cell_that_hands_out,
    threads_of_an_earlier_cell_have_no_authority,
    children_of_an_earlier_cell_have_no_authority,
    calls_end_with_their_cell,
    calls_end_with_their_caller,
    a_call_that_is_interrupted_spoils_no_other,
    calls_work_whatever_the_script_broke,
    calls_work_beside_modules_that_shadow,
    calls_work_without_a_kernel,
];

/// What holds over each of two kinds of sockets here; elsewhere it is a case of the contract.
pub(crate) const CASES_HERE: &[Case] = cases![many_threads_never_mix_up_answers];

/// The ways of calls: two here, and one everywhere else.
pub(crate) fn transports(rig: &Rig) -> &'static [Transport] {
    if rig.target.is_here() {
        &[Transport::Unix, Transport::Tcp]
    } else {
        &[Transport::Unix]
    }
}

fn session_over(rig: &Rig, transport: Transport, tools: std::sync::Arc<TestTools>) -> TestSession {
    rig.session_with(|options| {
        options.host = tools;
        options.rpc = transport;
        options.limits.max_tool_calls = 1000;
    })
}

fn many_threads_never_mix_up_answers(rig: &Rig) {
    for &transport in transports(rig) {
        let session = session_over(rig, transport, TestTools::new());
        let code = "
import threading
from hermes_tools import echo
wrong = []
def work(thread):
    for number in range(25):
        value = [thread, number, 'x' * (thread * 1000 + number)]
        if echo(value) != {'value': value}: wrong.append(value)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
";
        let outcome = session.cell(code);
        assert_eq!(
            (outcome.output.as_str(), outcome.tool_calls_made),
            ("[]\n", 200),
            "{transport:?} {outcome:#?}"
        );
    }
}

fn calls_run_side_by_side(rig: &Rig) {
    for &transport in transports(rig) {
        let tools = OddTools::meeting(100);
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
            options.limits.max_tool_calls = 100;
        });
        // No call is answered before all have come.
        let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import meet\n\
                    with ThreadPoolExecutor(100) as pool: print([r['value'] for r in pool.map(meet, range(100))] == list(range(100)))";
        assert_eq!(session.ok(code), "True\n", "{transport:?}");
    }
}

fn forked_children_call_too(rig: &Rig) {
    for &transport in transports(rig) {
        let session = session_over(rig, transport, TestTools::new());
        let code = "
import os, sys
from hermes_tools import echo
echo('the parent has a connection')
children = []
for child in range(8):
    pid = os.fork()
    if pid == 0:
        good = all(echo([child, n]) == {'value': [child, n]} for n in range(10))
        os._exit(0 if good else 1)
    children.append(pid)
    echo(child)
print([os.waitpid(pid, 0)[1] for pid in children])
print(echo('parent'))
";
        assert_eq!(
            session.ok(code),
            "[0, 0, 0, 0, 0, 0, 0, 0]\n{'value': 'parent'}\n",
            "{transport:?}"
        );
    }
}

fn subprocesses_call_too(rig: &Rig) {
    for &transport in transports(rig) {
        let session = session_over(rig, transport, TestTools::new());
        let child = "from hermes_tools import echo\nprint(echo('from a child')['value'])";
        let code = format!(
            "import subprocess, sys\nfor _ in range(2): print(subprocess.check_output([sys.executable, '-c', {}], cwd='/').decode(), end='')",
            json!(child)
        );
        assert_eq!(session.ok(&code), "from a child\nfrom a child\n", "{transport:?}");
    }
}

fn pools_of_processes_call_too(rig: &Rig) {
    rig.file(
        "pooled.py",
        "import os\nfrom hermes_tools import echo\ndef work(n):\n    return echo(n)['value']\ndef pid(_):\n    return os.getpid()\n",
    );
    let session = session_over(rig, Transport::Unix, TestTools::new());
    for method in ["fork", "spawn", "forkserver"] {
        // As in any script: where the children import the main file again, it needs the guard.
        let make = format!(
            "import multiprocessing, concurrent.futures, pooled\n\
             if __name__ == '__main__':\n    \
                 context = multiprocessing.get_context({method:?})\n    \
                 pool = context.Pool(2)\n    \
                 executor = concurrent.futures.ProcessPoolExecutor(2, mp_context=context)\n    \
                 print(pool.map(pooled.work, range(6)), list(executor.map(pooled.work, range(6))), pool.apply(pooled.work, (7,)))\n    \
                 print(pool.apply_async(pooled.work, (8,)).get(), list(pool.imap(pooled.work, [9])), pool.starmap(pooled.work, [(1,)]))"
        );
        let mut cell = Cell::new(make);
        cell.limits.timeout = Some(std::time::Duration::from_secs(30));
        let outcome = session.run(cell);
        assert_eq!(
            outcome.output,
            "[0, 1, 2, 3, 4, 5] [0, 1, 2, 3, 4, 5] 7\n8 [9] [1]\n",
            "{method} {}",
            outcome.output.len()
        );
        // Given work by a later cell, they act for that.
        let later = "print(pool.map(pooled.work, range(3)), executor.submit(pooled.work, 4).result(), pool.apply(pooled.work, (5,)))";
        assert_eq!(session.ok(later), "[0, 1, 2] 4 5\n", "{method}");
        session.ok("pool.terminate(); executor.shutdown()");
    }
    let own = "
import multiprocessing
from hermes_tools import echo
def own(n): return echo(n)['value'] + 1
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(own, range(3)))
def target(queue): queue.put(echo('process')['value'])
context = multiprocessing.get_context('fork')
queue = context.Queue()
process = context.Process(target=target, args=(queue,)); process.start()
print(queue.get()); process.join(); print(process.exitcode)
";
    assert_eq!(session.ok(own), "[1, 2, 3]\nprocess\n0\n");
}

fn event_loops_call_too(rig: &Rig) {
    let session = session_over(rig, Transport::Unix, TestTools::new());
    let code = "
import asyncio
from hermes_tools import echo, slow
async def one(n):
    loop = asyncio.get_running_loop()
    return (await loop.run_in_executor(None, echo, n))['value']
print(await asyncio.gather(*(one(n) for n in range(5))))
print(echo('direct'))
";
    assert_eq!(session.ok(code), "[0, 1, 2, 3, 4]\n{'value': 'direct'}\n");
    assert_eq!(
        session.ok("print(asyncio.new_event_loop().run_until_complete(one(7)), asyncio.run(one(8)))"),
        "7 8\n"
    );
    if rig.python_minor() >= 9 {
        assert_eq!(session.ok("print(await asyncio.to_thread(echo, 9))"), "{'value': 9}\n");
    }
}

fn pools_work_for_the_cell_that_hands_out(rig: &Rig) {
    let (first, second) = (TestTools::new(), TestTools::new());
    let session = session_over(rig, Transport::Unix, first.clone());
    let made = "
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import count
pool = ThreadPoolExecutor(2)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def counted(): return count()
list(pool.map(lambda _: count(), range(4)))
";
    session.ok(made);
    let mut cell = Cell::new(
        "print(pool.submit(count).result(), list(pool.map(lambda _: count(), range(1))), asyncio.run_coroutine_threadsafe(counted(), loop).result())",
    );
    cell.host = Some(second.clone());
    let outcome = session.run(cell);
    assert_eq!(
        outcome.output, "{'count': 1} [{'count': 2}] {'count': 3}\n",
        "{outcome:#?}"
    );
    assert_eq!((first.calls("count").len(), second.calls("count").len()), (4, 3));
    // The cell that was handed out in ends; what it left in the pool may call no more.
    session.ok("import time\nlate = pool.submit(lambda: (time.sleep(0.5), count())[1])");
    assert_eq!(
        session.ok("print('error' in late.result(), count())"),
        "True {'count': 5}\n"
    );
    session.ok("loop.call_soon_threadsafe(loop.stop)");
}

fn threads_of_an_earlier_cell_have_no_authority(rig: &Rig) {
    let tools = TestTools::new();
    let session = session_over(rig, Transport::Unix, tools.clone());
    let code = "
import asyncio, threading, time
from hermes_tools import echo
answers = []
stop = threading.Event()
def work():
    while not stop.is_set():
        answers.append(echo('late')); time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
loop = asyncio.new_event_loop()
async def forever():
    while not stop.is_set():
        answers.append(echo('late')); await asyncio.sleep(0.02)
threading.Thread(target=loop.run_until_complete, args=(forever(),), daemon=True).start()
while len(answers) < 4: time.sleep(0.01)
";
    session.ok(code);
    let made = tools.calls("echo").len();
    // Between cells: an error at once, nothing runs.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(tools.calls("echo").len(), made);
    let code = "
since = len(answers)
print(echo('mine'))
while len(answers) < since + 10: time.sleep(0.01)
print(all('error' in answer for answer in answers[since:]), since > 5, answers[-1]['error'])
stop.set()
";
    let outcome = session.cell(code);
    assert!(
        outcome
            .output
            .starts_with("{'value': 'mine'}\nTrue True cell 1 has ended"),
        "{outcome:#?}"
    );
    assert_eq!(outcome.tool_calls_made, 1);
    assert_eq!(tools.calls("echo").len(), made + 1);
}

fn children_of_an_earlier_cell_have_no_authority(rig: &Rig) {
    let tools = TestTools::new();
    let session = session_over(rig, Transport::Unix, tools.clone());
    let child = "
import sys, time
from hermes_tools import echo
print(echo('first'), flush=True)
while not sys.stdin.readline(): pass
print(list(echo('second')), flush=True)
";
    let code = format!(
        "import subprocess, sys\n\
         child = subprocess.Popen([sys.executable, '-c', {}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)\n\
         print(child.stdout.readline(), end='')\n\
         import os\nfrom hermes_tools import echo\n\
         gate, opened = os.pipe(); back, answer = os.pipe()\n\
         forked = os.fork()\n\
         if forked == 0:\n    os.read(gate, 1); os.write(answer, str(list(echo('forked'))).encode()); os._exit(0)",
        json!(child)
    );
    assert_eq!(session.ok(&code), "{'value': 'first'}\n");
    let code = "child.stdin.write('go\\n'); child.stdin.flush(); print(child.stdout.readline(), end=''); child.wait()\n\
                os.write(opened, b'x'); print(os.read(back, 100).decode()); os.waitpid(forked, 0)\nprint(echo('mine'))";
    assert_eq!(session.ok(code), "['error']\n['error']\n{'value': 'mine'}\n");
    assert_eq!(tools.calls("echo").len(), 2);
}

fn calls_end_with_their_cell(rig: &Rig) {
    for &transport in transports(rig) {
        let tools = OddTools::meeting(1);
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
        });
        let code = "
import threading, time
from hermes_tools import hangs, plain
answers = []
threads = [threading.Thread(target=lambda: answers.append(hangs()), daemon=True) for _ in range(3)]
for thread in threads: thread.start()
";
        session.ok(code);
        // Those that had begun are given up; those that had not are refused.
        let waited = session
            .ok("for thread in threads: thread.join()\nprint([list(answer) for answer in answers], plain('on'))");
        assert_eq!(waited, "[['error'], ['error'], ['error']] on\n", "{transport:?}");
        let begun = tools.begun.load(Ordering::SeqCst) - 1;
        assert!(wait_until(HANG, || tools.dropped.load(Ordering::SeqCst) == begun));
    }
    let session = rig.session();
    let code = "
import threading, time
from hermes_tools import terminal
threading.Thread(target=terminal, args=('touch begun; exec sleep 320',), daemon=True).start()
import os
while not os.path.exists('begun'): time.sleep(0.01)
";
    session.ok(code);
    let mark = rig.scratch().to_str().unwrap();
    assert!(
        wait_until(HANG, || with_mark(mark)
            .iter()
            .all(|seen| seen.command.trim() != "sleep 320")),
        "the command of a cell that ended goes on"
    );
}

fn calls_end_with_their_caller(rig: &Rig) {
    for &transport in transports(rig) {
        let tools = OddTools::meeting(1);
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
        });
        let code = format!(
            "import subprocess, sys, time\n\
             from hermes_tools import plain\n\
             child = subprocess.Popen([sys.executable, '-c', {}], stdout=subprocess.PIPE)\n\
             child.stdout.readline()\n",
            json!("print('up', flush=True)\nfrom hermes_tools import hangs\nhangs()")
        );
        let running = session.start(Cell::new(format!("{code}child.wait()\nprint(plain('on'))")));
        assert!(wait_until(HANG, || tools.begun.load(Ordering::SeqCst) == 1));
        let mark = rig.scratch().to_str().unwrap();
        let children = || {
            with_mark(mark)
                .into_iter()
                .filter(|seen| seen.command.contains("hangs()"))
        };
        assert!(wait_until(HANG, || children().count() == 1));
        // Given up only by its end.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(tools.dropped.load(Ordering::SeqCst), 0, "{transport:?}");
        crate::observe::kill(&children().collect::<Vec<_>>());
        assert!(
            wait_until(HANG, || tools.dropped.load(Ordering::SeqCst) == 1),
            "{transport:?}"
        );
        assert_eq!(running.wait().output, "on\n");
    }
}

fn a_call_that_is_interrupted_spoils_no_other(rig: &Rig) {
    let tools = TestTools::new();
    let session = session_over(rig, Transport::Unix, tools.clone());
    let code = "
import signal
from hermes_tools import echo, slow
class Late(Exception): pass
def ring(*_): raise Late
signal.signal(signal.SIGALRM, ring)
for number in range(5):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try: slow(30, 'late')
    except Late: print(echo(number)['value'], end=' ')
def harmless(*_): echo('from the handler')
signal.signal(signal.SIGALRM, harmless)
signal.setitimer(signal.ITIMER_REAL, 0.05)
print(slow(0.5, 'whole')['value'])
";
    assert_eq!(session.ok(code), "0 1 2 3 4 whole\n");
    assert_eq!(tools.calls("echo").len(), 6);
}

fn calls_work_whatever_the_script_broke(rig: &Rig) {
    let session = session_over(rig, Transport::Unix, TestTools::new());
    let code = "
import os, sys, subprocess
from hermes_tools import echo
def check(what):
    if echo(what) != {'value': what}: print('broken by', what)
check('nothing')
os.closerange(3, 256); check('closerange')
files = [open('f%d' % n, 'w+') for n in range(20)]; check('descriptors that were ours')
print([file.read() for file in files] == [''] * 20, sum(os.path.getsize(file.name) for file in files))
os.close(0); check('no stdin')
import socket; socket.setdefaulttimeout(0.001); check('default timeout')
import json; json.dumps = json.loads = json.JSONEncoder = None; check('json')
socket.socket = None; check('socket')
import struct, threading; threading.Thread.start = None; check('threading')
import builtins; real = builtins.len; builtins.len = None
try: check('len')
except TypeError: pass
builtins.len = real; check('len back')
sys.setrecursionlimit(60); check('recursion limit'); sys.setrecursionlimit(1000)
modules = dict(sys.modules); sys.modules.clear(); check('sys.modules'); sys.modules.update(modules)
path = list(sys.path); sys.path.clear(); check('sys.path'); sys.path[:] = path
os.chdir('/'); check('chdir')
environment = dict(os.environ); os.environ.clear(); check('os.environ'); os.environ.update(environment)
print(subprocess.check_output([sys.executable, '-c', 'from hermes_tools import echo; print(echo(1))']).decode(), end='')
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); check('few descriptors')
print('done')
";
    assert_eq!(session.ok(code), "True 0\n{'value': 1}\ndone\n");
    assert_eq!(
        session.ok("from hermes_tools import echo\nprint(echo(2))"),
        "{'value': 2}\n"
    );
    session.ok("import hermes_tools\nhermes_tools.echo = hermes_tools.slow = None\nprint(1)");
    assert_eq!(
        session.ok("from hermes_tools import echo\nprint(echo(3))"),
        "{'value': 3}\n"
    );
}

fn calls_work_beside_modules_that_shadow(rig: &Rig) {
    for name in [
        "json",
        "socket",
        "_socket",
        "struct",
        "threading",
        "types",
        "contextvars",
        "select",
        "typing",
        "time",
        "signal",
        "opcode",
    ] {
        rig.file(
            &format!("{name}.py"),
            "raise RuntimeError('the shadow of ' + __name__)\n",
        );
    }
    rig.file("enum/__init__.py", "raise RuntimeError('the shadow of ' + __name__)\n");
    let session = session_over(rig, Transport::Unix, TestTools::new());
    let code = "
import os, sys
from hermes_tools import echo, shell_quote, json_parse
print(echo(1), json_parse('[1]'))
try: import json
except RuntimeError as error: print(error)
print(echo(2))
pid = os.fork()
if pid == 0: os._exit(0 if echo(3) == {'value': 3} else 1)
print(os.waitpid(pid, 0)[1])
status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-S', '-c', 'from hermes_tools import echo; print(echo(4))'])
try: from hermes_tools import nothing
except ImportError as error: print(error)
";
    assert_eq!(
        session.ok(code),
        "{'value': 1} [1]\nthe shadow of json\n{'value': 2}\n0\n{'value': 4}\nnothing is not available in scripts; available: echo, slow, count, fail\n"
    );
}

fn calls_work_without_a_kernel(rig: &Rig) {
    for &transport in transports(rig) {
        let tools = TestTools::new();
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
            options.keep_kernel = false;
        });
        let code = "
import os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import echo
with ThreadPoolExecutor(4) as pool: print([r['value'] for r in pool.map(echo, range(8))])
print(subprocess.check_output([sys.executable, '-c', 'from hermes_tools import echo; print(echo(9))']).decode(), end='')
pid = os.fork()
if pid == 0: os._exit(0 if echo(3) == {'value': 3} else 1)
print(os.waitpid(pid, 0)[1])
";
        for _ in 0..2 {
            let outcome = session.cell(code);
            assert_eq!(
                outcome.output, "[0, 1, 2, 3, 4, 5, 6, 7]\n{'value': 9}\n0\n",
                "{outcome:#?}"
            );
            assert_eq!(outcome.tool_calls_made, 10);
        }
    }
}
