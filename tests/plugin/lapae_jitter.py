"""A method of another package, all in one file: weights that jitter around those of an autoencoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lapae.config import MethodOptions
from lapae.config.fields import Positive
from lapae.methods import Method, Point, WeightDraws
from lapae.methods.weights import normal_draws


@dataclass(frozen=True)
class JitterOptions(MethodOptions):
    """Weights that jitter."""

    width: Positive = 0.02
    """Standard deviation of every weight."""


class Jitter(Method):
    title = "autoencoder that jitters"
    options = JitterOptions

    def __init__(self, network, likelihood, options, n_data):
        super().__init__(likelihood)
        self.network = network()
        self.width = options.width

    def forward(self, x, step):
        return -self.likelihood.log_prob(self.network(x), x).mean()

    @torch.no_grad()
    def draw(self, seeds):
        params = dict(self.network.named_parameters())
        noise = normal_draws(params, seeds)
        return WeightDraws(self.network, {name: params[name] + self.width * noise[name] for name in params})

    def draw_mean(self):
        return Point(self.network)
