"""The three streams of a process, as the worker keeps them: output whole, input and output known by byte offsets."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from typing import BinaryIO

#: Bytes that nobody has read yet, from which on the process is held up, as a full pipe would hold it up (inferred).
BACKLOG = 64 << 20
#: As much as Linux gives a pipe without being asked twice.
PIPE = 1 << 20
#: Output that is longer is kept in a file.
IN_MEMORY = 1 << 20
#: No message carries more output.
CHUNK = 256 << 10


def pipe() -> tuple[int, int]:
    """Reading and writing end of a large pipe."""
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE)
    except OSError:
        pass  # a user has only so much of it
    return reader, writer


class Output:
    """What a process wrote to one stream so far."""

    def __init__(self, source: int | None) -> None:
        self.size = 0
        self.ended = source is None
        self._source = source
        #: All of it: at first here, and from a certain size on in a file.
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._furthest = 0
        self._paused = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        if source is not None:
            os.set_blocking(source, False)
            self._loop.add_reader(source, self._readable)

    def _readable(self) -> None:
        assert self._source is not None
        try:
            data = os.read(self._source, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._keep(data)
        if self.size - self._furthest > BACKLOG:
            self._loop.remove_reader(self._source)
            self._paused = True
        self._wake()

    def _keep(self, data: bytes) -> None:
        self.size += len(data)
        if self._file is None and self.size <= IN_MEMORY:
            self._memory += data
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)
            data, self._memory = bytes(self._memory) + data, bytearray()
        os.pwrite(self._file.fileno(), data, self.size - len(data))

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def finish(self) -> None:
        """Nothing more comes but what is in the pipe."""
        size = -1
        while self._source is not None and size != self.size:
            size = self.size
            self._readable()
        self.close()

    def close(self) -> None:
        """Nothing more comes."""
        if self._source is not None:
            self._loop.remove_reader(self._source)
            os.close(self._source)
            self._source = None
        self.ended = True
        self._wake()

    async def read(self, offset: int, most: int = CHUNK) -> bytes:
        """Waits for bytes at the offset; none at the end."""
        while offset >= self.size:
            if self.ended:
                return b""
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
        data = self.so_far(offset, most)
        self._furthest = max(self._furthest, offset + len(data))
        if self._paused and self._source is not None and self.size - self._furthest <= BACKLOG // 2:
            self._paused = False
            self._loop.add_reader(self._source, self._readable)
        return data

    def so_far(self, offset: int = 0, most: int = 1 << 40) -> bytes:
        """What is there from the offset on."""
        if self._file is None:
            return bytes(self._memory[offset : offset + most])
        return os.pread(self._file.fileno(), max(min(most, self.size - offset), 0), offset)


class StdinClosed(Exception):
    """Nothing can be written any more: closed by `eof`, or the process no longer reads."""


class BeyondEnd(Exception):
    """A write starts behind the last byte that was written."""


class Input:
    """Standard input: bytes are known by their offset, so one that is sent twice arrives once."""

    def __init__(self, sink: int | None) -> None:
        self.written = 0
        self.closed = sink is None
        self._sink = sink
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        if sink is not None:
            os.set_blocking(sink, False)

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """Returns when the pipe has taken all of it. What was written when it fails is counted."""
        async with self._turn:
            if offset > self.written:
                raise BeyondEnd("stdin has %d bytes, a write at %d would leave a gap" % (self.written, offset))
            rest = memoryview(data)[self.written - offset :]
            while rest:
                if self._sink is None:
                    raise StdinClosed("stdin is closed")
                try:
                    count = os.write(self._sink, rest)
                except BlockingIOError:
                    await self._room()
                    continue
                except BrokenPipeError:
                    self.close()
                    raise StdinClosed("the process does not read its stdin any more")
                self.written += count
                rest = rest[count:]
            if eof:
                self.close()

    async def _room(self) -> None:
        assert self._sink is not None
        sink, room = self._sink, self._loop.create_future()

        def writable() -> None:
            if not room.done():
                room.set_result(None)

        self._loop.add_writer(sink, writable)
        try:
            await room
        finally:
            if self._sink == sink:
                self._loop.remove_writer(sink)

    def close(self) -> None:
        """The process reads the end of its input."""
        if self._sink is not None:
            self._loop.remove_writer(self._sink)
            os.close(self._sink)
            self._sink = None
        self.closed = True
