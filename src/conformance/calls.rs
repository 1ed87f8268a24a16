//! How calls travel: side by side, from wherever a script works, whole, and with the authority of their cell.

use std::time::Duration;

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal, holds};
use super::seat::probing;
use crate::config::Transport;

pub(super) const CASES: &[Case] = &[
    case!(sixteen_calls_run_side_by_side),
    case!(many_threads_never_mix_up_answers),
    case!(many_calls_in_a_row),
    case!(forked_children_and_subprocesses_call_too),
    case!(event_loops_call_too),
    case!(any_text_passes_whole),
    case!(sizes_around_every_border_pass_whole),
    case!(large_calls_run_side_by_side),
    case!(deep_arguments_pass_or_are_named),
    case!(any_json_value_is_an_answer),
    case!(threads_of_an_earlier_cell_have_no_authority).with_kernel(),
    case!(pools_work_for_the_cell_that_hands_out).with_kernel(),
    case!(calls_end_with_their_cell).with_kernel(),
    case!(a_call_that_is_interrupted_spoils_no_other),
    case!(calls_work_whatever_the_script_broke),
    case!(a_call_without_the_token_is_refused),
    case!(a_directory_that_is_polled_does_the_same),
];

async fn sixteen_calls_run_side_by_side(bench: &Bench) -> Checked {
    // None is answered before all are there.
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import meet
with ThreadPoolExecutor(16) as pool: answers = list(pool.map(lambda n: meet(n, callers=16), range(16)))
print(answers if any('error' in a for a in answers) else [a['value'] for a in answers] == list(range(16)))";
    bench.prints_probing(code, "True\n").await
}

async fn many_threads_never_mix_up_answers(bench: &Bench) -> Checked {
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
    let mut cell = probing(code);
    cell.limits.max_tool_calls = Some(1000);
    let outcome = bench.run(cell).await?;
    equal(
        "output and calls",
        &(outcome.output.as_str(), outcome.tool_calls_made),
        &("[]\n", 200),
    )
}

async fn many_calls_in_a_row(bench: &Bench) -> Checked {
    let mut cell =
        probing("from hermes_tools import echo\nprint([echo(n)['value'] for n in range(120)] == list(range(120)))");
    cell.limits.max_tool_calls = Some(120);
    // A call costs two commands where the directory is polled, whatever those cost there.
    cell.limits.timeout = Some(Duration::from_secs(240));
    let outcome = bench.run(cell).await?;
    equal(
        "output and calls",
        &(outcome.output.as_str(), outcome.tool_calls_made),
        &("True\n", 120),
    )?;
    equal("calls that came home", &bench.host.calls("echo"), &120)
}

async fn forked_children_and_subprocesses_call_too(bench: &Bench) -> Checked {
    let code = "
import os, subprocess, sys
from hermes_tools import echo
echo('the parent has a connection')
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0: os._exit(0 if all(echo([child, n]) == {'value': [child, n]} for n in range(5)) else 1)
    children.append(pid)
    echo(child)
print([os.waitpid(pid, 0)[1] for pid in children])
child = 'from hermes_tools import echo; print(echo(\"from a child\")[\"value\"])'
for _ in range(2): print(subprocess.check_output([sys.executable, '-c', child], cwd='/').decode(), end='')
print(echo('parent'))
";
    let expected = "[0, 0, 0, 0]\nfrom a child\nfrom a child\n{'value': 'parent'}\n";
    bench.prints_probing(code, expected).await
}

async fn event_loops_call_too(bench: &Bench) -> Checked {
    let code = "
import asyncio
from hermes_tools import echo
async def one(n): return (await asyncio.get_running_loop().run_in_executor(None, echo, n))['value']
print(await asyncio.gather(*(one(n) for n in range(5))), echo('direct'))
";
    bench
        .prints_probing(code, "[0, 1, 2, 3, 4] {'value': 'direct'}\n")
        .await
}

async fn any_text_passes_whole(bench: &Bench) -> Checked {
    let code = r#"
from hermes_tools import echo
every = "".join(chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000)
texts = [every, '\\"/\b\f\n\r\t', "--- stderr ---", "EOF\n$(x) `y` ${z}", "\ufeff", "\r\n\r", "{\"a\": 1}", "]", "\x00" * 70000, "🦀" * 50000]
for text in texts:
    if echo(text)["value"] != text or echo({text[:1000]: [text]})["value"] != {text[:1000]: [text]}: print("differs", ascii(text[:20]))
print(len(texts))
"#;
    bench.prints_probing(code, "10\n").await
}

async fn sizes_around_every_border_pass_whole(bench: &Bench) -> Checked {
    let code = "
from hermes_tools import echo
sizes = [0, 1, 4093, 8191, 8192, 16380, 16384] + [n * 1024 + d for n in (64, 128) for d in (-1, 0, 1)] + [2**20 - 1, 2**20, 2**20 + 1, 5_000_000]
for size in sizes:
    text = ('0123456789abcdef' * (size // 16 + 1))[:size]
    if echo(text) != {'value': text}: print('differs', size)
print(len(sizes))
";
    bench.prints_probing(code, "17\n").await
}

async fn large_calls_run_side_by_side(bench: &Bench) -> Checked {
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import meet
texts = [c * 2_000_000 for c in 'abc']
with ThreadPoolExecutor(3) as pool: print([r['value'] for r in pool.map(lambda text: meet(text, callers=3), texts)] == texts)";
    bench.prints_probing(code, "True\n").await
}

async fn deep_arguments_pass_or_are_named(bench: &Bench) -> Checked {
    let code = "
from hermes_tools import echo
def deep(levels):
    value = 1
    for _ in range(levels): value = [value]
    return value
print(*[echo(deep(levels))['value'] == deep(levels) for levels in (1, 50, 90)])
print(*['deep' in echo(deep(levels)).get('error', '') for levels in (200, 990, 100_000)])
";
    bench.prints_probing(code, "True True True\nTrue True True\n").await
}

async fn any_json_value_is_an_answer(bench: &Bench) -> Checked {
    let code = r#"
from hermes_tools import echo
values = [None, True, 0, -1, 2**53, -2**63, 2**64 - 1, 1.5, 1e300, "", "x", [], {}, [[], {}], {"": {"a": [None]}},
          "\x00\x01\x1f\x7f\x80\u2028\u2029\ufeff\ufffd\U0001f980\"\\/", {"error": "no error"}, {"\u2028\x00": 1}, "NaN"]
for value in values:
    answer = echo(value)["value"]
    if answer != value or type(answer) is not type(value): print("differs", repr(value), repr(answer))
print(len(values))
"#;
    bench.prints_probing(code, "19\n").await
}

async fn threads_of_an_earlier_cell_have_no_authority(bench: &Bench) -> Checked {
    let code = "
import threading, time
from hermes_tools import echo
answers = []
stop = threading.Event()
def work():
    while not stop.is_set():
        answers.append(echo('late')); time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
while len(answers) < 2: time.sleep(0.01)
";
    bench.ok_probing(code).await?;
    let made = bench.host.calls("echo");
    let code = "
since = len(answers)
print(echo('mine'))
end = time.monotonic() + 30
while len(answers) < since + 5 and time.monotonic() < end: time.sleep(0.01)
print(len(answers) >= since + 5, all('error' in answer for answer in answers[since + 1:]))
stop.set()
";
    let outcome = bench.probing(code).await?;
    equal("the output", outcome.output.as_str(), "{'value': 'mine'}\nTrue True\n")?;
    equal("calls of the later cell", &outcome.tool_calls_made, &1)?;
    // One call may have been under way when the first cell ended.
    let later = bench.host.calls("echo") - made;
    holds("one call that came home, or two", (1..=2).contains(&later), &later)
}

async fn pools_work_for_the_cell_that_hands_out(bench: &Bench) -> Checked {
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import echo\npool = ThreadPoolExecutor(2)\nprint(sum('value' in a for a in pool.map(echo, range(4))))";
    bench.prints_probing(code, "4\n").await?;
    let outcome = bench
        .probing("print(pool.submit(echo, 5).result(), pool.shutdown())")
        .await?;
    equal(
        "output and calls of the later cell",
        &(outcome.output.as_str(), outcome.tool_calls_made),
        &("{'value': 5} None\n", 1),
    )
}

async fn calls_end_with_their_cell(bench: &Bench) -> Checked {
    let code = "
import threading, time
from hermes_tools import wait, echo
answers = []
threads = [threading.Thread(target=lambda: answers.append(wait()), daemon=True) for _ in range(3)]
for thread in threads: thread.start()
time.sleep(0.3)
";
    bench.ok_probing(code).await?;
    let code = "for thread in threads: thread.join(30)\nprint([list(answer) for answer in answers], echo('on'))";
    bench
        .prints_probing(code, "[['error'], ['error'], ['error']] {'value': 'on'}\n")
        .await
}

async fn a_call_that_is_interrupted_spoils_no_other(bench: &Bench) -> Checked {
    let code = "
import signal
from hermes_tools import echo, wait
class Late(Exception): pass
def ring(*_): raise Late
signal.signal(signal.SIGALRM, ring)
for number in range(5):
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try: wait()
    except Late: print(echo(number)['value'], end=' ')
print('on')
";
    bench.prints_probing(code, "0 1 2 3 4 on\n").await
}

async fn calls_work_whatever_the_script_broke(bench: &Bench) -> Checked {
    let code = "
import os, sys
from hermes_tools import echo
def check(what):
    if echo(what) != {'value': what}: print('broken by', what)
os.closerange(3, 256); check('closerange')
os.close(0); check('no stdin')
import json; json.dumps = json.loads = json.JSONEncoder = None; check('json')
import socket; socket.socket = None; check('socket')
import struct, threading; threading.Thread.start = None; check('threading')
modules = dict(sys.modules); sys.modules.clear(); check('sys.modules'); sys.modules.update(modules)
path = list(sys.path); sys.path.clear(); check('sys.path'); sys.path[:] = path
os.chdir('/'); check('chdir')
environment = dict(os.environ); os.environ.clear(); check('os.environ'); os.environ.update(environment)
print('done')
";
    bench.prints_probing(code, "done\n").await?;
    bench
        .prints_probing("from hermes_tools import echo\nprint(echo(2))", "{'value': 2}\n")
        .await
}

async fn a_call_without_the_token_is_refused(bench: &Bench) -> Checked {
    let code = "
import hermes_tools
from hermes_tools import echo
names = [name for name in vars(hermes_tools) if 'token' in name.lower()]
print(len(names))
for name in names: setattr(hermes_tools, name, type(getattr(hermes_tools, name))(b'0' * 32 if isinstance(getattr(hermes_tools, name), bytes) else '0' * 32) if isinstance(getattr(hermes_tools, name), (bytes, str)) else None)
try: print(echo('forged'))
except Exception as error: print(type(error).__name__)
";
    let outcome = bench.probing(code).await?;
    holds("no answer of the tool", !outcome.output.contains("{'value'"), &outcome)?;
    equal("calls that came home", &bench.host.calls("echo"), &0)
}

async fn a_directory_that_is_polled_does_the_same(bench: &Bench) -> Checked {
    let transport = bench.cell("1").await?.kernel.map(|kernel| kernel.transport);
    if transport
        .as_deref()
        .is_some_and(|name| name.contains("socket") || name.contains("tcp"))
    {
        return Err(super::case::Unmet::Skipped(
            "calls go over a socket here, through no directory".to_owned(),
        ));
    }
    let polled = bench.another(|options| options.transport = Transport::Polled)?;
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import terminal, echo
with ThreadPoolExecutor(16) as pool: print([a['value'] for a in pool.map(echo, range(16))] == list(range(16)))
text = 'é' * 300_000
print(echo(text) == {'value': text}, terminal('echo on')['output'])";
    let outcome = polled.probing(code).await?;
    equal("the output", outcome.output.as_str(), "True\nTrue on\n\n")?;
    let kernel = outcome.kernel.map(|kernel| kernel.transport);
    contains("the transport", &kernel.unwrap_or_default(), &["polled"])?;
    let late = polled
        .cell_for(1.0, "print('begun', flush=True)\nimport time\ntime.sleep(60)")
        .await?;
    contains(
        "the output of a cell that ran too long",
        &late.output,
        &["begun\n", "timed out"],
    )
}
