"""Tool calls over a socket; what both ways have in common is in `test_hermes_runtime.py`."""

from __future__ import annotations

import socket

from stub_rig import Broker, Rig, SocketWay


def test_loopback_tcp(socket_rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = Broker()
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        SocketWay(broker, listener, address)
        assert socket_rig.run("print(echo(5)['arguments'])", HERMES_RPC_SOCKET=address) == "{'value': 5}"
        assert broker.connections == 1


def test_a_closed_idle_connection_is_replaced_and_nothing_runs_twice(socket_rig: Rig) -> None:
    out = socket_rig.run(
        """
        import time
        h._call("hang_up", {})
        time.sleep(0.1)
        print(echo(1)["arguments"])
        """
    )
    assert out == "{'value': 1}"
    assert [r[2] for r in socket_rig.broker.requests] == ["hang_up", "echo"]


def test_an_answer_that_never_comes_raises_and_is_not_repeated(socket_rig: Rig) -> None:
    out = socket_rig.run(
        """
        echo(1)
        for tool in ("vanish", "garbage"):
            try:
                h._call(tool, {})
            except ConnectionError as error:
                print(error)
        print(echo(2)["arguments"])
        """
    ).splitlines()
    assert "not known" in out[0] and "cannot be read" in out[1]
    assert out[2] == "{'value': 2}"
    assert [r[2] for r in socket_rig.broker.requests] == ["echo", "vanish", "garbage", "echo"]


def test_a_default_socket_timeout_of_the_script_is_not_ours(socket_rig: Rig) -> None:
    out = socket_rig.run("import socket\nsocket.setdefaulttimeout(0.05)\nprint(h._call('sleep', {'s': 0.3})['cell'])")
    assert out == "1"
