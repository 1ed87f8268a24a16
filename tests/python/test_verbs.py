"""The worker of file operations: its life, and pages cut small. `tests/verbs.rs` holds it against the broker's own."""

import os
import random
import subprocess
import sys
import textwrap

import pytest
from target_side import FOLDER, load

# A supervisor's loop around nothing but verbs; `wait(N)` gives the record of verb N. Verbs do what the
# case makes of `perform`.
PRELUDE = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import event_loop, processes, trees, verbs, workspace

class Loop(event_loop.Loop):
    def send(self, kind, *fields):
        done[fields[0]] = (fields[1], fields[2:])

    def offer(self, kind, *fields):
        if has_room:
            self.send(kind, *fields)
        return has_room

def turn():
    loop.turn(0.1)
    processes.reap(wake=[tree.pid for tree in v.trees()])
    for tree in v.trees():
        if tree.deadline is not None and tree.deadline <= time.monotonic():
            tree.expired()

def until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, done
        turn()

def wait(number):
    until(lambda: number in done)
    return done[number]

def run(number, *arguments):
    v.run([number, b"verb", b"/", b"", b"", *arguments])

def child(pid):
    until(lambda: processes.descendants(pid))
    return processes.descendants(pid)[0]

def perform(verb, folder, home, arguments):
    if arguments[0] == b"sleep":
        time.sleep(300)
    return [b"%d" % os.getpid(), *arguments]

done = {}
has_room = True
workspace.perform = perform
processes.become_subreaper()
loop = Loop(None)
wake = processes.wake_on_child()
loop.watch(wake, lambda: processes.drain(wake))
v = verbs.Verbs(loop, None, b"")
"""


def run(body):
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", PRELUDE + textwrap.dedent(body), str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


END = "assert processes.kill_below(os.getpid())"


def test_there_is_no_worker_before_the_first_verb_and_one_for_all():
    out = run(
        """
        print(processes.nothing_below(), len(v.trees()))
        for number in (b"1", b"2"):
            run(number, b"x")
            print(*wait(number))
        print(len(v.trees()), done[b"1"] == done[b"2"])
        """
        + END
    )
    assert out[:2] == ["True", "0"] and out[-2:] == ["1", "True"]


def test_verbs_wait_for_none_before_them():
    out = run(
        """
        for number in range(40):
            run(b"%d" % number, b"sleep")
        run(b"40", b"x")
        print(wait(b"40")[0], len(done))
        v.stop(b"3")
        print(*wait(b"3")[1], len(done))
        v.stop(b"3"); v.stop(b"99"); turn()
        print(len(done))
        """
        + END
    )
    assert out == ["b'ok'", "1", "b'the", "file", "operation", "was", "stopped'", "2", "2"]


@pytest.mark.parametrize("victim", ["child(v.trees()[0].pid)", "v.trees()[0].pid"])
def test_a_killed_worker_is_an_error_and_the_next_verb_has_another(victim):
    out = run(
        """
        run(b"1", b"x"); wait(b"1")
        run(b"2", b"sleep"); run(b"3", b"sleep")
        os.kill(%s, signal.SIGKILL)
        for number in (b"2", b"3"):
            kind, (sentence,) = wait(number)
            assert kind == b"error" and b"was killed" in sentence, sentence
        run(b"4", b"x")
        print(wait(b"4")[0], done[b"1"] == done[b"4"])
        until(lambda: len(v.trees()) == 1)
        until(lambda: len(processes.descendants(os.getpid())) == 2)
        """
        % victim
        + END
    )
    assert out == ["b'ok'", "False"]


@pytest.mark.parametrize("victim", ["child(v.trees()[0].pid)", "v.trees()[0].pid"])
def test_a_stopped_worker_goes_on(victim):
    run(
        """
        run(b"1", b"x"); wait(b"1")
        os.kill(%s, signal.SIGSTOP)
        run(b"2", b"x")
        assert wait(b"2") == done[b"1"]
        """
        % victim
        + END
    )


def test_the_worker_is_not_left_of_the_session():
    out = run(
        """
        run(b"1", b"x"); wait(b"1")
        null = processes.null()
        def start(script, until):
            argv = [b"/bin/sh", b"-c", script]
            tree = trees.spawn(argv, dict(os.environb), b"/", (null, null, null), outlived=True)
            while tree.receive()[0] != until:
                time.sleep(0.01)
            return tree
        print(start(b"exit 0", "gone").remaining())
        background = start(b"sleep 300 & exit 0", "status")
        print(start(b"exit 0", "gone").remaining() > 0)
        background.kill()
        """
        + END
    )
    assert out == ["0", "True"]


def test_a_result_of_the_largest_size_passes():
    out = run(
        """
        run(b"1", b"x" * (64 << 20)); run(b"2", b"y")
        print(len(wait(b"1")[1][1]), wait(b"2")[0])
        """
        + END
    )
    assert out == [str(64 << 20), "b'ok'"]


def test_a_result_without_room_is_an_error():
    out = run(
        """
        has_room = False
        run(b"1", b"x" * 100_000); run(b"2", b"y" * 10_000)
        print(wait(b"2")[0], *wait(b"1")[1])
        """
        + END
    )
    assert out[0] == "b'ok'" and "no room" in " ".join(out[1:])


class Text:
    """A source that comes in small chunks."""

    def __init__(self, data, size, step=7):
        self.size, self.step = size, step
        self.data = data

    def chunk(self):
        data, self.data = self.data[: self.step], self.data[self.step :]
        return data


def read(data, offset="1", limit=2000, raw=False, cap=64 << 20, step=7, counted=256 << 20):
    page = load("page")
    content, lines, size, after = page.read(
        Text(data, len(data), step), page.parse_start(offset), limit, raw, cap, counted
    )
    assert int(size) == len(data)
    return content, lines, after


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_line_longer_than_a_page_comes_in_pieces(step):
    data = b"0123456789abcdefghij\nshort\n"
    assert read(data, "1", 9, False, 18, step) == (b"1|0123456789abcdef", b"2", b"1:16")
    assert read(data, "1:16", 9, False, 18, step) == (b"1|ghij", b"2", b"2")


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_huge_file_is_not_counted_to_its_end(step):
    data = b"\n" * 20_000
    assert read(data, "3", 2, False, 1000, step, 10_000) == (b"3|\n4|", b"", b"5")
    assert read(data, "19999", 2, False, 1000, step, 10_000) == (b"19999|\n20000|", b"20000", b"")


def test_raw_pages_joined_are_the_file():
    draw = random.Random(7)
    for _ in range(300):
        text = "".join(draw.choice("ab\u00e9\u20ac\U0001f600\r\n\n") for _ in range(draw.randrange(120)))
        data, joined, offset = text.encode(), b"", "1"
        limit, cap, step = draw.randrange(1, 4), draw.randrange(16, 60), draw.randrange(1, 40)
        while offset:
            content, lines, after = read(data, offset, limit, True, cap, step)
            assert len(content) <= cap and after.decode() != offset
            assert lines == b"%d" % (data.count(b"\n") + (not data.endswith(b"\n") and bool(data)))
            joined, offset = joined + content, after.decode()
        assert joined == data


def test_a_full_page_is_the_same_whether_lines_are_taken_alone_or_together():
    draw = random.Random(8)
    for _ in range(300):
        rows = [b"x" * draw.randrange(12) for _ in range(draw.randrange(1, 60))]
        data = b"\r\n".join(rows)
        cap, raw = draw.randrange(16, 700), draw.random() < 0.5
        pages = {read(data, "2", 50, raw, cap, step) for step in (1, 13, 10_000)}
        assert len(pages) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_rights_are_respected(tmp_path):
    workspace = load("workspace")
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o444)

    def write(name):
        return workspace.write(os.fsencode(tmp_path), b"", name, b"new", [])

    with pytest.raises(workspace.WorkspaceError, match="no right to write it .mode 444, of user"):
        write(b"f")
    assert path.read_text() == "old"
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    write(b"f")
    assert path.read_text() == "new"
    with pytest.raises(workspace.WorkspaceError, match="make anything in the folder /.* .mode 555, of user"):
        write(b"g")
    os.link(path, tmp_path.parent / "another name")
    with pytest.raises(workspace.WorkspaceError, match="2 names"):
        write(b"f")
    tmp_path.chmod(0o444)
    with pytest.raises(workspace.WorkspaceError, match="no right to enter the folder /.* .mode 444, of user"):
        write(b"f")
    tmp_path.chmod(0o755)
