"""Jobs: commands beside the kernel (``terminal``), each a shell under a reaper of its own."""

from __future__ import annotations

import os
import time

import processes
import trees
import wire
from capture import Capture

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Callable, List, Optional

    from event_loop import Loop


class Job:
    """One command. Its background children outlive it and end with the session."""

    def __init__(self, loop: Loop, fields: List[bytes], when_ended: Callable[[Job], None]) -> None:
        number, timeout, cap, folder, argv, environment, script_path, script, state_path = fields
        self.number = number
        self._loop = loop
        self._when_ended = when_ended
        self._state_path = state_path
        self._script_path = script_path
        self._why = b"exit"
        self._status = b""
        self._detail = b""
        self._main = 0
        self.ended = False
        self.deadline: Optional[float] = time.monotonic() + float(timeout)
        quiet = processes.null()
        try:
            self._capture = Capture(loop, int(cap), self._output)
        except OSError:
            os.close(quiet)
            raise
        try:
            write_private(script_path, script)
            self.tree: Optional[trees.Tree] = trees.spawn(
                argv.split(b"\0"),
                wire.unpack_variables(environment),
                folder,
                (quiet, self._capture.write_end, self._capture.write_end),
                outlived=True,
            )
        except OSError as error:
            self.tree = None
            self._why = b"failed"
            self._detail = str(error).encode("utf-8", "backslashreplace")
            self._finish()
            return
        finally:
            os.close(quiet)
            self._capture.close_write_end()
        loop.watch(self.tree.control.fileno(), self._event)

    def expired(self) -> None:
        """The deadline has come."""
        self._stop(b"timeout")

    def stop(self) -> None:
        """The caller no longer wants it."""
        self._stop(b"stopped")

    def _stop(self, why: bytes) -> None:
        self.deadline = None
        if self.tree is not None and self._why == b"exit":
            self._why = why
            self.tree.terminate()

    def _output(self, data: bytes) -> bool:
        return self._loop.send(b"o", self.number, data)

    def _event(self) -> None:
        if self.tree is None:
            return
        kind, text = self.tree.receive()
        if kind == "main":
            self._main = int(text)
        elif kind == "status":
            self._status = text
            if self._why == b"exit":
                self._finish()
        elif kind == "failed":
            self._why = b"failed"
            self._detail = text
        elif kind == "gone":
            if not self._status and self._why != b"failed" and self._main:
                # The reaper itself was killed: what it kept together has climbed to us.
                processes.kill_tree(self._main)
                if self._why == b"exit":
                    self._why = b"failed"
                    self._detail = b"the process that watched the command was killed"
            self._loop.unwatch(self.tree.control.fileno())
            self.tree.control.close()
            self.tree = None
            self._finish()

    def _finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.deadline = None
        self._capture.finish()
        state = b""
        try:
            with open(self._state_path, "rb") as file:
                state = file.read()
        except OSError:
            pass
        for path in (self._script_path, self._state_path):
            try:
                os.unlink(path)
            except OSError:
                pass
        self._when_ended(self)
        self._loop.send(
            b"d",
            self.number,
            self._why,
            self._status,
            self._detail,
            wire.number(self._capture.skipped),
            self._capture.tail(),
            state,
        )


def write_private(path: bytes, data: bytes) -> None:
    """Makes a new file that only its owner reads; the folder is made again if it is gone."""
    processes.make_folder(os.path.dirname(path))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
