"""How much the pages show. These are options of commands too, so that nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from lapae.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """How much a page shows."""

    n_samples: int | None = None
    """Networks drawn for each mean and deviation; as the model predicts where not given."""
    points: int = 1500
    """Data on the latent map at most."""
    seed: int = 0
    """Of subsets and draws."""

    def check(self) -> None:
        """ConfigError where there would be nothing to show."""
        for name, value in vars(self).items():
            if name != "seed" and value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: expected at least 1")


@dataclass(frozen=True)
class ReportSizes(Sizes):
    """How much a report shows."""

    examples: int = 8
    """Data shown with their reconstructions, and most unusual ones."""
