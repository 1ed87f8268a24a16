"""What a session costs when it starts, and what it removes when it ends."""

import os
import subprocess
import sys

from target_side import FOLDER


def run(body, *arguments):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n" + body]
        + [str(FOLDER), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_slow_is_imported_before_a_kernel_starts():
    loaded = run("import guard; print(*sys.modules)")
    assert "supervisor" in loaded
    assert not {"typing", "enum", "signal", "socket", "shutil", "re", "contextlib", "ctypes"} & set(loaded)


def test_only_the_folders_of_the_session_and_what_is_noted_there_are_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "session"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    (folder / "link-to-folder").symlink_to(outside)
    (folder / "link-to-nothing").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "a" / "fifo")
    # What a killed process has left beside a file, and what a script would like to have removed.
    (outside / ".talaria-patch-1").write_text("x")
    (folder / "asides").mkdir()
    for name, noted in ((".talaria-patch-1", ".talaria-patch-1"), (".talaria-patch-2", "kept"), ("kept", "kept")):
        (folder / "asides" / name).symlink_to(outside / noted)
    linked = tmp_path / "linked"
    linked.symlink_to(outside)
    body = "import os, folders; folders.remove([os.fsencode(path) for path in sys.argv[2:]])"
    run(body, folder, tmp_path / "never-made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linked", "outside"]
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_what_is_left_is_counted_at_the_moment_that_a_tree_is_gone():
    # Its end of the control closes before the reaper itself has ended: it must not count itself.
    body = """
import os, select, processes, trees
processes.become_subreaper()
null = processes.null()
counts = []
for _ in range(30):
    tree = trees.spawn([b"/bin/sh", b"-c", b"exit 0"], dict(os.environb), b"/", (null, null, null), outlived=True)
    while tree.receive()[0] != "gone":
        select.select([tree.control], [], [], 10)
    counts.append(tree.remaining())
job = trees.spawn(
    [b"/bin/sh", b"-c", b"sleep 300 & exit 0"], dict(os.environb), b"/", (null, null, null), outlived=True
)
while job.receive()[0] != "status":
    select.select([job.control], [], [], 10)
tree = trees.spawn([b"/bin/sh", b"-c", b"exit 0"], dict(os.environb), b"/", (null, null, null), outlived=True)
while tree.receive()[0] != "gone":
    select.select([tree.control], [], [], 10)
counts.append(tree.remaining())
assert not processes.nothing_below()
processes.kill_below(os.getpid())
while not processes.nothing_below():
    processes.reap()
print(*counts)
"""
    assert run(body) == ["0"] * 30 + ["2"]  # what the command left, and its reaper
