"""The official SDK for Python (PyPI `mcp`), unchanged, against `talaria mcp`: over the standard streams and over HTTP,
in the versions with a handshake and without.

python tests/mcp/python_sdk.py TALARIA
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Awaitable, Callable, Iterator

import anyio

from mcp import Client, MCPError, StdioServerParameters

TALARIA = os.path.abspath(sys.argv[1])
#: Bounds a hang; says nothing of speed.
LIMIT = 120
TEMPORARY = tempfile.TemporaryDirectory(prefix="talaria-mcp-")
FOLDER = Path(TEMPORARY.name)
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HERMES_HOME": str(FOLDER / "hermes"),
    "XDG_CONFIG_HOME": str(FOLDER / "config"),
    "HOME": os.environ.get("HOME", "/"),
}

Connect = Callable[[], Client]


@contextmanager
def http_server() -> Iterator[str]:
    """The address of a server over HTTP."""
    server = subprocess.Popen(
        [TALARIA, "mcp", "--http", "127.0.0.1:0"], cwd=FOLDER, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        yield server.stderr.readline().split()[-1]
    finally:
        server.terminate()
        assert server.wait(LIMIT) == 0


def text(result: Any) -> Any:
    return result.structured_content


async def the_tools_are_listed(connect: Connect) -> None:
    async with connect() as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} >= {"execute_code", "execution_status", "get_file"}, tools
        assert all(tool.output_schema and tool.annotations for tool in tools)


async def a_script_runs_and_its_state_is_kept(connect: Connect) -> None:
    async with connect() as client:
        first = text(await client.call_tool("execute_code", {"code": "x = 41"}))
        again = {"code": "print(x + 1)", "session": first["session"]}
        result = await client.call_tool("execute_code", again)
        assert text(result)["output"] == "42\n" and not result.is_error, result
        failed = await client.call_tool("execute_code", {"code": "1 / 0", "session": first["session"]})
        assert failed.is_error and text(failed)["error"].startswith("ZeroDivisionError"), failed


async def wrong_arguments_raise(connect: Connect) -> None:
    async with connect() as client:
        await client.list_tools()
        try:
            await client.call_tool("execute_code", {"code": "1", "timeout": "soon"})
        except MCPError as error:
            assert error.error.code == -32602 and '"timeout" must be number' in error.error.message, error
        else:
            raise AssertionError("no error")


async def progress_is_told(connect: Connect) -> None:
    told: list[str] = []

    async def hear(_progress: float, _total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with connect() as client:
        code = "import time\nfor n in range(30):\n    print('step', n, flush=True)\n    time.sleep(.05)"
        result = await client.call_tool("execute_code", {"code": code}, progress_callback=hear)
        assert not result.is_error, result
    assert any("step" in line for line in told), told


async def two_clients_at_once_do_not_see_each_other(connect: Connect) -> None:
    async with connect() as one, connect() as other:
        first = text(await one.call_tool("execute_code", {"code": "secret = 1"}))
        found = text(await other.call_tool("execute_code", {"code": "print('secret' in globals())"}))
        assert found["output"] == "False\n" and found["session"] != first["session"], found


async def who_gives_up_loses_nothing(connect: Connect) -> None:
    runs = FOLDER / f"runs-{time.monotonic_ns():d}"
    code = "import time\nopen(%r, 'a').write('x')\ntime.sleep(2)\nprint('done')" % str(runs)
    asked = {"code": code, "idempotency_key": runs.name, "detach": True}
    async with connect() as client:
        try:
            await client.call_tool("execute_code", asked, read_timeout_seconds=1)
        except MCPError:
            pass
        else:
            raise AssertionError("it did not give up")
        result = text(await client.call_tool("execute_code", asked))
        assert result["output"] == "done\n", result
        status = await client.call_tool("execution_status", {"execution": result["execution"]})
        assert text(status) == result
    assert runs.read_text() == "x"


async def who_cancels_ends_the_script(connect: Connect) -> None:
    begun = FOLDER / ("begun-%d" % time.monotonic_ns())
    code = "import os, time\nopen(%r, 'w').write('%%d\\n' %% os.getpid())\ntime.sleep(3600)" % str(begun)
    async with connect() as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "execute_code", {"code": code})
            while not begun.exists() or not begun.read_text().endswith("\n"):
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        while os.path.exists("/proc/%d" % int(begun.read_text())):
            await anyio.sleep(0.02)
        result = text(await client.call_tool("execute_code", {"code": "print('well')"}))
        assert result["output"] == "well\n"


async def an_image_comes_back_as_one(connect: Connect) -> None:
    async with connect() as client:
        code = "open('plot', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + b'x' * 100)"
        made = text(await client.call_tool("execute_code", {"code": code}))
        got = await client.call_tool("get_file", {"path": "plot", "session": made["session"]})
        assert got.content[0].type == "image" and got.content[0].mime_type == "image/png", got


async def long_output_is_read_in_ranges(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("execute_code", {"code": "for n in range(20000): print('line', n)"})
        whole = "".join("line %d\n" % n for n in range(20000))
        uri, read, offset = str(result.content[1].uri), "", 0
        while offset is not None:
            part = (await client.read_resource("%s?offset=%d&limit=100000" % (uri, offset))).contents[0]
            read += part.text
            offset = part.meta.get("next_offset")
        assert read == whole


CASES: list[Callable[[Connect], Awaitable[None]]] = [
    the_tools_are_listed,
    a_script_runs_and_its_state_is_kept,
    wrong_arguments_raise,
    progress_is_told,
    two_clients_at_once_do_not_see_each_other,
    who_gives_up_loses_nothing,
    who_cancels_ends_the_script,
    an_image_comes_back_as_one,
    long_output_is_read_in_ranges,
]


async def main() -> int:
    failed = 0
    stdio = StdioServerParameters(command=TALARIA, args=["mcp"], env=ENVIRONMENT, cwd=FOLDER)
    with http_server() as address:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", address), address
        for way, server in (("stdio", stdio), ("http", address)):
            for mode in ("legacy", "auto"):

                def connect(server: Any = server, mode: str = mode) -> Client:
                    return Client(server, mode=mode)

                async with connect() as client:
                    version = client.protocol_version
                assert (version >= "2026") == (mode == "auto"), version
                for case in CASES:
                    name = "%s, %s: %s" % (way, version, case.__name__)
                    try:
                        with anyio.fail_after(LIMIT):
                            await case(connect)
                        print("ok      ", name, flush=True)
                    except Exception as error:
                        failed += 1
                        print("FAILED  ", name, repr(error), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    with TEMPORARY:
        code = anyio.run(main)
    sys.exit(code)
