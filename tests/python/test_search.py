"""Searches on a target: their processes and their time. What they find is compared in `tests/search`."""

import os
import signal
import threading
import time

import pytest
from target_side import load

search = load("search")
searchers = load("searchers")
processes = load("processes")
search_walk = load("search_walk")
workspace = load("workspace")

# What Python tries for longer than anybody waits.
ENDLESS = b"x(?:a|aa)+b|^(?:a|aa)+b$"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("a" * 60 + "c\n")
    monkeypatch.setattr(search, "BLOCK_LIMIT", 0.5)
    return os.fsencode(tmp_path)


def lines(pattern):
    return [b".", b"lines", pattern, b"", b"", b"0", b"0", b"10"]


#: What other tests have left for a while.
OTHERS = set()


@pytest.fixture(autouse=True)
def of_others():
    OTHERS.clear()
    OTHERS.update(processes.descendants(os.getpid()))


def children():
    return [pid for pid in processes.descendants(os.getpid()) if pid not in OTHERS]


def test_a_search_leaves_no_process(folder):
    fields = searchers.perform(folder, b"", lines(b"c$"))
    assert fields[3:] == [b"f", b"1 0 0", b"a" * 60 + b"c"]
    with pytest.raises(workspace.WorkspaceError, match="more simply"):
        searchers.perform(folder, b"", lines(ENDLESS))
    assert not children() and not searchers._running and not searchers._numbers


def test_a_process_that_searched_is_kept_for_the_next_search_of_a_worker(folder):
    def search_as(number, pattern=b"c$"):
        searchers.begin(number)
        return searchers.perform(folder, b"", lines(pattern))

    try:
        assert search_as(b"1")[3] == b"f"
        (kept,) = children()
        assert search_as(b"2")[3] == b"f"
        assert children() == [kept]
        # One that fails is kept too, and its clock is put back.
        with pytest.raises(workspace.WorkspaceError, match="more simply"):
            search_as(b"3", ENDLESS)
        assert search_as(b"4")[3] == b"f"
        assert children() == [kept]
        # One that was stopped meanwhile is woken.
        os.kill(kept, signal.SIGSTOP)
        assert search_as(b"stopped")[3] == b"f"
        assert children() == [kept]
        # One that was killed meanwhile is not asked again.
        os.kill(kept, signal.SIGKILL)
        while os.path.exists("/proc/%d/fd/1" % kept):
            time.sleep(0.01)
        assert search_as(b"5")[3] == b"f"
        (other,) = children()
        assert other != kept
    finally:
        for one in searchers._idle:
            one.end()
        searchers._idle.clear()
    assert not children() and not searchers._running and not searchers._numbers


def test_one_that_is_stopped_ends_at_once(folder, monkeypatch):
    monkeypatch.setattr(search, "BLOCK_LIMIT", 300.0)
    said = []

    def work(number):
        searchers.begin(number)
        with pytest.raises(workspace.WorkspaceError) as error:
            searchers.perform(folder, b"", lines(ENDLESS))
        said.append(str(error.value))

    thread = threading.Thread(target=work, args=(b"7",))
    thread.start()
    end = time.monotonic() + 30
    while not searchers._running.get(b"7"):
        assert time.monotonic() < end
        time.sleep(0.01)
    searchers.stop(b"8")
    searchers.stop(b"7")
    thread.join(30)
    assert said and not children() and not searchers._running

    # Before it has a process of its own.
    searchers.begin(b"9")
    searchers.stop(b"9")
    with pytest.raises(workspace.WorkspaceError, match="stopped"):
        searchers.perform(folder, b"", lines(b"c$"))
    assert not searchers._running


def test_one_whose_process_is_killed_says_so(folder, monkeypatch):
    monkeypatch.setattr(search, "answer", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(workspace.WorkspaceError, match="did not come to an end"):
        searchers.perform(folder, b"", lines(b"c$"))
    assert not children()


def test_where_no_process_can_be_started(folder, monkeypatch):
    def fork():
        raise processes.NoProcess(11, "no process can be started")

    monkeypatch.setattr(processes, "fork", fork)
    # This one does nothing else: it searches itself.
    assert searchers.perform(folder, b"", lines(b"c$"))[3] == b"f"
    with pytest.raises(workspace.WorkspaceError, match="more simply"):
        searchers.perform(folder, b"", lines(ENDLESS))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    # A worker does more, and would be held up.
    searchers.begin(b"1")
    with pytest.raises(workspace.WorkspaceError, match="could be started"):
        searchers.perform(folder, b"", lines(b"c$"))
    assert not searchers._running


def test_time_in_which_it_stood_still_is_not_charged(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(search.time, "monotonic", lambda: now[0])
    clock = search._Clock()
    for _ in range(50):
        now[0] += 3600
        clock._look()
    with pytest.raises(search.TimeIsUp):
        for _ in range(400):
            now[0] += search.TICK
            clock._look()
    assert "60 s" in clock.complaint()


def test_who_searches_a_whole_machine_does_not_mean_the_files_of_the_kernel(tmp_path, monkeypatch):
    for name in ("here", "made", "made/up"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("")
    assert search_walk.OF_THE_KERNEL == (b"/proc", b"/sys")
    monkeypatch.setattr(search_walk, "OF_THE_KERNEL", (os.fsencode(tmp_path / "made"),))

    def found(root):
        walk = search_walk.Walk(os.fsencode(root), None, True, lambda path, error: None)
        return [path for path, _ in walk.files()]

    assert found(tmp_path) == [b"here/f"]
    assert found(tmp_path / "made") == [b"f", b"up/f"]
