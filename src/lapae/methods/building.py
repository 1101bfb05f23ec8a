"""Build a method from a configuration: its network, by name or from a user's own modules, and its likelihood.

A user's modules are copied, and the copies checked (`lapae.methods.own`): the originals are never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lapae.config import ACTIVATIONS, LIKELIHOODS, Config, ModelConfig
from lapae.curvature.likelihoods import Likelihood, Mixed
from lapae.curvature.likelihoods.continuous import Location
from lapae.errors import ConfigError
from lapae.methods.base import Method, build
from lapae.methods.own import own_modules
from lapae.methods.seeds import seed_all
from lapae.networks import Autoencoder
from lapae.networks import build as build_network
from lapae.networks.missing import FillMissing, Observe, filling
from lapae.networks.principal import start_at_principal_components

if TYPE_CHECKING:
    from lapae.space import Space

Shape = tuple[int, ...]
Modules = tuple[nn.Module, nn.Module]


def build_method(
    config: Config,
    space: Space,
    *,
    network: Modules | nn.Module | None = None,
    likelihood: Likelihood | None = None,
    start: Tensor | None = None,
    loading: bool = False,
) -> Method:
    """Build a method with initial weights given by the seed (it seeds torch's global generator).

    Args:
        config: resolved, without open choices (`lapae.train.choose`).
        space: what the training data are.
        network: replaces the network that the configuration names.
        likelihood: replaces the likelihood that the configuration names.
        start: samples (n, *model_shape) whose principal components the linear path of a network starts from.
        loading: whether weights will be read from a file: then it does not matter which of them the user has frozen.

    Returns:
        The method, on the CPU, in training mode.
    """
    seed_all(config.train.seed, "init")
    learned = likelihood is None and config.model.sigma is None
    likelihood = likelihood or make_likelihood(config.model, space)
    if network is not None:
        network = own_modules(network, space, likelihood, latent_dim=config.model.latent_dim, loading=loading)
    factory = _Copies(network) if network is not None else Named(config.model, space.model_shape)
    if start is not None and config.model.linear:
        factory = _started(factory, start)
    if space.unit is not None and isinstance(likelihood, Location) and not learned:  # given in the network's units
        sigma = np.asarray(likelihood.sigma, np.float64) * space.unit / space.scale
        likelihood = likelihood.with_noise(torch.as_tensor(sigma))
    # later data may have missing values even if the training data have none
    if config.data.allow_nan or space.missing or (config.model.linear is not None and likelihood.takes_missing):
        head = partial(Observe, config.model.hide) if config.model.hide else FillMissing
        try:
            factory, likelihood = filling(factory, head), likelihood.for_missing()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    method = build(config.method, factory, likelihood, space.n_data)
    if learned and likelihood.noisy and not method.learns_variance:
        by_feature = space.kind in ("table", "series")
        method.learn_noise(space.model_shape if by_feature else (1,) * len(space.model_shape))
    return method.float()  # whatever torch's default is


def _started(factory: Callable[[], Autoencoder], x: Tensor) -> Callable[[], Autoencoder]:
    """Make networks whose linear path starts at the principal components of x."""

    def build() -> Autoencoder:
        network = factory()
        start_at_principal_components(network, x)
        return network

    return build


def restart(method: Method, x: Tensor) -> None:
    """Put the principal components of samples x (n, *model_shape) into the linear paths of a method's networks."""
    for module in method.modules():
        if isinstance(module, Autoencoder):
            start_at_principal_components(module, x)


def make_likelihood(config: ModelConfig, space: Space) -> Likelihood:
    """Return the likelihood that the configuration names; for columns of several kinds, one for each kind."""
    name = config.likelihood.lower()
    kind = LIKELIHOODS.find(name).load()
    if any(part != "gaussian" for part, _, _ in space.parts):
        return Mixed(tuple((name if part == "gaussian" else part, a, b) for part, a, b in space.parts))
    return kind(sigma=config.sigma or 1.0) if hasattr(kind, "sigma") else kind()


@dataclass(frozen=True)
class Named:
    """Factory of networks by name, each with new initial weights."""

    config: ModelConfig
    shape: Shape

    def __call__(self) -> Autoencoder:
        config = self.config
        names = ("hidden", "channels", "kernel_size", "activation", "linear")
        options: dict[str, Any] = {n: getattr(config, n) for n in names if getattr(config, n) is not None}
        if config.hide:
            options["mask"] = True
        if config.activation is not None:
            options["activation"] = ACTIVATIONS.find(config.activation).load()
        try:
            return build_network(config.network or "mlp", self.shape, config.latent_dim or 2, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"network {config.network!r} with {options or 'its defaults'}: {error}") from error


class _Copies:
    """Factory of copies of a user's modules in 32 bits: the first with their weights, others with new ones."""

    def __init__(self, modules: Modules) -> None:
        self.modules, self.n_calls = modules, 0

    def __call__(self) -> Autoencoder:
        network = build_network(copy.deepcopy(self.modules), (), 0).float()
        self.n_calls += 1
        if self.n_calls > 1:
            for module in network.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return network
