"""Scripts that call tools, on each interpreter and each way to the broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
