"""Checks of the stand-in itself: the gateway's shapes, faults, and that nothing is left however it ends.

python tests/rigs/modal/checks.py [NAME]...
"""

from __future__ import annotations

import glob
import json
import os
import signal
import sys
import time
import urllib.error
from typing import Any

from cases import case, isolated, run
from interface import differences
from rig import HERE, Rig

RIG = Rig("--gateway-token", "the-token")


def ask(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    headers.setdefault("authorization", "Bearer the-token")
    try:
        return 200, RIG.ask(method, path, body, "gateway", **headers)
    except urllib.error.HTTPError as error:
        return error.code, {**json.load(error), "retry-after": error.headers.get("retry-after")}


def sandbox(**more: Any) -> str:
    code, made = ask("POST", "/v1/sandboxes", {"image": "debian:12", "cwd": "/tmp", "timeoutMs": 300_000, **more})
    assert code == 200 and isinstance(made["id"], str), made
    return str(made["id"])


def start(box: str, identity: str, command: str, **more: Any) -> Any:
    code, told = ask("POST", "/v1/sandboxes/%s/execs" % box, {"execId": identity, "command": command, **more})
    assert code == 200 and told["execId"] == identity, told
    return told


def final(box: str, identity: str) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        code, told = ask("GET", "/v1/sandboxes/%s/execs/%s" % (box, identity))
        assert code == 200 and told["execId"] == identity, told
        if told["status"] in ("completed", "failed", "cancelled", "timeout"):
            return told
        assert "output" not in told
        time.sleep(0.02)
    raise AssertionError("exec %s did not end" % identity)


@case
def output_is_merged_and_comes_at_the_end() -> None:
    box = sandbox()
    told = start(box, "one", "echo out; echo err >&2; sleep 2; pwd; exit 3")
    assert told["status"] in ("queued", "running") and "output" not in told, told
    done = {"status": "completed", "execId": "one", "output": "out\nerr\n/tmp\n", "returncode": 3}
    assert final(box, "one") == done
    start(box, "two", "cat; pwd", stdinData="given", cwd="/usr")
    assert final(box, "two")["output"] == "given/usr\n"
    # At once where it takes no longer.
    assert start(box, "one", "this is not run")["returncode"] == 3
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})


@isolated
def nothing_is_done_twice() -> None:
    before = len(RIG.ask("GET", "/sandboxes"))
    key = {"x-idempotency-key": "the same"}
    made = [ask("POST", "/v1/sandboxes", {"image": "debian:12"}, **key)[1]["id"] for _ in range(2)]
    assert made[0] == made[1] and len(RIG.ask("GET", "/sandboxes")) == before + 1
    for _ in range(3):
        start(made[0], "append", "echo once >> /root/log")
    start(made[0], "look", "cat /root/log")
    assert final(made[0], "look")["output"] == "once\n"
    ask("POST", "/v1/sandboxes/%s/terminate" % made[0], {})


@isolated
def one_command_at_a_time() -> None:
    box = sandbox()
    start(box, "first", "sleep 1.5; echo first >> /root/log")
    assert start(box, "second", "echo second >> /root/log; cat /root/log")["status"] == "queued"
    assert final(box, "second")["output"] == "first\nsecond\n"
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})


@case
def commands_are_cancelled_and_time_out() -> None:
    box = sandbox()
    start(box, "long", "echo begins; sleep 60")
    assert start(box, "waits", "echo never")["status"] == "queued"
    for identity in ("waits", "long"):
        ask("POST", "/v1/sandboxes/%s/execs/%s/cancel" % (box, identity))
    told = final(box, "long")
    assert (told["status"], told["returncode"]) == ("cancelled", 130) and told["output"] in ("", "begins\n"), told
    assert final(box, "waits")["status"] == "cancelled"
    start(box, "limited", "echo begins; sleep 60", timeoutMs=3000)
    assert final(box, "limited") == {"status": "timeout", "execId": "limited", "output": "begins\n", "returncode": 124}
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})


@isolated
def a_file_system_persists_under_its_key() -> None:
    kept = {"logicalKey": "mine", "persistentFilesystem": True}
    box = sandbox(**kept)
    start(box, "write", "echo kept > /root/kept")
    final(box, "write")
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {"snapshotBeforeTerminate": True})
    box, other = sandbox(**kept), sandbox(logicalKey="other", persistentFilesystem=True)
    for where, output in ((box, "kept\n"), (other, "")):
        start(where, "read", "cat /root/kept 2>/dev/null")
        assert final(where, "read")["output"] == output
        ask("POST", "/v1/sandboxes/%s/terminate" % where, {"snapshotBeforeTerminate": False})


@isolated
def the_gateway_refuses_and_fails() -> None:
    box = sandbox()
    code, told = ask("GET", "/v1/sandboxes/%s/execs/unknown" % box)
    assert code == 404 and told["error"] and told["code"] == "exec_not_found"
    assert ask("POST", "/v1/sandboxes", {}, authorization="Bearer another")[0] == 401
    RIG.faults({"fault": "status", "method": "gateway.poll", "code": 502, "count": 2})
    start(box, "one", "true")
    assert [ask("GET", "/v1/sandboxes/%s/execs/one" % box)[0] for _ in range(3)] == [502, 502, 200]
    RIG.faults({"fault": "status", "method": "gateway.create", "code": 429, "retry_after": 2})
    code, told = ask("POST", "/v1/sandboxes", {"image": "debian:12"})
    assert code == 429 and told["retry-after"] == "2"
    RIG.faults({"fault": "lost", "method": "gateway.start", "count": 1})
    try:
        start(box, "lost", "echo once >> /root/log")
        raise AssertionError("the answer was lost")
    except (ConnectionError, urllib.error.URLError):
        pass
    start(box, "lost", "echo once >> /root/log")
    final(box, "lost")
    start(box, "look", "cat /root/log")
    assert final(box, "look")["output"] == "once\n"
    assert [call["answer"] for call in RIG.calls("gateway.start")[-3:]] == ["LOST", "200", "200"]
    RIG.faults({"fault": "down", "which": "gateway"})
    try:
        ask("POST", "/v1/sandboxes", {"image": "debian:12"})
        raise AssertionError("nobody listened")
    except (ConnectionError, urllib.error.URLError):
        pass
    RIG.faults()
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})
    assert ask("POST", "/v1/sandboxes/%s/execs" % box, {"execId": "x", "command": "true"})[0] == 404


@case
def what_the_broker_knows_of_the_interface_is_modals() -> None:
    folder = os.path.join(HERE, "../../../src/backends/modal/proto")
    total = 0
    for path in sorted(glob.glob(os.path.join(folder, "*.proto"))):
        with open(path) as text:
            compared, wrong = differences(text.read())
        assert not wrong, (path, wrong)
        total += compared
    assert total > 40, total
    wrong = differences("package modal.client; message GenericResult { int32 status = 1; string exception = 3; }")[1]
    assert len(wrong) == 2, wrong


@case
def its_commands_leave_nothing_open() -> None:
    box = sandbox()
    folder = "/proc/%d/fd" % RIG.process.pid
    start(box, "first", "true")
    final(box, "first")
    before = len(os.listdir(folder))
    for number in range(20):
        start(box, "number-%d" % number, "echo %d" % number)
        final(box, "number-%d" % number)
    assert len(os.listdir(folder)) < before + 10
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})


@case
def a_misspelt_fault_is_refused() -> None:
    how = {"fault": "lost", "method": "*", "how": "reset:NONSENSE"}
    for wrong in (
        {"fault": "nothing"},
        {"fault": "cut", "stream": "stdout"},
        {"fault": "down", "wich": "control"},
        how,
    ):
        try:
            RIG.faults(wrong)
            raise AssertionError("%s was taken" % wrong)
        except urllib.error.HTTPError as error:
            assert error.code == 400


@case
def everything_takes_as_long_as_the_line() -> None:
    box = sandbox()
    RIG.ask("POST", "/delay", {"ms": 300})
    begin = time.monotonic()
    ask("GET", "/v1/sandboxes/%s/execs/none" % box)
    assert time.monotonic() - begin > 0.29
    RIG.ask("POST", "/delay", {"ms": 0})
    ask("POST", "/v1/sandboxes/%s/terminate" % box, {})


@case
def nothing_is_left_however_it_ends() -> None:
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        rig = Rig()
        code = rig.ask("POST", "/v1/sandboxes", {"image": "debian:12"}, "gateway", authorization="Bearer any")
        mark = "mark-%d" % rig.process.pid
        command = "setsid nohup sh -c 'sleep 600; : %s' >/dev/null 2>&1 & sleep 600; : %s" % (mark, mark)
        body = {"execId": "one", "command": command}
        rig.ask("POST", "/v1/sandboxes/%s/execs" % code["id"], body, "gateway", authorization="Bearer any")
        deadline = time.monotonic() + 20
        while len(processes(mark)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if how is None:
            rig.end()
        else:
            rig.process.send_signal(how)
            rig.process.wait(30)
        deadline = time.monotonic() + 20
        while processes(mark):
            assert time.monotonic() < deadline, processes(mark)
            time.sleep(0.05)


def processes(mark: str) -> list[str]:
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as line:
                if mark.encode() in line.read() and path != "/proc/%d/cmdline" % os.getpid():
                    found.append(path)
        except OSError:
            pass
    return found


if __name__ == "__main__":
    status = run(RIG.faults)
    RIG.end()
    sys.exit(status)
