"""Compares the part of Modal's interface that the broker has written down with the interface of Modal's own client."""

from __future__ import annotations

import re
from typing import Any, Iterator

from google.protobuf.descriptor import FieldDescriptor
from modal_proto import api_pb2, task_command_router_pb2

PACKAGES = {"modal.client": api_pb2.DESCRIPTOR, "modal.task_command_router": task_command_router_pb2.DESCRIPTOR}
TOKEN = re.compile(r'"[^"]*"|[\w.]+|[{}=;()<>,]')
SCALARS = {
    value: name[len("TYPE_") :].lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def differences(text: str) -> tuple[int, list[str]]:
    """How many messages, enumerations and calls of a `.proto` were compared, and what is wrong with them."""
    tokens = iter(TOKEN.findall(re.sub(r"//[^\n]*", "", text)))
    package, compared = "", 0
    wrong: list[str] = []
    for token in tokens:
        if token == "package":
            package = next(tokens)
            if package not in PACKAGES:
                return 0, []
        elif token in ("syntax", "import"):
            while next(tokens) != ";":
                pass
        elif token in ("message", "enum", "service"):
            name = next(tokens)
            theirs = PACKAGES[package]
            found = {
                "message": theirs.message_types_by_name,
                "enum": theirs.enum_types_by_name,
                "service": theirs.services_by_name,
            }[token].get(name)
            body = _body(tokens)
            compared += 1
            wrong += [name + ": there is none"] if found is None else _compare(token, name, body, found, package)
    return compared, wrong


def _body(tokens: Iterator[str]) -> list[str]:
    """What is between a pair of braces."""
    assert next(tokens) == "{"
    found, depth = [], 1
    for token in tokens:
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth == 0:
            break
        found.append(token)
    return found


def _statements(body: list[str]) -> Iterator[list[str]]:
    """Up to the next semicolon, or a block with its head."""
    statement: list[str] = []
    depth = 0
    for token in body:
        depth += {"{": 1, "}": -1}.get(token, 0)
        if token != ";" or depth:
            statement.append(token)
        if depth == 0 and token in (";", "}"):
            yield statement
            statement = []


def _compare(kind: str, name: str, body: list[str], theirs: Any, package: str) -> list[str]:
    wrong = []
    for statement in _statements(body):
        where = "%s: %s" % (name, " ".join(statement))
        if kind == "enum":
            value = theirs.values_by_name.get(statement[0])
            good = value is not None and value.number == int(statement[2])
        elif kind == "service":
            good = _call(statement, theirs.methods_by_name.get(statement[1]), package)
        elif statement[0] in ("message", "enum"):
            inner = theirs.nested_types_by_name if statement[0] == "message" else theirs.enum_types_by_name
            good = statement[1] in inner
            if good:
                wrong += _compare(statement[0], statement[1], statement[3:-1], inner[statement[1]], package)
        elif statement[0] == "oneof":
            for field in _statements(statement[3:-1]):
                known = theirs.fields_by_name.get(field[1])
                if known is None or known.containing_oneof is None or known.containing_oneof.name != statement[1]:
                    wrong.append(where + ": no such choice")
            wrong += _compare(kind, name, statement[3:-1], theirs, package)
            good = True
        else:
            good = _field(statement, theirs.fields_by_name.get(statement[-3]))
        if not good:
            wrong.append(where)
    return wrong


def _call(statement: list[str], theirs: Any, package: str) -> bool:
    """`rpc NAME ( [stream] REQUEST ) returns ( [stream] ANSWER )`"""
    if theirs is None:
        return False
    parts = [token for token in statement if token not in ("(", ")", "rpc")]
    words = " ".join(parts[1:]).split(" returns ")
    for text, kind, streams in (
        (words[0], theirs.input_type, theirs.client_streaming),
        (words[1], theirs.output_type, theirs.server_streaming),
    ):
        name = text.split()[-1]
        full = name if "." in name else package + "." + name
        if kind.full_name != full or streams != text.startswith("stream "):
            return False
    return True


def _field(statement: list[str], theirs: Any) -> bool:
    """`[repeated|optional] TYPE NAME = NUMBER`, or a map."""
    if theirs is None or theirs.number != int(statement[-1]):
        return False
    kind = statement[:-3]
    label = kind.pop(0) if kind[0] in ("repeated", "optional") else ""
    if kind[0] == "map":
        entry = theirs.message_type.fields_by_name if theirs.message_type else {}
        return "value" in entry and all(
            _type(entry[key]) == kind[index].split(".")[-1] for key, index in (("key", 2), ("value", 4))
        )
    explicit = theirs.has_presence and theirs.message_type is None and theirs.containing_oneof is not None
    real = theirs.containing_oneof is not None and len(theirs.containing_oneof.fields) > 1
    if not real and (label == "optional") != explicit and theirs.message_type is None:
        return False
    return theirs.is_repeated == (label == "repeated") and _type(theirs) == kind[0].split(".")[-1]


def _type(field: Any) -> str:
    for composed in (field.message_type, field.enum_type):
        if composed is not None:
            return str(composed.name)
    return SCALARS[field.type]
