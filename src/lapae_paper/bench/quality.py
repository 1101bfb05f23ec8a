"""Error and cost of the cheap diagonals against the exact one, layer by layer, on a given network.

For a layer with exact diagonal h and estimate ĥ the relative error is |ĥ - h| / |h| over its parameters, and the bias
the ratio of their sums, Σ ĥ / Σ h: 1 is unbiased, above 1 the posterior is too narrow. Estimates sum over the same
data, so that the errors of `mc` and `sketch` are those of one pass; they fall with the number of samples (for a sketch,
of batches) and of draws, while that of `approx` stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature import Params, ggn_diagonal
from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae_paper.bench.measure import take_turns, typical

ESTIMATES: dict[str, dict[str, Any]] = {
    "approx": {"method": "approx"},
    "mixed": {"method": "mixed", "switch": 1024},
    "bottleneck": {"method": "bottleneck"},
    "mc(1)": {"method": "mc", "n_samples": 1},
    "mc(10)": {"method": "mc", "n_samples": 10},
    "sketch(1)": {"method": "sketch", "n_samples": 1},
    "sketch(10)": {"method": "sketch", "n_samples": 10},
}


def quality(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    *,
    bottleneck: str | None = None,
    batch_size: int = 64,
    switch: int = 1024,
    seconds: float = 5.0,
) -> list[dict[str, Any]]:
    """Return one row per layer and estimate, and one for all layers ("all"): layer, estimate, error, bias, cost.

    Args:
        module: a network, trained or not.
        x: samples (N, *in); all of them are summed over, in batches.
        likelihood: likelihood for the Hessian at the output; default: `Gaussian()`.
        bottleneck: name of the layer or container whose output is the code.
        batch_size: samples per pass; the cost is a multiple of a forward plus backward pass of one batch.
        switch: number of features up to which "mixed" carries the full M.
        seconds: approximate time to measure the cost.
    """
    likelihood = likelihood or Gaussian()
    batches = list(x.split(batch_size))
    exact = _total(module, batches, likelihood, {"method": "exact"})
    options = {name: dict(option) for name, option in ESTIMATES.items()}
    options["mixed"]["switch"] = switch
    options["bottleneck"]["bottleneck"] = bottleneck
    cost = _cost(module, batches[0], likelihood, {"exact": {"method": "exact"}, **options}, seconds)
    rows = [{"layer": "all", "estimate": "exact", "error": 0.0, "bias": 1.0, "cost": cost["exact"]}]
    for name, option in options.items():
        torch.manual_seed(0)
        h = _total(module, batches, likelihood, option)
        for layer, keys in {"all": list(exact), **_layers(exact)}.items():
            error, bias = _compare([h[k] for k in keys], [exact[k] for k in keys])
            rows.append({"layer": layer, "estimate": name, "error": error, "bias": bias, "cost": cost[name]})
    return rows


def _total(module: nn.Module, batches: Sequence[Tensor], likelihood: Likelihood, options: dict[str, Any]) -> Params:
    total: Params = {}
    for batch in batches:
        h = ggn_diagonal(module, batch, likelihood, **options)
        total = {k: total[k] + h[k] for k in h} if total else h
    return total


def _layers(h: Params) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for name in h:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def _compare(estimate: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    a, b = (torch.cat([h.flatten() for h in parts]).double() for parts in (estimate, exact))
    return ((a - b).norm() / b.norm()).item(), (a.sum() / b.sum()).item()


def _cost(
    module: nn.Module, x: Tensor, likelihood: Likelihood, options: dict[str, dict[str, Any]], seconds: float
) -> dict[str, float]:
    parameters = [p for p in module.parameters() if p.requires_grad]

    def base() -> None:
        output = module(x)
        torch.autograd.grad(likelihood.log_prob(output, likelihood.mean(output).detach()).sum(), parameters)

    def estimate(option: dict[str, Any]) -> None:
        ggn_diagonal(module, x, likelihood, **option)

    works = {"base": base} | {name: lambda option=option: estimate(option) for name, option in options.items()}
    times = take_turns(works, seconds, min_rounds=3)
    return {name: typical(times[name]) / typical(times["base"]) for name in options}


def table(rows: list[dict[str, Any]]) -> str:
    """Write a Markdown table: relative error (and bias) of each estimate by layer; its cost in the last row."""
    names = list(dict.fromkeys(row["estimate"] for row in rows if row["estimate"] != "exact"))
    found = {(row["layer"], row["estimate"]): row for row in rows}
    lines = ["| layer | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for layer in [*(key for key in dict.fromkeys(row["layer"] for row in rows) if key != "all"), "all"]:
        cells = [f"{found[layer, name]['error']:.3f} ({found[layer, name]['bias']:.2f})" for name in names]
        lines.append(f"| {layer} | " + " | ".join(cells) + " |")
    lines.append("| cost | " + " | ".join(f"{found['all', name]['cost']:.2f}" for name in names) + " |")
    exact = found["all", "exact"]["cost"]
    legend = "Relative error, and in brackets the ratio of sums (1: unbiased). Cost in forward plus backward passes"
    return "\n".join(lines) + f"\n\n{legend}; exact costs {exact:.1f}."
