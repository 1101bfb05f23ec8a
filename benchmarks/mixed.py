"""Mixed tables, all questions in one run, beside what one would use instead.

    python benchmarks/mixed.py FOLDER --write     # ames.csv, taxis.csv and titanic.csv; benchmarks/mixed.md
    python benchmarks/mixed.py FOLDER --splits 24   # share of rows as they are that is flagged, over shuffles

The rows of each table are shuffled; about two thirds of them (at most 3,000) are training rows, and at most 400
others are test rows. Peers get standardised numbers, dates as days, medians instead of missing values, and one
feature for each of the 30 most frequent levels of a category.

- Errors: the AUROC, in percent, of rows with one planted error against the same rows without it. Swapped: two columns
  of numbers exchange their ranks, so that each value is one of its own column. Shifted: a number or date moves by
  three standard deviations of its column towards the farther end, or by half of its range if that is less. New level:
  one letter of a word is left out. Flagged: the share of these rows, and of rows as they are, that is flagged at a
  false alarm rate of 5 %. Named: the share of flagged rows in which `reasons` names the right column.
- Imputation: a fifth of the cells of the test rows are hidden. Numbers, dates and counts: the mean absolute error,
  divided by that of the median; words: the share of wrong ones, divided by that of the most frequent word. Trees:
  IterativeImputer with ExtraTrees, on codes of levels. Copula: conditional means of a Gaussian copula.
- Intervals: the share of hidden numbers in their 90 % intervals, by tenth of the true value in its column.
- Samples: the AUROC with which gradient boosting tells generated rows from as many test rows, by the columns of which
  at least 20 test rows have a value; 0.5 is best.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingClassifier, IsolationForest
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import NearestNeighbors

from lapae import LaplacianAutoencoder

HERE = Path(__file__).parent
TABLES = ("titanic", "taxis", "ames")
LEARNED, JUDGED, LEVELS, HIDDEN = 3000, 400, 30, 0.2
FEWEST = 20
"""Values of a column, below which the classifier of samples is not shown it: a fold may have none."""
WORDS = ("category", "boolean")
Frame = Any
"""A frame of pandas, whose own annotations do not know what it holds."""


def word_of(value: Any) -> str:
    """Return a level as text: whole numbers beside missing ones are floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True)
class Coder:
    """Frames as the numbers that peers take: codes (n, F) of the columns, and features (n, D) of these.

    Attributes:
        columns: names of the columns.
        kinds: kind of each.
        levels: levels of each column of words, the most frequent first.
        middle: median of each column, or the code of its most frequent level.
        scale: standard deviation of each.
    """

    columns: list[str]
    kinds: list[str]
    levels: dict[str, list[str]]
    middle: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, frame: Frame, kinds: dict[str, str]) -> Coder:
        levels = {n: frame[n].dropna().map(word_of).value_counts().index.tolist() for n in kinds if kinds[n] in WORDS}
        empty = cls(list(kinds), list(kinds.values()), levels, np.zeros(0), np.zeros(0))
        codes = empty.codes(frame)
        words = np.isin(empty.kinds, WORDS)
        middle = np.where(words, 0.0, np.nanmedian(codes, 0))
        return cls(empty.columns, empty.kinds, levels, middle, np.where(words, 1.0, np.nanstd(codes, 0) + 1e-12))

    def codes(self, frame: Frame) -> np.ndarray:
        out = np.empty((len(frame), len(self.columns)))
        for i, (name, kind) in enumerate(zip(self.columns, self.kinds, strict=True)):
            values = frame[name]
            if kind in WORDS:
                code = {level: float(k) for k, level in enumerate(self.levels[name])}
                known = values.notna().to_numpy()
                out[:, i] = np.where(known, values.map(word_of).map(code).fillna(-1.0), np.nan)
            elif kind == "date":
                moments = pd.to_datetime(values, errors="coerce").astype("datetime64[us]").to_numpy()
                out[:, i] = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 86_400e6)
            else:
                out[:, i] = np.asarray(pd.to_numeric(values, errors="coerce"), np.float64)
        return out

    def features(self, codes: np.ndarray, *, filled: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return features (n, D), and the column of each (D,)."""
        parts, column = [], []
        for i, (name, kind) in enumerate(zip(self.columns, self.kinds, strict=True)):
            own = codes[:, i]
            if kind in WORDS:
                n = min(LEVELS, len(self.levels[name]))
                part = (own[:, None] == np.arange(n)).astype(float)
                part[np.isnan(own)] = 0.0 if filled else np.nan
            else:
                part = ((own - self.middle[i]) / self.scale[i])[:, None]
                part = np.nan_to_num(part) if filled else part
            parts.append(part)
            column += [i] * part.shape[1]
        return np.concatenate(parts, 1), np.array(column)

    def back(self, x: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of features (n, D) that were filled in: of words the greatest."""
        column = self.features(np.zeros((1, len(self.columns))))[1]
        out = np.empty((len(x), len(self.columns)))
        for i, kind in enumerate(self.kinds):
            part = x[:, column == i]
            out[:, i] = part.argmax(1) if kind in WORDS else part[:, 0] * self.scale[i] + self.middle[i]
        return out


@dataclass(frozen=True)
class Copula:
    """A Gaussian copula of codes: normal scores of ranks, words by cumulative frequency."""

    ordered: list[np.ndarray]
    correlation: np.ndarray

    @classmethod
    def fit(cls, codes: np.ndarray) -> Copula:
        ordered = [np.sort(column[~np.isnan(column)]) for column in codes.T]
        z = cls(ordered, np.eye(codes.shape[1])).scores(codes)
        found = pd.DataFrame(z).corr().fillna(0.0).to_numpy(copy=True)
        np.fill_diagonal(found, 1.0)
        values, vectors = np.linalg.eigh(0.99 * found + 0.01 * np.eye(len(found)))
        return cls(ordered, (vectors * values.clip(1e-3)) @ vectors.T)

    def scores(self, codes: np.ndarray) -> np.ndarray:
        out = np.full(codes.shape, np.nan)
        for i, ordered in enumerate(self.ordered):
            place = np.searchsorted(ordered, codes[:, i], "left") + np.searchsorted(ordered, codes[:, i], "right")
            out[:, i] = np.where(np.isnan(codes[:, i]), np.nan, ndtri((place / 2 + 0.5) / (len(ordered) + 1)))
        return out

    def back(self, z: np.ndarray) -> np.ndarray:
        pairs = zip(self.ordered, ndtr(z).T, strict=True)
        return np.stack(
            [ordered[(len(ordered) * share).astype(int).clip(0, len(ordered) - 1)] for ordered, share in pairs], 1
        )

    def impute(self, codes: np.ndarray) -> np.ndarray:
        z = self.scores(codes)
        for row in z:
            gone = np.isnan(row)
            if gone.any():
                known = self.correlation[np.ix_(~gone, ~gone)]
                row[gone] = self.correlation[np.ix_(gone, ~gone)] @ np.linalg.solve(known, row[~gone])
        return np.where(np.isnan(codes), self.back(z), codes)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self.back(rng.multivariate_normal(np.zeros(len(self.ordered)), self.correlation, n))


def timed(times: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    began = time.process_time()
    found = call()
    times[name] = times.get(name, 0.0) + time.process_time() - began
    return found


def written(codes: np.ndarray, kind: str, like: Any) -> Any:
    """Return numbers as cells like those of a column."""
    if kind == "date":
        moments = pd.Series(pd.to_datetime(np.round(codes * 86_400), unit="s"))
        return moments.dt.strftime("%Y-%m-%d %H:%M:%S").set_axis(like.index)
    return pd.Series(np.round(codes) if kind == "count" else codes, index=like.index)


def planted(rows: Frame, coder: Coder, rng: np.random.Generator) -> dict[str, tuple[Frame, np.ndarray]]:
    """Return rows with an error each, by the kind of error, and the columns (n, 2) that have it."""
    codes = coder.codes(rows)
    ordered = [np.sort(column[~np.isnan(column)]) for column in codes.T]
    groups = {"numbers": ("number", "count", "date"), "words": WORDS}
    places = {g: [i for i, kind in enumerate(coder.kinds) if kind in kinds] for g, kinds in groups.items()}
    made: dict[str, tuple[Frame, np.ndarray]] = {}

    def put(frame: Frame, row: int, i: int, value: float) -> None:
        name = coder.columns[i]
        cell = written(np.array([value]), coder.kinds[i], rows[name].iloc[[row]]).iloc[0]
        frame.iat[row, frame.columns.get_loc(name)] = cell

    for kind in ("swapped", "shifted", "new level"):
        frame, blame = rows.astype(object).copy(), np.full((len(rows), 2), -1)
        for row in range(len(rows)):
            known = {g: [i for i in chosen if not np.isnan(codes[row, i])] for g, chosen in places.items()}
            if kind == "new level":
                i = int(rng.choice(known["words"]))
                word, at = str(rows[coder.columns[i]].iloc[row]), 0
                at = int(rng.integers(len(word)))
                frame.iat[row, frame.columns.get_loc(coder.columns[i])] = (word[:at] + word[at + 1 :]) or "x"
                blame[row] = i
                continue
            pair = rng.choice(known["numbers"], 2 if kind == "swapped" else 1, replace=False)
            blame[row] = pair
            if kind == "swapped":
                share = [np.searchsorted(ordered[i], codes[row, i]) / len(ordered[i]) for i in pair]
                for i, other in zip(pair, share[::-1], strict=True):
                    put(frame, row, i, ordered[i][int(other * (len(ordered[i]) - 1))])
            else:
                i, own = int(pair[0]), ordered[int(pair[0])]
                far = min(3 * coder.scale[i], 0.5 * (own[-1] - own[0]))
                value = codes[row, i]
                put(frame, row, i, value + far if own[-1] - value > value - own[0] else value - far)
        made[kind] = (frame.infer_objects(), blame)
    return made


def detection(name: str, model: Any, rows: Frame, coder: Coder, known: np.ndarray, times: dict) -> list[str]:
    x = coder.features(known)[0]
    near = NearestNeighbors(n_neighbors=5).fit(x)
    forest = timed(times, "IsolationForest", lambda: IsolationForest(random_state=0).fit(x))

    def peers(frame: Frame) -> dict[str, np.ndarray]:
        of = coder.features(coder.codes(frame))[0]
        return {
            "kNN": timed(times, "kNN", lambda: near.kneighbors(of)[0].mean(1)),
            "IsolationForest": timed(times, "IsolationForest", lambda: -forest.score_samples(of)),
        }

    def ours(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        return timed(times, "lapae score", lambda: (-model.score_samples(frame), model.p_value(frame)))

    clean, clean_peers = ours(rows), peers(rows)
    lines = []
    for kind, (frame, blame) in planted(rows, coder, np.random.default_rng(0)).items():
        score, p = ours(frame)
        found = {"lapae": (clean[0], score)}
        found |= {peer: (clean_peers[peer], values) for peer, values in peers(frame).items()}
        y = np.repeat([0, 1], len(rows))
        auc = {way: 100 * roc_auc_score(y, np.nan_to_num(np.concatenate(pair))) for way, pair in found.items()}
        flagged = p <= 0.05
        told = timed(times, "lapae reasons", lambda: model.reasons(frame[flagged])["feature"]) if flagged.any() else []  # noqa: B023
        right = [
            name in (coder.columns[a], coder.columns[b]) for name, (a, b) in zip(told, blame[flagged], strict=True)
        ]
        cells = [f"{auc[way]:.0f}" for way in ("lapae", "kNN", "IsolationForest")]
        lines.append(
            f"| {name} | {kind} | {' | '.join(cells)} | {100 * flagged.mean():.0f} % | {100 * np.mean(right):.0f} % "
            f"| {100 * (clean[1] <= 0.05).mean():.1f} % |"
        )
    return lines


def imputation(
    name: str, model: Any, rows: Frame, coder: Coder, known: np.ndarray, times: dict, *, trees: bool
) -> tuple[list[str], str]:
    truth, rng = coder.codes(rows), np.random.default_rng(1)
    hidden = (rng.random(truth.shape) < HIDDEN) & ~np.isnan(truth)
    lacking = rows.astype(object).copy()
    for i, column in enumerate(coder.columns):
        lacking.loc[hidden[:, i], column] = None
    lacking = lacking.infer_objects()
    seen = np.where(hidden, np.nan, truth)
    made = {"mode": np.broadcast_to(coder.middle, truth.shape)}
    made["lapae"] = coder.codes(timed(times, "lapae impute", lambda: model.impute(lacking)))
    wide = coder.features(np.concatenate([known, seen]), filled=False)[0]
    near = timed(
        times,
        "KNNImputer",
        lambda: KNNImputer(keep_empty_features=True).fit(wide[: len(known)]).transform(wide[len(known) :]),
    )
    made["KNNImputer"] = coder.back(near)
    if trees:
        chained = IterativeImputer(
            ExtraTreesRegressor(20, random_state=0), max_iter=3, random_state=0, keep_empty_features=True
        )
        made["trees"] = timed(times, "trees", lambda: chained.fit(known).transform(seen))
    made["copula"] = timed(times, "copula", lambda: Copula.fit(known).impute(seen))
    lines = []
    for kinds, title in ((("number", "date"), "numbers, dates"), (("count",), "counts"), (WORDS, "words")):
        errors: dict[str, list[float]] = {way: [] for way in made}
        for i, kind in enumerate(coder.kinds):
            at = hidden[:, i]
            if kind not in kinds or at.sum() < 5:
                continue
            wrong = kind in WORDS
            losses = {w: _loss(truth[at, i], np.asarray(v)[at, i], wrong) for w, v in made.items()}
            if losses["mode"] > 0:
                for way, loss in losses.items():
                    errors[way].append(loss / losses["mode"])
        if errors["mode"]:
            ways = ("lapae", "KNNImputer", "trees", "copula")
            cells = [f"{np.mean(errors[way]):.2f}" if way in errors else "" for way in ways]
            lines.append(f"| {name} | {title} ({len(errors['mode'])}) | {' | '.join(cells)} |")
    low, high = (coder.codes(end) for end in model.impute_interval(lacking))
    inside: list[list[bool]] = [[] for _ in range(10)]
    for i, kind in enumerate(coder.kinds):
        if kind in ("number", "count"):
            at = hidden[:, i]
            value = truth[at, i]
            own = np.sort(known[~np.isnan(known[:, i]), i])
            tenth = (10 * np.searchsorted(own, value) / len(own)).astype(int).clip(0, 9)
            for t, ok in zip(tenth, (low[at, i] - 1e-6 <= value) & (value <= high[at, i] + 1e-6), strict=True):
                inside[t].append(bool(ok))
    every = np.mean([ok for part in inside for ok in part])
    tenths = " | ".join(f"{100 * np.mean(part):.0f}" if part else "" for part in inside)
    return lines, f"| {name} | {100 * every:.0f} | {tenths} |"


def _loss(truth: np.ndarray, made: np.ndarray, words: bool) -> float:
    return float((truth != np.round(made)).mean() if words else np.abs(truth - made).mean())


def told_apart(real: np.ndarray, made: np.ndarray) -> float:
    x, y = np.concatenate([real, made]), np.repeat([0, 1], [len(real), len(made)])
    x = x[:, (~np.isnan(real)).sum(0) >= FEWEST]
    chance = cross_val_predict(HistGradientBoostingClassifier(random_state=0), x, y, cv=3, method="predict_proba")
    return float(roc_auc_score(y, np.asarray(chance)[:, 1]))


def split(folder: Path, name: str, seed: int) -> tuple[Frame, Frame]:
    """Rows to learn, and others to judge."""
    table = pd.read_csv(folder / f"{name}.csv").sample(frac=1, random_state=seed).reset_index(drop=True)
    n = min(2 * len(table) // 3, LEARNED)
    return table[:n], table[n : n + JUDGED]


def flagged(folder: Path, name: str, splits: int) -> str:
    """Share of rows as they are with p <= 0.05, in percent, over several splits of a table."""
    shares = []
    for seed in range(splits):
        train, rows = split(folder, name, seed)
        model = LaplacianAutoencoder(random_state=0, device="cpu").fit(train)
        shares.append(100 * np.mean(model.p_value(rows) <= 0.05))
    error = np.std(shares, ddof=1) / np.sqrt(splits)
    return f"{name}: {np.mean(shares):.2f} ± {error:.2f} % flagged, {min(shares):.1f} to {max(shares):.1f} in one split"


def measure(folder: Path, name: str, *, trees: bool) -> tuple[list[str], list[str], str, str, str]:
    train, rows = split(folder, name, 0)
    times: dict[str, float] = {}
    model = timed(times, "lapae fit", lambda: LaplacianAutoencoder(random_state=0, device="cpu").fit(train))
    kinds = {column.name: column.kind for column in model.model_.space.columns}
    rows = rows[list(kinds)]
    coder = Coder.fit(train, kinds)
    known = coder.codes(train)
    errors = detection(name, model, rows, coder, known, times)
    imputed, intervals = imputation(name, model, rows, coder, known, times, trees=trees)
    real = coder.codes(rows)
    ours = coder.codes(timed(times, "lapae sample", lambda: model.sample(len(rows), random_state=0)))
    drawn = Copula.fit(known).sample(len(rows), np.random.default_rng(2))
    lacks = np.isnan(real)[np.random.default_rng(3).permutation(len(real))]
    samples = f"| {name} | {told_apart(real, ours):.2f} | {told_apart(real, np.where(lacks, np.nan, drawn)):.2f} |"
    seconds = (
        f"| {name} | {len(train):,} | {len(rows)} | " + ", ".join(f"{way} {t:.1f}" for way, t in times.items()) + " |"
    )
    return errors, imputed, intervals, samples, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--no-trees", action="store_true", help="leave out IterativeImputer with trees, which is slow")
    parser.add_argument("--write", action="store_true", help="write benchmarks/mixed.md")
    parser.add_argument("--splits", type=int, default=1, help="fit to so many shuffles, and only say what is flagged")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.splits > 1:
        for name in options.tables:
            print(flagged(options.folder, name, options.splits), flush=True)
        return
    columns = [
        "| table | error | lapae | kNN | IsolationForest | flagged | named | rows as they are, flagged |\n"
        + "|---" * 8
        + "|",
        "| table | columns | lapae | KNNImputer | trees | copula |\n" + "|---" * 6 + "|",
        "| table | all | " + " | ".join(f"tenth {i}" for i in range(1, 11)) + " |\n" + "|---" * 12 + "|",
        "| table | lapae | copula |\n|---|---|---|",
        "| table | rows learned | rows judged | seconds of one core |\n|---|---|---|---|",
    ]
    parts: list[list[str]] = [[head] for head in columns]
    for name in options.tables:
        for part, found in zip(parts, measure(options.folder, name, trees=not options.no_trees), strict=True):
            part += [found] if isinstance(found, str) else found
            print("\n".join([found] if isinstance(found, str) else found), flush=True)
    if options.write:
        about = (__doc__ or "").split("\n\n", 2)[2].strip()
        titles = ("Errors", "Imputation", "Intervals", "Samples", "Time")
        made = [
            "# Mixed tables",
            "",
            "Made by `python benchmarks/mixed.py FOLDER --write`; one seed, one thread.",
            "",
            about,
        ]
        for title, part in zip(titles, parts, strict=True):
            made += ["", f"## {title}", "", *part]
        (HERE / "mixed.md").write_text("\n".join(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
