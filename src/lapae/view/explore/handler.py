"""One connection: requests are checked, bodies are bounded, every mistake is answered with a message."""

from __future__ import annotations

import json
import socket
import time
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from lapae.data import DataError
from lapae.errors import LapaeError
from lapae.view.explore.requests import BadRequest
from lapae.view.explore.uploads import MOST_BYTES

if TYPE_CHECKING:
    from lapae.view.explore.server import Server

IDLE = 30.0
"""Seconds that a connection may say nothing, and that a body may take."""
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


class _Gone(Exception):
    """The client is gone, or says nothing."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "lapae", ""
    timeout = IDLE
    wbufsize = -1  # headers and body leave together: in two pieces the second waits for an acknowledgement
    disable_nagle_algorithm = True
    left = False  # whether some of the request was not read
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """A file of the page, or what the page is told when it opens."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """A question."""
        self._answer(self._post)

    def _other(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _other

    def _get(self) -> tuple[bytes, str]:
        path = self._address().path
        if path == "/api/opening":
            return self.server.opening, "application/json"
        if path not in self.server.files:
            raise BadRequest("no such page", HTTPStatus.NOT_FOUND)
        return self.server.files[path]

    def _post(self) -> tuple[bytes, str]:
        parts = self._address()
        routes = self.server.routes
        name = parts.path.removeprefix("/api/")
        if parts.path == "/api/upload":
            self._expect("application/octet-stream")
            row = parts.query.removeprefix("row=") or "0"
            if not self.server.uploads.acquire(timeout=IDLE):
                raise BadRequest("too many files at once: try again", HTTPStatus.SERVICE_UNAVAILABLE)
            try:
                found = routes.upload(self._body(MOST_BYTES), row)
            finally:
                self.server.uploads.release()
        elif parts.path.startswith("/api/") and name in routes.questions:
            self._expect("application/json")
            found = routes.questions[name](self._body(routes.most_json))
        else:
            raise BadRequest("no such question", HTTPStatus.NOT_FOUND)
        return json.dumps(found, allow_nan=False).encode(), "application/json"

    def _answer(self, question: Any) -> None:
        self.left = "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0").strip() != "0"
        try:
            self._check_origin()
            content, kind = question()
        except BadRequest as error:
            self.send_error(error.status, str(error))
        except (LapaeError, DataError) as error:
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
        except _Gone:
            self.close_connection = True
        except Exception:
            traceback.print_exc()
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in the explorer: its terminal has the details")
        else:
            self._send(HTTPStatus.OK, content, kind)

    def _check_origin(self) -> None:
        """Only this server's own page may ask: not a page of another site, nor one whose name was bent to this host."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            raise BadRequest("expected one Host header")
        name, names = hosts[0].lower(), self.server.names
        port = str(self.server.server_port)
        if names is not None and name not in names | {f"{known}:{port}" for known in names}:
            raise BadRequest(f"this server is not {name[:80]!r}", HTTPStatus.FORBIDDEN)
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{name}":
            raise BadRequest("asked by a page of another site", HTTPStatus.FORBIDDEN)

    def _expect(self, kind: str) -> None:
        """A type that no form of another site can send without being asked for leave first."""
        if self.headers.get_content_type() != kind or "Content-Type" not in self.headers:
            raise BadRequest(f"expected the Content-Type {kind}", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

    def _body(self, most: int) -> bytes:
        """The body of a request, read only where its length is told and bounded."""
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            raise BadRequest("expected one Content-Length and no Transfer-Encoding", HTTPStatus.LENGTH_REQUIRED)
        told = lengths[0].strip()
        if not (told.isascii() and told.isdigit() and len(told) < 20):
            raise BadRequest(f"Content-Length: expected a whole number, got {told[:40]!r}")
        length = int(told)
        if length > most:
            message = f"{length:,} bytes, at most {most:,} are taken"
            raise BadRequest(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        parts, left, until = [], length, time.monotonic() + IDLE
        while left:
            try:
                part = self.rfile.read1(min(left, 2**16))  # pyright: ignore[reportAttributeAccessIssue]
            except OSError as error:
                raise _Gone from error
            if not part or time.monotonic() > until:
                self.close_connection = True
                raise BadRequest(f"the body ended {left:,} bytes short", HTTPStatus.REQUEST_TIMEOUT)
            parts.append(part)
            left -= len(part)
        self.left = False
        return b"".join(parts)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A message as JSON. The connection ends: what is left of the request is not read."""
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
        """Let the client read the answer: closing on unread bytes would throw it away. A little, then no more."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            until = time.monotonic() + 2
            while time.monotonic() < until and self.connection.recv(2**16):
                pass
        except OSError:
            pass

    def handle_expect_100(self) -> bool:
        """As always, but not left in the buffer."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def _address(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError as error:
            raise BadRequest(f"not an address: {error}") from None

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        try:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for each move would bury what matters."""
