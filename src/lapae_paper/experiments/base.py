"""What an experiment is: models to train, and what is made of them beside the paper's own numbers.

An experiment is a file with two functions that read like a section of the paper:

    def plan(size): return {"online": Trial(Config(...)), ...}         # what to train, by name

    @experiment("mine", of="figure 0", about="what it asks", minutes=(1, 5), plan=plan)
    def run(workspace): return Outcome(tables=[...], figures={...})    # workspace.model("online"): the trained model

Models are cached by what they are (`lapae_paper.experiments.workspace`), so that experiments share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lapae.config import Config
from lapae.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae_paper.experiments.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """Full, as in the paper, or quick: the same pipeline on embedded data in minutes on two CPU cores."""

    quick: bool = False
    most_seeds: int | None = None
    """Train fewer models than the paper did: at most so many seeds of each."""

    def seeds(self, full: int, quick: int = 1) -> range:
        """The seeds to train with."""
        n = self(full, quick)
        return range(n if self.most_seeds is None else min(n, self.most_seeds))

    def __call__(self, full: T, quick: T) -> T:
        """The one of two settings that belongs to this size."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Trial:
    """A model to train."""

    config: Config
    start: Trial | None = None
    """The trained autoencoder that a post-hoc posterior is fitted to."""


@dataclass(frozen=True)
class Table:
    """Numbers beside the paper's, as text: what `cell` and `spread` make."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """As Markdown, without the title."""
        lines = [
            " | ".join(self.columns),
            "|".join("---" for _ in self.columns),
            *(" | ".join(row) for row in self.rows),
        ]
        return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


@dataclass
class Outcome:
    """What an experiment found."""

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    """By file name, without ending."""
    raw: dict[str, Any] = field(default_factory=dict)
    """All numbers, of plain JSON types."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know of the settings: a sentence each."""


@dataclass(frozen=True)
class Experiment:
    """An entry of the table of experiments."""

    name: str
    of: str
    """What of the paper it is."""
    about: str
    needs: tuple[str, ...]
    """Data sets of the full size."""
    minutes: tuple[float, float]
    """About how long: quick on two CPU cores, full on one GPU (trainings that no other experiment shares included)."""
    plan: Callable[[Size], Mapping[str, Trial]]
    run: Callable[[Workspace], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str,
    *,
    of: str,
    about: str,
    needs: Sequence[str] = (),
    minutes: tuple[float, float],
    plan: Callable[[Size], Mapping[str, Trial]] = lambda size: {},
) -> Callable[[Callable[[Workspace], Outcome]], Callable[[Workspace], Outcome]]:
    """Enter a function workspace -> outcome into the table."""

    def add(run: Callable[[Workspace], Outcome]) -> Callable[[Workspace], Outcome]:
        EXPERIMENTS[name] = Experiment(name, of, about, tuple(needs), minutes, plan, run)
        return run

    return add


def find(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}: expected one of {', '.join(EXPERIMENTS)}, or all")
    return EXPERIMENTS[name]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation of several seeds, or the one number there is."""
    import statistics

    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def decide(gains: Sequence[float], digits: int = 1) -> tuple[str, str]:
    """Mean ± standard error of what models are better by, and whether it is above zero.

    Decided where zero is outside of the 95 % interval of Student's t over models.
    """
    import statistics

    from scipy.stats import t

    mean, n = statistics.mean(gains), len(gains)
    if n == 1:
        return f"{mean:+.{digits}f}", "one model"
    error = statistics.stdev(gains) / n**0.5
    bound = t.ppf(0.975, n - 1) * error
    answer = "yes" if mean > bound else "no" if mean < -bound else "undecided"
    return f"{mean:+.{digits}f} ± {error:.{digits}f}", answer


def cell(value: float | str | None, digits: int = 2) -> str:
    """A number of the paper's, or a dash where it has none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}f}"
