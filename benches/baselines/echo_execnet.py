"""A number goes to a popen gateway and comes back.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import sys
import time

import execnet  # type: ignore[import-not-found]

gateway = execnet.makegateway("popen//python=" + sys.executable)
channel = gateway.remote_exec("for item in channel:\n    channel.send(item)")
for line in sys.stdin:
    times = []
    for number in range(int(line)):
        began = time.perf_counter_ns()
        channel.send(number)
        assert channel.receive() == number
        times.append(time.perf_counter_ns() - began)
    print(*times, flush=True)
gateway.exit()
