"""What governs out-of-distribution detection by deviations: one training a setting, scores of every predictive.

    python benchmarks/ood_settings.py '{"hessian": "bottleneck", "forgetting": 0.01}' '{"network": "small"}'

FashionMNIST in, MNIST out, online posterior. A setting is a JSON object of `DEFAULTS`' keys. Beside the AUROC of
the scores (2,000 test images of each set) it splits the output deviation: sampled encoders with the mean decoder, and
sampled decoders at the mean code. `"faulty": true` trains with the authors' faulty rule for upsampling.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.fit import fit, load_data
from lapae.methods import Method
from lapae.predict import predict
from lapae_paper.choices import as_in_the_paper

DEFAULTS = {
    **{"network": "paper-fashion", "latent_dim": 2, "faulty": False, "hessian": "approx", "update": "laplacian"},
    **{"forgetting": 1e-3, "uncertain": "all", "learning_rate": 1e-3, "batch_size": 100, "epochs": 20, "seed": 0},
    **{"schedule": "plateau"},
}
SMALL = {"network": "conv", "channels": (8, 16), "hidden": (128,)}
TEMPERATURES = (1.0, 10.0)


def train(s: dict, data) -> Method:
    network = dict(SMALL) if s["network"] == "small" else {"network": s["network"]}
    if s["faulty"]:
        network["network"] = f"faulty-{network['network']}"
    config = Config(
        DataConfig(source="fashion_mnist"),
        ModelConfig(latent_dim=s["latent_dim"], **network),
        MethodConfig(
            method="online",
            **{key: s[key] for key in ("hessian", "update", "forgetting", "uncertain")},
        ),
        TrainConfig(
            verbose=False, **{key: s[key] for key in ("epochs", "learning_rate", "batch_size", "seed", "schedule")}
        ),
    )
    return fit(as_in_the_paper(config), data).method


def auroc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    labels = [0] * len(inside) + [1] * len(outside)
    return float(roc_auc_score(labels, torch.cat([inside, outside]).double().cpu().numpy()))


def of_predictive(method: Method, sets: list[torch.Tensor], how: str) -> dict[str, float]:
    found = [predict(method, x, predictive=how, n_samples=50, batch_size=250) for x in sets]
    return {
        "log_likelihood": auroc(*(-p.log_likelihood for p in found)),
        "latent_deviation": auroc(*(p.z_var.sqrt().sum(1) for p in found)),
        "output_deviation": auroc(*(p.x_var.sqrt().flatten(1).sum(1) for p in found)),
        "-log p": float(found[0].squared_error.mean()),
        "MSE": float(found[0].squared_error_of_mean.mean()),
    }


@torch.no_grad()
def parts(method: Method, sets: list[torch.Tensor], n_samples: int = 50) -> dict[str, float]:
    """AUROC of the output deviation that encoders alone, and decoders alone, make; and its size inside."""
    sums: dict[str, list[torch.Tensor]] = {"encoder": [], "decoder": []}
    mean = method.draw_mean()
    for x in sets:
        z = mean.encode(x[None])
        draws = [method.draw([1000 + seed]) for seed in range(n_samples)]
        outputs = {
            "encoder": torch.stack([mean.decode(d.encode(x[None])).loc[0] for d in draws]),
            "decoder": torch.stack([d.decode(z).loc[0] for d in draws]),
        }
        for part, output in outputs.items():
            sums[part].append(output.std(0).flatten(1).sum(1))
    sizes = {f"{part} size": float(both[0].mean()) for part, both in sums.items()}
    return {part: auroc(*both) for part, both in sums.items()} | sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", type=json.loads)
    parser.add_argument("--out", type=Path, default=Path("ood_settings.jsonl"))
    args = parser.parse_args()
    data, other = (load_data(DataConfig(source=name)) for name in ("fashion_mnist", "mnist"))
    for given in args.settings:
        unknown = set(given) - set(DEFAULTS)
        if unknown:
            raise SystemExit(f"unknown settings {sorted(unknown)}: expected some of {sorted(DEFAULTS)}")
        setting = DEFAULTS | given
        method = train(setting, data)
        device = next(method.parameters()).device
        sets = [
            torch.as_tensor(d.space.convert(d.test.x[:2000]), dtype=torch.float32, device=device) for d in (data, other)
        ]
        row = {"setting": setting, "parts": parts(method, sets)}
        for temperature in TEMPERATURES:
            method.posterior.temperature = temperature
            for how in ("mc", "moments"):
                row[f"{how}, temperature {temperature:g}"] = of_predictive(method, sets, how)
        print(json.dumps(row), flush=True)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
