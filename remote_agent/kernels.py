"""Kernels and cells: how a kernel is started, given cells, ended, and what it means that it is gone."""

from __future__ import annotations

import marshal
import os
import struct
import sys
import time

import control_groups
import processes
import trees
import wire
from capture import Capture, prepare
from jobs import write_private

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    import socket
    from types import CodeType
    from typing import Callable, List, Optional, Tuple

    from event_loop import Loop

    #: Modules of the kernel in the order of their imports: name, source, and what gives the compiled code.
    Program = List[Tuple[str, bytes, Callable[[], CodeType]]]
else:
    import _signal as signal
    import _socket as socket

#: Seconds in which a kernel must say that it is ready.
START_LIMIT = 30.0
#: A format that every interpreter reads, as far as it holds no code.
_MARSHAL_OF_ALL = 2
#: Seconds that an idle kernel gets for its exit handlers.
EXIT_LIMIT = 1.0

# Reads its program from the channel, so that `ps` shows none of it. The current folder leaves the path
# until the kernel has what it needs: the project may shadow the standard library. The kernel's builtins
# are its own, for a cell may replace those that it shares.
RUN_PROGRAM = (
    b"b=dict(vars(__builtins__))\n"
    b'for n,s in __import__("marshal").loads(p):'
    b'm=sys.modules[n]=type(sys)(n);m.__dict__.update({"__builtins__":b,%s});'
    b'exec(compile(s,"<talaria kernel>","exec") if type(s) is bytes else s,m.__dict__)'
)
_LOADER = (
    b"import os,sys;sys.path[:]=[p for p in sys.path if p];c,w=map(int,sys.argv[1:]);"
    b'r=lambda n,b=b"":b if len(b)>=n else r(n,b+os.read(c,n-len(b)));p=r(int(r(8)));'
) + RUN_PROGRAM % b'"CHANNEL":c,"WITNESS":w'
_ONCE_LOADER = (
    b"import sys;sys.path[:]=[p for p in sys.path if p];o=sys.argv[1];p=open(o+'.kernel','rb').read();"
) + RUN_PROGRAM % b'"ONCE":o'


class Cell:
    """One run: its two pipes, its clock, and the one record of how it ended."""

    def __init__(self, loop: Loop, number: bytes, timeout: float, caps: List[int]) -> None:
        self.number = number
        self._loop = loop
        self.out = Capture(loop, caps[0], lambda data: loop.send(b"O", number, b"1", data))
        self.err = Capture(loop, caps[1], lambda data: loop.send(b"O", number, b"2", data))
        self._timeout = timeout
        self._left: Optional[float] = None  # what it may still run, while its clock stands still
        self._held_since = 0.0
        self.begin()
        self.why = b"done"
        self._seconds: Optional[float] = None

    def begin(self) -> None:
        """Starts its clock."""
        self._started = time.monotonic()
        self.deadline: Optional[float] = self._started + self._timeout

    def hold(self, at_most: float) -> None:
        """Stops its clock for so long at most, or lets it go on (0)."""
        now = time.monotonic()
        if self.deadline is None:
            return  # it has not begun, or has ended
        if self._left is None and at_most > 0:
            self._left = max(0.0, self.deadline - now)
            self._held_since = now
        if self._left is not None:
            if at_most > 0:
                self.deadline = now + at_most
            else:
                self._go_on(now)

    def has_run_out(self) -> bool:
        """Its deadline has come: whether it is the cell's own, and not that of a clock that stands still."""
        if self._left is None:
            return True
        self._go_on(time.monotonic())
        return False

    def _go_on(self, now: float) -> None:
        if self._left is not None:
            self._started += now - self._held_since
            self.deadline = now + self._left
            self._left = None

    def wait(self) -> None:
        """Stops its clock: it has not begun."""
        self.deadline = None

    def judged(self, why: bytes) -> bool:
        """The first verdict holds. Whether this one does."""
        now = time.monotonic()
        self._go_on(now)
        self.deadline = None
        if self._seconds is None:
            self._seconds = now - self._started
            self.why = why
            return True
        return False

    def finish(self, status: bytes, detail: bytes, result: List[bytes]) -> None:
        """Writes the record, after every byte of output."""
        self.judged(b"gone")
        self.out.finish()
        self.err.finish()
        self._loop.send(
            b"D",
            self.number,
            self.why,
            status,
            detail,
            wire.number(self._seconds or 0.0),
            wire.number(self.out.skipped),
            self.out.tail(),
            wire.number(self.err.skipped),
            self.err.tail(),
            *result,
        )
        self._loop.later(lambda: prepare(2))


class Kernel:
    """A kernel process and everything below it."""

    def __init__(self, loop: Loop, program: Program, fields: List[bytes], when_gone: Callable[[Kernel], None]) -> None:
        self._when_gone = when_gone
        generation, python, folder, environment, session_folder, stub, link = fields
        self.generation = generation
        self.cell: Optional[Cell] = None
        self.deadline: Optional[float] = time.monotonic() + START_LIMIT
        self._loop = loop
        self._ready = False
        self._ending = False
        self._terminating = False
        self._main = 0
        self._status = b""
        self._detail = b""
        self._reader = wire.Reader()
        self._outbox = bytearray()
        self._first: List[bytes] = []  # of a cell that came before the kernel was ready
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel leaves a byte here when it begins a cell. Looked at only when it has died: a message
        # would wake us in the middle of every cell.
        self._witness, witness = os.pipe()
        os.set_blocking(self._witness, False)
        quiet = processes.null()
        try:
            self.tree = trees.spawn(
                [python, b"-c", _LOADER, b"%d" % theirs.fileno(), b"%d" % witness],
                wire.unpack_variables(environment),
                folder,
                (quiet, quiet, quiet),
                keep=(theirs.fileno(), witness),
                apart=_own_folder(session_folder),
            )
        finally:
            theirs.close()
            os.close(witness)
            os.close(quiet)
        self._channel.setblocking(False)
        loop.watch(self.tree.control.fileno(), self._event)
        loop.watch(self._channel.fileno(), self._readable)
        # Compiled here while the interpreter over there starts.
        self._send_program(program, python)
        stub_code = marshal.dumps(compile(stub, os.fsdecode(session_folder) + "/lib/hermes_tools.py", "exec", 0, True))
        self._memory_kills = control_groups.kills()
        same = b"1" if _same_interpreter(python) else b""
        self._send(wire.pack(b"B", session_folder, stub, stub_code if same else b"", link, folder))

    def run(self, cell: Cell, message: List[bytes]) -> None:
        """Hands a cell over: its text, and the writing ends of its pipes. To one that is starting once it is ready."""
        self.cell = cell
        if not self._ready:
            self._first = message
            cell.wait()
            return
        self._has_begun()  # takes what earlier cells left
        cell.begin()
        if self._main:
            processes.signal_all([self._main], signal.SIGCONT)  # somebody may have stopped it
        packed = wire.pack(b"C", cell.number, *message)
        # The pipes travel with the first byte; the kernel's channel is idle, so it fits.
        ends = struct.pack("2i", cell.out.write_end, cell.err.write_end)
        try:
            sent = self._channel.sendmsg([packed[:65536]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
        except OSError:
            sent = len(packed)  # the channel's end shows in `_readable`
        cell.out.close_write_end()
        cell.err.close_write_end()
        if sent < len(packed):
            self._send(packed[sent:])

    def stop(self, why: bytes, at_once: bool) -> None:
        """Ends the running cell, and the kernel with it."""
        if self.cell is not None and self.cell.judged(why):
            self._ending = self._terminating = True
            self.tree.terminate()
        if at_once:
            self.tree.kill()

    def end(self) -> None:
        """Ends an idle kernel: exit handlers first, then everything below it."""
        self._ending = True
        self.deadline = time.monotonic() + EXIT_LIMIT
        self._close_channel()

    def expired(self) -> None:
        """The deadline of the kernel itself has come: it did not start, or did not leave."""
        self.deadline = None
        if not self._ready:
            self._detail = b"it did not get ready within %d s" % START_LIMIT
        elif not self._ending:
            self._detail = b"the kernel's own channel was closed"
        self.tree.kill()

    def _send_program(self, program: Program, python: bytes) -> None:
        if _same_interpreter(python):
            body = marshal.dumps([(name, code()) for name, _, code in program])
        else:
            body = texts(program)
        self._send(b"%08d" % len(body) + body)

    def _send(self, data: bytes) -> None:
        self._outbox += data
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                sent = self._channel.send(self._outbox[:65536])
                del self._outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()
        if self._channel.fileno() >= 0:
            self._loop.watch_writable(self._channel.fileno(), bool(self._outbox), self._flush)

    def _readable(self) -> None:
        while self._channel.fileno() >= 0:
            try:
                data = self._channel.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            try:
                for kind, fields in self._reader.feed(data):
                    self._said(kind, fields)
            except ValueError:
                data = b""
            if not data:
                self._channel_closed()

    def _channel_closed(self) -> None:
        if self._channel.fileno() >= 0:
            self._close_channel()
            if not self._ending:
                if self.cell is not None:
                    self.cell.judged(b"gone")
                # It may just be on its way out: its status says more than our signal would.
                self.deadline = time.monotonic() + EXIT_LIMIT

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()

    def _said(self, kind: bytes, fields: List[bytes]) -> None:
        if kind == b"R" and not self._ready:
            self._ready = True
            self.deadline = None
            self._loop.send(b"R", self.generation, *fields)
            if self._terminating:
                self.tree.kill()  # its cell was stopped before it began
            elif self.cell is not None:
                self.run(self.cell, self._first)
        elif kind == b"D" and self.cell is not None and fields and fields[0] == self.cell.number:
            cell = self.cell
            if cell.judged(b"done"):
                self.cell = None
                cell.finish(b"", b"", fields[1:])

    def _event(self) -> None:
        kind, text = self.tree.receive()
        if kind == "main":
            self._main = int(text)
        elif kind == "failed":
            self._detail = text
        elif kind == "status":
            self._status = text
            self._readable()  # what it said last may still be in the channel
            if self.cell is not None:
                self.cell.judged(b"gone")
            if not self._terminating:
                self.tree.kill()
        elif kind == "gone":
            if not self._status and self._main:
                processes.kill_tree(self._main)
                self._status = b"9"
                self._detail = self._detail or b"the process that watched the kernel was killed"
            self._gone()

    def _has_begun(self) -> bool:
        """Whether the kernel has begun a cell since this was asked last."""
        try:
            return bool(os.read(self._witness, 4096))
        except BlockingIOError:
            return False

    def _gone(self) -> None:
        self._close_channel()
        self._loop.unwatch(self.tree.control.fileno())
        self.tree.control.close()
        self.deadline = None
        begun = self._has_begun()
        os.close(self._witness)
        self._detail = self._detail or _reason(self._status, self._memory_kills)
        cell, self.cell = self.cell, None
        self._when_gone(self)
        if not self._ready:
            self._loop.send(b"F", self.generation, self._status, self._detail)
        if cell is not None:
            cell.judged(b"gone")
            if cell.why == b"gone" and not begun:
                cell.why = b"unbegun"
            cell.finish(self._status, self._detail, [])
        elif self._ready:
            left = wire.number(self.tree.remaining())
            self._loop.send(b"L", self.generation, self._status, self._detail, left)


class OneShot:
    """A cell as a standalone script: no channel, its result in a file."""

    def __init__(
        self,
        loop: Loop,
        program: Program,
        cell: Cell,
        fields: List[bytes],
        message: List[bytes],
        when_gone: Callable[[OneShot], None],
    ) -> None:
        self._when_gone = when_gone
        generation, python, folder, environment, session_folder, stub, link = fields
        self.cell: Optional[Cell] = cell
        self.generation = generation
        self.deadline: Optional[float] = None
        self._loop = loop
        self._main = 0
        self._status = b""
        self._detail = b""
        self._memory_kills = control_groups.kills()
        self._base = session_folder + b"/once/" + cell.number
        write_private(self._base + b".kernel", texts(program))
        write_private(
            self._base + b".cell",
            wire.pack(b"B", session_folder, stub, b"", link, folder) + wire.pack(b"C", cell.number, *message),
        )
        quiet = processes.null()
        try:
            self.tree = trees.spawn(
                [python, b"-c", _ONCE_LOADER, self._base],
                wire.unpack_variables(environment),
                folder,
                (quiet, cell.out.write_end, cell.err.write_end),
                apart=_own_folder(session_folder),
            )
        finally:
            os.close(quiet)
            cell.out.close_write_end()
            cell.err.close_write_end()
        loop.watch(self.tree.control.fileno(), self._event)

    def stop(self, why: bytes, at_once: bool) -> None:
        """Ends the script."""
        if self.cell is not None and self.cell.judged(why):
            self.tree.terminate()
        if at_once:
            self.tree.kill()

    def end(self) -> None:
        """Ends what is left of it."""
        self.tree.kill()

    def expired(self) -> None:
        """A standalone script has no deadline but its cell's."""

    def _event(self) -> None:
        kind, text = self.tree.receive()
        if kind == "main":
            self._main = int(text)
        elif kind == "failed":
            self._detail = text
        elif kind == "status":
            self._status = text
            if self.cell is not None:
                self.cell.judged(b"done")
            self.tree.kill()
        elif kind == "gone":
            if not self._status and self._main:
                processes.kill_tree(self._main)
                self._status = b"9"
            self._gone()

    def _gone(self) -> None:
        self._loop.unwatch(self.tree.control.fileno())
        self.tree.control.close()
        result: List[bytes] = []
        try:
            with open(self._base + b".result", "rb") as file:
                for _, result in wire.Reader().feed(file.read()):
                    result = result[1:]
        except (OSError, ValueError):
            pass
        for suffix in (b".kernel", b".cell", b".result"):
            try:
                os.unlink(self._base + suffix)
            except OSError:
                pass
        cell, self.cell = self.cell, None
        self._when_gone(self)
        if cell is not None:
            if cell.why == b"done" and not result:
                cell.why = b"gone"
                self._detail = self._detail or _reason(self._status, self._memory_kills)
            cell.finish(self._status, self._detail, result)


def _reason(status: bytes, memory_kills: int) -> bytes:
    """Why it was killed, where the system tells; before it, memory had run out that often."""
    killed = status == b"%d" % signal.SIGKILL
    return control_groups.out_of_memory() if killed and control_groups.kills() > memory_kills else b""


def _own_folder(session_folder: bytes) -> bytes:
    """Where an interpreter starts: some import modules from there before they run a line of ours."""
    folder = session_folder + b"/start"
    processes.make_folder(folder)
    return folder


def texts(program: Program) -> bytes:
    """The program for any interpreter."""
    return marshal.dumps([(name, text) for name, text, _ in program], _MARSHAL_OF_ALL)


def _same_interpreter(python: bytes) -> bool:
    return python == os.fsencode(sys.executable)
