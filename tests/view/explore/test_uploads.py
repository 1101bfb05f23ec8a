"""Files that are dropped on the page: those that fit are looked at, all others are refused with a reason."""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image


def png(array: np.ndarray, mode: str | None = None, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(file, kind)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def square() -> np.ndarray:
    image = np.zeros((8, 8), np.uint8)
    image[2:6, 2:6] = 220
    return image


@pytest.mark.parametrize(
    "body",
    [
        png(square()),
        png(square(), "RGB"),
        png(square(), kind="BMP"),
        png(square(), kind="TIFF"),
        png(square(), kind="PPM"),
        npy(square()),
        npy(square()[None]),
        npy(square()[..., None]),
        npy(square()[None, None].astype(float)),
        npy(square()[None].repeat(3, 0)),
        b"P2\n8 8\n255\n" + b" ".join(str(v).encode() for v in square().reshape(-1)),
    ],
    ids=lambda body: "",
)
def test_images(client, body):
    status, found = client.upload(body)
    assert status == 200
    assert float(found["unusual"]["p"]) > 0
    assert found["values"] == square().reshape(-1).tolist()


def test_what_was_done_to_an_image_is_said(client):
    large = np.kron(square(), np.ones((4, 4), np.uint8))
    found = client.upload(png(large, "RGB"))[1]
    assert found["note"] == "scaled from 32x32 to 8x8 pixels, turned gray"
    assert client.upload(png(square()))[1]["note"] == ""


def test_transparent_pixels_are_missing(client):
    image = np.full((8, 8, 4), 255, np.uint8)
    image[:4, :, 3] = 0
    found = client.upload(png(image))[1]
    assert found["values"][:32] == [None] * 32
    assert found["values"][32:] == [255.0] * 32
    assert float(found["unusual"]["p"]) > 0


def test_rows(row_client):
    line = "99,101,100,102,98,100"
    for body, expected in (
        (line, 99),
        (f"{line}\n", 99),
        ("f,e,d,<img src=x onerror=alert(1)>,width,mass\n6,5,4,3,2,100\n", 100),
        ("id,mass,width,<img src=x onerror=alert(1)>,d,e,f,more\n7,98,2,3,4,5,6,x\n", 98),
    ):
        status, found = row_client.upload(body.encode())
        assert status == 200, found
        assert found["values"][0] == expected
    assert row_client.upload(b"100,,nan,100,100,100")[1]["values"][1:3] == [None, None]
    table = "\n".join(f"{i},1,2,3,4,5" for i in range(90, 100))
    found = row_client.upload(table.encode(), 7)[1]
    assert (found["row"], found["n"], found["values"][0]) == (7, 10, 97)
    assert "row 10: the file has 10 samples" in row_client.upload(table.encode(), 10)[1]["error"]
    many = ("100,100,100,100,100,100\n" * 10_000).encode()
    assert row_client.upload(many)[1]["n"] == 8192
    assert row_client.upload(npy(np.full(6, 100.0)))[1]["values"] == [100.0] * 6
    assert row_client.upload(npy(np.full((2, 6), 100.0)), 1)[0] == 200


@pytest.mark.parametrize("row", ["-1", "x", "1.5", "", "9999999", "%00", "٣"])
def test_bad_row_numbers(row_client, row):
    from urllib.parse import quote

    status, _ = row_client.upload(b"1,2,3,4,5,6\n", quote(row, safe="%"))
    assert status == (400 if row else 200)


def bomb(side: int) -> bytes:
    """A small .png file of side x side pixels, all black."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * ((side + 1) * min(side, 2000)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", b"\0" * 10**6)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "the file is empty"),
        (b"hello", "a table of rows, the model takes data of shape (1, 8, 8)"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read as an image"),
        (png(square())[:60], "cannot be read as an image"),
        (bomb(20_000), "could be decompression bomb"),
        (bomb(5_000), "5000x5000 pixels: expected at most 16,777,216"),
        (archive(), "an archive"),
        (npy(np.zeros((3, 5))), "data of shape (5,), the model takes data of shape (1, 8, 8)"),
        (npy(np.array([{}])), "expected numbers"),
        (npy(square())[:-3], "the header claims 64 bytes"),
        (npy(np.full((1, 8, 8), 300.0)), "floats from 300 to 300"),
        (npy(np.full((1, 8, 8), np.inf)), "an infinite value"),
        (npy(np.zeros((0, 8, 8))), "the file: "),
        (b"\x93NUMPY\x01\x00\xff\xff{", "not a sound .npy file"),
        (b"," * 2_000_000, "a line of more than 1,048,576 bytes"),
        (bytes(range(256)) * 100, "cannot be read as an image"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_with_a_reason(client, body, complaint):
    status, found = client.upload(body)
    assert status == 400
    assert complaint in found["error"]
    assert "/tmp" not in found["error"]
    assert "upload." not in found["error"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (png(square()), "images, the model takes data of shape (6,)"),
        (b"1,2,3\n", "3 columns, the model takes 6 features"),
        (b"a,b,c,d,e,f\n1,2,3,4,5,6\n", "has no column 'mass'"),
        (b"1,2,3,4,5,x\n", "is not a number"),
        (b"1,2,3,4,5,6\n1,2\n", "2 cells, expected 6"),
        (b"1,2,3,4,5,inf\n", "is not finite"),
        (b"1,2,3,4,5,1e300\n", "standard deviations away from the data"),
        (b"mass,width,<img src=x onerror=alert(1)>,d,e,f\n", "holds no data"),
    ],
)
def test_rows_that_do_not_fit(row_client, body, complaint):
    status, found = row_client.upload(body)
    assert status == 400
    assert complaint in found["error"]


def test_a_full_temporary_folder_is_said(client, monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        status, found = client.upload(png(square()))
    assert (status, found["error"].rpartition(": ")[2]) == (507, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        status, found = client.upload(png(square()))
    assert (status, found["error"].rpartition(": ")[2]) == (507, "No such file or directory")
    assert client.upload(png(square()))[0] == 200
