from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from lapae.data import DataError, data_sets, fetch, load
from lapae.data.download import Download
from lapae.data.named import DATASETS, NamedSet
from lapae.data.source import Records
from lapae.registry import Entry

NAMES = ["a.bin", "b.bin", "c.bin", "d.bin"]


def read(folder):
    """Forty images to train on and ten to test, of 4x5 pixels."""
    pixels = b"".join((folder / name).read_bytes() for name in NAMES)
    x = np.frombuffer(pixels, np.uint8).reshape(50, 1, 4, 5)
    return Records(name="letters", x=x, partition=np.repeat([0, 2], [40, 10]))


class Mirror(ThreadingHTTPServer):
    """Serves files from memory, with ranges; can break off, ignore ranges, or send something else."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.break_after: int | None = None
        self.ranges = True
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((name, wanted))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.break_after])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror():
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def register(monkeypatch, download):
    monkeypatch.setitem(DATASETS, "letters", Entry("fifty letters", NamedSet(read, download)))


@pytest.fixture
def served(mirror, tmp_path, monkeypatch):
    """A data set on the mirror; returns an empty data folder."""
    files = {}
    for seed, name in enumerate(NAMES):
        content = mirror.files[name] = np.random.default_rng(seed).bytes(250)
        files[name] = (len(content), hashlib.sha256(content).hexdigest())
    register(monkeypatch, Download((mirror.url,), files))
    return tmp_path / "fresh"


def test_absent_set_is_downloaded_once(served, mirror):
    assert not next(s for s in data_sets(served) if s.name == "letters").present
    assert len(load("letters", data_dir=served).test) == 10
    assert sorted(path.name for path in (served / "letters").iterdir()) == sorted(NAMES)
    assert len(mirror.requests) == 4
    load("letters", data_dir=served)
    assert fetch("letters", served) == served / "letters"
    assert len(mirror.requests) == 4
    assert next(s for s in data_sets(served) if s.name == "letters").present


def test_goes_to_the_folder_of_the_variable(served, monkeypatch):
    monkeypatch.setenv("LAPAE_DATA", str(served))
    assert fetch("letters") == served / "letters"


def test_broken_connection_is_resumed(served, mirror):
    mirror.break_after = 60
    with pytest.raises(DataError, match=rf"(?s)could not download {NAMES[0]}.*connection ended after 60 of"):
        fetch("letters", served)
    part = served / "letters" / f"{NAMES[0]}.part"
    assert part.read_bytes() == mirror.files[NAMES[0]][:60]
    assert not (served / "letters" / NAMES[0]).exists()
    mirror.break_after = None
    fetch("letters", served)
    assert (NAMES[0], "bytes=60-") in mirror.requests
    assert not part.exists()
    assert (served / "letters" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


def test_server_without_ranges_sends_the_whole_file(served, mirror):
    mirror.break_after = 60
    with pytest.raises(DataError, match="could not download"):
        fetch("letters", served)
    mirror.break_after, mirror.ranges = None, False
    fetch("letters", served)
    assert (served / "letters" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


@pytest.mark.parametrize("left", [60, 10**6])
def test_unsound_rest_of_an_earlier_download_is_thrown_away(served, mirror, left):
    (served / "letters").mkdir(parents=True)
    (served / "letters" / f"{NAMES[0]}.part").write_bytes(b"x" * left)
    fetch("letters", served)
    assert (served / "letters" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


@pytest.mark.parametrize("longer", [0, 1000])
def test_wrong_checksum(served, mirror, longer):
    mirror.files[NAMES[1]] = bytes(len(mirror.files[NAMES[1]]) + longer)
    with pytest.raises(DataError, match=rf"(?s){NAMES[1]}.*wrong SHA-256"):
        load("letters", data_dir=served)
    assert [path.name for path in (served / "letters").iterdir()] == [NAMES[0]]


def test_second_mirror_takes_over(served, mirror, monkeypatch):
    files = DATASETS["letters"].load().download.files
    register(monkeypatch, Download((mirror.url + "absent/", mirror.url), files))
    assert len(load("letters", data_dir=served).test) == 10


def test_no_network_says_which_files_to_put_where(tmp_path, monkeypatch):
    files: dict[str, tuple[int, str]] = dict.fromkeys(NAMES, (250, "0" * 64))
    register(monkeypatch, Download(("http://127.0.0.1:9/",), files))  # the discard port: nothing listens
    with pytest.raises(DataError) as caught:
        load("letters", data_dir=tmp_path)
    for name in NAMES:
        assert name in str(caught.value)
    assert f"into {tmp_path / 'letters'}" in str(caught.value)


def test_file_that_is_there_is_verified_and_not_overwritten(served, mirror):
    (served / "letters").mkdir(parents=True)
    (served / "letters" / NAMES[2]).write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"{NAMES[2]}: its SHA-256 is .*remove the file"):
        fetch("letters", served)
    assert (served / "letters" / NAMES[2]).read_bytes() == b"mine"


def test_folder_that_cannot_be_made(served, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        fetch("letters", tmp_path / "file")
