"""One connection: requests are checked, bodies are bounded, every mistake is answered with a message."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import time
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lapae.curvature.chunking import OutOfMemory
from lapae.errors import LapaeError
from lapae.view.explore.requests import BadRequest
from lapae.view.explore.uploads import MOST_BYTES

if TYPE_CHECKING:
    from lapae.view.explore.server import Server

IDLE = 30.0
"""Seconds that a connection may stay idle before its next request."""
DEADLINE = 20.0
"""Seconds allowed from the first byte of a request to its last, and for sending an answer."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

POLICIES = {
    "report": (
        "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
"""Headers of pages with inline scripts: sandboxed, they have no origin and cannot send requests to this server."""


class Gone(Exception):
    """The client is gone, or too slow."""


class UntilDeadline(io.RawIOBase):
    """Reads from a socket until a deadline, which a client that sends a byte now and then cannot postpone."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes, no longer than the deadline allows."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "lapae", ""
    idle, deadline = IDLE, DEADLINE
    wfile: io.BytesIO  # pyright: ignore[reportIncompatibleVariableOverride]
    rfile: io.BufferedReader  # pyright: ignore[reportIncompatibleVariableOverride]
    left = False  # whether some of the request was not read
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def setup(self) -> None:
        """Give reads a deadline, and collect what is written so that it is sent in one piece."""
        self.connection = self.request
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.received = UntilDeadline(self.connection)
        self.rfile, self.wfile = io.BufferedReader(self.received), io.BytesIO()

    def handle_one_request(self) -> None:
        """Wait for a request, give it its time, answer it."""
        self.received.until = time.monotonic() + self.idle
        try:
            self.rfile.peek(1)
            self.received.until = time.monotonic() + self.deadline
            super().handle_one_request()
        except (OSError, Gone):
            self.close_connection = True

    def do_GET(self) -> None:
        """Answer with a file of the page, or with the data that the page needs when it opens."""
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _other(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _other

    def _get(self, path: str, query: str) -> tuple[bytes, str]:
        if self.left:  # what follows would be taken for another request
            raise BadRequest("a GET with a body")
        if path == "api/opening":
            return self.server.opening, "application/json"
        if path == "report":
            return self.server.report(), "text/html"
        if path not in self.server.files:
            raise BadRequest("no such page", HTTPStatus.NOT_FOUND)
        return self.server.files[path]

    def _post(self, path: str, query: str) -> tuple[bytes, str]:
        routes = self.server.routes
        name = path.removeprefix("api/")
        if path == "api/upload":
            self._expect("application/octet-stream")
            if not self.server.uploads.acquire(timeout=self.deadline):
                raise BadRequest("too many files at once: try again", HTTPStatus.SERVICE_UNAVAILABLE)
            try:
                found = routes.upload(self._body(MOST_BYTES), query.removeprefix("row=") or "0")
            finally:
                self.server.uploads.release()
        elif path.startswith("api/") and name in routes.questions:
            self._expect("application/json")
            found = routes.questions[name](self._body(routes.most_json))
        else:
            raise BadRequest("no such question", HTTPStatus.NOT_FOUND)
        return json.dumps(found, allow_nan=False).encode(), "application/json"

    def _answer(self, question: Callable[[str, str], tuple[bytes, str]]) -> None:
        lengths = self.headers.get_all("Content-Length", [])
        self.left = "Transfer-Encoding" in self.headers or any(length.strip() != "0" for length in lengths)
        try:
            self._check_origin()
            path, query = self._address()
            content, kind = question(path, query)
        except BadRequest as error:
            self.send_error(error.status, str(error))
        except (LapaeError, OutOfMemory) as error:
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
        except Gone:
            raise
        except Exception:
            traceback.print_exc()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in the explorer: its terminal has the details")
        else:
            self._send(HTTPStatus.OK, content, kind, POLICIES.get(path), greet=path == "")

    def _address(self) -> tuple[str, str]:
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            raise BadRequest(f"not an address: {error}") from None
        path = self.server.path(parts.path, self.headers.get_all("Cookie", []))
        if path is None:
            raise BadRequest(
                "this address lacks its token: open the one that lapae explore printed", HTTPStatus.FORBIDDEN
            )
        return path, parts.query

    def _check_origin(self) -> None:
        """Allow requests of this server's own page only: neither another site's, nor DNS names rebound to this host."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            raise BadRequest("expected one Host header")
        name, names = hosts[0].lower(), self.server.names
        port = str(self.server.server_port)
        if self.server.cookie is not None and name not in names | {f"{known}:{port}" for known in names}:
            raise BadRequest(f"this server is not {name[:80]!r}", HTTPStatus.FORBIDDEN)
        if any(origin.lower() != f"http://{name}" for origin in self.headers.get_all("Origin", [])):
            raise BadRequest("asked by a page of another site", HTTPStatus.FORBIDDEN)

    def _expect(self, kind: str) -> None:
        """Require a Content-Type that another site's form cannot send without a CORS preflight."""
        if self.headers.get_content_type() != kind or "Content-Type" not in self.headers:
            raise BadRequest(f"expected the Content-Type {kind}", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

    def _body(self, most: int) -> bytes:
        """Read the body of a request, if its length is given and within bounds."""
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            raise BadRequest("expected one Content-Length and no Transfer-Encoding", HTTPStatus.LENGTH_REQUIRED)
        told = lengths[0].strip()
        if not (told.isascii() and told.isdigit() and len(told) < 20):
            raise BadRequest(f"Content-Length: expected a whole number, got {told[:40]!r}")
        length = int(told)
        if length > most:
            message = f"{length:,} bytes: expected at most {most:,}"
            raise BadRequest(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            content = self.rfile.read(length)
        except OSError as error:
            raise Gone from error
        if len(content) < length:
            raise BadRequest(f"the body ended {length - len(content):,} bytes short", HTTPStatus.REQUEST_TIMEOUT)
        self.left = False
        self.server.waits(self.connection, False)
        return content

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a message as JSON and end the connection: the rest of the request is not read."""
        status = HTTPStatus(code)
        # what http.server says of a method or a version that it does not know: not the server's fault
        known = {501: HTTPStatus.METHOD_NOT_ALLOWED, 505: HTTPStatus.BAD_REQUEST}
        status = known.get(status, status)
        self.close_connection = True
        self.request_version = self.protocol_version  # else a request without one is answered without a status
        text = " ".join((message or status.description or status.phrase).split())
        self._send(status, json.dumps({"error": text}).encode(), "application/json")
        if self.left:
            self._linger()

    def _linger(self) -> None:
        """Let the client read the answer for a moment: closing with unread bytes would discard it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            until = time.monotonic() + 2
            while time.monotonic() < until and self.connection.recv(2**16):
                pass

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self._flush()
        return going_on

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, policy: str | None = None, *, greet: bool = False
    ) -> None:
        """Send an answer; `greet` sets the cookie that a browser with the right address may use from now on."""
        self.send_response(status)
        if greet and self.server.cookie is not None:
            # Lax: sent with a click on a link in the file of a report, and not with what a page of another site asks
            self.send_header("Set-Cookie", "{}={}; HttpOnly; SameSite=Lax; Path=/".format(*self.server.cookie))
        for name, value in (HEADERS | ({} if policy is None else {"Content-Security-Policy": policy})).items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.server.waits(self.connection, True)
        self._flush()

    def _flush(self) -> None:
        self.connection.settimeout(self.deadline)  # for all of it: a slow reader does not put it off
        self.connection.sendall(self.wfile.getvalue())
        self.wfile = io.BytesIO()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: one line per mouse move would bury what matters."""
