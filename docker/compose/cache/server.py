"""Keeps values under names: SET NAME VALUE, GET NAME, a line each; LOGIN PASSWORD before, where one is needed."""

import os
import socketserver
import sys

values = {}
password = os.environ.get("POSTGRES_PASSWORD")


class Session(socketserver.StreamRequestHandler):
    def handle(self):
        is_known = password is None
        for line in self.rfile:
            verb, _, rest = line.decode().strip().partition(" ")
            if verb == "LOGIN":
                is_known = rest == password
                answer = "OK" if is_known else "DENIED"
            elif not is_known:
                answer = "DENIED"
            elif verb == "SET":
                name, _, value = rest.partition(" ")
                values[name] = value
                answer = "OK"
            elif verb == "GET":
                answer = values.get(rest, "NONE")
            else:
                answer = "WHAT"
            self.wfile.write(answer.encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    print("ready")
    Server(("", int(sys.argv[1])), Session).serve_forever()
