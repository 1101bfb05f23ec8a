from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from narrow import as_a, sure

from lapae.data import DataError, load
from lapae_paper.datasets.idx import read_idx

IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


def test_reads_what_was_written(tmp_path, write_idx):
    array = np.random.default_rng(0).integers(0, 256, (7, 3, 2), dtype=np.uint8)
    write_idx(tmp_path / "a.gz", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz", ndim=3), array)
    (tmp_path / "a").write_bytes(gzip.decompress((tmp_path / "a.gz").read_bytes()))
    np.testing.assert_array_equal(read_idx(tmp_path / "a", ndim=3), array)


def test_mnist_splits(small_mnist):
    data = load("mnist", data_dir=small_mnist)
    assert (len(data.train), len(data.valid), len(data.calib), len(data.test)) == (23, 4, 13, 10)
    assert data.shape == (1, 4, 5)
    assert data.kind == "image"
    assert data.train.x.dtype == np.uint8
    assert sure(data.train.y).dtype == np.int64
    assert data.label_names == tuple("0123456789")
    official = read_idx(small_mnist / "mnist" / "t10k-images-idx3-ubyte.gz", ndim=3)
    np.testing.assert_array_equal(data.test.x[:, 0], official)
    assert data.space.convert(as_a(np.ndarray, data.train.x)).max() <= 1


def test_truncated_gzip(small_mnist):
    path = small_mnist / "mnist" / IMAGES
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"{IMAGES}.*truncated"):
        load("mnist", data_dir=small_mnist)


def test_damaged_gzip(small_mnist):
    path = small_mnist / "mnist" / IMAGES
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=IMAGES):
        load("mnist", data_dir=small_mnist)


@pytest.mark.parametrize("content", [b"", b"not a gzip file", b"\x1f\x8b"])
def test_not_gzip(small_mnist, content):
    (small_mnist / "mnist" / IMAGES).write_bytes(content)
    with pytest.raises(DataError, match=IMAGES):
        load("mnist", data_dir=small_mnist)


def test_wrong_magic_number(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / IMAGES, np.zeros((40, 4, 5)), magic=b"\0\0\x0d\x03")
    with pytest.raises(DataError, match=rf"{IMAGES}: wrong magic number 00000d03, expected 00000803"):
        load("mnist", data_dir=small_mnist)


def test_images_in_place_of_labels(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / LABELS, np.zeros((40, 4, 5)))
    with pytest.raises(DataError, match=rf"{LABELS}: wrong magic number 00000803, expected 00000801"):
        load("mnist", data_dir=small_mnist)


def test_mismatched_label_count(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / LABELS, np.zeros(39))
    with pytest.raises(DataError, match=rf"{LABELS}: 39 labels for the 40 images of {IMAGES}"):
        load("mnist", data_dir=small_mnist)


def test_label_out_of_range(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / LABELS, np.r_[np.zeros(39), 10])
    with pytest.raises(DataError, match=rf"{LABELS}: label 10 of image 39"):
        load("mnist", data_dir=small_mnist)


def test_no_images(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / IMAGES, np.zeros((0, 4, 5)))
    with pytest.raises(DataError, match=rf"{IMAGES}: holds no images"):
        load("mnist", data_dir=small_mnist)


def test_test_images_of_another_size(small_mnist, write_idx):
    write_idx(small_mnist / "mnist" / "t10k-images-idx3-ubyte.gz", np.zeros((10, 5, 5)))
    with pytest.raises(DataError, match="t10k-images"):
        load("mnist", data_dir=small_mnist)


@pytest.mark.parametrize("shape", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (60000, 28, 28), (1000, 4, 5)])
def test_header_that_lies_takes_no_memory(tmp_path, shape):
    path = tmp_path / "lie.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", *shape) + b"12345"))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="header claims"):
            read_idx(path, ndim=3)
        assert tracemalloc.get_traced_memory()[1] < 3e6
    finally:
        tracemalloc.stop()


def test_more_than_the_header_claims(tmp_path):
    path = tmp_path / "long.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"1234"))
    with pytest.raises(DataError, match="holds more"):
        read_idx(path, ndim=1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60), packed=st.booleans())
def test_any_bytes_give_an_array_or_a_data_error(tmp_path, content, packed):
    path = tmp_path / ("any.gz" if packed else "any")
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + content) if packed else content)
    with contextlib.suppress(DataError):  # any other error fails
        assert read_idx(path, ndim=1).ndim == 1
