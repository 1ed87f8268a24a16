"""A session in a place that allows no process beside another: whatever is to be done is one command, started by the
broker and with nothing of ours beneath it.

The bundle is followed by one order (`wire.py`). Answers go out between marks (`marked.py`). A command that goes on as
another program - the interpreter of a cell, the shell of a job - has the kernel end it, and its group, with its
standard input: the broker's end of that is all that it hangs on.
"""

from __future__ import annotations

import fcntl
import os
import select

import directory
import fence
import folders
import jobs
import kernels
import notation
import orphans
import places
import processes
import survey
import wire
from marked import Marked

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Dict, List, NoReturn
else:
    import _signal as signal

FOLDER_CLOSED = "the working directory cannot be entered"
#: Seconds after its limit at which a command ends that nobody has ended.
_LAST_LINE = 10.0
#: Descriptors that the programs of cells and shells are not to meet.
_HIGH = (900, 64, 3)
_PROGRAM = ("marked", "alone_cell")
_LOADER = (
    b"import sys;sys.path[:]=[p for p in sys.path if p];f=open(int(sys.argv[1]),'rb');p=f.read(int(f.read(8)));"
    b"o=f.read();f.close();"
) + kernels.RUN_PROGRAM % b'"ORDER":o'


class _Refused(Exception):
    """It cannot be done; the text says why."""


class Command:
    """What this process is for."""

    def __init__(self, configuration: Dict[str, List[bytes]], modules: Any) -> None:
        self._values = configuration
        self._modules = modules
        self._folder = configuration["folder"][0]
        self._mark = bytes.fromhex(configuration["mark"][0].decode())
        self._variables = survey.environment()
        self.way = Marked(1, self._mark)

    def run(self) -> None:
        """Does what the order says. OSError, `_Refused`: it cannot be done."""
        kind, fields = _order()
        orders: Dict[bytes, Callable[..., None]] = {
            b"F": self._survey,
            b"C": self._cell,
            b"J": self._job,
            b"S": self._settle,
            b"V": self._verb,
            b"X": self._clear,
        }
        orders[kind](*fields)

    def _value(self, name: str) -> bytes:
        return self._values[name][0]

    def _survey(self) -> None:
        """Makes the session's folder, and says what the place is."""
        entry = survey.account()
        _enter(survey.expand(os.fsdecode(self._value("cwd")), survey.home(entry)))
        home = survey.home(entry)
        bases = places.bases(self._values.get("base", []), os.fsencode(home))
        self._make(bases)
        orphans.sweep(bases, [self._folder])
        if self._value("work"):
            work = self._folder + b"/work"
            os.mkdir(work, 0o700)
            _enter(os.path.realpath(os.fsdecode(work)))
        facts = survey.facts(entry, home, self._variables, self._value("interpreters") == b"project")
        facts["folder"] = notation.words(self._folder)
        self.way.say(b"F", notation.text(facts).encode())

    def _make(self, bases: List[bytes]) -> None:
        tried = []
        for base in sorted(bases, key=folders.is_full):
            self._folder = base + b"/talaria-" + self._value("session")
            try:
                os.mkdir(self._folder, 0o700)
                self._hold()
                return
            except OSError as error:
                tried.append("%s (%s)" % (os.fsdecode(base), error.strerror))
        raise _Refused("no folder for the session could be made in any of %s; free space there" % ", ".join(tried))

    def _hold(self) -> None:
        """Shows that the folder is in use while this process lives: see `orphans.py`."""
        processes.make_folder(self._folder + b"/start")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = _lift(os.open(self._folder + b"/lock", flags, 0o600))
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, directory.GUARD)
        os.utime(self._folder)

    def _cell(self, timeout: bytes, python: bytes, environment: bytes, *rest: bytes) -> None:
        """Becomes the interpreter of a cell."""
        folder, session_folder, stub, link, number, name, arguments, kind, source = rest
        _enter(os.fsdecode(folder))
        self._hold()
        modules = self._modules
        program = kernels.texts(modules.program() + [(name, modules.sources[name], modules.code) for name in _PROGRAM])
        stream, way = _lift(0), _lift(1)
        order = (
            wire.pack(b"S", b"%d" % stream, b"%d" % way, self._mark)
            + wire.pack(b"B", session_folder, stub, b"", link, folder)
            + wire.pack(b"C", number, name, arguments, kind, b"", source)
        )
        text = self._text(b"%08d" % len(program) + program + order)
        os.chdir(self._folder + b"/start")  # some interpreters import from where they start
        _end_with(stream)
        signal.setitimer(signal.ITIMER_REAL, float(timeout) + _LAST_LINE)
        _become([python, b"-c", _LOADER, b"%d" % text], environment)

    def _text(self, data: bytes) -> int:
        """A descriptor of a file without a name."""
        path = self._folder + b"/start/%d" % os.getpid()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.unlink(path)
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        return _lift(fd)

    def _job(self, timeout: bytes, folder: bytes, argv: bytes, environment: bytes, path: bytes, script: bytes) -> None:
        """Becomes the shell of a command."""
        self._hold()
        jobs.write_private(path, script)
        _enter(os.fsdecode(folder))
        stream = _lift(0)
        _end_with(stream)
        self.way.say(b"B", b"%d" % os.getpid())
        os.dup2(1, 2)
        signal.setitimer(signal.ITIMER_REAL, float(timeout) + _LAST_LINE)
        _become(argv.split(b"\0"), environment)

    def _settle(self, process: bytes, path: bytes, state_path: bytes) -> None:
        """What a job has left: its group ends, its state is told, its files go."""
        if int(process):
            try:
                os.killpg(int(process), 9)
            except OSError:
                pass  # nothing is left
        state = b""
        try:
            with open(state_path, "rb") as file:
                state = file.read()
        except OSError:
            pass
        for name in (path, state_path):
            try:
                os.unlink(name)
            except OSError:
                pass
        self.way.say(b"S", state)

    def _verb(self, verb: bytes, folder: bytes, home: bytes, *arguments: bytes) -> None:
        """Does a file operation."""
        import aside
        import worker

        aside.note_in(self._folder)
        self.way.say(b"V", wire.pack(b"v", *worker.Server._perform(verb, folder, home, list(arguments))))

    def _clear(self) -> None:
        """Ends what cells have left, and removes the session's folder."""
        fence.sweep(self._folder)
        self.way.say(b"X", b"")


def main(configuration: Dict[str, List[bytes]], modules: Any) -> NoReturn:
    """Does what this process was started for."""
    processes.new_session()
    command = Command(configuration, modules)
    code = 0
    try:
        command.run()
    except (OSError, _Refused) as error:
        command.way.say(b"E", str(error).encode("utf-8", "backslashreplace"))
        code = 1
    os._exit(code)


def _order() -> wire.Message:
    reader = wire.Reader()
    while True:
        data = os.read(0, 4)
        if len(data) == 4:
            data += _exactly(int.from_bytes(data, "big"))
        for message in reader.feed(data):
            return message
        if not data:
            os._exit(1)  # the broker has hung up


def _exactly(size: int) -> bytes:
    parts = []
    while size > 0:
        parts.append(os.read(0, min(size, 1 << 18)))
        if not parts[-1]:
            os._exit(1)
        size -= len(parts[-1])
    return b"".join(parts)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise _Refused("%s: %s: %s" % (FOLDER_CLOSED, folder, (error.strerror or "").lower())) from None


def _lift(fd: int) -> int:
    """A copy of a descriptor that passes on to the program that this process becomes."""
    for lowest in _HIGH:  # as high as the limit of descriptors lets it
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD, lowest)
        except OSError:
            if lowest == _HIGH[-1]:
                raise
    return fd


def _end_with(stream: int) -> None:
    """Has the kernel kill this process and its group as soon as anything happens to its standard input."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    group = os.getpgrp() == os.getpid()
    try:
        fcntl.fcntl(stream, fcntl.F_SETOWN, -os.getpid() if group else os.getpid())
        fcntl.fcntl(stream, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):
        return  # no stream of that kind: the timer ends it
    if select.select([stream], [], [], 0)[0]:
        os._exit(1)  # it has ended in the meantime


def _become(argv: List[bytes], environment: bytes) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them
    os.execve(argv[0], argv, wire.unpack_variables(environment))
