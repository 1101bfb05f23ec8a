"""A method whose networks are drawn once and kept, so that an answer costs forward passes and no random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from lapae.methods.base import Draws, Method
from lapae.methods.weights import WeightDraws

MOST_WEIGHTS = 2**27
"""Maximum number of weights in all kept networks together: half a gigabyte in 32 bits."""


class KeptNetworks(Method):
    """Draws of another method, remembered by their seeds.

    Only stacks of weights are kept: the draws of some methods (vae, dropout) go on along a stream of noise, and would
    answer the same question differently each time.
    """

    def __init__(self, method: Method, most_weights: int = MOST_WEIGHTS) -> None:
        super().__init__(method.likelihood)
        self.method = method
        self.stochastic, self.distinct_draws = method.stochastic, method.distinct_draws
        self.shared_codes = method.shared_codes
        self.latent_prior = method.latent_prior
        self.room = most_weights
        self.n_weights = max(1, sum(p.numel() for p in method.parameters()))
        self._drawn: dict[tuple[int, ...], Draws] = {}

    @property
    def n_networks(self) -> int:
        """Number of networks that may be kept."""
        return self.room // self.n_weights

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return the kept networks of these seeds; they are drawn again if there is no room to keep them."""
        key = tuple(seeds)
        if key in self._drawn:
            return self._drawn[key]
        draws = self.method.draw(seeds)
        held = self.n_weights * sum(map(len, self._drawn))
        if isinstance(draws, WeightDraws) and held + self.n_weights * len(key) <= self.room:
            self._drawn[key] = draws
        return draws

    def draw_mean(self) -> Draws:
        return self.method.draw_mean()
