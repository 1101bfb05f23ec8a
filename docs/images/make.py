"""Make the pictures of the README and of the guide: python docs/images/make.py

MNIST ($LAPAE_DATA, or downloaded). `--only map`: a latent space of two dimensions, ten epochs. `--only samples`: 5,000
images, fifteen epochs, everything else as the data choose; new images and completions of halves. `--only examples`: the
four programs of examples/ that draw. `--only tutorials`: the code of the tutorial that draws. A few minutes each on a
CPU. `--only defects --source FOLDER`: the commands of the tutorial on images, on the folder that benchmarks/defects.py
takes (magnetic tiles: Huang, Qiu and Yuan 2018). Pictures go into this folder.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from lapae import LaplacianAutoencoder
from lapae.config import Config, DataConfig, ModelConfig, TrainConfig
from lapae.fit import fit, load_data
from lapae.model import Model
from lapae.runs import Run
from lapae.storage import load_run
from lapae.view.latent_map import latent_space, plane
from lapae_paper.experiments.pictures import reconstruction_figure, reconstructions
from lapae_paper.tasks.completion import mask
from lapae_paper.tasks.figures import image_grid

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
DEFECTS = (
    "blowhole/exp2_num_40424.jpg",
    "crack/exp6_num_32235.jpg",
    "fray/exp3_num_136351.jpg",
    "uneven/exp6_num_155478.jpg",
    "break/exp4_num_284532.jpg",
)
FEW = 5000
"""Images that the model of samples and completions learns from."""


def main() -> None:
    """Train, draw, run the examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the pictures")
    parser.add_argument(
        "--only", choices=("map", "samples", "examples", "tutorials", "defects"), help="these pictures alone"
    )
    parser.add_argument("--source", default="mnist", help="data of the README's pictures")
    parser.add_argument("--epochs", type=int, help="of either training")
    parser.add_argument("--n-samples", type=int, default=100, help="networks drawn for a mean or a deviation")
    parser.add_argument("--run", type=Path, help="draw this trained run instead of training one, with --only")
    options = parser.parse_args()
    if options.only in (None, "map"):
        draw_map(options)
    if options.only in (None, "samples"):
        draw_samples(options)
    if options.only in (None, "examples"):
        for example in ("sensors", "imputation", "images", "extrapolation"):
            subprocess.run([sys.executable, str(EXAMPLES / f"{example}.py"), str(options.out)], check=True)
    if options.only == "defects":
        draw_defects(options)
    if options.only in (None, "tutorials"):
        page = (HERE.parent / "tutorials" / "images.md").read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S))
        subprocess.run([sys.executable, "-c", code], cwd=options.out, check=True)


def draw_map(options: argparse.Namespace) -> None:
    """Codes of two dimensions, and reconstructions from them."""
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if options.run is None:
            train = TrainConfig(epochs=options.epochs or 10, verbose=False)
            config = Config(data=DataConfig(options.source), model=ModelConfig(latent_dim=2), train=train)
            fit(config.resolved(), run=Run.create(run))
        model = load_run(run)
    x, labels = held_out(model, options.source)
    first = x[np.unique(labels, return_index=True)[1]]  # one image of each class
    latent_figure(model, x, labels, options.n_samples).savefig(options.out / "latent.png", dpi=110)
    found = reconstructions(model, first, n_samples=options.n_samples)
    reconstruction_figure(found).savefig(options.out / "reconstructions.png", dpi=110)


def draw_samples(options: argparse.Namespace) -> None:
    """New images, and completions of halves of images that training has not seen."""
    if options.run is None:
        x = np.asarray(load_data(DataConfig(options.source)).train.x[:FEW])
        model = LaplacianAutoencoder(epochs=options.epochs or 15, random_state=0).fit(x).model_
    else:
        model = load_run(options.run)
    x, labels = held_out(model, options.source)
    first = x[np.unique(labels, return_index=True)[1]]
    made = model.tensor(model.sample(64, seed=0))
    image_grid([list(row) for row in made.split(16)]).savefig(options.out / "samples.png", dpi=80)
    imputation_figure(model, first).savefig(options.out / "imputation.png", dpi=90)


def draw_defects(options: argparse.Namespace) -> None:
    """Tiles that training has not seen, and where they are unusual; the p-value above each."""
    source = Path(options.source)
    free = sorted((source / "free").iterdir())
    chosen = [free[i] for i in np.random.default_rng(0).permutation(len(free))]  # split 0 of benchmarks/defects.py
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in chosen[:100]:
            (folder / "good").mkdir(exist_ok=True)
            shutil.copy(file, folder / "good")
        (folder / "new").mkdir()
        for kind, file in (("free", chosen[100]), *((file.split("/")[0], source / file) for file in DEFECTS)):
            shutil.copy(file, folder / "new" / f"{kind}.jpg")
        lapae = [sys.executable, "-m", "lapae"]
        train = [*lapae, "train", "good", "--features", "efficientnet_lite0", "--out", "run"]
        subprocess.run(train, cwd=folder, check=True)
        subprocess.run([*lapae, "score", "run", "new", "-o", "new.csv", "--maps", "maps"], cwd=folder, check=True)
        found = pd.read_csv(folder / "new.csv").sort_values("p_value", ascending=False)
        figure = Figure(figsize=(1.5 * len(found), 3.3), layout="constrained")
        panels = figure.subplots(2, len(found))
        for column, (file, p) in enumerate(zip(found["file"], found["p_value"], strict=True)):
            for panel, path in zip(panels[:, column], ("new", "maps"), strict=True):
                picture = Image.open((folder / path / file).with_suffix(".jpg" if path == "new" else ".png"))
                panel.imshow(picture.convert("RGB").resize((224, 224)))
                panel.set(xticks=[], yticks=[])
            panels[0, column].set_title(f"{Path(file).stem}\np = {p:.2g}", fontsize=9)
        figure.savefig(options.out / "defects.png", dpi=100)


def latent_figure(model: Model, x: Tensor, y: np.ndarray, n_samples: int) -> Figure:
    """The codes of data x (N, *shape), coloured by class, on the deviation of the decoder (paper, figure 1)."""
    space = latent_space(model.method, x)
    shades = plane(model.method, space, side=64, n_samples=n_samples).total.view(64, 64)
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    extent = (*space.limits[0], *space.limits[1])
    heat = axes.imshow(shades, extent=extent, aspect="auto", cmap="Greys", interpolation="bilinear")
    figure.colorbar(heat, label="standard deviation, summed over the image", shrink=0.85)
    for i, value in enumerate(np.unique(y)):
        axes.scatter(*space.points[y == value, :2].T, s=4, linewidths=0, color=f"C{i % 10}", label=str(value))
    style = {"fontsize": 8, "markerscale": 3, "frameon": False, "handletextpad": 0.1, "columnspacing": 0.8}
    figure.legend(loc="outside lower center", ncols=len(np.unique(y)), **style)
    axes.set(xlabel=space.names[0], ylabel=space.names[1], xlim=space.limits[0], ylim=space.limits[1])
    return figure


def imputation_figure(model: Model, x: Tensor, n: int = 6) -> Figure:
    """One row per image of x (N, C, H, W): truth, what is left of it, n completions of the missing upper half."""
    observed = mask("upper", tuple(x.shape[1:]))
    incomplete = model.space.to_user(x.masked_fill(~observed, torch.nan).numpy())
    made = [model.tensor(part) for part in model.impute(incomplete, n_samples=n)]
    seen = x.masked_fill(~observed, 0.5)
    rows = [[x[i], seen[i], *(part[i] for part in made)] for i in range(len(x))]
    return image_grid(rows, ["truth", "seen", *(f"{m + 1}" for m in range(n))])


def held_out(model: Model, source: str) -> tuple[Tensor, np.ndarray]:
    """Up to 2,000 test images (n, *model_shape) in the space of a model, and their classes."""
    data = load_data(DataConfig(source))
    test = data.test
    index = np.sort(np.random.default_rng(0).permutation(len(test))[:2000])
    assert test.y is not None
    return torch.from_numpy(data.space.to_model(np.asarray(test.x[index]))), test.y[index]


if __name__ == "__main__":
    main()
