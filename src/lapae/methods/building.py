"""From a configuration to a fresh method: its network, by name or of the user's own modules, and its likelihood."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lapae.config import ACTIVATIONS, LIKELIHOODS, Config, ModelConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError
from lapae.methods.base import Method, build
from lapae.methods.seeds import seed_all
from lapae.models import Autoencoder
from lapae.models import build as build_network
from lapae.models.missing import filling

if TYPE_CHECKING:
    from lapae.space import Space

Shape = tuple[int, ...]
Modules = tuple[nn.Module, nn.Module]


def build_method(
    config: Config, space: Space, *, network: Modules | None = None, likelihood: Likelihood | None = None
) -> Method:
    """A fresh method, its initial weights given by the seed (it seeds torch's global generator)."""
    seed_all(config.train.seed, "init")
    if network is not None:
        _check_fits(network, space.model_shape)
    factory = _Copies(network) if network is not None else Named(config.model, space.model_shape)
    likelihood = likelihood or make_likelihood(config.model)
    if config.data.allow_nan:
        try:
            factory, likelihood = filling(factory), likelihood.for_missing()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return build(config.method, factory, likelihood, space.n_data)


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


def make_likelihood(config: ModelConfig) -> Likelihood:
    """The likelihood that the configuration names."""
    kind = LIKELIHOODS.find(config.likelihood.lower()).load()
    return kind(sigma=config.sigma) if hasattr(kind, "sigma") else kind()


@dataclass(frozen=True)
class Named:
    """Networks by name, each freshly initialised."""

    config: ModelConfig
    shape: Shape

    def __call__(self) -> Autoencoder:
        """One of them."""
        config = self.config
        names = ("hidden", "channels", "kernel_size", "activation")
        options: dict[str, Any] = {n: getattr(config, n) for n in names if getattr(config, n) is not None}
        if config.activation is not None:
            options["activation"] = ACTIVATIONS.find(config.activation).load()
        try:
            return build_network(config.network, self.shape, config.latent_dim, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"network {config.network!r} with {options or 'its defaults'}: {error}") from error


class _Copies:
    """A user's own modules: the first copy as they are, further ones (an ensemble's) initialised anew."""

    def __init__(self, modules: Modules) -> None:
        self.modules, self.n_calls = modules, 0

    def __call__(self) -> Autoencoder:
        network = build_network(copy.deepcopy(self.modules), (), 0)
        self.n_calls += 1
        if self.n_calls > 1:
            for module in network.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return network
