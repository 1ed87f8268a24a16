//! State that is kept, as in one interpreter, and what each cell finds clean.

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal, holds};
use super::outcomes::ended;
use super::seat::builtin;
use crate::outcome::Status;

pub(super) const CASES: &[Case] = &[
    case!(state_is_kept).with_kernel(),
    case!(state_is_kept_after_an_exception).with_kernel(),
    case!(reset_discards_the_state).with_kernel(),
    case!(a_cell_can_discard_the_state_first).with_kernel(),
    case!(folder_and_variables_of_the_kernel_are_state)
        .with_kernel()
        .in_folder(),
    case!(objects_of_cells_pickle).with_kernel(),
    Case::prints(
        "sources_can_be_looked_at",
        "import inspect\ndef f(x):\n    return x + 1  # here\nprint(inspect.getsource(f), __name__)",
        "def f(x):\n    return x + 1  # here\n __main__\n",
    ),
    case!(await_works_at_the_top).with_kernel(),
    Case::prints(
        "input_is_at_its_end",
        "import sys, subprocess\ntry: input('? ')\nexcept EOFError as error: print(type(error).__name__)\n\
         print(repr(sys.stdin.read()))\nsubprocess.run(['cat'])",
        "? EOFError\n''\n",
    ),
    case!(arguments_are_those_of_the_cell),
    case!(replaced_streams_are_put_back).with_kernel(),
    case!(closed_streams_are_made_anew).with_kernel(),
    case!(signal_handlers_and_timers_are_put_back).with_kernel(),
    case!(a_folder_that_is_gone_is_left).with_kernel().in_folder(),
    case!(modules_that_shadow_the_standard_library_break_nothing).in_folder(),
    case!(modules_of_the_folder_are_found).in_folder(),
    case!(cells_run_in_the_order_in_which_they_came).with_kernel(),
    case!(a_child_that_holds_stdout_does_not_hold_the_cell).with_kernel(),
    case!(a_process_pool_runs_functions_of_cells).with_kernel(),
    case!(logging_goes_on_over_cells).with_kernel(),
];

async fn state_is_kept(bench: &Bench) -> Checked {
    bench.ok("import math\nx = 20\ndef f(n): return n + x").await?;
    bench
        .prints("print(f(1), math.floor(2.5), __name__)", "21 2 __main__\n")
        .await?;
    let outcome = bench.cell("import __main__; print(__main__.x)").await?;
    equal("the output", outcome.output.as_str(), "20\n")?;
    let kernel = outcome
        .kernel
        .map(|kernel| (kernel.reused, kernel.state_lost, kernel.execution_count));
    equal(
        "reused, state_lost and execution_count",
        &kernel,
        &Some((true, false, 3)),
    )
}

async fn state_is_kept_after_an_exception(bench: &Bench) -> Checked {
    ended(
        &bench.cell("kept = 5\nraise ValueError('x')").await?,
        Status::Error,
        Some(1),
    )?;
    ended(
        &bench.cell("import sys\nkept += 1\nsys.exit(3)").await?,
        Status::Error,
        Some(3),
    )?;
    bench.prints("print(kept)", "6\n").await
}

async fn reset_discards_the_state(bench: &Bench) -> Checked {
    bench.ok("x = 1").await?;
    bench.reset().await?;
    let outcome = bench.cell("print('x' in globals())").await?;
    equal("whether x is still there", outcome.output.as_str(), "False\n")?;
    equal("reused", &outcome.kernel.map(|kernel| kernel.reused), &Some(false))
}

async fn a_cell_can_discard_the_state_first(bench: &Bench) -> Checked {
    bench.ok("x = 1").await?;
    let mut cell = builtin("print('x' in globals())");
    cell.reset = true;
    equal(
        "whether x is still there",
        bench.run(cell).await?.output.as_str(),
        "False\n",
    )
}

async fn folder_and_variables_of_the_kernel_are_state(bench: &Bench) -> Checked {
    bench
        .ok("import os\nos.mkdir('sub')\nopen('sub/here', 'w').close()\nos.chdir('sub')\nos.environ['COLOUR'] = 'red'")
        .await?;
    let code = "import os, subprocess\nprint(os.listdir('.'), os.environ['COLOUR'])\nsubprocess.run('echo $COLOUR; ls', shell=True)";
    bench.prints(code, "['here'] red\nred\nhere\n").await
}

async fn objects_of_cells_pickle(bench: &Bench) -> Checked {
    bench
        .ok("import pickle\nclass Thing:\n    def __init__(self, n): self.n = n\ndef double(x): return 2 * x")
        .await?;
    let code = "copy = pickle.loads(pickle.dumps([Thing(4), double]))\nprint(type(copy[0]) is Thing, copy[0].n, copy[1] is double)";
    bench.prints(code, "True 4 True\n").await
}

async fn await_works_at_the_top(bench: &Bench) -> Checked {
    bench
        .ok("import asyncio\nasync def later():\n    await asyncio.sleep(0.05)\n    return 'done'\ntask = asyncio.ensure_future(later())\nawait asyncio.sleep(0)")
        .await?;
    bench.prints("print(await task, await later())", "done done\n").await
}

async fn arguments_are_those_of_the_cell(bench: &Bench) -> Checked {
    for (arguments, printed) in [(vec![], "[]\n"), (vec!["a b", "", "--x=ü"], "['a b', '', '--x=ü']\n")] {
        let mut cell = builtin("import sys; print(sys.argv[1:])");
        cell.arguments = arguments.iter().map(|text: &&str| text.as_bytes().to_vec()).collect();
        equal("sys.argv[1:]", bench.run(cell).await?.output.as_str(), printed)?;
    }
    Ok(())
}

async fn replaced_streams_are_put_back(bench: &Bench) -> Checked {
    let outcome = bench
        .cell("import io, sys\nsys.stdout = io.StringIO()\nsys.stderr = None\nsys.stdin = 5\nprint('lost')")
        .await?;
    ended(&outcome, Status::Success, Some(0))?;
    bench.prints("print('seen')", "seen\n").await?;
    bench
        .ok("class Bad:\n    def write(self, t): raise OSError('no')\n    flush = write\nsys.stdout = sys.stderr = Bad()")
        .await?;
    bench.prints("print('again')", "again\n").await
}

async fn closed_streams_are_made_anew(bench: &Bench) -> Checked {
    for code in [
        "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import os\nos.close(1); os.close(2); os.close(0)",
        "import os\nos.closerange(0, 64)",
        "import os\nfd = os.open('/dev/null', os.O_RDWR)\nos.dup2(fd, 1); os.dup2(fd, 2)",
    ] {
        ended(&bench.cell(code).await?, Status::Success, Some(0))?;
        let outcome = bench
            .cell("import sys, os\nprint('\u{fc}\u{4e2d}')\nprint('e', file=sys.stderr)\nos.write(1, b'w\\n')")
            .await?;
        equal(
            &format!("output and stderr after {code:?}"),
            &(outcome.output.as_str(), outcome.stderr.as_deref()),
            &("\u{fc}\u{4e2d}\nw\n", Some("e\n")),
        )?;
        equal("reused", &outcome.kernel.map(|kernel| kernel.reused), &Some(true))?;
    }
    Ok(())
}

async fn signal_handlers_and_timers_are_put_back(bench: &Bench) -> Checked {
    bench
        .ok("import signal
signal.signal(signal.SIGTERM, lambda *_: print('handler'))
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
signal.setitimer(signal.ITIMER_REAL, 0.2)")
        .await?;
    let code = "import time; time.sleep(0.4)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))";
    bench.prints(code, "True True\nset()\n").await
}

async fn a_folder_that_is_gone_is_left(bench: &Bench) -> Checked {
    let was = bench.ok("import os, shutil\nprint(os.getcwd())").await?;
    bench
        .ok("os.mkdir('gone')\nos.chdir('gone')\nshutil.rmtree(os.getcwd())")
        .await?;
    bench.prints("print(os.getcwd())", &was).await
}

async fn modules_that_shadow_the_standard_library_break_nothing(bench: &Bench) -> Checked {
    let code = "names = 'json socket struct threading types select typing time signal traceback linecache ast queue subprocess enum re io'
for name in names.split():
    with open(name + '.py', 'w') as file: file.write(\"raise RuntimeError('the module of the project ran')\")";
    bench.ok(code).await?;
    bench.reset().await?;
    let code = "from hermes_tools import echo, shell_quote, json_parse\nprint(echo([1]), shell_quote('a b'), json_parse('[1]'))";
    bench.prints_probing(code, "{'value': [1]} 'a b' [1]\n").await?;
    let outcome = bench.cell("def f():\n    return 1 / 0\nf()").await?;
    contains(
        "the traceback",
        &outcome.output,
        &["    return 1 / 0\n", "ZeroDivisionError: division by zero\n"],
    )
}

async fn modules_of_the_folder_are_found(bench: &Bench) -> Checked {
    bench
        .ok("import os\nos.mkdir('shop')\nopen('shop/__init__.py', 'w').close()\nopen('shop/cart.py', 'w').write('TOTAL = 3')")
        .await?;
    bench.reset().await?;
    bench.prints("from shop.cart import TOTAL; print(TOTAL)", "3\n").await
}

async fn cells_run_in_the_order_in_which_they_came(bench: &Bench) -> Checked {
    bench.ok("import time\norder = []").await?;
    let cell = |number: u32, seconds: f64| bench.cell(format!("time.sleep({seconds}); order.append({number})"));
    let (one, two, three) = tokio::join!(cell(1, 0.3), cell(2, 0.1), cell(3, 0.0));
    for outcome in [one?, two?, three?] {
        ended(&outcome, Status::Success, Some(0))?;
    }
    bench.prints("print(order)", "[1, 2, 3]\n").await
}

async fn a_child_that_holds_stdout_does_not_hold_the_cell(bench: &Bench) -> Checked {
    let code = "import subprocess, time\nchild = subprocess.Popen('echo out; while :; do sleep 0.1; echo more; done', shell=True)\ntime.sleep(0.5)\nprint('end')";
    contains("the output", &bench.ok(code).await?, &["out\n", "end\n"])?;
    // What it prints later belongs to no cell, and does not kill it.
    bench.prints("time.sleep(0.3)\nprint(child.poll())", "None\n").await?;
    bench.ok("child.kill()").await.map(|_| ())
}

async fn a_process_pool_runs_functions_of_cells(bench: &Bench) -> Checked {
    bench
        .ok("import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(x):\n    return x * x")
        .await?;
    let code = "with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:\n    print(list(pool.map(square, range(5))))";
    bench.prints(code, "[0, 1, 4, 9, 16]\n").await
}

async fn logging_goes_on_over_cells(bench: &Bench) -> Checked {
    let outcome = bench
        .cell("import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\nlogging.info('one')")
        .await?;
    equal("stderr", &outcome.stderr.as_deref(), &Some("one\n"))?;
    let outcome = bench.cell("import warnings\nwarnings.warn('mind the gap')").await?;
    let stderr = outcome.stderr.unwrap_or_default();
    holds(
        "the warning with its line",
        stderr.contains(":2: UserWarning: mind the gap"),
        &stderr,
    )
}
