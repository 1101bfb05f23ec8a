"""Pictures of images at their full size, in which unusual regions are red."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.cli.tiles import corners_of
from lapae.errors import ConfigError
from lapae.runs.files import whole_folder
from lapae.runs.outputs import save_image
from lapae.space.tiles import fold_tiles
from lapae.view.heat import Reddening, overlay

if TYPE_CHECKING:
    from lapae.cli.new_data import Rows
    from lapae.data import Reader
    from lapae.model import Model

WHOLE = 65535
"""Value of a pixel of 16 bits that stands for a p-value of 1."""


def pixels(model: Model, x: Any, contribution: Any) -> dict[str, Any]:
    """Return how unusual each pixel of images x (n, *shape), or of their feature maps, is: (n, H, W) each.

    `contribution` is what each value adds to the anomaly score; it is not used for feature maps.
    """
    if model.space.features is not None:
        unusual, p = model.pixel_scores(x)
        return {"unusual": unusual, "p_pixels": p}
    return {"unusual": model.space.arrange(contribution).mean(1)}


def writing(blocks: Iterator[Rows], folder: Path, model: Model, source: Reader) -> Iterator[Rows]:
    """Yield the blocks without what `pixels` adds: a picture of each image is written into `folder`, under its name.

    With features, the p-values of its pixels are also written: NAME_p.png, with 16 bits, 65,535 for 1.
    """
    red, n = None, 0
    with whole_folder(folder) as root:
        for rows in blocks:
            red = Reddening(model) if red is None else red
            assert rows.block is not None
            unusual, p = rows.found.pop("unusual"), rows.found.pop("p_pixels", None)
            names = [cells[0] for cells in rows.cells] or [f"{n + i}.png" for i in range(len(unusual))]
            if model.space.tile:
                unusual, names = fold_tiles(unusual, corners_of(rows.cells))[None], names[:1]
            n += len(names)
            for i, name in enumerate(names):
                image = original(source, name, rows.block.x[i], model)
                fit = model.space.fit or "stretch"
                found = {"": overlay(image, red(at_full_size(unusual[i], image.shape[:2], fit)))}
                if p is not None:
                    of_pixels = at_full_size(p[i], image.shape[:2], fit, outside=1.0)
                    found["_p"] = np.rint(WHOLE * of_pixels).astype(np.uint16)
                for mark, picture in found.items():
                    target = (root / name).with_name(f"{Path(name).stem}{mark}.png")
                    if target.exists():
                        raise ConfigError(f"two images would be written as {target.relative_to(root)}: rename one")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    save_image(target, picture)
            yield rows


def original(source: Reader, name: str, x: np.ndarray, model: Model) -> np.ndarray:
    """Return an image (H, W, C) of bytes as it is in its file or, from an array, as it was given."""
    from lapae.data.image_files import decode, read_header
    from lapae.data.images import ImageReader

    if isinstance(source, ImageReader):
        header = read_header(source.folder / name)
        return decode(source.folder / name, header.size, gray=header.gray).transpose(1, 2, 0)
    space = model.space
    images = space.arrange(x[None]) if space.features is None else space.features.arranged(x[None])
    most = space.most if space.features is None else space.features.most
    return np.rint(255 * np.clip(np.nan_to_num(images[0] / most), 0, 1)).astype(np.uint8).transpose(1, 2, 0)


def at_full_size(values: np.ndarray, size: tuple[int, ...], fit: str, outside: float = 0.0) -> np.ndarray:
    """Return values of pixels (h, w) as those of the image (H, W) that was fitted into them.

    Args:
        values: of the pixels that the model sees.
        size: height and width of the image.
        fit: how it was brought to their size: what was cropped is `outside`, borders are left out.
        outside: value of pixels that the model has not seen.
    """
    from PIL import Image

    height, width = size
    if values.shape == (height, width):
        return values
    shares = np.array([values.shape[0] / height, values.shape[1] / width])
    scale = shares if fit == "stretch" else np.full(2, shares.max() if fit == "crop" else shares.min())
    seen = np.minimum(np.rint(values.shape / scale), 2**16).astype(int)  # the pixels of the image under `values`
    found = Image.fromarray(values.astype(np.float32)).resize((int(seen[1]), int(seen[0])), Image.Resampling.BILINEAR)
    out = np.full((height, width), outside, np.float32)
    inside, of_found = [], []
    for whole, part in zip((height, width), seen.tolist(), strict=True):
        start, common = (whole - part) // 2, min(whole, part)
        inside.append(slice(max(start, 0), max(start, 0) + common))
        of_found.append(slice(max(-start, 0), max(-start, 0) + common))
    out[tuple(inside)] = np.asarray(found)[tuple(of_found)]
    return out
