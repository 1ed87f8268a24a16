"""Loads the bundle, inside the one line that the broker starts, with its ``r`` (read exactly n bytes of fd 0).

Bundle: 4 digits count; per module 4 digits length of the name, name, 8 digits length, source. The
modules of the kernel are kept as text: it runs in a process of its own. Then 8 digits length and,
separated by NUL, the name of the session's folder and the folders in which it may be made.
"""

import sys

r = globals()["r"]
sources = {}
for _ in range(int(r(4))):
    name = r(int(r(4))).decode("ascii")
    sources[name] = r(int(r(8)))
    if name not in ("surroundings", "cell_sources", "kernel"):
        module = type(sys)(name)
        sys.modules[name] = module
        exec(compile(sources[name], "<talaria " + name + ">", "exec", 0, True), module.__dict__)
name, *bases = r(int(r(8))).split(b"\0")
program = [(module, sources[module]) for module in ("surroundings", "cell_sources", "kernel")]
sys.modules["guard"].main(bases, name, program)
