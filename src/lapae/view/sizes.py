"""How much the pages show. These are options of commands too, so nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from lapae.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """How much a page shows."""

    n_samples: int | None = None
    """Number of networks drawn for each mean and standard deviation; default: as the model predicts."""
    points: int = 1500
    """Maximum number of samples on the latent map."""
    seed: int = 0
    """Seed of random subsets and draws."""

    def check(self) -> None:
        """Raise ConfigError if there would be nothing to show."""
        for name, value in vars(self).items():
            if name != "seed" and value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: expected at least 1")


@dataclass(frozen=True)
class ReportSizes(Sizes):
    """How much a report shows."""

    examples: int = 8
    """Number of samples shown with their reconstructions, and of the most unusual ones."""
