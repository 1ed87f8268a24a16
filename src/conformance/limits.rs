//! Limits: of time, calls and sizes; and that what exceeds them is gone.

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal};
use super::outcomes::ended;
use super::seat::{builtin, probing};
use crate::outcome::Status;

pub(super) const CASES: &[Case] = &[
    case!(the_budget_counts_what_ran),
    case!(the_budget_holds_for_calls_side_by_side),
    case!(a_timeout_ends_the_whole_tree).in_folder(),
    case!(a_script_that_ignores_sigterm_is_killed),
    case!(a_script_can_tidy_up_when_it_is_told_to_end).in_folder(),
    case!(a_cancelled_cell_leaves_no_process).in_folder(),
    case!(a_lost_kernel_leaves_no_process).in_folder(),
    case!(a_few_mebibytes_pass_both_ways),
    case!(what_is_too_large_names_the_limit_and_does_not_run),
    case!(large_files_are_written_and_read_whole).in_folder(),
];

async fn the_budget_counts_what_ran(bench: &Bench) -> Checked {
    let code = "
from hermes_tools import echo, fail, _call
_call('nothing', {})
_call('echo', {'value': 1, 'more': 2})
print(echo(1), 'error' in fail(), echo(2))
for _ in range(2): print(echo(3)['error'])
print('and on')
";
    for round in 1..3 {
        let mut cell = probing(code);
        cell.limits.max_tool_calls = Some(3);
        let outcome = bench.run(cell).await?;
        ended(&outcome, Status::Success, Some(0))?;
        contains(
            "the output",
            &outcome.output,
            &[
                "{'value': 1} True {'value': 2}\nthe limit of 3 tool calls",
                "\nand on\n",
            ],
        )?;
        equal("tool_calls_made", &outcome.tool_calls_made, &3)?;
        equal("calls that came home", &bench.host.calls("echo"), &(2 * round))?;
    }
    Ok(())
}

async fn the_budget_holds_for_calls_side_by_side(bench: &Bench) -> Checked {
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import echo\nwith ThreadPoolExecutor(20) as pool: print(sum('error' not in r for r in pool.map(echo, range(100))))";
    // The default of the contract.
    let outcome = bench.run(probing(code)).await?;
    equal(
        "output and calls",
        &(outcome.output.as_str(), outcome.tool_calls_made),
        &("50\n", 50),
    )?;
    equal("calls that came home", &bench.host.calls("echo"), &50)
}

/// Starts processes that try to stay, and writes down their numbers.
const TREE: &str = "
import os, subprocess, time
found = []
found.append(subprocess.Popen(['sleep', '300']).pid)
found.append(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)
subprocess.Popen(['sh', '-c', 'setsid sleep 300 & echo $! >aside; mv aside third; wait'])
while not os.path.exists('third'): time.sleep(0.02)
found.append(int(open('third').read()))
open('aside', 'w').write(repr(found)); os.rename('aside', 'found')
";

/// Prints those of them that are still there after a while.
const LEFT: &str = "
import os, time
def is_alive(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    try: return open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except FileNotFoundError: return False
found = eval(open('found').read())
assert len(found) == 3
end = time.monotonic() + 20
while any(map(is_alive, found)) and time.monotonic() < end: time.sleep(0.05)
print([pid for pid in found if is_alive(pid)])
";

async fn a_timeout_ends_the_whole_tree(bench: &Bench) -> Checked {
    let outcome = bench.cell_for(3.0, &format!("{TREE}time.sleep(60)")).await?;
    ended(&outcome, Status::Timeout, Some(124))?;
    bench.prints(LEFT, "[]\n").await
}

async fn a_script_that_ignores_sigterm_is_killed(bench: &Bench) -> Checked {
    let code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: time.sleep(1)";
    let outcome = bench.cell_for(1.0, code).await?;
    ended(&outcome, Status::Timeout, Some(124))?;
    contains(
        "the output",
        &outcome.output,
        &["deaf\n", "Script timed out after 1s and was killed."],
    )
}

async fn a_script_can_tidy_up_when_it_is_told_to_end(bench: &Bench) -> Checked {
    let code = "import signal, time\ndef tidy(*_): open('tidied', 'w').close()\nsignal.signal(signal.SIGTERM, tidy)\nend = time.monotonic() + 60\nwhile time.monotonic() < end: time.sleep(0.05)";
    ended(&bench.cell_for(1.0, code).await?, Status::Timeout, Some(124))?;
    bench
        .prints("import os; print(os.path.exists('tidied'))", "True\n")
        .await
}

async fn a_cancelled_cell_leaves_no_process(bench: &Bench) -> Checked {
    let cell = builtin(format!("{TREE}print('begun', flush=True)\ntime.sleep(60)"));
    let outcome = bench.cancelled(cell, "begun", "enough").await?;
    ended(&outcome, Status::Interrupted, Some(130))?;
    bench.prints(LEFT, "[]\n").await
}

async fn a_lost_kernel_leaves_no_process(bench: &Bench) -> Checked {
    let outcome = bench.cell(format!("{TREE}os.kill(os.getpid(), 9)")).await?;
    ended(&outcome, Status::Error, Some(137))?;
    bench.prints(LEFT, "[]\n").await
}

async fn a_few_mebibytes_pass_both_ways(bench: &Bench) -> Checked {
    let code = "from hermes_tools import echo\nfor text in ('x' * (8 << 20), '\\x01' * (1 << 20), 'é' * (2 << 20)): print(echo(text)['value'] == text)";
    bench.prints_probing(code, "True\nTrue\nTrue\n").await
}

async fn what_is_too_large_names_the_limit_and_does_not_run(bench: &Bench) -> Checked {
    let code = "from hermes_tools import echo\nprint('64 MiB' in echo('x' * (64 << 20) + 'x')['error'], echo('on'))";
    bench.prints_probing(code, "True {'value': 'on'}\n").await?;
    equal("calls that came home", &bench.host.calls("echo"), &1)
}

async fn large_files_are_written_and_read_whole(bench: &Bench) -> Checked {
    let code = r#"
from hermes_tools import read_file, write_file
text = ("line of text é %s\n" % ("x" * 80)) * 40_000
written = write_file("big.txt", text)
with open("big.txt", encoding="utf-8", newline="") as file: print(file.read() == text, written["bytes_written"] == len(text.encode()))
page = read_file("big.txt", limit=10**9, raw=True)
print(page["content"] == text, page["truncated"], page["total_lines"])
"#;
    bench.prints(code, "True True\nTrue False 40000\n").await
}
