"""Quality of bf16 training: the same runs in float32 and in bf16, errors on test data.

    python benchmarks/bf16.py

"-log p" is the squared error of sampled networks, "MSE" that of their mean, "deviation" the mean output deviation.
"""

from __future__ import annotations

import torch

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.fit import fit, load_data
from lapae.predict import predict
from lapae_paper.choices import as_in_the_paper

CASES = {
    "dense": ("mnist", 10_000, 10, ModelConfig(network="paper-mnist")),
    "convolutional": ("fashion_mnist", 4_000, 6, ModelConfig(network="conv", channels=(8, 16), hidden=(128,))),
}


def main() -> None:
    for name, (source, limit, epochs, model) in CASES.items():
        where = DataConfig(source=source, limit=limit)
        data = load_data(where)
        for seed in range(3):
            for precision in ("32", "bf16"):
                train = TrainConfig(epochs=epochs, seed=seed, precision=precision, verbose=False)
                config = as_in_the_paper(Config(where, model, MethodConfig(method="online"), train))
                method = fit(config, data).method
                device = next(method.parameters()).device
                x = torch.as_tensor(data.space.convert(data.test.x[:2000]), dtype=torch.float32, device=device)
                found = predict(method, x, n_samples=20, want=("outputs", "error"))
                cells = [found.squared_error, found.squared_error_of_mean, found.x_var.sqrt()]
                print(f"| {name} | {seed} | {precision} |", " | ".join(f"{float(c.mean()):.4g}" for c in cells), "|")


if __name__ == "__main__":
    main()
