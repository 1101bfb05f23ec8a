"""MNIST and FashionMNIST, in their four standard idx .gz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lapae.data.download import Download
from lapae.data.idx import read_idx
from lapae.data.source import Records
from lapae.errors import DataError

LABELS = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
TRAIN = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")

DOWNLOADS = {
    "mnist": Download(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files={
            "train-images-idx3-ubyte.gz": (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": (28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": (1648877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": (4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    ),
    "fashion_mnist": Download(
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        files={
            "train-images-idx3-ubyte.gz": (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte.gz": (29515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte.gz": (4422102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte.gz": (5148, "bb300cfdad3c16e7a12a480ee83cd310"),
        },
    ),
}


def read_mnist(folder: Path, name: str) -> Records:
    """All images (N, 1, 28, 28) uint8 and classes (N,) of `name`; the official test set is the test split."""
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
