"""The server: loopback by default, a few fixed paths, bodies of bounded size, and nothing from a request is a path.

A request that is not understood is answered with a message (a 4xx); no request ends the server.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
import threading
import traceback
from http.server import ThreadingHTTPServer
from typing import Any

from lapae.errors import ConfigError
from lapae.view.explore.handler import Handler
from lapae.view.explore.routes import Routes
from lapae.view.web import asset

MOST_CONNECTIONS = 64
MOST_UPLOADS = 2
"""Files held in memory at once."""
FILES = {
    "/": ("explore.html", "text/html"),
    "/shared.css": ("shared.css", "text/css"),
    "/explore.css": ("explore.css", "text/css"),
    "/map.js": ("map.js", "text/javascript"),
    "/explore.js": ("explore.js", "text/javascript"),
    "/datum.js": ("datum.js", "text/javascript"),
}


class Server(ThreadingHTTPServer):
    """A thread a connection, at most `MOST_CONNECTIONS`; further ones are sent away."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, routes: Routes, host: str, port: int) -> None:
        self.routes = routes
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.uploads = threading.BoundedSemaphore(MOST_UPLOADS)
        self.files = {path: (asset(name).encode(), kind) for path, (name, kind) in FILES.items()}
        self.opening = json.dumps(routes.opening, allow_nan=False).encode()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            hint = "choose another with --port, or any free one with --port 0" if port else "choose another --host"
            raise ConfigError(f"cannot listen at {host}, port {port} ({error.strerror or error}): {hint}") from error
        except OverflowError:
            raise ConfigError(f"port = {port}: expected a number from 0 to 65535") from None
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.server_address[1]}/"
        self.names = {"localhost", "127.0.0.1", "[::1]", name} if is_loopback(host) else None
        """What a browser may call this server; None where any name may be right."""

    def server_bind(self) -> None:
        """As that of a plain server: the one of HTTPServer asks the network for a name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, where there is a place."""
        if not self.places.acquire(blocking=False):
            try:
                request.settimeout(1.0)
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except OSError:
                pass
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread: its place is free again
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """All requests of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is nothing to report; all else is, and does not end the server."""
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
