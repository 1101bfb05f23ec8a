"""What a layer must say about itself: its derivatives, apart from what is made of them.

Index conventions, used in every file of this package:

    B  data of the batch            R  rows (vectors that travel back, or tangents that travel forward)
    x  input  (B, *in)              y  output (B, *out)
    v  rows at the output (R, B, *out)       t  tangents at the input (R, B, *in)
    m  diagonal of M at the output (B, *out), or (1, *out) where it is the same for all data

Every method of `Rule` has a default that is right for any layer that treats data independently, by automatic
differentiation; rules override them to be fast. So the shortest registration of a layer of one's own is

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
"""Numbers of an intermediate result (columns, gradients of rows) held at a time."""


@dataclass(frozen=True)
class Leaf:
    """A layer at work: where it stands, its weights, and what went in and came out."""

    name: str
    layer: Any
    rule: Rule
    params: Params
    """By the layer's own names; detached."""
    trainable: tuple[str, ...]
    """Which of them the curvature is wanted of."""
    x: Tensor
    y: Tensor
    saved: Any = None
    """What the rule kept in the forward pass: None, or tensors with the batch axis first, one or a tuple of them."""
    names: Mapping[str, str] | None = None
    """Names of the parameters in `named_parameters()` of the module; by default those of the layer and the key."""

    def full_name(self, key: str) -> str:
        """Return the name of a parameter in `named_parameters()` of the module."""
        if self.names is not None:
            return self.names[key]
        return f"{self.name}.{key}" if self.name else key

    def part(self, data: slice) -> Leaf:
        """The same layer for some of the data."""
        return replace(self, x=self.x[data], y=self.y[data], saved=_part(self.saved, data))


def hollow(x: Tensor) -> Tensor:
    """A tensor of the same shape, type and device that takes no memory, and has no values worth reading."""
    return x.new_empty(()).expand(x.shape)


def _part(saved: Any, data: slice) -> Any:
    if isinstance(saved, tuple):
        return tuple(_part(s, data) for s in saved)
    return saved[data] if isinstance(saved, Tensor) else saved


class Rule:
    """Derivatives of one class of layers, for a layer `at` work (a `Leaf`)."""

    uses_x = True
    """Whether the derivatives look at the values of the input; where not, only its shape is kept."""
    uses_y = True
    """Likewise for the output."""
    positionwise = False
    """Whether the layer acts on every feature alone, y_i = f(x_i): a diagonal M stays so, any M is scaled."""
    reshapes = False
    """Whether the layer only renames features (flatten): then M stays as it is."""

    def check(self, layer: Any) -> None:
        """Raise a ValueError where this layer's options are not covered."""
        reason = couples(layer)
        if reason:
            raise ValueError(reason)

    def forward(self, layer: nn.Module, params: Params, x: Tensor) -> tuple[Tensor, Any]:
        """(B, *in) -> (B, *out), and whatever the derivatives want to keep."""
        return self.apply(layer, params, x), None

    def apply(self, layer: nn.Module, params: Params, x: Tensor) -> Tensor:
        """The layer as a pure function."""
        if getattr(layer, "inplace", False):
            x = x.clone()
        return functional_call(layer, params, (x,)) if params else layer(x)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """J t: tangents (R, B, *in) -> (R, B, *out)."""
        return vmap(lambda t: jvp(lambda x: self.apply(at.layer, at.params, x), (at.x,), (t,))[1])(t)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """Jᵀ v: rows (R, B, *out) -> (R, B, *in)."""
        pull = vjp(lambda x: self.apply(at.layer, at.params, x), at.x)[1]
        return vmap(lambda v: pull(v)[0])(v)

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        """(∂y/∂w)ᵀ v for every row and every datum: (R, B, *w.shape) for each parameter."""

        def of_datum(x: Tensor, v: Tensor) -> Params:
            pull = vjp(lambda params: self.apply(at.layer, params, x[None])[0], at.params)[1]
            return vmap(lambda v: pull(v)[0])(v)

        return vmap(of_datum, in_dims=(0, 1), out_dims=1)(at.x, v)

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """The vjp with squared coefficients: m_in = Σ_o m_o J_oi², and h_w = Σ_b Σ_o m_o (∂y_o/∂w)² per parameter."""
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
        """Whether M may be pulled through this layer, and its block be read, as a matrix; else it goes as rows."""
        return False

    def dense_pull(self, at: Leaf, c: Tensor) -> Tensor:
        """Jᵀ c J for c of (B or 1, out, out): here J is diagonal."""
        if not self.positionwise:
            raise NotImplementedError
        d = self.jvp(at, torch.ones_like(at.x)[None])[0].flatten(1)
        return (c * d[:, None, :]).mul_(d[:, :, None])


def row_bound(at: Leaf) -> int:
    """Numbers in memory for one row of one datum, where its gradient is formed."""
    widest = max(math.prod(at.x.shape[1:]), math.prod(at.y.shape[1:]))
    return 2 * widest + sum(p.numel() for p in at.params.values())


def identity_rows(y: Tensor, first: int = 0, last: int | None = None) -> Tensor:
    """Rows first … last of the identity at y: (R, B, *out)."""
    n_features = math.prod(y.shape[1:])
    last = n_features if last is None else last
    eye = torch.zeros(last - first, n_features, dtype=y.dtype, device=y.device)
    eye.diagonal(first).fill_(1)
    return eye.reshape(last - first, 1, *y.shape[1:]).expand(last - first, *y.shape)


def product_with_itself(x: Tensor) -> Tensor:
    """x xᵀ for x (I, N); a long one in strips on and right of the diagonal, as the rest is their mirror image."""
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
        layers: classes of layers; none, where a block of code registers its own.
    """

    def __init__(self, *layers: type[nn.Module]) -> None:
        self._layers = layers
        self._before: list[dict[type[nn.Module], Rule]] = []

    def __call__(self, rule: type[R]) -> type[R]:
        """Use the decorated rule from now on, and return it as it is."""
        _RULES.update(dict.fromkeys(self._layers, rule()))
        return rule

    def __enter__(self) -> Self:
        self._before.append(dict(_RULES))
        return self

    def __exit__(self, *_: object) -> None:
        """Forget all rules that were registered since, and take back those that they replaced."""
        _RULES.clear()
        _RULES.update(self._before.pop())


NORMS, DROPS = nn.modules.batchnorm._BatchNorm, (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


def couples(layer: nn.Module) -> str | None:
    """Why a layer, in the mode that it is in, does not treat data independently, or is random; None where it does."""
    if isinstance(layer, NORMS) and (layer.training or layer.running_mean is None):
        return "batch statistics couple the data; call .eval() on a layer that tracks running statistics"
    if isinstance(layer, DROPS) and layer.training and getattr(layer, "p", 0) + getattr(layer, "dropout", 0) > 0:
        return "dropout is on; the curvature is that of one network: call .eval() first"
    return None


class UnknownLayerError(NotImplementedError):
    """A layer that no rule covers."""


def find(layer: nn.Module, name: str) -> Rule:
    """The rule of a layer, which may be inherited as long as `forward` is."""
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
        "that treats data independently (override its methods for speed: see lapae/curvature/README.md). "
        "A container with a forward of its own can be written with nn.Sequential and lapae.curvature.Residual. "
        "The methods exact, mc, sketch and bottleneck need no rules."
    )
