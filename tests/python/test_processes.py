"""Process trees: nothing below a reaper survives its end, whatever it does to get away."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest
from target_side import FOLDER

# Becoming a subreaper changes the process, so each case runs in one of its own.
PRELUDE = """
import os, select, signal, sys, time
sys.path.insert(0, sys.argv[1])
import processes, trees
processes.become_subreaper()
null = processes.null()

def start(script, **how):
    return trees.spawn([b"/bin/sh", b"-c", script.encode()], dict(os.environb), b"/", (null, null, null), **how)

def events(tree, until, limit=10):
    got = []
    end = time.monotonic() + limit
    while until not in [kind for kind, _ in got]:
        assert time.monotonic() < end, got
        if select.select([tree.control], [], [], 0.1)[0]:
            kind, text = tree.receive()
            got.append((kind, text))
            if kind == "gone":
                break
    return got

def alive(mark):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = open("/proc/%s/cmdline" % entry, "rb").read()
                state = open("/proc/%s/stat" % entry, "rb").read().rsplit(b")", 1)[1].split()[0]
            except OSError:
                continue
            if mark.encode() in text.split(b"\\0") and state not in (b"Z", b"X"):
                found.append(int(entry))
    return found
"""


def run(body, **variables):
    # In the environment: a mark among our own arguments would find ourselves.
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(FOLDER)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def mark():
    """An argument of `sleep` that no other process has."""
    return "%d.%d" % (100_000 + os.getpid(), time.monotonic_ns() % 1_000_000)


ESCAPES = {
    "child": "sleep {0} & wait",
    "new session": "setsid sleep {0} & wait",
    "double fork": "(setsid sh -c 'sleep {0} &' &) ; sleep {0}",
    "deaf": "trap '' TERM INT HUP; sh -c \"trap '' TERM; while :; do sleep {0}; done\" & wait",
    "stopped": "sleep {0} & sleep 0.3; kill -STOP $!; wait",
}


@pytest.mark.parametrize("how", ESCAPES)
def test_killing_a_tree_leaves_nothing(how, mark):
    run(
        """
        mark = os.environ["MARK"]
        tree = start(os.environ["SCRIPT"])
        end = time.monotonic() + 10
        while not alive(mark):
            assert time.monotonic() < end
            time.sleep(0.01)
        tree.kill()
        assert events(tree, "gone")[-1][0] == "gone"
        assert alive(mark) == [], alive(mark)
        """,
        MARK=mark,
        SCRIPT=ESCAPES[how].format(mark),
    )


def test_the_ladder_lets_a_process_clean_up(tmp_path, mark):
    trace = tmp_path / "trace"
    run(
        """
        tree = start("trap 'echo cleaned > %s; exit 3' TERM; sleep 600 & wait" % os.environ["FILE"])
        time.sleep(0.3)
        tree.terminate()
        got = events(tree, "gone")
        assert ("status", b"%d" % (3 << 8)) in got, got
        """,
        FILE=str(trace),
    )
    assert trace.read_text() == "cleaned\n"


def test_how_the_main_process_ended_is_told_however_its_tree_is_ended():
    run(
        """
        for order, script in (
            ("kill", "sleep 600"),
            ("terminate", "trap 'exit 3' TERM; sleep 600 & wait"),
            ("terminate", "exec sleep 600"),
        ) * 10:
            tree = start(script)
            assert tree.control.recv(64) if select.select([tree.control], [], [], 10)[0] else False
            time.sleep(0.02)
            getattr(tree, order)()
            got = events(tree, "gone")
            assert [kind for kind, _ in got] == ["status", "gone"], (order, got)
        """
    )


def test_what_a_command_leaves_in_the_background_is_killed_with_the_session(mark):
    run(
        """
        mark = os.environ["MARK"]
        tree = start("setsid sleep %s & exit 7" % mark, outlived=True)
        got = events(tree, "status")
        assert ("status", b"%d" % (7 << 8)) in got, got
        time.sleep(0.2)
        assert len(alive(mark)) == 1
        assert processes.kill_below(os.getpid())
        assert alive(mark) == []
        """,
        MARK=mark,
    )


def test_a_reaper_leaves_with_the_last_that_a_command_left(mark):
    run(
        """
        tree = start("setsid sleep 0.5 & exit 7", outlived=True)
        begun = time.monotonic()
        assert ("status", b"%d" % (7 << 8)) in events(tree, "gone")
        assert time.monotonic() - begun > 0.3
        assert tree.remaining() == 0
        """,
        MARK=mark,
    )


def test_what_a_command_left_ends_when_all_above_it_is_killed(mark):
    run(
        """
        mark = os.environ["MARK"]
        supervisor = os.fork()
        if supervisor == 0:
            tree = start("setsid sleep %s & exit 7" % mark, outlived=True)
            events(tree, "status")
            while not alive(mark):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(supervisor, 0)
        deadline = time.monotonic() + 20
        while alive(mark):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        """,
        MARK=mark,
    )


def test_a_reaper_that_is_killed_does_not_free_its_tree(mark):
    run(
        """
        mark = os.environ["MARK"]
        tree = start("sleep %s & wait" % mark)
        main = int(dict(events(tree, "main"))["main"])
        while not alive(mark):
            time.sleep(0.01)
        os.kill(tree.pid, signal.SIGKILL)
        events(tree, "gone")
        processes.kill_tree(main)
        processes.reap()
        assert alive(mark) == []
        """,
        MARK=mark,
    )


def test_a_program_that_is_not_there_is_said():
    run(
        """
        tree = trees.spawn([b"/nowhere/at-all"], {}, b"/", (null, null, null))
        got = events(tree, "failed")
        assert any(kind == "failed" and b"No such file" in text for kind, text in got), got
        tree = trees.spawn([b"/bin/true"], {}, b"/nowhere", (null, null, null))
        got = events(tree, "failed")
        assert any(kind == "failed" and b"working directory" in text for kind, text in got), got
        """
    )


def test_the_main_process_inherits_nothing_but_what_it_is_given(tmp_path):
    listing = tmp_path / "fds"
    run(
        """
        extra = os.open("/dev/zero", os.O_RDONLY)
        kept, other = os.pipe()
        tree = start("ls -l /proc/$$/fd > %s" % os.environ["FILE"], keep=(kept,))
        events(tree, "status")
        """,
        FILE=str(listing),
    )
    text = listing.read_text()
    assert "/dev/zero" not in text
    assert text.count("pipe:") == 1


def test_this_folder_is_the_one_that_is_carried():
    assert (pathlib.Path(FOLDER) / "bootstrap.py").is_file()
