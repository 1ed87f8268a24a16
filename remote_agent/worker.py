"""The worker: does file operations in threads, many side by side."""

from __future__ import annotations

import _thread
import os
import sys
import time

import wire

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import socket
    from typing import List, Optional
else:
    import _socket as socket

#: Threads that are kept for the next verbs.
MAX_IDLE = 16
#: Verbs that change files: what they have begun they bring to an end, should the session end meanwhile.
CHANGES = (b"write", b"change")


class Server:
    """Threads that wait for verbs. The bell is rung once for each message, and wakes one of them: none has to hand
    its turn over to another one, which would hold it up."""

    def __init__(self, channel: socket.socket, bell: int) -> None:
        self._channel = channel
        self._bell = bell
        self._reading = _thread.allocate_lock()
        self._sending = _thread.allocate_lock()
        self._counting = _thread.allocate_lock()
        self._idle = 0
        self._changing = 0
        self._reader = wire.Reader()
        self._received: List[wire.Message] = []

    def serve(self, stays: bool) -> None:
        """Does one verb after another; returns when the channel ends, or when enough others wait."""
        while True:
            if not self._count(1, stays):
                return
            os.read(self._bell, 1)  # nothing, once the session has ended: what was sent before is there to be read
            with self._reading:
                message = self._receive()
                # Before any other thread can hear that it is to be stopped, or that the channel has ended.
                if message is not None and message[0] == b"V":
                    if message[1][1] == b"search":
                        __import__("searchers").begin(message[1][0])
                    elif message[1][1] in CHANGES:
                        self._count_changing(1)
            self._count(-1, True)
            if message is None:
                return
            if self._idle == 0:
                try:
                    _thread.start_new_thread(self.serve, (False,))
                except RuntimeError:
                    pass  # out of threads: verbs wait until this one is done
            if message[0] == b"S":
                if "searchers" in sys.modules:
                    sys.modules["searchers"].stop(message[1][0])
                continue
            number, verb, folder, home, call, *arguments = message[1]
            result = self._perform(verb, folder, home, arguments)
            answer = self._answer(verb, arguments, result) if call else b""
            if verb in CHANGES:
                self._count_changing(-1)
            try:
                with self._sending:
                    self._channel.sendall(wire.pack(b"v", number, answer, *result))
            except OSError:
                return  # the session has ended

    def settle(self) -> None:
        """The channel has ended: waits for the changes that have begun."""
        sys.modules["aside"].end()
        while self._changing:
            time.sleep(0.002)

    def _count_changing(self, change: int) -> None:
        with self._counting:
            self._changing += change

    def _count(self, change: int, forced: bool) -> bool:
        with self._counting:
            if not forced and self._idle >= MAX_IDLE:
                return False
            self._idle += change
            return True

    def _receive(self) -> Optional[wire.Message]:
        while not self._received:
            data = self._channel.recv(1 << 18)
            if not data:
                return None
            self._received.extend(self._reader.feed(data))
        return self._received.pop(0)

    @staticmethod
    def _answer(verb: bytes, arguments: List[bytes], result: List[bytes]) -> bytes:
        import answers

        return answers.answer(verb, arguments, result)

    @staticmethod
    def _perform(verb: bytes, folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
        import workspace

        try:
            return [b"ok", *workspace.perform(verb, folder, home, arguments)]
        except workspace.WorkspaceError as error:
            sentence = str(error)
        except MemoryError:
            sentence = "there is not enough memory for this file operation on the target; read or write less at once"
        except Exception as error:  # the caller must not be left waiting
            sentence = "the file operation failed (%s: %s); try it in Python instead" % (type(error).__name__, error)
        return [b"error", sentence.encode("utf-8", "backslashreplace")]


def serve(fd: int, bell: int, session: bytes) -> None:
    """Runs the worker on its channel, and the bell of that, until they end."""
    import aside

    aside.note_in(session)
    server = Server(socket.socket(fileno=fd), bell)
    server.serve(True)
    server.settle()
