"""Modal's own client for Python, unchanged, against the stand-in: only what passes here may be believed elsewhere.

python tests/rigs/modal/witness.py [NAME]...
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

from cases import case, isolated, run
from rig import Rig

os.environ.update(
    MODAL_CONFIG_PATH="/nonexistent/modal.toml", MODAL_TOKEN_ID="ak-witness", MODAL_TOKEN_SECRET="as-witness"
)
for name in ("MODAL_ENVIRONMENT", "MODAL_PROFILE"):
    os.environ.pop(name, None)
SHARED = tempfile.mkdtemp()
RIG = Rig("--token-id", "ak-witness", "--token-secret", "as-witness", "--visible", SHARED)
os.environ["MODAL_SERVER_URL"] = RIG.urls["control"]

import modal  # noqa: E402  it reads the environment when it is imported

# It says so of every byte that it sends into a broken connection.
logging.getLogger("asyncio").setLevel(logging.ERROR)


def app() -> modal.App:
    return modal.App.lookup("witness", create_if_missing=True)


def sandbox(*args: str, **options: Any) -> modal.Sandbox:
    options.setdefault("image", modal.Image.from_registry("debian:12"))
    return modal.Sandbox.create(*args, app=app(), **options)


def output(box: modal.Sandbox, *args: str, **options: Any) -> str:
    run = box.exec(*args, **options)
    text: str = run.stdout.read()
    assert run.wait() == 0, run.stderr.read()
    return text


@case
def commands_have_output_exit_codes_and_signals() -> None:
    box = sandbox(env={"GIVEN": "by the sandbox"})
    run = box.exec(
        "sh", "-c", 'echo "$GIVEN $MORE in $PWD"; echo trouble >&2; exit 3', env={"MORE": "and"}, workdir="/usr"
    )
    assert run.stdout.read() == "by the sandbox and in /usr\n"
    assert run.stderr.read() == "trouble\n"
    assert run.wait() == 3 and run.poll() == 3
    killed = box.exec("sh", "-c", "kill -TERM $$")
    assert killed.wait() == 128 + signal.SIGTERM, killed.returncode
    box.terminate()


@case
def bytes_pass_both_ways_whole() -> None:
    box = sandbox()
    data = os.urandom(3 << 20)
    run = box.exec("cat", text=False)
    for start in range(0, len(data), 1 << 20):
        run.stdin.write(data[start : start + (1 << 20)])
        run.stdin.drain()
    run.stdin.write_eof()
    run.stdin.drain()
    assert run.stdout.read() == data
    assert run.wait() == 0
    box.terminate()


@case
def a_conversation_goes_back_and_forth() -> None:
    box = sandbox()
    run = box.exec("sh", "-c", 'while read line; do echo "got $line"; done; echo over')
    lines = iter(run.stdout)
    for number in range(20):
        run.stdin.write("line %d\n" % number)
        run.stdin.drain()
        assert next(lines) == "got line %d\n" % number
    run.stdin.write_eof()
    run.stdin.drain()
    assert next(lines) == "over\n"
    box.terminate()


@case
def arguments_and_environments_may_be_large() -> None:
    box = sandbox(env={"LARGE": "v" * 100_000})
    # Characters that take more room on their way.
    assert len(output(box, "sh", "-c", 'printf "%s" "$0" "$LARGE"', "\x01" * 60_000)) == 160_000
    box.terminate()


@case
def output_in_the_smallest_pieces_is_whole() -> None:
    box = sandbox()
    RIG.faults({"fault": "pieces", "stream": "stdout", "size": 1})
    assert output(box, "printf", "größer als ein Byte") == "größer als ein Byte"
    RIG.faults()
    box.terminate()


@case
def other_ways_to_serve_are_as_good() -> None:
    names = ("headers_first", "output_ends_with_process", "image_at_once", "no_expiry")
    RIG.faults(*({"fault": "quirk", "name": name} for name in names))
    box = sandbox(image=modal.Image.from_registry("quirks:1"))
    assert len(output(box, "sh", "-c", "head -c 500000 /dev/zero | tr '\\0' x; sleep 60 &")) == 500_000
    box.terminate()


@case
def output_that_is_cut_is_resumed() -> None:
    box = sandbox()
    # The client gives up after ten breaks in a row that brought nothing, as those without a status may.
    for how, count in (("reset", 8), ("reset:CANCEL", 8), ("disconnect", 8), ("UNAVAILABLE", 1000)):
        RIG.faults({"fault": "cut", "stream": "stdout", "after": 70_001, "how": how, "count": count})
        run = box.exec("sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' x | tee /dev/stderr", text=False)
        assert run.stdout.read() == b"x" * 2_000_000, how
        RIG.faults()
        assert len(run.stderr.read()) == 2_000_000
        assert run.wait() == 0
    box.terminate()


@isolated
def a_stream_into_stdin_that_is_cut_is_resumed() -> None:
    box = sandbox()
    data = os.urandom(5 << 20)
    for how in ("reset", "disconnect", "UNAVAILABLE"):
        RIG.faults({"fault": "cut", "stream": "stdin", "after": 1_000_001, "how": how})
        box.filesystem.write_bytes(data, "/root/data")
        RIG.faults()
        assert output(box, "sha256sum", "/root/data").split()[0] == hashlib.sha256(data).hexdigest()
    box.terminate()


@isolated
def a_lost_answer_does_nothing_twice() -> None:
    before = len(RIG.ask("GET", "/sandboxes"))
    RIG.faults({"fault": "lost", "method": "SandboxCreateV2", "count": 2})
    box = sandbox()
    assert len(RIG.ask("GET", "/sandboxes")) == before + 1
    RIG.faults({"fault": "lost", "method": "TaskExec*", "count": 3})
    run = box.exec("sh", "-c", "echo once >> /root/log")
    run.wait()
    assert output(box, "cat", "/root/log") == "once\n"
    RIG.faults({"fault": "lost", "method": "TaskExecStdinWrite", "count": 2})
    run = box.exec("cat")
    run.stdin.write("only once")
    run.stdin.write_eof()
    run.stdin.drain()
    assert run.stdout.read() == "only once"
    box.terminate()


@case
def throttling_is_waited_out() -> None:
    RIG.faults(
        {"fault": "status", "method": "SandboxCreateV2", "code": "RESOURCE_EXHAUSTED", "retry_after": 0.3, "count": 2}
    )
    start = time.monotonic()
    box = sandbox()
    assert time.monotonic() - start > 0.6
    attempts = RIG.calls("SandboxCreateV2")[-3:]
    assert [call["attempt"] for call in attempts] == [0, 0, 0]
    assert len({call["metadata"]["x-idempotency-key"] for call in attempts}) == 1
    box.terminate()


@case
def tokens_that_expire_are_renewed() -> None:
    RIG.faults({"fault": "jwt", "seconds": 4})
    box = sandbox()
    for _ in range(2):
        assert output(box, "echo", "hello") == "hello\n"
        time.sleep(4.1)
    assert output(box, "echo", "hello") == "hello\n"
    assert len(RIG.calls("SandboxGetCommandRouterAccess")) > 1
    RIG.faults()
    box.terminate()


@case
def it_ends_by_terminate_lifetime_idleness_and_memory() -> None:
    box = sandbox()
    box.terminate()
    assert box.wait(raise_on_termination=False) is None and box.returncode == 137
    for how, code in (("timeout", 124), ("idle", 137), ("oom", 137)):
        box = sandbox()
        RIG.ask("POST", "/sandboxes/%s/end" % box.object_id, {"how": how})
        try:
            box.wait()
            assert how != "timeout"
        except modal.exception.SandboxTimeoutError:
            assert how == "timeout"
        assert box.returncode == code, (how, box.returncode)
    box = sandbox(timeout=1)
    idle = sandbox(idle_timeout=4)
    running = idle.exec("sleep", "4.5")
    running.wait()
    assert idle.poll() is None
    for ending in (box, idle):
        try:
            ending.wait()
        except modal.exception.SandboxTimeoutError:
            pass
        assert not RIG.sandbox(ending.object_id)["alive"]


@case
def an_exec_has_a_time_limit() -> None:
    box = sandbox()
    run = box.exec("sh", "-c", "echo begins; sleep 60", timeout=1)
    run.wait()
    assert run.returncode != 0
    wait = RIG.calls("TaskExecWait")[-1]
    assert wait["answer"] in ("OK", "DEADLINE_EXCEEDED", "CANCELLED"), wait
    deadline = time.monotonic() + 10
    while output(box, "sh", "-c", "ps ax | grep -c '[s]leep 60' || true").strip() != "0":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    box.terminate()


@case
def a_wrong_token_is_refused() -> None:
    client = modal.Client.from_credentials("ak-witness", "as-wrong")
    try:
        modal.App.lookup("witness", client=client)
        raise AssertionError("a wrong token was taken")
    except modal.exception.AuthError:
        pass


@case
def what_waits_for_a_sandbox_that_ends_is_told() -> None:
    box = sandbox()
    run = box.exec("sh", "-c", "echo begins; sleep 60")
    assert next(iter(run.stdout)) == "begins\n"
    RIG.ask("POST", "/sandboxes/%s/end" % box.object_id, {"how": "oom"})
    for wait in (run.wait, run.stderr.read):
        try:
            wait()
            raise AssertionError("it went on without its sandbox")
        except modal.exception.NotFoundError:
            pass
    one = sandbox()
    finished = one.exec("true")
    finished.wait()
    finished.stdin.write("for nobody")
    try:
        finished.stdin.drain()
        raise AssertionError("nobody reads this")
    except modal.exception.ConflictError:
        pass
    one.terminate()


@case
def servers_that_are_replaced_and_lines_that_are_silent_do_no_harm() -> None:
    box = sandbox()
    run = box.exec("sh", "-c", "for number in 1 2 3 4 5 6; do echo $number; sleep 0.2; done")
    for which in ("router", "control"):
        time.sleep(0.2)
        RIG.ask("POST", "/connections/away", {"which": which})
    RIG.faults({"fault": "silent", "which": "router"})
    time.sleep(0.5)
    RIG.faults()
    assert run.stdout.read() == "1\n2\n3\n4\n5\n6\n"
    assert run.wait() == 0
    box.terminate()


@case
def sandboxes_are_found_by_tags_name_and_id() -> None:
    mine = [sandbox(tags={"owner": "me", "number": str(number)}) for number in range(3)]
    other = sandbox(tags={"owner": "you"}, name="yours")
    RIG.faults({"fault": "page", "size": 2})
    where = app().app_id
    assert {box.object_id for box in modal.Sandbox.list(app_id=where, tags={"owner": "me"})} == {
        box.object_id for box in mine
    }
    RIG.faults()
    mine[0].set_tags({"owner": "nobody"})
    assert mine[0].get_tags() == {"owner": "nobody"}
    assert [box.object_id for box in modal.Sandbox.list(app_id=where, tags={"owner": "nobody"})] == [mine[0].object_id]
    assert modal.Sandbox.from_name("witness", "yours").object_id == other.object_id
    again = modal.Sandbox.from_id(other.object_id)
    assert output(again, "echo", "attached") == "attached\n"
    try:
        sandbox(name="yours")
        raise AssertionError("a name was given twice")
    except modal.exception.AlreadyExistsError:
        pass
    for box in [*mine, other]:
        box.terminate()
    sandbox(name="yours").terminate()


@case
def an_entrypoint_is_the_life_of_its_sandbox() -> None:
    box = sandbox("sh", "-c", 'read line; echo "heard $line"; exit 5')
    box.stdin.write("something\n")
    box.stdin.drain()
    box.wait(raise_on_termination=False)
    assert box.returncode == 5
    assert box.stdout.read() == "heard something\n"


@isolated
def a_snapshot_is_restored() -> None:
    box = sandbox()
    output(box, "sh", "-c", "echo kept > /root/kept; mkdir -p /srv/deep; ln -s there /srv/deep/link; rm -r /usr/games")
    image = box.snapshot_filesystem()
    output(box, "sh", "-c", "echo later > /root/later")
    box.terminate()
    box = sandbox(image=image)
    assert output(box, "cat", "/root/kept") == "kept\n"
    assert output(box, "readlink", "/srv/deep/link") == "there\n"
    assert output(box, "sh", "-c", "ls -d /usr/games /root/later 2>/dev/null || true") == ""
    box.terminate()


@case
def the_older_generation_does_the_same() -> None:
    RIG.faults({"fault": "task_id", "seconds": 0.7, "of": "newer"})
    late = sandbox()
    assert output(late, "echo", "scheduled") == "scheduled\n"
    assert RIG.calls("SandboxGetTaskIdV2")
    late.terminate()
    RIG.faults({"fault": "task_id", "seconds": 0.7})
    box = sandbox(gpu="T4", env={"GIVEN": "to both"}, secrets=[modal.Secret.from_dict({"KEY": "secret"})])
    RIG.faults()
    assert len(box.object_id) == 25
    assert output(box, "sh", "-c", 'echo "$GIVEN $KEY"') == "to both secret\n"
    assert len(RIG.calls("SandboxGetTaskId")) > 1
    RIG.faults({"fault": "cut", "stream": "stdout", "after": 1000, "count": 20})
    assert len(output(box, "sh", "-c", "head -c 30000 /dev/zero | tr '\\0' y")) == 30_000
    RIG.faults()
    box.terminate()
    box.wait(raise_on_termination=False)
    entered = sandbox("sh", "-c", 'read line; echo "heard $line"', gpu="T4")
    entered.stdin.write("something\n")
    entered.stdin.drain()
    assert entered.stdout.read() == "heard something\n"
    entered.wait()
    assert entered.returncode == 0
    assert box.returncode == 137 and RIG.sandbox(box.object_id)["gpu"] == "T4"


@case
def images_are_built_and_fail_to_be() -> None:
    slow = modal.Image.from_registry("slow:1")
    RIG.faults({"fault": "build", "tag": "slow:*", "how": "slow", "seconds": 0.5})
    sandbox(image=slow).terminate()
    RIG.faults(
        {"fault": "build", "tag": "silent:*", "how": "slow", "seconds": 0.5},
        {"fault": "build", "tag": "silent:*", "how": "no_result", "count": 2},
    )
    sandbox(image=modal.Image.from_registry("silent:1")).terminate()
    RIG.faults()
    for tag in ("no-such:1", "private.example/image:1"):
        try:
            sandbox(image=modal.Image.from_registry(tag))
            raise AssertionError("%s was built" % tag)
        except modal.exception.RemoteError as error:
            assert "manifest unknown" in str(error) or "unauthorized" in str(error), error
    login = modal.Secret.from_dict({"REGISTRY_USERNAME": "me", "REGISTRY_PASSWORD": "pass"})
    sandbox(image=modal.Image.from_registry("private.example/image:1", secret=login)).terminate()


@case
def what_cannot_be_is_refused() -> None:
    try:
        sandbox(region="atlantis")
        raise AssertionError("there is no such region")
    except modal.exception.InvalidError as error:
        assert "atlantis" in str(error)
    RIG.faults({"fault": "status", "method": "SandboxCreateV2", "code": "RESOURCE_EXHAUSTED", "count": 1})
    try:
        sandbox()
        raise AssertionError("there was no quota")
    except modal.exception.ResourceExhaustedError:
        pass
    box = sandbox()
    box.terminate()
    try:
        box.exec("true")
        raise AssertionError("it had ended")
    except (modal.exception.NotFoundError, modal.exception.ConflictError):
        pass
    box = sandbox()
    for args, workdir in ((["no-such-program"], None), (["ls"], "/no/such/folder")):
        try:
            box.exec(*args, workdir=workdir)
            raise AssertionError("%s was started" % args)
        except modal.exception.InvalidError as error:
            assert "No such file" in str(error) and (workdir or args[0]) + ":" in str(error), error
    box.terminate()
    try:
        modal.App.lookup("never-made")
        raise AssertionError("there is no such app")
    except modal.exception.NotFoundError:
        pass


@isolated
def a_visible_folder_is_shared_both_ways() -> None:
    with open(os.path.join(SHARED, "from here"), "w") as file:
        file.write("from here")
    box = sandbox()
    assert output(box, "sh", "-c", 'cat "$0/from here"; echo back > "$0/from there"', SHARED) == "from here"
    with open(os.path.join(SHARED, "from there")) as file:
        assert file.read() == "back\n"
    assert output(box, "ls", "/tmp") == os.path.basename(SHARED) + "\n"
    box.terminate()


@isolated
def sandboxes_are_apart_from_each_other_and_from_here() -> None:
    mine = "mine-%d" % os.getpid()
    one, other = sandbox(), sandbox(block_network=True, cpu=0.5, memory=256)
    output(one, "sh", "-c", "for at in tmp root dev/shm; do echo mine > /$at/%s; done" % mine)
    assert output(other, "sh", "-c", f"cat /tmp/{mine} /root/{mine} /dev/shm/{mine} 2>/dev/null || true") == ""
    assert not any(os.path.exists("/%s/%s" % (at, mine)) for at in ("tmp", "root", "dev/shm"))
    assert output(other, "sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]
    shown = RIG.sandbox(other.object_id)
    assert shown["app_name"] == "witness" and RIG.ask("GET", "/connections")["router"] >= 2
    assert shown["blocked"] and shown["cpu"] == 0.5 and shown["memory"] == 256
    one.exec("sleep", "77")
    assert "sleep 77" not in output(other, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    for box in (one, other):
        box.terminate()
    assert not os.path.exists("/proc/%d" % shown["pid"])


if __name__ == "__main__":
    status = run(RIG.faults)
    RIG.end()
    shutil.rmtree(SHARED)
    sys.exit(status)
