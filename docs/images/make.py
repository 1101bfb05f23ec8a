"""Make the pictures of the README and of the guide: python docs/images/make.py

MNIST ($LAPAE_DATA, or downloaded), a dense network, ten epochs, a few minutes on a CPU; then the three programs of
examples/. Pictures go into this folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from lapae.config import Config, DataConfig, ModelConfig, TrainConfig
from lapae.fit import fit, load_data
from lapae.runs import Run
from lapae.storage import load_run
from lapae.view.figures import imputation_figure, latent_figure, reconstruction_figure

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


def main() -> None:
    """Train, draw, run the examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the pictures")
    parser.add_argument("--source", default="mnist", help="data of the README's pictures")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--n-samples", type=int, default=100, help="networks drawn for a mean or a deviation")
    parser.add_argument("--run", type=Path, help="draw this trained run instead of training one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if options.run is None:
            train = TrainConfig(epochs=options.epochs, verbose=False)
            config = Config(data=DataConfig(options.source), model=ModelConfig(latent_dim=2), train=train)
            fit(config.resolved(), run=Run.create(run))
        draw(run, options.out, options.n_samples)
    for example in ("sensors", "imputation", "images"):
        subprocess.run([sys.executable, str(EXAMPLES / f"{example}.py"), str(options.out)], check=True)


def draw(run: Path, out: Path, n_samples: int) -> None:
    """The pictures of the README: test images of a run."""
    model = load_run(run)
    test = load_data(model.config.data).test
    index = np.sort(np.random.default_rng(0).permutation(len(test))[:2000])
    x = torch.from_numpy(model.space.to_model(np.asarray(test.x[index])))
    assert test.y is not None
    labels = test.y[index]
    first = x[np.unique(labels, return_index=True)[1]]  # one image of each class
    pictures = {
        "latent": latent_figure(model, x, labels, n_samples=n_samples),
        "reconstructions": reconstruction_figure(model, first, n_samples=n_samples),
        "imputation": imputation_figure(model, first[:5]),
    }
    for name, figure in pictures.items():
        figure.savefig(out / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
