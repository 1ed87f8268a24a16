"""Namespaces and the file system of a sandbox: the host's own, but every change stays with the sandbox.

The root is an overlay over the host's, whose upper layer is kept in memory; `/tmp`, `/run` and `/dev/shm` are empty
ones. What the upper layer holds is what a snapshot of the file system carries.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
import subprocess
from typing import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIOCSIFFLAGS = 0x8914
IFF_UP = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))


def end_with_parent() -> None:
    """This process is killed when the one that started it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def unshare(network: bool) -> None:
    """Own mounts, host name and IPC from here on, and own process ids for children; also no network if so asked."""
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | (CLONE_NEWNET if network else 0)
    _check(_libc.unshare(flags), "unshare")


def possible() -> bool:
    """Whether namespaces and overlays can be made here: it takes root, and in a container more than that."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            unshare(network=True)
            mount("none", "/", flags=MS_REC | MS_PRIVATE)
            mount("sandbox", "/tmp", "tmpfs")
            for name in ("upper", "work", "root"):
                os.mkdir("/tmp/" + name)
            mount("overlay", "/tmp/root", "overlay", data="lowerdir=/,upperdir=/tmp/upper,workdir=/tmp/work")
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None),
        "mount %s" % target,
    )


def _file_mounts() -> Iterable[str]:
    """Single files under /etc that are mounts of their own, as container engines make them: an overlay hides them."""
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            point = line.split()[4]
            if point.startswith("/etc/") and os.path.isfile(point):
                yield point


def enter(hostname: str, visible: list[str], snapshot: int | None, network: bool) -> int:
    """Makes the sandbox's world and moves into it. Gives a descriptor of the layer that takes all changes."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    # Taken hold of first: what is mounted below may cover them.
    kept = {path: os.open(path, os.O_PATH) for path in ["/dev", "/sys", *_file_mounts(), *visible]}
    mount("sandbox", "/tmp", "tmpfs")
    for name in ("upper", "work", "root"):
        os.mkdir("/tmp/" + name, 0o755)
    upper = os.open("/tmp/upper", os.O_RDONLY | os.O_DIRECTORY)
    if snapshot is not None:
        subprocess.run(
            ["tar", "-xpf", "-", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", "/tmp/upper"],
            stdin=snapshot,
            check=True,
        )
    mount("overlay", "/tmp/root", "overlay", data="lowerdir=/,upperdir=/tmp/upper,workdir=/tmp/work")
    os.chdir("/tmp/root")
    mount("proc", "proc", "proc")
    for path in ("/dev", "/sys"):
        mount("/proc/self/fd/%d" % kept.pop(path), path[1:], flags=MS_BIND | MS_REC)
    mount("shm", "dev/shm", "tmpfs", data="mode=1777")
    mount("tmp", "tmp", "tmpfs", data="mode=1777")
    mount("run", "run", "tmpfs", data="mode=755")
    for path, descriptor in kept.items():
        inside = path[1:]
        # The path may be covered by now.
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(inside, exist_ok=True)
        elif not os.path.exists(inside):
            os.makedirs(os.path.dirname(inside) or ".", exist_ok=True)
            open(inside, "w").close()
        mount("/proc/self/fd/%d" % descriptor, inside, flags=MS_BIND | MS_REC)
        os.close(descriptor)
    mount(".", "/", flags=MS_MOVE)
    os.chroot(".")
    os.chdir("/")
    socket.sethostname(hostname)
    if network:
        _loopback_up()
    return upper


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def save(upper: int, sink: int) -> None:
    """Writes what the upper layer holds as an archive."""
    archive = ["tar", "-cf", "-", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--ignore-failed-read", "."]
    done = subprocess.run(archive, cwd="/proc/self/fd/%d" % upper, stdout=sink, pass_fds=[upper])
    if done.returncode not in (0, 1):  # 1: a file changed meanwhile
        done.check_returncode()
