"""The relay: carries the session's directory over its standard streams, in frames.

It keeps nothing that is not in the directory, runs nothing, and may be killed at any moment: the next one
goes on. There is one at a time (`fence`). As a *look* it does everything once.
"""

from __future__ import annotations

import os
import select
import sys
import time

import directory
import fence
import frames
import notation
import processes
from blobs import Blobs
from log_reader import LogReader
from outbox import Outbox
from requests import Requests, is_call

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NoReturn, Optional

    Survey = Callable[[], str]

#: Seconds without a byte after which the broker counts as lost.
SILENCE = 45.0
#: Seconds between two looks that nobody rang for: while something is awaited, and else.
SECOND_LOOK, IDLE_LOOK = 1.0, 30.0
#: Seconds that the directory may be missing: the supervisor makes it anew when a script removed it.
MISSING = 5.0
#: Seconds in which stubs write their requests again that went with the directory.
WRITTEN_AGAIN = 10.0
#: Seconds after which a supervisor and a guard that do not show are dead.
NOT_BEGUN = 2.0
#: Seconds in which guard and supervisor must be gone when the session has ended.
SEEN_OFF = 5.0
#: Seconds that a look waits to be told that there is room for more, and for more to say where there was much; in all.
ROOM, MORE, LONGEST_LOOK = 1.0, 0.1, 5.0
#: Offset of an answer that only asks whether the supervisor's own is in place.
GIVEN = 1
#: The bytes acknowledged at once from which on the supervisor is told: it may have held back output.
MUCH = 1 << 15


def first(path: bytes, owner: bytes, link: int, window: int, survey: Survey, code: bytes) -> NoReturn:
    """The relay of the link that made the session.

    ``survey`` says what the place is, ``code`` is kept for later links.
    """
    _serve(path, owner, link, window, survey, code)


def again(code: bytes, arguments: Any) -> NoReturn:
    """The relay of a later link: directory, owner, link and window are its arguments."""
    path, owner, link, window = map(os.fsencode, arguments)
    # Its environment holds what cells are not to see.
    processes.forbid_inspection()
    _serve(path, owner, int(link), int(window), None, code)


def _serve(path: bytes, owner: bytes, link: int, window: int, survey: Optional[Survey], code: bytes) -> NoReturn:
    status = 1
    folder: Optional[directory.Directory] = None
    try:
        folder = _find(path)
        if Relay(folder, owner, link, window, code).run(survey):
            _see_off(folder)
        status = 0
    except fence.Ended as ended:
        _say(b"G", str(ended))
        if folder is not None:
            _see_off(folder)
        status = 0
    except (OSError, ValueError, fence.Fenced) as error:
        _say(b"E", str(error))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if folder is not None:
            folder.wake_others()  # nobody else does from now on
        os._exit(status)


def _say(kind: bytes, text: str) -> None:
    try:
        os.set_blocking(1, True)
        os.write(1, frames.pack(kind, b"", text.encode("utf-8", "backslashreplace")[: frames.PAYLOAD]))
    except OSError:
        pass


def _see_off(folder: directory.Directory) -> None:
    """The session has ended: stays until nothing is left of it, for our end tells the broker so."""
    fence.hear(folder)  # the guard waits for us
    folder.unlock(directory.RELAY)
    deadline = time.monotonic() + SEEN_OFF
    while not fence.is_orphaned(folder):
        if time.monotonic() > deadline:
            return
        folder.wake_others()
        time.sleep(0.005)
    if os.path.lexists(folder.path):
        fence.sweep(folder.path)  # the last of them was killed before it had removed all


def _find(path: bytes) -> directory.Directory:
    """Opens the directory, waiting for it a while."""
    deadline = time.monotonic() + MISSING
    while True:
        try:
            return directory.Directory(path)
        except OSError as error:
            if time.monotonic() > deadline:
                raise fence.Ended("its directory is gone: %s" % error.strerror) from None
        time.sleep(0.01)


class Log:
    """The log as one of the sources that take turns."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader
        self._empty = False

    def frame(self, limit: int) -> bytes:
        """The next piece, or nothing."""
        at = self.reader.at
        data = self.reader.read(limit)
        self._empty = not data
        return frames.pack(b"O", b"", data, at) if data else b""

    def is_done(self) -> bool:
        """Whether that was all for now."""
        return self._empty


class Relay:
    """One link."""

    def __init__(self, folder: directory.Directory, owner: bytes, link: int, window: int, code: bytes) -> None:
        self._folder = folder
        self._owner = owner
        self._link = link
        self._code = code
        self._poll = select.poll()
        self._bell = -1
        self._reader = frames.Reader()
        self._heard = time.monotonic()
        self._due = self._heard + IDLE_LOOK
        self._box = Outbox(window, self._poll)
        # Known once the broker has said what it has.
        self._have = b""
        self._log: Optional[Log] = None
        self._requests = Requests(folder, {})
        self._unclaimed: List[bytes] = []  # answers whose requests went with the directory
        self._claimed_by = 0.0
        self._acked = 0
        self._sent = 0  # the number of the last command that the broker ever sent
        self._stored: Dict[int, bytes] = {}  # commands that were not taken when we looked last
        self._blobs = Blobs(folder)
        self._ring = False
        self._until: Optional[float] = None  # of a look: how long something to say is waited for
        # Of a look: how long it waits for room for more, for more itself, and how long it lasts.
        self._room_until = self._more_until = self._look_until = 0.0
        self._farewell: Optional[bytes] = None
        self._finished = False

    def run(self, survey: Optional[Survey]) -> bool:
        """Carries until the link or the session ends. Whether it was the session."""
        fence.take_over(self._folder, self._owner, self._link)
        facts = ""
        if survey is not None:
            facts = survey()  # it may take long; the guard has seen us by now
        else:
            self._bury_the_dead()
        self._heard = time.monotonic()
        self._due = self._heard + IDLE_LOOK
        os.set_blocking(1, False)
        self._poll.register(0, select.POLLIN)
        self._listen()
        self._ring_all()
        self._ready(facts)
        self._fill()
        self._box.write()
        if facts:
            self._keep_code()
        while not self._finished or self._box:
            self._turn()
        return self._farewell is not None

    def _turn(self) -> None:
        has_more = self._fill()
        self._box.write()
        if self._finished and not self._box:
            return
        now = time.monotonic()
        # A pipe or socket that took all of it at once, whatever its size, tells of nothing.
        due = now if has_more and not self._box else self._due
        if self._until is None:
            due = min(due, self._heard + SILENCE)
        elif not self._box:
            due = min(due, self._end_of_waiting())
        due = min(due, self._box.due() or due)
        for fd, event in self._poll.poll(max(0, int((due - now) * 1000) + 1)):
            if fd == 0:
                self._hear()
            elif fd == self._bell:
                self._rung()
            elif event & ~select.POLLOUT:
                raise OSError("the broker hung up")
        now = time.monotonic()
        if now >= self._due:
            self._look()
        if self._until is None and now >= self._heard + SILENCE:
            raise OSError("nothing was heard of the broker for %d s" % SILENCE)

    def _fill(self) -> bool:
        """Makes frames ready; a look ends when all was said, and a link of a session that has ended.

        Whether there is more that could be made ready at once.
        """
        if self._finished:
            return False
        if not self._box.fill():
            return True
        if self._farewell is not None and self._box.is_empty():
            self._box.say_last(frames.pack(b"G", b"", self._farewell))
            self._finished = True
        elif self._until is not None and time.monotonic() >= self._end_of_waiting():
            self._box.say_last(frames.pack(b"Z"))
            self._finished = True
        return False

    def _end_of_waiting(self) -> float:
        """When a look ends that has said all it can: there may be more, and no room for it yet."""
        if not self._box.is_empty():
            return min(self._room_until, self._look_until)
        if self._box.spoke:
            return min(self._more_until, self._look_until)
        return self._until or 0.0

    def _ready(self, facts: str) -> None:
        folder = self._folder
        taken = folder.number(b"taken")
        self._acked = folder.number(b"acked")
        stored = [int(name) for name in directory.names(folder.at(b"in")) if name.isdigit() and int(name) > taken]
        self._stored = dict.fromkeys(sorted(stored), b"")
        sizes, complete = self._blobs.survey()
        ready = notation.text(
            {
                "session": notation.words(folder.path.rpartition(b"talaria-")[2]),
                "folder": notation.words(folder.path),
                "owner": notation.words(self._owner),
                "link": self._link,
                "supervisor": bool(facts or folder.holder(directory.SUPERVISOR)),
                "taken": taken,
                "stored": list(self._stored),
                "blobs": sizes,
                "complete": complete,
            }
        )
        if facts:
            ready = ready[:-1] + ',"facts":' + facts + "}"
        data = ready.encode("ascii")
        for at in range(0, len(data), frames.PAYLOAD):
            piece = data[at : at + frames.PAYLOAD]
            self._box.say(frames.pack(b"R", b"", piece, at, at + len(piece) == len(data)))

    # --- what is heard -----------------------------------------------------------------

    def _hear(self) -> None:
        try:
            data = os.read(0, 1 << 18)
        except BlockingIOError:
            return
        self._heard = time.monotonic()
        if not data:
            self._poll.unregister(0)
            self._room_until = self._more_until = 0.0
            if self._until is None:
                self._finished = True
                self._box.clear()
            return
        for kind, final, key, payload, offset in self._reader.feed(data):
            handler = _HANDLERS.get(kind)
            if handler is None or (self._until is not None and kind not in _DURING_A_LOOK):
                raise ValueError("the broker sent a frame that does not belong here (%r)" % kind)
            handler(self, key, payload, offset, final)
            if self._until is not None and kind in _DURING_A_LOOK:
                self._room_until, self._more_until = self._heard + ROOM, self._heard + MORE
        if self._ring:
            self._ring = False
            self._folder.ring(b"bell.s")

    def _resume(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._have += payload
        if not final:
            return
        have = notation.parse(self._have)
        calls = {name.encode("ascii"): int(count) for name, count in have["calls"].items()}
        self._requests = Requests(self._folder, calls)
        self._log = Log(LogReader(self._folder, int(have["log"])))
        self._sent = int(have["sent"])
        self._look()

    def _command(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._store(key, payload, b"")

    def _command_by_blob(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._store(key, b"", payload)

    def _store(self, key: bytes, message: bytes, blob: bytes) -> None:
        number = int(key)
        taken = self._forget_taken()
        self._sent = max(self._sent, number)
        if number > taken and number not in self._stored:
            try:
                self._persist(lambda: self._put_command(number, message, blob))
            except OSError as error:
                self._refuse(key, "the command cannot be stored", error)
                return
            self._stored[number] = b"" if blob else message
            self._ring = True
        self._box.say_soon(frames.pack(b"c", key))

    def _forget_taken(self) -> int:
        """Forgets the commands that were taken; the number of the last of them."""
        # A script may have written anything: what never came cannot have been taken.
        taken = min(self._folder.number(b"taken"), self._sent)
        for settled in [known for known in self._stored if known <= taken]:
            del self._stored[settled]
        return taken

    def _put_command(self, number: int, message: bytes, blob: bytes) -> None:
        path, large = self._folder.at(b"in/%d" % number), self._folder.at(b"disk/in_%d" % number)
        if blob:
            self._blobs.move(blob, large)
            directory.put(path, b"")
            return
        try:
            directory.put(path, message)
        except FileNotFoundError:
            raise
        except OSError:
            self._put_without_room(path, large, message)

    def _put_without_room(self, path: bytes, large: bytes, message: bytes) -> None:
        """There is no room in memory: an empty file takes none, and what tells a kernel to end takes hardly any."""
        try:
            directory.put(large, message)
            directory.put(path, b"")
        except OSError:
            directory.unlink(large)
            if len(message) > directory.SHORT:
                raise
            directory.put_short(path, message)

    def _blob(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        try:
            have, complete = self._persist(lambda: self._blobs.add(key, payload, offset, final))
            self._box.say(frames.pack(b"b", key, b"", have, complete))
        except OSError as error:
            self._blobs.drop(key)
            self._refuse(key, "the body cannot be stored", error)

    def _answer(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        if offset == GIVEN and is_call(key) and self._requests.is_open(key):
            self._refuse(key, "the supervisor has not answered", FileExistsError("the request is there"))
            return
        self._settle(key, payload, b"")

    def _answer_by_blob(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._settle(key, b"", self._blobs.path(payload))
        self._blobs.drop(payload)

    def _settle(self, call: bytes, body: bytes, blob: bytes) -> None:
        if not is_call(call):
            raise ValueError("the broker answered a call that cannot be")
        try:
            if not self._persist(lambda: self._requests.answer(call, body, blob)) and self._claims_are_open():
                self._unclaimed.append(call)
            else:
                self._box.say_soon(frames.pack(b"q", call))
        except OSError as error:
            self._refuse(call, "the answer cannot be stored", error)

    def _claims_are_open(self) -> bool:
        """Whether a request that is gone may come again, and the broker has to keep its answer."""
        return time.monotonic() < self._claimed_by

    def _acknowledged(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        before = self._acked
        if offset > before and self._log is not None:
            self._acked = offset
            self._folder.set_number(b"acked", offset)
            self._log.reader.acknowledge(offset)
            if offset - before >= MUCH or self._log.reader.from_reserve:
                self._ring = True

    def _widen(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._box.consumed(offset)

    def _renew(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        self._folder.set_number(b"lease", offset)
        self._folder.wake_others()
        self._bury_the_dead()
        if self._folder.is_bell_gone(self._bell):
            self._look()
        self._box.say(frames.pack(b"l", b"", b"", offset))

    def _end_of_look(self, key: bytes, payload: bytes, offset: int, final: bool) -> None:
        now = time.monotonic()
        self._until = now + offset / 1000
        self._room_until, self._look_until = now + ROOM, now + LONGEST_LOOK

    def _refuse(self, key: bytes, what: str, error: OSError) -> None:
        text = "%s in %s: %s" % (what, os.fsdecode(self._folder.path), error.strerror or error)
        self._box.say(frames.pack(b"E", key, text.encode("utf-8", "backslashreplace")))

    # --- the directory -----------------------------------------------------------------

    def _listen(self) -> None:
        if self._bell >= 0:
            self._poll.unregister(self._bell)
            os.close(self._bell)
        self._bell = self._folder.listen(b"bell.r")
        self._poll.register(self._bell, select.POLLIN)

    def _ring_all(self) -> None:
        """The relay before us may have died between a rename and its ring."""
        self._folder.wake_others()
        self._folder.ring(b"bell.s")
        for name in directory.names(self._folder.at(b"rpc")):
            if name.startswith(b"bell_"):
                self._folder.ring(b"rpc/" + name)
                self._folder.forget_bell(b"rpc/" + name)

    def _rung(self) -> None:
        hints = directory.drain(self._bell)
        everything = len(hints) >= directory.FULL_BELL
        for hint in hints.split(b"\n"):
            if hint == b"o":
                self._log_grew()
            elif hint[:1] == b"q" and is_call(hint[1:]):
                self._request(hint[1:])
            elif hint:
                everything = True
        if everything:
            self._look()

    def _log_grew(self) -> None:
        if self._log is not None:
            self._box.take_turns(self._log, first=True)

    def _request(self, call: bytes) -> None:
        if self._log is not None:
            frame, large = self._requests.take(call)
            if call in self._unclaimed:
                self._unclaimed.remove(call)
            if frame:
                self._box.spoke = True
                self._box.say(frame)
            elif large is not None:
                self._box.take_turns(large)

    def _look(self) -> None:
        """Looks at everything."""
        if self._folder.is_gone():
            self._await_directory()
        elif self._folder.is_bell_gone(self._bell):
            self._listen()
        try:
            fence.raise_if_ended(self._folder)
        except fence.Ended as ended:
            self._farewell = str(ended).encode("utf-8", "backslashreplace")
        else:
            self._folder.wake_others()
            self._bury_the_dead()
        if self._log is not None:
            self._log.reader.look_again()
            self._log_grew()
            for call in self._requests.scan():
                self._request(call)
        if self._unclaimed and not self._claims_are_open():
            for call in self._unclaimed:
                self._box.say_soon(frames.pack(b"q", call))
            self._unclaimed.clear()
        self._forget_taken()
        awaited = self._unclaimed or self._requests.open_calls() or self._stored
        behind = self._log is not None and self._log.reader.at > self._acked
        self._due = time.monotonic() + (SECOND_LOOK if awaited or behind else IDLE_LOOK)

    def _bury_the_dead(self) -> None:
        """Cleans up after a session whose supervisor and guard were both killed."""
        deadline = time.monotonic() + NOT_BEGUN
        while fence.is_orphaned(self._folder):
            fence.raise_if_ended(self._folder)
            if time.monotonic() > deadline:
                fence.sweep(self._folder.path)
                raise fence.Ended("the processes that run it were killed")
            time.sleep(0.01)

    def _persist(self, action: Any) -> Any:
        """Does something in the directory, again when it has to be made anew first."""
        try:
            return action()
        except FileNotFoundError:
            self._await_directory()
            return action()

    def _await_directory(self) -> None:
        """A script removed the directory: has the supervisor make it anew, and begins again in it."""
        folder = self._folder
        folder.ring(b"bell.s")
        deadline = time.monotonic() + MISSING
        while folder.is_gone() or not all(os.path.isdir(folder.at(name)) for name in (b"in", b"rpc", b"disk")):
            if time.monotonic() > deadline:
                # The broker is told that it is gone, so it must go: its guard clears up.
                processes.signal_all([pid for pid in [folder.holder(directory.SUPERVISOR)] if pid > 0], 9)
                raise fence.Ended("its directory was removed")
            time.sleep(0.005)
            try:
                folder.open()
            except OSError:
                pass
        fence.take_over(folder, self._owner, self._link)
        self._listen()
        self._keep_code()
        self._requests.forget()
        self._claimed_by = time.monotonic() + WRITTEN_AGAIN
        self._blobs.forget()
        folder.set_number(b"acked", max(self._acked, folder.number(b"acked")))
        taken = folder.number(b"taken")
        for number, message in self._stored.items():
            if number > taken and message:
                directory.put(folder.at(b"in/%d" % number), message)
        folder.ring(b"bell.s")

    def _keep_code(self) -> None:
        try:
            self._folder.put(b"code", b"%x\n" % sys.hexversion + self._code)
        except OSError:
            pass  # the next link will say so


_HANDLERS: Dict[bytes, Any] = {
    b"H": Relay._resume,
    b"C": Relay._command,
    b"D": Relay._command_by_blob,
    b"B": Relay._blob,
    b"A": Relay._answer,
    b"a": Relay._answer_by_blob,
    b"K": Relay._acknowledged,
    b"W": Relay._widen,
    b"L": Relay._renew,
    b"Z": Relay._end_of_look,
}
#: What the broker may say after the end of a look: that it has taken what was said.
_DURING_A_LOOK = (b"W", b"K")
