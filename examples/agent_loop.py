"""An agent's loop around `talaria mcp`, without a model: a script stands in for one, so that every run is the same.

    python3 examples/agent_loop.py [TALARIA]

The loop is what an agent does: it shows the tools to the model, makes the calls that the model asks for, and hands the
results back until the model answers. It needs nothing but Python; an agent would take an SDK of the protocol instead of
the class `Server`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Generator

Json = dict[str, Any]
#: A model asks for calls (name and arguments), is sent their results, and returns its answer.
Model = Generator[tuple[str, Json], Json, str]


class Server:
    """A client of `talaria mcp`: requests and answers are lines of JSON on its standard streams."""

    def __init__(self, talaria: str) -> None:
        self.process = subprocess.Popen([talaria, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.asked = 0
        client = {"name": "agent-loop", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: Json) -> Json:
        assert self.process.stdout is not None
        self.asked += 1
        self.send({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params})
        for line in self.process.stdout:
            message: Json = json.loads(line)
            if message.get("id") == self.asked:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                result: Json = message["result"]
                return result
        raise RuntimeError("the server has gone")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def scripted_model(tools: list[str]) -> Model:
    """Stands in for a model: which words are the most frequent ones in the text files of the working directory?"""
    assert "execute_code" in tools
    count = (
        "from collections import Counter\n"
        "from hermes_tools import read_file, search_files\n"
        "words = Counter()\n"
        "for path in search_files('*.md', target='files')['files']:\n"
        "    words.update(read_file(path, raw=True)['content'].lower().split())\n"
        "print(len(words), 'different words')\n"
    )
    result = yield "execute_code", {"code": count, "wait": 0}
    # It may take longer than the call waits. The model does not start it anew, but waits for more.
    while result["structuredContent"]["status"] in ("queued", "running"):
        result = yield "execution_status", {"execution": result["structuredContent"]["execution"]}
    counted = result["structuredContent"]["output"].strip()
    # A slip: the result tells what is wrong, and the variables of the session are still there.
    session = result["structuredContent"]["session"]
    result = yield "execute_code", {"code": "print(word.most_common(3))", "session": session}
    assert result["isError"] and "NameError" in result["structuredContent"]["error"], result
    result = yield "execute_code", {"code": "print(words.most_common(3))", "session": session}
    return "%s; most frequent: %s" % (counted, result["structuredContent"]["output"].strip())


def main() -> None:
    server = Server(sys.argv[1] if len(sys.argv) > 1 else "talaria")
    try:
        tools = [tool["name"] for tool in server.ask("tools/list", {})["tools"]]
        model = scripted_model(tools)
        name, arguments = next(model)
        while True:
            print("call  ", name, sorted(arguments), flush=True)
            result = server.ask("tools/call", {"name": name, "arguments": arguments})
            status = result["structuredContent"].get("status", "done")
            print("result", status, flush=True)
            name, arguments = model.send(result)
    except StopIteration as end:
        print("answer", end.value)
    finally:
        server.close()


if __name__ == "__main__":
    main()
