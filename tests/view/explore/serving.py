"""Explorers of small models, served on a free port."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from narrow import sure
from trained import in_splits
from waiting import PATIENCE

from lapae.cli.new_data import Device, open_model
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, Split
from lapae.fit import fit
from lapae.runs import Run
from lapae.space import Column, Space
from lapae.view.explore.explorer import Explorer, Options
from lapae.view.explore.opening import opening
from lapae.view.explore.routes import Routes
from lapae.view.explore.server import Server
from lapae.view.named_splits import NamedSplits

HOSTILE = "<img src=x onerror=alert(1)>"
QUICK = Options(n_samples=6, points=40, draws=6, side=8)


def images(n: int = 120) -> Data:
    """Bright squares at random places, 8x8, stored as bytes."""
    generator = np.random.default_rng(0)
    x = np.zeros((n, 1, 8, 8), np.uint8)
    for image, (r, c) in zip(x, generator.integers(0, 5, (n, 2)), strict=True):
        image[0, r : r + 4, c : c + 4] = 220
    y = np.arange(n) % 3
    cut = (slice(0, 80), slice(80, 95), slice(95, n))
    space = Space("image", x.shape[1:], scale=255.0, name=HOSTILE, label_names=("a", "b", HOSTILE))
    return in_splits(space, *(Split(x[c], y[c]) for c in cut))


def rows(n: int = 150) -> Data:
    """Rows of six columns on a curve, in units far from 1."""
    generator = np.random.default_rng(0)
    t = generator.uniform(-1, 1, (n, 1))
    x = np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3, 1 - t], 1)
    x = 100 + 10 * (x + 0.05 * generator.standard_normal(x.shape))
    cut = (slice(0, 100), slice(100, 120), slice(120, n))
    columns = tuple(map(Column, ("mass", "width", HOSTILE, "d", "e", "f")))
    space = Space.of(x[:100], columns=columns, name="curve")
    return in_splits(space, *(Split(x[c], None) for c in cut))


def explorer(
    data: Data, folder, method: str = "online", latent_dim: int = 2, *, with_data: bool = True, **options: Any
) -> Explorer:
    """A trained model of `data`, opened as the command opens it."""
    config = Config(
        model=ModelConfig(hidden=(16,), latent_dim=latent_dim, linear=False, **options),
        method=MethodConfig.taking(method, members=2),
        train=TrainConfig(epochs=3, verbose=False, device="cpu"),
    )
    run = Run.create(folder / "run")
    fit(config, data, run=run)
    model = open_model(run.path, Device("cpu"))
    return Explorer(model, NamedSplits.of(data) if with_data else NamedSplits(), QUICK)


@contextmanager
def served(made: Explorer, host: str = "127.0.0.1", name: str = HOSTILE, **about_options: Any) -> Iterator[Server]:
    """A server in a thread."""
    server = Server(Routes(made, opening(made, name, **about_options)), host, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.routes.close()
        thread.join(5)


def cookie_of(server: Server) -> str:
    """What a browser shows that has opened the page."""
    return "=".join(sure(server.cookie))


def known(server: Server, content: bytes) -> bytes:
    """The bytes of requests of such a browser."""
    host = b"Host: localhost\r\n"
    return content.replace(host, host + f"Cookie: {cookie_of(server)}\r\n".encode())


class Client:
    """Requests to a server, each on a connection of its own unless kept."""

    def __init__(self, server: Server, *, known: bool = True) -> None:
        """`known`: it shows the cookie of one that has opened the page."""
        self.server = server
        self.known = {"Cookie": cookie_of(server)} if known and server.cookie is not None else {}

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and content, parsed where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, self.known | (headers or {}))
            response = connection.getresponse()
            content = response.read()
            self.headers = response.headers
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(content) if is_json and content else content
        finally:
            connection.close()

    def ask(self, question: str, body: Any) -> tuple[int, Any]:
        """A question of the page's."""
        text = body if isinstance(body, bytes | str) else json.dumps(body)
        return self.send("POST", f"/api/{question}", text, {"Content-Type": "application/json"})

    def upload(self, body: bytes, row: Any = 0) -> tuple[int, Any]:
        """A file."""
        return self.send("POST", f"/api/upload?row={row}", body, {"Content-Type": "application/octet-stream"})
