"""Verbs: file operations of scripts, handed to a worker process that is started when the first one comes.

V number, verb, folder, home, call, arguments …  is answered by  v number, `ok` or `error`, fields …

Where a call is named, whose answer the result is, it is answered here, and `!` stands behind the `ok` or `error`.
"""

from __future__ import annotations

import os
import select
import time

import processes
import trees
import wire

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Callable, Dict, List, Optional

    from event_loop import Conduit, Loop
else:
    import _signal as signal
    import _socket as socket

#: Bytes of a result above which it has to find room on its way; what is smaller always does.
LARGE = 1 << 15
NO_ROOM = b"the result has no room on its way from the target: free space there, or read less at once (limit)"
KILLED = b"the process that reads and writes files was killed; whether this was done is not known: try it again"


class Verbs:
    """The verbs under way, and the worker that does them."""

    def __init__(self, loop: Loop, conduit: Conduit, session: bytes) -> None:
        self._loop, self._conduit = loop, conduit
        self._session = session
        self._under_way: Dict[bytes, bytes] = {}  # number → the call that it answers, or nothing
        self._worker: Optional[_Worker] = None
        self._ending: List[_Worker] = []

    @property
    def are_under_way(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._under_way)

    def trees(self) -> List[trees.Tree]:
        """Workers, also those that are on their way out."""
        workers = [*self._ending, self._worker] if self._worker is not None else self._ending
        return [worker.tree for worker in workers]

    def run(self, fields: List[bytes]) -> None:
        """Begins one: number, verb, folder, home, call, arguments."""
        try:
            if self._worker is None:
                self._worker = _Worker(self._loop, self._session, self._answered, self._lost, self._gone)
        except OSError as error:  # out of descriptors or processes
            why = b"no process for file operations could be started: %s; try it again" % _text(error)
            self._loop.send(b"v", fields[0], b"error", why)
            return
        self._under_way[fields[0]] = fields[4]
        self._worker.send(fields)

    def stop(self, number: bytes) -> None:
        """Nobody waits for it any more. What it does to a file may still happen; a search ends."""
        if number in self._under_way and self._worker is not None:
            self._worker.stop(number)
        self._answered([number, b"", b"error", b"the file operation was stopped"])

    def close(self) -> List[int]:
        """The session ends: no verb begins any more. Those that have begun to change files are to be waited for: the
        processes to spare."""
        return [self._worker.close()] if self._worker is not None else []

    def settle(self) -> None:
        """Waits for them, though not for long."""
        if self._worker is not None:
            self._worker.settle()

    def _answered(self, fields: List[bytes]) -> None:
        number, answer, verdict, *found = fields
        call = self._under_way.pop(number, None)
        if call is None:
            return
        is_given = bool(call and answer) and self._conduit.answer(call, answer)
        mark = b"!" if is_given else b""
        if sum(map(len, found)) <= LARGE:
            self._loop.send(b"v", number, verdict + mark, *found)
        elif not self._loop.offer(b"v", number, verdict + mark, *found):
            self._loop.send(b"v", number, b"error" + mark, NO_ROOM)
        if is_given:
            # Only now: what the script does next must not be heard of before.
            self._conduit.call_back(call)

    def _lost(self, worker: _Worker) -> None:
        """The worker has ended, or is no longer to be spoken to: the next verb gets another one."""
        if self._worker is worker:
            self._worker = None
            self._ending.append(worker)
            for number in sorted(self._under_way, key=int):
                self._answered([number, b"", b"error", KILLED])

    def _gone(self, worker: _Worker) -> None:
        self._lost(worker)
        self._ending.remove(worker)


class _Worker:
    """The worker as the supervisor sees it: a channel and a tree."""

    def __init__(
        self,
        loop: Loop,
        session: bytes,
        answered: Callable[[List[bytes]], None],
        lost: Callable[[_Worker], None],
        gone: Callable[[_Worker], None],
    ) -> None:
        self._loop = loop
        self._answered = answered
        self._when_lost = lost
        self._when_gone = gone
        self._reader = wire.Reader()
        self._outbox = bytearray()
        self._main = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            waiting, self._bell = os.pipe()
            try:
                self.tree = trees.spawn_own(lambda: _work(theirs.fileno(), waiting, session), theirs.fileno(), waiting)
            except OSError:
                os.close(self._bell)
                raise
            finally:
                os.close(waiting)
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._channel.setblocking(False)
        os.set_blocking(self._bell, False)
        loop.watch(self.tree.control.fileno(), self._event)
        loop.watch(self._channel.fileno(), self._readable, bulk=True)

    def send(self, fields: List[bytes]) -> None:
        """Hands a verb over."""
        self._hand_over(wire.pack(b"V", *fields))

    def stop(self, number: bytes) -> None:
        """A verb's answer is not wanted any more."""
        self._hand_over(wire.pack(b"S", number))

    def close(self) -> int:
        """Tells it that the session ends. The process above it."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended
        self._forget_bell()
        return self.tree.pid

    def settle(self) -> None:
        """Waits for its end, a while."""
        # A cell may have stopped the one above it.
        processes.signal_all([self.tree.pid], signal.SIGCONT)
        poll = select.poll()
        poll.register(self.tree.control, select.POLLIN)
        end = time.monotonic() + trees.GRACE
        while self.tree.receive()[0] in ("main", "none") and time.monotonic() < end:
            poll.poll(max(0, int((end - time.monotonic()) * 1000)) + 1)

    def _hand_over(self, message: bytes) -> None:
        self._outbox += message
        self._flush()
        # One thread is woken for each message, and none but that one.
        try:
            os.write(self._bell, b"!")
        except OSError:
            pass  # it has ended, or so much waits that all of them are awake

    def _forget_bell(self) -> None:
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._channel.send(self._outbox[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox.clear()  # its end shows in `_readable`
        self._loop.watch_writable(self._channel.fileno(), bool(self._outbox), self._flush)

    def _readable(self) -> None:
        try:
            data = self._channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
        for _, fields in self._reader.feed(data):
            self._answered(fields)

    def _end(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.watch_writable(self._channel.fileno(), False, self._flush)
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._forget_bell()
            self._when_lost(self)
            self.tree.kill()

    def _event(self) -> None:
        kind, text = self.tree.receive()
        if kind == "main":
            self._main = int(text)
        elif kind == "failed":
            self._end()
        elif kind == "gone":
            if self._main and self._channel.fileno() >= 0:
                # The reaper was killed: what it kept together has climbed to us.
                processes.kill_tree(self._main)
            self._end()
            self._loop.unwatch(self.tree.control.fileno())
            self.tree.control.close()
            self.tree.deadline = None
            trees.own_reapers.discard(self.tree.pid)
            self._when_gone(self)


def _text(error: OSError) -> bytes:
    return str(error).encode("utf-8", "backslashreplace")


def _work(channel: int, bell: int, session: bytes) -> None:
    """What the worker process runs."""
    import worker  # compiled here, and only now

    worker.serve(channel, bell, session)
