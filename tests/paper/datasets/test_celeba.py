from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from lapae.data import DataError, load
from lapae_paper.datasets.celeba import decode_face

N = 9


def face(size, seed):
    """A smooth picture, so that it looks the same at half size."""
    width, height = size
    u, v = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    pixels = np.stack([u, v, (u + v) / 2], -1) * 200 + 5 * seed
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def celeba(tmp_path):
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i + 1:06}.jpg" for i in range(N)]
    for i, name in enumerate(names):
        face((89, 109), i).save(folder / "img_align_celeba" / name, quality=100)
    rows = [f"{name} {' '.join('1' if (i + a) % 3 == 0 else '-1' for a in range(3))}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(N), "Bald Smiling Young ", *rows]) + "\n")
    (folder / "list_eval_partition.txt").write_text(
        "".join(f"{name} {0 if i < 5 else 1 if i < 7 else 2}\n" for i, name in enumerate(names))
    )
    return folder


def cached():
    return sorted(os.listdir(os.environ["LAPAE_CACHE"]))


def test_splits_attributes_and_names(celeba):
    data = load("celeba", data_dir=celeba.parent)
    assert (len(data.train), len(data.valid), len(data.test)) == (5, 2, 2)
    assert (data.kind, data.shape, data.label_names) == ("image", (3, 64, 64), ("Bald", "Smiling", "Young"))
    np.testing.assert_array_equal(data.valid.y, [[0, 1, 0], [1, 0, 0]])
    assert isinstance(data.train.x, np.memmap)
    for i in range(5):
        path = celeba / "img_align_celeba" / f"{i + 1:06}.jpg"
        np.testing.assert_array_equal(data.train.x[i], decode_face(path))
    assert load("celeba", data_dir=celeba.parent, image_size=16).shape == (3, 16, 16)


def test_half_size_gives_the_same_face(tmp_path):
    for name, size in (("full.png", (178, 218)), ("half.png", (89, 109))):
        face(size, 3).save(tmp_path / name)
    full, half = (decode_face(tmp_path / name).astype(int) for name in ("full.png", "half.png"))
    assert np.abs(full - half).max() <= 2
    # the crop is the central 148 of 178 and of 218: the red ramp over the width shows its ends
    left, right = full[0, 32, 0], full[0, 32, -1]
    assert abs(left - (15 + 148 / 128) / 178 * 200 - 15) <= 2
    assert abs(right - (163 - 148 / 128) / 178 * 200 - 15) <= 2


def test_second_load_decodes_nothing(celeba, monkeypatch):
    first = load("celeba", data_dir=celeba.parent)
    assert len(cached()) == 1
    monkeypatch.setattr("lapae_paper.datasets.celeba.decode_face", None)
    second = load("celeba", data_dir=celeba.parent)
    np.testing.assert_array_equal(first.train.x, second.train.x)


def test_changed_content_is_decoded_again(celeba):
    before = np.array(load("celeba", data_dir=celeba.parent).train.x)
    Image.new("RGB", (89, 109)).save(celeba / "img_align_celeba" / "000001.jpg")
    after = load("celeba", data_dir=celeba.parent).train.x
    assert after[0].max() == 0
    np.testing.assert_array_equal(after[1:], before[1:])


def test_damaged_cache_is_made_anew(celeba):
    expected = np.array(load("celeba", data_dir=celeba.parent).test.x)
    (name,) = cached()
    path = os.path.join(os.environ["LAPAE_CACHE"], name)
    with open(path, "r+b") as file:
        file.truncate(1000)
    np.testing.assert_array_equal(load("celeba", data_dir=celeba.parent).test.x, expected)


def test_failure_leaves_no_cache(celeba):
    path = celeba / "img_align_celeba" / "000004.jpg"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"000004\.jpg: cannot be read as an image"):
        load("celeba", data_dir=celeba.parent)
    assert cached() == []


def test_interruption_leaves_no_cache(celeba, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lapae_paper.datasets.celeba.decode_face", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("celeba", data_dir=celeba.parent)
    assert cached() == []


def test_cache_folder_that_cannot_be_made(celeba, monkeypatch):
    monkeypatch.setenv("LAPAE_CACHE", str(celeba / "list_attr_celeba.txt" / "below"))
    with pytest.raises(DataError, match=r"set \$LAPAE_CACHE"):
        load("celeba", data_dir=celeba.parent)


def test_image_of_another_shape(celeba):
    Image.new("RGB", (100, 100)).save(celeba / "img_align_celeba" / "000002.jpg")
    with pytest.raises(DataError, match=r"000002\.jpg: 100x100 pixels, expected 178x218"):
        load("celeba", data_dir=celeba.parent)


def test_missing_image(celeba):
    (celeba / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataError, match=r"000003\.jpg: listed in list_eval_partition\.txt but not there"):
        load("celeba", data_dir=celeba.parent)


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "match"),
    [
        ("list_attr_celeba.txt", "9\nBald", "8\nBald", r"attr_celeba\.txt: row 1 announces 8 images, 9 rows follow"),
        ("list_attr_celeba.txt", "9\nBald", "Bald", r"attr_celeba\.txt: expected the number of images in row 1"),
        ("list_attr_celeba.txt", "000002.jpg -1", "000002.jpg", r"attr_celeba\.txt, row 4: expected 3 values"),
        ("list_attr_celeba.txt", "000002.jpg -1", "000002.jpg 0", r"attr_celeba\.txt, row 4"),
        ("list_attr_celeba.txt", "000002.jpg", "999999.jpg", r"attr_celeba\.txt: no row for 000002\.jpg"),
        ("list_eval_partition.txt", "000003.jpg 0", "000003.jpg 3", r"partition\.txt, row 3: '000003\.jpg 3'"),
        ("list_eval_partition.txt", "000003.jpg 0", "../etc/x 0", r"partition\.txt, row 3"),
        ("list_eval_partition.txt", "000003.jpg 0", "\xe9", r"partition\.txt: cannot be read as text"),
    ],
)
def test_bad_lists(celeba, name, old, new, match):
    edit(celeba / name, old, new)
    with pytest.raises(DataError, match=match):
        load("celeba", data_dir=celeba.parent)
    assert cached() == []


def test_empty_partition(celeba):
    (celeba / "list_eval_partition.txt").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        load("celeba", data_dir=celeba.parent)


def test_absent_says_what_to_fetch_and_where(tmp_path):
    with pytest.raises(DataError, match=r"(?s)fetch it by hand.*celeba/img_align_celeba/000001\.jpg"):
        load("celeba", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
