"""The four updates of the online precision (paper, appendix C), H_{t+1} = keep H_t + gain GGN.

| rule      | H_{t+1}           | keep  | gain | settles, for a steady GGN of the whole data, at            |
|-----------|-------------------|-------|------|------------------------------------------------------------|
| laplacian | (1-α) H_t + GGN   | 1 - α | 1    | GGN / α: a cold posterior, of temperature α                |
| redux     | prior + GGN       | 0     | 1    | the GGN of the last batch (the posterior adds the prior)   |
| van       | H_t + α GGN       | 1     | α    | nothing: grows by α GGN per step, the variance goes to 0   |
| nng       | (1-α) H_t + α GGN | 1 - α | α    | GGN: the Laplace approximation, a mean over about 1/α steps |

`temperature=1/α` therefore gives the laplacian rule the scale of nng.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lapae.errors import ConfigError

RULES: dict[str, Callable[[float], tuple[float, float]]] = {
    "laplacian": lambda forgetting: (1 - forgetting, 1.0),
    "redux": lambda forgetting: (0.0, 1.0),
    "van": lambda forgetting: (1.0, forgetting),
    "nng": lambda forgetting: (1 - forgetting, forgetting),
}
"""Keep and gain of each rule, from α."""


@dataclass(frozen=True)
class UpdateRule:
    """Share of the old precision that is kept, and factor of the new curvature that is added."""

    keep: float
    gain: float

    def every(self, k: int) -> UpdateRule:
        """Return the rule for a curvature refreshed every k steps that forgets as fast: k updates with one GGN."""
        if k < 1:
            raise ConfigError(f"hessian_every={k}: expected at least 1")
        kept = self.keep**k
        total = k if self.keep == 1 else (1 - kept) / (1 - self.keep)  # Σ keep^j, j below k
        return UpdateRule(kept, self.gain * total)


def update_rule(name: str, forgetting: float) -> UpdateRule:
    """Return the rule called `name`.

    Args:
        name: one of `RULES`.
        forgetting: α.
    """
    if name not in RULES:
        raise ConfigError(f"unknown update {name!r}: expected one of {', '.join(RULES)}")
    if not 0 < forgetting <= 1:
        raise ConfigError(f"forgetting={forgetting!r}: expected a number above 0 and at most 1")
    return UpdateRule(*RULES[name](forgetting))
