"""A posterior for a network that others trained: TAEF2 and 1,000 faces, told from what is no face by p-value.

    python benchmarks/pretrained.py --data DATA [--faces 1000] [--size 64] [--out FOLDER]
    python benchmarks/pretrained.py --data DATA --online 20 [...]

DATA holds `pretrained/taef2_*.safetensors`, `celeba` and `mnist`, `fashion_mnist`. Nothing of the network is trained or
changed: `LaplacianAutoencoder.from_trained(encoder, decoder).fit(faces)`. Prints one JSON object, and with --out writes
it beside a picture of faces, reconstructions and deviation maps. With --online a small AutoencoderKL of diffusers, as
it comes, is trained by the online method instead, for that number of epochs.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from lapae import LaplacianAutoencoder
from lapae.data import load


class Block(nn.Module):
    """relu(conv(x) + x), after x + pool(x) where it has one."""

    def __init__(self, n: int = 64, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[m for _ in range(3) for m in (nn.Conv2d(n, n, 3, padding=1), nn.ReLU())][:-1])
        wide = 4 * n
        self.pool = (
            nn.Sequential(
                nn.Conv2d(n, wide, 1, bias=False), nn.GroupNorm(4, wide), nn.ReLU(), nn.Conv2d(wide, n, 1, bias=False)
            )
            if pool
            else None
        )
        self.fuse = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.pool is not None:
            x = x + self.pool(x)
        return self.fuse(self.conv(x) + x)


class Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * torch.tanh(x / 3)


def conv(n_in: int, n_out: int, **options: object) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 3, padding=1, **options)  # pyright: ignore[reportArgumentType]


def taef2(folder: Path) -> tuple[nn.Module, nn.Module]:
    """The encoder (B, 3, H, W) -> (B, 32, H / 8, W / 8) and the decoder, with their trained weights."""
    down = [m for last in (False, False, True) for m in (conv(64, 64, stride=2, bias=False), *blocks(last))]
    encoder = nn.Sequential(conv(3, 64), Block(), *down, conv(64, 32))
    up = [
        m
        for first in (True, False, False)
        for m in (*blocks(first), nn.Upsample(scale_factor=2), conv(64, 64, bias=False))
    ]
    decoder = nn.Sequential(Clamp(), conv(32, 64), nn.ReLU(), *up, Block(), conv(64, 3))
    for network, name in ((encoder, "encoder"), (decoder, "decoder")):
        state = {k: v.float() for k, v in load_file(folder / f"taef2_{name}.safetensors").items()}
        network.load_state_dict(state)
    return encoder, decoder


def autoencoder_kl() -> nn.Module:
    """A small one of diffusers, with attention and group normalisation: (B, 3, H, W) to codes (B, 4, H / 4, W / 4)."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(32, 64, 64),
        norm_num_groups=8,
    )


def blocks(pool: bool) -> list[nn.Module]:
    return [Block(pool=pool) for _ in range(3)]


def others(faces: np.ndarray, data: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What is no face, or no longer one, of the size of `faces` (n, 3, H, W) in [0, 1]."""
    n, size = len(faces), faces.shape[-1]
    rolled = sum(np.roll(faces, (i, j), (2, 3)) for i in range(-2, 3) for j in range(-2, 3)) / 25
    hole = faces.copy()
    hole[:, :, size // 4 : size // 2, size // 4 : size // 2] = rng.uniform(size=(n, 3, size // 4, size // 4))
    gray = {name: np.asarray(load(name, data_dir=data).test.x[:n], np.float32) for name in ("mnist", "fashion_mnist")}
    large = {name: np.stack([enlarge(x, size) for x in images]) for name, images in gray.items()}
    return {
        "fashion": large["fashion_mnist"],
        "digits": large["mnist"],
        "noise": rng.uniform(size=faces.shape),
        "grey": np.full(faces.shape, 0.5),
        "black": np.zeros(faces.shape),
        "blurred 5x5": rolled,
        "noisy 0.1": np.clip(faces + 0.1 * rng.normal(size=faces.shape), 0, 1),
        "noise in a square": hole,
        "inverted": 1 - faces,
    }


def enlarge(image: np.ndarray, size: int) -> np.ndarray:
    """A gray image as colour of another size."""
    image = np.squeeze(image)
    scaled = image if image.max() > 1 else 255 * image
    big = np.asarray(Image.fromarray(scaled.astype(np.uint8)).resize((size, size), Image.Resampling.BILINEAR)) / 255
    return np.repeat(big[None], 3, 0)


def auroc(normal: np.ndarray, unusual: np.ndarray) -> float:
    """Probability that an unusual sample has the higher score."""
    order = np.concatenate([normal, unusual])
    from scipy.stats import rankdata

    ranks = rankdata(order)[len(normal) :]
    return float((ranks.sum() - len(unusual) * (len(unusual) + 1) / 2) / (len(normal) * len(unusual)))


def picture(path: Path, faces: np.ndarray, means: np.ndarray, deviations: np.ndarray) -> None:
    """Rows: data, reconstructions, deviation maps (white is the largest deviation of all)."""
    maps = np.repeat(deviations.mean(1, keepdims=True), 3, 1) / np.quantile(deviations.mean(1), 0.999)
    rows = [np.concatenate(list(np.clip(row, 0, 1)), axis=2) for row in (faces, means, maps)]
    image = np.concatenate(rows, axis=1).transpose(1, 2, 0)
    Image.fromarray((255 * image).astype(np.uint8)).resize((2 * image.shape[1], 2 * image.shape[0]), 0).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--faces", type=int, default=1000)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--online", type=int, metavar="EPOCHS")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    celeba = load("celeba", data_dir=given.data, image_size=given.size)
    faces, test = (np.asarray(split.x[:n]) for split, n in ((celeba.train, given.faces), (celeba.test, given.test)))
    began = time.monotonic()
    if given.online is None:
        model = LaplacianAutoencoder.from_trained(*taef2(given.data / "pretrained"), random_state=0)
    else:
        model = LaplacianAutoencoder(network=autoencoder_kl(), epochs=given.online, random_state=0)
    model.fit(faces)
    seconds = time.monotonic() - began
    x = celeba.space.convert(test)  # (n, 3, H, W) in [0, 1]
    scale = 255 if faces.dtype == np.uint8 else 1
    sets = {"faces": x, **others(x, given.data, np.random.default_rng(0))}
    found = {"faces": len(faces), "size": given.size, "fit_seconds": round(seconds, 1)}
    found |= {"explained": model.model_.metrics.get("explained"), "online_epochs": given.online, "sets": {}}
    scores = {}
    layout = (0, 2, 3, 1) if faces.shape[-1] == 3 else (0, 1, 2, 3)
    for name, images in sets.items():
        images = (images.transpose(layout) * scale).astype(faces.dtype)
        surprise, p = model.model_.anomaly_score(images)
        scores[name] = surprise
        found["sets"][name] = {
            "flagged_at_5": float((p <= 0.05).mean()),
            "median_p": float(np.median(p)),
            "auroc": auroc(scores["faces"], surprise),
        }
        print(name, found["sets"][name], flush=True)
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "pretrained.json").write_text(json.dumps(found, indent=1) + "\n")
        chosen = np.concatenate([x[:6], sets["noise in a square"][6:8], sets["noisy 0.1"][8:9], sets["fashion"][:1]])
        mean, deviation = model.reconstruct((chosen.transpose(layout) * scale).astype(faces.dtype), return_std=True)
        undo = np.argsort(layout)
        picture(given.out / "pretrained.png", chosen, mean.transpose(undo) / scale, deviation.transpose(undo) / scale)


if __name__ == "__main__":
    main()
