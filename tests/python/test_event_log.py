"""The event log between supervisor and relay: every byte once and in order, whatever is full, removed or begun anew."""

import contextlib
import os
import random

import pytest
from target_side import load

directory = load("directory")
event_log = load("event_log")
log_reader = load("log_reader")


class Rig:
    def __init__(self, path, monkeypatch):
        self.path = os.fsencode(path / "talaria-x")
        self.disk = os.fsencode(path / "talaria-x-disk")
        directory.make(self.path, self.disk, {})
        self.folder = directory.Directory(self.path)
        self.log = event_log.EventLog(self.folder)
        self.reader = log_reader.LogReader(directory.Directory(self.path), 0)
        self.full = lambda: False
        self.sent = bytearray()
        self.got = bytearray()

        def write(fd, data):
            if self.full():
                return 0
            return os.write(fd, data[: random.choice((1 << 20, max(1, len(data) // 2)))])

        monkeypatch.setattr(event_log, "_try_write", write)

    def append(self, size, droppable=False):
        data = os.urandom(size)
        if self.log.append(data, droppable):
            self.sent += data
            return True
        return False

    def read(self, limit=65536):
        data = self.reader.read(limit)
        self.got += data
        return data

    def acknowledge(self):
        self.folder.set_number(b"acked", len(self.got))
        self.reader.acknowledge(len(self.got))

    def begin_anew(self):
        self.reader = log_reader.LogReader(directory.Directory(self.path), len(self.got))

    def remove_directory(self):
        for folder, inner, files in os.walk(self.path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in inner:
                one = os.path.join(folder, name)
                (os.unlink if os.path.islink(one) else os.rmdir)(one)
        os.rmdir(self.path)
        assert self.folder.is_gone()
        directory.make(self.path, self.disk, {b"acked": self.folder.number(b"acked")})
        self.folder.open()
        self.log.make_again()
        self.begin_anew()

    def finish(self):
        self.full = lambda: False
        for _ in range(20):
            self.log.retry()
            while self.read():
                self.acknowledge()
            if len(self.got) == len(self.sent):
                break
            self.begin_anew()
        assert self.got == self.sent
        assert self.log.end == len(self.sent)


@pytest.fixture
def rig(tmp_path, monkeypatch):
    """A log, whose descriptors nobody closes but the end of its process."""
    before = set(os.listdir("/proc/self/fd"))
    yield Rig(tmp_path, monkeypatch)
    for name in set(os.listdir("/proc/self/fd")) - before:
        with contextlib.suppress(OSError):  # that of the listing itself
            os.close(int(name))


def segments(folder):
    return sorted(int(name, 16) for name in os.listdir(folder) if len(name) == 16)


def test_what_is_acknowledged_is_removed_and_no_more(rig):
    for _ in range(40):
        rig.append(50_000)
        while rig.read():
            rig.acknowledge()
    assert len(segments(rig.path + b"/out")) == 1
    assert segments(rig.disk) == []
    rig.finish()


def test_little_lies_in_memory_and_much_on_the_disk(rig):
    for _ in range(100):
        rig.append(50_000)
    assert len(segments(rig.path + b"/out")) <= 3
    assert len(segments(rig.disk)) > 10
    rig.finish()
    assert len(segments(rig.path + b"/out") + segments(rig.disk)) == 1


def test_output_without_room_is_refused_and_records_arrive(rig):
    rig.append(1000)
    rig.full = lambda: True
    assert not rig.append(1000, droppable=True)
    assert rig.append(30_000)
    assert not rig.append(1000, droppable=True)
    assert rig.append(200_000)  # more than the reserve holds
    while rig.read():
        pass
    assert len(rig.got) < len(rig.sent)
    for _ in range(10):
        rig.acknowledge()
        rig.log.retry()
        while rig.read():
            pass
    assert rig.got == rig.sent  # and the disk is full still
    rig.full = lambda: False
    assert rig.append(1000, droppable=True)
    rig.finish()


@pytest.mark.parametrize("seed", range(10))
def test_any_course_of_events_loses_and_doubles_nothing(rig, seed):
    dice = random.Random(seed)
    random.seed(seed)
    full = [False]
    rig.full = lambda: full[0] and dice.random() < 0.9
    for _ in range(250):
        act = dice.random()
        if act < 0.45:
            rig.append(dice.choice((1, 100, 5000, 70_000, 200_000)), droppable=dice.random() < 0.5)
        elif act < 0.75:
            rig.read(dice.choice((1, 1000, 65536)))
        elif act < 0.85:
            rig.acknowledge()
        elif act < 0.9:
            full[0] = dice.random() < 0.4
        elif act < 0.94:
            rig.log.retry()
        elif act < 0.97:
            rig.begin_anew()
        elif not full[0]:
            rig.remove_directory()
        assert rig.sent.startswith(rig.got)
    rig.finish()
