"""The directory link on a real relay: what is sent arrives, once and whole, whatever becomes of the links."""

import fcntl
import json
import os
import random
import signal
import time

from directory_host import CALLS, Host, holder, wait_until

#: `fcntl` has a name for it from Python 3.10 on.
F_SETPIPE_SZ = 1031


def test_a_session_from_its_start_to_its_end(host):
    session = host().ready_kernel()
    assert session.run(1, "x = 41\nprint('hello')") == "hello\n"
    assert session.run(2, CALLS + "print(x + 1, call('echo', {'a': 'é'}))") == "42 {'a': 'é'}\n"
    session.end()
    assert session.gone == "it was closed"
    assert not os.path.exists(session.disk())


def test_the_first_frame_says_what_the_place_is(host, tmp_path):
    session = host(cwd=os.fsencode(tmp_path)).begun()
    facts = session.facts
    assert facts["cwd"] == str(tmp_path)
    assert facts["environment"]["PATH"] == os.environ["PATH"]
    assert (facts["uid"], facts["python"]) == (os.geteuid(), facts["python"])
    assert os.path.isabs(facts["shell"])
    assert session.ready["supervisor"] is True
    assert (session.ready["taken"], session.ready["stored"]) == (0, [])
    session.end()


def test_later_links_know_what_was_stored(host):
    session = host().ready_kernel()
    session.run(1, "print(1)")
    session.drop()
    session.relink()
    session.begun()
    assert session.ready["taken"] == session.commands
    assert (session.ready["link"], session.ready["folder"]) == (2, session.folder)
    assert session.run(2, "print(2)") == "2\n"
    session.end()


def test_output_and_calls_survive_any_number_of_links(host):
    # Cut at random moments; on each new link both ends say what they have.
    session = host().ready_kernel()
    rng = random.Random(7)
    source = CALLS + (
        "import sys, time\nfor i in range(1500):\n    assert call('echo', {'i': i}) == {'i': i}\n    print('line', i)\n"
    )
    session.cell(1, source, timeout=100)
    cuts = 0
    begun = time.monotonic()
    while not session.done(1):
        assert time.monotonic() < begun + 90
        until = time.monotonic() + rng.uniform(0.0, 0.1)
        session.pump(lambda until=until: session.done(1) or time.monotonic() > until)
        if not session.done(1) and cuts < 15:
            cuts += 1
            session.drop()
            session.relink()
    assert session.output[1].decode().splitlines() == ["line %d" % i for i in range(1500)]
    assert len(session.dispatched) == 1500
    assert len(set(session.dispatched)) == 1500
    assert session.done(1)[1] == b"done"
    assert cuts > 3
    session.end()


#: Nobody looks without being rung for.
DEAF = [
    ("relay", b"SECOND_LOOK, IDLE_LOOK = 1.0, 30.0", b"SECOND_LOOK, IDLE_LOOK = 1e6, 1e6"),
    ("lease", b"LOOK = 4.0", b"LOOK = 1e6"),
    ("spool", b"self._moved + STILL", b"self._moved + 1e6"),
]


def test_nothing_sleeps_through_a_ring(host):
    session = host(patches=DEAF, lease=1e8, first_lease=1e8).ready_kernel()
    rng = random.Random(11)
    source = CALLS + (
        "import sys, threading\n"
        "LOOKS = False\n"
        "def go(number):\n"
        "    client = Client()\n"
        "    for i in range(400):\n"
        "        assert client('echo', {'i': i}) == {'i': i}\n"
        "        sys.stdout.write('line %d %d\\n' % (number, i))\n"
        "threads = [threading.Thread(target=go, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    session.cell(1, source, timeout=200)
    cuts = 0
    while not session.done(1):
        until = time.monotonic() + rng.uniform(0.0, 0.1)
        session.pump(lambda until=until: session.done(1) or time.monotonic() > until)
        if not session.done(1) and cuts < 40:
            cuts += 1
            os.kill(holder(session.folder, 2) or session.link.process.pid, signal.SIGKILL)
            session.drop()
            session.relink()
            session.begun()
        elif cuts == 40:
            session.pump(lambda: session.done(1), 60)
    lines = session.output[1].decode().split("\n")[:-1]
    assert "\n".join(line for line in lines if not line.startswith("line")) == ""
    assert sorted(lines) == sorted("line %d %d" % (number, i) for number in range(4) for i in range(400))
    assert len(session.dispatched) == len(set(session.dispatched)) == 1600
    assert cuts > 5
    session.end()


def test_a_cell_ends_while_no_link_is_there(host):
    session = host().ready_kernel()
    session.cell(1, "import time\ntime.sleep(0.3)\nfor i in range(200000): print(i)")
    session.pump(lambda: not session.unstored)
    session.drop()
    time.sleep(1.5)
    session.relink()
    session.pump(lambda: session.done(1))
    assert session.output[1].decode().split() == [str(i) for i in range(200000)]
    session.end()


def test_a_command_acts_once_however_often_it_is_sent(host):
    session = host().ready_kernel()
    session.cell(1, "print('ran')")
    message = session.unstored[session.commands]
    session.pump(lambda: session.done(1))
    stored = []
    for _ in range(3):
        session.link.send(b"C", b"%d" % session.commands, message)
    session.pump(lambda: len(stored) == 3, on=lambda kind: stored.append(1) if kind == b"c" else None)
    assert session.run(2, "print('after')") == "after\n"
    assert [kind for kind, _ in session.events].count(b"D") == 2
    session.end()


def test_a_cell_that_comes_before_its_kernel_is_ready_waits_for_it(host):
    session = host().begun()
    session.start_kernel()
    assert session.run(1, "import time\ntime.sleep(0.2)\nprint('ran')", timeout=20.0) == "ran\n"
    assert [kind for kind, _ in session.events if kind != b"O"] == [b"H", b"R", b"D"]
    assert session.done(1)[1] == b"done" and float(session.done(1)[4]) < 5
    session.end()


def test_a_cell_whose_kernel_does_not_start_has_not_begun(host):
    session = host().begun()
    python, session.python = session.python, "/bin/false"
    session.start_kernel()
    session.python = python
    session.run(1, "print('never')")
    assert [kind for kind, _ in session.events] == [b"H", b"F", b"D"]
    assert session.done(1)[1] == b"unbegun"
    session.start_kernel(generation=2)
    assert session.run(2, "print('ran')") == "ran\n"
    session.end()


def test_a_later_link_shuts_out_the_one_before(host):
    session = host().ready_kernel()
    before = session.link
    session.relink()
    session.begun()
    wait_until(lambda: before.process.poll() is not None)
    assert session.run(1, "print('on the new one')") == "on the new one\n"
    before.close()
    session.end()


def test_an_earlier_link_is_turned_away(host):
    session = host().ready_kernel()
    session.drop()
    session.relink(number=7)
    session.begun()
    latest, ready = session.link, session.ready
    for number in (3, 7):
        session.relink(number=number)
        session.gone = ""
        session.pump(lambda: session.link.ended)
        session.gone = None
        assert "has taken over" in session.refused[-1][1]
        session.close()
    session.link, session.ready = latest, ready
    assert session.run(1, "print('undisturbed')") == "undisturbed\n"
    session.relink(number=1, owner="another")
    session.begun()
    wait_until(lambda: latest.process.poll() is not None)
    latest.close()
    session.end()


def test_a_relay_that_is_stopped_is_replaced(host):
    session = host().ready_kernel()
    before = session.link
    os.kill(holder(session.folder, 2), signal.SIGSTOP)
    session.relink()
    session.begun()
    assert session.run(1, "print(1)") == "1\n"
    before.close()
    session.end()


def test_bodies_of_64_mib_pass_either_way(host):
    session = host().ready_kernel()
    size = 64 << 20
    session.tool = lambda name, arguments: {"text": arguments["text"][::-1]}
    source = CALLS + (
        "text = 'ab' * %d\n"
        "answer = call('reverse', {'text': text})\n"
        "print(len(answer['text']), answer['text'] == text[::-1])" % (size // 2)
    )
    assert session.run(1, source, limit=120, timeout=100) == "%d True\n" % size
    assert not [name for name in os.listdir(session.disk()) if name.startswith(("req_", "res_", "blob_"))]
    session.end()


def test_a_pipe_that_takes_more_than_is_ready_holds_up_nothing(host):
    """Such a pipe never blocks, and so never tells that there is room again."""
    session = host(window=1 << 26).start()
    fcntl.fcntl(session.link.process.stdout.fileno(), F_SETPIPE_SZ, 1 << 20)
    session.ready_kernel()
    session.widening = False  # nothing else wakes it
    session.tool = lambda name, arguments: {"length": len(arguments["text"])}
    source = CALLS + "print(call('measure', {'text': 'a' * (12 << 20)})['length'])"
    assert session.run(1, source) == "%d\n" % (12 << 20)
    session.end()


def test_small_calls_pass_between_the_pieces_of_a_large_one(host):
    session = host().ready_kernel()
    source = CALLS + (
        "import threading\n"
        "order = []\n"
        "def large():\n"
        "    Client()('large', {'text': 'x' * (24 << 20)}); order.append('large')\n"
        "thread = threading.Thread(target=large)\n"
        "thread.start()\n"
        "while not any(name.startswith('req_') for name in os.listdir(D + '/rpc')): time.sleep(0.001)\n"
        "small = Client()\n"
        "for i in range(3): small('small', {'i': i}); order.append('small')\n"
        "thread.join(); print(order)"
    )
    session.tool = lambda name, arguments: {"ok": True}
    order = session.run(1, source, limit=90)
    assert order.startswith("['small', ") and order.count("small") == 3, order
    session.end()


def test_a_cell_of_some_megabytes_goes_as_a_body(host):
    session = host().ready_kernel()
    assert session.run(1, "text = '''%s'''\nprint(len(text))" % ("y" * (4 << 20))) == "%d\n" % (4 << 20)
    assert not [name for name in os.listdir(session.disk()) if name.startswith(("in_", "blob_"))]
    session.end()


def test_a_body_goes_on_where_the_link_before_left_it(host):
    session = host().begun()
    body = bytes(range(256)) * 1024
    session.link.send(b"B", b"one", body[:65536], 0, False)
    session.link.send(b"B", b"one", body[65536:100000], 65536, False)
    session.pump(lambda: session.blobs.get(b"one") == 100000)
    session.drop()
    session.relink()
    session.begun()
    assert session.ready["blobs"] == {"one": 100000}
    assert session.ready["complete"] == []
    session.link.send(b"B", b"one", body[150000:160000], 150000, False)  # a gap: nothing is taken
    session.link.send(b"B", b"one", body[90000:150000], 90000, False)  # an overlap is
    session.link.send(b"B", b"one", body[150000:210000], 150000, False)
    session.link.send(b"B", b"one", body[210000:], 210000, True)
    session.pump(lambda: session.blobs.get(b"one") == len(body))
    with open(session.disk() + "/blob_one", "rb") as file:
        assert file.read() == body
    session.end()


def _held_call(session):
    session.hold = True
    session.cell(1, CALLS + "print(call('make', {})['text'] == 'y' * 100000)")
    session.pump(lambda: session.held)
    call = session.held[0][0]
    return call, json.dumps({"text": "y" * 100000}).encode()


def test_a_relay_may_die_between_the_body_of_an_answer_and_its_name(host):
    session = host().ready_kernel()
    call, body = _held_call(session)
    with open(session.disk() + "/res_" + call.decode(), "wb") as file:
        file.write(body)
    session.drop()
    session.relink()
    session.begun()
    session.link.send(b"a", call, b"gone")
    session.pump(lambda: session.done(1))
    assert (bytes(session.output[1]), session.refused) == (b"True\n", [])
    session.end()


def test_an_answer_whose_body_is_not_there_is_asked_for_again(host):
    session = host().ready_kernel()
    call, body = _held_call(session)
    session.link.send(b"a", call, b"gone")
    session.pump(lambda: session.refused)
    assert session.refused[0][0] == call
    assert "its body is not there" in session.refused[0][1]
    session.answer(call, json.loads(body))
    session.pump(lambda: session.done(1))
    assert bytes(session.output[1]) == b"True\n"
    session.end()


def test_what_the_broker_has_may_come_in_pieces(host):
    session = host().ready_kernel()
    session.run(1, "print(1)")
    session.drop()
    text = json.dumps({"log": session.log, "sent": session.commands, "calls": {}}).encode()

    def in_pieces():
        session.link.send(b"H", b"", text[:5], 0, False)
        session.link.send(b"H", b"", text[5:], 5)

    session.resume = in_pieces
    session.relink()
    session.begun()
    assert session.run(2, "print(2)") == "2\n"


def test_no_more_is_under_way_than_the_window(host):
    window = 1 << 18
    session = host(window=window).ready_kernel()
    session.widening = False
    begun = session.link.consumed
    session.cell(1, "print('z' * (1 << 20))")
    until = time.monotonic() + 1.5
    session.pump(lambda: time.monotonic() > until)
    assert window // 2 < session.link.consumed <= window
    assert begun < session.link.consumed
    # It reads all the same.
    session.cell(2, "open('%s', 'w').close()" % (session.folder + "/here"))
    session.pump(lambda: os.path.exists(session.folder + "/here"))
    session.widening = True
    session.link.send(b"W", offset=session.link.consumed)
    session.pump(lambda: session.done(2))
    assert len(session.output[1]) == (1 << 20) + 1
    session.end()


def test_a_relay_whose_broker_is_silent_leaves(host):
    session = host(patches=[("relay", b"SILENCE = 45.0", b"SILENCE = 3.0")]).begun()
    session.renewing = False
    heard = []
    session.renew()
    session.pump(lambda: heard, on=lambda kind: heard.append(1) if kind == b"l" else None)
    session.gone = ""
    session.pump(lambda: session.link.ended)
    assert "nothing was heard of the broker" in session.refused[-1][1]
    session.gone = None
    session.relink()
    session.begun()
    session.renewing = True

    session.end()


def test_one_look_at_a_time(host):
    session = host().ready_kernel()
    session.drop()
    session.cell(1, CALLS + "for i in range(3): print(call('echo', {'i': i}))")
    session.looking = True
    for _ in range(40):
        session.look()
        if session.done(1):
            break
    assert session.output[1].decode() == "{'i': 0}\n{'i': 1}\n{'i': 2}\n"
    assert len(session.dispatched) == 3
    session.command(b"Z")
    for _ in range(20):
        session.look(100)
        if session.gone:
            break
    assert session.gone
    wait_until(lambda: not os.path.exists(session.folder))


def test_the_first_link_may_be_a_look(host, tmp_path):
    session = Host(tmp_path)
    session.looking = True
    session.start()
    session.resume()
    session.link.send(b"L", offset=1)
    session.link.send(b"Z", offset=0)
    session.link.send_end()
    ended = []
    session.pump(lambda: ended, on=lambda kind: ended.append(kind) if kind == b"Z" else None)
    assert session.link.process.wait(10) == 0
    assert session.facts["uid"] == os.geteuid()
    session.close()
    session.command(b"Z")
    for _ in range(50):
        session.look(100)
        if session.gone:
            break
    assert session.gone
    wait_until(lambda: not os.path.exists(session.folder))


def test_a_look_brings_more_than_a_window_where_room_is_made(host):
    window = 1 << 18
    session = host(window=window).ready_kernel()
    session.acking = False
    session.cell(1, "import sys\nfor i in range(80): sys.stdout.write('z' * 65535 + '\\n')\nprint('end')")
    session.pump(lambda: not session.unstored)
    session.drop()
    spooled = session.disk()
    wait_until(lambda: len([name for name in os.listdir(spooled) if len(name) == 16]) > 15)
    session.acking = True
    session.flowing = False
    before = session.log
    session.look()
    assert 0 < session.log - before <= window
    session.flowing = True
    before = session.log
    session.look()
    assert session.log - before > 4 * window
    session.looking = False
    session.relink()
    session.pump(lambda: session.done(1))
    assert len(session.output[1]) == 80 * 65536 + 4
    session.end()


def test_output_is_held_back_while_the_broker_catches_up(host):
    session = host(window=1 << 19).ready_kernel()
    session.cell(1, "import sys\nfor i in range(160): sys.stdout.write('z' * 65535 + '\\n')\nprint('end')")
    most = []

    def waiting(kind):
        out = os.listdir(session.folder + "/out")
        spooled = [name for name in os.listdir(session.disk()) if len(name) == 16]
        most.append(len(out) + len(spooled))
        if kind == b"O":
            time.sleep(0.002)

    session.pump(lambda: session.done(1), 60, on=waiting)
    assert len(session.output[1]) == 160 * 65536 + 4
    assert max(most) < 10, max(most)  # files of 256 KiB, of 40 in all
    session.end()


def test_without_acknowledgement_all_is_spooled_and_comes_later(host):
    session = host().ready_kernel()
    session.acking = False
    session.cell(1, "import sys\nfor i in range(80): sys.stdout.write('z' * 65535 + '\\n')\nprint('end')")
    session.pump(lambda: not session.unstored)
    session.drop()
    spooled = session.disk()
    wait_until(lambda: len([name for name in os.listdir(spooled) if len(name) == 16]) > 15)
    assert len(os.listdir(session.folder + "/out")) <= 3
    session.acking = True
    session.relink()
    session.pump(lambda: session.done(1), 60)
    assert len(session.output[1]) == 80 * 65536 + 4
    session.pump(lambda: not [name for name in os.listdir(spooled) if len(name) == 16][1:])
    session.end()


def test_what_is_no_request_is_answered_or_passed_over(host):
    session = host().ready_kernel()
    source = CALLS + (
        "os.symlink('/etc/passwd', D + '/rpc/req_' + 'a' * 16 + '-1')\n"
        "os.mkdir(D + '/rpc/req_' + 'b' * 16 + '-1')\n"
        "os.mkfifo(D + '/rpc/req_' + 'c' * 16 + '-1')\n"
        "for name in ('req_', 'req_../../x'.replace('/', '_'), 'req_' + 'A' * 16 + '-1', 'other', 'req_x-1'):\n"
        "    open(D + '/rpc/' + name, 'w').close()\n"
        "with open(D + '/rpc/req_' + 'd' * 16 + '-1', 'wb') as file: file.truncate(1 << 33)\n"
        "bells = [D + '/rpc/bell_' + c * 16 for c in 'abcd']\n"
        "fds = [os.mkfifo(bell) or os.open(bell, os.O_RDWR) for bell in bells]\n"
        "fd = os.open(D + '/bell.r', os.O_WRONLY | os.O_NONBLOCK); os.write(fd, b'?'); os.close(fd)\n"
        "for c in 'abcd':\n"
        "    path = D + '/rpc/res_' + c * 16 + '-1'\n"
        "    while not os.path.exists(path): time.sleep(0.01)\n"
        "    print('cannot be read' in open(path).read(), os.path.lexists(D + '/rpc/req_' + c * 16 + '-1'))\n"
        "print(call('echo', {'still': 'here'}))"
    )
    assert session.run(1, source) == "True False\n" * 4 + "{'still': 'here'}\n"
    assert [tool for _, tool in session.dispatched] == ["echo"]
    session.end()


def test_a_kernel_leaves_nothing_of_its_calls(host):
    session = host().ready_kernel()
    session.hold = True
    session.cell(1, CALLS + "call('never', {'text': 'x' * (1 << 20)})")
    session.pump(lambda: session.held)
    session.command(b"X", b"1", b"now")
    session.pump(lambda: session.done(1))
    wait_until(lambda: not os.listdir(session.folder + "/rpc"))
    assert not [name for name in os.listdir(session.disk()) if name.startswith("req_")]
    # The broker answers all the same; nobody waits for it.
    session.answer(session.held[0][0], {"late": True})
    session.pump(lambda: not session.answers)
    assert not os.listdir(session.folder + "/rpc")
    session.end()
