"""Explorers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Client, explorer, images, rows, served

from lapae.view.explore.explorer import Explorer
from lapae.view.explore.server import Server


@pytest.fixture(scope="session")
def of_images(tmp_path_factory) -> Explorer:
    return explorer(images(), tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def of_rows(tmp_path_factory) -> Explorer:
    return explorer(rows(), tmp_path_factory.mktemp("rows"), latent_dim=3)


@pytest.fixture(scope="session")
def image_server(of_images) -> Iterator[Server]:
    with served(of_images) as server:
        yield server


@pytest.fixture(scope="session")
def row_server(of_rows) -> Iterator[Server]:
    with served(of_rows) as server:
        yield server


@pytest.fixture
def client(image_server) -> Client:
    return Client(image_server)


@pytest.fixture
def row_client(row_server) -> Client:
    return Client(row_server)
