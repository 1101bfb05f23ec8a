"""Thousands of requests that no page would send: each has an answer, none of ours is an error, the server goes on."""

from __future__ import annotations

import json
import socket
import struct
from http.client import HTTPConnection, HTTPException

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from serving import cookie_of, known
from test_uploads import npy, png, square
from waiting import PATIENCE

QUESTIONS = ("place", "heat", "path", "item", "find", "look", "complete")
KEYS = ("axes", "at", "anchor", "split", "index", "id", "values", "seed")
FEW, MANY = 150, 8000
"""Examples of each of three tests by default, and in the slow run."""

numbers = st.integers() | st.floats() | st.sampled_from([0, 1, 2, -1, 2**63, 10**400, 1e308, -0.0])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from(["train", "test", "../x"])
values = st.recursive(
    scalars | st.lists(st.sampled_from([0, 1, 255, None]), min_size=64, max_size=64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
near = st.fixed_dictionaries(
    {},
    optional={
        "axes": st.just([0, 1]) | st.lists(numbers, max_size=3) | values,
        "at": st.lists(numbers, min_size=2, max_size=2) | values,
        "of": st.sampled_from(["deviation", "volume"]) | values,
        "ends": st.lists(st.dictionaries(st.sampled_from(["point", "at", "code"]), values, max_size=2), max_size=3),
        "anchor": st.none() | st.lists(numbers, min_size=2, max_size=2) | values,
        "split": st.sampled_from(["train", "validation", "test"]) | values,
        "index": st.integers(-2, 130) | values,
        "id": st.integers(-2, 130).map(str) | values,
        "values": st.lists(st.none() | st.integers(-1, 256) | st.floats(), min_size=63, max_size=65) | values,
        "seed": st.integers(-1, 3) | values,
    },
)
SHAPES = {
    "place": ("axes", "at", "anchor"),
    "heat": ("axes", "anchor", "of"),
    "path": ("axes", "anchor", "ends"),
    "item": ("split", "index"),
    "find": ("id",),
    "look": ("values",),
    "complete": ("values", "seed"),
}
FILES = [npy(square()[None]), npy(square()), png(square()), png(square(), kind="GIF"), png(square(), kind="BMP")]
FILES += [png(square(), "RGB", "JPEG"), b"mass,width\n1,2\n", b"100,100,100,100,100,100\n"]


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
few = settings(max_examples=FEW, deadline=None, suppress_health_check=CHECKS, database=None)
many = settings(few, max_examples=MANY, phases=[Phase.generate])


class Line:
    """A connection that is opened again when the server has closed it."""

    def __init__(self, server) -> None:
        self.server, self.connection = server, None

    def ask(self, path: str, body: bytes, kind: str) -> int:
        for attempt in range(2):
            if self.connection is None:
                self.connection = HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE)
            try:
                headers = {"Content-Type": kind, "Cookie": cookie_of(self.server)}
                self.connection.request("POST", path, body, headers)
                response = self.connection.getresponse()
                found = json.loads(response.read())
            except (OSError, HTTPException):
                self.connection = None
                if attempt:
                    raise
                continue
            if response.status != 200:
                assert isinstance(found["error"], str)
                assert found["error"]
                self.connection.close()
                self.connection = None
            return response.status
        raise AssertionError


@pytest.fixture(scope="module")
def line(image_server):
    return Line(image_server)


@pytest.fixture(scope="module")
def row_line(row_server):
    return Line(row_server)


def _questions(line, question, asked, exact, text):
    if exact and isinstance(asked, dict):
        asked = {key: asked.get(key) for key in SHAPES[question]}
    body = text if text is not None else json.dumps(asked).encode()
    assert line.ask(f"/api/{question}", body, "application/json") in (200, 400, 413)


drawn = given(
    question=st.sampled_from(QUESTIONS),
    asked=near | values,
    exact=st.booleans(),
    text=st.none() | st.none() | st.binary(max_size=60),
)


@st.composite
def damaged(draw):
    """A sound file with some bytes changed, put in, cut out or cut off."""
    content = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        match draw(st.integers(0, 4)):
            case 0:
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                content[at:at] = draw(st.binary(max_size=20))
            case 2:
                del content[at : at + draw(st.integers(1, 30))]
            case 3:
                del content[at:]
            case _:
                content[at : at + 4] = struct.pack(">I", draw(st.integers(0, 2**32 - 1)))
    return bytes(content)


def _uploads(line, row_line, body, row, rows):
    where = row_line if rows else line
    assert where.ask(f"/api/upload?row={row}", body, "application/octet-stream") in (200, 400)


sent = given(body=damaged() | st.binary(max_size=200), row=st.integers(0, 9000), rows=st.booleans())

HEAD = b"POST /api/place HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
pieces = st.sampled_from([b"GET ", b"POST ", b"/", b" HTTP/1.1", b"\r\n", b"\n", b"Host: localhost\r\n", b":", b"\0"])
pieces |= st.sampled_from([b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"])
pieces |= st.sampled_from([b"Content-Type: application/json\r\n", b"/api/place", b"Connection: keep-alive\r\n", HEAD])


def _bytes(image_server, parts):
    with socket.create_connection(("127.0.0.1", image_server.server_port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(known(image_server, b"".join(parts)))
            connection.shutdown(socket.SHUT_WR)
            found = b""
            while part := connection.recv(2**16):
                found += part
        except ConnectionError:
            return
    assert not found or found[:9] == b"HTTP/1.1 "
    assert b"HTTP/1.1 5" not in found


raw = given(parts=st.lists(pieces | st.binary(max_size=40), max_size=12))


@few
@drawn
def test_questions(line, question, asked, exact, text):
    _questions(line, question, asked, exact, text)


@few
@sent
def test_uploads(line, row_line, body, row, rows):
    _uploads(line, row_line, body, row, rows)


@few
@raw
def test_bytes(image_server, parts):
    _bytes(image_server, parts)


@pytest.mark.slow
@many
@drawn
def test_many_questions(line, question, asked, exact, text):
    _questions(line, question, asked, exact, text)


@pytest.mark.slow
@many
@sent
def test_many_uploads(line, row_line, body, row, rows):
    _uploads(line, row_line, body, row, rows)


@pytest.mark.slow
@many
@raw
def test_many_bytes(image_server, parts):
    _bytes(image_server, parts)
