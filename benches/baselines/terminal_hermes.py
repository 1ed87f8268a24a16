"""`terminal("true")`, called by a script of hermes-agent's `execute_code`, in a container of the image that is given.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import json
import os
import sys
import tempfile

home = tempfile.TemporaryDirectory()
os.environ.update(HERMES_HOME=home.name, TERMINAL_ENV="docker", TERMINAL_DOCKER_IMAGE=sys.argv[1])
# What it imports and runs may print.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from tools.code_execution_tool import execute_code  # type: ignore[import-not-found]  # noqa: E402
from tools.terminal_tool import _active_environments  # type: ignore[import-not-found]  # noqa: E402

SCRIPT = """
from time import perf_counter_ns
from hermes_tools import terminal
times = []
for _ in range(%d):
    began = perf_counter_ns()
    assert terminal("true")["exit_code"] == 0
    times.append(perf_counter_ns() - began)
print(*times)
"""
for line in sys.stdin:
    outcome = json.loads(execute_code(SCRIPT % int(line), task_id="bench", enabled_tools=["terminal"]))
    assert outcome["status"] == "success", outcome
    print(outcome["output"].strip(), file=answers, flush=True)
for place in list(_active_environments.values()):
    place.cleanup(force_remove=True)
    place.wait_for_cleanup()
