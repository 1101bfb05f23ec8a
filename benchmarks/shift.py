"""Does uncertainty grow where the data end? Intervals of shifted tables, and the code's deviation as an outlier score.

    python benchmarks/shift.py --data FOLDER [--sets NAME ...] [--variants NAME ...] [--out results.jsonl]
    python benchmarks/shift.py --data FOLDER --outliers [...]
    python benchmarks/shift.py --data FOLDER --library [--tables adbench generated] [--missing] [...]
    python benchmarks/shift.py --data FOLDER --ablation [--sets tables fashion_mnist faces series ...] [--most 1000]
    python benchmarks/shift.py --table results.jsonl

FOLDER is the data folder of the tests (imputation/*.csv, adbench/*.npz). A table is shifted along its first two
principal axes, both ways: a network is trained on three quarters, the others have moved away. 90 % intervals are
mean ± q √(noise² + v) in every column, v the variance of the network linearised in its weights at temperature 1 (or of
method `ae`, 0), q from held-out rows of the three quarters. One network per shift serves all variants of the posterior.
With --outliers, Σ_k z_std_k / standard deviation of the training codes scores the rows of ADBench's sets, beside kNN.
With --library, intervals are what `predict_interval` of the estimator gives, for several methods and posteriors: of new
rows, of moved ones, and of new ones with one value that is 4 off. Tables are those of imputation, the usual rows of
ADBench's sets, or generated here. With --missing, also intervals of values that are missing from both, a fifth of them.
With --ablation, the same for `online`, `posthoc`, `ae` and `ensemble`: on tables, on images (FashionMNIST and faces,
blurred, darkened and turned by degrees) and on series (generated plants of plants.py, where one sensor drifts over a
window by degrees). Besides, how score and width rank what has moved, and how widths go with errors (Spearman).
Nothing is chosen by set; at most 1,200 rows of each. What the file of results has already is not done again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, rotate
from sklearn.metrics import roc_auc_score
from torch import Tensor

MOST_ROWS, MOST_MOVED, LEVEL = 1200, 150, 0.9
VARIANTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "diagonal": {"hessian": "sketch"},
    "kfac": {"hessian": "kfac"},
    "lowrank": {"hessian": "lowrank"},
    "lowrank, fan-in": {"hessian": "lowrank", "prior_scale": "fan-in"},
    "lowrank, 150": {"hessian": "lowrank", "vectors": 150},
    "lowrank, prior 1": {"hessian": "lowrank", "optimize_prior": "none"},
    "diagonal, prior 1": {"hessian": "sketch", "optimize_prior": "none"},
}
"""Options of a post-hoc posterior over one trained network; None: no posterior."""


LIBRARY: dict[str, dict[str, Any]] = {
    "ae": {"method": "ae"},
    "online": {},
    "posthoc": {"method": "posthoc"},
    "ensemble": {"method": "ensemble"},
    "online, sketch": {"hessian": "sketch"},
    "posthoc, prior 1": {"method": "posthoc", "optimize_prior": "none"},
}
"""Options of estimators."""


def of_library(name: str, x: np.ndarray, axis: int, way: int, variants: list[str], missing: bool = False) -> list[dict]:
    """Coverage and interval score of what estimators say, of new rows and of those that have moved."""
    from lapae import LaplacianAutoencoder

    parts, found = shifted(x, axis, way), []
    known = np.concatenate([parts["train"], parts["held"]])
    rng = np.random.default_rng(0)
    odd = np.arange(x.shape[1]) == rng.integers(0, x.shape[1], len(parts["new"]))[:, None]
    parts["odd"] = parts["new"] + 4 * odd * rng.choice([-1, 1], odd.shape)
    for variant in variants:
        options, began = LIBRARY[variant], time.process_time()
        model = LaplacianAutoencoder(random_state=0, device="cpu", **options).fit(known)
        row: dict[str, Any] = {"set": name, "axis": axis, "way": way, "variant": variant}
        row["seconds"] = time.process_time() - began
        row |= {k: v for k, v in model.model_.metrics.items() if k in ("low_rank_share", "prior_precision")}
        widths = {}
        for which in ("new", "moved"):
            low, high = model.predict_interval(parts[which], level=LEVEL)
            row |= {f"{which} {key}": v for key, v in holding(parts[which], low, high).items()}
            widths[which] = (high - low).mean(1)
            if missing:
                hidden = np.random.default_rng(1).random(low.shape) < 0.2
                low, high = model.impute_interval(np.where(hidden, np.nan, parts[which]), level=LEVEL)
                of_hidden = holding(parts[which][hidden], low[hidden], high[hidden])
                row |= {f"{which} missing {key}": v for key, v in of_hidden.items()}
        low, high = model.predict_interval(parts["odd"], level=LEVEL)
        inside = (low <= parts["odd"]) & (parts["odd"] <= high)
        row |= {"odd found": float(1 - inside[odd].mean()), "beside odd coverage": float(inside[~odd].mean())}
        truth = np.r_[np.zeros(len(widths["new"])), np.ones(len(widths["moved"]))]
        row["auroc"] = float(roc_auc_score(truth, np.r_[widths["new"], widths["moved"]]))
        found.append(row)
    return found


def holding(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, float]:
    """Share of values y within their intervals, and the interval score."""
    beyond = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return {
        "coverage": float(((low <= y) & (y <= high)).mean()),
        "score": float((high - low + 2 / (1 - LEVEL) * beyond).mean()),
    }


def generated(kind: str, n: int, d: int, seed: int) -> np.ndarray:
    """A standardised table (n, d) whose columns depend on each other as its kind says."""
    rng = np.random.default_rng(seed)
    k = max(2, d // 4)
    z, mixing, more = rng.standard_normal((n, k)), rng.standard_normal((k, d)), rng.standard_normal((k, d))
    noise = 0.3 * rng.standard_normal((n, d))
    group, u = rng.integers(0, 4, n), rng.random((n, d - 2))
    shares = rng.gamma(0.8, size=(n, d - 1)) * (rng.random((n, d - 1)) < 0.7)
    shares /= np.maximum(shares.sum(1, keepdims=True), 1e-9)
    tails = rng.standard_t(3, (n, k)) @ mixing + 0.4 * rng.standard_t(3, (n, d))
    x = {
        "linear": z @ mixing + noise,
        "curved": z @ mixing + 0.5 * z**2 @ more + noise,
        "interaction": z @ mixing + z[:, :1] * z @ more + noise,
        "heavy tails": tails,
        "lognormal": np.exp(0.7 * z @ mixing / np.sqrt(k) + noise),
        "noise grows": z @ mixing + np.exp(0.6 * z[:, :1]) * noise,
        "sine": np.sin(1.5 * z @ mixing) + 0.5 * z @ more + noise,
        "clusters": 2 * rng.standard_normal((4, d))[group] + z @ mixing * rng.uniform(0.3, 1.2, (4, 1))[group] + noise,
        "independent": noise,
        "formulas": np.c_[
            u,
            np.sin(4 * u[:, 0]) * u[:, 1] + u[:, 2] ** 2 + noise[:, 0] / 3,
            np.exp(u[:, 1] - u[:, 2]) * (1 + u[:, 0]) + noise[:, 1] / 3,
        ],
        "recipes": np.c_[shares, 8 * shares[:, 0] * shares[:, 1] + np.sqrt(shares[:, 2]) + noise[:, 0] / 6],
        "powers": np.abs(z @ mixing) ** 1.5 + noise,
    }[kind]
    return (x - x.mean(0)) / x.std(0)


KINDS = (
    *("linear", "curved", "interaction", "heavy tails", "lognormal", "noise grows"),
    *("sine", "clusters", "independent", "formulas", "recipes", "powers"),
)
SIZES = ((250, 7), (1000, 9), (5000, 11))


def tables(source: str, data: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and tables: of imputation, the usual rows of ADBench's sets of up to 40 columns, or generated."""
    if source == "imputation":
        for path in sorted((data / "imputation").glob("*.csv"), key=lambda path: path.stat().st_size):
            yield path.stem, table(path)
    elif source == "adbench":
        for path in sorted((data / "adbench").glob("*.npz"), key=lambda path: path.stat().st_size):
            stored = np.load(path, allow_pickle=True)
            x = stored["X"][stored["y"] == 0].astype(float)
            x = x[np.random.default_rng(0).permutation(len(x))][:MOST_ROWS]
            x = x[:, x.std(0) > 0]
            if x.shape[1] <= 40:
                yield f"adbench {path.stem}", (x - x.mean(0)) / x.std(0)
    else:
        for i, (kind, (n, d)) in enumerate(itertools.product(KINDS, SIZES)):
            yield f"{kind}, {n}", generated(kind, n, d, i)


Moved = dict[str, np.ndarray]
"""Samples by how they have moved."""
SIGMAS, LIGHTS, ANGLES, DRIFTS = (0.5, 1.0, 2.0), (0.75, 0.5, 0.25), (10, 20, 45), (0.5, 1.0, 2.0)
WINDOW = 32


def of_images(data: Path, name: str, most: int) -> tuple[np.ndarray, np.ndarray, Moved]:
    """Images (n, H, W) to learn, new ones, and these as they are blurred, darkened and turned."""
    from images import read_faces, read_gray

    x = read_faces(data, most + MOST_MOVED) if name == "faces" else read_gray(data, name)[0]
    x = x[np.random.default_rng(0).permutation(len(x))][: most + MOST_MOVED]
    known, new = x[:-MOST_MOVED], x[-MOST_MOVED:]
    moved = {f"blurred {s:g}": gaussian_filter(new, (0, s, s)) for s in SIGMAS}
    moved |= {f"darkened {light:g}": light * new for light in LIGHTS}
    turned = {f"turned {a}": rotate(new, a, (1, 2), reshape=False, order=1).clip(0, 1) for a in ANGLES}
    return known, new, moved | turned


def of_series(name: str, most: int) -> tuple[np.ndarray, np.ndarray, Moved]:
    """Windows (n, WINDOW, C) of a generated plant to learn, new ones, and these with one sensor that drifts."""
    from plants import PLANTS

    def windows(seed: int, n: int) -> np.ndarray:
        return PLANTS[name](n * WINDOW, seed).reshape(n, WINDOW, -1)

    known, new = windows(0, most), windows(1, MOST_MOVED)
    sensor = np.random.default_rng(0).integers(0, new.shape[2], len(new))
    ramp = np.linspace(0, 1, WINDOW)[:, None] * np.eye(new.shape[2])[sensor][:, None] * known.std((0, 1))
    return known, new, {f"drifting {size:g}": new + size * ramp for size in DRIFTS}


def ablated(name: str, known: np.ndarray, new: np.ndarray, moved: Moved, variants: list[str]) -> list[dict]:
    """What estimators say of new samples and of those that have moved: ranking, intervals, width beside error."""
    from scipy.stats import rankdata

    from lapae import LaplacianAutoencoder

    found = []
    for variant in variants:
        began = time.process_time()
        model = LaplacianAutoencoder(random_state=0, device="cpu", **LIBRARY[variant]).fit(known)
        seconds = time.process_time() - began

        def judged(x: np.ndarray, model: Any = model) -> dict[str, np.ndarray]:
            low, high = model.predict_interval(x, level=LEVEL)
            beyond = np.maximum(low - x, 0) + np.maximum(x - high, 0)
            rows = {"covered": (low <= x) & (x <= high), "score": high - low + 2 / (1 - LEVEL) * beyond}
            rows |= {"width": high - low, "error": np.abs(x - model.reconstruct(x))}
            by_row = {key: value.reshape(len(x), -1).mean(1) for key, value in rows.items()}
            return by_row | {"unusual": -model.score_samples(x)}

        of_new = judged(new)
        for kind, x in moved.items():
            of_moved = judged(x)
            both = {key: np.r_[of_new[key], of_moved[key]] for key in of_new}
            truth = np.r_[np.zeros(len(new)), np.ones(len(x))]
            row: dict[str, Any] = {"of": name, "kind": kind, "variant": variant, "seconds": seconds}
            row |= {
                f"{part} coverage": float(at["covered"].mean()) for part, at in (("new", of_new), ("moved", of_moved))
            }
            row |= {f"{part} score": float(at["score"].mean()) for part, at in (("new", of_new), ("moved", of_moved))}
            row |= {f"auroc of {key}": float(roc_auc_score(truth, both[key])) for key in ("unusual", "width")}
            row["correlation"] = float(np.corrcoef(rankdata(both["width"]), rankdata(both["error"]))[0, 1])
            found.append(row)
    return found


def table(path: Path) -> np.ndarray:
    """Columns of numbers that vary and have no gaps, standardised, at most MOST_ROWS rows."""
    x = np.genfromtxt(path, delimiter=",", skip_header=1)[:, 1:]
    x = x[:, (np.nanstd(x, 0) > 0) & ~np.isnan(x).any(0)]
    x = x[np.random.default_rng(0).permutation(len(x))][:MOST_ROWS]
    x = x[:, x.std(0) > 0]
    return (x - x.mean(0)) / x.std(0)


def shifted(x: np.ndarray, axis: int, way: int) -> dict[str, np.ndarray]:
    """Rows that train, calibrate (held), are new from the same three quarters, and have moved away."""
    rng = np.random.default_rng(0)
    order = np.argsort(way * np.linalg.svd(x, full_matrices=False)[0][:, axis])
    n = len(x) * 3 // 4
    core, far = rng.permutation(order[:n]), rng.permutation(order[n:])[:MOST_MOVED]
    k = n * 3 // 4
    return {"train": x[core[:k]], "held": x[core[k:]][::2], "new": x[core[k:]][1::2], "moved": x[far]}


def posterior(model: Any, x: Tensor, options: dict[str, Any]) -> tuple[Any, dict[str, float], float]:
    """A post-hoc posterior over the network of a trained model; its report, and the seconds that it took."""
    from lapae.config.methods import PostHocOptions
    from lapae.methods.posthoc import PostHoc
    from lapae.methods.step import StepContext

    network = copy.deepcopy(model.method.network).float().eval().requires_grad_(True)
    method = PostHoc(lambda: network, model.method.likelihood, PostHocOptions(temperature=1.0, **options), len(x))
    method.eval()
    torch.manual_seed(0)
    began = time.perf_counter()
    report = method.finish(lambda: iter(x.split(64)), len(x), StepContext())
    return method, report, time.perf_counter() - began


def of_shift(name: str, x: np.ndarray, axis: int, way: int, variants: list[str]) -> list[dict]:
    from lapae import LaplacianAutoencoder
    from lapae.predict import predict

    parts = shifted(x, axis, way)
    model = LaplacianAutoencoder(method="ae", random_state=0, device="cpu").fit(parts["train"]).model_
    tensors = {part: model.tensor(rows).float() for part, rows in parts.items()}
    columns = np.zeros((1, x.shape[1])), np.eye(x.shape[1])
    unit = (model.tensor(columns[1]) - model.tensor(columns[0])).diagonal().double()  # of the model, for one of x
    method: Any = model.method
    network = method.network.float().eval()
    noise = model.method.likelihood.variance(tensors["held"][:1]).double()
    with torch.no_grad():
        error = {part: (network(t) - t).abs().double() for part, t in tensors.items()}
    found = []
    for variant in variants:
        options = VARIANTS[variant]
        row: dict[str, Any] = {"set": name, "axis": axis, "way": way, "variant": variant}
        v = {part: torch.zeros_like(error[part]) for part in ("held", "new", "moved")}
        if options is not None:
            method, report, row["seconds"] = posterior(model, tensors["train"], options)
            began = time.perf_counter()
            for part in v:
                prediction = predict(method, tensors[part], predictive="linearized", want=("outputs",))
                assert prediction.x_var is not None
                v[part] = prediction.x_var.double()
            row["predict seconds"] = time.perf_counter() - began
            row |= {k: report[k] for k in ("prior_precision", "low_rank_share", "determined_weights") if k in report}
        total = {part: (noise + v[part]).sqrt() for part in v}
        ratio, n = (error["held"] / total["held"]).flatten().sort().values, error["held"].numel()
        q = ratio[min(n - 1, int(np.ceil((n + 1) * LEVEL)) - 1)]
        for part in ("new", "moved"):
            half = q * total[part]
            row[f"{part} coverage"] = float((error[part] <= half).double().mean())
            beyond = (error[part] - half).clamp_min(0)
            row[f"{part} score"] = float(((2 * half + 2 / (1 - LEVEL) * beyond) / unit).mean())
        away = np.r_[np.zeros(len(v["new"])), np.ones(len(v["moved"]))]
        row["auroc"] = roc_auc_score(away, torch.cat([v["new"], v["moved"]]).div(noise).sum(1).sqrt())
        found.append(row)
    return found


def of_outliers(path: Path, setting: str, variants: list[str]) -> list[dict]:
    from adbench import detectors, load

    from lapae import LaplacianAutoencoder
    from lapae.predict import predict

    train, test, y = load(path, setting, 0, MOST_ROWS)
    if len(set(y)) < 2:  # no anomaly among so few rows
        return []
    deviation = np.where(train.std(0) > 0, train.std(0), 1)
    scaled = (train - train.mean(0)) / deviation, (test - train.mean(0)) / deviation
    row = {"set": path.stem, "setting": setting}
    found = [row | {"variant": "knn", "auroc": roc_auc_score(y, detectors(0)["knn"](*scaled, setting))}]
    model = LaplacianAutoencoder(method="ae", random_state=0, device="cpu").fit(train).model_
    x, new = model.tensor(train).float(), model.tensor(test).float()
    for variant in variants:
        options = VARIANTS[variant]
        if options is None:
            continue
        method, report, _ = posterior(model, x, options)
        with torch.no_grad():
            size = method.network.encode(x).std(0)
        prediction = predict(method, new, predictive="linearized", want=("codes",))
        assert prediction.z_var is not None
        score = (prediction.z_var.sqrt() / size).flatten(1).sum(1)
        share = {k: report[k] for k in ("prior_precision", "low_rank_share") if k in report}
        found.append(row | {"variant": variant, "auroc": roc_auc_score(y, score.nan_to_num(nan=torch.inf))} | share)
    return found


def show(rows: list[dict]) -> None:
    """One line per variant: means over shifts, and the worst."""
    shifts = [row for row in rows if "axis" in row]
    variants = list(dict.fromkeys(row["variant"] for row in shifts))
    if shifts:
        print(f"| {'variance from':20s} | shifts | in | shifted | worst | score in | score shifted | AUROC | s | ρ |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        also = [key for key in shifts[0] if "odd" in key or "missing" in key]
    for variant in variants:
        own = [row for row in shifts if row["variant"] == variant]

        def mean(key: str, own: list[dict] = own) -> float:
            return float(np.mean([row.get(key, np.nan) for row in own]))

        print(
            f"| {variant:20s} | {len(own)} | {mean('new coverage'):.3f} | {mean('moved coverage'):.3f} | "
            f"{min(row['moved coverage'] for row in own):.3f} | {mean('new score'):.2f} | {mean('moved score'):.2f} | "
            f"{mean('auroc'):.3f} | {mean('seconds'):.2f} | {mean('low_rank_share'):.2f} |"
        )
        print("; ".join(f"{key} {mean(key):.3f}" for key in also))
    for name in dict.fromkeys(row["of"].split(":")[0] for row in rows if "of" in row):
        of_set = [row for row in rows if row.get("of", "").split(":")[0] == name]
        keys = ("new coverage", "moved coverage", "new score", "moved score")
        more = ("auroc of unusual", "auroc of width", "correlation", "seconds")
        print(f"\n| {name} | n | " + " | ".join((*keys[:2], "worst", *keys[2:], *more)) + " |")
        print("|---" * (3 + len(keys) + len(more)) + "|")
        for variant in dict.fromkeys(row["variant"] for row in of_set):
            own = [row for row in of_set if row["variant"] == variant]
            means = {key: np.mean([row[key] for row in own]) for key in (*keys, *more)}
            means["worst"] = min(row["moved coverage"] for row in own)
            cells = [f"{means[key]:.3f}" for key in (*keys[:2], "worst", *keys[2:], *more)]
            print(f"| {variant} | {len(own)} | " + " | ".join(cells) + " |")
    for setting in dict.fromkeys(row["setting"] for row in rows if "setting" in row):
        print(f"\n{setting}: AUROC of the code's deviation")
        own = [row for row in rows if row.get("setting") == setting]
        for variant in dict.fromkeys(row["variant"] for row in own):
            values = [100 * row["auroc"] for row in own if row["variant"] == variant]
            print(f"{variant:20s} {np.mean(values):6.2f}  ({len(values)} sets)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS, *LIBRARY])
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--tables", nargs="+", default=["imputation"], choices=["imputation", "adbench", "generated"])
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--outliers", action="store_true")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--most", type=int, default=1000, help="images or windows to learn")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    some = ["online", "posthoc", "ae", "ensemble"] if args.ablation else list(LIBRARY)
    args.variants = args.variants or (some if args.library or args.ablation else ["none", "diagonal", "lowrank"])
    warnings.simplefilter("ignore")
    if args.table:
        show([json.loads(line) for line in args.table.read_text("utf-8").splitlines()])
        return
    rows = (
        [json.loads(line) for line in args.out.read_text("utf-8").splitlines()]
        if args.out and args.out.exists()
        else []
    )
    done = {tuple(row.get(k) for k in ("set", "axis", "way", "setting", "variant")) for row in rows}
    done |= {(row["of"], row["variant"]) for row in rows if "of" in row}

    def run(key: tuple, work: Callable[[list[str]], list[dict]]) -> None:
        open_ = [v for v in args.variants if (*key, v) not in done]
        found = work(open_) if open_ else []
        rows.extend(found)
        if args.out and found:
            with args.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)

    if args.ablation:
        from plants import PLANTS

        for name in args.sets or ["tables", "fashion_mnist", "faces", "series"]:
            if name == "tables":
                for stem, x in itertools.chain.from_iterable(tables(source, args.data) for source in args.tables):
                    for axis, way in itertools.product(range(min(2, x.shape[1])), (1, -1)):
                        parts = shifted(x, axis, way)
                        known, of = np.concatenate([parts["train"], parts["held"]]), f"tables:{stem} {axis} {way}"
                        samples = known, parts["new"], {"shifted": parts["moved"]}
                        run((of,), lambda v, of=of, s=samples: ablated(of, *s, v))
            elif name == "series":
                for plant in PLANTS:
                    samples = of_series(plant, args.most)
                    run((f"series:{plant}",), lambda v, p=plant, s=samples: ablated(f"series:{p}", *s, v))
            else:
                samples = of_images(args.data, name, args.most)
                run((name,), lambda v, n=name, s=samples: ablated(n, *s, v))
        show(rows)
        return
    if args.outliers:
        for path in sorted((args.data / "adbench").glob("*.npz"), key=lambda path: path.stat().st_size):
            if not args.sets or path.stem in args.sets:
                for setting in ("one-class", "unsupervised"):
                    run((path.stem, None, None, setting), lambda v, p=path, s=setting: of_outliers(p, s, v))
        show(rows)
        return
    work = partial(of_library, missing=args.missing) if args.library else of_shift
    for name, x in itertools.chain.from_iterable(tables(source, args.data) for source in args.tables):
        if not args.sets or name in args.sets:
            for axis, way in itertools.product(range(min(2, x.shape[1])), (1, -1)):
                run((name, axis, way, None), lambda v, x=x, n=name, a=axis, w=way: work(n, x, a, w, v))
    show(rows)


if __name__ == "__main__":
    main()
