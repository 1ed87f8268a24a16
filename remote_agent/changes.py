"""Fetches files whole and changes several, all or none; of the worker.

The twin of ``src/tools/local_files/{fetch,change,aside}.rs``, where it is said why. Only the splices of a change
travel: what they are spliced into is read here, and its digest must be that of the file as it was fetched.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat

import aside
from text_file import refuse_special
from whole_file import behind_links, check_right, make_folders, one_name, overwrite, without_place, write_all
from workspace import WorkspaceError, failed, file_name, is_folder, is_regular, parent, reason, refuse_own, text

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Splices = List[Tuple[int, int, bytes]]

#: The largest file that is changed: as much as an argument or a result may hold.
MOST_BYTES = 64 << 20
#: The folder takes no new file, or the file is a mount of its own: it is written over.
_WRITE_OVER = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


class Conflict(Exception):
    """A file is no longer as it was found."""


def fetch(path: bytes) -> List[bytes]:
    """What there is: its kind, the absolute path, the file behind links, where a link leads, what it holds, its
    version."""
    if path.endswith(b"/") and not os.path.isdir(path):
        raise WorkspaceError("%s is the name of a folder; add a file name" % text(path))
    try:
        link = os.readlink(path)
    except OSError:
        link = b""
    try:
        return _behind(path, link)
    except WorkspaceError as error:
        name = file_name(path)
        if not link or name is None:
            raise
        # A link can go whatever is behind it.
        real = os.path.join(os.path.realpath(parent(path) or b"/"), name)
        return [b"link", path, real, link, str(error).encode("utf-8", "replace"), b""]


def _behind(path: bytes, link: bytes) -> List[bytes]:
    try:
        behind = os.path.realpath(behind_links(path))
        try:
            status = os.stat(path)
        except FileNotFoundError as error:
            return [b"missing", path, behind, link, str(failed("read", path, error)).encode("utf-8", "replace"), b""]
        refuse_special(path, status)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            refuse_special(path, os.fstat(fd))
            content = _read(fd, MOST_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise failed("read", path, error) from None
    if len(content) > MOST_BYTES:
        raise WorkspaceError(
            "%s is larger than the %d MiB up to which files are changed here; use terminal() or Python"
            % (text(path), MOST_BYTES >> 20)
        )
    return [b"file", path, behind, link, content, _version(content)]


def change(fields: List[bytes]) -> List[bytes]:
    """Makes all changes or none."""
    steps = sorted(_steps(fields), key=lambda step: step.place)
    try:
        try:
            for step in steps:
                if aside.is_ending():
                    raise WorkspaceError("the session has ended; nothing was changed")
                step.prepare(len(steps) > 1, steps)
            # What goes does so last, and a link after what the patch names through it.
            going = [step for step in steps if step.kind in (b"remove", b"unlink")]
            steps = [step for step in steps if step not in going] + going[::-1]
            for step in steps:
                step.commit()
        except BaseException as error:
            stuck = [said for said in [step.undo() for step in reversed(steps)] if said]
            if stuck:
                raise WorkspaceError("; and ".join([str(error), "; ".join(stuck)])) from None
            raise
    except Conflict as conflict:
        return [b"conflict", str(conflict).encode("utf-8", "replace")]
    finally:
        for step in steps:
            step.clear()
    for folder in sorted({step.folder() for step in steps}):
        aside.sweep(folder)
    return [b"done"]


def _steps(fields: List[bytes]) -> List[_Step]:
    steps = []
    rest = iter(fields)
    for kind in rest:
        place, version, count = next(rest), next(rest), int(next(rest))
        if kind == b"create":
            steps.append(_Step(kind, place, b"", version, [(0, 0, next(rest))]))
            continue
        splices = []
        for _ in range(count):
            start, end = next(rest).split()
            splices.append((int(start), int(end), next(rest)))
        steps.append(_Step(kind, place, version, b"", splices))
    return steps


class _Step:
    """One change under way."""

    def __init__(self, kind: bytes, place: bytes, version: bytes, like: bytes, splices: Splices) -> None:
        self.kind = kind
        self.place = place
        self._version = version
        self._like = like
        self._splices = splices
        #: The file itself, behind links; of one that is to be removed, the name.
        self._target = place
        #: Open for their locks.
        self._open: List[int] = []
        #: The file as it was compared, and what it held.
        self._seen: Optional[os.stat_result] = None
        self._content = b""
        #: How many names it had, and whether another of them is changed too: each is a file of its own then, as each
        #: is replaced.
        self._names = 0
        self._has_twin = False
        #: Beside: what it will be, and what it was.
        self._new: Optional[bytes] = None
        self._old: Optional[bytes] = None
        self._made: List[bytes] = []
        #: Whether it has been done: by renaming, or by writing over it.
        self._done = ""

    def folder(self) -> bytes:
        """The folder in which it works."""
        return parent(self._target) or b"/"

    def prepare(self, one_of_several: bool, all_steps: List[_Step]) -> None:
        """Makes all ready; nothing is changed yet but for folders that were missing."""
        refuse_own(self.place)
        try:
            if self.kind == b"unlink":
                # What it says is all there is to it: it can be made again.
                if not self._is_as_seen():
                    raise self._conflict()
                return
            if self.kind != b"remove":
                self._target = behind_links(self._target)
            if self.kind == b"create":
                self._prepare_new()
                return
            self._compare(all_steps)
            if self.kind == b"edit":
                check_right(self._target)
                self._write_aside(self._seen)
            if one_of_several:
                self._keep()
        except OSError as error:
            raise self._failed(error) from None

    def _prepare_new(self) -> None:
        if os.path.lexists(self._target):
            if stat.S_ISDIR(os.lstat(self._target).st_mode):
                raise is_folder(self._target)
            raise self._conflict()
        if file_name(self._target) is None:
            raise WorkspaceError("%s is no name of a file" % text(self.place))
        try:
            like = os.stat(self._like) if self._like else None
        except OSError:
            raise self._conflict() from None  # what is moved has gone
        make_folders(self.folder(), self._made)
        self._write_aside(like)

    def _compare(self, all_steps: List[_Step]) -> None:
        """Sees that the file is as it was found, and keeps others that change it this way out."""
        fd = os.open(self._target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._open.append(fd)
        place = os.fstat(fd)
        # Another name of a file that is changed here too, and locked already.
        for step in all_steps:
            if step._seen is not None and (step._seen.st_dev, step._seen.st_ino) == (place.st_dev, place.st_ino):
                step._has_twin = self._has_twin = True
        if not self._has_twin:
            aside.lock(fd)
        status, there = os.fstat(fd), os.stat(self._target)
        if not is_regular(status) or (status.st_dev, status.st_ino) != (there.st_dev, there.st_ino):
            raise self._conflict()
        self._content = _read(fd, MOST_BYTES + 1)
        if _version(self._content) != self._version:
            raise self._conflict()
        self._seen, self._names = status, status.st_nlink

    def _write_aside(self, like: Optional[os.stat_result]) -> None:
        # Another's content is seen by nobody before it has the other's mode bits.
        try:
            path, fd = aside.create(self.folder(), 0o666 if like is None else 0o600)
        except OSError as error:
            if self.kind == b"edit" and error.errno in _WRITE_OVER:
                return  # it will be written over
            raise
        self._new = path
        self._open.append(fd)
        _write_pieces(fd, self._content, self._splices)
        if like is not None:
            _make_like(fd, like)

    def _keep(self) -> None:
        """Keeps what the file was, for the case that another of several changes fails."""
        old = aside.name_in(self.folder())
        try:
            os.link(self._target, old, follow_symlinks=False)
            self._old = old
        except (OSError, NotImplementedError):
            aside.remove(old)
            # A file system without links, or a folder that takes no new file.
            try:
                self._old, fd = aside.create(self.folder(), 0o600)
            except OSError as error:
                if self.kind == b"edit" and self._new is None and error.errno in _WRITE_OVER:
                    return
                raise
            self._open.append(fd)
            write_all(fd, self._content)
            if self._seen is not None:
                _make_like(fd, self._seen)
        self._seen = os.stat(self._target)  # a name more is a change too

    def commit(self) -> None:
        """Does it."""
        try:
            if not self._is_as_seen():
                raise self._conflict()
            if self.kind in (b"remove", b"unlink"):
                os.unlink(self._target)
                self._done = "renamed"
            elif self.kind == b"create":
                if self._new is not None:
                    _rename_to_new(self._new, self._target)
                    self._done = "renamed"
            else:
                self._put()
        except FileExistsError:
            raise self._conflict() from None
        except OSError as error:
            raise self._failed(error) from None

    def _put(self) -> None:
        if self._new is not None:
            try:
                os.rename(self._new, self._target)
                self._done = "renamed"
                return
            except OSError as error:
                if error.errno not in _WRITE_OVER:
                    raise
        one_name(self._names)
        pieces = list(_pieces(self._content, self._splices))
        overwrite(self._target, b"".join(pieces))
        self._done = "written"

    def _is_as_seen(self) -> bool:
        """Whether the file is still the one that was compared, and the link the one that was found."""
        try:
            if self.kind == b"unlink":
                return os.path.islink(self._target) and os.readlink(self._target) == self._version
            if self._seen is None:
                return True
            now = os.stat(self._target)
        except FileNotFoundError:
            return False
        # A name less is a change too.
        return _stamp(now, not self._has_twin) == _stamp(self._seen, not self._has_twin)

    def undo(self) -> str:
        """Puts back what was; a sentence where it could not be."""
        said = ""
        aside.remove(self._new)  # it may lie in a folder that was made for another
        try:
            if not self._done:
                pass
            elif self.kind == b"create":
                os.unlink(self._target)
            elif self.kind == b"unlink":
                os.symlink(self._version, self._target)
            elif self._done == "written":
                overwrite(self._target, self._content)
            elif self._old is not None:
                os.rename(self._old, self._target)
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except OSError as error:
            said = "%s could not be put back as it was: %s" % (text(self.place), reason(error))
        for folder in reversed(self._made):
            try:
                os.rmdir(folder)  # one that is in use by now may stay
            except OSError:
                pass
        return said

    def clear(self) -> None:
        """Removes what is beside, and lets others at the file."""
        aside.remove(self._new)
        aside.remove(self._old)
        while self._open:
            os.close(self._open.pop())

    def _failed(self, error: OSError) -> Exception:
        if error.errno == errno.ENOENT:
            if self.kind == b"create" and os.path.isdir(self.folder()) and not os.path.lexists(self._target):
                return WorkspaceError("cannot write %s: %s" % (text(self.place), without_place(self._target)))
            return self._conflict()
        return failed("write", self.place, error)

    def _conflict(self) -> Conflict:
        if self.kind == b"create":
            return Conflict("%s has come into being meanwhile, or its folder has gone" % text(self.place))
        return Conflict("%s was changed by something else meanwhile" % text(self.place))


def _read(fd: int, most: int) -> bytes:
    parts = []
    have = 0
    while have < most:
        data = os.read(fd, min(most - have, 1 << 20))
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _version(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _stamp(status: os.stat_result, with_names: bool) -> Tuple[int, int, int, int, int]:
    ctime = status.st_ctime_ns if with_names else 0
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, ctime


def _pieces(content: bytes, splices: Splices) -> List[bytes]:
    pieces = []
    at = 0
    for start, end, data in splices:
        pieces.append(content[at:start])
        pieces.append(data)
        at = end
    pieces.append(content[at:])
    return pieces


def _write_pieces(fd: int, content: bytes, splices: Splices) -> None:
    if len(splices) > 8:
        write_all(fd, b"".join(_pieces(content, splices)))
    else:
        for piece in _pieces(content, splices):
            write_all(fd, piece)


def _make_like(fd: int, like: os.stat_result) -> None:
    """Gives a file the owner and mode bits of another, as far as that is allowed."""
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(fd, like.st_uid, like.st_gid)
        except OSError:
            pass
    os.fchmod(fd, stat.S_IMODE(like.st_mode))


def _rename_to_new(source: bytes, target: bytes) -> None:
    """Renames to where nothing may be."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno == errno.EEXIST or os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(source, target)  # a file system without links
