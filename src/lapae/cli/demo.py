"""`lapae demo`: train, find unusual samples, fill in missing values, and meet shifted data, on one screen."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lapae.cli.parsing import parse
from lapae.config import Config, DataConfig, TrainConfig

if TYPE_CHECKING:
    import numpy as np

    from lapae import LaplacianAutoencoder
    from lapae.runs import Run

RATE, LEVEL = 0.05, 0.9
"""Share of normal samples that may be flagged, and share of values that an interval should hold."""
KNOWN = 8
"""Digits below are learned; the others are new kinds of images."""
WINDOW = 24
"""Time steps of a window of sensor readings: two hours."""


@dataclass(frozen=True)
class DemoCommand:
    """Train on generated data, find the errors planted in new data, fill in missing values, and write the report.

    It takes about twenty seconds and downloads nothing; all numbers that are printed are computed. The data stay in the
    run folder, for the commands that are shown at the end.
    """

    kind: Annotated[Literal["table", "images", "sensors"], tyro.conf.Positional] = "table"
    """Data: deliveries of a parcel service, scanned digits, or the sensors of a pump."""
    out: Path | None = None
    """Folder of the run; default: runs/demo-N."""
    epochs: int | None = None
    """Largest number of passes over the training data; default: depends on the data."""
    seed: int = 0
    """Random seed."""
    json: bool = False
    """Print one JSON object to stdout."""


@dataclass(frozen=True)
class Story:
    """A demo: its data, and what the trained model finds in new data."""

    source: DataConfig
    about: str
    """What is learned, in words."""
    tell: Callable[[LaplacianAutoencoder], tuple[dict[str, Any], list[str]]]
    """Compute the findings, and describe them line by line."""
    commands: list[str] = field(default_factory=list)
    """What to run next."""


def main(arguments: Sequence[str]) -> int:
    """Run `lapae demo` with these arguments, and return its exit code."""
    command: DemoCommand = parse(DemoCommand, arguments, "lapae demo")
    from lapae import LaplacianAutoencoder
    from lapae.cli.run_folder import train_in
    from lapae.fit import load_data
    from lapae.runs import Run, plain
    from lapae.view.report.page import REPORT, write_report

    run = Run.create(command.out, name="demo")
    story = {"table": table, "images": images, "sensors": sensors}[command.kind](run, command.seed)
    training = TrainConfig(seed=command.seed, verbose=sys.stderr.isatty())
    if command.epochs is not None:
        training = replace(training, epochs=command.epochs)
    config = Config(data=story.source, train=training).resolved()
    data = load_data(config.data)
    say = (lambda line: None) if command.json else (lambda line: print(line, flush=True))
    say(f"Learn     {story.about}")
    began = time.monotonic()
    model = train_in(run, config, data)
    seconds = time.monotonic() - began
    share, pca = (model.metrics.get(name) for name in ("explained", "explained_by_pca"))
    say(f"          {seconds:.0f} s; explains {percent(share)} of the variance of held-out samples, PCA {percent(pca)}")
    found, lines = story.tell(LaplacianAutoencoder.load(run.path))
    for line in lines:
        say(line)
    write_report(run, model, data)
    page = (run / REPORT).resolve()
    if command.json:
        print(json.dumps(plain({"run": str(run.path), **model.metrics, "found": found, "report": str(page)})))
        return 0
    say(f"\nReport    {page}")
    say("Next      " + "\n          ".join(story.commands))
    return 0


def percent(share: Any) -> str:
    """Write a share in words."""
    return "none" if share is None else f"{100 * share:.0f} %"


def flags(p: np.ndarray, what: str) -> tuple[dict[str, Any], str]:
    """Count the flags among normal samples with p-values p (n,), and compare with the number expected by chance."""
    flagged, n = int((p <= RATE).sum()), len(p)
    line = f"          {flagged} of {n} normal {what} are flagged at {percent(RATE)}; {RATE * n:.0f} expected by chance"
    return {"flagged": flagged, "normal": n, "expected": RATE * n}, line


def table(run: Run, seed: int) -> Story:
    """Deliveries of a parcel service."""
    from lapae.data.deliveries import deliveries, with_errors, without_some

    learned = without_some(deliveries(2000, seed), 0.03, seed)
    new, planted = with_errors(deliveries(205, seed + 1), seed)
    truth = deliveries(300, seed + 2)
    gaps, far = without_some(truth, 0.15, seed + 1), deliveries(200, seed + 3, longer=3.0)
    frames = {"deliveries": learned, "new": new, "gaps": gaps, "longer": far}
    for name, frame in frames.items():
        frame.to_csv(run / f"{name}.csv", index=False)

    def tell(model: LaplacianAutoencoder) -> tuple[dict[str, Any], list[str]]:
        import numpy as np

        p, order = model.p_value(new), np.argsort(model.score_samples(new), kind="stable")
        worst = order[: len(planted)]
        first = model.explain(new.iloc[worst]).fillna(0.0).astype(float).idxmax(axis=1)
        expected, low, high = model.counterfactual(new.iloc[worst], top=1, level=LEVEL)
        rows = []
        for place, (row, column) in enumerate(zip(worst, first, strict=True)):
            ends = {"expected": expected, "low": low, "high": high}
            cell = {name: end[column].iloc[place] for name, end in ends.items()}
            rows.append({"row": int(row), "column": column, "value": new[column].iloc[row], **cell, "p": float(p[row])})
        right = sum(planted.get(row["row"]) == row["column"] for row in rows)
        lines = [f"\nUnusual   the {len(worst)} most unusual of {len(new)} new rows (row: the line in new.csv):"]
        lines += ["          row  column    value seen  expected              p-value"]
        for row in rows:
            words = isinstance(row["value"], str)
            seen, wanted = (
                (row["value"], row["expected"]) if words else (f"{row['value']:.4g}", f"{row['expected']:.3g}")
            )
            ends = "" if words else f" ({row['low']:.3g} to {row['high']:.3g})"
            lines.append(
                f"          {row['row'] + 2:<4} {row['column']:<9} {seen:>10}  {wanted + ends:<20}  {row['p']:.4f}"
            )
        lines.append(
            f"          {right} of the {len(planted)} planted errors are among them, with the right column named"
        )
        normal = np.array([row not in planted for row in range(len(new))])
        counts, line = flags(p[normal], "rows")
        filled, told = gaps_of(model)
        shift, warned = shift_of(model)
        found = {
            "unusual": rows,
            "planted": planted,
            "right": right,
            "normal": counts,
            "missing": filled,
            "shift": shift,
        }
        return found, [*lines, line, *told, *warned]

    def gaps_of(model: LaplacianAutoencoder) -> tuple[dict[str, Any], list[str]]:
        """Fill in the missing cells, of which the truth is known."""
        import numpy as np

        names = [name for name in truth if truth[name].dtype.kind in "if"]
        guess, (low, high) = model.impute(gaps), model.impute_interval(gaps, level=LEVEL)
        x, fill, lo, hi = (frame[names].to_numpy(float) for frame in (truth, guess, low, high))
        hidden, median = gaps[names].isna().to_numpy(), learned[names].median().to_numpy()
        inside = float(((x >= lo) & (x <= hi))[hidden].mean())
        errors = [
            [float(np.abs(by - x)[:, i][hidden[:, i]].mean()) for i in range(len(names))] for by in (fill, median)
        ]
        ratio = float(np.mean(np.divide(*map(np.array, errors))))
        words = [name for name in truth if name not in names]
        alike = np.concatenate([(guess[name] == truth[name])[gaps[name].isna()] for name in words])
        found = {
            "cells": int(gaps.isna().sum().sum()),
            "inside": inside,
            "of_median": ratio,
            "words": float(alike.mean()),
        }
        lines = [
            f"\nMissing   {found['cells']} cells of {len(gaps)} other rows filled in: {percent(inside)} of the numbers",
            f"          lie in their {percent(LEVEL)} interval, with an error of {ratio:.2f} times the median's;",
            f"          {percent(found['words'])} of the words are right",
        ]
        return found, lines

    def shift_of(model: LaplacianAutoencoder) -> tuple[dict[str, Any], list[str]]:
        """Predict the cost of deliveries from their other columns, of ordinary ones and of a shifted batch."""
        found = {}
        for name, frame in {"ordinary": truth, "shifted": far}.items():
            low, high = model.impute_interval(frame.assign(cost=float("nan")), level=LEVEL)
            inside = (frame["cost"] >= low["cost"]) & (frame["cost"] <= high["cost"])
            found[name] = {
                "width": float((high["cost"] - low["cost"]).mean()),
                "inside": float(inside.mean()),
                "flagged": float((model.p_value(frame) <= RATE).mean()),
            }
        lines = ["\nShift     the cost, hidden and filled in:  mean width of its interval  truth inside  rows flagged"]
        for name, what in {"ordinary": "ordinary deliveries", "shifted": "routes three times as long"}.items():
            one = found[name]
            numbers = f"{one['width']:>27.1f}  {percent(one['inside']):>12}  {percent(one['flagged']):>12}"
            lines.append(f"          {what:<30}  {numbers}")
        return found, lines

    n, width = learned.shape
    about = f"{n:,} deliveries of {width} columns, {percent(learned.isna().to_numpy().mean())} of the cells missing"
    commands = [
        f"lapae score {run.path} {run / 'new.csv'} --explain --out scores.csv",
        f"lapae impute {run.path} {run / 'gaps.csv'} --out filled.csv",
        f"lapae explore {run.path}",
    ]
    return Story(DataConfig(source=str((run / "deliveries.csv").resolve())), about, tell, commands)


def images(run: Run, seed: int) -> Story:
    """Scanned digits of scikit-learn, of which the last two kinds are not learned."""
    import numpy as np

    from lapae.data.digits import read_digits
    from lapae.runs.files import write_whole

    digits = read_digits()
    x, y = np.asarray(digits.x)[:, 0].astype(np.float32) / 16, np.asarray(digits.y)
    known, other = np.random.default_rng(seed).permutation(np.flatnonzero(y < KNOWN)), x[y >= KNOWN]
    learned, held = x[known[200:]], x[known[:200]]
    for name, images in {"digits": learned, "new": np.concatenate([held, other])}.items():
        file = io.BytesIO()
        labels = y[known[200:]] if name == "digits" else None
        np.savez_compressed(file, x=images) if labels is None else np.savez_compressed(file, x=images, y=labels)
        write_whole(run / f"{name}.npz", file.getvalue())

    def tell(model: LaplacianAutoencoder) -> tuple[dict[str, Any], list[str]]:
        kinds = {"digits 8 and 9": other, "upside down": held[:, ::-1], "inverted": 1 - held, "half blank": held.copy()}
        kinds["half blank"][:, :4] = 0
        shares = {name: float((model.p_value(images) <= RATE).mean()) for name, images in kinds.items()}
        lines = [f"\nUnusual   share flagged at {percent(RATE)} among kinds of images that were not learned:"]
        lines += [f"          {name:<15} {percent(share):>5} of {len(kinds[name])}" for name, share in shares.items()]
        counts, line = flags(model.p_value(held), "images")
        gaps = held.copy()
        gaps[:, :4] = np.nan
        hidden, guess, (low, high) = np.isnan(gaps), model.impute(gaps), model.impute_interval(gaps, level=LEVEL)
        error, plain = (float(np.abs(by - held)[hidden].mean()) for by in (guess, np.median(learned, axis=0)))
        inside = float(((held >= low) & (held <= high))[hidden].mean())
        lines += [
            line,
            f"\nMissing   the upper half of {len(held)} images filled in: {percent(inside)} of the pixels lie in",
        ]
        lines += [
            f"          their {percent(LEVEL)} interval; the error is {error / plain:.2f} times the median pixel's"
        ]
        return {"unusual": shares, "normal": counts, "missing": {"inside": inside, "of_median": error / plain}}, lines

    commands = [
        f"lapae score {run.path} {run / 'new.npz'} --out scores.csv",
        f"lapae sample {run.path} --out samples.png",
        f"lapae explore {run.path}",
    ]
    about = f"{len(learned):,} images of the digits 0 to {KNOWN - 1}, of 8 x 8 pixels"
    return Story(DataConfig(source=str((run / "digits.npz").resolve())), about, tell, commands)


def sensors(run: Run, seed: int) -> Story:
    """Readings of a pump, with three faults that keep every reading within its usual range."""
    import numpy as np
    import pandas as pd
    from numpy.lib.stride_tricks import sliding_window_view

    from lapae.data.pump import DAY, SENSORS, break_it, pump

    rng = np.random.default_rng(seed)
    readings = {name: pump(days, rng) for name, days in {"readings": 28, "normal": 14, "week": 7}.items()}
    faults = break_it(readings["week"])
    for name, x in readings.items():
        pd.DataFrame(x.round(4), columns=list(SENSORS)).to_csv(run / f"{name}.csv", index=False)

    def windows(x: np.ndarray, step: int = 1) -> np.ndarray:
        """Windows (n, WINDOW, 6)."""
        return sliding_window_view(x, WINDOW, axis=0).transpose(0, 2, 1)[::step]

    def tell(model: LaplacianAutoencoder) -> tuple[dict[str, Any], list[str]]:
        week = readings["week"]
        usual = readings["normal"].min(0), readings["normal"].max(0)
        lines = [f"\nUnusual   a week with {len(faults)} faults, in windows of {WINDOW} readings:"]
        lines += [
            "          fault              windows flagged  readings in their usual range  sensor named most often"
        ]
        found = {}
        for name, span in faults.items():
            x = week[span]
            flagged = model.p_value(windows(x)) <= RATE
            share = float(((x >= usual[0]) & (x <= usual[1])).mean())
            parts = model.explain(windows(x)[flagged]).sum(axis=1) if flagged.any() else np.zeros((1, len(SENSORS)))
            sensor = SENSORS[np.bincount(parts.argmax(1)).argmax()] if flagged.any() else "none"
            found[name] = {"flagged": float(flagged.mean()), "in_range": share, "sensor": sensor}
            lines.append(f"          {name:<18} {percent(found[name]['flagged']):>15}  {percent(share):>29}  {sensor}")
        # windows that do not overlap: neighbours are alike
        counts, line = flags(model.p_value(windows(readings["normal"], WINDOW)), "windows")
        return {"unusual": found, "normal": counts}, [*lines, line]

    commands = [
        f"lapae score {run.path} {run / 'week.csv'} --out steps.csv",
        f"lapae report {run.path}",
        f"lapae explore {run.path}",
    ]
    n = len(readings["readings"])
    about = f"{n:,} readings of {len(SENSORS)} sensors of a pump ({n // DAY} days), in windows of {WINDOW}"
    return Story(DataConfig(source=str((run / "readings.csv").resolve()), window=WINDOW), about, tell, commands)
