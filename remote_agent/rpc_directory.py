"""Tool calls by files: a part of `hermes_tools` where scripts cannot reach a socket of the broker's.

`docs/protocol.md` has the rules. What stands before the first section serves only those who read this
file alone.
"""

from __future__ import annotations

import os as _os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hermes_runtime import _LOCK, _MAX_IDLE, _STATE, _close_fd, _dup, _Failed, _fstat, _Library, _pass_on


# --- the directory ----------------------------------------------------------------------

_PLACE = _os.environ.get("HERMES_RPC_DIR")
_INLINE = 256 * 1024  # what is larger lies on the disk, and a mark in its place
_MARK = b"@"
_LOOK = 1000  # milliseconds after which a waiting call looks even though nobody rang
_KEPT = 4 * 1024  # an answer up to this size is removed while the next one is waited for, or when the cell ends
_LOST = 2  # looks in turn that found neither request nor answer: the request is written again
_PATIENCE = 15  # looks without the directory after which the session counts as ended
_IDLE: list[_Slot] = _STATE.idle
_OPEN: set[_Slot] = _STATE.open

# Taken now, as above.
_open, _read, _write, _unlink, _rename = _os.open, _os.read, _os.write, _os.unlink, _os.rename
_lstat, _mkfifo, _urandom = _os.lstat, _os.mkfifo, _os.urandom
_AT_ALL = _os.O_NOFOLLOW | _os.O_CLOEXEC
_NEW = _os.O_WRONLY | _os.O_CREAT | _os.O_EXCL | _AT_ALL
_READABLE = _os.O_RDONLY | _os.O_NONBLOCK | _AT_ALL
_FIFO = _os.O_RDWR | _os.O_NONBLOCK | _AT_ALL  # held for both directions it has no end, and raises no SIGPIPE

_EINVAL = 22
_KIND, _IS_FILE, _IS_FIFO = 0o170000, 0o100000, 0o010000


class _Needed:
    """What this way to the broker takes of the standard library."""

    def __init__(self) -> None:
        import atexit
        import errno
        import select

        self.select = select
        self.no_room = (errno.ENOSPC, errno.EDQUOT)
        self.no_descriptor = (errno.EMFILE, errno.ENFILE)
        self.not_open = errno.EBADF
        atexit.register(_unlink_bells)

    def waiter(self, fd: int) -> Callable[[int], Any]:
        """Waits for a descriptor, at most so many milliseconds."""
        if not hasattr(self.select, "poll"):  # libraries of green threads take it away
            return lambda limit: self.look_at(fd, limit)
        poll = self.select.poll()
        poll.register(fd, self.select.POLLIN)
        wait: Callable[[int], Any] = poll.poll
        return wait

    def look_at(self, fd: int, limit: int) -> Any:
        try:
            return self.select.select([fd], [], [], limit / 1000)[0]
        except OSError as error:
            if error.errno != self.not_open:
                raise  # also what came out of a signal handler of the script
            return [fd]

    def pause(self) -> None:
        """Waits for nothing; also where a script has replaced `time.sleep`."""
        self.select.select([], [], [], _LOOK / 1000)


_needed = _Needed


class _Fifo:
    """A FIFO that is held open."""

    __slots__ = ("fd", "identity", "uid")

    def __init__(self, path: str) -> None:
        self.fd = _above_stdio(_open(path, _FIFO))
        status = _fstat(self.fd)
        if status.st_mode & _KIND != _IS_FIFO:
            _close_fd(self.fd)
            raise OSError(_EINVAL, "it is no FIFO", path)
        self.identity = (status.st_dev, status.st_ino)
        self.uid = status.st_uid

    def is_ours(self, anywhere: bool = False) -> bool:
        """Whether the descriptor is still this FIFO, and not the script's; and whether it has its name still."""
        try:
            status = _fstat(self.fd)
        except OSError as error:
            _pass_on(error)
            return False
        return (status.st_dev, status.st_ino) == self.identity and (anywhere or status.st_nlink > 0)

    def close(self) -> None:
        if self.is_ours(True):
            _close_fd(self.fd)


def _above_stdio(fd: int) -> int:
    """Keeps 0, 1 and 2 free of our descriptors when the script has closed them."""
    low: list[int] = []
    while fd < 3:
        low.append(fd)
        fd = _dup(fd)
    for number in low:
        _close_fd(number)
    return fd


class _Slot:
    """A client of the broker: it has a bell of its own and one call at a time."""

    __slots__ = ("bell", "call", "client", "large", "needed", "place", "poll", "read_of", "sequence")

    def __init__(self, needed: _Needed, place: str) -> None:
        self.needed = needed
        self.place = place
        self.client = _urandom(8).hex()
        self.sequence = 0
        self.call = ""
        self.read_of = ""  # the call whose answer was read and is still there
        self.large = False
        self.open_bell()
        _OPEN.add(self)

    def open_bell(self) -> bool:
        """Makes the bell, or opens it again when the script has closed it. Whether it had to be made."""
        path = f"{self.place}/bell_{self.client}"
        try:
            _mkfifo(path, 0o600)
            made = True
        except FileExistsError:
            made = False
        self.bell = _Fifo(path)
        self.poll = self.needed.waiter(self.bell.fd)
        return made

    def begin(self, body: bytes) -> None:
        """Begins the next call."""
        self.sequence += 1
        self.call = f"{self.client}-{self.sequence}"
        self.ask(body)
        self.clear()

    def clear(self) -> None:
        """Removes what is left of the last call."""
        call, self.read_of = self.read_of, ""
        if call:
            # In this order: a request without an answer would be sent again.
            _remove(f"{self.place}/req_{call}")
            _remove(f"{self.place}/res_{call}")

    def path(self, kind: str, on_disk: bool = False) -> str:
        folder = self.place
        if on_disk:
            folder = folder[: folder.rindex("/")] + "/disk"
        return f"{folder}/{kind}{self.call}"

    def ask(self, body: bytes) -> None:
        """Writes the request and rings."""
        self.large = len(body) > _INLINE
        if self.large:
            self.put(body, True)
            body = _MARK
        self.put(body, False)
        _ring(self.place, self.call)

    def put(self, body: bytes, on_disk: bool) -> None:
        aside = self.path(".req_", on_disk)
        fd = _open(aside, _NEW, 0o600)
        try:
            try:
                written = _write(fd, body)
                while written < len(body):
                    written += _write(fd, memoryview(body)[written:])
            finally:
                _close_fd(fd)
            _rename(aside, self.path("req_", on_disk))
        except BaseException:
            _remove(aside)
            raise

    def wait(self, body: bytes) -> bytes:
        """The answer. Who rings may die before it does, so it looks by itself too."""
        missing = away = 0
        while True:
            rung = self.poll(_LOOK)
            if self.bell.is_ours():
                if rung:
                    try:
                        _read(self.bell.fd, 4096)
                    except BlockingIOError:
                        pass
            else:
                # A script closed it, or removed the directory: then the request is gone too.
                try:
                    if self.open_bell():
                        missing = _LOST
                    rung = None
                except OSError as error:
                    _pass_on(error)
                    away += 1
                    if away > _PATIENCE:
                        raise ConnectionError(
                            f"the broker went away before it answered a tool call ({error}); "
                            "whether the call ran is not known."
                        ) from None
                    self.needed.pause()
                    continue
            away = 0
            answer = self.take()
            if answer is not None:
                return answer
            if rung:
                continue
            if _is_there(self.path("req_")):
                missing = 0
                _ring(self.place, self.call)
                continue
            missing += 1
            if missing >= _LOST:
                try:
                    self.ask(body)
                    missing = 0
                except OSError as error:
                    _pass_on(error)  # else the directory is being made anew, or full

    def take(self) -> bytes | None:
        """The answer, if it is there; what was written for this call goes."""
        answer = self.read(False)
        if answer is None:
            return None
        on_disk = answer == _MARK
        if on_disk:
            answer = self.read(True)
            if answer is None:
                return None
        self.read_of = self.call
        if not (on_disk or self.large) and len(answer) <= _KEPT:
            return answer  # the script is not to wait until that has gone
        # The request before the answer, as in `clear`.
        _remove(self.path("req_"))
        if self.large:
            _remove(self.path("req_", True))
        if on_disk:
            _remove(self.path("res_", True))
        self.clear()
        return answer

    def read(self, on_disk: bool) -> bytes | None:
        path = self.path("res_", on_disk)
        try:
            fd = _open(path, _READABLE)
        except FileNotFoundError:
            return None
        except OSError as error:
            _pass_on(error)
            if error.errno not in self.needed.no_descriptor:
                return None  # a link: none of the broker's
            if not _is_there(path):
                return None
            self.bell.close()  # gives the one that is missing; it is opened again when it is needed
            try:
                fd = _open(path, _READABLE)
            except OSError as error:
                _pass_on(error)
                why = f"the tool ran, but its result cannot be read ({error}): close files, then call it again."
                raise _Failed(why) from None
        try:
            status = _fstat(fd)
            if status.st_mode & _KIND != _IS_FILE or status.st_uid != self.bell.uid:
                return None
            data = _read(fd, status.st_size + 1)
            if len(data) < status.st_size:
                parts = [data]
                while data:
                    data = _read(fd, status.st_size)
                    parts.append(data)
                data = b"".join(parts)
            return data
        finally:
            _close_fd(fd)

    def leave(self) -> None:
        """Gives up the call and the client: whoever would answer finds that nobody waits."""
        _OPEN.discard(self)
        self.bell.close()
        self.clear()
        for on_disk in (False, True):
            for kind in ("req_", "res_"):
                _remove(self.path(kind, on_disk))
        _remove(f"{self.place}/bell_{self.client}")


def _is_there(path: str) -> bool:
    try:
        _lstat(path)
    except OSError as error:
        _pass_on(error)
        return False
    return True


def _remove(path: str) -> None:
    try:
        _unlink(path)
    except OSError as error:
        _pass_on(error)


_RELAY: _Fifo | None = None


def _ring(place: str, call: str) -> None:
    """Rings the relay. Where it hears nothing now, it will look when it begins."""
    global _RELAY
    relay = _RELAY
    try:
        if relay is None or not relay.is_ours():
            with _LOCK:
                # The one before is not closed: another thread may be about to write.
                relay = _RELAY = _Fifo(place[: place.rindex("/")] + "/bell.r")
        _write(relay.fd, b"q%s\n" % call.encode())
    except OSError as error:
        _pass_on(error)


def _exchange(library: _Library, body: bytes) -> bytes:
    """Sends one request and returns its answer; no call runs twice."""
    place = _PLACE or _os.environ.get("HERMES_RPC_DIR")
    if not place:
        raise ConnectionError(
            "hermes_tools cannot reach the broker: HERMES_RPC_DIR is not set. Call tools from "
            "a script that the broker runs, and pass its environment on to child processes."
        )
    slot: _Slot | None = None
    try:
        looks = 0
        while True:
            try:
                slot = _slot(library.needed, place)
                slot.begin(body)
                break
            except OSError as error:
                _pass_on(error)
                if slot is not None:
                    slot.leave()
                    slot = None
                _check(library.needed, place, error)
                looks += 1
                if looks > _PATIENCE or not isinstance(error, FileNotFoundError):
                    raise ConnectionError(
                        f"hermes_tools cannot reach the broker at {place}: {error}. "
                        "It has ended or closed this session; run the script again in a new one."
                    ) from None
            library.needed.pause()  # the directory may be on its way back
        answer = slot.wait(body)
    except BaseException:
        if slot is not None:
            slot.leave()
        raise
    if len(_IDLE) < _MAX_IDLE:
        _IDLE.append(slot)
    else:
        slot.leave()
    if not answer:
        where = f"the tool ran, but there is no room for its result in {place}"
        raise _Failed(f"{where}: free space there, or ask for less.")
    return answer


def _slot(needed: _Needed, place: str) -> _Slot:
    while True:
        try:
            slot = _IDLE.pop()
        except IndexError:
            return _Slot(needed, place)
        if slot.bell.is_ours():
            return slot
        slot.leave()


def _check(needed: _Needed, place: str, error: OSError) -> None:
    """Raises the failure of a call whose request found no room."""
    if error.errno in needed.no_room:
        advice = "free space there"
    elif error.errno in needed.no_descriptor:
        advice = "close files that are no longer needed"
    else:
        return
    raise _Failed(
        f"the call was not sent and did not run, for nothing can be written in {place} ({error}): {advice}."
    ) from None


def _close_all() -> None:
    for slot in list(_OPEN):
        slot.bell.close()
    _OPEN.clear()
    _IDLE.clear()


def _settle() -> None:
    """Removes what is left of calls that have been answered."""
    for slot in list(_IDLE):
        slot.clear()


def _unlink_bells() -> None:
    _settle()
    for slot in list(_OPEN):
        _remove(f"{slot.place}/bell_{slot.client}")
