"""The way of calls out of a process that stands alone (``remote_agent/alone_cell.py``)."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import target_side

MARK = b"0123456789abcdef"


@pytest.fixture
def ends(request):
    """A way home, and the broker's ends of it: what it reads, what it writes."""
    answers, broker_writes = os.pipe()
    broker_reads, calls = os.pipe()
    alone_cell = target_side.load("alone_cell")
    home = alone_cell.Home(answers, target_side.load("marked").Marked(calls, MARK))
    request.addfinalizer(lambda: [os.close(fd) for fd in (answers, broker_writes, broker_reads, calls)])
    return home, broker_reads, broker_writes


def requests(fd):
    """Whole calls as they come: name and body."""
    parts = {}
    with open(fd, "rb", closefd=False) as stream:
        while True:
            head = stream.read(20)
            assert head[:17] == MARK + b"Q"
            body = stream.read(int.from_bytes(head[18:], "big"))
            assert len(head) + len(body) <= 4096
            parts.setdefault(body[:8], bytearray()).extend(body[8:])
            if head[17]:
                yield body[:8], bytes(parts.pop(body[:8]))


def answer(fd, name, body):
    os.write(fd, name + len(body).to_bytes(4, "big") + body)


def test_calls_of_several_threads_get_their_own_answers(ends):
    home, reads, writes = ends
    bodies = [b"%d" % number * size for number, size in ((1, 1), (2, 9000), (3, 20000), (4, 0))]
    got = {}
    threads = [
        threading.Thread(target=lambda body=body: got.__setitem__(body, home.exchange(body)), daemon=True)
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    coming = requests(reads)
    calls = [next(coming) for _ in bodies]
    assert sorted(body for _, body in calls) == sorted(bodies)
    for name, body in reversed(calls):
        answer(writes, name, b"answer to " + body)
    for thread in threads:
        thread.join(30)
    assert got == {body: b"answer to " + body for body in bodies}


def test_a_call_that_was_given_up_leaves_the_next_one_alone(ends):
    home, reads, writes = ends
    coming = requests(reads)
    before = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ZeroDivisionError):
            home.exchange(b"first")
    finally:
        signal.signal(signal.SIGALRM, before)
    name, _ = next(coming)
    answer(writes, name, b"too late")
    thread = threading.Thread(target=lambda: answer(writes, next(coming)[0], b"second"), daemon=True)
    thread.start()
    assert home.exchange(b"second") == b"second"
    thread.join(30)


def test_the_end_of_the_input_ends_the_process():
    """Whatever it does, and whatever it has done about signals."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import alone\n"
        "for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)\n"
        "os.setpgid(0, 0); alone._end_with(alone._lift(0)); print('set', flush=True)\n"
        "while True: pass"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target_side.FOLDER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"set\n"
            process.stdin.close()
            assert process.wait(30) == -signal.SIGKILL
        finally:
            process.kill()
