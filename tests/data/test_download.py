from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lapae.data import DataError, data_sets, fetch, load
from lapae.data.download import Download

NAMES = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]


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


@pytest.fixture
def served(mirror, small_mnist, tmp_path, monkeypatch):
    """The small MNIST on the mirror; returns an empty data folder."""
    files = {}
    for name in NAMES:
        content = mirror.files[name] = (small_mnist / "mnist" / name).read_bytes()
        files[name] = (len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(load.__globals__["DOWNLOADS"], "mnist", Download((mirror.url,), files))
    return tmp_path / "fresh"


def test_absent_set_is_downloaded_once(served, mirror):
    assert not next(s for s in data_sets(served) if s.name == "mnist").present
    assert len(load("mnist", data_dir=served).test) == 10
    assert sorted(path.name for path in (served / "mnist").iterdir()) == sorted(NAMES)
    assert len(mirror.requests) == 4
    load("mnist", data_dir=served)
    assert fetch("mnist", served) == served / "mnist"
    assert len(mirror.requests) == 4
    assert next(s for s in data_sets(served) if s.name == "mnist").present


def test_goes_to_the_folder_of_the_variable(served, monkeypatch):
    monkeypatch.setenv("LAPAE_DATA", str(served))
    assert fetch("mnist") == served / "mnist"


def test_broken_connection_is_resumed(served, mirror):
    mirror.break_after = 60
    with pytest.raises(DataError, match=rf"(?s)could not download {NAMES[0]}.*connection ended after 60 of"):
        fetch("mnist", served)
    part = served / "mnist" / f"{NAMES[0]}.part"
    assert part.read_bytes() == mirror.files[NAMES[0]][:60]
    assert not (served / "mnist" / NAMES[0]).exists()
    mirror.break_after = None
    fetch("mnist", served)
    assert (NAMES[0], "bytes=60-") in mirror.requests
    assert not part.exists()
    assert (served / "mnist" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


def test_server_without_ranges_sends_the_whole_file(served, mirror):
    mirror.break_after = 60
    with pytest.raises(DataError, match="could not download"):
        fetch("mnist", served)
    mirror.break_after, mirror.ranges = None, False
    fetch("mnist", served)
    assert (served / "mnist" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


@pytest.mark.parametrize("left", [60, 10**6])
def test_unsound_rest_of_an_earlier_download_is_thrown_away(served, mirror, left):
    (served / "mnist").mkdir(parents=True)
    (served / "mnist" / f"{NAMES[0]}.part").write_bytes(b"x" * left)
    fetch("mnist", served)
    assert (served / "mnist" / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


@pytest.mark.parametrize("longer", [0, 1000])
def test_wrong_checksum(served, mirror, longer):
    mirror.files[NAMES[1]] = bytes(len(mirror.files[NAMES[1]]) + longer)
    with pytest.raises(DataError, match=rf"(?s){NAMES[1]}.*wrong SHA-256"):
        load("mnist", data_dir=served)
    assert [path.name for path in (served / "mnist").iterdir()] == [NAMES[0]]


def test_second_mirror_takes_over(served, mirror, monkeypatch):
    files = load.__globals__["DOWNLOADS"]["mnist"].files
    both = Download((mirror.url + "absent/", mirror.url), files)
    monkeypatch.setitem(load.__globals__["DOWNLOADS"], "mnist", both)
    assert len(load("mnist", data_dir=served).test) == 10


def test_no_network_says_which_files_to_put_where(tmp_path, monkeypatch):
    real = load.__globals__["DOWNLOADS"]["fashion_mnist"].files
    nowhere = Download(("http://127.0.0.1:9/",), real)  # the discard port: nothing listens
    monkeypatch.setitem(load.__globals__["DOWNLOADS"], "fashion_mnist", nowhere)
    with pytest.raises(DataError) as caught:
        load("fashion_mnist", data_dir=tmp_path)
    for name in NAMES:
        assert name in str(caught.value)
    assert f"into {tmp_path / 'fashion_mnist'}" in str(caught.value)


def test_file_that_is_there_is_verified_and_not_overwritten(served, mirror):
    (served / "mnist").mkdir(parents=True)
    (served / "mnist" / NAMES[2]).write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"{NAMES[2]}: its SHA-256 is .*remove the file"):
        fetch("mnist", served)
    assert (served / "mnist" / NAMES[2]).read_bytes() == b"mine"


def test_folder_that_cannot_be_made(served, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        fetch("mnist", tmp_path / "file")
