"""Base of the experiments: models to train, and tables and figures of them next to the paper's numbers.

An experiment is a file with three functions that read like a section of the paper:

    def plan(size): return {"online": Trial(Config(...)), ...}         # what to train, by name

    def measure(workspace, name, model): return {"error": ...}         # numbers of one trained model, plain JSON

    @experiment("mine", of="figure 0", about="what it asks", minutes=(1, 5), plan=plan, measure=measure)
    def run(workspace): return Outcome(tables=[...], figures={...})    # workspace.measured("online"): its numbers

Tables and figures are made from measurements alone: a model whose measurements are kept is not trained again. Models
are cached by what they are (`lapae_paper.experiments.workspace`), so that experiments share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lapae.config import Config
from lapae.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.model import Model
    from lapae_paper.experiments.workspace import Workspace

T = TypeVar("T")
Measure = Callable[["Workspace", str, "Model"], Any]
"""Function (workspace, name in the plan, trained model) -> plain JSON."""


@dataclass(frozen=True)
class Size:
    """Size of an experiment: full, as in the paper, or quick, on embedded data in minutes on two CPU cores."""

    quick: bool = False
    most_seeds: int | None = None
    """Maximum number of seeds per model; default: as many as the paper."""

    def seeds(self, full: int) -> range:
        """Return the seeds to train with: `full` of them, or one of the quick size."""
        n = self(full, 1)
        return range(n if self.most_seeds is None else min(n, self.most_seeds))

    def __call__(self, full: T, quick: T) -> T:
        """Return the setting that belongs to this size."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Trial:
    """A model to train."""

    config: Config
    start: Trial | None = None
    """The trained autoencoder that a post-hoc posterior is fitted to."""


@dataclass(frozen=True)
class Table:
    """Numbers next to the paper's, as text (see `cell` and `spread`)."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def without_paper(self) -> Table:
        """Return the table without the columns of the paper, whose data are others than those of the quick size."""
        kept = [i for i, column in enumerate(self.columns) if not column.startswith(("paper", "the paper"))]
        rows = [tuple(row[i] for i in kept) for row in self.rows]
        return Table(self.title, tuple(self.columns[i] for i in kept), rows)

    def markdown(self) -> str:
        """Write the table as Markdown, without the title."""
        lines = [
            " | ".join(self.columns),
            "|".join("---" for _ in self.columns),
            *(" | ".join(row) for row in self.rows),
        ]
        return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


@dataclass
class Outcome:
    """Results of an experiment."""

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    """Figures by file name, without extension."""
    raw: dict[str, Any] = field(default_factory=dict)
    """All numbers, of plain JSON types."""
    notes: list[str] = field(default_factory=list)
    """Notes about the settings, one sentence each."""


@dataclass(frozen=True)
class Experiment:
    """An entry of the table of experiments."""

    name: str
    of: str
    """Table or figure of the paper."""
    about: str
    needs: tuple[str, ...]
    """Data sets of the full size."""
    minutes: tuple[float, float]
    """Approximate minutes: quick on two CPU cores, full on one GPU, with trainings that no other experiment shares."""
    plan: Callable[[Size], Mapping[str, Trial]]
    run: Callable[[Workspace], Outcome]
    measure: Measure | None = None
    """Numbers of one model, of plain JSON types; none if the experiment has no models, or takes them as they are."""


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str,
    *,
    of: str,
    about: str,
    needs: Sequence[str] = (),
    minutes: tuple[float, float],
    plan: Callable[[Size], Mapping[str, Trial]] = lambda size: {},
    measure: Measure | None = None,
) -> Callable[[Callable[[Workspace], Outcome]], Callable[[Workspace], Outcome]]:
    """Register a function workspace -> outcome as an experiment."""

    def add(run: Callable[[Workspace], Outcome]) -> Callable[[Workspace], Outcome]:
        EXPERIMENTS[name] = Experiment(name, of, about, tuple(needs), minutes, plan, run, measure)
        return run

    return add


def find(name: str) -> Experiment:
    """Return the experiment with a name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}: expected one of {', '.join(EXPERIMENTS)}, or all")
    return EXPERIMENTS[name]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write mean ± standard deviation over several seeds, or the only number."""
    import statistics

    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def decide(gains: Sequence[float], digits: int = 1) -> tuple[str, str]:
    """Write the mean ± standard error of the gains of models, and whether it is above zero.

    Decided if zero is outside the 95 % interval of Student's t over models.
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
    """Write a number, or a dash for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}f}"
