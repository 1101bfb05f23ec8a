"""A diagonal plus T vectors over all weights: covariances between any two weights, from T x T matrices.

With vectors u_t whose outer products add up to the GGN on average, E[UᵀU] = G (T random sums, `curvature.vectors`),
the precision is that of G shrunk towards its diagonal,

    C = Λ + (1 - ρ) D + ρ UᵀU = M + WᵀW,        D = diag(UᵀU),  M = Λ + (1 - ρ) D,  W = √ρ U  (T, P)

in the way that a covariance matrix is shrunk if it is estimated from fewer samples than it has rows (Ledoit and Wolf
2004; Schäfer and Strimmer 2005). At ρ = 0 this is the best mean-field posterior of the linearised network, at ρ = 1
with enough vectors the full Laplace posterior. By the Woodbury identity, with K = W M⁻¹ Wᵀ (T, T),

    C⁻¹ = M⁻¹ - M⁻¹ Wᵀ (I + K)⁻¹ W M⁻¹,        log det C = log det M + log det(I + K)

and M^(-1/2) (I + M^(-1/2) WᵀW M^(-1/2))^(-1/2) ε is a draw, computed with the eigenvectors of K. `shrinkage.py` in this
folder finds ρ and Λ from the vectors themselves.

There are no vectors yet during training: the precision is then that of the running diagonal, as for a sketch.

**Coordinates.** A diagonal is a poor approximation in the coordinates of the weights. The inputs of a layer are
correlated: where the data determine one combination of a unit's weights well and another hardly, the diagonal sees only
that every weight matters, and gives both the same variance. So networks with too few vectors have their diagonal in
other coordinates: with u_t the vectors of a weight tensor as matrices (outputs, inputs), those are the eigenvectors Q
of Σ_t u_tᵀ u_t, on average Σ_b |∂f_b|² a_b a_bᵀ for a linear layer with inputs a_b. D then is the diagonal of Qᵀ G Q,
the variance of an output the Mahalanobis distance of its inputs, and a direction that no sample uses is seen as such.
(Diagonals in such bases: George et al. 2018, EKFAC; the bases of vectors, which need no rules for layers, are those of
Shampoo, Gupta et al. 2018.) The prior is the same in both coordinates.

**Codes.** The code of an autoencoder is a convention between encoder and decoder: a map z → A z + b that the decoder
undoes changes no output, and the data do not determine it. The variance of a code under the full posterior is mostly
due to this freedom, which only the prior bounds: it grows with the size of a code and does not show where the data end
(on glass it ranks outliers with an AUROC of .61, and of .89 with the decoder fixed). `given` fixes the decoder: the
precision of the other weights, given some, is a block of the same matrix, with the same vectors. The prior precision of
the highest evidence measures how large weights are, which says nothing about a row that is unlike all training rows, so
a weak prior is used here. If there are too few vectors for a weak prior, the data's own values, measured with each
vector left out in turn, appear less certain than their noise, which is impossible: the prior is then made as strong as
necessary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lapae.posterior.precision import Precision, RunningDiagonal, eigh

ALONE = 300
"""Maximum number of free weights per vector for which the vectors are used without the diagonal. Networks of tables
have at most about 200; networks of images have thousands, and need the diagonal as well."""
WEAK = 0.1
"""Smallest prior precision if vectors are used alone given other weights, as a share of the initial one."""
STRONGER = 10.0 ** (torch.arange(0, 121, dtype=torch.float64) / 20)
"""Factors of this prior precision that are tried."""
MOST_SIDE = 4096
"""Maximum number of inputs of a layer for which the diagonal has coordinates of its own."""
BLOCKS = 4
"""Number of parts of the vectors whose products are computed one after the other."""
CHUNK_FLOATS = 1 << 24
"""Numbers of the vectors that are converted to 64 bits at a time. In 32 bits, the variance that remains where the data
determine much (noise of a millionth of the data) would be rounding error."""


class LowRankPrecision(RunningDiagonal):
    """Vectors as rows, (T, P), the diagonal of their outer products, and ρ; T = 0 until they are collected."""

    u: Tensor
    d: Tensor
    q: Tensor
    """Bases Q of the coordinates of u and d, one after the other; empty if these are those of the weights."""
    rho: Tensor
    n_values: Tensor
    """Number of values (samples times outputs) of the data that the vectors were computed from; 0 if unknown."""
    drawn: Tensor
    """Temperature of networks that are drawn and evaluated as they are, as a multiple of `temperature`."""

    def __init__(self, shapes: Mapping[str, torch.Size], prior_precision: float, temperature: float = 1.0) -> None:
        super().__init__(shapes, prior_precision, temperature)
        self.register_buffer("u", torch.zeros(0, self.n_weights))
        self.register_buffer("d", torch.zeros(0))
        self.register_buffer("q", torch.zeros(0))
        self.register_buffer("rho", torch.ones(()))
        self.register_buffer("n_values", torch.zeros(()))
        self.register_buffer("drawn", torch.ones(()))
        self._eigen: tuple[Tensor, Tensor] | None = None
        self._base: Tensor | None = None
        self._kept: dict[str, list[Tensor]] = {}
        self._given: dict[frozenset[str], LowRankPrecision] = {}  # a plain dictionary: no part of the state
        self.sides = [_side(shape) for shape in self.shapes.values()]

    @property
    def n_vectors(self) -> int:
        return len(self.u)

    @property
    def has_trained(self) -> bool:
        """Whether networks were drawn from the running diagonal while they were trained."""
        return bool((self.h.isfinite() & (self.h > 0)).any())

    def set_bases(self, bases: Mapping[str, Tensor] | None) -> None:
        """Take the coordinates that vectors will have: {name: eigenvectors as columns}; None: those of the weights.

        Args:
            bases: of every weight tensor whose side is not 0; `sides` has the number of inputs of each tensor.
        """
        self.drop_vectors()
        if bases is not None:
            parts = [bases[name].reshape(-1) for name, side in zip(self.shapes, self.sides, strict=True) if side]
            self.q = torch.cat([self.q, *parts]).to(self.prior)

    def turn(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Return rows (…, P) over the weights in the coordinates of the vectors or, if `back`, the reverse."""
        if not len(self.q):
            return rows
        found = torch.empty_like(rows)
        split = (rows.split(self.sizes, -1), found.split(self.sizes, -1))
        with _full_precision():
            for part, out, q in zip(*split, self._bases(), strict=True):
                if q is None:
                    out.copy_(part)
                else:
                    q = q.to(rows.dtype)
                    out.copy_((part.reshape(*part.shape[:-1], -1, len(q)) @ (q.mT if back else q)).reshape(part.shape))
        return found

    def _bases(self) -> list[Tensor | None]:
        """Return the basis (n, n) of each weight tensor, or None."""
        parts = iter(self.q.split([side**2 for side in self.sides if side]))
        return [next(parts).reshape(side, side) if side else None for side in self.sides]

    def diagonal_of_weights(self) -> Tensor:
        """Return the diagonal of Q D Qᵀ, (P,): that of the curvature in the coordinates of the weights."""
        if not len(self.q):
            return self.d
        known, found = self.d.isinf(), self.d.clone()
        for part, q in zip(found.masked_fill_(known, 0).split(self.sizes), self._bases(), strict=True):
            if q is not None:
                part.copy_((part.reshape(-1, len(q)) @ q.square().mT).reshape(-1))
        return found.masked_fill_(known, math.inf)

    def set_vectors(self, u: Tensor, d: Tensor | None = None, rho: float = 1.0) -> None:
        """Take vectors whose outer products add up to the curvature.

        Args:
            u: (T, P), in the precision of the weights or in bfloat16; zero for weights that are pinned. In the
                coordinates of `set_bases`, if these are set.
            d: diagonal of the curvature, (P,); default: that of UᵀU.
            rho: share of UᵀU; the rest is the share of the diagonal.
        """
        if u.ndim != 2 or u.shape[1] != self.n_weights:
            raise ValueError(f"expected vectors of shape (T, {self.n_weights}), got {tuple(u.shape)}")
        diagonal = u.new_zeros(u.shape[1], dtype=torch.float64) if d is None else d
        for part, columns in self._columns(u) if d is None else ():
            diagonal[columns] = part.square().sum(0)
        self.u, self.d = u.detach(), diagonal.detach().to(self.h).masked_fill(self.h.isinf(), math.inf)
        self.set_rho(rho)

    def set_rho(self, rho: float) -> None:
        """Change the share of the outer products: rho for UᵀU, 1 - rho for the diagonal."""
        if not 0 <= rho <= 1:
            raise ValueError(f"rho={rho!r}: expected a number from 0 to 1")
        self.rho.fill_(rho)
        self._forget()

    def drop_vectors(self) -> None:
        """Return to the running diagonal, to continue training."""
        if self.n_vectors or len(self.q):
            self.u, self.d, self.q = self.u[:0].clone(), self.d[:0].clone(), self.q[:0].clone()
            self._forget()

    def pin(self, names: Any) -> None:
        super().pin(names)
        if self.n_vectors:
            self.d.masked_fill_(self.h.isinf(), math.inf)
        self._forget()

    def reset(self, value: Any) -> None:
        super().reset(value)
        self.drop_vectors()

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Tensor]) -> None:
        """Update the running diagonal, which defines the precision until vectors are collected."""
        super().update(keep, gain, curvature)
        self._base = None

    def curvature_buffers(self) -> list[Tensor]:
        """Return the running diagonal; vectors are collected by all processes together."""
        return [self.h]

    def _forget(self) -> None:
        super()._forget()
        self._eigen = self._base = None
        self._kept, self._given = {}, {}

    def _apply(self, fn: Any, recurse: bool = True) -> Precision:
        before = self.u.dtype
        super()._apply(fn, recurse)
        if before.itemsize < self.u.dtype.itemsize:  # no more is known of them in a wider type, which takes more memory
            self.u = self.u.to(before)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        weight = state_dict.pop(prefix + "weight", None)  # of models saved by 0.3.0 before its release: W = √weight U
        if weight is not None and weight != state_dict[prefix + "rho"]:
            state_dict[prefix + "u"] = state_dict[prefix + "u"] * (weight / state_dict[prefix + "rho"]).sqrt()
        for name, value in (("n_values", 0.0), ("drawn", 1.0)):  # of models saved before they were kept
            state_dict.setdefault(prefix + name, torch.tensor(value))
        state_dict.setdefault(prefix + "q", torch.zeros(0))
        for name in ("u", "d", "q"):  # of another number of vectors than those here
            found = state_dict.get(prefix + name)
            if found is not None:
                own = self.get_buffer(name)
                narrow = name == "u" and found.dtype.itemsize < self.prior.dtype.itemsize
                kind = found.dtype if narrow else self.prior.dtype
                setattr(self, name, torch.empty(found.shape, dtype=kind, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def given(self, known: frozenset[str], prior: float) -> LowRankPrecision:
        """Return the precision of the other weights where some are known; it shares the vectors of this one.

        Args:
            known: names of the weights that are known.
            prior: prior precision of every weight, if the vectors are used alone.
        """
        found = self._given.get(known)
        if found is None:
            found = LowRankPrecision(self.shapes, 1.0, self.temperature).to(self.prior)
            found.h, found.u, found.d, found.q = self.h.clone(), self.u, self.d.clone(), self.q
            found.pin(known)
            if self.n_vectors and int(found.d.isfinite().sum()) <= ALONE * self.n_vectors:
                found.set_prior(prior)
                found._strengthen(float(self.n_values))
            else:
                found.set_prior(self.prior)
                found.set_rho(float(self.rho))
            self._given[known] = found
        found.temperature = self.temperature
        return found

    def _strengthen(self, n_values: float) -> None:
        """Raise the prior precision until vectors that are left out measure no more variance of values than noise."""
        values, vectors = self.spectrum()
        k = values / STRONGER.to(values.device)[:, None]
        leverage = vectors.square() @ (k / (1 + k)).T
        variance = (leverage / (1 - leverage)).sum(0)
        if n_values and not variance[0] <= n_values:
            factor = float(STRONGER[min(int((variance > n_values).sum()), len(STRONGER) - 1)])
            self.set_prior(self.prior * factor)
            self.keep_spectrum(values / factor, vectors)

    def base(self) -> Tensor:
        """M, (P,): the precision without the vectors, at temperature 1, in their coordinates; infinite if pinned."""
        if self._base is None:
            prior = self.flat_prior()
            if not self.n_vectors:
                return self.h + prior
            rest = ((1 - self.rho) * self.d).masked_fill(self.d.isinf(), math.inf)
            self._base = prior + rest
        return self._base

    def _columns(self, u: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """Yield the vectors for some weights at a time, in 64 bits, and the indices of these weights."""
        yield from ((u[:, columns].double(), columns) for columns in self._slices(len(u)))

    def _slices(self, n: int) -> Iterator[slice]:
        """Yield the indices of some weights at a time, for n vectors. Weights that are pinned are left out if they come
        before or after all others."""
        free = self.h.isfinite().nonzero()[:, 0]
        first, last = (int(free[0]), int(free[-1]) + 1) if len(free) else (0, 0)
        size = max(1, CHUNK_FLOATS // max(1, n))
        return (slice(i, min(i + size, last)) for i in range(first, last, size))

    def scaled(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield W M^(-1/2) for some weights at a time, in 64 bits, and the indices of these weights."""
        scale = self._scale()
        for columns in self._slices(self.n_vectors):
            yield self.u[:, columns] * scale[columns], columns

    def _scale(self) -> Tensor:
        """Return the factors of the columns of U in W M^(-1/2), (P,)."""
        return self.rho.double().sqrt() * self.base().double().rsqrt()

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (T,) and eigenvectors (T, T) of K, in float64, kept until something changes."""
        if self._eigen is None:
            values, vectors = eigh(self.products())
            self._eigen = values.clamp_min(0), vectors
        return self._eigen

    def keep_spectrum(self, values: Tensor, vectors: Tensor) -> None:
        """Keep eigenvalues and eigenvectors of K that are already known, as after scaling the prior by a factor."""
        self._eigen = values, vectors

    def products(self) -> Tensor:
        """K = W M⁻¹ Wᵀ, (T, T), in float64."""
        t = self.n_vectors
        k = self.h.new_zeros(t, t, dtype=torch.float64)
        step = max(1, -(-t // BLOCKS))
        for w, _ in self.scaled():
            for i in range(0, t, step):  # the lower half, as K is symmetric
                k[i : i + step, : i + step].addmm_(w[i : i + step], w[: i + step].T)
        return k.tril() + k.tril(-1).T

    def _project(self, rows: Tensor) -> Tensor:
        """Apply W M^(-1/2) to rows (R, P): (R, T)."""
        zero, scale = rows.new_zeros(len(rows), self.n_vectors, dtype=torch.float64), self._scale()
        return sum(((rows[:, columns] * scale[columns]) @ u.T for u, columns in self._columns(self.u)), zero)

    def scale_noise(self, eps: Tensor) -> Tensor:
        """M^(-1/2) (I - W̃ᵀ F W̃) eps, W̃ = W M^(-1/2), F from K: the same whichever eigenvectors a device finds.

        So is what the bases do, as eps is taken to be in the coordinates of the weights.
        """
        deviation = self.base().rsqrt() * math.sqrt(self.temperature)
        if not self.n_vectors:
            return deviation * eps
        rows = self.turn(eps.reshape(-1, self.n_weights))
        values, vectors = self.spectrum()
        root = (1 + values).sqrt()
        factor = (vectors / (root * (1 + root))) @ vectors.T  # (1 - 1/√(1 + k)) / k, without its 0 / 0
        coordinates = self._project(rows) @ factor
        drawn, scale = torch.zeros_like(rows), self._scale()
        for u, columns in self._columns(self.u):
            drawn[:, columns] = (rows[:, columns] - (coordinates @ u) * scale[columns]).to(rows.dtype)
        return self.turn(drawn.mul_(deviation), back=True).reshape(eps.shape)

    def covariance(self, rows: Tensor) -> Tensor:
        """Return the covariances between rows of gradients, g C⁻¹ g'ᵀ: (…, R, P) -> (…, R, R)."""
        flat, coordinates = self._whitened(rows)
        return (flat @ flat.mT - coordinates @ coordinates.mT) * self.temperature

    def variance(self, rows: Tensor) -> Tensor:
        """Return the variance gᵀ C⁻¹ g along rows of gradients: (…, P) -> (…)."""
        flat, coordinates = self._whitened(rows)
        found = flat.square().sum(-1) - coordinates.square().sum(-1)
        return found.clamp_min(0) * self.temperature

    def _whitened(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return M^(-1/2) g (…, P), and the part that the vectors remove, (…, T)."""
        flat = self.turn(rows) * self.base().rsqrt()
        if not self.n_vectors:
            return flat, flat.new_zeros(*flat.shape[:-1], 0)
        values, vectors = self.spectrum()
        coordinates = self._project(flat.reshape(-1, self.n_weights)).double() @ (vectors * (1 + values).rsqrt())
        return flat, coordinates.to(flat.dtype).reshape(*flat.shape[:-1], self.n_vectors)

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Raise an error: weights of different layers are correlated, so the gradients of one layer are not enough."""
        raise TypeError("a low-rank posterior has covariances between layers: use variance or covariance, of all rows")

    def kept(self, name: str, most: int, make: Callable[[], Iterator[Tensor]]) -> Iterator[Tensor]:
        """Yield what `make` yields, and keep it for the next call if it has at most `most` numbers in total."""
        found = self._kept.get(name)
        if found is not None:
            yield from found
            return
        parts, n = [], 0
        for part in make():
            n += part.numel()
            parts = [*parts, part] if n <= most else []
            yield part
        if n <= most:
            self._kept[name] = parts

    def quadratic(self, delta: Tensor) -> Tensor:
        """Return Σ M delta² + |W delta|²; pinned weights do not move."""
        m, delta = self.base(), self.turn(delta)
        found = (m * delta.square()).masked_fill(delta == 0, 0).sum(-1)
        if self.n_vectors:
            rows = delta.reshape(-1, self.n_weights).double()
            parts = (rows[:, columns] @ part.T for part, columns in self._columns(self.u))
            found = found + self.rho * sum(parts).square().sum(-1).reshape(delta.shape[:-1]).to(m)  # pyright: ignore
        return found / self.temperature

    def eigenvalues(self) -> dict[str, Tensor]:
        """Raise an error: eigenvalues belong to all weights together, and Λ does not simply shift them if ρ < 1."""
        raise TypeError("a low-rank curvature has no eigenvalues by layer: see lapae.posterior.shrinkage for its prior")

    def log_det(self) -> Tensor:
        """Return the log-determinant of the precision."""
        found = self.base().double().log().sum() - self.n_weights * math.log(self.temperature)
        return found + self.spectrum()[0].log1p().sum() if self.n_vectors else found


def _side(shape: torch.Size) -> int:
    """Return the number of inputs of a unit of a weight tensor; 0 if its diagonal has no coordinates of its own."""
    n = shape[1:].numel() if len(shape) > 1 else 0
    return n if 1 < n <= MOST_SIDE else 0


@contextmanager
def _full_precision() -> Generator[None]:
    """Compute products of float32 matrices without rounding their factors, which would mix what differs by orders."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
