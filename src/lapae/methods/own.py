"""A user's own modules: copied, adapted to the form of an encoder and a decoder, and checked.

Modules that could be trained without a meaningful result are refused: those that do not fit the data, that couple the
samples of a batch, that draw random numbers in evaluation mode, or that end in a sigmoid if logits are expected.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError
from lapae.networks.adapt import Modules, adapt, in_eval_mode
from lapae.networks.units import Units, in_units

if TYPE_CHECKING:
    from lapae.space import Space

CLOSE, ROUNDING = 1e-4, 1e-5
"""Outputs of a sample alone and in a batch may differ by rounding: by `CLOSE` times the difference between samples,
plus `ROUNDING` times the largest output in 32 bits."""
TRIED = 16
"""Number of samples in the batch that shows whether outputs depend on other samples or on chance."""
AXES = "The first axis must be that of the samples; recurrent layers and attention need batch_first=True"
RESHAPES = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "Clone", "ToCopy", "Alias")
"""Functions that only rearrange numbers, by the beginning of the names of their derivatives."""
SQUASHES = {"Sigmoid": "a sigmoid", "Hardsigmoid": "a sigmoid", "Softmax": "a softmax"}


def own_modules(
    network: Modules | nn.Module,
    space: Space,
    likelihood: Likelihood,
    *,
    latent_dim: int | None = None,
    loading: bool = False,
) -> Modules:
    """Return copies of a user's modules in 32 bits: an encoder (B, *model_shape) -> (B, K) and a decoder back.

    Args:
        network: encoder and decoder, or a model that has both as methods.
        space: what the data are. If it has a `unit`, the modules get values in that unit.
        likelihood: the likelihood whose parameters the decoder returns.
        latent_dim: size of the code that the user expects; default any.
        loading: whether weights will be read from a file; then it does not matter which are frozen, and the checks that
            were made when the model was created are not repeated.

    Returns:
        Encoder and decoder. A ConfigError says which module does not fit, and what to change.
    """
    network = _copied(network)
    for module in (network,) if isinstance(network, nn.Module) else network:
        if not isinstance(module, nn.Module):
            raise ConfigError(f"expected a torch.nn.Module for encoder and decoder, got {type(module).__name__}")
        for name, parameter in module.float().named_parameters():
            if not (loading or parameter.isfinite().all()):
                raise ConfigError(f"parameter {name!r} of your {type(module).__name__} holds NaN or infinite values")
        if loading:
            module.requires_grad_(True)
    network = adapt(network, space.model_shape)
    logits, unit = gives_logits(likelihood), space.unit
    offset, scale = (0.0, 1.0) if unit is None else (np.asarray(v) / unit for v in (space.offset, space.scale))
    tried = copy.deepcopy(network)  # a call may leave something behind in a buffer
    with in_eval_mode(*tried), torch.no_grad():
        drawn = torch.randn(TRIED, *space.model_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        x = Units(offset, scale)(drawn)
        x = x.to(next((p.device for module in tried for p in module.parameters()), x.device))
        z = _check_fits(tried, x[:3])
        if latent_dim is not None and z[0].numel() != latent_dim:
            raise ConfigError(
                f"latent_dim={latent_dim}, but the encoder returns codes of shape {tuple(z.shape[1:])}: "
                "leave latent_dim out, as modules of your own say how large their code is"
            )
        if not loading:
            _check_alone(tried, x)
            if logits:
                _check_logits(tried[1], z, type(likelihood).__name__.lower())
    return in_units(network, offset, scale, logits=logits)


def _copied(network: Modules | nn.Module) -> Modules | nn.Module:
    try:
        return copy.deepcopy(network)
    except RuntimeError as error:  # a tensor that was computed from weights is kept as an attribute
        raise ConfigError(
            f"the modules cannot be copied: {error}. With nn.utils.weight_norm or spectral_norm, call "
            "nn.utils.remove_weight_norm(layer) first, or use nn.utils.parametrizations.weight_norm"
        ) from error


def gives_logits(likelihood: Likelihood) -> bool:
    """Return whether outputs are logits: the values of the data are bounded, but the outputs are not."""
    least, most = (np.asarray(bound) for bound in likelihood.support)
    return not (np.isinf(least).all() and np.isinf(most).all())


def _check_fits(network: Modules, x: Tensor) -> Tensor:
    """Return the codes of samples x (B, *shape); raise ConfigError if the modules do not fit this shape."""
    encoder, decoder = network
    at, came = "encoder", tuple(x.shape)
    try:
        z = encoder(x)
        if not isinstance(z, Tensor):
            raise ConfigError(
                f"the encoder returns a {type(z).__name__} in which no code is known: return a tensor (B, K)"
            )
        if z.ndim == 0 or len(z) != len(x):
            raise ConfigError(f"the encoder returns a code of shape {tuple(z.shape)} for {len(x)} samples: {AXES}")
        at, came = "decoder", tuple(z.shape)
        out = tuple(decoder(z).shape)
    except ConfigError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:  # shapes that do not fit, missing arguments
        hint = "; modules are copied into 32 bits" if "dtype" in str(error) else ""
        hint = "; images go in as they are, give them as (n, C, H, W)" if at == "encoder" and x.ndim > 2 else hint
        message = f"the {at} does not take its input, of shape {came} ({len(x)} samples{hint}): {error}"
        raise ConfigError(message) from error
    if out != tuple(x.shape):
        channel = out == (len(x), 1, *x.shape[1:])
        hint = f": give images with their channel, as (n, 1, {', '.join(map(str, x.shape[1:]))})" if channel else ""
        raise ConfigError(
            f"the decoder returns {out} for {len(x)} samples, expected the shape of the input, {tuple(x.shape)}{hint}"
        )
    return z


def _check_alone(network: Modules, x: Tensor) -> None:
    """Raise ConfigError if the output of a module for a sample depends on the others of its batch, or on chance.

    This is checked in 64 bits if the module accepts that, so that an offset does not hide the dependence.
    """
    for name, module in zip(("encoder", "decoder"), network, strict=True):
        try:
            depends = _depends(module.double(), x.double(), 1e-12)
        except (RuntimeError, TypeError):  # 32 bits are written into it
            depends = _depends(module.float(), x, ROUNDING)
        x = module.float()(x)
        if depends == "chance":
            raise ConfigError(
                f"the {name} returns another output when it is called again, in evaluation mode: it draws random "
                "numbers, and then there is no posterior. Use nn.Dropout, which obeys eval(), or pass "
                "training=self.training to the function; of a variational encoder return the mean"
            )
        if depends == "others":
            raise ConfigError(
                f"the {name} returns another output for a sample alone than in a batch: it couples the samples, and "
                f"then there is no posterior. {AXES}; normalisation over a batch needs running statistics "
                "(track_running_stats=True)"
            )


def _depends(module: nn.Module, x: Tensor, rounding: float) -> str:
    """Return what the outputs of samples x (B, …) depend on besides the samples themselves, beyond rounding (see
    `ROUNDING`): "chance", "others" or ""."""
    together, again = module(x), module(x)
    if not together.isfinite().all():  # there is nothing to compare
        return ""
    apart = together.amax(0) - together.amin(0)
    most = CLOSE * apart.max() + rounding * together.abs().max()
    if (together - again).abs().max() > most:
        return "chance"
    for i in (0, len(x) // 2, len(x) - 1):  # a recurrence through the batch runs from one end to the other
        try:
            alone = module(x[i : i + 1])
        except (RuntimeError, ValueError):  # batch statistics of one sample, or a fixed number of samples
            return "others"
        if alone.shape != together[:1].shape or (alone - together[i : i + 1]).abs().max() > most:
            return "others"
    return ""


def _check_logits(decoder: nn.Module, z: Tensor, name: str) -> None:
    """Raise ConfigError if a decoder ends in a sigmoid or a softmax: the likelihood applies one itself."""
    with torch.enable_grad():
        node = decoder(z.detach().requires_grad_()).grad_fn
    while node is not None and node.name().startswith(RESHAPES) and node.next_functions:
        node = node.next_functions[0][0]
    last = next((what for start, what in SQUASHES.items() if node is not None and node.name().startswith(start)), None)
    if last is not None:
        raise ConfigError(
            f"the decoder ends in {last}, but the {name} likelihood expects logits and turns them into "
            "probabilities itself: pass the decoder without that layer (decoder[:-1] of a Sequential), or use the "
            "gaussian likelihood"
        )
