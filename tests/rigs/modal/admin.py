"""What tests ask and tell the stand-in, as JSON over HTTP.

GET  /calls[?method=M][&since=N]     the call log, DELETE empties it
GET  /sandboxes                      what was made, alive or not
POST /sandboxes/ID/end               {"how": "timeout|idle|oom|evicted|terminated|worker"}
POST /faults                         the list that is active from now on, see `faults`
POST /router/move                    the worker has another port, the old one is dead
GET  /connections                    how many are open: {"control": N, "router": N, "gateway": N}
POST /connections/break              {"which": "control|router|gateway"}: all that are connected break off
POST /connections/away               {"which": "control|router"}: they are told GOAWAY
POST /worker/kill                    all sandboxes end as their worker does, with all connections to it
POST /delay                          {"ms": N}: a round trip takes so much longer
GET  /proxy                          where the proxy was asked to connect to: [{"to": …, "login": …, "code": …}]
POST /proxy                          {"login": "USER:PASSWORD"|null, "refuses": code|null}: whom it lets through
POST /secrets                        {"name": …, "env": {…}}: a secret of the account
"""

from __future__ import annotations

from typing import Any

from calls import Calls
from endpoints import Endpoint, Line
from faults import BadFault, Faults
from proxy import Proxy
from sandboxes import ENDS
from world import Owned, World, identity

from web import Answer, Request


class Admin:
    def __init__(
        self, world: World, calls: Calls, faults: Faults, endpoints: dict[str, Endpoint], line: Line, proxy: Proxy
    ) -> None:
        self._world = world
        self._calls = calls
        self._faults = faults
        self._endpoints = endpoints
        self._line = line
        self._proxy = proxy

    async def handle(self, request: Request) -> Answer:
        """Answers one request."""
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["calls"]:
                since = int(request.query.get("since", 0))
                return Answer(self._calls.shown(request.query.get("method"), since))
            case "DELETE", ["calls"]:
                self._calls.forget()
                return Answer({})
            case "GET", ["sandboxes"]:
                return Answer([self._shown(owned) for owned in self._world.sandboxes.values()])
            case "GET", ["connections"]:
                return Answer({name: len(endpoint.connections) for name, endpoint in self._endpoints.items()})
            case "POST", ["sandboxes", sandbox, "end"]:
                how = (request.body or {}).get("how", "terminated")
                if sandbox not in self._world.sandboxes or how not in ENDS:
                    return Answer({"error": "no such sandbox or way to end"}, 404)
                await self._world.sandboxes[sandbox].sandbox.end_soon(how)
                return Answer(self._shown(self._world.sandboxes[sandbox]))
            case "POST", ["faults"]:
                return await self._set_faults(request)
            case "POST", ["router", "move"]:
                await self._endpoints["router"].move()
                return Answer({"router": self._endpoints["router"].url})
            case "POST", ["connections", "break"]:
                self._endpoints[request.body["which"]].disconnect()
                return Answer({})
            case "POST", ["connections", "away"]:
                self._endpoints[request.body["which"]].go_away()
                return Answer({})
            case "POST", ["worker", "kill"]:
                self._endpoints["router"].disconnect()
                for owned in self._world.sandboxes.values():
                    await owned.sandbox.end_soon("worker")
                return Answer({})
            case "POST", ["delay"]:
                self._line.delay = request.body["ms"] / 2000
                return Answer({})
            case "GET", ["proxy"]:
                return Answer(self._proxy.asked)
            case "POST", ["proxy"]:
                self._proxy.login, self._proxy.refuses = request.body.get("login"), request.body.get("refuses")
                self._proxy.asked.clear()
                return Answer({})
            case "POST", ["secrets"]:
                secret = identity("st")
                self._world.secrets[secret] = dict(request.body["env"])
                self._world.named_secrets["main", request.body["name"]] = secret
                return Answer({"id": secret})
        return Answer({"error": "%s %s is not known" % (request.method, request.path)}, 404)

    def _shown(self, owned: Owned) -> dict[str, Any]:
        names = [name for (_, name), app in self._world.apps.items() if app == owned.app]
        return {**owned.shown(), "app_name": names[0] if names else ""}

    async def _set_faults(self, request: Request) -> Answer:
        try:
            self._faults.replace(request.body)
        except BadFault as error:
            return Answer({"error": str(error)}, 400)
        for name, endpoint in self._endpoints.items():
            endpoint.silent = self._faults.strikes("silent", name)
            if self._faults.strikes("down", name):
                endpoint.close()
            else:
                await endpoint.open()
        return Answer({})
