"""Encoders and decoders as others wrote them: what they give becomes a tensor, and a code one row of numbers.

| the encoder gives                                    | the code                                        |
|------------------------------------------------------|-------------------------------------------------|
| a tensor (B, K)                                      | it                                              |
| a tensor (B, C, h, w), or of any other shape         | its numbers, (B, K)                             |
| a pair (mean, log-variance)                          | the mean                                        |
| both side by side, of which the decoder takes half   | the first half                                  |
| an object with `latent_dist`, `latents`, `mean`, …   | the mean of the distribution, the latents       |

A whole model with a pair of `VERBS` (diffusers', MONAI's and pythae's autoencoders) is taken apart into two modules,
each with the weights that it uses. Modules that give and take (B, K) stay as they are, names of their parameters too.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
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
"""What models call their two halves: methods or modules. The first pair that a model has is taken."""
RECURRENT = (
    "the encoder gives what a {} gives, the outputs of all steps and its states: write a module that returns the code, "
    "such as the last state, `def forward(self, x): return self.lstm(x)[1][0][-1]` with nn.LSTM(..., batch_first=True)"
)
SEVERAL = (
    "the encoder gives {} things, and the decoder does not take the first of them alone. The code must be all that the "
    "decoder gets: have the encoder return one tensor, such as torch.cat([z, skip.flatten(1)], 1), and the decoder "
    "take it apart again"
)


def adapt(network: Modules | nn.Module, shape: Shape) -> Modules:
    """An encoder (B, *shape) -> (B, K) and a decoder back, of two modules or of a model that has both verbs.

    They are called once, on zeros. What cannot be called so is left as it is. A ConfigError says what to write in place
    of a recurrent layer, and of an encoder that hands the decoder more than a code.
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
    """The code in what an encoder gives: a mean, where it gives a distribution."""
    if isinstance(given, Tensor):
        return given
    for name in ("latent_dist", "latents", "embedding", "mean", "mu", "loc", "z", "last_hidden_state"):
        value = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
        if value is not None and not callable(value):
            return code_of(value)
    if isinstance(given, tuple | list) and given:
        return code_of(given[0])
    raise TypeError(f"expected an encoder that gives codes, or a mean and a log-variance, got {type(given).__name__}")


class Coded(nn.Module):
    """An encoder whose output holds the code among other things."""

    def __init__(self, network: nn.Module, half: bool = False) -> None:
        """With `half` the code is the first half along dimension 1: the other half are log-variances."""
        super().__init__()
        self.network, self.half = network, half  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        code = code_of(self.network(x))
        return code.chunk(2, 1)[0] if self.half else code


class Decoded(nn.Module):
    """A decoder that gives an object or several things."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        return tensor_of(self.network(z))


class Verb(nn.Module):
    """One verb of a model, as a module."""

    def __init__(self, network: nn.Module, verb: str) -> None:
        super().__init__()
        self.network, self.verb = network, verb

    def forward(self, x: Tensor) -> Any:
        return getattr(self.network, self.verb)(x)


def halves(model: nn.Module, shape: Shape) -> Modules:
    """The two verbs of a model, copies of it with the weights that each of them uses."""
    found = [pair for pair in VERBS if all(callable(getattr(model, verb, None)) for verb in pair)]
    if not found:
        raise TypeError(
            f"expected a model that can encode and decode, or a pair of modules, got {type(model).__name__}"
        )
    encoder, decoder = (Verb(copy.deepcopy(model), verb) for verb in found[0])
    with in_eval_mode(encoder, decoder):
        code = code_of(_keep_used(encoder, _zeros(encoder, shape), code_of)).detach()
        _keep_used(decoder, code, tensor_of)
    _compare(model, encoder, decoder, shape)
    return encoder, decoder


def _compare(model: nn.Module, encoder: nn.Module, decoder: nn.Module, shape: Shape) -> None:
    """Warn where the halves do another thing than the model as a whole, if that is not random."""
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
            f"{type(model).__name__} gives another reconstruction than its halves one after the other, which are what "
            "is looked at: hand over a pair (encoder, decoder) that does what the model does",
            stacklevel=2,
        )


def _keep_used(verb: Verb, x: Tensor, result: Any) -> Any:
    """Run a verb, and let go of weights that had no part in it; returns what it gave."""
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
    """One more layer at an end; the parameters of a `Sequential` keep their names."""
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
    """Evaluation mode; every module gets its own mode back."""
    modes = [(m, m.training) for module in modules for m in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for m, mode in modes:
            m.training = mode
