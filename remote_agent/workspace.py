"""File operations of scripts on this target, as `read_file` and `write_file` have them; runs in the worker.

The twin of ``src/tools/local_files.rs``, which does the same in the broker's own process: the same paths,
pages, numbers and sentences. A test holds the two against each other.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import List, Optional

#: Names of a folder that an error shows.
SHOWN_NAMES = 50
#: Names of a folder that are looked at for an error.
SEEN_NAMES = 10_000
#: Names that an error offers instead of one that is not there.
SIMILAR_NAMES = 3
#: Links that a path may lead over, as Linux has it.
MAX_LINKS = 40
#: Places whose meaning depends on who asks: here it would be the worker, not the script.
OWN_PLACES = (
    b"/dev/fd",
    b"/dev/stdin",
    b"/dev/stdout",
    b"/dev/stderr",
    b"/proc/self",
    b"/proc/thread-self",
)

_REASONS = {
    errno.EACCES: "this user has no right to",
    errno.EPERM: "this user has no right to",
    errno.EBUSY: "it is mounted there by itself (as single files of a container are) and can be written, but neither "
    "removed nor moved; change what it holds, or what is mounted",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOSPC: "the disk or the user's quota is full; free space or choose another place",
    errno.EDQUOT: "the disk or the user's quota is full; free space or choose another place",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its symlinks lead in a circle",
    errno.EAGAIN: "it has nothing to give or take right now",
}


class WorkspaceError(Exception):
    """A sentence for the model that must act."""


class Refusal(OSError):
    """What the system, or we, refuse, in words of ours."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)
        self.why = why


def perform(verb: bytes, folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
    """One verb with its arguments as they came; the fields of its result."""
    if verb == b"read":
        path, offset, limit, raw = arguments
        return read_page(folder, home, path, offset.decode(), int(limit), raw == b"1")
    if verb == b"write":
        path, content, *protected = arguments
        return write(folder, home, path, content, protected)
    if verb == b"names":
        return names(folder, home, arguments)
    if verb == b"fetch":
        return fetch(folder, home, arguments)
    if verb == b"change":
        import changes

        return changes.change(arguments[1:])  # the first is for `answers`
    if verb == b"search":
        import searchers

        return searchers.perform(folder, home, arguments)
    raise WorkspaceError("the target side of this session knows no file operation %s" % quoted(text(verb)))


def read_page(folder: bytes, home: bytes, path: bytes, offset: str, limit: int, raw: bool) -> List[bytes]:
    """At most ``limit`` lines of a file: content, total lines, size, next offset (empty where there is none)."""
    import page
    import text_file

    target = resolve(folder, home, path)
    start = page.parse_start(offset)
    most = page.RAW_LIMIT if raw else page.NUMBERED_LIMIT
    with text_file.open_text(target, raw) as source:
        try:
            return page.read(source, start, limit, raw, most, page.COUNTED_LIMIT)
        except OSError as error:
            raise failed("read", target, error) from None


def write(folder: bytes, home: bytes, path: bytes, content: bytes, protected: List[bytes]) -> List[bytes]:
    """Writes a file whole or not at all: bytes written, the resolved path, the folders that had to be made."""
    import whole_file

    return whole_file.write(resolve(folder, home, path), content, protected)


def names(folder: bytes, home: bytes, arguments: List[bytes]) -> List[bytes]:
    """What paths are called, links and all, three names each: first those that begin rules, of which there are as many
    as the first argument says, and which nobody reads or writes."""
    count, *paths = arguments
    found: List[bytes] = []
    for index, path in enumerate(paths):
        place = _absolute(folder, home, path) if index < int(count) else resolve(folder, home, path)
        above, name = parent(place), file_name(place)
        inside = None if above is None or name is None else os.path.join(os.path.realpath(above), name)
        found += [_plain(place), inside or os.path.realpath(place), os.path.realpath(place)]
    return found


def _plain(path: bytes) -> bytes:
    """The path without `.` and `..`; links stay as they are."""
    plain = os.path.normpath(path)
    return plain[1:] if plain.startswith(b"//") else plain  # two slashes have a meaning of their own in POSIX


def fetch(folder: bytes, home: bytes, paths: List[bytes]) -> List[bytes]:
    """What there is under some paths, whole."""
    import changes

    places = [resolve(folder, home, path) for path in paths]
    return [field for place in places for field in changes.fetch(place)]


def resolve(folder: bytes, home: bytes, path: bytes) -> bytes:
    """The absolute path that a script's path stands for; symlinks and `..` stay as they are."""
    if not path:
        raise WorkspaceError("the path is empty; name a file")
    if b"\0" in path:
        raise WorkspaceError("the path %s holds a NUL character, which no file name can" % quoted(text(path)))
    found = _meant(_absolute(folder, home, path))
    refuse_own(found)
    return found


def _meant(path: bytes) -> bytes:
    """The path as results show it may stand for one whose name is no UTF-8."""
    odd = "\ufffd".encode()
    if odd not in path:
        return path
    found = b"/"
    for part in path.split(b"/"):
        like = _names_like(found, part) if odd in part else []
        if len(like) > 1:
            raise WorkspaceError(
                "%s may be each of %d names in %s, which are no UTF-8 and look alike here: %s; rename them with "
                "Python's own os.rename(), or open them with its open(), which take such bytes"
                % (text(path), len(like), text(found), ", ".join(map(repr, like[:SIMILAR_NAMES])))
            )
        found = os.path.join(found, like[0] if like else part)
    return found


def _names_like(folder: bytes, name: bytes) -> List[bytes]:
    """What is shown like that name in a folder; nothing when it cannot be listed."""
    try:
        return sorted(other for other in os.listdir(folder) if text(other) == text(name))
    except OSError:
        return []


def _absolute(folder: bytes, home: bytes, path: bytes) -> bytes:
    if path[:1] != b"~":
        return os.path.join(folder, path)
    user, _, rest = path[1:].partition(b"/")
    if not user:
        if not home:
            raise WorkspaceError(
                "%s cannot be found: the home directory is not known; use an absolute path" % text(path)
            )
        return os.path.join(home, rest.lstrip(b"/"))
    # A name may begin with it as well.
    if os.path.lexists(os.path.join(folder, b"~" + user)):
        return os.path.join(folder, path)
    import rights

    known = rights.home_of(user)
    if known is None:
        raise WorkspaceError(
            "%s cannot be found: there is no account %s whose home it could mean, nor a file ~%s; ./%s is a new file "
            "of that name" % (text(path), quoted(text(user)), text(user), text(path))
        )
    return os.path.join(known, rest.lstrip(b"/"))


def refuse_own(path: bytes) -> None:
    """Refuses a path that leads to descriptors or to the process of the worker."""
    own = (*OWN_PLACES, b"/proc/%d" % os.getpid())
    step = path
    for _ in range(MAX_LINKS):
        # Links among the folders first, so that the last part is looked at where it really lies.
        above, name = parent(step), file_name(step)
        real = None if above is None or name is None else canonical(above)
        if real is None or name is None:
            return
        whole = os.path.join(real, name)
        if any(starts_with(whole, place) for place in own) or starts_with(real, own[-1]):
            raise WorkspaceError(
                "%s means something else to each process and cannot be read or written from here; "
                "use Python's own open()" % text(path)
            )
        try:
            step = os.path.join(real, os.readlink(whole))
        except OSError:
            return


def text(data: bytes) -> str:
    """A path as it is shown."""
    return data.decode("utf-8", "replace")


def quoted(shown: str) -> str:
    """Text in quotes, with what would not be seen escaped."""
    known = {"\0": "\\0", "\t": "\\t", "\r": "\\r", "\n": "\\n", '"': '\\"', "\\": "\\\\"}
    escaped = [known.get(c) or (c if c.isprintable() else "\\u{%x}" % ord(c)) for c in shown]
    return '"' + "".join(escaped) + '"'


def _trimmed(path: bytes) -> bytes:
    """Without slashes and dots at its end, which mean nothing."""
    while len(path) > 1:
        if path.endswith(b"/"):
            path = path[:-1]
        elif path.endswith(b"/."):
            path = path[:-2] or b"/"
        else:
            break
    return path


def parent(path: bytes) -> Optional[bytes]:
    """The path without its last part; None of the root."""
    path = _trimmed(path)
    if path == b"/":
        return None
    return _trimmed(path[: path.rfind(b"/") + 1])


def file_name(path: bytes) -> Optional[bytes]:
    """The last part of the path; None of the root and of what ends in `..`."""
    name = _trimmed(path).rpartition(b"/")[2]
    return None if name in (b"", b"..") else name


def starts_with(path: bytes, place: bytes) -> bool:
    """Whether the path, which is canonical but for its last part, is the place or below it."""
    return path == place or path.startswith(place + b"/")


def canonical(path: bytes) -> Optional[bytes]:
    """The path without links and `..`; None where it leads nowhere."""
    try:
        os.stat(path)
        return os.path.realpath(path)
    except OSError:
        return None


def failed(verb: str, path: bytes, error: OSError) -> WorkspaceError:
    """What an I/O error on a path means to the script."""
    if error.errno == errno.ENOENT:
        return _missing(path)
    why = reason(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        import rights

        why = rights.denied(verb, path)
    return WorkspaceError("cannot %s %s: %s" % (verb, text(path), why))


def reason(error: OSError) -> str:
    """An I/O error in words."""
    if isinstance(error, Refusal):
        return error.why
    number = error.errno or 0
    return _REASONS.get(number) or "%s (os error %d)" % (os.strerror(number), number)


def _missing(path: bytes) -> WorkspaceError:
    """Says what there is instead of a file that is not there."""
    try:
        to = os.readlink(path)
    except OSError:
        pass
    else:
        return WorkspaceError(
            "%s is a symlink to %s, which does not exist; make that, or see to the link with terminal()"
            % (text(path), text(to))
        )
    above = folder = parent(path)
    while folder is not None and not os.path.isdir(folder):
        folder = parent(folder)
    if folder is None or above is None:
        return WorkspaceError("%s does not exist" % text(path))
    if folder != above:
        return WorkspaceError("%s does not exist; the nearest folder that does is %s" % (text(path), text(folder)))
    similar = _nearest(text(file_name(path) or b""), _names(folder))
    hint = "similar names there: " + ", ".join(similar) if similar else "list the folder to see what is there"
    return WorkspaceError("%s does not exist; %s" % (text(path), hint))


def is_folder(path: bytes) -> WorkspaceError:
    """A folder given where a file was meant."""
    try:
        os.scandir(path).close()
    except PermissionError:
        import rights

        return WorkspaceError("%s is a folder, not a file, and %s" % (text(path), rights.denied("list", path)))
    except OSError:
        pass
    names = sorted(_names(path))
    held = ", ".join(names[:SHOWN_NAMES]) or "nothing"
    if len(names) > SHOWN_NAMES:
        held += " and %d more" % (len(names) - SHOWN_NAMES)
    return WorkspaceError("%s is a folder, not a file; it holds %s" % (text(path), held))


def _names(folder: bytes) -> List[str]:
    """Names in a folder, folders with a slash after them; none when it cannot be read."""
    names: List[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(names) == SEEN_NAMES:
                    break
                names.append(text(entry.name) + ("/" if _is_real_folder(entry) else ""))
    except OSError:
        pass
    return names


def _is_real_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_regular(status: os.stat_result) -> bool:
    """Whether it is a plain file."""
    return stat.S_ISREG(status.st_mode)


def _nearest(wanted: str, names: List[str]) -> List[str]:
    """The names that are most likely meant, the best first."""
    scored = []
    for place, name in enumerate(names):
        score = _likeness(wanted, name)
        if score > 0.75:
            scored.append((score, place, name))
    scored.sort(reverse=True)
    similar: List[str] = []
    for _, _, name in scored:
        if name not in similar and len(similar) < SIMILAR_NAMES:
            similar.append(name)
    return similar


def _likeness(a: str, b: str) -> float:
    """The similarity of two words after Jaro and Winkler: 0 to 1."""
    if not a or not b:
        return float(a == b)
    reach = max(max(len(a), len(b)) // 2 - 1, 0)
    taken = [False] * len(b)
    matched = []
    for i, letter in enumerate(a):
        low, high = max(i - reach, 0), min(len(b), i + reach + 1)
        at = b.find(letter, low, high)
        while at >= 0 and taken[at]:
            at = b.find(letter, at + 1, high)
        if at >= 0:
            taken[at] = True
            matched.append(letter)
    if not matched:
        return 0.0
    others = [letter for letter, is_taken in zip(b, taken) if is_taken]
    swapped = sum(1 for one, other in zip(matched, others) if one != other) // 2
    count = len(matched)
    score = (count / len(a) + count / len(b) + (count - swapped) / count) / 3.0
    if score <= 0.7:
        return score
    prefix = 0
    for one, other in zip(a[:4], b[:4]):
        if one != other:
            break
        prefix += 1
    return score + 0.1 * prefix * (1.0 - score)
