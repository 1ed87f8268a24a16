"""The supervisor: one thread that starts the kernel and the jobs of a session, carries their output,
judges their deadlines, and says how each of them ended. It runs no user code.

Messages from the broker (fd 0)        Messages to the broker (fd 1)
                                        H here I am, with the session's folders
K start a kernel · S only say how       R kernel ready · F it failed to start · L it is gone while idle
C run a cell · 1 run it as a script     O output of a cell · D cell done
X stop a cell · E end the kernel        (D, L)
J run a job · Q stop a job              o output of a job · d job done
Z close the session
"""

from __future__ import annotations

import os
import select
import time

import processes
import wire
from jobs import Job
from kernels import Cell, Kernel, OneShot

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Callable, Dict, List, Optional, Set, Union

    from kernels import Program
else:
    import _signal as signal

#: The longest that one wait may take: `poll` counts milliseconds in an int.
LONGEST_WAIT = 3600.0
#: Bytes waiting for the broker above which nothing more is read from the kernel and the jobs.
BACKLOG = 1 << 20


def remove(folders: List[bytes]) -> None:
    """Removes the session's folders."""
    for folder in folders:
        try:
            if os.lstat(folder).st_uid != os.geteuid():
                continue  # somebody took the name after a cell had removed ours
            for _, inner, files, fd in os.fwalk(folder, topdown=False):
                for name in files + inner:
                    _remove_one(name, fd)
        except OSError:
            pass
        _remove_one(folder, None)


def _remove_one(name: bytes, folder: Optional[int]) -> None:
    for remove_it in (os.unlink, os.rmdir):
        try:
            remove_it(name, dir_fd=folder)
            return
        except OSError:
            pass


class Loop:
    """Descriptors, deadlines and messages; what they mean is in `Supervisor`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._read: Dict[int, Callable[[], None]] = {}
        self._write: Dict[int, Callable[[], None]] = {}
        self._bulk: Set[int] = set()
        self._outbox = bytearray()
        self._blocked = False

    def watch(self, fd: int, ready: Callable[[], None], bulk: bool = False) -> None:
        """Calls ``ready`` when fd can be read. Bulk is not read while the broker is behind."""
        self._read[fd] = ready
        if bulk:
            self._bulk.add(fd)
        self._update(fd)

    def watch_writable(self, fd: int, wanted: bool, ready: Callable[[], None]) -> None:
        """Calls ``ready`` when fd can be written, as long as that is wanted."""
        if wanted != (fd in self._write):
            if wanted:
                self._write[fd] = ready
            else:
                del self._write[fd]
            self._update(fd)

    def unwatch(self, fd: int) -> None:
        """Forgets a descriptor that is about to be closed."""
        self._read.pop(fd, None)
        self._write.pop(fd, None)
        self._bulk.discard(fd)
        self._update(fd)

    def send(self, kind: bytes, *fields: bytes) -> None:
        """Queues a message for the broker."""
        self._outbox += wire.pack(kind, *fields)
        if not self._blocked:
            self.flush()

    def flush(self) -> None:
        """Writes what the broker takes now."""
        try:
            while self._outbox:
                del self._outbox[: os.write(1, self._outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # the broker is gone; fd 0 says so too
        behind = len(self._outbox) > BACKLOG
        if behind != self._blocked:
            self._blocked = behind
            for fd in self._bulk:
                self._update(fd)
        self.watch_writable(1, bool(self._outbox), self.flush)

    def turn(self, timeout: Optional[float]) -> None:
        """Waits for descriptors and serves them."""
        wait = None if timeout is None else max(0, int(min(timeout, LONGEST_WAIT) * 1000) + 1)
        for fd, events in self._poll.poll(wait):
            if events & select.POLLOUT and fd in self._write:
                self._write[fd]()
            if events & ~select.POLLOUT:
                if fd in self._read:
                    self._read[fd]()
                elif fd in self._write:
                    self._write[fd]()

    def _update(self, fd: int) -> None:
        events = 0
        if fd in self._read and not (self._blocked and fd in self._bulk):
            events |= select.POLLIN
        if fd in self._write:
            events |= select.POLLOUT
        if events:
            self._poll.register(fd, events)
        else:
            try:
                self._poll.unregister(fd)
            except KeyError:
                pass

    def job_ended(self, job: Job) -> None:
        """Called by a job just before its record is sent."""
        raise NotImplementedError

    def kernel_gone(self, kernel: Union[Kernel, OneShot]) -> None:
        """Called by a kernel when nothing is left of it."""
        raise NotImplementedError


class Supervisor(Loop):
    """The state of one session on its target."""

    def __init__(self, folders: List[bytes], guard: int, life: int, program: Program) -> None:
        super().__init__()
        self._folders = folders
        self._guard = guard
        self._life = life
        self._program = program
        self._reader = wire.Reader()
        self._start: List[bytes] = []
        self._kernel: Optional[Union[Kernel, OneShot]] = None
        self._jobs: Dict[bytes, Job] = {}
        self._last_cell = 0
        self._closing = False

    def run(self) -> int:
        """Serves until the broker closes the session or is gone. The exit code of the process."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.watch(0, self._from_broker)
        self.watch(self._life, self._guard_gone)
        self.send(b"H", *self._folders)
        self._wake_on_child()
        processes.become_subreaper()
        while not (self._closing and self._kernel is None):
            self.turn(self._next_deadline())
            self._judge()
            processes.reap(wake=[tree.pid for tree in self._trees()])
        self._clear()
        return 0

    def _wake_on_child(self) -> None:
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.watch(wake, lambda: processes.drain(wake))

    def job_ended(self, job: Job) -> None:
        self._jobs.pop(job.number, None)

    def kernel_gone(self, kernel: Union[Kernel, OneShot]) -> None:
        if self._kernel is kernel:
            self._kernel = None

    def _trees(self) -> List[processes.Tree]:
        trees = [job.tree for job in self._jobs.values()]
        if self._kernel is not None:
            trees.append(self._kernel.tree)
        return [tree for tree in trees if tree is not None]

    def _clocks(self) -> List[Union[Kernel, OneShot, Cell, Job, processes.Tree]]:
        clocks: List[Union[Kernel, OneShot, Cell, Job, processes.Tree]] = list(self._jobs.values())
        clocks += self._trees()
        if self._kernel is not None:
            clocks.append(self._kernel)
            if self._kernel.cell is not None:
                clocks.append(self._kernel.cell)
        return clocks

    def _next_deadline(self) -> Optional[float]:
        due = [clock.deadline for clock in self._clocks() if clock.deadline is not None]
        return min(due) - time.monotonic() if due else None

    def _judge(self) -> None:
        now = time.monotonic()
        for clock in self._clocks():
            if clock.deadline is not None and clock.deadline <= now:
                if isinstance(clock, Cell):
                    if self._kernel is not None:
                        self._kernel.stop(b"timeout", False)
                else:
                    clock.expired()

    def _guard_gone(self) -> None:
        processes.report("the guard of the session was killed; the session ends")
        self._abandon()

    def _from_broker(self) -> None:
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._abandon()
        for kind, fields in self._reader.feed(data):
            self._obey(kind, fields)

    def _abandon(self) -> None:
        """Nobody is left to serve: end everything now."""
        self._clear()
        os._exit(0)

    def _clear(self) -> None:
        processes.kill_below(os.getpid())
        remove(self._folders)
        # A cell may have stopped the guard: it has to see our end to come to its own.
        if os.getppid() == self._guard:
            processes.signal_all([self._guard], signal.SIGCONT)

    def _obey(self, kind: bytes, fields: List[bytes]) -> None:
        if kind in (b"K", b"S"):
            self._start = fields
            if kind == b"K":
                self._start_kernel(fields)
        elif kind in (b"C", b"1"):
            self._run(kind, fields)
        elif kind == b"X":
            kernel = self._kernel
            if kernel is not None and kernel.cell is not None and kernel.cell.number == fields[0]:
                kernel.stop(b"interrupted", fields[1] == b"now")
        elif kind == b"E":
            if self._kernel is not None:
                self._kernel.end()
        elif kind == b"J":
            self._jobs[fields[0]] = job = Job(self, fields)
            if job.ended:
                del self._jobs[fields[0]]
        elif kind == b"Q":
            if fields[0] in self._jobs:
                self._jobs[fields[0]].stop()
        elif kind == b"Z":
            self._closing = True
            if self._kernel is not None:
                self._kernel.end()

    def _start_kernel(self, fields: List[bytes]) -> None:
        if self._kernel is None:
            try:
                self._kernel = Kernel(self, self._program, fields)
            except OSError as error:
                self.send(b"F", fields[0], b"", str(error).encode("utf-8", "backslashreplace"))

    def _run(self, kind: bytes, fields: List[bytes]) -> None:
        number, timeout, out_cap, err_cap = fields[:4]
        if int(number) <= self._last_cell:
            return  # a repeated message runs nothing
        self._last_cell = int(number)
        cell = Cell(self, number, float(timeout), [int(out_cap), int(err_cap)])
        if kind == b"1":
            try:
                self._kernel = OneShot(self, self._program, cell, self._start, fields[4:])
            except OSError as error:
                cell.finish(b"", str(error).encode("utf-8", "backslashreplace"), [])
        elif isinstance(self._kernel, Kernel):
            self._kernel.run(cell, fields[4:])
        else:
            cell.judged(b"unbegun")
            cell.finish(b"", b"the kernel is gone", [])
