"""``pass`` goes to an ipykernel by a blocking client; the time ends with the reply on the shell channel.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import queue
import sys
import time

from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found]

manager, client = start_new_kernel(extra_arguments=["--log-level=ERROR"])
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        began = time.perf_counter_ns()
        reply = client.execute("pass", reply=True, timeout=60)
        times.append(time.perf_counter_ns() - began)
        assert reply["content"]["status"] == "ok"
        # What it publishes beside is read, but not counted.
        try:
            while client.get_iopub_msg(timeout=0.2)["content"].get("execution_state") != "idle":
                pass
        except queue.Empty:
            pass
    print(*times, flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
