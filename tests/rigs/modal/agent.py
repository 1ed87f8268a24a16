"""The first process of a sandbox: starts what it is told to, reaps everything, and ends with the stand-in.

Started as `python agent.py DESCRIPTOR`, a socket that carries one JSON object a packet. Inside namespaces its end ends
all of the sandbox; without them it ends its descendants itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

import isolation

#: No packet is longer.
PACKET = 4 << 20


class Agent:
    def __init__(self, link: socket.socket, upper: int | None) -> None:
        self._link = link
        self._upper = upper
        #: Process ids by the number that the stand-in gave, and back.
        self._processes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def serve(self) -> None:
        """Until the stand-in closes the link."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Not `select`: the link may have any number.
        waiting = select.poll()
        waiting.register(self._link, select.POLLIN)
        waiting.register(wake, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in waiting.poll()]
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._link.fileno() in ready and not self._command():
                return

    def _say(self, **message: Any) -> None:
        try:
            self._link.send(json.dumps(message).encode())
        except OSError:
            pass  # the stand-in is gone: the next look at the link says so

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._processes[number]
                self._say(op="exit", number=number, status=os.waitstatus_to_exitcode(status))

    def _command(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._link, PACKET, 4, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return False
        message = json.loads(packet)
        if message["op"] == "start":
            self._start(message, descriptors)
        elif message["op"] == "kill":
            self._kill(message["number"], message["signal"])
        elif message["op"] == "save":
            self._save(descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        report, reporter = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(message, descriptors, reporter)
        os.close(reporter)
        failure = os.read(report, 4096)
        os.close(report)
        if failure:
            os.waitpid(pid, 0)
            self._say(op="failed", number=message["number"], reason=failure.decode())
            return
        self._processes[message["number"]] = pid
        self._numbers[pid] = message["number"]
        self._say(op="started", number=message["number"], pid=pid)

    def _kill(self, number: int, which: int) -> None:
        pid = self._processes.get(number)
        if pid is not None:
            try:
                os.killpg(pid, which)
            except ProcessLookupError:
                pass

    def _save(self, sink: int) -> None:
        if self._upper is None:
            self._say(op="saved", error="this sandbox shares the host's file system")
            return
        try:
            isolation.save(self._upper, sink)
            self._say(op="saved", error="")
        except Exception as error:
            self._say(op="saved", error=str(error))


def _become(message: dict[str, Any], descriptors: list[int], reporter: int) -> NoReturn:
    """The child: turns into the command, or says why not."""
    what = "the command"
    try:
        for which in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
            signal.signal(which, signal.SIG_DFL)
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.umask(0o022)
        what = message["cwd"]
        os.chdir(what)
        what = message["args"][0]
        os.execvpe(message["args"][0], message["args"], message["env"])
    except OSError as error:
        os.write(reporter, ("%s: %s" % (what, error.strerror)).encode())
    except BaseException as error:
        os.write(reporter, repr(error).encode())
    os._exit(127)


def _end_descendants() -> None:
    """Without namespaces: kills what was started until nothing is left."""
    while True:
        try:
            with open("/proc/self/task/%d/children" % os.getpid()) as listing:
                children = [int(pid) for pid in listing.read().split()]
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        except ProcessLookupError:
            continue


#: What the official client's `Sandbox.filesystem` runs inside, as far as files are read and written.
FILES = """#!/bin/sh
path=$(printf %s "$1" | sed 's/.*"path": "\\([^"]*\\)".*/\\1/')
case $1 in
'{"WriteFile"'*) mkdir -p "$(dirname "$path")" && exec cat >"$path" ;;
'{"ReadFile"'*) exec cat "$path" ;;
*) exit 2 ;;
esac
"""


def _script(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as script:
        script.write(text)
    os.chmod(path, 0o755)


def _furnish(python: str) -> None:
    """What every sandbox has beside its image: the tool for files, and the interpreter that was asked for."""
    isolation.mount("modal", "/__modal", "tmpfs")
    _script("/__modal/.bin/modal-sandbox-fs-tools", FILES)
    for name in ("python3", "python") if python else ():
        # Not a link: the interpreter finds its modules by its own path.
        _script("/run/python/" + name, "#!/bin/sh\nexec '%s' \"$@\"\n" % python)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    packet, descriptors, _, _ = socket.recv_fds(link, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    settings = json.loads(packet)
    if not settings["isolated"]:
        isolation.adopt_orphans()
        link.send(json.dumps({"op": "ready", "pid": os.getpid()}).encode())
        Agent(link, None).serve()
        _end_descendants()
        return
    isolation.end_with_parent()
    isolation.unshare(settings["blocked"])
    pid = os.fork()
    if pid:
        link.send(json.dumps({"op": "pid", "pid": pid}).encode())
        link.close()
        os.waitpid(pid, 0)
        return
    isolation.end_with_parent()
    try:
        upper = isolation.enter(
            settings["hostname"], settings["visible"], descriptors[0] if descriptors else None, settings["blocked"]
        )
        os.makedirs("/__modal", exist_ok=True)
        _furnish(settings["python"])
    except Exception as error:
        link.send(json.dumps({"op": "broken", "reason": str(error)}).encode())
        return
    link.send(json.dumps({"op": "ready"}).encode())
    Agent(link, upper).serve()


if __name__ == "__main__":
    main()
