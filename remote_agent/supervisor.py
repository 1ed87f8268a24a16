"""The supervisor: one thread that starts the kernel and the jobs of a session, carries their output,
judges their deadlines, and says how each of them ended. It runs no user code. How its commands arrive
and its events leave is the conduit's business (`pipe`, `spool`).

Commands of the broker                  Events
                                        H here I am, with the session's folders
K start a kernel · S only say how       R kernel ready · F it failed to start · L it is gone while idle
C run a cell · 1 run it as a script     O output of a cell · D cell done
X stop a cell · E end the kernel        (D, L)
P stop a cell's clock, or let it go on
J run a job · Q stop a job or verb      o output of a job · d job done
V do a verb (a file operation)          v verb done
Z close the session
"""

from __future__ import annotations

import os
import time

import processes
import trees
from event_loop import Loop
from jobs import Job
from kernels import Cell, Kernel, OneShot
from verbs import Verbs

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Dict, List, Optional, Union

    from event_loop import Conduit
    from kernels import Program
else:
    import _signal as signal


class Supervisor:
    """The state of one session on its target."""

    def __init__(self, conduit: Conduit, folders: List[bytes], guard: int, life: int, program: Program) -> None:
        self._conduit = conduit
        self._loop = Loop(conduit)
        self._folders = folders
        self._guard = guard
        self._life = life
        self._program = program
        self._start: List[bytes] = []
        self._kernel: Optional[Union[Kernel, OneShot]] = None
        self._jobs: Dict[bytes, Job] = {}
        self._verbs = Verbs(self._loop, conduit, folders[0] if folders else b"")
        self._last_cell = 0
        self._closing = False

    def run(self) -> int:
        """Serves until the broker closes the session or is gone. The exit code of the process."""
        self._conduit.begin(self._loop, self._obey, self._abandon)
        self._loop.watch(self._life, self._guard_speaks)
        self._loop.send(b"H", *self._folders)
        self._wake_on_child()
        processes.become_subreaper()
        while not (self._closing and self._kernel is None):
            self._conduit.settle(self._is_busy())
            self._loop.turn(self._next_deadline())
            self._judge()
            processes.reap(wake=[tree.pid for tree in self._trees()])
        self._conduit.settle(False)
        self._clear(b"")
        return 0

    def _is_busy(self) -> bool:
        has_cell = self._kernel is not None and self._kernel.cell is not None
        return has_cell or bool(self._jobs) or self._verbs.are_under_way

    def _wake_on_child(self) -> None:
        wake = processes.wake_on_child()
        self._loop.watch(wake, lambda: processes.drain(wake))

    def _job_ended(self, job: Job) -> None:
        self._jobs.pop(job.number, None)

    def _kernel_gone(self, kernel: Union[Kernel, OneShot]) -> None:
        if self._kernel is kernel:
            self._kernel = None
        self._conduit.kernel_gone()

    def _trees(self) -> List[trees.Tree]:
        trees = [job.tree for job in self._jobs.values()]
        if self._kernel is not None:
            trees.append(self._kernel.tree)
        return [tree for tree in trees if tree is not None] + self._verbs.trees()

    def _clocks(self) -> List[Union[Conduit, Kernel, OneShot, Cell, Job, trees.Tree]]:
        clocks: List[Union[Conduit, Kernel, OneShot, Cell, Job, trees.Tree]] = [self._conduit, *self._jobs.values()]
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
                    if self._kernel is not None and clock.has_run_out():
                        self._kernel.stop(b"timeout", False)
                else:
                    clock.expired()

    def _guard_speaks(self) -> None:
        """The guard has said why the session is to end; or it has gone without a word."""
        why = os.read(self._life, 4096)
        if not why:
            processes.report("the guard of the session was killed; the session ends")
            why = b"the process that guards it was killed"
        self._abandon(why)

    def _abandon(self, why: bytes) -> None:
        """Nobody is left to serve: end everything now."""
        self._clear(why)
        os._exit(0)

    def _clear(self, why: bytes) -> None:
        # What changes files brings it to an end, or takes it back; all else is gone by then.
        processes.kill_below(os.getpid(), spared=self._verbs.close())
        self._verbs.settle()
        processes.kill_below(os.getpid())
        self._conduit.end(why)
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
        elif kind == b"P":
            kernel = self._kernel
            if kernel is not None and kernel.cell is not None and kernel.cell.number == fields[0]:
                kernel.cell.hold(float(fields[1]))
        elif kind == b"E":
            if self._kernel is not None:
                self._kernel.end()
        elif kind == b"J":
            self._start_job(fields)
        elif kind == b"Q":
            if fields[0] in self._jobs:
                self._jobs[fields[0]].stop()
            self._verbs.stop(fields[0])
        elif kind == b"V":
            self._verbs.run(fields)
        elif kind == b"Z":
            self._closing = True
            if self._kernel is not None:
                self._kernel.end()

    def _start_job(self, fields: List[bytes]) -> None:
        try:
            job = Job(self._loop, fields, self._job_ended)
        except OSError as error:  # out of descriptors or processes
            detail = str(error).encode("utf-8", "backslashreplace")
            self._loop.send(b"d", fields[0], b"failed", b"", detail, b"0", b"", b"")
            return
        if not job.ended:
            self._jobs[fields[0]] = job

    def _start_kernel(self, fields: List[bytes]) -> None:
        if self._kernel is None:
            try:
                self._kernel = Kernel(self._loop, self._program, fields, self._kernel_gone)
            except OSError as error:
                self._loop.send(b"F", fields[0], b"", str(error).encode("utf-8", "backslashreplace"))

    def _run(self, kind: bytes, fields: List[bytes]) -> None:
        number, timeout, out_cap, err_cap, folder = fields[:5]
        if int(number) <= self._last_cell:
            return  # a repeated message runs nothing
        self._last_cell = int(number)
        cell = Cell(self._loop, number, float(timeout), [int(out_cap), int(err_cap)])
        if folder and not os.access(folder, os.X_OK):
            cell.judged(b"unbegun")
            cell.finish(b"", b"the working directory cannot be entered", [])
            return
        if kind == b"1" and not self._start:
            cell.finish(b"", b"there was no room to say how; free space there and try again", [])
        elif kind == b"1":
            try:
                self._kernel = OneShot(self._loop, self._program, cell, self._start, fields[5:], self._kernel_gone)
            except OSError as error:
                cell.finish(b"", str(error).encode("utf-8", "backslashreplace"), [])
        elif isinstance(self._kernel, Kernel):
            self._kernel.run(cell, fields[5:])
        else:
            cell.judged(b"unbegun")
            cell.finish(b"", b"the kernel is gone", [])
