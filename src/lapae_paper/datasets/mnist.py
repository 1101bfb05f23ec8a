"""MNIST and FashionMNIST, in their four standard idx .gz files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from lapae.data.download import Download
from lapae.data.named import NamedSet
from lapae.data.source import Records
from lapae.errors import DataError
from lapae_paper.datasets.idx import read_idx

LABELS = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
TRAIN = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


def _files(*known: tuple[int, str]) -> dict[str, tuple[int, str]]:
    """Name the sizes and checksums of the images and labels of the training and the test set."""
    return dict(zip((*TRAIN, *TEST), known, strict=True))


DOWNLOADS = {
    "mnist": Download(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        _files(
            (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    "fashion_mnist": Download(
        ("https://fashion-mnist.s3.eu-central-1.amazonaws.com/",),
        _files(
            (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
}


def read_mnist(folder: Path, name: str) -> Records:
    """Read all images (N, 1, 28, 28), uint8, and their classes (N,); the official test set is the test split.

    Args:
        folder: where the four files lie.
        name: "mnist" or "fashion_mnist".
    """
    train, train_labels = _read_pair(folder, *TRAIN, len(LABELS[name]))
    test, test_labels = _read_pair(folder, *TEST, len(LABELS[name]))
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{folder / TEST[0]}: images of {test.shape[1:]}, but {TRAIN[0]} holds images of {train.shape[1:]}"
        )
    return Records(
        name=name,
        x=np.concatenate([train, test])[:, None],
        y=np.concatenate([train_labels, test_labels]).astype(np.int64),
        partition=np.repeat([0, 2], [len(train), len(test)]),
        label_names=LABELS[name],
    )


def _read_pair(folder: Path, images_name: str, labels_name: str, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the images (N, H, W) and labels (N,) of one part."""
    images = read_idx(folder / images_name, ndim=3)
    labels = read_idx(folder / labels_name, ndim=1)
    if len(images) == 0:
        raise DataError(f"{folder / images_name}: holds no images")
    if len(labels) != len(images):
        raise DataError(
            f"{folder / labels_name}: {len(labels):,} labels for the {len(images):,} images of {images_name}"
        )
    if labels.max() >= n_classes:
        row = int(np.argmax(labels >= n_classes))
        raise DataError(f"{folder / labels_name}: label {labels[row]} of image {row}, expected 0 to {n_classes - 1}")
    return images, labels


MNIST = NamedSet(partial(read_mnist, name="mnist"), DOWNLOADS["mnist"])
FASHION_MNIST = NamedSet(partial(read_mnist, name="fashion_mnist"), DOWNLOADS["fashion_mnist"])
