"""The server: loopback and a token, a few fixed paths, bodies of bounded size, and nothing from a request is a path.

A request that is not understood is answered with a message (a 4xx); no request ends the server.

Why not starlette and uvicorn: they would replace a part of `server` and `handler` and add four packages to every
installation. What matters in a server that any program of the machine may talk to would still be ours to write: one
deadline per request, room for newcomers, the checks of Host, Origin and token, bounded bodies; and against slow clients
they were measured to be no safer.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lapae.errors import ConfigError
from lapae.view.explore.handler import Handler
from lapae.view.explore.opening import report_of
from lapae.view.explore.requests import BadRequest
from lapae.view.explore.routes import Routes
from lapae.view.web import LINK, asset

MOST_CONNECTIONS = 64
MOST_UPLOADS = 2
"""Maximum number of uploaded files held in memory at once."""
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = (
    *("explore.html", "shared.css", "explore.css"),
    *("numbers.js", "map.js", "stage.js", "explore.js", "kinds.js", "path.js", "sample.js"),
)


class Server(ThreadingHTTPServer):
    """One thread per connection, at most `MOST_CONNECTIONS`: the one that has waited longest makes room for a new one.

    Attributes:
        url: the address of the page on this machine.
        token: what the address starts with: every user of this machine can reach the server, or where the host is
            another other machines too, but only who has the address is answered.
        cookie: (name, value) that a browser which has opened that address shows instead, so that links of a report,
            which do not know the token, lead here; None where other machines can reach the server. On loopback the
            names of this machine are checked besides: a name may point anywhere.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, routes: Routes, host: str, port: int) -> None:
        self.routes = routes
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.uploads = threading.BoundedSemaphore(MOST_UPLOADS)
        self.lock = threading.Lock()
        self.waiting: dict[socket.socket, float | None] = {}
        """Open connections: the time since which each waits for its client, or None while it is being answered."""
        self.files = {name: (asset(name).encode(), KINDS[Path(name).suffix]) for name in FILES}
        self.files[""] = self.files.pop("explore.html")
        self.opening = json.dumps(routes.opening, allow_nan=False).encode()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            hint = "choose another with --port, or any free one with --port 0" if port else "choose another --host"
            raise ConfigError(f"cannot listen at {host}, port {port} ({error.strerror or error}): {hint}") from error
        except OverflowError:
            raise ConfigError(f"port = {port}: expected a number from 0 to 65535") from None
        self.token = secrets.token_urlsafe(16)
        self.cookie = (f"lapae-{self.server_port}", secrets.token_urlsafe(16)) if is_loopback(host) else None
        own = f"[{host}]" if ":" in host else host
        self.names = {"localhost", "127.0.0.1", "[::1]", own.lower()}
        name = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(own, own)
        self.url = f"http://{name}:{self.server_address[1]}/{self.token}/"

    def path(self, path: str, cookies: Sequence[str] = ()) -> str | None:
        """Return the path that an address asks for; None without the right token or cookie."""
        path = path.removeprefix("/")
        token, _, rest = path.partition("/")
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return rest
        return path if self.cookie is not None and any(map(self._is_known, cookies)) else None

    def _is_known(self, cookies: str) -> bool:
        """Whether the right cookie is in a Cookie header."""
        assert self.cookie is not None
        own = "=".join(self.cookie).encode()
        return any(hmac.compare_digest(cookie.strip().encode(), own) for cookie in cookies.split(";"))

    def report(self) -> bytes:
        """Read the current report of the run, with links that lead to this server."""
        found = report_of(self.routes.explorer.model)
        if found is None:
            raise BadRequest("this run has no report: write one with lapae report", HTTPStatus.NOT_FOUND)
        return found.read_bytes().replace(LINK.encode(), b'href="./')

    def server_bind(self) -> None:
        """Bind as a plain server does: HTTPServer looks up a host name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def waits(self, connection: socket.socket, waits: bool) -> None:
        """Note that a connection waits for its client, or that it is being answered."""
        with self.lock:
            if connection in self.waiting:
                self.waiting[connection] = time.monotonic() if waits else None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is room or some can be made."""
        with self.lock:
            if len(self.waiting) >= MOST_CONNECTIONS:
                idle = {connection: since for connection, since in self.waiting.items() if since is not None}
                if idle:
                    self._end(min(idle, key=lambda connection: idle[connection]))
            room = len(self.waiting) < MOST_CONNECTIONS
            if room:
                self.waiting[request] = time.monotonic()
        if room:
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread: its place is free again
                self.waiting.pop(request, None)
                raise
            return
        with contextlib.suppress(OSError):
            request.settimeout(1.0)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer all requests of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.lock:
                self.waiting.pop(request, None)

    def _end(self, connection: socket.socket) -> None:
        """Close a connection: its thread notices and ends."""
        del self.waiting[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error without ending the server; a broken connection is not reported."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
