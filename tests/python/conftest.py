"""Scripts that call tools, on each interpreter and each way to the broker."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from directory_host import Host
from stub_rig import PYTHONS, Broker, DirectoryWay, Rig, SocketWay


def rigs(*ways: Any) -> Any:
    """A fixture."""
    cases = [(python, way) for way in ways for python in PYTHONS]

    @pytest.fixture(params=cases, ids=[f"{way.module}-{number}" for number, (_, way) in enumerate(cases)])
    def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
        python, kind = request.param
        with tempfile.TemporaryDirectory() as name:
            way = kind.start(Path(name), Broker())
            try:
                yield Rig(python, Path(name), way)
            finally:
                way.close()

    return made


rig = rigs(SocketWay, DirectoryWay)
socket_rig = rigs(SocketWay)
directory_rig = rigs(DirectoryWay)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Makes sessions behind a directory, and leaves nothing of them."""
    made: list[Host] = []

    def make(patches: Sequence[tuple[str, bytes, bytes]] = (), **options: Any) -> Host:
        options.setdefault("base", tmp_path)
        made.append(Host(**options))
        made[-1].patches = patches
        return made[-1].start()

    yield make
    for one in made:
        one.close()
    for one in made:
        for pid in one.processes():
            with contextlib.suppress(ProcessLookupError):  # it was on its way out
                os.kill(pid, signal.SIGKILL)
