"""The fixed part of `hermes_tools`, over each way to the broker, in real child interpreters."""

from __future__ import annotations

import pytest
from stub_rig import Rig


def test_a_call_carries_token_cell_and_arguments(rig: Rig) -> None:
    assert rig.run("r = echo('ü\\n€'); print(r['cell'], r['token'], r['arguments'] == {'value': 'ü\\n€'})") == (
        "1 secret True"
    )
    assert rig.broker.requests == [["secret", 1, "echo", {"value": "ü\n€"}]]


def test_a_child_process_takes_its_cell_from_the_environment(rig: Rig) -> None:
    assert rig.run("from hermes_tools import echo; print(echo(1)['cell'])", kernel=False) == "7"


def test_loading_imports_nothing_costly(rig: Rig) -> None:
    out = rig.run(
        """
        import sys
        before = set(sys.modules)
        import hermes_tools
        print(sorted(set(sys.modules) - before - {"_contextvars", "__future__", "hermes_tools"}))
        """,
        kernel=False,
    )
    assert out == "[]"


SHADOWS = """
json socket select errno atexit selectors random types signal struct threading tempfile enum re functools collections
opcode time _socket operator keyword
"""


def test_shadowed_standard_library_is_not_touched(rig: Rig) -> None:
    for name in SHADOWS.split():
        (rig.project / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    out = rig.run(
        """
        import sys
        sys.path.insert(0, sys.path.pop())
        from hermes_tools import json_parse
        print(echo(3)["arguments"], json_parse('["\\t"]'))
        for bad in ("[1 2]", '{"a" 1}', "["):
            try:
                json_parse(bad)
            except ValueError as error:
                print("ValueError")
        print(hasattr(h, "missing"))
        try:
            import json
        except SystemExit as error:
            print(error)
        """
    )
    assert out.splitlines() == ["{'value': 3} ['\\t']", *["ValueError"] * 3, "False", "shadowed"]


def test_modules_of_the_project_stay_the_projects(rig: Rig) -> None:
    for name in ("json", "types", "struct"):
        (rig.project / f"{name}.py").write_text("mine = True\n")
    out = rig.run(
        """
        import sys
        sys.path.insert(0, sys.path.pop())
        for name in ("json", "types", "struct"):
            sys.modules.pop(name, None)
        import json, types
        print(echo(3)["arguments"], json.mine, sys.modules["json"] is json, types.mine)
        import struct
        print(struct.mine, "json.decoder" in sys.modules)
        """
    )
    assert out.splitlines() == ["{'value': 3} True True True", "True False"]


def test_works_after_modules_and_environment_are_cleared(rig: Rig) -> None:
    out = rig.run("import sys, os\nsys.modules.clear(); os.environ.clear()\nprint(echo(3)['cell'])")
    assert out == "1"


def test_works_after_an_import_that_was_broken_off(rig: Rig) -> None:
    # As a signal's handler leaves it that raises in the midst of the first call.
    out = rig.run("import sys, json\ndel sys.modules['json'], json.decoder, json\nprint(echo(3))")
    assert "'value': 3" in out


def test_threads_call_side_by_side_and_keep_results_apart(rig: Rig) -> None:
    out = rig.run(
        """
        import time
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(16) as pool:
            start = time.time()
            list(pool.map(lambda i: h._call("sleep", {"s": 0.2}), range(16)))
            print(time.time() - start < 1)
            answers = enumerate(pool.map(echo, range(400)))
            print(all(r["arguments"]["value"] == i for i, r in answers))
        """
    )
    assert out.split() == ["True", "True"]
    assert rig.broker.connections <= 17


def test_one_connection_serves_calls_in_turn(rig: Rig) -> None:
    rig.run("for i in range(100): assert echo(i)['arguments']['value'] == i")
    assert rig.broker.connections == 1


def test_an_answer_that_is_too_deep_is_a_failure_of_the_tool(rig: Rig) -> None:
    out = rig.run('print("nested too deeply" in h._call("deep", {})["error"], echo(1)["arguments"])')
    assert out.strip() == "True {'value': 1}"
    assert len(rig.broker.requests) == 2


def test_no_broker_is_a_connection_error_that_says_so(rig: Rig) -> None:
    script = """
        vars(h).update(_PATIENCE=1, _LOOK=50)
        try:
            echo(1)
        except ConnectionError as error:
            print(error)
        """
    (name,) = rig.way.variables
    assert f"{name} is not set" in rig.run(script, **{name: ""})
    assert "/nowhere" in rig.run(script, **{name: "/nowhere/s"})


def test_descriptors_closed_or_reused_by_the_script(rig: Rig) -> None:
    out = rig.run(
        """
        import os
        echo(1)
        os.closerange(3, 256)
        fds = [os.open("/dev/null", os.O_RDWR) for _ in range(20)]
        print(echo(2)["arguments"])
        for fd in fds: os.fstat(fd)
        os.closerange(3, 256)
        os.close(0)
        print(echo(3)["arguments"])
        print(os.open("/dev/null", os.O_RDONLY))
        """
    )
    assert out.splitlines() == ["{'value': 2}", "{'value': 3}", "0"]


def test_a_call_without_descriptors_is_a_failure(rig: Rig) -> None:
    out = rig.run(
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        h._library()
        taken = []
        try:
            while True: taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        print(echo(1)["error"])
        os.close(taken.pop()); os.close(taken.pop()); os.close(taken.pop())
        print(echo(2)["arguments"])
        """
    ).splitlines()
    assert "did not run" in out[0] and "Too many open files" in out[0] and "close files" in out[0]
    assert out[1] == "{'value': 2}"
    assert len(rig.broker.requests) == 1


def test_an_interrupted_call_leaves_no_stale_answer(rig: Rig) -> None:
    out = rig.run(
        """
        import signal
        def stop(*_): raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            h._call("sleep", {"s": 0.5})
        except KeyboardInterrupt:
            print("interrupted")
        print(echo(2)["arguments"])
        """
    )
    assert out.split("\n") == ["interrupted", "{'value': 2}"]


def test_what_a_signal_handler_raises_comes_through(rig: Rig) -> None:
    out = rig.run(
        """
        import random, signal, warnings
        warnings.simplefilter("ignore")  # a socket that was just made when the signal came is left to the collector
        echo(0)
        class Late(TimeoutError): pass
        fired = caught = 0
        def late(*_):
            global fired
            fired += 1
            raise Late
        signal.signal(signal.SIGALRM, late)
        def call():
            for number in range(20):
                assert echo(number)["arguments"]["value"] == number
        for _ in range(400):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
                    call()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Late:
                caught += 1
        print(fired > 100, fired - caught)
        """
    )
    assert out == "True 0"


def test_forked_children_have_connections_of_their_own(rig: Rig) -> None:
    out = rig.run(
        """
        import os
        echo(0)
        pids = []
        for child in range(4):
            pid = os.fork()
            if not pid:
                ok = all(echo([child, i])["arguments"]["value"] == [child, i] for i in range(50))
                os._exit(0 if ok and echo(0)["cell"] == 1 else 1)
            pids.append(pid)
        ok = all(echo(i)["arguments"]["value"] == i for i in range(50))
        print(ok, [os.waitpid(pid, 0)[1] for pid in pids])
        """,
        PYTHONWARNINGS="ignore",
    )
    assert out == "True [0, 0, 0, 0]"
    assert rig.broker.connections == 5


def test_sizes_pass_byte_for_byte(rig: Rig) -> None:
    sizes = [0, 1, 16380, 16384, 65535, 65536, 131071, 131073, 1 << 20, 64 << 20]
    out = rig.run(
        f"""
        for n in {sizes}:
            assert h._call("length", {{"path": "x", "text": "y" * n}})["text"] == n
            assert len(h._call("size", {{"n": n}})) == n
        assert h._call("length", {{"text": "€" * ((64 << 20) // 3)}})["text"] == (64 << 20) // 3
        assert h._call("length", {{"text": chr(1) * (64 << 20)}})["text"] == 64 << 20
        print(h._call("drip", {{}})["arguments"])
        print(h._call("length", {{"text": "y" * ((64 << 20) + 1)}}))
        """
    )
    assert out.startswith("{}\n{'error': \"argument 'text' of 'length'")
    assert "64 MiB" in out


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{1}", "sorted"),
        ("b'x'", "decode"),
        ("float('nan')", "NaN"),
        ("'\\ud800'", "surrogate"),
        ("object()", "object"),
        ("(lambda l: (l.append(l), l)[1])([])", "contains itself"),
        ("__import__('functools').reduce(lambda a, _: [a], range(100000), 1)", "100 levels"),
        ("__import__('functools').reduce(lambda a, _: [a], range(110), 1)", "levels deep"),
    ],
)
def test_what_json_cannot_hold_is_an_error_result(rig: Rig, value: str, words: str) -> None:
    out = rig.run(f"r = echo({value}); print(r['error'])")
    assert words in out and "'value'" in out
    assert rig.broker.requests == []


def test_paths_and_odd_arguments(rig: Rig) -> None:
    out = rig.run(
        """
        import pathlib
        print(echo(pathlib.Path("a/b"))["arguments"], "dict" in h._call("echo", 5)["error"])
        print("[[" * 200 == echo("[[" * 200)["arguments"]["value"])
        """
    )
    assert out.splitlines() == ["{'value': 'a/b'} True", "True"]


def test_work_belongs_to_the_cell_that_hands_it_out(rig: Rig) -> None:
    out = rig.run(
        """
        import asyncio, threading, multiprocessing, multiprocessing.pool as mp
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        def cell(_=None): return echo(0)["cell"]
        fork = multiprocessing.get_context("fork")
        go, late = threading.Event(), []
        old = threading.Thread(target=lambda: (go.wait(), late.append(cell())))
        old.start()
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        async def on_loop(): return cell()
        threads, processes = ThreadPoolExecutor(1), ProcessPoolExecutor(1, mp_context=fork)
        pool, thread_pool = fork.Pool(1), mp.ThreadPool(1)
        for number in (1, 2):
            h._enter_cell(number)
            for p in (threads, processes):
                print(p.submit(cell).result(), *p.map(cell, [0]))
            for p in (pool, thread_pool):
                print(p.apply(cell), p.apply_async(func=cell).get(), *p.map(cell, [0]),
                      *p.imap(cell, [0]), *p.imap_unordered(cell, [0]),
                      *p.map_async(cell, [0]).get(), *p.starmap(cell, [(0,)]),
                      *p.starmap_async(cell, [(0,)]).get())
            print(asyncio.run_coroutine_threadsafe(on_loop(), loop).result())
        h._enter_cell(2)
        go.set(); old.join(); print(late)
        h._enter_cell(0)
        new = []; t = threading.Thread(target=lambda: new.append(cell())); t.start(); t.join()
        print(cell(), new)
        pool.terminate(); pool.join(); thread_pool.terminate()
        processes.shutdown(); threads.shutdown()
        """,
        PYTHONWARNINGS="ignore",
    ).splitlines()
    for number, lines in (("1", out[:5]), ("2", out[5:10])):
        assert {c for line in lines for c in line.split()} == {number}
    assert out[10:] == ["[1]", "0 [0]"]


def test_threads_of_unknown_origin_have_no_cell_in_the_kernel_only(rig: Rig) -> None:
    script = """
        import contextvars, _thread
        h._enter_cell(3)
        print(contextvars.Context().run(h._current_cell))
        lock, got = _thread.allocate_lock(), []
        lock.acquire()
        start = getattr(_thread.start_new_thread, "__wrapped__")
        def run():
            got.append(h._current_cell())
            lock.release()
        start(run, ())
        lock.acquire()
        print(got)
        h._STATE.is_kernel = False
        start(run, ())
        lock.acquire()
        print(got)
        """
    assert rig.run(script).splitlines() == ["3", "[0]", "[0, 7]"]


def test_patching_survives_reload_and_keeps_signatures(rig: Rig) -> None:
    out = rig.run(
        """
        import concurrent.futures.thread as cft, importlib, inspect, pickle, sys, threading
        before = inspect.signature(cft.ThreadPoolExecutor.submit.__wrapped__)
        for _ in range(2):
            importlib.reload(cft); importlib.reload(h)
        submit = cft.ThreadPoolExecutor.submit
        print(inspect.signature(submit) == before, submit.__name__)
        print(hasattr(submit.__wrapped__, "__wrapped__"))
        print(h._STATE.is_kernel, h._current_cell(), "exec_module" in vars(cft.__loader__))
        print(len([f for f in sys.meta_path if hasattr(f, "hermes_state")]))
        with cft.ThreadPoolExecutor(1) as pool:
            print(pool.submit(echo, 4).result()["cell"])
        print(pickle.loads(pickle.dumps(h._Carried(5, len)))([1, 2]))
        """
    )
    assert out.splitlines() == ["True submit", "False", "True 1 False", "1", "1", "2"]


def test_spawned_pools_carry_the_cell(rig: Rig) -> None:
    out = rig.run(
        """
        import multiprocessing
        from hermes_tools import echo
        if __name__ == "__main__":
            import hermes_tools as h
            h._install(True); h._enter_cell(1)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                h._enter_cell(4)
                print(pool.map(echo, [1])[0]["cell"])
        """,
        kernel=False,
    )
    assert out == "4"


def test_generated_part_can_be_replaced_alone(rig: Rig) -> None:
    out = rig.run(
        """
        star = {}
        exec("from hermes_tools import *", star)
        print(sorted(n for n in star if n != "__builtins__"))
        for name in h._GENERATED:
            del vars(h)[name]
        source = '_GENERATED = ("other",)\\n__all__ = ("other",)\\ndef other(): return _call("x", {})'
        exec(compile(source, h.__file__, "exec"), vars(h))
        print(h.other()["cell"], hasattr(h, "echo"))
        for line in ("from hermes_tools import echo", "h.echo"):
            try:
                exec(line)
            except (ImportError, AttributeError) as error:
                print(type(error).__name__, error)
        """
    ).splitlines()
    assert out[:2] == ["['echo', 'json_parse', 'retry', 'shell_quote']", "1 False"]
    text = "echo is not available in scripts; available: other"
    assert out[2:] == [f"ImportError {text}", f"AttributeError {text}"]


def test_the_kernel_hears_of_modules_as_they_are_loaded(rig: Rig) -> None:
    out = rig.run(
        """
        import importlib, sys
        seen = []
        import keyword
        h._install(True, {"keyword": seen.append, "this_is_mine": seen.append})
        print(seen == [keyword])
        importlib.reload(keyword)
        importlib.reload(h)
        sys.meta_path.insert(0, sys.meta_path[0])
        with open("this_is_mine.py", "w") as file:
            file.write("x = 1")
        import this_is_mine
        print([m.__name__ for m in seen], seen[-1].x)
        """
    ).splitlines()
    assert out == ["True", "['keyword', 'keyword', 'this_is_mine'] 1"]


def test_helpers(rig: Rig) -> None:
    out = rig.run(
        r"""
        import shlex
        from hermes_tools import json_parse, retry, shell_quote
        print(json_parse('\ufeff{"a": "x\ty\n"}'), json_parse(b'\xef\xbb\xbf[1]'),
              json_parse("[1]".encode("utf-16")))
        for text in ("", "a b", "it's", "$(x)", "ü", "a/b-c.d", "x\ny"):
            assert shell_quote(text) == shlex.quote(text), text
        tries = []
        def flaky():
            tries.append(1)
            if len(tries) < 3: raise ValueError(len(tries))
            return "ok"
        print(retry(flaky, 3, 0.01), len(tries))
        def broken(): raise KeyError("last")
        try:
            retry(broken, max_attempts=2, delay=0.01)
        except KeyError as error:
            print(error)
        try:
            json_parse({"already": "parsed"})
        except TypeError as error:
            print(error)
        """
    ).splitlines()
    assert out[0] == r"{'a': 'x\ty\n'} [1] [1]"
    assert out[1:3] == ["ok 3", "'last'"]
    assert "dict already" in out[3]
