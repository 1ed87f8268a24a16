"""`terminal("true")`, called by a script of hermes-agent's `execute_code`: in a container of the image given, or on
the SSH host of PORT, KEY, USER and KNOWN_HOSTS.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import json
import os
import shutil
import sys
import tempfile

home = tempfile.TemporaryDirectory()
os.environ.update(HERMES_HOME=home.name, TMPDIR=home.name)
if len(sys.argv) == 2:
    os.environ.update(TERMINAL_ENV="docker", TERMINAL_DOCKER_IMAGE=sys.argv[1])
else:
    port, key, user, known_hosts = sys.argv[1:]
    os.environ.update(TERMINAL_ENV="ssh", TERMINAL_SSH_HOST="127.0.0.1", TERMINAL_SSH_PORT=port)
    os.environ.update(TERMINAL_SSH_KEY=key, TERMINAL_SSH_USER=user)
    # It takes the first host key that it meets for known; not in the user's own file.
    for name in ("ssh", "scp"):
        program = os.path.join(home.name, name)
        with open(program, "w") as file:
            file.write(f'#!/bin/sh\nexec {shutil.which(name)} -o UserKnownHostsFile={known_hosts} "$@"\n')
        os.chmod(program, 0o700)
    os.environ["PATH"] = home.name + ":" + os.environ["PATH"]
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
    if len(sys.argv) == 2:
        place.cleanup(force_remove=True)
        place.wait_for_cleanup()
    else:
        place.cleanup()
