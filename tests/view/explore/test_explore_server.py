"""The server over a real socket: what it answers, what it refuses, and that nothing ends it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from narrow import sure
from serving import Client, cookie_of, known, rows, served
from waiting import PATIENCE, until

from lapae.cli import main
from lapae.cli.explore import ExploreCommand, load, prepare
from lapae.cli.new_data import Device, open_model
from lapae.errors import ConfigError
from lapae.view.explore.handler import Handler, UntilDeadline
from lapae.view.explore.opening import opening
from lapae.view.explore.routes import Routes
from lapae.view.explore.serve import serve
from lapae.view.explore.server import MOST_CONNECTIONS, Server, is_loopback
from lapae.view.sizes import Sizes

JSON = {"Content-Type": "application/json"}
HEAD = b"POST /api/place HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PLACE = {"axes": [0, 1], "at": [0.1, 0.2], "anchor": None}
HEAT = {"axes": [0, 1], "anchor": None, "of": "deviation"}
PATH = {"axes": [0, 1], "anchor": None, "ends": [{"point": 0}, {"point": 1}]}


def raw(server: Server, content: bytes, *, close: bool = True) -> bytes:
    """Everything that a server says to some bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as connection:
        connection.sendall(known(server, content))
        if close:
            connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(2**16):
            found += part
        return found


def test_the_page_and_its_files(client):
    status, page = client.send("GET", "/")
    assert status == 200
    assert b"<script>" not in page  # no script but files of this server
    headers = client.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in re.findall(rb'(?:src|href)="([^"]+)"', page):
        if not name.startswith(b"data:"):
            assert client.send("GET", f"/{name.decode()}")[0] == 200
    assert client.send("GET", "/api/opening")[1]["data"] == "<img src=x onerror=alert(1)>"


def test_the_report_of_the_run_is_served_in_a_sandbox(client, of_images, tmp_path, monkeypatch):
    """Its scripts are inside it, so that it must not be able to ask this server, and its links lead here."""
    status, found = client.send("GET", "/report")
    assert (status, found["error"]) == (404, "this run has no report: write one with lapae report")
    assert not client.send("GET", "/api/opening")[1]["report"]
    monkeypatch.setattr(of_images, "model", replace(of_images.model, path=tmp_path))
    link = '<a class="id" target="lapae-explorer" href="http://127.0.0.1:8765/#test/3/digits">'
    (tmp_path / "report.html").write_text(link)
    assert opening(of_images, "digits")["report"]
    status, page = client.send("GET", "/report")
    assert (status, page) == (200, b'<a class="id" href="./#test/3/digits">')
    policy = client.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "connect-src" not in policy
    assert "allow-same-origin" not in policy
    assert client.headers["X-Content-Type-Options"] == "nosniff"
    assert client.send("GET", "/report", headers={"Host": "elsewhere.example"})[0] == 403
    assert client.send("GET", "/report", headers={"Origin": "null"})[0] == 403
    (tmp_path / "elsewhere.html").write_text("secret")
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").symlink_to(tmp_path / "elsewhere.html")
    assert client.send("GET", "/report")[0] == 404


def test_questions(client):
    status, found = client.ask("place", PLACE)
    assert status == 200
    assert set(found) == {"mean", "deviation", "total", "z"}
    for of in ("deviation", "volume"):
        status, heat = client.ask("heat", HEAT | {"axes": [1, 0], "of": of})
        assert (status, len(heat["heat"]), heat["side"]) == (200, 64, 8)
    for end in ({"point": 3}, {"at": [0.5, 0]}, {"code": [0.5, 0]}):
        status, path = client.ask("path", PATH | {"ends": [{"point": 0}, end]})
        assert (status, len(path["at"]), len(path["samples"])) == (200, 50, 7)
    status, item = client.ask("item", {"split": "validation", "index": 14})
    assert status == 200
    assert client.ask("look", {"values": item["values"]})[1]["code"] == item["code"]
    assert client.ask("find", {"id": " 5 "})[1]["index"] == 5
    hidden = [None if i < 32 else value for i, value in enumerate(item["values"])]
    assert len(client.ask("complete", {"values": hidden, "seed": 999})[1]["samples"]) == 6


@pytest.mark.parametrize(
    ("question", "body", "complaint"),
    [
        ("place", b"", "not JSON"),
        ("place", b"{", "not JSON"),
        ("place", b"\xff\xfe", "not JSON"),
        ("place", b"[" * 5000, "not JSON"),
        ("place", b'{"axes": [0, 1], "at": [NaN, 0], "anchor": null}', "NaN is not JSON"),
        ("place", [1], "expected a JSON object, got a list"),
        ("place", {}, "expected the keys anchor, at, axes, got none"),
        ("place", PLACE | {"more": 1}, "got anchor, at, axes, more"),
        ("place", PLACE | {"axes": [0, 0]}, "two different"),
        ("place", PLACE | {"axes": [0, 2]}, "from 0 to 1, got 2"),
        ("place", PLACE | {"axes": [True, 0]}, "got true"),
        ("place", PLACE | {"axes": "01"}, "expected a list of 2, got a text"),
        ("place", PLACE | {"at": [1e300, 0]}, "from -1e+06 to 1e+06"),
        ("place", b'{"axes": [0, 1], "at": [1e999, 0], "anchor": null}', "from -1e+06"),
        ("place", b'{"axes": [0, 1], "at": [1' + b"0" * 400 + b', 0], "anchor": null}', "from -1e+06"),
        ("place", PLACE | {"at": ["0", 0]}, "expected a number, got '0'"),
        ("place", PLACE | {"anchor": [0]}, "expected a list of 2, got a list of 1"),
        ("heat", HEAT | {"anchor": "x"}, "got a text"),
        ("heat", HEAT | {"of": "heat"}, "of: expected one of deviation, volume, got 'heat'"),
        ("heat", HEAT | {"of": ["volume"]}, "of: expected one of"),
        ("path", PATH | {"ends": [{"point": 0}]}, "expected a list of 2, got a list of 1"),
        ("path", PATH | {"ends": [0, 1]}, "expected an object of one key, point, at or code, got a number"),
        ("path", PATH | {"ends": [{"point": 0}, {"at": [0, 0], "code": [0, 0]}]}, "got an object of 2"),
        ("path", PATH | {"ends": [{"point": 0}, {"dot": 1}]}, "expected one of point, at, code, got 'dot'"),
        ("path", PATH | {"ends": [{"point": 0}, {"point": 40}]}, "from 0 to 39, got 40"),
        ("path", PATH | {"ends": [{"point": 0}, {"point": True}]}, "got true"),
        ("path", PATH | {"ends": [{"at": [1e9, 0]}, {"point": 1}]}, "from -1e+06 to 1e+06"),
        ("path", PATH | {"ends": [{"code": [0]}, {"point": 1}]}, "expected a list of 2, got a list of 1"),
        ("item", {"split": "../../etc/passwd", "index": 0}, "expected one of train, validation, test"),
        ("item", {"split": ["train"], "index": 0}, "expected one of"),
        ("item", {"split": "test", "index": 25}, "from 0 to 24, got 25"),
        ("item", {"split": "test", "index": -1}, "got -1"),
        ("item", {"split": "test", "index": 1.0}, "got 1.0"),
        ("find", {"id": "1000000"}, "there is no sample '1000000'"),
        ("find", {"id": "../x" * 9999}, "there is no sample '../x"),
        ("find", {"id": 3}, "expected a text, got a number"),
        ("look", {"values": [0] * 63}, "expected a list of 64, got a list of 63"),
        ("look", {"values": [[0]] * 64}, "expected a number"),
        ("look", {"values": [256] * 64}, "expected numbers from 0 to 255, got 256 to 256"),
        ("look", {"values": [-1] + [0] * 63}, "got -1 to 0"),
        ("complete", {"values": [0] * 64, "seed": 0}, "nothing is missing"),
        ("complete", {"values": [None] * 64, "seed": 1000}, "from 0 to 999"),
    ],
)
def test_bad_questions_have_a_clear_answer(client, question, body, complaint):
    status, found = client.ask(question, body)
    assert status == 400
    assert complaint in found["error"]
    assert len(found["error"]) < 400
    assert client.ask("place", PLACE)[0] == 200


def test_values_far_away_and_empty_rows(row_client):
    assert row_client.ask("look", {"values": [1e300] + [100] * 5})[0] == 400
    status, found = row_client.ask("look", {"values": [1e12] + [100] * 5})
    assert status == 400
    assert "1,000,000 standard deviations away" in found["error"]
    status, found = row_client.ask("look", {"values": [None] * 6})
    assert status == 200
    json.dumps(found, allow_nan=False)
    assert row_client.ask("complete", {"values": [None] * 6, "seed": 0})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/server.py", 404),
        ("GET", "/page.py", 404),
        ("GET", "/api/place", 404),
        ("POST", "/", 404),
        ("POST", "/api/close", 404),
        ("POST", "/api/__class__", 404),
        ("HEAD", "/", 405),
        ("PUT", "/", 405),
        ("OPTIONS", "/api/place", 405),
        ("NONSENSE", "/", 405),
    ],
)
def test_other_paths_and_methods(client, method, path, status):
    assert client.send(method, path, b"{}" if method == "POST" else None, JSON)[0] == status


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost:1", ""])
def test_a_name_bent_to_this_host_is_refused(client, host):
    assert client.send("GET", "/api/opening", headers={"Host": host})[0] == 403
    assert client.send("POST", "/api/place", json.dumps(PLACE), {**JSON, "Host": host})[0] == 403


def test_pages_of_other_sites_are_refused(client):
    port = client.server.server_port
    body = json.dumps(PLACE)
    for origin in ("http://evil.example", "null", f"http://localhost:{port}", f"https://127.0.0.1:{port}"):
        assert client.send("POST", "/api/place", body, {**JSON, "Origin": origin})[0] == 403
    assert client.send("POST", "/api/place", body, {**JSON, "Origin": f"http://127.0.0.1:{port}"})[0] == 200
    assert client.send("GET", "/", headers={"Host": f"LOCALHOST:{port}"})[0] == 200
    # what a form of another site can send without asking for leave
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert client.send("POST", "/api/place", body, {"Content-Type": kind})[0] == 415
        assert client.send("POST", "/api/upload", b"x", {"Content-Type": kind})[0] == 415
    assert client.send("POST", "/api/place", body, {})[0] == 415


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET / HTTP/x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_what_is_no_request_is_refused_and_the_server_goes_on(client, request_, status):
    found = raw(client.server, request_)
    if status:
        assert found.startswith(b"HTTP/1.1 " + status)
        assert b'{"error": ' in found
    else:
        assert not found.startswith(b"HTTP/1.1 5")
    assert client.send("GET", "/")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", b"411"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", b"411"),
        (b"Transfer-Encoding: chunked\r\n", b"411"),
        (b"Content-Length: -1\r\n", b"400"),
        (b"Content-Length: 0x10\r\n", b"400"),
        (b"Content-Length: \xc2\xb2\r\n", b"400"),
        (b"Content-Length: 99999999999999999999999\r\n", b"400"),
        (b"Content-Length: 999999999\r\n", b"413"),
        (b"Content-Length: 10\r\n", b"408"),
    ],
)
def test_bodies_are_told_and_bounded(client, headers, status):
    assert raw(client.server, HEAD + headers + b"\r\n{}").startswith(b"HTTP/1.1 " + status)
    assert client.ask("place", PLACE)[0] == 200


def test_a_large_body_is_refused_with_a_message_that_arrives(client):
    status, found = client.upload(b"\0" * (9 * 2**20))
    assert status == 413
    assert found["error"] == "9,437,184 bytes: expected at most 8,388,608"
    assert client.ask("look", b" " * 10**6)[0] == 413


def test_many_questions_on_one_connection(client):
    connection = HTTPConnection("127.0.0.1", client.server.server_port, timeout=PATIENCE)
    for _ in range(5):
        connection.request("POST", "/api/place", json.dumps(PLACE), JSON | client.known)
        response = connection.getresponse()
        assert response.status == 200
        json.loads(response.read())
    connection.close()


def test_many_clients_get_the_same_answers(client):
    alone = [client.ask("place", PLACE | {"at": [i / 10, 0]})[1] for i in range(6)]
    wrong = []

    def work(i: int) -> None:
        for _ in range(4):
            if Client(client.server).ask("place", PLACE | {"at": [i / 10, 0]}) != (200, alone[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def waits(server: Server, connection: socket.socket) -> bool:
    """Whether the server knows that it waits for this client."""
    for theirs, since in [*server.waiting.items()]:
        with contextlib.suppress(OSError):  # one that is just closed
            if theirs.getpeername() == connection.getsockname():
                return since is not None
    return False


def test_the_longest_idle_makes_room(of_images):
    with served(of_images) as server:
        address = ("127.0.0.1", server.server_port)
        held = [socket.create_connection(address, timeout=PATIENCE) for _ in range(MOST_CONNECTIONS)]
        for connection in held:  # one after the other: the first waits longest
            connection.sendall(known(server, b"GET /api/opening HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            assert connection.recv(12) == b"HTTP/1.1 200"
        held[0].sendall(b"GET /")  # a byte now and then does not keep it
        for i in range(3):
            assert Client(server).send("GET", "/")[0] == 200
            assert not waits(server, held[0])
            assert all(waits(server, connection) for connection in held[i + 1 :])
        held[-1].sendall(known(server, b"GET /shared.css HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        while b"heat" not in held[-1].recv(2**16):
            pass
        while held[0].recv(2**16):  # the rest of its answer, then the end
            pass
        for connection in held:
            connection.close()


def test_where_all_are_being_answered_a_new_one_is_sent_away(of_images, monkeypatch):
    go_on = threading.Event()

    def slow(*arguments):
        go_on.wait(PATIENCE)
        return {}

    monkeypatch.setattr("lapae.view.explore.server.MOST_CONNECTIONS", 2)
    monkeypatch.setattr(of_images, "place", slow)
    with served(of_images) as server:
        threads = [threading.Thread(target=Client(server).ask, args=("place", PLACE)) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: [*server.waiting.values()] == [None, None], "both are being answered")
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as late:
            assert late.recv(100).startswith(b"HTTP/1.1 503")
        go_on.set()
        for thread in threads:
            thread.join()
        assert Client(server).send("GET", "/")[0] == 200


@pytest.mark.parametrize(
    "start", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\n", HEAD + b"Content-Length: 90\r\n\r\n"]
)
def test_a_slow_client_is_let_go_at_its_deadline(of_images, monkeypatch, start):
    monkeypatch.setattr(Handler, "idle", 0.3)
    monkeypatch.setattr(Handler, "deadline", 0.5)
    with (
        served(of_images) as server,
        socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as slow,
    ):
        slow.sendall(start)
        slow.settimeout(0.1)

        def let_go() -> bool:
            try:
                return slow.recv(1) == b""
            except TimeoutError:
                if start:
                    slow.sendall(b"x")  # a byte every now and then, for as long as it is listened to
                return False

        with contextlib.suppress(ConnectionError):
            until(let_go, "the slow client is let go")


def test_bytes_that_wait_do_not_put_a_deadline_off():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = UntilDeadline(ours)
        theirs.sendall(b"two bytes")
        reader.until = time.monotonic() + PATIENCE
        assert reader.read(3) == b"two"
        assert 0 < sure(ours.gettimeout()) <= PATIENCE
        reader.until = time.monotonic()
        with pytest.raises(TimeoutError):
            reader.read(3)


def test_the_body_of_a_get_is_not_a_second_request(client):
    inner = b"GET /shared.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(inner)
    for headers in (length, b"Content-Length: 0\r\n" + length, b"Transfer-Encoding: chunked\r\n"):
        found = raw(client.server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + inner)
        assert found.startswith(b"HTTP/1.1 400")
        assert found.count(b"HTTP/1.1") == 1


def test_every_origin_is_looked_at(client):
    own = b"Origin: http://localhost\r\n"
    for origins, status in ((own, b"200"), (own * 2, b"200"), (own + b"Origin: http://evil.example\r\n", b"403")):
        found = raw(client.server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + origins + b"\r\n")
        assert found.startswith(b"HTTP/1.1 " + status)


def test_an_error_of_ours_is_answered_and_does_not_end_the_server(of_images, monkeypatch, capsys):
    monkeypatch.setattr(of_images, "place", lambda *arguments: 1 / 0)
    with served(of_images) as server:
        status, found = Client(server).ask("place", PLACE)
        assert (status, found["error"]) == (500, "an error in the explorer: its terminal has the details")
        assert Client(server).ask("heat", HEAT)[0] == 200
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_only_who_has_the_address_is_answered(of_images):
    """Every user of the machine can reach a loopback address."""
    asked = [("GET", name, None) for name in ("", "explore.js", "shared.css", "report", "api/opening", "nothing")]
    asked += [
        ("POST", f"api/{name}", b"{}")
        for name in ("place", "heat", "path", "item", "find", "look", "complete", "upload")
    ]
    with served(of_images) as server, served(of_images) as other:
        stranger, path = Client(server, known=False), f"/{server.token}/"
        assert server.url == f"http://127.0.0.1:{server.server_port}{path}"
        assert len(server.token) >= 22
        name, value = sure(server.cookie)
        wrong = ["", f"{name}=", f"{name}={value[:-1]}", f"{name}={value}x", f"{name}={server.token}", cookie_of(other)]
        wrong += [f"{name}2={value}", value, f"x{name}={value}", f"{name}={value}=", "é=1", ";;", "=" * 9999]
        for method, question, body in asked:
            for prefix in ("", server.token[:-1], f"{server.token}x", other.token, value):
                status, found = stranger.send(method, f"/{prefix}/{question}" if prefix else f"/{question}", body, JSON)
                assert (status, found) == (
                    403,
                    {"error": "this address lacks its token: open the one that lapae explore printed"},
                )
                assert "Set-Cookie" not in stranger.headers
        for cookie in wrong:
            assert stranger.send("GET", "/api/opening", headers={"Cookie": cookie.encode().decode("latin-1")})[0] == 403
        assert stranger.send("GET", f"{path}api/opening")[0] == 200
        assert stranger.send("POST", f"{path}api/place", json.dumps(PLACE), JSON)[0] == 200
        assert "Set-Cookie" not in stranger.headers
        assert stranger.send("GET", path)[0] == 200
        assert stranger.headers["Set-Cookie"] == f"{cookie_of(server)}; HttpOnly; SameSite=Lax; Path=/"
        for cookie in (cookie_of(server), f"a=b; {cookie_of(server)}", f"{cookie_of(server)};c=d"):
            assert stranger.send("GET", "/", headers={"Cookie": cookie})[0] == 200
            assert stranger.send("GET", "/api/opening", headers={"Cookie": cookie, "Host": "evil.example"})[0] == 403
        foreign = {"Cookie": cookie_of(server), "Origin": "http://evil.example"}
        assert stranger.send("POST", "/api/place", json.dumps(PLACE), JSON | foreign)[0] == 403
        assert server.token not in json.dumps(server.routes.opening)


def test_the_browser_is_started_without_the_token(of_images, monkeypatch, capsys):
    """All users can see what programs are started with."""
    found = {}

    def look(address: str) -> None:
        page = Path(url2pathname(urlsplit(address).path))
        found.update(address=address, content=page.read_text(), modes=(page.parent.stat().st_mode & 0o77, page))

    class Now(threading.Thread):
        start = threading.Thread.run

    server = Server(Routes(of_images, opening(of_images, "digits")), "127.0.0.1", 0)
    monkeypatch.setattr("lapae.view.explore.serve.webbrowser.open", look)
    monkeypatch.setattr("lapae.view.explore.serve.threading.Thread", Now)
    monkeypatch.setattr(server, "serve_forever", lambda: None)
    serve(server)
    assert server.url in capsys.readouterr().out
    assert server.token not in found["address"]
    assert f"url={server.url}" in found["content"]
    assert found["modes"][0] == 0
    assert not found["modes"][1].exists()


def test_other_hosts(of_images, client):
    assert is_loopback("localhost")
    assert is_loopback("127.3.2.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.com")
    with served(of_images, "0.0.0.0") as server:
        assert server.cookie is None
        there = {"Host": "my-machine:1"}
        path = f"/{server.token}/"
        assert server.url == f"http://127.0.0.1:{server.server_port}{path}"
        for wrong in ("/", "/api/opening", "//", f"/{server.token[:-1]}/", f"/{server.token}x/", "/%00/"):
            assert Client(server).send("GET", wrong, headers=there)[0] == 403
            assert Client(server).send("GET", wrong)[0] == 403
        assert Client(server).send("POST", "/api/place", json.dumps(PLACE), {**JSON, **there})[0] == 403
        assert Client(server).send("POST", f"{path}api/place", json.dumps(PLACE), {**JSON, **there})[0] == 200
        assert Client(server).send("GET", path, headers=there)[0] == 200
        assert Client(server).send("GET", path, headers={**there, "Origin": "http://evil.example"})[0] == 403
    with pytest.raises(ConfigError, match=r"in use.*choose another with --port, or any free one with --port 0"):
        Server(client.server.routes, "127.0.0.1", client.server.server_port)
    with pytest.raises(ConfigError, match="port = 70000: expected a number from 0 to 65535"):
        Server(client.server.routes, "127.0.0.1", 70000)


def test_the_command_serves_until_ctrl_c(tmp_path, capsys):
    run = tmp_path / "run"
    quick = ["--epochs", "1", "--hidden", "8", "--limit", "60", "--no-verbose", "--device", "cpu"]
    assert main(["train", "digits", *quick, "--out", str(run)]) == 0
    with subprocess.Popen(
        [sys.executable, "-m", "lapae", "explore", str(run), "--port", "0", "--no-open", "--n-samples", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = sure(re.search(r"http://127\.0\.0\.1:(\d+)(/[\w-]{22}/) \(Ctrl-C ends\)", line))
        port = int(found.group(1))
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", f"{found.group(2)}api/opening")
        assert json.loads(connection.getresponse().read())["splits"]["train"] == 60
        # a second one at the same port says so in a line
        assert main(["explore", str(run), "--port", str(port), "--no-open", "--n-samples", "2"]) == 2
        process.send_signal(signal.SIGINT)  # while a connection is open
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert errors == "\nended\n"
    assert "cannot listen at 127.0.0.1" in capsys.readouterr().err
    assert main(["explore", str(run), "--points", "0"]) == 2


@pytest.fixture(scope="module")
def estimator_run(tmp_path_factory):
    from lapae import LaplacianAutoencoder

    folder = tmp_path_factory.mktemp("estimator")
    x = rows().train.x
    np.save(folder / "x.npy", x)
    LaplacianAutoencoder(latent_dim=2, epochs=2).fit(x).save(folder / "run")
    return folder


def test_a_run_of_the_estimator_has_no_data_of_its_own(estimator_run):
    model = open_model(estimator_run / "run", Device("cpu"))
    _, splits, reason = load(model, None, None)
    assert splits.parts == {}
    assert "a run of the estimator" in sure(reason)
    assert "--data" in sure(reason)
    gone = replace(model, path=None, config=replace(model.config, data=replace(model.config.data, source="gone.csv")))
    assert "cannot be loaded (gone.csv: no such file" in sure(load(gone, None, None)[2])
    other = replace(gone, config=replace(model.config, data=replace(model.config.data, source="digits")))
    assert "shape (1, 8, 8), the model takes (6,)" in sure(load(other, None, None)[2])


def test_every_command_opens_it_with_data(estimator_run, capsys):
    run, file = str(estimator_run / "run"), str(estimator_run / "x.npy")
    server = prepare(ExploreCommand(Path(run), Path(file), port=0, open=False, sizes=Sizes(points=20)))
    assert server.routes.opening["splits"] == {"given": 100}
    server.server_close()
    server.routes.close()
    assert main(["report", run]) == 2
    assert "use --data" in capsys.readouterr().err
    assert main(["report", run, "--data", file, "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["report"]).read_text("utf-8")
    assert "100 given samples" in page
    assert main(["eval", "coverage", run, "--data", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_data"] == 100


def test_the_estimator_reports_and_explores(estimator_run, tmp_path, monkeypatch):
    from lapae import LaplacianAutoencoder

    model = LaplacianAutoencoder.load(estimator_run / "run")
    x = np.load(estimator_run / "x.npy")
    y = np.where(x[:, 0] > 100, "<b>high", "low")
    page = model.report(x, y, path=tmp_path / "page.html").read_text("utf-8")
    assert "<b>high" not in page
    assert "row " in page
    served = []
    monkeypatch.setattr("lapae.view.explore.serve.serve", lambda server, open: served.append((server, open)))
    model.explore(x, y, port=0, open=False)
    model.explore(port=0)
    (first, opened), (second, _) = served
    assert not opened
    assert first.routes.opening["labelings"][0]["names"] == ["<b>high", "low"]
    assert second.routes.opening["no_data"] == "none were given"
    for server, _ in served:
        server.server_close()
        server.routes.close()
    with pytest.raises(ValueError, match="y has 3 labels for 100 samples"):
        model.report(x, y[:3], path=tmp_path / "other.html")
