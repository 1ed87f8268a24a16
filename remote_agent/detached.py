"""The start of a session whose messages travel through a directory: starts its guard, which makes the directory,
apart from whoever started us, and becomes the first relay. Where it has to stay it becomes the guard, and a child
the relay.
"""

from __future__ import annotations

import marshal
import os
import sys

import folders
import frames
import notation
import processes
import survey

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Dict, List, NoReturn, Tuple
else:
    import _signal as signal

#: Modules of the relay in the order of their imports, for later links.
RELAY_CODE = (
    "processes",
    "notation",
    "frames",
    "folders",
    "directory",
    "fence",
    "log_reader",
    "requests",
    "blobs",
    "outbox",
    "relay",
)
#: Key of the frame that says that no process can be started: the broker goes on without any.
_NO_PROCESS = b"process"


def main(configuration: Dict[str, List[bytes]], modules: Any) -> NoReturn:
    """Starts the session; never returns."""

    def value(name: str) -> bytes:
        return configuration[name][0]

    variables = survey.environment()
    # Our environment holds what cells are not to see; whoever we fork inherits this.
    processes.forbid_inspection()
    entry = survey.account()
    try:
        _enter(survey.expand(os.fsdecode(value("cwd")), survey.home(entry)))
        home = survey.home(entry)
        answer = _fork_guard(configuration, os.fsencode(home), modules)
        import relay  # while the guard makes the directory

        told = _told(answer)
        if value("work"):
            _enter(os.path.realpath(os.fsdecode(told) + "/disk/work"))
    except _Refused as refused:
        os.write(1, frames.pack(b"E", refused.key, str(refused).encode("utf-8", "backslashreplace")))
        os._exit(1)

    def facts() -> str:
        return notation.text(survey.facts(entry, home, variables, value("interpreters") == b"project"))

    code = marshal.dumps([(name, modules.code(name)) for name in RELAY_CODE])
    relay.first(told, value("owner"), int(value("link")), int(value("window")), facts, code)


class _Refused(Exception):
    """There is no session; the text says why, the key whether that is for want of processes."""

    def __init__(self, text: str, key: bytes = b"") -> None:
        super().__init__(text)
        self.key = key


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        text = "the working directory %s cannot be entered: %s" % (folder, (error.strerror or "").lower())
        raise _Refused(text) from None


def _fork_guard(configuration: Dict[str, List[bytes]], home: bytes, modules: Any) -> int:
    """Starts the guard, apart from us; returns the pipe in which it answers with the directory that it made.

    It makes it, and not we: from the first moment there is somebody who removes it. Where this process has to stay it
    becomes the guard, and the call returns in a child.
    """
    ours, theirs = os.pipe()
    try:
        if _has_to_stay():
            relay = processes.fork()
            if relay:
                _guard(configuration, home, theirs, relay, modules)
        else:
            between = processes.fork()
            if between == 0:
                processes.new_session()
                _fork_and_leave(lambda: _guard(configuration, home, theirs, 0, modules), theirs)
            os.waitpid(between, 0)
    except OSError as error:
        os.write(theirs, _refusal(error))
    os.close(theirs)
    return ours


def _told(answer: int) -> bytes:
    """The directory that the guard made."""
    with open(answer, "rb") as file:
        told = file.read()
    if told.startswith(b"+"):
        return told[1:]
    text = told[1:].decode("utf-8", "replace") or "the process that guards the session could not be started"
    raise _Refused(text, _NO_PROCESS if told.startswith(b"!") else b"")


def _refuse(answer: int, relay: int, error: Exception) -> NoReturn:
    """Ends the guard, which tells the process that was started first why."""
    os.write(answer, _refusal(error))
    os.close(answer)
    if relay:
        os.waitpid(relay, 0)  # it says so; all ends with us
    os._exit(1)


def _refusal(error: Exception) -> bytes:
    """Why there is no guard, as it is told to the process that was started first."""
    mark = b"!" if isinstance(error, processes.NoProcess) else b"-"
    return mark + str(error).encode("utf-8", "backslashreplace")


def _has_to_stay() -> bool:
    """Whether nobody but who started us takes note of our end.

    As PID 1, and where a command was started in a container whose PID 1 does not reap: what is left to that one is a
    zombie for ever, one for each session.
    """
    return os.getpid() == 1 or (os.getppid() == 0 and not _reaps_orphans())


def _reaps_orphans() -> bool:
    """Whether PID 1 wants to know of its children's ends, or has the kernel forget them."""
    try:
        with open("/proc/1/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigBlk:", b"SigIgn:", b"SigCgt:"))]
    return any(mask >> (signal.SIGCHLD - 1) & 1 for mask in masks)


def _fork_and_leave(child: Callable[[], None], answer: int) -> NoReturn:
    """The second of two forks: the child is nobody's."""
    try:
        if processes.fork() == 0:
            processes.new_session()
            child()
    except OSError as error:
        os.write(answer, _refusal(error))
    finally:
        os._exit(1)


def _guard(configuration: Dict[str, List[bytes]], home: bytes, answer: int, relay: int, modules: Any) -> None:
    """Makes the directory, says where, and guards it. Never returns."""
    try:
        processes.ignore_signals()
        processes.become_subreaper()
        terms = float(configuration["first_lease"][0]), float(configuration["lease"][0])
        try:
            supervisor, place, held = _fork_supervisor(terms, modules)
        except OSError as error:
            _refuse(answer, relay, error)
        import keeper
        import places

        made: List[bytes] = []
        try:
            wanted = configuration.get("base", [])
            made = places.make(configuration["session"][0], wanted, home)
            bases = places.bases(wanted, home)
            if configuration["work"] != [b""]:
                os.mkdir(made[0] + b"/disk/work", 0o700)
        except (OSError, places.Unusable) as error:
            folders.remove(made)
            _refuse(answer, relay, error)
        os.write(place, b"\0".join(made))
        os.close(place)
        os.write(answer, b"+" + made[0])
        os.close(answer)
        keeper.guard(supervisor, made, bases, terms, relay, held)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _fork_supervisor(terms: Tuple[float, float], modules: Any) -> Tuple[int, int, int]:
    """Starts the supervisor: its process, the pipe in which it is told what was made for it, and the one whose end says
    that the guard was killed.

    Before there is anything for it to do: most of what it has to do until then is to load its program.
    """
    life, held = os.pipe()
    told, place = os.pipe()
    guard = os.getpid()
    pid = processes.fork()
    if pid == 0:
        _supervise(terms, guard, life, told, modules)
    os.close(life)
    os.close(told)
    return pid, place, held


def _supervise(terms: Tuple[float, float], guard: int, life: int, told: int, modules: Any) -> NoReturn:
    code = 1
    try:
        processes.withdraw(life, told)
        from lease import Lease
        from spool import Spool
        from supervisor import Supervisor

        program = modules.program()
        for _, _, compiled in program:
            compiled()  # before somebody waits for it
        with open(told, "rb") as file:
            made = file.read()
        if made:
            paths = made.split(b"\0")
            code = Supervisor(Spool(paths, Lease(*terms)), paths[:1], guard, life, program).run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
