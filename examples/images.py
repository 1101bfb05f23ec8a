"""Look at a set of images through a latent space: python examples/images.py OUT

The digits of scikit-learn, in two dimensions. Writes OUT/map.png, the codes on the standard deviation of the decoder
with a walk that is decoded, and OUT/unusual.png, the images that the model finds most and least usual.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from lapae import LaplacianAutoencoder
from lapae.predict import draw_seeds, evaluating

STEPS = 11


def decoded(model: LaplacianAutoencoder, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation (n, 8, 8) of the decoder over 50 networks at codes (n, 2)."""
    import torch

    method = model.model_.method
    with evaluating(method):
        drawn = method.draw(draw_seeds(0, 50)).decode(torch.as_tensor(z, dtype=torch.float32)[None]).loc
    return drawn.mean(0)[:, 0].numpy(), drawn.std(0)[:, 0].numpy()


def draw_map(model: LaplacianAutoencoder, x: np.ndarray, y: np.ndarray, walk: np.ndarray) -> Figure:
    """Draw the codes of x on the standard deviation, one ellipse in fifteen; below, the decoded walk (n, 2)."""
    z, z_std = model.transform(x, return_std=True)
    low, high = z.min(0) - 0.5, z.max(0) + 0.5
    across, up = (np.linspace(a, b, 60) for a, b in zip(low, high, strict=True))
    plane = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    spread = decoded(model, plane)[1].sum((1, 2)).reshape(60, 60)

    figure = Figure(figsize=(8, 8.5), layout="constrained")
    top, below = figure.subfigures(2, 1, height_ratios=[4.2, 1])
    axes = top.add_subplot()
    heat = axes.imshow(
        spread,
        origin="lower",
        extent=(low[0], high[0], low[1], high[1]),
        cmap="Greys",
        aspect="auto",
        interpolation="bilinear",
    )
    top.colorbar(heat, label="standard deviation of the decoder, summed over pixels")
    colours = [f"C{label}" for label in y]
    axes.scatter(*z.T, c=colours, s=6, linewidths=0)
    axes.errorbar(*z[::15].T, *z_std[::15, ::-1].T, fmt="none", ecolor=colours[::15], elinewidth=0.8)
    for label in range(10):
        axes.text(*np.median(z[y == label], 0), str(label), fontsize=15, weight="bold", ha="center", va="center")
    axes.plot(*walk.T, "o-", color="black", markerfacecolor="white", markersize=5, linewidth=1)
    axes.set(xlabel="z1", ylabel="z2", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axes.set_title("codes of test images, one in fifteen with its standard deviation; the walk that is decoded below")

    mean, std = decoded(model, walk)
    rows = (("mean", mean, "gray", 1), ("dev.", std, "magma", std.max()))
    for line, (name, images, colours, most) in zip(below.subplots(2, STEPS), rows, strict=True):
        for cell, image in zip(line, images, strict=True):
            cell.imshow(image, cmap=colours, vmin=0, vmax=most)
            cell.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    return figure


def draw_unusual(x: np.ndarray, y: np.ndarray, score: np.ndarray, n: int = 12) -> Figure:
    """Draw the n least and the n most usual images of x, with the percentage of images that are more unusual."""
    order = np.argsort(score)
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    for row, chosen, name in zip(figure.subplots(2, n), (order[:n], order[-n:]), ("unusual", "usual"), strict=True):
        for axes, i in zip(row, chosen, strict=True):
            axes.imshow(x[i], cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{y[i]}: {100 * np.mean(score < score[i]):.1f} %", fontsize=7)
        row[0].set_ylabel(name)
    return figure


def main(out: Path) -> None:
    """Learn, print, draw."""
    digits = load_digits()
    train, x, _, y = train_test_split(digits.images / 16, digits.target, test_size=0.4, random_state=0)
    model = LaplacianAutoencoder(latent_dim=2, epochs=60, n_samples=30, random_state=0).fit(train)
    z = model.transform(x)
    start, end = (np.median(z[y == label], 0) for label in (0, 4))
    walk = start + np.linspace(0, 1.6, STEPS)[:, None] * (end - start)  # beyond the last digit, out of the data
    score = model.score_samples(x)
    print(f"{len(x)} images; the most unusual are {', '.join(str(label) for label in y[np.argsort(score)[:10]])}")
    draw_map(model, x, y, walk).savefig(out / "map.png", dpi=110)
    draw_unusual(x, y, score).savefig(out / "unusual.png", dpi=110)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
