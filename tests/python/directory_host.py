"""The broker's half of the directory protocol, as small as tests need it: no window to speak of, one thread."""

import collections
import json
import os
import pathlib
import re
import secrets
import select
import struct
import subprocess
import sys
import time

from stub_rig import stub
from target_side import FOLDER, load

frames = load("frames")
wire = load("wire")
_RUST = (FOLDER.parent / "src" / "bundle.rs").read_text()
_TABLES = (FOLDER.parent / "src" / "bundle" / "modules.rs").read_text()

#: What a cell needs to call tools: the stub's part of the protocol.
CALLS = """
import os, select, json, secrets, time
D = os.environ["HERMES_RPC_DIR"].rsplit("/", 1)[0]

LOOKS = True  # whether it looks again without a ring

class Client:
    def __init__(self):
        self.name, self.seq, self.fd = secrets.token_hex(8), 0, -1

    def bell(self):
        path = D + "/rpc/bell_" + self.name
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            if self.fd >= 0:
                return
        except FileNotFoundError:
            return  # it is made anew
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def request(self, ident, body):
        try:
            name = D + "/rpc/~" + ident
            if len(body) > 1 << 18:
                with open(D + "/disk/req_" + ident, "wb") as file:
                    file.write(body)
                body = b"@"
            with open(name, "wb") as file:
                file.write(body)
            os.rename(name, D + "/rpc/req_" + ident)
            fd = os.open(D + "/bell.r", os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"q" + ident.encode() + b"\\n")
            os.close(fd)
        except OSError as error:
            if error.errno not in (2, 6, 32):  # the directory is made anew, or there is no relay just now
                raise

    def __call__(self, tool, arguments):
        self.seq += 1
        ident = "%s-%d" % (self.name, self.seq)
        body = json.dumps(["token", 1, tool, arguments]).encode()
        self.bell()
        self.request(ident, body)
        missed = 0
        while True:
            try:
                with open(D + "/rpc/res_" + ident, "rb") as file:
                    answer = file.read()
            except FileNotFoundError:
                answer = None
            if answer is not None:
                if answer == b"@":
                    with open(D + "/disk/res_" + ident, "rb") as file:
                        answer = file.read()
                for name in ("rpc/req_", "rpc/res_", "disk/res_", "disk/req_"):
                    try:
                        os.unlink(D + "/" + name + ident)
                    except OSError:
                        pass
                return json.loads(answer) if answer else {"error": "no room"}
            if select.select([self.fd], [], [], 1.0 if LOOKS else None)[0]:
                os.read(self.fd, 4096)
            elif LOOKS and not os.path.exists(D + "/rpc/req_" + ident) and not os.path.exists(D + "/rpc/res_" + ident):
                missed += 1
                if missed >= 2:
                    missed = 0
                    self.bell()
                    self.request(ident, body)

call = Client()
"""


def one_line(name):
    text = _RUST[_RUST.index("const %s: &str" % name) :]
    return "".join(re.findall(r'r#"(.*?)"#', text[: text.index(");\n")], re.S))


def modules():
    names = []
    for table in ("SESSION", "DIRECTORY"):
        text = _TABLES[_TABLES.index("const %s: &[&str]" % table) :]
        names += re.findall(r'"(\w+)"', text[: text.index("];")])
    return {name: (FOLDER / (name + ".py")).read_bytes() for name in names}


def bundle(entries, patches=()):
    """What a first link is given; ``patches`` are (module, text, other text)."""
    sources = modules()
    for name, text, other in patches:
        assert sources[name].count(text) == 1, text
        sources[name] = sources[name].replace(text, other)
    boot = (FOLDER / "bootstrap.py").read_bytes()
    configuration = b"\0".join(b"%s=%s" % (name.encode(), value) for name, value in entries)
    texts = b"".join(b"%s\0%d\0%s" % (name.encode(), len(text), text) for name, text in sources.items())
    return b"%08d%s%08d%s%08d%s" % (len(boot), boot, len(configuration), configuration, len(texts), texts)


class Link:
    """One process on the target, and the frames to and from it."""

    def __init__(self, command, preface=b"", **options):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **options
        )
        self.out = collections.deque(preface[at : at + 65536] for at in range(0, len(preface), 65536))
        self.reader = frames.Reader()
        self.head = b""
        self.consumed = 0
        self.ended = False
        os.set_blocking(self.process.stdin.fileno(), False)

    def send(self, kind, key=b"", payload=b"", offset=0, final=True):
        self.out.append(frames.pack(kind, key, payload, offset, final))

    def send_end(self):
        """Nothing more will be sent."""
        os.set_blocking(self.process.stdin.fileno(), True)
        self.process.stdin.write(b"".join(self.out))
        self.out.clear()
        self.process.stdin.close()

    def turn(self, wait=0.05):
        """What has come: frames."""
        if self.ended:
            return []
        write = [self.process.stdin] if self.out and not self.process.stdin.closed else []
        readable, writable, _ = select.select([self.process.stdout], write, [], wait)
        if writable:
            try:
                while self.out:
                    count = os.write(self.process.stdin.fileno(), self.out[0])
                    if count < len(self.out[0]):
                        self.out[0] = self.out[0][count:]
                    else:
                        self.out.popleft()
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self.out.clear()
        if not readable:
            return []
        data = os.read(self.process.stdout.fileno(), 1 << 18)
        if not data:
            self.ended = True
            return []
        if self.head is not None:
            self.head += data
            line, newline, data = self.head.partition(b"\n")
            if not newline:
                return []
            assert line.startswith(b"talaria-agent "), line
            self.head = None
        self.consumed += len(data)
        return list(self.reader.feed(data))

    def close(self):
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class Host:
    """A session: what the broker keeps of it over its links."""

    def __init__(self, base, python=sys.executable, prefix=(), lease=60.0, first_lease=60.0, window=1 << 22, **entries):
        self.python = python
        self.prefix = list(prefix)
        self.session = secrets.token_hex(16)
        self.owner = "0a1b"
        self.number = 1
        self.window = window
        self.entries = [
            ("mode", b"directory"),
            ("session", self.session.encode()),
            ("base", os.fsencode(base)),
            ("owner", self.owner.encode()),
            ("link", b"1"),
            ("window", b"%d" % window),
            ("lease", b"%f" % lease),
            ("first_lease", b"%f" % first_lease),
        ]
        defaults = {"cwd": b"", "work": b"", "interpreters": b"own"}
        self.entries += [(name, value) for name, value in {**defaults, **entries}.items()]
        self.patches = ()
        self.link = None
        self.looking = False
        self.flowing = True  # whether room is made during a look too
        self.facts = None
        self.ready = None
        self.gone = None
        self.refused = []
        self.lease = 0
        self.renewing = True
        self.widening = True
        self._renewed = 0.0
        self._widened = 0
        self.commands = 0
        self.unstored = {}
        self.log = 0
        self.events = []
        self.output = {}
        self._events = wire.Reader()
        self._acked = 0
        self.acking = True
        self.highest = {}
        self.answers = {}
        self.partial = {}
        self.dispatched = []
        self.blobs = {}
        self.tool = lambda name, arguments: arguments
        self.held = []  # calls that are to be answered later
        self.hold = False

    # --- links ---

    def start(self, **options):
        command = [*self.prefix, self.python, "-I", "-S", "-c", one_line("ONE_LINE")]
        self.link = Link(command, bundle(self.entries, self.patches), **options)
        self.ready = None
        return self

    def relink(self, number=None, owner=None):
        self.number = number or self.number + 1
        words = [self.folder, owner or self.owner, str(self.number), str(self.window)]
        self.link = Link([*self.prefix, self.python, "-I", "-S", "-c", one_line("SECOND_LINE"), *words])
        self.ready = None
        self._widened = 0

    def drop(self):
        self.link.close()
        self.partial.clear()

    def close(self):
        if self.link is not None:
            self.link.close()

    def look(self, wait=1000):
        """One look: everything there and back."""
        self.relink()
        self.resume()
        self.renew()
        self.link.send(b"K", offset=self.log)
        self.link.send(b"Z", offset=wait)
        self.looking = True
        ended = []
        self.pump(lambda: self.link.ended or ended, on=lambda kind: ended.append(1) if kind == b"Z" else None)
        self.link.close()
        self.partial.clear()

    def resume(self):
        have = {"log": self.log, "sent": self.commands, "calls": {}}
        self.link.send(b"H", payload=json.dumps(have, separators=(",", ":")).encode())
        for number, message in sorted(self.unstored.items()):
            self._send_command(number, message)
        for call, answer in self.answers.items():
            if answer is not None:
                self._send_answer(call, answer)

    def renew(self):
        self.lease += 1
        self.link.send(b"L", offset=self.lease)

    # --- what is said ---

    def command(self, kind, *fields):
        self.commands += 1
        message = wire.pack(kind, *fields)
        self.unstored[self.commands] = message
        if self.link is not None and self.ready and not self.looking:
            self._send_command(self.commands, message)
        return self.commands

    def _send_command(self, number, message):
        if len(message) > 65536:
            self._send_blob(b"c%d" % number, message)
            self.link.send(b"D", b"%d" % number, b"c%d" % number)
        else:
            self.link.send(b"C", b"%d" % number, message)

    def _send_blob(self, identity, body):
        for at in range(0, len(body), 65536):
            piece = body[at : at + 65536]
            self.link.send(b"B", identity, piece, at, at + len(piece) == len(body))

    def _send_answer(self, call, answer):
        if len(answer) > 65536:
            self._send_blob(b"a" + call, answer)
            self.link.send(b"a", call, b"a" + call)
        else:
            self.link.send(b"A", call, answer)

    def answer(self, call, value):
        self.answers[call] = json.dumps(value).encode()
        if not self.looking:
            self._send_answer(call, self.answers[call])

    def start_kernel(self, generation=1, **variables):
        text = stub("rpc_directory").encode()
        environment = dict(os.environ, HERMES_RPC_DIR=self.folder + "/rpc", **variables)
        environment.pop("PYTHONPATH", None)
        pairs = b"\0".join(os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environment.items())
        folder = os.fsencode(self.folder)
        self.command(b"K", b"%d" % generation, os.fsencode(self.python), b"/", pairs, folder, text, b"")

    def cell(self, number, source, timeout=60.0, cap=64 << 20):
        limits = [b"%r" % timeout, b"%d" % cap, b"%d" % cap]
        self.command(b"C", b"%d" % number, *limits, b"", b"cell_%d.py" % number, b"", b"text", b"", source.encode())

    # --- what is heard ---

    def pump(self, until, limit=30.0, on=lambda kind: None):
        """Serves until something is the case."""
        end = time.monotonic() + limit
        while not until():
            if self.renewing and self.ready and not self.looking and time.monotonic() > self._renewed + 0.5:
                self._renewed = time.monotonic()
                self.renew()
            assert time.monotonic() < end, self._state()
            for kind, final, key, payload, offset in self.link.turn():
                self._take(kind, final, key, payload, offset)
                on(kind)
            if self.link.ended and not until() and self.gone is None:
                raise AssertionError("the link ended: " + self._state())
        return self

    def _state(self):
        events = repr(self.events[-5:])[:500]
        words = b""
        if not self.link.process.stderr.closed:
            os.set_blocking(self.link.process.stderr.fileno(), False)
            words = self.link.process.stderr.read() or b""
        return "%s; %d events to %d; %r %r %s" % (events, len(self.events), self.log, self.gone, self.refused, words)

    def _take(self, kind, final, key, payload, offset):
        if kind == b"R":
            self._ready = payload if offset == 0 else self._ready + payload
            if final:
                self.ready = json.loads(self._ready)
                self.folder = self.ready["folder"]
                self.facts = self.ready.get("facts", self.facts)
                if not self.looking:
                    self.resume()
        elif kind == b"c":
            self.unstored.pop(int(key), None)
        elif kind == b"O" and offset <= self.log:
            fresh = payload[self.log - offset :]
            self.log += len(fresh)
            for event, fields in self._events.feed(fresh):
                self._event(event, fields)
            if self.acking and (self.flowing or not self.looking):
                self.link.send(b"K", offset=self.log)
        elif kind == b"Q":
            body = self.partial.setdefault(key, bytearray())
            if offset == len(body):
                body += payload
            if final:
                self._call(key, self.partial.pop(key))
        elif kind == b"q":
            self.answers.pop(key, None)
        elif kind == b"G":
            self.gone = payload.decode()
        elif kind == b"E":
            self.refused.append((key, payload.decode()))
        elif kind == b"b":
            self.blobs[key] = offset
        if self.widening and (self.flowing or not self.looking) and self.link.consumed >= self._widened + (1 << 15):
            self._widened = self.link.consumed
            self.link.send(b"W", offset=self._widened)

    def _event(self, event, fields):
        self.events.append((event, fields))
        if event == b"O":
            cell = int(fields[0])
            self.output.setdefault(cell, bytearray()).extend(fields[2])

    def _call(self, call, body):
        client, sequence = call.rsplit(b"-", 1)
        if int(sequence) > self.highest.get(client, 0):
            self.highest[client] = int(sequence)
            _, _, tool, arguments = json.loads(body)
            self.dispatched.append((call, tool))
            if self.hold:
                self.held.append((call, arguments))
                self.answers[call] = None
            else:
                self.answer(call, self.tool(tool, arguments))
        elif call in self.answers:
            if self.answers[call] is not None:
                self._send_answer(call, self.answers[call])
        else:
            self.answer(call, {"error": "ran once, and its answer was lost"})

    # --- shortcuts ---

    def done(self, number):
        for kind, fields in self.events:
            if kind == b"D" and int(fields[0]) == number:
                return fields
        return None

    def begun(self):
        self.pump(lambda: self.ready is not None)
        return self

    def ready_kernel(self):
        self.begun().start_kernel()
        self.pump(lambda: any(kind in (b"R", b"F") for kind, _ in self.events))
        assert self.events[-1][0] == b"R", self.events
        return self

    def run(self, number, source, limit=30.0, **how):
        self.cell(number, source, **how)
        self.pump(lambda: self.done(number), limit)
        return self.output.get(number, b"").decode()

    def end(self):
        """Closes the session and waits until nothing of it is left."""
        if self.gone is None:
            self.command(b"Z")
            self.pump(lambda: self.gone is not None)
        self.close()
        wait_until(lambda: not os.path.exists(self.folder) and not self.processes())

    def disk(self):
        return os.path.realpath(self.folder + "/disk")

    def processes(self):
        """Processes that bear the session's mark."""
        return find(self.session)


def find(mark):
    """Living processes with a mark in their environment or among their open files."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X"):
                    continue
                names = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
                if mark.encode() in (entry / "environ").read_bytes() or any(mark in name for name in names):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def holder(folder, byte):
    """The process that holds a byte of the session's lock: 0 supervisor, 1 guard, 2 relay."""
    import fcntl

    with open(folder + "/lock", "r+b") as file:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else pid


def wait_until(condition, limit=20.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def busy(session):
    """Has a cell under way that leaves a process outside of every session and group."""
    session.ready_kernel()
    session.spool = session.disk()
    source = "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '600'])\nprint('begun')\n"
    session.run(1, source)
    session.cell(2, "import time\nprint('under way')\nwhile True: time.sleep(0.1)")
    session.pump(lambda: b"under way" in session.output.get(2, b""))
    return session
