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
    from typing import Any, Callable, Dict, List, NoReturn
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
        told = _fork_guard(configuration, os.fsencode(home), modules)
        if value("work"):
            _enter(os.path.realpath(os.fsdecode(told) + "/disk/work"))
    except _Refused as refused:
        os.write(1, frames.pack(b"E", refused.key, str(refused).encode("utf-8", "backslashreplace")))
        os._exit(1)
    import relay

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


def _fork_guard(configuration: Dict[str, List[bytes]], home: bytes, modules: Any) -> bytes:
    """Starts the guard, apart from us, and returns the directory that it made.

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
    with open(ours, "rb") as file:
        told = file.read()
    if told.startswith(b"+"):
        return told[1:]
    text = told[1:].decode("utf-8", "replace") or "the process that guards the session could not be started"
    raise _Refused(text, _NO_PROCESS if told.startswith(b"!") else b"")


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
        import keeper
        import places

        made: List[bytes] = []
        try:
            wanted = configuration.get("base", [])
            made = places.make(configuration["session"][0], wanted, home)
            bases = places.bases(wanted, home)
            if configuration["work"] != [b""]:
                os.mkdir(made[0] + b"/disk/work", 0o700)
            terms = float(configuration["first_lease"][0]), float(configuration["lease"][0])
            guard = keeper.begin(made, bases, terms, relay, modules)
        except (OSError, places.Unusable) as error:
            folders.remove(made)
            os.write(answer, _refusal(error))
            os.close(answer)
            if relay:
                os.waitpid(relay, 0)  # it says so; all ends with us
            os._exit(1)
        os.write(answer, b"+" + made[0])
        os.close(answer)
        guard()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
