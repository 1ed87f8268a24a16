"""Why no process can be started, in words that say what to do about it. Loaded when that happens."""

from __future__ import annotations

import errno

import control_groups

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Optional


def why(error: OSError) -> str:
    """The reason behind a fork that failed."""
    if error.errno == errno.EAGAIN:
        return "no process can be started: %s; raise the limit, or end some of them" % _limit()
    if error.errno == errno.ENOMEM:
        return "no process can be started: there is not enough memory for another; give the place more, or free some"
    if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return (
            "no process can be started: the place forbids it (%s; a seccomp profile does such a thing); allow the "
            "system calls fork, clone and clone3 there" % (error.strerror or "?").lower()
        )
    return "no process can be started: %s" % (error.strerror or error)


def _limit() -> str:
    """The limit that was met, as far as it can be seen from here."""
    group, user = control_groups.least(b"pids", [b"pids.max"]), _user_limit()
    if group is not None and (user is None or group <= user):
        return "the place allows %d processes at once, threads included (its pids limit), and as many run" % group
    if user is not None:
        return "the user may have %d processes at once, threads included (ulimit -u), and as many run" % user
    return "a limit of processes is reached there (a pids limit, or ulimit -u)"


def _user_limit() -> Optional[int]:
    for line in control_groups.read(b"/proc/self/limits").split(b"\n"):
        if line.startswith(b"Max processes"):
            soft = line.split()[2]
            return int(soft) if soft.isdigit() else None
    return None
