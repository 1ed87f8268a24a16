"""What a script does to the session's directory: nothing is lost by it, and nothing waits for ever."""

import os
import shutil
import time

import pytest
from directory_host import CALLS, busy, holder, wait_until

# --- it is removed ---------------------------------------------------------------------

# It is made anew while it is being removed.
REMOVE = "import shutil, os\nshutil.rmtree(os.environ['HERMES_RPC_DIR'].rsplit('/', 1)[0], ignore_errors=True)\n"


def test_a_cell_that_removes_the_directory_ends_with_its_record(host):
    session = host().ready_kernel()
    assert session.run(1, "print('before')\n" + REMOVE + "print('after')") == "before\nafter\n"
    assert session.run(2, CALLS + "print(call('echo', {'works': 'again'}))") == "{'works': 'again'}\n"
    session.drop()
    session.relink()
    session.begun()
    assert session.run(3, "print('on a later link')") == "on a later link\n"
    wait_until(lambda: holder(session.folder, 1))  # the guard too stands in the new one
    session.end()


def test_a_directory_removed_while_no_link_is_there(host):
    session = host().ready_kernel()
    session.cell(1, "import time\ntime.sleep(0.5)\nprint('x' * 300000)\n" + REMOVE + "print('after')")
    session.pump(lambda: not session.unstored)
    session.drop()
    time.sleep(1.0)
    session.relink()
    session.pump(lambda: session.done(1))
    assert session.output[1] == b"x" * 300000 + b"\nafter\n"
    session.end()


def test_calls_under_way_are_written_again(host):
    session = host().ready_kernel()
    session.hold = True
    remove = "def remove():\n    shutil.rmtree(D, ignore_errors=True)\n"
    start = "import shutil, threading\nthreading.Timer(0.5, remove).start()\n"
    session.cell(1, CALLS + remove + start + "print(call('slow', {'a': 1}))")
    session.pump(lambda: session.held)
    code = session.folder + "/code"
    before = os.stat(code).st_ino
    wait_until(lambda: os.path.exists(code) and os.stat(code).st_ino != before)
    requests = session.folder + "/rpc"
    wait_until(lambda: os.path.isdir(requests) and any(name.startswith("req_") for name in os.listdir(requests)))
    session.answer(session.held[0][0], {"b": 2})
    session.pump(lambda: session.done(1))
    assert session.output[1] == b"{'b': 2}\n"
    assert len(session.dispatched) == 1
    session.end()


def test_an_answer_that_comes_while_its_request_is_gone_is_kept(host):
    session = host().ready_kernel()
    session.hold = True
    # The stub looks up only after a while: until then its request is gone with the directory.
    remove = "def remove():\n    shutil.rmtree(D, ignore_errors=True)\n"
    start = "import shutil, threading\nthreading.Timer(0.5, remove).start()\n"
    session.cell(1, CALLS + remove + start + "print(call('slow', {'a': 1}))")
    session.pump(lambda: session.held)
    code = session.folder + "/code"
    before = os.stat(code).st_ino
    wait_until(lambda: os.path.exists(code) and os.stat(code).st_ino != before)
    session.answer(session.held[0][0], {"b": 2})
    session.pump(lambda: session.done(1))
    assert session.output[1] == b"{'b': 2}\n"
    assert len(session.dispatched) == 1
    session.end()


def test_a_session_whose_place_is_taken_ends_also_without_a_relay(host):
    session = busy(host())
    session.drop()
    os.rename(session.folder, session.folder + ".away")
    with open(session.folder, "x"):
        pass
    shutil.rmtree(session.folder + ".away")
    wait_until(lambda: not session.processes())
    assert not os.path.exists(session.spool)


def test_a_part_that_is_removed_is_made_again(host):
    session = host().ready_kernel()
    names = ("rpc", "in", "out", "disk")
    for name in names:
        os.rename(session.folder + "/" + name, session.folder + "/was-" + name)
    wait_until(lambda: all(os.path.isdir(session.folder + "/" + name) for name in names))
    assert session.run(1, CALLS + "print(call('echo', {'a': 1}))") == "{'a': 1}\n"
    session.end()


# --- its parts are damaged -------------------------------------------------------------


@pytest.mark.parametrize("bell", ["bell.r", "bell.s"])
def test_a_bell_that_is_removed_is_made_again(host, bell):
    session = host().ready_kernel()
    source = CALLS + "import os\nos.unlink(D + '/%s')\nprint(call('echo', {'a': 1}))" % bell
    assert session.run(1, source) == "{'a': 1}\n"
    wait_until(lambda: os.path.exists(session.folder + "/" + bell))
    began = time.monotonic()
    assert session.run(2, CALLS + "print(call('echo', {'a': 2}))") == "{'a': 2}\n"
    assert time.monotonic() - began < 10
    session.end()


@pytest.mark.parametrize("taken", [b"\xff" * 8, b"\0" * 8, b"garbage", b""])
def test_a_command_comes_through_whatever_is_written_into_taken(host, taken):
    session = host().ready_kernel()
    for number in (1, 3):
        source = "with open(%r, 'r+b') as file:\n    file.truncate(0)\n    file.write(%r)"
        session.run(number, source % (session.folder + "/taken", taken))
        assert session.run(number + 1, "print('ran')") == "ran\n"
        session.drop()
        session.relink()
        session.begun()
    session.end()


def test_a_relay_that_waits_for_nothing_rests(host):
    # Looks for what is awaited would come every 20 ms, those for nothing once in an hour.
    looks = ("relay", b"SECOND_LOOK, IDLE_LOOK = 1.0, 30.0", b"SECOND_LOOK, IDLE_LOOK = 0.02, 3600.0")
    session = host(patches=[looks]).ready_kernel()
    session.run(1, "print(1)")
    session.renewing = False
    with open(session.folder + "/bell.r", "wb") as bell:
        bell.write(b"!")  # a look, after which the next one is planned
    relay = holder(session.folder, 2)
    session.pump(lambda: wakes(relay) == wakes(relay, after=0.5))
    session.end()


def wakes(pid, after=0.0):
    """How often a process has gone to sleep."""
    time.sleep(after)
    with open("/proc/%d/status" % pid) as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
