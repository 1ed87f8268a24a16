"""A caller as the directory protocol describes it, no more."""

import json
import os
import select
import threading

FOLDER = os.environ["HERMES_RPC_DIR"]
ABOVE = 256 << 10
_own = threading.local()


def _put(path, data):
    fd = os.open(path + ".aside", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.rename(path + ".aside", path)


def _ring():
    try:
        fd = os.open(os.path.dirname(FOLDER) + "/bell.r", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"x")
        os.close(fd)
    except OSError:
        pass


def _disk(name):
    return os.path.dirname(FOLDER) + "/disk/" + name


def _get(name):
    try:
        with open(FOLDER + "/" + name, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    if data == b"@":
        with open(_disk(name), "rb") as file:
            data = file.read()
        os.unlink(_disk(name))
    return data


def call(tool, **arguments):
    slot = getattr(_own, "slot", None)
    if slot is None:
        client = os.urandom(8).hex()
        bell = FOLDER + "/bell_" + client
        os.mkfifo(bell, 0o600)
        slot = _own.slot = [client, os.open(bell, os.O_RDWR | os.O_NONBLOCK), 0]
    slot[2] += 1
    name = "%s-%d" % (slot[0], slot[2])
    body = json.dumps([globals()["_TOKEN"], 1, tool, arguments]).encode()
    if len(body) > ABOVE:
        _put(_disk("req_" + name), body)
        body = b"@"
    _put(FOLDER + "/req_" + name, body)
    _ring()
    poll = select.poll()
    poll.register(slot[1], select.POLLIN)
    missing = 0
    while True:
        answer = _get("res_" + name)
        if answer is not None:
            break
        missing = 0 if os.path.exists(FOLDER + "/req_" + name) else missing + 1
        if missing == 3:
            raise RuntimeError("request and answer are both gone")
        if poll.poll(1000):
            try:
                os.read(slot[1], 4096)
            except BlockingIOError:
                pass
    try:
        os.unlink(FOLDER + "/req_" + name)
    except FileNotFoundError:
        pass
    os.unlink(FOLDER + "/res_" + name)
    return json.loads(answer)
