"""Answers of built-in tools that are file operations, as the broker would give them: see `tools` in its sources.

A call then costs one round trip, for its script need not wait until the broker has heard what was found.
"""

from __future__ import annotations

import notation

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

#: Bytes of an answer above which the broker gives it: what is larger has its own place in the session's directory.
MOST = 1 << 18
#: As in `src/tools/search_files/request.rs`.
MOST_RESULTS = 1_000_000


def answer(verb: bytes, arguments: List[bytes], result: List[bytes]) -> bytes:
    """JSON of the answer to a call whose verb came to this result; empty where the broker has to give it."""
    verdict, *fields = result
    if sum(map(len, fields)) > MOST:
        return b""
    if verdict != b"ok":
        value: Dict[str, Any] = {"error": _text(fields[0])}
    elif verb == b"read":
        value = _page(arguments, fields)
    elif verb == b"write":
        value = _written(fields)
    elif verb == b"search":
        value = _found(arguments, fields)
    elif verb == b"change" and fields[0] == b"done" and len(arguments[0]) <= MOST:
        return arguments[0]
    else:
        return b""
    body = notation.text(value).encode("ascii")
    return body if len(body) <= MOST else b""


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")


def _page(arguments: List[bytes], fields: List[bytes]) -> Dict[str, Any]:
    content, total, size, following = map(_text, fields)
    value: Dict[str, Any] = {
        "content": content,
        "total_lines": int(total) if total else None,
        "file_size": int(size),
        "truncated": bool(following),
    }
    if following:
        value["next_offset"] = int(following) if following.isdigit() else following
        lines = content.count("\n") + (not content.endswith("\n") and bool(content))
        limit = int(arguments[2])
        cut = "as much as one page holds" if lines < limit else "%s, as many as limit allows" % _counted(limit)
        of = " of a file of %s" % _counted(int(total)) if total else ""
        value["hint"] = "This is a part%s: %s. Read on with offset=%s." % (of, cut, following)
    elif total:
        offset = _text(arguments[1])
        first = offset.partition(":")[0]
        if first.isdigit() and int(first) > max(int(total), 1):
            value["hint"] = "offset=%s is past the end: the file has %s." % (offset, _counted(int(total)))
    return value


def _counted(lines: int) -> str:
    return "%d line%s" % (lines, "" if lines == 1 else "s")


def _written(fields: List[bytes]) -> Dict[str, Any]:
    size, path, *folders = map(_text, fields)
    return {"bytes_written": int(size), "dirs_created": folders, "resolved_path": path}


def _found(arguments: List[bytes], fields: List[bytes]) -> Dict[str, Any]:
    place, told, context, offset = _text(arguments[0]), arguments[1], int(arguments[5]), int(arguments[6])
    rest = iter(fields)
    total, more, searched, binary, unsaid, warned, shown = _numbers(rest)
    passed_over, misfit = _text(next(rest)), _text(next(rest))
    warnings = [_text(next(rest)) for _ in range(warned)]
    matches: List[Dict[str, Any]] = []
    files: List[str] = []
    counts: Dict[str, int] = {}
    for _ in range(shown):
        path = _text(next(rest))
        if told == b"lines":
            line, before, after = _numbers(rest)
            match: Dict[str, Any] = {"path": path, "line": line, "content": _text(next(rest))}
            around = [[_text(next(rest)) for _ in range(count)] for count in (before, after)]
            if context:
                match["before"], match["after"] = around
            matches.append(match)
            continue
        if told != b"names":
            (count,) = _numbers(rest)
        if told == b"counts":
            counts[path] = count
        else:
            files.append(path)
    value: Dict[str, Any] = {
        "matches": matches,
        "files": files,
        "counts": counts,
        "total_count": total,
        "truncated": bool(more),
    }
    hints = []
    if more:
        following = offset + shown
        of = "" if told == b"counts" else " of %d" % total
        if following < MOST_RESULTS:
            hints.append("These are results %d to %d%s: go on with offset=%d." % (offset + 1, following, of, following))
        else:
            hints.append(
                "Results after %d cannot be reached: narrow the search by path, file_glob or pattern." % MOST_RESULTS
            )
    elif not shown and total:
        hints.append("offset=%d is past the last result." % offset)
    if passed_over:
        hints.append(
            "No file was looked at: what fits below %s is hidden or excluded by ignore files, %s for one; give it, or "
            "its folder, as path." % (place, passed_over)
        )
    elif misfit:
        hints.append(
            "No file was looked at: none below %s fits file_glob (%s does not, for one). A glob without a slash is "
            "compared with names, one with a slash with paths from %s on." % (place, misfit, place)
        )
    elif not searched and not binary:
        hints.append("There is no file below %s." % place)
    elif not total and binary:
        hints.append("Left out as no text: %d of the files; search them in Python." % binary)
    if not total and searched:
        hints += _unlike(told, arguments[2])
    if hints:
        value["hint"] = " ".join(hints)
    if warnings:
        value["warnings"] = warnings + (["%d more could not be searched" % unsaid] if unsaid else [])
    return value


def _unlike(told: bytes, pattern: bytes) -> List[str]:
    """What a pattern that fits nothing may have been meant for."""
    if told == b"names":
        glob = _text(pattern)
        if any(letter in glob for letter in "*?[{!/"):
            return []
        return [
            "No file has exactly this name: *%s* fits those that hold it, **/%s/** those below a folder of the name."
            % (glob, glob)
        ]
    if pattern.endswith(b"$") and not pattern.endswith(b"\\$"):
        return ["Where lines end as on Windows, $ stands behind a carriage return: \\r?$ fits both ends."]
    return []


def _numbers(fields: Iterator[bytes]) -> List[int]:
    return [int(number) for number in next(fields).split(b" ")]
