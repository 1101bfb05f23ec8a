"""New images: a file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.decode import decode, opened, read_header
from lapae.data.images import SKIP, list_images
from lapae.data.inputs.base import Block, Input, Progress

if TYPE_CHECKING:
    from lapae.model import Model


class ImageInput(Input):
    """An image, or a folder of them."""

    def __init__(
        self, path: Path, model: Model, *, resize: bool, skip_bad: bool, alpha: bool, any_colour: bool
    ) -> None:
        super().__init__(path, model)
        self.pixels = self.space.model_shape
        if self.space.kind != "image" or self.pixels[0] not in (1, 3):
            raise DataError(f"{path}: images, the model takes data of shape {self.shape}")
        self.folder = path if path.is_dir() else path.parent
        paths = list_images(path) if path.is_dir() else [path]
        self.files = [file.relative_to(self.folder) for file in paths]
        self.size = len(self.files)
        self.resize = resize or model.config.data.image_size is not None
        self.skip_bad, self.alpha, self.any_colour = skip_bad, alpha, any_colour
        self.scale = self.space.most / 255  # a model of floats in [0, 1] has a scale of 1

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Images in the order of their names."""
        for index, start in enumerate(range(0, self.size, self.block_size)):
            images, files = [], []
            names = self.files[start : start + self.block_size]
            if not self._mine(index):
                progress(len(names))
                continue
            for file in names:
                try:
                    images.append(self._pixels(self.folder / file))
                    files.append(file)
                except DataError as error:
                    if not self.skip_bad:
                        raise DataError(f"{error}{SKIP}") from error
                    self.skipped.append(str(error))
                progress(1)
            if images:
                yield Block(self.space.as_given(np.stack(images)), files=files, index=index)

    def _pixels(self, path: Path) -> np.ndarray:
        channels, height, width = self.pixels
        header = read_header(path)
        if channels == 1 and not header.gray and not self.any_colour:
            raise DataError(f"{path}: a colour image, the model takes gray ones")
        if header.size != (height, width) and not self.resize:
            came = f"{header.size[0]}x{header.size[1]}"
            raise DataError(f"{path}: {came} pixels, the model takes {height}x{width}; --resize scales images to it")
        pixels = decode(path, (height, width), gray=channels == 1)
        if not self.alpha and self.scale == 1:
            return pixels
        floats = pixels * np.float32(self.scale)
        return np.where(_transparent(path, (height, width)), np.float32(np.nan), floats) if self.alpha else floats


def _transparent(path: Path, size: tuple[int, int]) -> np.ndarray:
    """Where an image is fully transparent, (height, width)."""
    with opened(path) as image:
        if "A" not in image.getbands() and "transparency" not in image.info:
            return np.zeros(size, bool)
        alpha = image.convert("RGBA").getchannel("A")
        return np.asarray(alpha.resize((size[1], size[0]), 0)) == 0
