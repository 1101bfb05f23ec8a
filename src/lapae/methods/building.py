"""From a configuration to a fresh method: its network, by name or of the user's own modules, and its likelihood."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lapae.config import ACTIVATIONS, LIKELIHOODS, Config, ModelConfig
from lapae.curvature.likelihoods import Likelihood, Mixed
from lapae.errors import ConfigError
from lapae.methods.base import Method, build
from lapae.methods.seeds import seed_all
from lapae.models import Autoencoder
from lapae.models import build as build_network
from lapae.models.adapt import adapt
from lapae.models.missing import FillMissing, Observe, filling
from lapae.models.principal import start_at_principal_components

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
) -> Method:
    """A fresh method, its initial weights given by the seed (it seeds torch's global generator).

    Args:
        config: resolved, with everything chosen (`lapae.train.choose`).
        space: what the training data are.
        network, likelihood: in place of those that the configuration names.
        start: data (n, *model_shape) whose principal components the linear path of a network starts from.
    """
    seed_all(config.train.seed, "init")
    if network is not None:
        network = adapt(network, space.model_shape)
        _check_fits(network, space.model_shape)
    factory = _Copies(network) if network is not None else Named(config.model, space.model_shape)
    if start is not None and config.model.linear:
        factory = _started(factory, start)
    learned = likelihood is None and config.model.sigma is None
    likelihood = likelihood or make_likelihood(config.model, space)
    # later data of our networks may have holes where these have none
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
    return method


def _check_fits(network: Modules, shape: Shape) -> None:
    """ConfigError where a user's modules do not take data of `shape`, or do not give such data back."""
    bare = build_network(copy.deepcopy(network), (), 0).eval()
    weight = next(bare.parameters(), torch.zeros(()))
    x = torch.zeros(2, *shape, dtype=weight.dtype, device=weight.device)
    at, came = "encoder", tuple(x.shape)
    try:
        with torch.no_grad():
            z = bare.encode(x)
            at, came = "decoder", tuple(z.shape)
            out = tuple(bare.decode(z).shape)
    except RuntimeError as error:  # torch's words for shapes that do not fit
        raise ConfigError(f"the {at} does not take what it is given, of shape {came} (2 data): {error}") from error
    if out != tuple(x.shape):
        raise ConfigError(f"the decoder gives {out} for 2 data, expected data of the shape that came, {tuple(x.shape)}")


def _started(factory: Callable[[], Autoencoder], x: Tensor) -> Callable[[], Autoencoder]:
    """Networks whose linear path is at the principal components of x."""

    def build() -> Autoencoder:
        network = factory()
        start_at_principal_components(network, x)
        return network

    return build


def restart(method: Method, x: Tensor) -> None:
    """Put the principal components of other data x (n, *model_shape) into the linear paths of a method's networks."""
    for module in method.modules():
        if isinstance(module, Autoencoder):
            start_at_principal_components(module, x)


def make_likelihood(config: ModelConfig, space: Space) -> Likelihood:
    """The likelihood that the configuration names; of columns of several kinds one for each kind."""
    name = config.likelihood.lower()
    kind = LIKELIHOODS.find(name).load()
    if any(part != "gaussian" for part, _, _ in space.parts):
        return Mixed(tuple((name if part == "gaussian" else part, a, b) for part, a, b in space.parts))
    return kind(sigma=config.sigma or 1.0) if hasattr(kind, "sigma") else kind()


@dataclass(frozen=True)
class Named:
    """Networks by name, each freshly initialised."""

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
    """A user's own modules in 32 bits: the first copy as they are, further ones (an ensemble's) initialised anew."""

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
