"""The paper's claims, each decided by one rule from the numbers of the record.

Every claim becomes one gain per trained model, above 0 if the claim holds for it; models of equal seed are compared. It
is reproduced if the 95 % interval of Student's t over models lies above 0, refuted if it lies below, and undecided
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from lapae_paper.experiments.base import Table, decide

Raw = Mapping[str, Any]
"""Raw numbers by name of the experiment."""
VERDICTS = {
    "yes": "**reproduced**",
    "no": "**refuted**",
    "undecided": "undecided",
    "one model": "undecided (one model)",
}
OTHERS = ("AE", "AE, learned variance", "VAE", "MC-AE", "LAE (post-hoc)")
"""Single models that the online one is compared with."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    text: str
    where: str
    """Section, table or figure of the paper."""
    gain: str
    """Name of the number that is above 0 if the claim holds."""
    gains: Callable[[Raw], Sequence[float]]
    """Function from raw numbers to one gain per model."""
    digits: int = 1


def less(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return a - b, model by model."""
    return [x - y for x, y in zip(a, b, strict=False)]


def errors(row: str, key: str = "test -log p") -> Callable[[Raw], list[float]]:
    """Return the errors of a row of table 2."""
    return lambda raw: raw["hessian"]["rows"][row][key]


def ahead(score: str) -> Callable[[Raw], list[float]]:
    """Return how far the online model, with the paper's `mixed` diagonal, is ahead of the best other single model."""

    def gains(raw: Raw) -> list[float]:
        rows = raw["ood"]["auroc"]["paper"]
        found = [rows[name][score] for name in OTHERS if score in rows.get(name, {})]
        best = max((values for values in found if any(abs(value - 0.5) > 1e-9 for value in values)), key=mean)
        return less(rows["LAE (online), mixed"][score], best)

    return gains


def few_labels(method: str, first: int, last: int, way: str = "accuracy") -> Callable[[Raw], list[float]]:
    """Return by how many percent a method beats the AE with `first` to `last` labels per class, in the mean."""

    def gains(raw: Raw) -> list[float]:
        found = raw["semi-mnist"]
        chosen = [i for i, n in enumerate(found["n_labels"]) if first <= n <= last]
        ours, ae = found[way][method], found[way]["ae"]

        def accuracy(values: Any, seed: int) -> float:
            return 100 * mean(mean(values[i][seed]) for i in chosen)

        return [accuracy(ours, seed) - accuracy(ae, seed) for seed in range(min(len(ours[0]), len(ae[0])))]

    return gains


def imputed(method: str, key: str = "ece") -> Callable[[Raw], list[float]]:
    """Return a number of imputation with the paper's procedure."""
    return lambda raw: raw["imputation"]["rows"][method][key]


def calibrated(method: str, key: str) -> Callable[[Raw], list[float]]:
    """Return a number of the experiment on calibration."""
    return lambda raw: raw["calibration"]["rows"][method][key]


def miss(method: str) -> Callable[[Raw], list[float]]:
    """Return how far the share that 90 % intervals hold is from 0.9."""
    return lambda raw: [abs(value - 0.9) for value in raw["calibration"]["rows"][method]["coverage"]]


def wider(key: str) -> Callable[[Raw], list[float]]:
    """Return how much larger a gain is for the widest network than for the narrowest; several must be measured."""

    def gains(raw: Raw) -> list[float]:
        first, *_, last = (gains for gains in raw["width"]["gains"].values() if gains[key])
        return less(last[key], first[key])

    return gains


def minus(a: Callable[[Raw], list[float]], b: Callable[[Raw], list[float]]) -> Callable[[Raw], list[float]]:
    """Return a - b, model by model."""
    return lambda raw: less(a(raw), b(raw))


def grows(method: str) -> Callable[[Raw], list[float]]:
    """Return the decoder's deviation away from the data, divided by that on them, less 1."""
    return lambda raw: [value - 1 for value in raw["teaser"][method]["away / on"]]


def nonlinearity(method: str) -> Callable[[Raw], list[float]]:
    """Return the relative error of the linearised network over its posterior."""
    return lambda raw: [mean(mean(row) for row in seed) for seed in raw["linearization"]["relative_error"][method]]


def updates_ahead(raw: Raw) -> list[float]:
    """Return how far the paper's update is ahead of the best other one in -log p."""
    rows = {name: values["-log p"] for name, values in raw["updates"]["rows"].items()}
    own = next(name for name in rows if name.startswith("laplacian"))
    return less(min((values for name, values in rows.items() if name != own), key=mean), rows[own])


CLAIMS = (
    Claim(
        "online training has a far better -log p than post-hoc",
        "table 2",
        "-log p of post-hoc minus online (approx)",
        minus(errors("post-hoc approx"), errors("online approx")),
    ),
    Claim(
        "approx is as good as exact, online",
        "table 2",
        "exact + 2 % minus approx, -log p",
        lambda raw: less([1.02 * e for e in errors("online exact")(raw)], errors("online approx")(raw)),
    ),
    Claim(
        "approx is as good as exact, post-hoc",
        "table 2",
        "exact + 2 % minus approx, -log p",
        lambda raw: less([1.02 * e for e in errors("post-hoc exact")(raw)], errors("post-hoc approx")(raw)),
    ),
    Claim(
        "KFAC is far worse than a diagonal, post-hoc",
        "table 2",
        "-log p of KFAC minus approx",
        minus(errors("post-hoc KFAC"), errors("post-hoc approx")),
    ),
    Claim(
        "-log p of 25.9 ± 0.4 on the validation set (approx, online)",
        "table 2",
        "26.3 minus -log p",
        lambda raw: [26.3 - value for value in errors("online approx", "valid -log p")(raw)],
    ),
    Claim(
        "deviation grows away from the data, online",
        "figure 1",
        "away / on, less 1",
        grows("online"),
        2,
    ),
    Claim("deviation grows away from the data, post-hoc", "figure 1", "away / on, less 1", grows("posthoc"), 2),
    Claim(
        "deviation of the VAE does not grow away from the data",
        "figure 1, appendix F",
        "1.25 less away / on",
        lambda raw: [0.25 - value for value in grows("vae")(raw)],
        2,
    ),
    Claim(
        "the online model is closer to linear over its posterior",
        "figure 3",
        "relative error, post-hoc minus online",
        minus(nonlinearity("posthoc"), nonlinearity("online")),
        2,
    ),
    Claim(
        "online is the best in log-likelihood, out of distribution",
        "figure 9",
        "AUROC minus that of the best other model",
        ahead("log_likelihood"),
        3,
    ),
    Claim("online is the best in typicality", "figure 9", "AUROC minus that of the best other", ahead("typicality"), 3),
    Claim(
        "online is the best by output deviation",
        "figure 9",
        "AUROC minus that of the best other",
        ahead("output_deviation"),
        3,
    ),
    Claim(
        "online is the best by latent deviation",
        "figure 9",
        "AUROC minus that of the best other",
        ahead("latent_deviation"),
        3,
    ),
    Claim(
        "MC-dropout gives less variance to out-of-distribution data",
        "figure 10",
        "0.5 less the AUROC of its output deviation",
        lambda raw: [0.5 - value for value in raw["ood"]["auroc"]["paper"]["MC-AE"]["output_deviation"]],
        3,
    ),
    Claim(
        "uncertainties in output space are well calibrated, online",
        "abstract",
        "0.05 less the distance of coverage from 0.9",
        lambda raw: [0.05 - value for value in miss("online-exact")(raw)],
        3,
    ),
    Claim(
        "better calibrated in output space than post-hoc",
        "figures 8, 10",
        "distance of coverage from 0.9, post-hoc minus online",
        minus(miss("posthoc"), miss("online-exact")),
        3,
    ),
    Claim(
        "deviation is larger where the error is, online",
        "abstract",
        "rank correlation over images",
        calibrated("online-exact", "output correlation"),
        2,
    ),
    Claim(
        "uncertainties in latent space calibrate what is read from codes",
        "abstract",
        "ECE of the mean code minus that of sampled codes",
        minus(calibrated("online-exact", "ece of mean"), calibrated("online-exact", "ece")),
        3,
    ),
    Claim(
        "imputation improves the calibration of a classifier, online",
        "table 3",
        "ECE of the bare classifier minus this",
        minus(imputed("online-exact", "bare ece"), imputed("online-exact")),
        3,
    ),
    Claim(
        "and more than post-hoc",
        "table 3",
        "ECE, post-hoc minus online",
        minus(imputed("posthoc"), imputed("online-exact")),
        3,
    ),
    Claim(
        "completions are multi-modal, those of the VAE are not",
        "figure 11",
        "classes among five modes, online minus VAE",
        minus(imputed("online-exact", "classes"), imputed("vae", "classes")),
        2,
    ),
    Claim(
        "online beats the AE with 1 to 20 labels per class",
        "figure 12",
        "accuracy in percent, less the AE's",
        few_labels("online-exact", 1, 20),
    ),
    Claim(
        "the same with the paper's k",
        "figure 12",
        "accuracy in percent, less the AE's",
        few_labels("online-exact", 1, 20, "paper's k"),
    ),
    Claim(
        "with 100 labels per class the AE is as good",
        "figure 12",
        "1 % less the lead over the AE",
        lambda raw: [1 - value for value in few_labels("online-exact", 100, 100)(raw)],
    ),
    Claim(
        "no difference overall on 40 attributes of faces",
        "table 4",
        "0.02 less the distance from the AE's accuracy",
        lambda raw: [0.02 - abs(gap) for gap in less(*(raw["semi-celeba"]["overall"][m] for m in ("online", "ae")))],
        3,
    ),
    Claim(
        "its update of the precision is the best",
        "appendix C",
        "-log p of the best other minus its own",
        updates_ahead,
    ),
    Claim(
        "gains grow with the width of the network: over post-hoc",
        "limitations",
        "gain in -log p, widest measured minus narrowest",
        wider("-log p"),
    ),
    Claim(
        "gains grow with the width of the network: over the AE",
        "limitations",
        "gain in MSE, widest measured minus narrowest",
        wider("MSE"),
        2,
    ),
)


def claims(records: Mapping[str, Mapping[str, Any]]) -> Table:
    """Decide every claim from the results of the experiments, by name."""
    raw = {name: record["raw"] for name, record in records.items()}
    rows = []
    for claim in CLAIMS:
        try:
            gains = list(claim.gains(raw))
        except (KeyError, IndexError, TypeError, ValueError):  # of an experiment that was not measured, or otherwise
            gains = []
        found, answer = decide(gains, claim.digits) if gains else ("-", "not measured")
        rows.append((claim.text, claim.where, VERDICTS.get(answer, answer), claim.gain, found, str(len(gains) or "-")))
    columns = (
        "the paper's claim",
        "where",
        "found",
        "above 0 if it holds",
        "± standard error",
        "models",
    )
    return Table("The paper's claims", columns, rows)
