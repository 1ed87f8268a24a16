"""The start of a session whose messages travel through a directory: makes it, starts guard and supervisor
apart from whoever started us, and becomes the first relay. As PID 1 it becomes the guard, and a child the relay.
"""

from __future__ import annotations

import marshal
import os
import sys

import folders
import frames
import notation
import places
import processes
import survey

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Tuple

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
    "relay",
)


def main(configuration: Dict[str, List[bytes]], modules: Any) -> NoReturn:
    """Starts the session; never returns."""

    def value(name: str) -> bytes:
        return configuration[name][0]

    variables = survey.environment()
    # Our environment holds what cells are not to see; whoever we fork inherits this.
    processes.forbid_inspection()
    entry = survey.account()
    try:
        home = survey.home(entry)
        _enter(survey.expand(os.fsdecode(value("cwd")), home))
        home = survey.home(entry)
        path, disk = places.make(value("session"), configuration.get("base", []), os.fsencode(home))
    except (OSError, places.Unusable) as error:
        _refuse(str(error))
    made = [path, disk] if disk else [path]
    try:
        if value("work"):
            os.mkdir(path + b"/disk/work", 0o700)
            os.chdir(os.path.realpath(path + b"/disk/work"))
        terms = float(value("first_lease")), float(value("lease"))
        if os.getpid() == 1:
            child = os.fork()
            if child:
                _become_guard(made, terms, child, modules)
        else:
            _start_guard(made, terms, modules)
    except OSError as error:
        folders.remove(made)
        _refuse("the session cannot be started: %s" % error.strerror)
    import relay

    facts = notation.text(survey.facts(entry, home, variables, value("interpreters") == b"project"))
    code = marshal.dumps([(name, modules.code(name)) for name in RELAY_CODE])
    relay.first(path, value("owner"), int(value("link")), int(value("window")), facts, code)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        text = "the working directory %s cannot be entered: %s" % (folder, (error.strerror or "").lower())
        raise places.Unusable(text) from None


def _refuse(why: str) -> NoReturn:
    """Says why there is no session."""
    try:
        os.write(1, frames.pack(b"E", b"", why.encode("utf-8", "backslashreplace")))
    finally:
        os._exit(1)


def _start_guard(made: List[bytes], terms: Tuple[float, float], modules: Any) -> None:
    """A double fork: the guard is nobody's child."""
    between = os.fork()
    if between == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                _become_guard(made, terms, 0, modules)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(between, 0)[1]:
        raise OSError(0, "no process can be forked")


def _become_guard(made: List[bytes], terms: Tuple[float, float], relay: int, modules: Any) -> NoReturn:
    try:
        import keeper

        keeper.run(made, terms, relay, modules)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
