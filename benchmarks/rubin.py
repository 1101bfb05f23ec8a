"""Confidence intervals of an analysis of completed tables: do 95 % intervals hold 95 %?

    python benchmarks/rubin.py [--simulations 100] [--rows 200] [--settings linear-mcar …] [--mice] [--out FILE]

Each simulation draws a table (x1, x2, y) of --rows rows, hides values of x1 and y, completes it 20 times by the
estimator's defaults, analyses each completion, and pools by Rubin's rules with the degrees of freedom of Barnard and
Rubin (1999). Analyses: the regression of y on x1 and x2 (curved: and x1²), that of x1 on y, and the means of x1 and y.
Coverage is the share of simulations whose 95 % interval holds the true coefficient.

x2 and e are normal, x1 = x2 / 2 + sqrt(3/4) u. linear: y = 1 + x1 - x2 / 2 + e. curved: (x1² - 1) / 2 more. mcar: 30 %
of x1 and of y are hidden at random. mar: the more often the larger x2 is, by 1 / (1 + exp(1 - 1.5 x2)).

Beside it `one`: the intervals of one completion taken as if it were data; and with --mice scikit-learn's
IterativeImputer(BayesianRidge, sample_posterior=True), whose model is the true one of the linear table.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

COMPLETIONS, LEVEL = 20, 0.95
SETTINGS = ("linear-mcar", "linear-mar", "curved-mcar", "curved-mar")
MANY = 1_000_000
"""Rows of the table whose coefficients are taken to be the true ones."""


def table(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    x2 = rng.normal(size=n)
    x1 = x2 / 2 + np.sqrt(0.75) * rng.normal(size=n)
    y = 1 + x1 - x2 / 2 + rng.normal(size=n)
    return np.stack([x1, x2, y + (x1**2 - 1) / 2 if kind == "curved" else y], 1)


def hide(x: np.ndarray, pattern: str, rng: np.random.Generator) -> np.ndarray:
    rate = np.full(len(x), 0.3) if pattern == "mcar" else 1 / (1 + np.exp(1 - 1.5 * x[:, 1]))
    hidden = rng.random(x.shape) < rate[:, None]
    hidden[:, 1] = False
    return hidden


def regression(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients but for the constant, and their variances."""
    design = np.column_stack([np.ones(len(y)), x])
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ y
    noise = np.square(y - design @ found).sum() / (len(y) - design.shape[1])
    return found[1:], inverse.diagonal()[1:] * noise


def analysis(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and their variances, (k,) each."""
    given = np.column_stack([x[:, :2], x[:, 0] ** 2]) if kind == "curved" else x[:, :2]
    parts = [regression(given, x[:, 2]), regression(x[:, 2:], x[:, 0])]
    means = x[:, [0, 2]].mean(0), x[:, [0, 2]].var(0, ddof=1) / len(x)
    estimate, variance = zip(*parts, means, strict=True)
    return np.concatenate(estimate), np.concatenate(variance)


def pooled(estimates: np.ndarray, variances: np.ndarray, df: float) -> tuple[np.ndarray, np.ndarray]:
    """Rubin's rules: the estimates (k,) and the half widths of their intervals.

    Args:
        estimates: of m completions, (m, k).
        variances: theirs, (m, k).
        df: degrees of freedom of the analysis of complete data.
    """
    m = len(estimates)
    within, between = variances.mean(0), (1 + 1 / m) * estimates.var(0, ddof=1)
    share = between / (within + between)
    many, observed = (m - 1) / np.maximum(share, 1e-9) ** 2, (df + 1) / (df + 3) * df * (1 - share)
    t = stats.t.ppf((1 + LEVEL) / 2, many * observed / (many + observed))
    return estimates.mean(0), t * np.sqrt(within + between)


def completions(x: np.ndarray, seed: int, mice: bool) -> dict[str, np.ndarray]:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    from lapae import LaplacianAutoencoder

    model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(x)
    ours = np.asarray(model.impute(x, n_samples=COMPLETIONS))
    if not mice:
        return {"lapae": ours, "one": ours[:1]}
    theirs = [
        np.asarray(IterativeImputer(sample_posterior=True, random_state=seed + 10_000 * i).fit_transform(x))
        for i in range(COMPLETIONS)
    ]
    return {"lapae": ours, "one": ours[:1], "mice": np.stack(theirs)}


def simulate(setting: str, n: int, seed: int, truth: np.ndarray, mice: bool) -> dict[str, Any]:
    kind, pattern = setting.split("-")
    rng = np.random.default_rng(seed)
    x = table(kind, n, rng)
    given = np.where(hide(x, pattern, rng), np.nan, x)
    found: dict[str, Any] = {"setting": setting, "rows": n, "seed": seed}
    for name, filled in completions(given, seed, mice).items():
        estimates, variances = map(np.array, zip(*(analysis(part, kind) for part in filled), strict=True))
        if name == "one":
            mean, reach = estimates[0], stats.t.ppf((1 + LEVEL) / 2, n - 4) * np.sqrt(variances[0])
        else:
            mean, reach = pooled(estimates, variances, n - 4)
        found[name] = {"error": (mean - truth).tolist(), "reach": reach.tolist()}
    return found


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "\n| setting | method | simulations | held, all coefficients | each | bias over its standard error |\n"
        + "|---" * 6
        + "|"
    )
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == setting]
        for name in [name for name in ("lapae", "one", "mice") if name in own[0]]:
            error, reach = (np.array([row[name][key] for row in own]) for key in ("error", "reach"))
            held = (np.abs(error) <= reach).mean(0)
            bias = error.mean(0) / (reach.mean(0) / 1.97)
            each, off = (" ".join(f"{v:{form}}" for v in of) for of, form in ((held, ".2f"), (bias, "+.1f")))
            print(f"| {setting} | {name} | {len(own)} | {held.mean():.1%} | {each} | {off} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--mice", action="store_true", help="scikit-learn's IterativeImputer too")
    parser.add_argument("--out", type=Path, help="JSON of all simulations; what is in it already is not run again")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else []
    done = {(row["setting"], row["rows"], row["seed"]) for row in rows}
    truth = {
        s: analysis(table(s.split("-")[0], MANY, np.random.default_rng(1)), s.split("-")[0])[0] for s in args.settings
    }
    began = time.process_time()
    for seed in range(args.simulations):
        for setting in args.settings:
            if (setting, args.rows, seed) in done:
                continue
            rows.append(simulate(setting, args.rows, seed, truth[setting], args.mice))
            if args.out:
                args.out.write_text(json.dumps(rows) + "\n")
    print(f"{len(rows)} simulations, {time.process_time() - began:.0f} s")
    show(rows)


if __name__ == "__main__":
    main()
