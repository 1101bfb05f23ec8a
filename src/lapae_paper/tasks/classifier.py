"""A small classifier of clean samples, to measure how well imputed samples can be recognised.

Images go through two convolutions and two dense layers, other data through two hidden layers, both with dropout while
training. A trained one can be cached: the file's name is a digest of the data and of the settings.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapae.errors import RunError
from lapae.predict.prediction import Progress
from lapae.runs import read_tensor_file, tensor_file
from lapae.runs.files import make_folder, write_whole

VERSION = 1
"""Version in the digest: raise it when the network or its training changes."""
BATCH, RATE = 64, 1e-3
"""Samples per step, and the learning rate of Adam."""


def build_classifier(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    """Build the network for samples of `shape`: logits (B, n_classes)."""
    if len(shape) == 3 and min(shape[1:]) >= 8:
        height, width = shape[1] // 4, shape[2] // 4
        return nn.Sequential(
            nn.Conv2d(shape[0], 16, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.Dropout2d(),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, 64),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(64, n_classes),
        )
    n_features = int(torch.Size(shape).numel())
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(n_features, 128),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(64, n_classes),
    )


def train_classifier(
    x: Tensor,
    y: Tensor,
    n_classes: int,
    *,
    epochs: int = 5,
    seed: int = 0,
    cache: Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda done: None,
) -> nn.Module:
    """Train a classifier, or read it from `cache`; it is returned in evaluation mode (dropout off).

    Args:
        x: training samples (N, *shape).
        y: their classes (N,), whole numbers below `n_classes`.
        n_classes: number of classes.
        epochs: passes over the samples.
        seed: seed of the initial weights, the order of the samples and dropout.
        cache: folder to keep it in; one that was trained on the same data is read from there.
        device: where to train.
        progress: called with the number of samples seen.
    """
    settings = {
        **{"version": VERSION, "shape": list(x.shape), "n_classes": n_classes, "epochs": epochs},
        **{"batch_size": BATCH, "learning_rate": RATE, "seed": seed},
    }
    path = None if cache is None else cache / f"classifier-{_digest(x, y, settings)}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = build_classifier(tuple(x.shape[1:]), n_classes).to(device)
        if path is not None and path.exists():
            try:
                classifier.load_state_dict(read_tensor_file(path)[0])
                return classifier.eval()
            except RunError as error:
                warnings.warn(f"{error}; it is trained again", stacklevel=2)
        optimizer = torch.optim.Adam(classifier.parameters(), lr=RATE)
        for _ in range(epochs):
            for index in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(classifier(x[index].to(device)), y[index].to(device)).backward()
                optimizer.step()
                progress(len(index))
    if path is not None:
        make_folder(path.parent)
        write_whole(path, tensor_file(classifier.state_dict(), settings))
    return classifier.eval()


@torch.no_grad()
def class_probabilities(classifier: nn.Module, samples: Tensor, *, batch_size: int = 1000) -> Tensor:
    """Return class probabilities averaged over completions (M, N, *shape): (N, C) on the CPU."""
    device, parts = next(classifier.parameters()).device, []
    for part in samples.split(batch_size, 1):
        logits = classifier(part.flatten(0, 1).to(device))
        parts.append(logits.softmax(1).unflatten(0, part.shape[:2]).mean(0).cpu())
    return torch.cat(parts)


def _digest(x: Tensor, y: Tensor, settings: dict) -> str:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for tensor in (x, y):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]
