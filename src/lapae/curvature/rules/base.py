"""Rules: the derivatives of each class of layers, separate from what is computed from them.

Index conventions, used in every file of this package:

    B  samples of the batch            R  rows (vectors that travel back, or tangents that travel forward)
    x  input  (B, *in)              y  output (B, *out)
    v  rows at the output (R, B, *out)       t  tangents at the input (R, B, *in)
    m  diagonal of M at the output (B, *out), or (1, *out) where it is the same for all samples

Every method of `Rule` has a default, by automatic differentiation, that is correct for any layer that treats samples
independently; rules override them to be fast. So the shortest registration of a layer of your own is

    register(MyLayer)(Rule)

and its fast version overrides `squared_backward` (for `approx`) and whichever others matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

Params = dict[str, Tensor]

CHUNK_FLOATS = 1 << 26
"""Maximum number of values of an intermediate result (columns, gradients of rows) held at a time."""


@dataclass(frozen=True)
class Leaf:
    """A layer in a forward pass: its position, its weights, its input and output."""

    name: str
    layer: Any
    rule: Rule
    params: Params
    """Weights by the layer's own names, detached."""
    trainable: tuple[str, ...]
    """Keys of the weights whose curvature is wanted."""
    x: Tensor
    y: Tensor
    saved: Any = None
    """Tensors that the rule kept in the forward pass, with the batch axis first: None, one, or a tuple of them."""
    names: Mapping[str, str] | None = None
    """Names of the parameters in `named_parameters()` of the module; by default those of the layer and the key."""

    def full_name(self, key: str) -> str:
        """Return the name of a parameter in `named_parameters()` of the module."""
        if self.names is not None:
            return self.names[key]
        return f"{self.name}.{key}" if self.name else key

    def part(self, samples: slice) -> Leaf:
        """Return the layer at work on some of the samples."""
        return replace(self, x=self.x[samples], y=self.y[samples], saved=_part(self.saved, samples))


def hollow(x: Tensor) -> Tensor:
    """Return a tensor of the same shape, dtype and device that takes no memory, and has no values worth reading."""
    return x.new_empty(()).expand(x.shape)


def _part(saved: Any, samples: slice) -> Any:
    if isinstance(saved, tuple):
        return tuple(_part(s, samples) for s in saved)
    return saved[samples] if isinstance(saved, Tensor) else saved


class Rule:
    """Derivatives of one class of layers, for a layer `at` work (a `Leaf`)."""

    uses_x = True
    """Whether the derivatives look at the values of the input; if not, only its shape is kept."""
    uses_y = True
    """Whether the derivatives look at the values of the output."""
    positionwise = False
    """Whether the layer acts on every feature separately, y_i = f(x_i): a diagonal M stays diagonal, any M is
    scaled."""
    reshapes = False
    """Whether the layer only renames features (flatten), so that M does not change."""

    def check(self, layer: Any) -> None:
        """Raise a ValueError if this layer's options are not covered."""
        reason = couples(layer)
        if reason:
            raise ValueError(reason)

    def forward(self, layer: nn.Module, params: Params, x: Tensor) -> tuple[Tensor, Any]:
        """Return the output (B, *out) for x (B, *in), and whatever the derivatives need to keep."""
        return self.apply(layer, params, x), None

    def apply(self, layer: nn.Module, params: Params, x: Tensor) -> Tensor:
        """Return the output (B, *out) for x (B, *in): the layer as a pure function."""
        if getattr(layer, "inplace", False):
            x = x.clone()
        return functional_call(layer, params, (x,)) if params else layer(x)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """Return J t (R, B, *out) for tangents t (R, B, *in)."""
        return vmap(lambda t: jvp(lambda x: self.apply(at.layer, at.params, x), (at.x,), (t,))[1])(t)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """Return Jᵀ v (R, B, *in) for rows v (R, B, *out)."""
        pull = vjp(lambda x: self.apply(at.layer, at.params, x), at.x)[1]
        return vmap(lambda v: pull(v)[0])(v)

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        """Return (∂y/∂w)ᵀ v for every row v (R, B, *out) and sample: (R, B, *w.shape) for each parameter."""

        def of_sample(x: Tensor, v: Tensor) -> Params:
            pull = vjp(lambda params: self.apply(at.layer, params, x[None])[0], at.params)[1]
            return vmap(lambda v: pull(v)[0])(v)

        return vmap(of_sample, in_dims=(0, 1), out_dims=1)(at.x, v)

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """Return the vjp with squared coefficients.

        Args:
            at: the layer at work.
            m: diagonal of M at its output, (B or 1, *out).
            need_input: whether m_in is needed.

        Returns:
            m_in = Σ_o m_o J_oi², (B or 1, *in), or None; and h_w = Σ_b Σ_o m_o (∂y_o/∂w)² of each wanted parameter.
        """
        weights = m.reshape(len(m), -1).T.expand(-1, len(at.x))
        m_in = torch.zeros_like(at.x) if need_input else None
        h = {k: torch.zeros_like(at.params[k]) for k in at.trainable}
        size = max(1, CHUNK_FLOATS // (len(at.x) * row_bound(at)))
        for first in range(0, len(weights), size):
            eye = identity_rows(at.y, first, min(first + size, len(weights)))
            w = weights[first : first + size]
            if m_in is not None:
                m_in += torch.einsum("rb,rb...->b...", w, self.vjp(at, eye).square())
            gradients = self.gradients(at, eye) if h else {}
            for k in h:
                h[k] += torch.einsum("rb,rb...->...", w, gradients[k].square())
        return m_in, h

    def takes_matrix(self, at: Leaf) -> bool:
        """Return whether M can pass this layer, and its block be extracted, as a matrix; otherwise M travels as
        rows."""
        return False

    def dense_pull(self, at: Leaf, c: Tensor) -> Tensor:
        """Return Jᵀ c J for c (B or 1, out, out): here J is diagonal."""
        if not self.positionwise:
            raise NotImplementedError
        d = self.jvp(at, torch.ones_like(at.x)[None])[0].flatten(1)
        return (c * d[:, None, :]).mul_(d[:, :, None])


def row_bound(at: Leaf) -> int:
    """Return the numbers in memory for one row of one sample, if its gradient is formed."""
    widest = max(math.prod(at.x.shape[1:]), math.prod(at.y.shape[1:]))
    return 2 * widest + sum(p.numel() for p in at.params.values())


def identity_rows(y: Tensor, first: int = 0, last: int | None = None) -> Tensor:
    """Return rows `first` to `last` (exclusive; default: all) of the identity at an output y (B, *out): (R, B,
    *out)."""
    n_features = math.prod(y.shape[1:])
    last = n_features if last is None else last
    eye = torch.zeros(last - first, n_features, dtype=y.dtype, device=y.device)
    eye.diagonal(first).fill_(1)
    return eye.reshape(last - first, 1, *y.shape[1:]).expand(last - first, *y.shape)


def product_with_itself(x: Tensor) -> Tensor:
    """Return x xᵀ for x (I, N); for a long one in strips right of the diagonal, as the rest is their mirror image."""
    size = max(96, -(-len(x) // 6))
    if len(x) <= size or x.shape[1] < 4 * len(x):
        return x @ x.T
    product = x.new_empty(len(x), len(x))
    for i in range(0, len(x), size):
        j = min(i + size, len(x))
        torch.mm(x[i:j], x[i:].T, out=product[i:j, i:])
        product[j:, i:j] = product[i:j, j:].T
    return product


_RULES: dict[type[nn.Module], Rule] = {}
R = TypeVar("R", bound=Rule)


class register:
    """Use a `Rule` for some classes of layers: for good as a decorator, for a while as a context manager.

        @register(MyLayer)
        class MyRule(Rule): ...

        with register(MyLayer) as use:  # rules registered in here are forgotten at its end
            use(MyRule)

    Args:
        layers: classes of layers; none if a block of code registers its own.
    """

    def __init__(self, *layers: type[nn.Module]) -> None:
        self._layers = layers
        self._before: list[dict[type[nn.Module], Rule]] = []

    def __call__(self, rule: type[R]) -> type[R]:
        """Use the decorated rule from now on, and return it unchanged."""
        _RULES.update(dict.fromkeys(self._layers, rule()))
        return rule

    def __enter__(self) -> Self:
        self._before.append(dict(_RULES))
        return self

    def __exit__(self, *_: object) -> None:
        """Forget all rules that were registered since, and restore those that they replaced."""
        _RULES.clear()
        _RULES.update(self._before.pop())


NORMS, DROPS = nn.modules.batchnorm._BatchNorm, (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


def couples(layer: nn.Module) -> str | None:
    """Return why a layer, in its present mode, couples samples or is random; None if it does neither."""
    if isinstance(layer, NORMS) and (layer.training or layer.running_mean is None):
        return "batch statistics couple the samples; call .eval() on a layer that tracks running statistics"
    if isinstance(layer, DROPS) and layer.training and getattr(layer, "p", 0) + getattr(layer, "dropout", 0) > 0:
        return "dropout is on; the curvature is that of one network: call .eval() first"
    return None


class UnknownLayerError(NotImplementedError):
    """Error for a layer that no rule covers."""


def find(layer: nn.Module, name: str) -> Rule:
    """Return the rule of a layer, which can be inherited if `forward` is inherited, too.

    Args:
        layer: the layer.
        name: of the layer in its network, for messages.
    """
    for cls in type(layer).__mro__:
        if cls in _RULES and type(layer).forward is cls.forward:
            rule = _RULES[cls]
            try:
                rule.check(layer)
            except ValueError as error:
                raise ValueError(f"layer {name!r}, {layer}: {error}") from None
            return rule
    kind = type(layer).__name__
    raise UnknownLayerError(
        f"no curvature rule for layer {name!r} of class {kind}. "
        f"Register one: `from lapae.curvature import Rule, register; register({kind})(Rule)` is right for any layer "
        "that treats samples independently (override its methods for speed: see lapae/curvature/README.md). "
        "A container with a forward of its own can be written with nn.Sequential and lapae.curvature.Residual. "
        "The methods exact, mc, sketch and bottleneck need no rules."
    )
