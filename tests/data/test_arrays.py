from __future__ import annotations

import contextlib
import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from narrow import as_a, sure

from lapae.data import DataError, load
from lapae.data.arrays import open_npy
from lapae.data.source import Subset

rng = np.random.default_rng(0)
BYTES = rng.integers(0, 256, (30, 5, 6, 3), dtype=np.uint8)


def save(path, array):
    np.save(path, array)
    return path


def whole(data):
    return np.concatenate([np.asarray(split.x) for split in (data.train, data.valid, data.calib, data.test)])


@pytest.mark.parametrize(
    ("array", "kind", "shape"),
    [
        (BYTES, "image", (3, 5, 6)),
        (np.moveaxis(BYTES, -1, 1), "image", (3, 5, 6)),
        (BYTES[..., :1], "image", (1, 5, 6)),
        (BYTES[..., 0], "image", (1, 5, 6)),
        (BYTES[..., 0] > 99, "image", (1, 5, 6)),
        (BYTES / 255, "image", (3, 5, 6)),
        (BYTES[:, None], "array", (1, 5, 6, 3)),
        (BYTES[:, 0, 0], "table", (3,)),
        (BYTES[:, 0, 0] / 255, "table", (3,)),
        (rng.normal(size=(30, 4, 5)), "array", (4, 5)),
        (rng.normal(size=30), "table", (1,)),
        (rng.integers(-9, 9, (30, 4)), "table", (4,)),
        (rng.normal(size=(30, 4)).astype(">f4"), "table", (4,)),
        (np.asfortranarray(rng.normal(size=(30, 4))), "table", (4,)),
    ],
)
def test_what_an_array_is(tmp_path, array, kind, shape):
    data = load(save(tmp_path / "a.npy", array))
    assert (data.kind, data.shape, data.space.name) == (kind, shape, "a")
    z = data.space.convert(np.asarray(data.train.x))
    if kind == "image" or (array.dtype == np.uint8 and array.ndim > 2):
        assert z.min() >= 0
        assert 0.9 < z.max() <= 1
    else:
        axes = tuple(range(z.ndim - 1))  # per column, per channel
        np.testing.assert_allclose(z.mean(axes), 0, atol=1e-5)
        np.testing.assert_allclose(z.std(axes), 1, atol=1e-5)


def test_channels_last_become_first(tmp_path):
    data = load(save(tmp_path / "a.npy", BYTES), validation=0, calibration=0, test=0)
    np.testing.assert_array_equal(np.asarray(data.train.x), BYTES)
    np.testing.assert_array_equal(255 * data.space.to_model(data.train.x), BYTES.transpose(0, 3, 1, 2))


def test_npy_is_mapped_and_not_loaded(tmp_path):
    data = load(save(tmp_path / "a.npy", BYTES))
    assert isinstance(as_a(Subset, data.train.x).source, np.memmap)  # a view of the file, seen through an index
    assert not isinstance(data.train.x, np.ndarray)
    np.testing.assert_array_equal(np.sort(whole(data).sum((1, 2, 3))), np.sort(BYTES.sum((1, 2, 3), dtype=np.uint64)))
    np.testing.assert_array_equal(data.train.x[np.array([3, 1])], np.asarray(data.train.x)[[3, 1]])


def test_scaling_is_of_the_training_split(tmp_path):
    data = load(save(tmp_path / "a.npy", rng.normal(size=(50, 3))))
    np.testing.assert_allclose(data.space.offset, np.asarray(data.train.x).mean(0))
    np.testing.assert_allclose(data.space.scale, np.asarray(data.train.x).std(0))


def test_npz_with_labels(tmp_path):
    x, y = rng.normal(size=(30, 2)), np.repeat([7, 3], 15)
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y, other=np.zeros(3))
    data = load(tmp_path / "a.npz", validation=0, calibration=0, test=0)
    np.testing.assert_array_equal(data.train.x, x)
    np.testing.assert_array_equal(data.train.y, y == 7)
    assert data.label_names == ("3", "7")


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.array(list("ab") * 15), ("a", "b")),
        (np.array([1.0, 0.0] * 15), ("0", "1")),
        (np.array([[True], [False]] * 15), ("0", "1")),
        (np.ones((30, 4)), None),
    ],
)
def test_npz_kinds_of_labels(tmp_path, y, names):
    np.savez(tmp_path / "a.npz", x=np.ones((30, 2)), y=y)
    data = load(tmp_path / "a.npz")
    assert data.label_names == names
    assert sure(data.train.y).shape == ((17, 4) if names is None else (17,))


def test_npz_only_array(tmp_path):
    np.savez(tmp_path / "a.npz", faces=BYTES)
    assert load(tmp_path / "a.npz").shape == (3, 5, 6)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"a": np.ones(3), "b": np.ones(3)}, "named 'x'.*'a', 'b'"),
        ({"x": np.ones((30, 2)), "y": np.ones(29)}, r"labels y of shape \(29,\) for 30 samples"),
        ({"x": np.ones((30, 2)), "y": np.full(30, 0.5)}, r"y\[0\] is 0.5"),
        ({"x": np.ones((30, 2)), "y": np.full((30, 2), 2)}, "must be 0 or 1"),
        ({"x": np.ones((30, 2)), "y": np.ones((30, 2, 2))}, r"\(30, 2, 2\)"),
        ({"x": np.array(["a"] * 30)}, "expected numbers"),
        ({"x": np.ones((0, 3))}, "no data"),
        ({"x": np.float64(3)}, "no data"),
    ],
)
def test_bad_npz(tmp_path, arrays, match):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=rf"bad\.npz.*{match}"):
        load(tmp_path / "bad.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(30, 4), (30, 4, 4)])
def test_not_finite_names_row_and_column(tmp_path, value, shape):
    x = np.full(shape, 0.5, dtype=np.float32)
    x[17, 2] = value
    where = "row 17, column 2" if len(shape) == 2 else r"row 17, position \(2, 0\)"
    with pytest.raises(DataError, match=rf"a\.npy, {where}.*{value}"):
        load(save(tmp_path / "a.npy", x), allow_nan=False)
    if np.isinf(value):
        with pytest.raises(DataError, match=where):
            load(tmp_path / "a.npy", allow_nan=True)
    else:
        data = load(tmp_path / "a.npy", allow_nan=True)
        assert np.isnan(whole(data)).sum() == np.isnan(x).sum()
        assert data.kind == ("table" if len(shape) == 2 else "image")


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}, {}, {}]), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}, {}]), allow_pickle=True)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match="type object"):
            load(tmp_path / name)


def header(shape, dtype="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (-1,), (-2, -4)])
def test_npy_header_that_lies(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(header(shape) + bytes(64))
    with pytest.raises(DataError, match=r"a\.npy: the header claims"):
        load(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header(shape) + bytes(64))
    with pytest.raises(DataError, match=r"a\.npz/x\.npy: the header claims"):
        load(tmp_path / "a.npz")


def test_more_than_there_is_memory_for_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("lapae.data.bounds.free_memory", lambda: 2 * 10**6)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    with pytest.raises(DataError, match=r"x\.npy: 0\.0 GB unpacked, and 0\.0 GB of memory are free; store it as \.npy"):
        load(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.zeros((1000, 1000)))
    assert load(tmp_path / "a.npy").shape == (1000,)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
@pytest.mark.parametrize("keep", [0, 3, 30, 0.5, 0.999])
def test_truncated(tmp_path, name, keep):
    path = tmp_path / name
    np.save(path, rng.normal(size=(100, 9))) if name == "a.npy" else np.savez(path, x=rng.normal(size=(100, 9)))
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(DataError, match=name):
        load(path)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("lapae.data.arrays.LARGE", 10**6)
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((9, 2)), y=np.zeros((1000, 1000)))
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(DataError, match=r"a\.npz/y\.npy: 8,000,128 bytes packed into .* a decompression bomb"):
        load(tmp_path / "a.npz")


def test_what_packs_well_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("lapae.data.arrays.LARGE", 10**5)
    np.savez_compressed(tmp_path / "a.npz", x=np.repeat(rng.normal(size=(1000, 1)), 40, 1))
    assert load(tmp_path / "a.npz").shape == (40,)
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((1000, 1000)))
    with pytest.raises(DataError, match="expected at most 100 times as many"):
        load(tmp_path / "b.npz")


def test_damaged_npz(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=rng.normal(size=(100, 9)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz"):
        load(tmp_path / "a.npz")


def npy(descr: str, fortran: bool, shape: list[int], body: bytes) -> bytes:
    text = repr({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}).encode() + b"\n"
    return len(text).to_bytes(2, "little") + text + body


headers = st.builds(
    npy,
    st.sampled_from(["|u1", "<i2", ">f4", "<f8", "|b1", "|O", "<U1", "?", "nope"]),
    st.booleans(),
    st.lists(st.integers(-1, 3), max_size=3),
    st.binary(max_size=24),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(headers, st.binary(max_size=150)))
@example(npy("<i2", True, [2, 1], b"abcd"))
def test_any_header_gives_the_array_that_numpy_reads_or_a_data_error(tmp_path, content):
    path = tmp_path / "any.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + content)
    with contextlib.suppress(DataError):  # any other error fails
        found = open_npy(path)
        np.testing.assert_array_equal(found, np.load(path, allow_pickle=False))


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_an_empty_array_is_named_by_its_own_shape(tmp_path, suffix):
    path = tmp_path / f"none.{suffix}"
    (np.save if suffix == "npy" else np.savez)(path, np.zeros((0, 5)))
    with pytest.raises(DataError, match=r"holds no data, its shape is \(0, 5\)"):
        load(path)
