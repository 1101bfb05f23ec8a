from __future__ import annotations

import numpy as np
import pytest
from narrow import as_a
from PIL import Image

from lapae.data import Batches, DataError, load, open_input
from lapae.data.images import ImageFiles
from lapae.data.inspect import look
from lapae.data.source import Subset
from lapae.view.named_splits import NamedSplits

rng = np.random.default_rng(0)


def save(path, size=(8, 10), mode="RGB", value=None, **options):
    """An image of (height, width), of noise or of one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = np.full((*size, *channels), value) if value is not None else rng.integers(0, 256, (*size, *channels))
    Image.fromarray(pixels.astype(np.uint8), mode=mode).save(path, **options)
    return pixels.astype(np.uint8)


def all_of(data):
    return np.concatenate([np.asarray(split.x) for split in (data.train, data.valid, data.test)])


def test_common_size_is_kept_and_pixels_are_exact(tmp_path):
    expected = np.stack([save(tmp_path / f"{i}.png") for i in range(5)])
    data = load(tmp_path, validation=0, test=0)
    assert (data.kind, data.shape, data.train.y) == ("image", (3, 8, 10), None)
    assert isinstance(as_a(Subset, data.train.x).source, ImageFiles)
    np.testing.assert_array_equal(np.asarray(data.train.x), expected.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.train.x[np.array([4, 0])], expected[[4, 0]].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.train.x[2], expected[2].transpose(2, 0, 1))
    assert data.train.x[np.array([], dtype=int)].shape == (0, 3, 8, 10)


def test_sub_folders_are_labels(tmp_path):
    for name, value in (("night", 0), ("day", 255)):
        for i in range(4):
            save(tmp_path / name / "deeper" / f"{i}.png", value=value)
    data = load(tmp_path)
    assert data.label_names == ("day", "night")
    for split in (data.train, data.valid, data.test):
        np.testing.assert_array_equal(np.asarray(split.x).mean((1, 2, 3)) == 0, split.y == 1)


def test_sizes_and_modes_mix(tmp_path):
    save(tmp_path / "a.png", (20, 30), "L", 100)
    save(tmp_path / "b.jpg", (300, 200), "RGB", 100, quality=100)
    save(tmp_path / "c.png", (64, 64), "RGBA", 100)
    save(tmp_path / "d.gif", (5, 5), "L", 100)
    save(tmp_path / "e.TIFF", (9, 5), "RGB", 100)
    save(tmp_path / "f.webp", (9, 5), "RGB", 100, lossless=True)
    Image.new("CMYK", (9, 9), (155, 155, 155, 0)).save(tmp_path / "g.jpg", quality=100)
    Image.new("1", (9, 9), 1).save(tmp_path / "h.png")
    data = load(tmp_path, validation=0, test=0, fit="crop")
    assert data.shape == (3, 64, 64)
    x = np.asarray(data.train.x).astype(int)
    assert np.abs(x[:-1] - 100).max() <= 3
    assert (x[-1] == 255).all()


def test_gray_images_have_one_channel(tmp_path):
    save(tmp_path / "a.png", (9, 9), "L", 7)
    save(tmp_path / "b.png", (5, 9), "LA", 7)
    Image.fromarray(np.full((9, 9), 7 * 257 + 100, dtype=np.uint16)).save(tmp_path / "c.png")
    data = load(tmp_path, image_size=16, validation=0, test=0, fit="stretch")
    assert data.shape == (1, 16, 16)
    assert (np.asarray(data.train.x) == 7).all()


@pytest.mark.parametrize("fit", [None, "border", "crop", "stretch"])
def test_the_aspect_is_kept_unless_stretched(tmp_path, fit):
    """A wide image whose left quarter and right quarter are white, the middle gray."""
    pixels = np.full((20, 80), 100, np.uint8)
    pixels[:, :20] = pixels[:, 60:] = 255
    for i in range(3):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    data = load(tmp_path, image_size=20, fit=fit, validation=0, test=0)
    assert data.space.fit == (fit or "crop")
    x = np.asarray(data.train.x)[0, 0]
    if fit == "stretch":
        assert (x[:, 0] == 255).all()
        assert (x[:, 10] == 100).all()
    elif fit in (None, "crop"):
        assert (x == 100).all()
    else:
        assert (x[[0, -1]] == 0).all()
        assert x[10, 0] == 255
        assert x[10, 10] == 100
    # new images are treated as those of training were, whatever their size
    Image.fromarray(pixels).resize((160, 40)).save(tmp_path / "new.png")
    (block,) = open_input(tmp_path / "new.png", data.space).blocks(lambda n: None)
    assert np.abs(block.x[0, 0].astype(int) - x).max() <= 2 or fit not in (None, "crop")
    assert block.x.shape[1:] == data.space.shape


def test_images_of_one_size_are_taken_as_they_are(tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.png", (8, 9))
    data = load(tmp_path, validation=0, test=0)
    assert data.space.fit is None
    save(tmp_path / "new.png", (9, 9))
    with pytest.raises(DataError, match="9x9 pixels, the model takes 8x9; --resize"):
        list(open_input(tmp_path / "new.png", data.space).blocks(lambda n: None))
    (block,) = open_input(tmp_path / "new.png", data.space, resize=True).blocks(lambda n: None)
    assert block.x.shape == (1, 3, 8, 9)


@pytest.mark.parametrize(
    ("size", "image_size", "shape"), [((128, 7), None, (128, 7)), ((129, 7), None, (64, 64)), ((8, 8), 3, (3, 3))]
)
def test_size(tmp_path, size, image_size, shape):
    for i in range(3):
        save(tmp_path / f"{i}.png", size)
    assert load(tmp_path, image_size=image_size).shape == (3, *shape)


def test_photographs_are_turned_upright(tmp_path):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, 30:] = 255  # the right half is light; turned by a quarter to the right, the lower half
    exif = Image.Exif()
    exif[0x0112] = 6
    for i in range(3):
        Image.fromarray(pixels).save(tmp_path / f"{i}.jpg", exif=exif)
    data = load(tmp_path, validation=0, test=0)
    assert data.shape == (3, 60, 40)
    x = np.asarray(data.train.x)
    assert x[:, :, :25].max() < 10
    assert x[:, :, 35:].min() > 245


def test_large_photographs_shrink_to_their_mean(tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.jpg", (900, 1200), quality=95)
    x = np.asarray(load(tmp_path, validation=0, test=0, fit="stretch").train.x)
    assert x.shape == (3, 3, 64, 64)
    assert abs(x.mean() - 127.5) < 2


def test_streams(tmp_path):
    for i in range(10):
        save(tmp_path / f"{i}.png", value=i * 20)
    data = load(tmp_path, validation=0, test=0)
    held = Batches(data.train.x, data.space, 3, shuffle=True)
    streamed = Batches(data.train.x, data.space, 3, shuffle=True, budget=0)
    for a, b in zip(held.epoch(2), streamed.epoch(2), strict=True):
        assert a.equal(b)


def test_other_files_and_hidden_ones_are_left_alone(tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "._0.png").write_text("what some systems leave behind")
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / ".thumbnails" / "0.png").write_text("no image")
    assert len(all_of(load(tmp_path))) == 3


@pytest.mark.parametrize("content", [b"", b"this is no image", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_unreadable_image_is_named_on_load(tmp_path, content):
    (tmp_path / "000.png").write_bytes(content)
    save(tmp_path / "good.png")
    with pytest.raises(DataError, match=r"000\.png: cannot be read as an image"):
        load(tmp_path)


def test_truncated_image_is_named_when_it_is_met(tmp_path):
    for i in range(4):
        save(tmp_path / f"{i}.png", (60, 60))
    path = tmp_path / "2.png"
    path.write_bytes(path.read_bytes()[:2000])
    data = load(tmp_path, validation=0, test=0)
    with pytest.raises(DataError, match=r"2\.png: cannot be read as an image"):
        np.asarray(data.train.x)
    for budget in (0, None):
        with pytest.raises(DataError, match=r"2\.png"):
            list(Batches(data.train.x, data.space, 2, budget=budget).epoch())


def test_decompression_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("lapae.data.image_files.MAX_PIXELS", 99)
    save(tmp_path / "a.png", (10, 10))
    with pytest.raises(DataError, match=r"a\.png: 10x10 pixels, at most 99"):
        load(tmp_path)


def test_real_decompression_bomb(tmp_path):
    Image.new("1", (20000, 20000)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png"):
        load(tmp_path)


def test_thirty_two_bits_have_no_range(tmp_path):
    for i in range(3):
        Image.fromarray(np.ones((5, 5), np.float32)).save(tmp_path / f"{i}.tiff")
    data = load(tmp_path)
    with pytest.raises(DataError, match=r"tiff: mode F"):
        np.asarray(data.train.x)


def test_empty_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match="no images in this folder"):
        load(tmp_path)


def test_loose_images_beside_labelled_ones(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "cats" / "b.png")
    with pytest.raises(DataError, match=r"a\.png.*cats/b\.png"):
        load(tmp_path)


@pytest.mark.parametrize("image_size", [0, -1, 5000])
def test_image_size_out_of_range(tmp_path, image_size):
    with pytest.raises(DataError, match="image_size must be from 1 to 4096"):
        load(tmp_path, image_size=image_size)


@pytest.mark.parametrize("how", ["no image", "cut short"])
def test_an_unreadable_image_is_left_out_with_skip_bad(tmp_path, how):
    for i in range(6):
        save(tmp_path / f"{i}.png")
    bad = tmp_path / "3.png"
    bad.write_bytes(b"no image" if how == "no image" else bad.read_bytes()[:150])
    with pytest.raises(DataError, match=r"3\.png: .* \(--skip-bad leaves such files out\)"):
        all_of(load(tmp_path))
    with pytest.warns(UserWarning, match=r"skipped: .*3\.png"):
        data = load(tmp_path, skip_bad=True)
    assert len(all_of(data)) == 5


@pytest.mark.parametrize("options", [{}, {"tile": 8}])
def test_a_look_refuses_what_training_refuses(tmp_path, options):
    for i in range(6):
        save(tmp_path / f"{i}.png")
    assert sum(look(tmp_path, **options).splits.values()) >= 6
    bad = tmp_path / "3.png"
    bad.write_bytes(bad.read_bytes()[:150])
    with pytest.raises(DataError, match=r"3\.png: .* \(--skip-bad leaves such files out\)"):
        look(tmp_path, **options)
    assert "3.png" in look(tmp_path, skip_bad=True, **options).notes[0]


def test_a_folder_of_unreadable_images(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(DataError, match="none of its 1 images can be read"):
        load(tmp_path, skip_bad=True)


@pytest.mark.parametrize("tile", [None, 8])
def test_pages_call_images_by_their_files(tmp_path, tile):
    (tmp_path / "b").mkdir()
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
    for i in range(20):
        save(tmp_path / "abc"[i % 3] / f"{i}.png", (9, 8), "RGB", i)
    splits = NamedSplits.of(load(tmp_path, tile=tile))
    for part, split in splits.parts.items():
        name = splits.id(part, 0)
        number = int(name.split(".png")[0].split("/")[1])
        assert (np.asarray(split.x[np.array([0])]) == number).all()
        assert splits.find(name) == (part, 0)
    assert splits.find("a/none.png") is None
