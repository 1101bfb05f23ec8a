"""Interception of a module's call: the products of weights and inputs, and the output of a module inside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lapae.curvature.call import Work, tensor_of
from lapae.curvature.rules.affine import Affine, Linear
from lapae.curvature.rules.base import Leaf, Params, hollow
from lapae.curvature.rules.convolution import Conv, ConvTranspose, SeveralConv, SeveralConvTranspose
from lapae.curvature.stateless import functional_call

CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
WATCHED: dict[Any, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.linear: (nn.Linear, CONV[:3]),
    F.conv1d: (nn.Conv1d, CONV),
    F.conv2d: (nn.Conv2d, CONV),
    F.conv3d: (nn.Conv3d, CONV),
    F.conv_transpose1d: (nn.ConvTranspose1d, TRANSPOSED),
    F.conv_transpose2d: (nn.ConvTranspose2d, TRANSPOSED),
    F.conv_transpose3d: (nn.ConvTranspose3d, TRANSPOSED),
}
"""Functions that multiply an input with a weight: the corresponding layers, and their arguments."""


@dataclass(frozen=True)
class Use:
    """A function call that multiplies an input with weights, as a layer."""

    leaf: Leaf
    """Its x is (B, *in), or (B, n, *in) if a sample calls it with a batch of n."""
    names: dict[str, str]
    """Full names of the wanted parameters among its weight and bias."""
    probe: Tensor
    """(B, *out as the sample has it): zeros that were added to the output."""

    def rows(self, gradients: Tensor) -> Tensor:
        """Return gradients of the probe (R, B, …) as rows at the leaf's output."""
        return gradients.reshape(*gradients.shape[:2], *self.leaf.y.shape[1:])


class Watch(TorchFunctionMode):
    """A mode in which these functions use the fixed value of a wanted weight, and a probe is added to their output."""

    def __init__(self, names: Mapping[int, str], wanted: Params, probes: Sequence[Tensor] | None = None) -> None:
        """`names` finds the full name of a parameter by the id of the tensor that stands for it in the call."""
        super().__init__()
        self.names, self.wanted, self.probes = names, wanted, probes
        self.met: list[tuple[Any, dict[str, str], tuple[int, ...]]] = []
        """The functions, the full names of their weights and the shapes of their outputs, one after the other."""
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.uses: list[Callable[[Tensor, Tensor], Use]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WATCHED:
            given = dict(zip(WATCHED[func][1], args, strict=False)) | kwargs
            if id(given["weight"]) in self.names:
                return self._meet(func, given)
        if func is F.embedding:
            return _embedding(*args, **kwargs)
        return func(*args, **kwargs)

    def _meet(self, func: Any, given: dict[str, Any]) -> Tensor:
        names = {k: self.names[id(given[k])] for k in ("weight", "bias") if id(given.get(k)) in self.names}
        fixed = {key: self.wanted[name] for key, name in names.items()}
        y = func(**{**given, **fixed})
        i = len(self.inputs)
        self.met.append((func, names, y.shape))
        self.inputs.append(given["input"])
        if self.probes is None:
            self.outputs.append(y)
            self.uses.append(partial(_use, func, given, names, fixed, y))
            return y
        return y + self.probes[i] if i < len(self.probes) and self.probes[i].shape == y.shape else y


def _embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Return F.embedding with no gradient in the row of the padding, which torch's own forgets for all but the first
    of the weights that vmap maps."""
    y = F.embedding(input, weight, None, *args, **kwargs)
    if padding_idx is None:
        return y
    return torch.where((input == padding_idx % weight.shape[0]).unsqueeze(-1), y.detach(), y)


def _use(
    func: Any, given: dict[str, Any], names: dict[str, str], params: Params, of_first: Tensor, x: Tensor, probe: Tensor
) -> Use:
    """Return the use that a call was, for the inputs x (B, *in as the sample has it) of all samples."""
    kind, arguments = WATCHED[func]
    n_batch, weight = len(x), params["weight"]
    out = of_first.shape
    if kind is nn.Linear:
        rule: Affine = Linear()
        layer: nn.Module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        n_positions = x[0].numel() // weight.shape[1]
        single = n_positions == 1  # the layer then needs no sum over them
        x = x.reshape(n_batch, -1) if single else x.reshape(n_batch, n_positions, weight.shape[1])
        y = (n_batch, weight.shape[0]) if single else (n_batch, x.shape[1], weight.shape[0])
    else:
        transposed = arguments is TRANSPOSED
        layer = _convolution(kind, weight, given, transposed)
        if x.ndim == weight.ndim + 1 and x.shape[1] == 1:
            x, out = x.squeeze(1), out[1:]
        several = x.ndim == weight.ndim + 1
        rules = (SeveralConv, SeveralConvTranspose) if several else (Conv, ConvTranspose)
        rule = rules[transposed]()
        y = (n_batch, *out)
    leaf = Leaf(names["weight"], layer, rule, params, tuple(names), x, hollow(x.new_empty(1)).expand(y))
    return Use(leaf, names, probe)


def _convolution(kind: Any, weight: Tensor, given: dict[str, Any], transposed: bool) -> nn.Module:
    """Return the layer that a function call was; it holds no memory."""
    options = {key: value for key, value in given.items() if key not in ("input", "weight", "bias")}
    first, second = weight.shape[0], weight.shape[1] * options.get("groups", 1)
    channels = (first, second) if transposed else (second, first)
    return kind(*channels, tuple(weight.shape[2:]), bias=given.get("bias") is not None, device="meta", **options)


@contextmanager
def cutting(module: nn.Module, name: str | None, start: Tensor | None = None) -> Generator[list[Tensor], None, None]:
    """Keep the output of a module in the network, the code, and let the rest continue from it without its graph.

    Args:
        module: the network.
        name: of the module in it; None to cut nothing.
        start: added to the code for the rest; None to leave the graph unchanged.

    Yields:
        A list to which the code is added.
    """
    code: list[Tensor] = []

    def take(_: nn.Module, args: Any, output: Any) -> Any:
        if code:
            raise ValueError(f"bottleneck={name!r} is called more than once: its output is not the code")
        code.append(tensor_of(output))
        if start is None:
            return None
        again = code[0].detach() + start
        if isinstance(output, Tensor):
            return again
        if isinstance(output, tuple | list):
            return (again, *output[1:])
        raise ValueError(f"bottleneck={name!r} gives a {type(output).__name__}: name a layer that gives a tensor")

    hook = None if name is None else _submodule(module, name).register_forward_hook(take)
    try:
        yield code
    finally:
        if hook is not None:
            hook.remove()


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = ", ".join(n for n, _ in module.named_modules() if n)
        raise ValueError(f"bottleneck={name!r} names no layer: there are {known}") from None


def narrowest(task: Work) -> str:
    """Return the module, called once, whose output has the fewest numbers; the last of several."""
    seen: list[tuple[str, Any]] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: seen.append((name, output)))
        for name, module in task.module.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            functional_call(task.module, task.weights, (task.x[:1],))
    finally:
        for hook in hooks:
            hook.remove()
    calls = Counter(name for name, _ in seen)
    once = [(name, y) for name, y in seen if isinstance(y, Tensor) and calls[name] == 1]
    floats = [(name, y) for name, y in once if y.is_floating_point() and y.numel()]
    if not floats:
        raise ValueError("the module has no layers of its own to be the bottleneck: name one, or take another method")
    return min(reversed(floats), key=lambda found: found[1].numel())[0]
