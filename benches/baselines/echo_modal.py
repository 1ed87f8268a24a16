"""A byte goes to a process in a Modal sandbox and comes back, by Modal's own client: its variables say which server.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import sys
import time

import modal  # type: ignore[import-not-found]

ECHO = """
import os
while True:
    data = os.read(0, 65536)
    if not data:
        break
    os.write(1, data)"""

app = modal.App.lookup("bench", create_if_missing=True)
box = modal.Sandbox.create(app=app, image=modal.Image.from_registry("python:3.12"))
try:
    process = box.exec("python3", "-I", "-S", "-c", ECHO, text=False)
    output = iter(process.stdout)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            began = time.perf_counter_ns()
            process.stdin.write(b"x")
            process.stdin.drain()
            assert next(output) == b"x"
            times.append(time.perf_counter_ns() - began)
        print(*times, flush=True)
finally:
    box.terminate()
