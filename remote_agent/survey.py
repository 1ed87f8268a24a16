"""What the place is that the session was started in: told once, with the first link."""

from __future__ import annotations

import os
import select
import sys
import time

import notation

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

#: Seconds that another interpreter gets to say its version.
TRIAL = 5.0
OLDEST = (3, 8)


def account() -> Any:
    """The entry of this user in the account database, or None: a container may run any number as a user."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid())
    except (ImportError, KeyError):
        return None


def home(entry: Any) -> str:
    """The user's home: that of the environment, of the account, else some folder of which one can say so."""
    for place in (os.environ.get("HOME", ""), entry.pw_dir if entry else ""):
        if place.startswith("/"):
            return place
    here = _here()
    return here if os.access(here, os.W_OK) else "/"


def expand(folder: str, home_folder: str) -> str:
    """A working directory as it was configured, made absolute."""
    if folder == "~" or folder.startswith("~/"):
        folder = home_folder + folder[1:]
    return os.path.normpath(os.path.join(_here(), folder))


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def environment() -> Dict[str, str]:
    """The variables that this process was started with: Python itself adds to them where no locale is set."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:
        pairs = [(name, b"=", value) for name, value in os.environb.items()]
    return {notation.words(name): notation.words(value) for name, separator, value in pairs if name and separator}


def facts(entry: Any, home_folder: str, variables: Dict[str, str], look_around: bool) -> Dict[str, Any]:
    """The facts of this place; the working directory is the current one."""
    python, version, rejected = _interpreter(os.getcwd() if look_around else "")
    return {
        "home": notation.words(os.fsencode(home_folder)),
        "user": entry.pw_name if entry else "",
        "uid": os.geteuid(),
        "cwd": notation.words(os.getcwdb()),
        "environment": variables,
        "shell": (entry.pw_shell if entry else "") or "/bin/sh",
        "bash": _on_path("bash"),
        "python": python,
        "version": version,
        "rejected": rejected,
        "platform": "{0} {2} {4}".format(*os.uname()),
    }


def _on_path(name: str) -> Optional[str]:
    # A login may have a PATH without the usual places.
    for folder in (os.environ.get("PATH", os.defpath) + ":/bin:/usr/bin").split(":"):
        path = folder + "/" + name
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _interpreter(cwd: str) -> Tuple[str, str, List[List[str]]]:
    """The interpreter for the kernel, its version, and which were passed over, with what was found."""
    rejected: List[List[str]] = []
    if cwd:
        places = [os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", "")]
        if os.path.isdir(cwd + "/.venv"):
            places.append(cwd + "/.venv")
        for place in dict.fromkeys(places):
            path = place + "/bin/python"
            if not place.startswith("/"):
                continue
            if path == sys.executable:
                break
            version, problem = _try(path)
            if not problem:
                return path, version, rejected
            rejected.append([path, problem])
    return sys.executable, "%d.%d.%d" % sys.version_info[:3], rejected


def _try(path: str) -> Tuple[str, str]:
    """The version of an interpreter, or what is wrong with it."""
    if not os.path.exists(path):
        return "", "a link to a file that does not exist" if os.path.islink(path) else "does not exist"
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return "", "not an executable file"
    try:
        output, status = _run([path, "-I", "-S", "-c", "import sys;print('talaria %d.%d.%d'%sys.version_info[:3])"])
    except OSError as error:
        return "", "could not be tried: %s" % (error.strerror or "").lower()
    if status is None:
        return "", "said nothing for %d s" % TRIAL
    words = output.split()
    if status != 0 or words[:1] != [b"talaria"] or len(words) != 2:
        text = output.decode("utf-8", "replace").strip().split("\n")[-1][:200]
        end = "exited with %d" % (status >> 8) if not status & 0x7F else "was ended by signal %d" % (status & 0x7F)
        return "", end + (": " + text if text else "")
    version = words[1].decode("ascii", "replace")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return "", "version " + version
    return version, ""


def _run(command: List[str]) -> Tuple[bytes, Optional[int]]:
    """What a program prints, and its wait status; None when it took too long."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for target, fd in enumerate((null, theirs, theirs)):
                os.dup2(fd, target)
            os.execv(command[0], command)
        finally:
            os._exit(127)
    os.close(theirs)
    deadline = time.monotonic() + TRIAL
    output = b""
    status: Optional[int] = None
    try:
        while len(output) < 1 << 16:
            if not select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return output, None
            data = os.read(ours, 4096)
            if not data:
                break
            output += data
        while time.monotonic() < deadline:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status, pid = code, 0
                break
            time.sleep(0.002)
        return output, status
    finally:
        os.close(ours)
        if pid:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
