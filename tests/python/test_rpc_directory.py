"""Tool calls by files; what both ways have in common is in `test_hermes_runtime.py`."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import time
from typing import Any

import pytest
from stub_rig import Rig


def wait_for(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_call_is_a_file_that_is_announced_and_nothing_stays(directory_rig: Rig) -> None:
    # The answer is read, then the script goes on: it is removed during the next call, or when the process ends.
    way = directory_rig.way
    out = directory_rig.run("import os\nfor i in range(3): echo(i)\nprint(*os.listdir(os.environ['HERMES_RPC_DIR']))")
    (client,) = way.clients
    assert re.fullmatch("[0-9a-f]{16}", client)
    assert way.seen == [f"{client}-{number}" for number in (1, 2, 3)]
    assert b"".join(b"q%s-%d\n" % (client.encode(), number) for number in (1, 2, 3)) in way.heard
    assert sorted(out.split()) == [f"bell_{client}", f"res_{client}-3"]
    assert way.names() == [], "a process that ends takes its bells along"


def test_an_answer_is_found_without_a_ring(directory_rig: Rig) -> None:
    directory_rig.way.rings_clients = False
    assert directory_rig.run("print(echo(1)['cell'], echo(2)['cell'])") == "1 1"
    assert directory_rig.way.names() == []


def test_a_relay_that_heard_nothing_is_rung_again(directory_rig: Rig) -> None:
    way = directory_rig.way
    way.close()
    process = directory_rig.start(
        """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as command line tools do
        print(echo(1)['cell'])
        """
    )
    wait_for(lambda: any(name.startswith("req_") for name in way.names()))
    os.read(way.bell, 65536)  # a relay that dies after this and before it looks
    wait_for(lambda: select.select([way.bell], [], [], 0)[0])
    way.look()
    assert directory_rig.end(process) == "1"


def test_large_bodies_lie_on_the_disk(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        for size in (256 * 1024 - 200, 256 * 1024, 300_000, 5_000_000):
            assert h._call("length", {"text": "y" * size})["text"] == size
            assert len(h._call("size", {"n": size})) == size
        echo(1)
        print("done")
        """
    )
    assert out == "done"
    assert directory_rig.way.names() == []


def test_a_result_without_room_is_an_error(directory_rig: Rig) -> None:
    directory_rig.way.has_room = False
    out = directory_rig.run("print(echo(1)['error'])")
    assert "the tool ran" in out and str(directory_rig.way.rpc) in out and "free space" in out
    assert directory_rig.way.names() == []


def test_a_request_without_room_is_an_error(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import errno, os
        def full(fd, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole, h._write = h._write, full
        for size in (1, 1 << 20):
            print(echo("x" * size)["error"])
        h._write = whole
        print(echo(2)["arguments"])
        """
    ).splitlines()
    for line in out[:2]:
        assert "did not run" in line and "No space left" in line and "free space" in line
        assert str(directory_rig.way.rpc) in line
    assert out[2] == "{'value': 2}"
    assert len(directory_rig.broker.requests) == 1
    assert directory_rig.way.names() == []


def test_an_answer_finds_a_descriptor(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import os, resource, threading, time
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        echo(0)
        taken, free = [], threading.Event()
        def later():
            time.sleep(0.3)
            try:
                while True: taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                free.wait()  # before it ends, for that takes a descriptor in some versions
        thread = threading.Thread(target=later)
        thread.start()
        print(h._call("sleep", {"s": 1})["cell"])
        for fd in taken: os.close(fd)
        free.set()
        thread.join()
        print(echo(3)["arguments"])
        """
    ).splitlines()
    assert out == ["1", "{'value': 3}"]


def test_a_request_that_is_lost_is_written_again_under_its_id(directory_rig: Rig) -> None:
    way = directory_rig.way
    dropped = []

    def drop(call: str) -> bool:
        if not dropped:
            dropped.append(call)
            way.path("req_", call).unlink()
            way.seen.remove(call)
            return False
        return True

    way.before = drop
    assert directory_rig.run("print(echo(1)['cell'])") == "1"
    assert way.seen == dropped


def test_the_directory_is_removed_and_made_anew(directory_rig: Rig) -> None:
    way = directory_rig.way
    removed = []

    def remove(call: str) -> bool:
        if not removed:
            removed.append(call)
            way.seen.remove(call)
            shutil.rmtree(way.top)
            time.sleep(0.5)
            way.make()
            return False
        return True

    way.before = remove
    out = directory_rig.run("print(echo('x')['cell'], echo('y' * 300_000)['cell'], echo('z')['cell'])")
    assert out == "1 1 1"
    assert way.seen[0] == removed[0] and len(way.clients) == 1
    assert way.names() == []


def test_an_idle_client_moves_to_a_new_directory(directory_rig: Rig) -> None:
    way = directory_rig.way
    process = directory_rig.start("import sys\necho(1)\nprint(1, flush=True)\nsys.stdin.read()\nprint(echo(2)['cell'])")
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "1\n"
    shutil.rmtree(way.top)
    process.stdin.close()
    process.stdin = None
    time.sleep(0.5)
    way.make()
    assert directory_rig.end(process) == "1"
    assert way.names() == []


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_directory_that_stays_away_means_that_the_broker_is_gone(directory_rig: Rig, when: str) -> None:
    way = directory_rig.way

    def remove(call: str) -> bool:
        shutil.rmtree(way.top)
        return False

    way.before = remove
    out = directory_rig.run(
        f"""
        import os, shutil
        vars(h).update(_PATIENCE=2, _LOOK=50)
        if {when == "before"}:
            shutil.rmtree(os.path.dirname(os.environ["HERMES_RPC_DIR"]))
        try:
            echo(1)
        except ConnectionError as error:
            print(error)
        """
    )
    assert ("cannot reach the broker" if when == "before" else "whether the call ran is not known") in out
    assert "No such file" in out
    way.make()


def test_whoever_gives_up_leaves_nothing(directory_rig: Rig) -> None:
    way = directory_rig.way
    out = directory_rig.run(
        """
        import os, signal, threading
        echo(0)
        class Late(TimeoutError): pass
        def stop(*_): raise Late
        signal.signal(signal.SIGALRM, stop)
        place = os.environ["HERMES_RPC_DIR"]
        def when_asked():
            while not any(name.startswith("req_") for name in os.listdir(place)):
                pass
            os.kill(os.getpid(), signal.SIGALRM)
        threading.Thread(target=when_asked).start()
        try:
            h._call("sleep", {"s": 1, "text": "x" * 300_000})
        except Late:
            print("late", os.listdir(place))
        h._call("sleep", {"s": 1.5})
        """
    )
    assert out == "late []"
    assert way.names() == []
    assert len(way.clients) == 2


def test_a_signal_handler_may_call(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import signal
        echo(0)
        inner = []
        signal.signal(signal.SIGALRM, lambda *_: inner.append(echo("inner")["arguments"]["value"]))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        print(h._call("sleep", {"s": 0.6})["arguments"], inner)
        """
    )
    assert out == "{'s': 0.6} ['inner']"


def test_descriptors_closed_or_taken_while_a_call_waits(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import os, threading, time
        echo(1)
        def close():
            # Not while the request is being written, for then it is the script that spoils it.
            while not any(name.startswith("req_") for name in os.listdir(os.environ["HERMES_RPC_DIR"])):
                time.sleep(0.01)
            time.sleep(0.2)
            os.closerange(3, 256)
            taken = [os.open("cell.data", os.O_RDWR | os.O_CREAT) for _ in range(20)]
            time.sleep(2)
            print(*{os.lseek(fd, 0, os.SEEK_CUR) for fd in taken}, os.path.getsize("cell.data"))
        thread = threading.Thread(target=close)
        thread.start()
        # Answered between two looks of a second: one at this very moment finds the bell held by nobody.
        print(h._call("sleep", {"s": 1.5})["cell"])
        thread.join()
        print(echo(2)["cell"])
        """
    )
    assert out.splitlines() == ["1", "0 0", "1"]


def test_a_link_in_place_of_an_answer_is_not_followed(directory_rig: Rig) -> None:
    way = directory_rig.way

    def plant(call: str) -> bool:
        way.path("res_", call).symlink_to("/etc/hostname")
        way.ring(call)
        time.sleep(0.3)
        return True

    way.before = plant
    assert directory_rig.run("print(echo(1)['cell'])") == "1"


def test_time_and_polls_of_the_script(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import select, time
        time.sleep = time.time = time.monotonic = None
        del select.poll, select.epoll
        print(echo(1)["cell"], h._call("sleep", {"s": 1.2})["cell"])
        import os
        os.closerange(3, 256)
        print(echo(2)["cell"])
        """
    )
    assert out.splitlines() == ["1 1", "1"]


def test_a_reload_keeps_the_client(directory_rig: Rig) -> None:
    directory_rig.run("import importlib\necho(1)\nimportlib.reload(h)\nh._call('echo', {})")
    assert len(directory_rig.way.clients) == 1


def test_processes_of_a_pool_are_clients_of_their_own(directory_rig: Rig) -> None:
    out = directory_rig.run(
        """
        import multiprocessing
        echo(0)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print([r["arguments"]["value"] for r in pool.map(echo, range(30), 1)] == list(range(30)))
        print(echo(0)["cell"])
        """,
        PYTHONWARNINGS="ignore",
    )
    assert out.splitlines() == ["True", "1"]
    assert 2 <= len(directory_rig.way.clients) <= 4


def test_bells_of_processes_that_were_killed_have_no_reader(directory_rig: Rig) -> None:
    way = directory_rig.way
    process = directory_rig.start("import time\necho(1)\nprint(1, flush=True)\ntime.sleep(300)")
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (name,) = [name for name in way.names() if not name.startswith("res_")]  # the last answer it read may lie there
    with pytest.raises(OSError, match="No such device"):
        os.open(way.rpc / name, os.O_WRONLY | os.O_NONBLOCK)
