"""Starts a stand-in for a test, and speaks to its admin interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


class Rig:
    """A stand-in that runs until `end`."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HERE, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.urls: dict[str, str] = json.loads(self.process.stdout.readline())

    def ask(self, method: str, path: str, body: Any = None, to: str = "admin", **headers: str) -> Any:
        """One request; raises what urllib raises."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.urls[to] + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def faults(self, *given: dict[str, Any]) -> None:
        """From now on these."""
        self.ask("POST", "/faults", [*given])

    def calls(self, method: str) -> list[Any]:
        """What was logged of a method."""
        found: list[Any] = self.ask("GET", "/calls?method=" + method)
        return found

    def sandbox(self, identity: str) -> Any:
        """One as the stand-in sees it."""
        return next(one for one in self.ask("GET", "/sandboxes") if one["id"] == identity)

    def end(self) -> None:
        """Waits until nothing of it is left."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
