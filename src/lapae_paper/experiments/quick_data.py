"""Data of the quick size, from what scikit-learn ships: nothing is downloaded.

| stands in for       | what                                                                                        |
|---------------------|---------------------------------------------------------------------------------------------|
| MNIST, FashionMNIST | `digits`                                                                                    |
| out-of-distribution | `patches`: 8x8 pieces of a photograph, gray                                                 |
| CelebA              | pieces of two photographs in CelebA's layout, with six attributes that their colours decide |
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from lapae.runs.files import make_folder, write_whole

PATCHES, FACES = 600, 400
ATTRIBUTES = ("Bright", "Reddish", "Bluish", "Smooth", "Light_Above", "Light_Left")
FACE_WIDTH, FACE_HEIGHT = 89, 109


def place(source: str, folder: Path) -> str:
    """Return where `source` is read from; quick data are first made in `folder`."""
    if source == "patches":
        path = folder / "patches.npz"
        if not path.exists():
            make_folder(folder)
            write_whole(path, _npz(_patches("china.jpg", PATCHES, 8, 8).mean(3)))
        return str(path)
    if source == "celeba" and not (folder / "celeba" / "list_eval_partition.txt").exists():
        _write_faces(folder / "celeba")
    return source


def _photograph(name: str) -> np.ndarray:
    """Load a photograph (H, W, 3) from 0 to 1."""
    from sklearn.datasets import load_sample_image

    return np.asarray(load_sample_image(name), dtype=np.float32) / 255


def _patches(name: str, n: int, height: int, width: int) -> np.ndarray:
    """Cut n pieces (n, height, width, 3) of a photograph, at random places."""
    photograph = _photograph(name)
    random = np.random.default_rng(0)
    rows = random.integers(0, photograph.shape[0] - height, n)
    columns = random.integers(0, photograph.shape[1] - width, n)
    return np.stack([photograph[r : r + height, c : c + width] for r, c in zip(rows, columns, strict=True)])


def _npz(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, x=x)
    return file.getvalue()


def _write_faces(folder: Path) -> None:
    """Write CelebA's layout; the partition comes last, so that its presence means that all is there."""
    from PIL import Image

    make_folder(folder / "img_align_celeba")
    faces = np.concatenate(
        [_patches(name, FACES // 2, FACE_HEIGHT, FACE_WIDTH) for name in ("china.jpg", "flower.jpg")]
    )
    faces = faces[np.random.default_rng(0).permutation(len(faces))]
    names = [f"{i + 1:06d}.png" for i in range(len(faces))]
    for name, face in zip(names, faces, strict=True):
        file = io.BytesIO()
        Image.fromarray((255 * face).round().astype(np.uint8)).save(file, "png")
        write_whole(folder / "img_align_celeba" / name, file.getvalue())
    rows = (
        " ".join([name, *("1" if bit else "-1" for bit in bits)])
        for name, bits in zip(names, _bits(faces), strict=True)
    )
    attributes = "\n".join([str(len(names)), " ".join(ATTRIBUTES), *rows])
    write_whole(folder / "list_attr_celeba.txt", f"{attributes}\n".encode())
    split = np.repeat([0, 1, 2], [len(names) // 2, len(names) // 4, len(names) - len(names) // 2 - len(names) // 4])
    write_whole(
        folder / "list_eval_partition.txt", "".join(f"{n} {s}\n" for n, s in zip(names, split, strict=True)).encode()
    )


def _bits(faces: np.ndarray) -> np.ndarray:
    """Return the attributes (n, 6) of pieces (n, H, W, 3): whether each of six numbers is above its median."""
    gray = faces.mean(3)
    half, middle = gray.shape[1] // 2, gray.shape[2] // 2
    numbers = [
        gray.mean((1, 2)),
        (faces[..., 0] - gray).mean((1, 2)),
        (faces[..., 2] - gray).mean((1, 2)),
        -np.abs(np.diff(gray, axis=1)).mean((1, 2)),
        gray[:, :half].mean((1, 2)) - gray[:, half:].mean((1, 2)),
        gray[:, :, :middle].mean((1, 2)) - gray[:, :, middle:].mean((1, 2)),
    ]
    return np.stack([number > np.median(number) for number in numbers], 1)
