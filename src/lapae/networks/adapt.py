"""Adapters for encoders and decoders of other packages: outputs become tensors, codes become (B, K).

| the encoder returns                                  | the code                                        |
|------------------------------------------------------|-------------------------------------------------|
| a tensor (B, K)                                      | it                                              |
| a tensor (B, C, h, w), or of any other shape         | its numbers, (B, K)                             |
| a pair (mean, log-variance)                          | the mean                                        |
| both in one tensor, half of which the decoder takes  | the first half                                  |
| an object with `latent_dist`, `latents`, `mean`, …   | the mean of the distribution, the latents       |

A whole model with a pair of methods in `VERBS` (autoencoders of diffusers, MONAI and pythae) is split into two modules,
each with the weights that it uses. Modules that return and take (B, K) stay as they are, with the names of their
parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature.call import tensor_of
from lapae.curvature.per_sample import leaves_of
from lapae.errors import ConfigError

Shape = tuple[int, ...]
Modules = tuple[nn.Module, nn.Module]
VERBS = (("encode_forward", "decode_forward"), ("encode", "decode"), ("encoder", "decoder"))
"""Names of the two halves of a model, which are methods or modules. The first existing pair is used."""
RECURRENT = (
    "the encoder returns what a {} returns, the outputs of all time steps and its states: write a module that returns "
    "the code, such as the last state, `def forward(self, x): return self.lstm(x)[1][0][-1]` with nn.LSTM(..., "
    "batch_first=True)"
)
SEVERAL = (
    "the encoder returns {} values, and the decoder does not take the first of them alone. The code must be the only "
    "input of the decoder: have the encoder return one tensor, such as torch.cat([z, skip.flatten(1)], 1), and the "
    "decoder split it again"
)


def adapt(network: Modules | nn.Module, shape: Shape) -> Modules:
    """Adapt two modules, or a model that can encode and decode, to the shapes of an autoencoder.

    The modules are called once, on zeros. If that fails, they are returned unchanged.

    Args:
        network: encoder and decoder, or a model with a pair of methods in `VERBS`.
        shape: shape of a sample.

    Returns:
        An encoder (B, *shape) -> (B, K) and a decoder back. A ConfigError says what to write instead of a recurrent
        layer, or instead of an encoder that passes more than a code to the decoder.
    """
    if isinstance(network, nn.Module):
        network = halves(network, shape)
    encoder, decoder = network
    if isinstance(encoder, nn.RNNBase):
        raise ConfigError(RECURRENT.format(type(encoder).__name__))
    with in_eval_mode(encoder, decoder), torch.no_grad():
        x = _zeros(encoder, shape)
        try:
            given = encoder(x)
            code = code_of(given)
        except (RuntimeError, TypeError, ValueError):
            return network
        if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[1], tuple | list):
            raise ConfigError(RECURRENT.format("recurrent layer"))
        half = code.ndim > 1 and code.shape[1] % 2 == 0 and not _takes(decoder, code)
        half = half and _takes(decoder, code.chunk(2, 1)[0])
        if half:
            code = code.chunk(2, 1)[0]
        if not _takes(decoder, code):
            if isinstance(given, tuple | list) and len(given) > 1:
                raise ConfigError(SEVERAL.format(len(given)))
            return network
        plain = isinstance(decoder(code), Tensor)
    if half or not isinstance(given, Tensor):
        encoder = Coded(encoder, half)
    if not plain:
        decoder = Decoded(decoder)
    if code.ndim > 2:
        encoder = with_layer(encoder, after=("flat", nn.Flatten(1)))
        decoder = with_layer(decoder, before=("unflat", nn.Unflatten(1, tuple(code.shape[1:]))))
    return encoder, decoder


def code_of(given: Any) -> Tensor:
    """Return the code in the output of an encoder: the mean, if the output is a distribution."""
    if isinstance(given, Tensor):
        return given
    for name in ("latent_dist", "latents", "embedding", "mean", "mu", "loc", "z", "last_hidden_state"):
        value = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        if value is not None and not callable(value):
            return code_of(value)
    if isinstance(given, tuple | list) and given:
        return code_of(given[0])
    raise TypeError(f"expected an encoder that returns codes, or a mean and a log-variance, got {type(given).__name__}")


class Coded(nn.Module):
    """Encoder that returns only the code from the output of `network`."""

    def __init__(self, network: nn.Module, half: bool = False) -> None:
        """Wrap an encoder; with `half` the code is the first half along dimension 1, the other half log-variances."""
        super().__init__()
        self.network, self.half = network, half  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        code = code_of(self.network(x))
        return code.chunk(2, 1)[0] if self.half else code


class Decoded(nn.Module):
    """Decoder that returns one tensor from an object or several values returned by `network`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        return tensor_of(self.network(z))


class Verb(nn.Module):
    """One method of a model, as a module."""

    def __init__(self, network: nn.Module, verb: str) -> None:
        super().__init__()
        self.network, self.verb = network, verb

    def forward(self, x: Tensor) -> Any:
        return getattr(self.network, self.verb)(x)


def halves(model: nn.Module, shape: Shape) -> Modules:
    """Split a model into encoder and decoder: copies of it, each with the weights that it uses."""
    found = [pair for pair in VERBS if all(callable(getattr(model, verb, None)) for verb in pair)]
    if not found:
        raise TypeError(
            f"expected a model that can encode and decode, or a pair of modules, got {type(model).__name__}"
        )
    encoder, decoder = (Verb(copy.deepcopy(model), verb) for verb in found[0])
    with in_eval_mode(encoder, decoder):
        x = code = _zeros(encoder, shape)
        try:
            code = code_of(_keep_used(encoder, x, code_of)).detach()
            _keep_used(decoder, code, tensor_of)
        except (RuntimeError, ValueError, IndexError) as error:  # shapes that do not fit
            verb, came = (found[0][0], x) if code is x else (found[0][1], code)
            name = f"{type(model).__name__}.{verb}"
            message = f"{name} does not take its input, of shape {tuple(came.shape)} ({len(x)} samples): {error}"
            raise ConfigError(message) from error
    _compare(model, encoder, decoder, shape)
    return encoder, decoder


def _compare(model: nn.Module, encoder: nn.Module, decoder: nn.Module, shape: Shape) -> None:
    """Warn if the output of the two halves differs from that of the whole model, unless it is random."""
    like = _zeros(model, shape)
    x = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    with in_eval_mode(model, encoder, decoder), torch.no_grad():
        try:
            whole, again = (tensor_of(model(x)) for _ in range(2))
            parts = tensor_of(decoder(code_of(encoder(x))))
        except (RuntimeError, TypeError, ValueError):  # more arguments, other shapes: there is nothing to compare
            return
    if whole.shape == parts.shape and torch.equal(whole, again) and not torch.allclose(whole, parts, 1e-2, 1e-3):
        warnings.warn(
            f"{type(model).__name__} returns another reconstruction than its encoder and decoder one after the other, "
            "which are what is used: pass a pair (encoder, decoder) that computes what the model does",
            stacklevel=2,
        )


def _keep_used(verb: Verb, x: Tensor, result: Any) -> Any:
    """Run one method of a model, remove the weights that it does not use, and return its output."""
    called: set[nn.Module] = set()
    hooks = [m.register_forward_hook(lambda module, *_: called.add(module)) for m in verb.modules()]
    wanted = [p.requires_grad for p in verb.parameters()]
    verb.requires_grad_(True)
    try:
        with torch.enable_grad():
            given = verb(x)
    finally:
        for hook in hooks:
            hook.remove()
    used = leaves_of(result(given))
    for parameter, flag in zip(verb.parameters(), wanted, strict=True):
        parameter.requires_grad_(flag)
    for module in verb.modules():
        for key, parameter in module._parameters.items():
            if module not in called and id(parameter) not in used:  # a layer that is called needs its weights
                module._parameters[key] = None
    return given


def with_layer(
    module: nn.Module, *, before: tuple[str, nn.Module] | None = None, after: tuple[str, nn.Module] | None = None
) -> nn.Sequential:
    """Add a layer before or after a module; the parameters of a `Sequential` keep their names."""
    # not named_children, which leaves out a layer's second place
    inner = list(module._modules.items()) if type(module) is nn.Sequential else [("network", module)]
    layers = [layer for layer in (before, *inner, after) if layer is not None]
    return nn.Sequential(OrderedDict(layers))  # pyright: ignore[reportArgumentType]


def _takes(decoder: nn.Module, code: Tensor) -> bool:
    try:
        decoder(code)
    except (RuntimeError, ValueError, TypeError, IndexError):  # shapes that do not fit, arguments that are missing
        return False
    return True


def _zeros(module: nn.Module, shape: Shape) -> Tensor:
    weight = next(module.parameters(), torch.zeros(()))
    # three samples: two would pass for a pair (z, skip)
    return torch.zeros(3, *shape, dtype=weight.dtype, device=weight.device)


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Set modules to evaluation mode, and give each module its own mode back at the end."""
    modes = [(m, m.training) for m in _inside(modules)]
    if not any(training for _, training in modes):
        yield
        return
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for m, mode in modes:
            m.training = mode


def _inside(modules: Iterable[nn.Module | None]) -> Iterator[nn.Module]:
    """Yield modules and all in them, without names, which take most of the time of `Module.modules`."""
    for module in modules:
        if module is not None:
            yield module
            yield from _inside(module._modules.values())
