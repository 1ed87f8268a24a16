"""A stand-in of Modal: its control plane, its worker's command router, and the HTTP gateway, on 127.0.0.1.

    python tests/rigs/modal [--visible PATH]... [--token-id ID --token-secret SECRET] [--gateway-token TOKEN]
                            [--python PATH] [--delay MS] [--certificate FILE --key FILE [--host NAME]]

Prints one JSON line when it is ready: `{"control": URL, "router": URL, "gateway": URL, "admin": URL, "proxy": URL}`.
With a certificate the first three are encrypted. It ends with its standard input or by SIGTERM, and however it ends
nothing of it is left. Needs `modal==1.6.4`, whose bindings it serves. What Modal's servers do where its clients do not
show it is inferred; such places are marked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import sys

import admin
import gateway
import proxy
from calls import Calls
from endpoints import Endpoint, Line
from faults import Faults
from modal_proto import api_pb2, task_command_router_pb2
from plane import Plane
from router import Router
from sandboxes import ISOLATED
from serving import Service, protocol
from world import World

import web


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A stand-in of Modal.")
    parser.add_argument("--visible", action="append", default=[], help="a folder that sandboxes share with the host")
    parser.add_argument("--token-id", default="", help="the only token that is accepted, else every one is")
    parser.add_argument("--token-secret", default="")
    parser.add_argument("--gateway-token", default="", help="the only bearer token that the gateway accepts")
    parser.add_argument("--python", default="", help="what `python3` is inside")
    parser.add_argument("--certificate", default="", help="a file with a certificate and its chain")
    parser.add_argument("--key", default="", help="a file with its key")
    parser.add_argument("--host", default="127.0.0.1", help="the name under which it is called; the proxy finds any")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds that a round trip takes longer")
    return parser.parse_args()


def encryption(options: argparse.Namespace, protocol: str) -> ssl.SSLContext | None:
    """How an endpoint speaks this protocol; None: it is not encrypted."""
    if not options.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    context.set_alpn_protocols([protocol])
    return context


async def serve(options: argparse.Namespace) -> None:
    """Until standard input ends."""
    if not ISOLATED:
        print(
            "NOT ISOLATED: no namespaces can be made here, sandboxes are plain processes on the host's files",
            file=sys.stderr,
        )
    line, calls, faults = Line(options.delay / 2000), Calls(), Faults()
    world = World(faults, [os.path.realpath(path) for path in options.visible], options.python)
    token = (options.token_id, options.token_secret) if options.token_id else None
    control = Service("control", api_pb2.DESCRIPTOR.services_by_name["ModalClient"], Plane(world, token), calls, faults)
    worker = task_command_router_pb2.DESCRIPTOR.services_by_name["TaskCommandRouter"]
    endpoints = {
        "control": Endpoint(protocol(control), line, encryption(options, "h2"), options.host),
        "router": Endpoint(
            protocol(Service("router", worker, Router(world), calls, faults)),
            line,
            encryption(options, "h2"),
            options.host,
        ),
        "gateway": Endpoint(
            web.protocol(gateway.Gateway(world, calls, faults, options.gateway_token).handle),
            line,
            encryption(options, "http/1.1"),
            options.host,
        ),
    }
    world.router = endpoints["router"]
    tunnel = proxy.Proxy()
    await tunnel.open()
    steering = admin.Admin(world, calls, faults, endpoints, line, tunnel)
    listening = {**endpoints, "admin": Endpoint(web.protocol(steering.handle), Line(0))}
    for endpoint in listening.values():
        await endpoint.open()
    places = {name: endpoint.url for name, endpoint in listening.items()}
    print(json.dumps({**places, "proxy": "http://127.0.0.1:%d" % tunnel.port}), flush=True)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGINT, over.set)
    await _input_ends(over)
    for endpoint in listening.values():
        endpoint.close()
    tunnel.close()
    await world.end()


async def _input_ends(over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            over.set()

    try:
        loop.add_reader(0, readable)
    except PermissionError:  # a file, or /dev/null: it never ends
        pass
    await over.wait()


if __name__ == "__main__":
    asyncio.run(serve(arguments()))
