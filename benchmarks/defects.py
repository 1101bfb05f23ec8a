"""Defects on surfaces: `features=` beside the usual detectors on the same features.

    python benchmarks/defects.py --data FOLDER [--splits 20] [--defective 0.1] [--out results.json]
    python benchmarks/defects.py --generated grain part --splits 1

Generated sets are those of `surfaces.py`: 140 normal images and 60 with a defect. FOLDER holds free/ (images without
a defect), and by kind of defect NAME/ and NAME_masks/ (its .png mask, by the same name). In each split 100 images of
free/ are learned, of which a share `--defective` is replaced by defective ones that are not tested; the others are
tested beside the defective ones. All images are stretched to 224x224 pixels, and all methods get the same features,
those of EfficientNet-Lite0, which are computed once. `lapae` is the score that a model of `features=` has, without
the training of its autoencoder, which has no part in it; `whole` is the estimator, with that training and with
features made anew. Figures: AUROC of images and of pixels, PRO (mean share of each defect that is found, up to 30 %
false pixels; Bergmann et al. 2020), and the share of new normal images that lapae flags at 5 %.

The peers: PaDiM (a Gaussian for each position, ridge 0.01), PatchCore (distance to the nearest of a tenth of all
training patches, chosen by its greedy k-center search in a random projection to 128 features; minutes per split without
`--device cuda`), PCA of patches (residual of 64 components) and a plain autoencoder of patches (176-64-8-64-176). Their
maps are smoothed over 3x3 positions, the score of an image is the greatest of its map.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import label
from sklearn.metrics import roc_auc_score
from surfaces import SURFACES, drawn
from torch.nn.functional import avg_pool2d

from lapae.features import feature_maps, load
from lapae.score.patches import PatchDistances, to_pixels

SIDE, TRAINED = 224, 100
PEERS = ("padim", "patchcore", "pca", "autoencoder")


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images (n, H, W), masks (n, H, W) bool, and the kind of each image, "free" for none."""
    images, masks, kinds = [], [], []
    for kind in sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.endswith("_masks")):
        for file in sorted((folder / kind).iterdir()):
            images.append(np.asarray(Image.open(file).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)))
            mask = np.zeros((SIDE, SIDE), bool)
            if kind != "free":
                drawn = Image.open(folder / f"{kind}_masks" / f"{file.stem}.png").convert("L")
                mask = np.asarray(drawn.resize((SIDE, SIDE), Image.Resampling.NEAREST)) > 127
            masks.append(mask)
            kinds.append(kind)
    return np.stack(images), np.stack(masks), np.array(kinds)


def padim(train: torch.Tensor, test: torch.Tensor, seed: int) -> torch.Tensor:
    mean = train.mean(0)
    gap = (train - mean).permute(1, 2, 0, 3)
    covariance = gap.transpose(2, 3) @ gap / (len(train) - 1) + 0.01 * torch.eye(train.shape[-1]).to(train)
    lower = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(lower, (test - mean).permute(1, 2, 3, 0), upper=False)
    return scaled.square().sum(2).permute(2, 0, 1).sqrt()


def patchcore(train: torch.Tensor, test: torch.Tensor, seed: int) -> torch.Tensor:
    bank = train.flatten(0, 2)
    bank = bank[k_center(bank, len(bank) // 10, seed)]
    size = bank.square().sum(1)
    near = [
        (x.square().sum(1) + (size - 2 * x @ bank.T).amin(1)).clamp_min(0).sqrt()
        for x in test.flatten(0, 2).split(4096)
    ]
    return torch.cat(near).reshape(test.shape[:3])


def k_center(x: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """Choose n rows of x: each the one that is farthest from those chosen before."""
    generator = torch.Generator().manual_seed(seed)
    x = x @ torch.randn(x.shape[1], 128, generator=generator).to(x) / 128**0.5
    size = x.square().sum(1)
    chosen = torch.empty(n, dtype=torch.long, device=x.device)
    at, near = torch.randint(len(x), (), generator=generator).to(x.device), torch.full_like(size, torch.inf)
    for i in range(n):
        chosen[i] = at
        near = torch.minimum(near, size + size[at] - 2 * (x @ x[at]))
        at = near.argmax()
    return chosen


def pca(train: torch.Tensor, test: torch.Tensor, seed: int) -> torch.Tensor:
    flat = train.flatten(0, 2)
    mean, scale = flat.mean(0), flat.std(0)
    flat = (flat - mean) / scale
    rest = torch.linalg.eigh(flat.T @ flat).eigenvectors[:, :-64]
    return (((test - mean) / scale) @ rest).square().sum(-1)


def autoencoder(train: torch.Tensor, test: torch.Tensor, seed: int) -> torch.Tensor:
    flat = train.flatten(0, 2)
    mean, scale = flat.mean(0), flat.std(0)
    x, d = (flat - mean) / scale, flat.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [(d, 64), (64, 8), (8, 64), (64, d)]
        layers = [module for a, b in sizes for module in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        net = torch.nn.Sequential(*layers[:-1]).to(train.device)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        for _ in range(5):
            for part in torch.randperm(len(x)).split(256):
                optimizer.zero_grad()
                (net(x[part]) - x[part]).square().mean().backward()
                optimizer.step()
    with torch.no_grad():
        y = (test - mean) / scale
        return (net(y) - y).square().sum(-1)


def pro(maps: np.ndarray, masks: np.ndarray, most: float = 0.3) -> float:
    """Return the area under the mean overlap with each connected defect, over false pixels up to `most`."""
    normal = np.sort(maps[~masks])[::-1]
    rates = np.linspace(0, most, 61)
    thresholds = normal[(rates * (len(normal) - 1)).astype(int)]
    overlaps = []
    for found, mask in zip(maps, masks, strict=True):
        regions, n = label(mask)  # pyright: ignore[reportGeneralTypeIssues]
        overlaps += [(found[regions == i + 1][:, None] >= thresholds).mean(0) for i in range(n)]
    return float(np.trapezoid(np.mean(overlaps, 0), rates) / most)


def smoothed(maps: torch.Tensor) -> torch.Tensor:
    return avg_pool2d(maps[:, None], 3, 1, 1, count_include_pad=False)[:, 0]


def ours(train: torch.Tensor, test: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores and p-values of images, and scores of pixels, as a model of `features=` does."""
    fitted = PatchDistances.fit(train)
    known, at = fitted.of_images(train, torch.arange(len(train))), fitted(test)
    found = fitted.top(at)
    p = (1 + (known >= found[:, None]).sum(1)) / (len(known) + 1)
    return found.cpu().numpy(), p.cpu().numpy(), to_pixels(at, (SIDE, SIDE)).cpu().numpy()


def whole(train: np.ndarray, test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from lapae import LaplacianAutoencoder

    model = LaplacianAutoencoder(features="efficientnet_lite0", random_state=seed, device="cpu").fit(train)
    return -model.score_samples(test), model.p_value(test), -model.score_pixels(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--generated", nargs="*", choices=[*SURFACES], help="default: all")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--defective", type=float, default=0.0, help="share of the training images with a defect")
    parser.add_argument("--only", nargs="*", choices=["lapae", "whole", *PEERS], default=["lapae", *PEERS])
    parser.add_argument("--device", default="cpu", help="where to compute: cpu or cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    every = [None] if options.data else options.generated or list(SURFACES)
    results: dict[str, dict[str, list[list[float]]]] = {}
    for name in every:
        x, masks, kinds = read(options.data) if name is None else drawn(name, 140, 60, 0)
        results[name or options.data.name] = compared(x, masks, kinds, options)
    for set_name, found in results.items():
        for name, figures in found.items():
            images, pixels, overlap, flagged, seconds = np.mean(figures, 0)
            line = f"image AUROC {images:.3f} pixel AUROC {pixels:.3f} PRO {overlap:.3f} flagged {flagged:.3f}"
            print(f"{set_name}: mean {name:<12} {line} {seconds:.0f} s")
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1))


def compared(
    x: np.ndarray, masks: np.ndarray, kinds: np.ndarray, options: argparse.Namespace
) -> dict[str, list[list[float]]]:
    """Return by method, for each split: AUROC of images and pixels, PRO, share flagged, seconds."""
    free, defective = np.flatnonzero(kinds == "free"), np.flatnonzero(kinds != "free")
    network = load("efficientnet_lite0").to(options.device)
    maps = torch.from_numpy(feature_maps(network, x[:, None].astype(np.float32) / 255)).to(options.device)
    found: dict[str, list[list[float]]] = {name: [] for name in options.only}
    for seed in range(options.splits):
        rng = np.random.default_rng(seed)
        normal, other = rng.permutation(free), rng.permutation(defective)
        n = round(TRAINED * options.defective)
        train, test = np.r_[normal[: TRAINED - n], other[:n]], np.r_[normal[TRAINED:], other[n:]]
        unusual = kinds[test] != "free"
        for name, figures in found.items():
            began = time.perf_counter()
            if name in ("lapae", "whole"):
                score, p, pixels = ours(maps[train], maps[test]) if name == "lapae" else whole(x[train], x[test], seed)
                flagged = float((p[~unusual] <= 0.05).mean())
            else:
                made = smoothed(globals()[name](maps[train], maps[test], seed).cpu())
                score, pixels = made.flatten(1).amax(1).numpy(), to_pixels(made, (SIDE, SIDE)).numpy()
                flagged = float("nan")
            seconds = time.perf_counter() - began
            areas = [roc_auc_score(unusual, score), roc_auc_score(masks[test].ravel(), pixels.ravel())]
            figures.append([*map(float, areas), pro(pixels, masks[test]), flagged, seconds])
            print(seed, f"{name:<12}", " ".join(f"{value:.3f}" for value in figures[-1]), flush=True)
    return found


if __name__ == "__main__":
    main()
