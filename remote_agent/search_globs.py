"""Globs and ignore files as ripgrep reads them: `.gitignore` syntax, as expressions over bytes; of the worker."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # see `processes`
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Pattern, Tuple

    Token = Tuple[Any, ...]

#: What a rule says of a path.
NOTHING, LEFT_OUT, WANTED = 0, 1, 2
#: How deep braces may be nested.
DEEPEST = 100

_ANY, _STAR, _BEFORE, _AFTER, _BETWEEN = ("any",), ("star",), ("before",), ("after",), ("between",)
_SIMPLE = {
    "any": b"[^/]",
    "star": b"[^/]*",
    "before": b"(?:/?|.*/)",
    "after": b"/.*",
    "between": b"(?:/|/.*/)",
}
_NAMED = {
    "alnum": ["09", "AZ", "az"],
    "alpha": ["AZ", "az"],
    "blank": ["\t\t", "  "],
    "cntrl": ["\0\x1f", "\x7f\x7f"],
    "digit": ["09"],
    "graph": ["!~"],
    "lower": ["az"],
    "print": [" ~"],
    "punct": ["!/", ":@", "[`", "{~"],
    "space": ["\t\r", "  "],
    "upper": ["AZ"],
    "xdigit": ["09", "AF", "af"],
}
_NAME = re.compile(r":([a-z]{1,7}):\]")


class Glob:
    """A glob, read; ValueError where it is none."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._branches: List[List[Token]] = [[]]
        self._braces: List[int] = []
        self._takes_classes = True
        self._read()
        if self._braces:
            raise ValueError("a brace is not closed")
        tokens = self._branches[0]
        #: The same as an expression that must match all of a path.
        self.expression = b".*" if tokens == [_BEFORE] else _expression(tokens)

    def _read(self) -> None:
        text = self._text
        while self._at < len(text):
            letter = text[self._at]
            self._at += 1
            if letter == "?":
                self._push(_ANY)
            elif letter == "*":
                self._star()
            elif letter == "[" and self._takes_classes:
                self._class()
            elif letter == "{":
                if len(self._braces) >= DEEPEST:
                    raise ValueError("braces are nested too deep")
                self._braces.append(len(self._branches))
                self._branches.append([])
            elif letter == "}":
                if not self._braces:
                    raise ValueError("a brace is not opened")
                start = self._braces.pop()
                parts = self._branches[start:]
                del self._branches[start:]
                self._push(("either", parts))
            elif letter == "," and self._braces:
                self._branches.append([])
            elif letter == "\\":
                if self._at == len(text):
                    raise ValueError("a backslash stands at the end")
                self._push(("letter", text[self._at]))
                self._at += 1
            else:
                self._push(("letter", letter))

    def _push(self, token: Token) -> None:
        self._branches[-1].append(token)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _star(self) -> None:
        before = self._text[self._at - 2 : self._at - 1] if self._at > 1 else ""
        if self._peek() != "*":
            self._push(_STAR)
            return
        self._at += 1
        after = self._peek()
        tokens = self._branches[-1]
        if not tokens:
            if after in ("", "/"):
                self._push(_BEFORE)
                self._at += len(after)
            else:
                tokens += [_STAR, _STAR]
            return
        if before != "/" and (len(self._branches) <= 1 or before not in (",", "{")):
            tokens += [_STAR, _STAR]
        elif after == "" or (after in (",", "}") and len(self._branches) >= 2):
            self._join(_AFTER)
        elif after == "/":
            self._at += 1
            self._join(_BETWEEN)
        else:
            tokens += [_STAR, _STAR]

    def _join(self, token: Token) -> None:
        last = self._branches[-1].pop()
        self._push(last if last in (_BEFORE, _AFTER) else token)

    def _class(self) -> None:
        text, begun = self._text, self._at
        negated = self._peek() in ("!", "^") and self._at < len(text)
        self._at += negated
        ranges: List[List[str]] = []
        first, in_range = True, False
        while True:
            if self._at == len(text):
                # As git has it, the bracket is a letter then.
                self._at = begun
                self._takes_classes = False
                self._push(("letter", "["))
                return
            letter = text[self._at]
            self._at += 1
            if letter == "]" and not first:
                break
            if letter == "-" and not first and not in_range:
                in_range = True
                continue
            name = _NAME.match(text, self._at) if letter == "[" and not in_range else None
            if name is not None and name.group(1) in _NAMED:
                self._at = name.end()
                ranges += [list(pair) for pair in _NAMED[name.group(1)]]
            elif in_range:
                if letter < ranges[-1][0]:
                    raise ValueError("a range goes backwards")
                ranges[-1][1] = letter
            else:
                ranges.append([letter, letter])
            first = in_range = False
        if in_range:
            ranges.append(["-", "-"])
        self._push(("class", negated, ranges))


def _expression(tokens: List[Token]) -> bytes:
    out = []
    for token in tokens:
        if token[0] in _SIMPLE:
            out.append(_SIMPLE[token[0]])
        elif token[0] == "letter":
            out.append(_letter(token[1]))
        elif token[0] == "class":
            out.append(_members(token[1], token[2]))
        else:
            parts = [part for part in map(_expression, token[1]) if part]
            if parts:
                out.append(b"(?:" + b"|".join(parts) + b")")
    return b"".join(out)


def _letter(letter: str) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in letter.encode("utf-8", "surrogateescape"))


def _members(negated: bool, ranges: List[List[str]]) -> bytes:
    """A class, which never holds a slash."""
    if not negated:
        kept = []
        for low, high in ranges:
            if low <= "/" <= high:
                kept += [pair for pair in ([low, "."], ["0", high]) if pair[0] <= pair[1]]
            else:
                kept.append([low, high])
        if not kept:
            return b"(?!)"
        ranges = kept
    inside = [_letter(low) if low == high else _letter(low) + b"-" + _letter(high) for low, high in ranges]
    return b"[" + (b"^/" if negated else b"") + b"".join(inside) + b"]"


class Rules:
    """Lines of an ignore file, of which the last that fits a path decides."""

    def __init__(self) -> None:
        #: Expression, whether it is for names alone, whether it is for folders alone, and what it says.
        self._rules: List[Tuple[Pattern[bytes], bool, bool, int]] = []
        self._names: Dict[bytes, bool] = {}
        self._of_names: List[bytes] = []
        self._of_paths: List[bytes] = []
        self._some_name: Optional[Pattern[bytes]] = None
        self._some_path: Optional[Pattern[bytes]] = None
        self.wants_some = False

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add(self, line: str) -> None:
        """Takes a line. ValueError, or re.error: it is no rule."""
        if line.startswith("#"):
            return
        line = _without_blanks(line)
        says, anchored = LEFT_OUT, False
        if line.startswith(("\\!", "\\#")):
            line = line[1:]
        else:
            if line.startswith("!"):
                says, line = WANTED, line[1:]
            if line.startswith("/"):
                anchored, line = True, line[1:]
        if not line:
            return
        folders = line.endswith("/")
        if folders:
            line = line[:-1]
            if line.endswith("\\"):
                line = line[:-1]
        if not anchored and "/" not in line and line != "**":
            line = "**/" + line
        if line.endswith("/**"):
            line += "/*"
        name = line[3:] if line.startswith("**/") else ""
        of_names = bool(name) and "/" not in name and "**" not in name
        expression = Glob(line).expression
        if of_names:
            expression = Glob(name).expression
        self._rules.append((re.compile(expression, re.DOTALL), of_names, folders, says))
        self.wants_some |= says == LEFT_OUT
        if not of_names:
            self._of_paths.append(expression)
        elif re.search(r"[*?\[\]{}\\]", name):
            self._of_names.append(expression)
        else:
            self._names[name.encode("utf-8", "surrogateescape")] = True
        self._some_name = self._some_path = None

    def says(self, path: bytes, name: bytes, is_folder: bool) -> int:
        """What they say of a path, which starts where the rules stand; its last part is the name."""
        if not self._may_fit(path, name):
            return NOTHING
        for expression, of_names, folders, says in reversed(self._rules):
            if (is_folder or not folders) and expression.fullmatch(name if of_names else path):
                return says
        return NOTHING

    def _may_fit(self, path: bytes, name: bytes) -> bool:
        if name in self._names:
            return True
        if self._of_names:
            if self._some_name is None:
                self._some_name = _any_of(self._of_names)
            if self._some_name.fullmatch(name):
                return True
        if self._of_paths:
            if self._some_path is None:
                self._some_path = _any_of(self._of_paths)
            return self._some_path.fullmatch(path) is not None
        return False


def _any_of(expressions: List[bytes]) -> Pattern[bytes]:
    return re.compile(b"|".join(b"(?:%s)" % one for one in expressions), re.DOTALL)


def _without_blanks(line: str) -> str:
    """Without the blanks at its end, but one after a backslash."""
    kept = line.rstrip(" ")
    if kept == line:
        return line
    backslashes = len(kept) - len(kept.rstrip("\\"))
    return line[: len(kept) + backslashes % 2]


def read_rules(data: bytes) -> Rules:
    """The rules of an ignore file; lines that are none are passed over."""
    rules = Rules()
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if number < len(lines) - 1 and line.endswith(b"\r"):
            line = line[:-1]
        try:
            text = line.decode()
            rules.add(text.lstrip("\ufeff") if number == 0 else text)
        except (ValueError, re.error):
            pass
    return rules


def overrides(globs: List[bytes]) -> Rules:
    """The same syntax where it says what is wanted: see `is_out`."""
    rules = Rules()
    for glob in globs:
        rules.add(glob.decode())
    return rules


def is_out(globs: Rules, path: bytes, name: bytes, is_folder: bool) -> bool:
    """Whether globs that say what is wanted leave a path out: one with `!` fits, or none of the others does."""
    said = globs.says(path, name, is_folder)
    if said == NOTHING:
        return globs.wants_some and not is_folder
    return said == WANTED
