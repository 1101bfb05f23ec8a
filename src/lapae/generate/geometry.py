"""Latent geometry: how far apart codes are for the stochastic decoder, and the shortest paths between them.

A step dz in the latent space has the squared length dzᵀ G(z) dz, where

    G(z) = E[Jᵀ H J]

is the expected metric: J is the Jacobian of a decoder drawn from the posterior at z, H the Hessian of the negative log
density at its output. A length counts how well data tell codes apart, in standard deviations of their noise; where
decoders disagree about slopes, steps are longer. It does not depend on the coordinates of the latent space.

A geodesic minimises the energy of a path of points γ_0 … γ_T, whose decoded chords are measured by H:

    T Σ_i E|f(γ_{i+1}) - f(γ_i)|²_H

Shapes: S decoders, n pairs of codes a, b (n, K), T segments of a path; numbers are in 64 bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, Output
from lapae.methods.weights import WeightDraws
from lapae.networks.adapt import in_eval_mode
from lapae.predict.mc import draw_seeds, n_distinct
from lapae.predict.rows import evenly

DRAWS = 20
"""Maximum number of decoders drawn."""
MOST_WEIGHTS = 2**27
"""Maximum number of weights of all decoders drawn."""
SEGMENTS = 96
"""Maximum number of segments of a path while it is shortened: with half of them, one in twenty distances was 3 % too
long."""
FIRST = 12
"""Maximum initial number of segments of a path; it is doubled until that hardly changes the length of the path."""
SETTLED = 1e-3
"""Share of its length by which a path may still change when it counts as settled."""
FINER = 4
"""Points per segment of the smooth path whose length is reported."""
DETOUR = 3.0
"""Multiple of the length of the straight line beyond which a path along the data is not tried."""
NODES = 400
"""Maximum number of training codes that a first path may lead through."""
NEIGHBOURS = 8
"""Number of edges of a code in the graph of first paths."""
PAIRS = 8
"""Number of pairs whose paths are shortened at once."""
STEPS = 200
"""Maximum number of steps of the optimiser."""
TOLERANCE = 1e-8
"""Relative decrease of the energy below which a path is done, twice in a row: lengths are then independent of
coordinates to about 1e-7."""
OF_POINTS = 1e-10
"""`TOLERANCE` for paths whose points are needed: at `TOLERANCE` the length is accurate, but not yet the points."""
MEMORY = 8
"""Number of past steps from which L-BFGS learns the curvature of the energy."""

Decode = Callable[[Tensor], Output]
"""From codes (B, K) to the outputs of S decoders, (S, B, *shape)."""


@dataclass(frozen=True)
class Geometry:
    """Expected metric of a stochastic decoder, with its volumes, distances and geodesics.

    Attributes:
        decode: decoders, from codes (B, K) to outputs (S, B, *shape); a function that autograd can follow.
        likelihood: gives H at an output.
        codes: training codes (R, K), along which a first path may lead; none if there are none.
        segments: maximum number of segments of a path while it is shortened.
    """

    decode: Decode
    likelihood: Likelihood
    codes: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.float64))
    segments: int = SEGMENTS

    @classmethod
    def of(cls, method: Method, codes: Tensor, *, n_draws: int = DRAWS, seed: int = 0) -> Geometry:
        """Return the geometry of a trained method.

        Args:
            method: the trained method; a copy of it in 64 bits decodes. If it draws no decoders that share a latent
                space (ae, vae, ensemble, dropout, …), its one network counts.
            codes: training codes (R, *code).
            n_draws: number of decoders to draw, fewer if they are large; 0 for the network at the mean weights.
            seed: seed of the draws.
        """
        exact = copy.deepcopy(method).double().requires_grad_(False)
        shape, device = codes.shape[1:], next(exact.parameters()).device
        n_weights = sum(p.numel() for p in exact.parameters())
        draws: Draws = exact.draw_mean()
        if n_draws and exact.stochastic and exact.shared_codes:
            n = max(2, min(n_draws, MOST_WEIGHTS // max(n_weights, 1)))
            drawn = exact.draw(draw_seeds(seed, n_distinct(exact, n)))
            draws = drawn if isinstance(drawn, WeightDraws) else draws  # others draw again in every call

        def decode(z: Tensor) -> Output:
            with in_eval_mode(exact):
                return draws.decode(z.to(device).reshape(1, len(z), *shape))

        kept = evenly(codes.flatten(1), NODES).double().to(device)
        return cls(decode, exact.likelihood, kept)

    # ------------------------------------------------------------------ at a code

    def metric(self, z: Tensor, along: Tensor | None = None) -> Tensor:
        """Return the expected metric G at codes z (B, K): (B, K, K).

        Args:
            z: codes.
            along: directions (A, K): the metric between them, (B, A, A); default: the axes of the latent space.
        """
        directions = torch.eye(z.shape[1], dtype=torch.float64) if along is None else along
        with torch.enable_grad():
            free = z.detach().double().requires_grad_()
            output = self.decode(free)
            parts = [output.loc] if output.var is None else [output.loc, output.var.log()]
            w = [torch.zeros_like(part, requires_grad=True) for part in parts]
            # Jᵀw is linear in w: its gradient along a direction is J times that, for each decoder and code
            back = torch.autograd.grad(parts, free, w, create_graph=True)[0]
            slopes = (back @ directions.to(back).T).sum(0)
            columns = [torch.autograd.grad(slope, w, retain_graph=True) for slope in slopes]
        tangents = [torch.stack(part) for part in zip(*columns, strict=True)]  # (A, S, B, *shape)
        at = Output(output.loc.detach(), None if output.var is None else output.var.detach())
        return torch.einsum("ksbd,lsbd->bkl", tangents[0].flatten(3), self._weighed(at, tangents[0]).flatten(3)).div(
            len(at.loc)
        ) + (
            0.0
            if len(tangents) == 1
            else torch.einsum("ksbd,lsbd->bkl", tangents[1].flatten(3), tangents[1].flatten(3)) / (2 * len(at.loc))
        )

    def log_volume(self, z: Tensor, along: Tensor | None = None) -> Tensor:
        """Return log √det G at codes z (B, K): (B,), how much data a piece of the latent space stands for.

        Args:
            z: codes.
            along: directions (A, K) of the line or plane whose pieces are meant; default: the whole space.
        """
        return 0.5 * torch.linalg.slogdet(self.metric(z, along))[1]

    # ------------------------------------------------------------------ between codes

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the lengths (n,) of the geodesics between codes a and b, (n, K) each."""
        return self.length(self._fine(self._paths(a, b)))

    def straight(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the lengths (n,) of the straight lines between codes a and b, (n, K) each."""
        return self.length(_lines(a, b, self.segments * FINER))

    def geodesic(self, a: Tensor, b: Tensor, n_points: int = 50) -> Tensor:
        """Return shortest paths between codes.

        Args:
            a: codes (n, K) where paths begin.
            b: codes (n, K) where they end.
            n_points: points of a path, both ends among them.

        Returns:
            (n, n_points, K), at equal distances along the path.
        """
        return self.shortest(a, b, n_points)[0]

    def shortest(self, a: Tensor, b: Tensor, n_points: int = 50) -> tuple[Tensor, Tensor]:
        """Return shortest paths (n, n_points, K) as `geodesic` does, and their lengths (n,)."""
        if not len(a):
            return a.new_empty(0, n_points, a.shape[1]), a.new_empty(0)
        paths = self._paths(a, b)
        fine = self._fine(paths)
        # few points may have been enough for the length, but not for the points of the path
        other = torch.cat([self._fine(self._minimised(part, OF_POINTS)) for part in paths.split(PAIRS)])
        better = self.length(other) <= self.length(fine)
        fine = torch.where(better[:, None, None], other, fine)
        with torch.no_grad():
            steps = torch.cat([self._squares(part).sqrt() for part in fine.split(PAIRS)])
        out = [_at_equal_steps(path, step, n_points) for path, step in zip(fine, steps, strict=True)]
        return torch.stack(out), steps.sum(1)

    def _paths(self, a: Tensor, b: Tensor) -> Tensor:
        """Return points of shortest paths, (n, T + 1, K)."""
        if not len(a):
            return a.new_empty(0, self.segments + 1, a.shape[1])
        return torch.cat([self._shortened(x, y) for x, y in zip(a.split(PAIRS), b.split(PAIRS), strict=True)])

    def _shortened(self, a: Tensor, b: Tensor) -> Tensor:
        n = self.segments
        while n > FIRST and n % 2 == 0:
            n //= 2
        lines = _lines(a, b, n)
        found, least = self._finest(lines), self.straight(a, b)  # a coarse path may come out longer than the line
        path, length = self._shorter(lines)
        if len(self.codes):
            along = self._along_data(a, b, lines)
            near = self.length(self._fine(along)) < DETOUR * least
            if near.any():
                other, theirs = self._shorter(along[near])
                better = theirs < length[near] * (1 - 1e-9)
                path[near] = torch.where(better[:, None, None], other, path[near])
                length[near] = torch.where(better, theirs, length[near])
        rows = torch.arange(len(a), device=a.device)
        while True:
            better = length < least[rows] * (1 - 1e-9)
            found[rows[better]], least[rows[better]] = self._finest(path[better]), length[better]
            if path.shape[1] > self.segments or not len(rows):
                return found
            before, (path, length) = length, self._shorter(self._fine(path, 2))
            changed = (length - before).abs() > SETTLED * length
            # paths that are settled are kept, too
            better = ~changed & (length < least[rows] * (1 - 1e-9))
            found[rows[better]], least[rows[better]] = self._finest(path[better]), length[better]
            rows, path, length = rows[changed], path[changed], length[changed]

    def _shorter(self, paths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the paths (n, T + 1, K) with least energy near these, and the lengths (n,) of smooth ones."""
        paths = self._minimised(paths)
        return paths, self.length(self._fine(paths))

    def _finest(self, paths: Tensor) -> Tensor:
        """Return smooth paths through the points of these, with the maximum number of points."""
        return self._fine(paths, self.segments // (paths.shape[1] - 1))

    def _along_data(self, a: Tensor, b: Tensor, straight: Tensor) -> Tensor:
        """Return first paths that lead from training code to training code; the straight line if there is none."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        out = straight.clone()
        nodes, first = torch.cat([self.codes, a, b]), len(self.codes)
        n = len(nodes)
        factor, *edges = self._edges
        more = self._near(nodes[first:], factor)
        rows, columns, lengths = (torch.cat(pair).cpu().numpy() for pair in zip(edges, more, strict=True))
        rows[len(edges[0]) :] += first
        graph = csr_matrix((lengths, (rows, columns)), shape=(n, n))
        sources = np.arange(first, first + len(a))
        far, before = dijkstra(graph, directed=False, indices=sources, return_predecessors=True)
        for i in range(len(a)):
            end = first + len(a) + i
            if not np.isfinite(far[i, end]):
                continue
            at, way = end, [end]
            while at != sources[i]:
                at = int(before[i, at])
                way.append(at)
            corners = nodes[way[::-1]]
            if len(corners) > 2:
                steps = (corners[1:] - corners[:-1]) @ factor
                out[i] = _at_equal_steps(corners, steps.norm(dim=1), straight.shape[1])
        out[:, 0], out[:, -1] = a, b
        return out

    @cached_property
    def _edges(self) -> tuple[Tensor, ...]:
        """Return a factor (K, K) of the mean metric at the training codes, and the edges between them, see `_near`."""
        factor = torch.linalg.cholesky(self._typical(self.codes[None]))
        return factor, *self._near(self.codes, factor)

    def _near(self, nodes: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the edges from nodes (m, K) to the nearest other training codes: where they begin, where they end, and
        their lengths, (e,) each."""
        with torch.no_grad():
            # nearest by the mean metric, so that coordinates do not matter
            far = torch.cdist(nodes @ factor, self.codes @ factor)
            near = far.masked_fill(far == 0, torch.inf).topk(min(NEIGHBOURS, len(self.codes)), largest=False).indices
            rows = torch.arange(len(nodes), device=near.device)[:, None].expand_as(near).flatten()
            ends = torch.stack([nodes[rows], self.codes[near.flatten()]], 1)
            lengths = torch.cat([self.length(part) for part in ends.split(1024)]).clamp_min(1e-12)
        return rows, near.flatten(), lengths

    def _typical(self, paths: Tensor) -> Tensor:
        """Return the mean metric (K, K) at some points of paths (n, T + 1, K), regularised."""
        points = evenly(paths.flatten(0, 1), 64)
        mean = self.metric(points).mean(0)
        scale = mean.diagonal().mean().clamp_min(1e-300)
        return mean + 1e-6 * torch.diag(mean.diagonal()) + 1e-12 * scale * torch.eye(len(mean)).to(mean)

    def _minimised(self, paths: Tensor, tolerance: float = TOLERANCE) -> Tensor:
        """Return the paths (n, T + 1, K) with least energy near these.

        The unknowns are whitened by the typical metric and by the second difference along the path: for a linear
        decoder, the energy is then their squared length, whatever the coordinates.
        """
        n, _, k = paths.shape
        with torch.no_grad():
            metric = torch.linalg.cholesky(self._typical(paths))
        inner = paths.shape[1] - 2
        second = 2 * torch.eye(inner) - torch.diag(torch.ones(inner - 1), 1) - torch.diag(torch.ones(inner - 1), -1)
        along = torch.linalg.cholesky(second.to(paths))
        back_along, back_metric = torch.linalg.inv(along), torch.linalg.inv(metric)
        scale = (2 * self._energy(paths)).clamp_min(1e-300)

        def path_of(u: Tensor, rows: Tensor) -> Tensor:
            moves = torch.einsum("tj,njk,kl->ntl", back_along.T, u.unflatten(1, (inner, k)), back_metric)
            begun, size = paths[rows], scale[rows].sqrt()[:, None, None]
            return torch.cat([begun[:, :1], begun[:, 1:-1] + moves * size, begun[:, -1:]], 1)

        def energy(u: Tensor, rows: Tensor) -> Tensor:
            return self._energy(path_of(u, rows)) / scale[rows]

        u = minimise(energy, paths.new_zeros(n, inner * k), tolerance)
        return path_of(u, torch.arange(n, device=u.device))

    def _energy(self, paths: Tensor) -> Tensor:
        """Return half the energy (n,) of paths (n, T + 1, K), up to a factor."""
        return 0.5 * self._squares(paths).sum(1) * (paths.shape[1] - 1)

    def length(self, paths: Tensor) -> Tensor:
        """Return the lengths (n,) of paths through points (n, T + 1, K)."""
        if not len(paths):
            return paths.new_empty(0)
        with torch.no_grad():
            return torch.cat([self._squares(part).sqrt().sum(1) for part in paths.split(PAIRS)])

    def _squares(self, paths: Tensor) -> Tensor:
        """Return the expected squared lengths (n, T) of the decoded chords of paths (n, T + 1, K)."""
        n, points = paths.shape[:2]
        output = self.decode(paths.flatten(0, 1))
        loc = output.loc.unflatten(1, (n, points))
        chords = loc[:, :, 1:] - loc[:, :, :-1]
        middle = (loc[:, :, 1:] + loc[:, :, :-1]).flatten(1, 2) / 2
        moves = chords.flatten(1, 2)
        if output.var is None:
            at, logs = Output(middle), None
        else:
            every = output.var.log().unflatten(1, (n, points))
            at = Output(middle, ((every[:, :, 1:] + every[:, :, :-1]) / 2).exp().flatten(1, 2))
            logs = (every[:, :, 1:] - every[:, :, :-1]).flatten(3)
        squares = (moves * self._weighed(at, moves[None])[0]).flatten(2).sum(2).unflatten(1, (n, points - 1))
        if logs is not None:
            squares = squares + 0.5 * logs.square().sum(3)
        return squares.mean(0)

    def _weighed(self, output: Output, t: Tensor) -> Tensor:
        """Return H t for t (R, S, B, *shape) at outputs (S, B, *shape)."""
        loc = output.loc.flatten(0, 1)
        around = self.likelihood if output.var is None else self.likelihood.with_variance(output.var.flatten(0, 1))
        return around.hessian_product(loc, t.flatten(1, 2)).unflatten(1, t.shape[1:3])

    @staticmethod
    def _fine(paths: Tensor, finer: int = FINER) -> Tensor:
        """Return smooth paths through the points of paths (n, T + 1, K), with `finer` points per segment."""
        from scipy.interpolate import CubicSpline

        if not len(paths):
            return paths.new_empty(0, (paths.shape[1] - 1) * finer + 1, paths.shape[2])
        if finer == 1:
            return paths.clone()
        knots = np.linspace(0, 1, paths.shape[1])
        fine = CubicSpline(knots, paths.detach().cpu().numpy(), axis=1)(np.linspace(0, 1, (len(knots) - 1) * finer + 1))
        found = torch.as_tensor(fine).to(paths)
        found[:, 0], found[:, -1] = paths[:, 0].detach(), paths[:, -1].detach()
        return found


def _lines(a: Tensor, b: Tensor, segments: int) -> Tensor:
    """Return points (n, segments + 1, K) at equal distances on the straight lines from a to b, (n, K) each."""
    t = torch.linspace(0, 1, segments + 1, dtype=a.dtype, device=a.device)[:, None]
    return a[:, None] + t * (b - a)[:, None]


def minimise(f: Callable[[Tensor, Tensor], Tensor], u: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Minimise n functions of P numbers each, by L-BFGS with a separate line search for each of them.

    Args:
        f: maps numbers (m, P) and the indices (m,) of the functions to evaluate to values (m,).
        u: where to start, (n, P).
        tolerance: relative decrease below which a row is done, twice in a row.
    """

    def evaluate(at: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            free = at.detach().requires_grad_()
            value = f(free, rows)
            return value.detach(), torch.autograd.grad(value.sum(), free)[0]

    value, gradient = evaluate(u, torch.arange(len(u), device=u.device))
    past: list[tuple[Tensor, Tensor, Tensor]] = []
    still = torch.zeros(len(u), dtype=torch.long, device=u.device)  # steps in a row with hardly a decrease
    for _ in range(STEPS):
        direction = -_times_inverse(past, gradient)
        slope = (direction * gradient).sum(1)
        uphill = ~(slope < 0)
        direction = torch.where(uphill[:, None], -gradient, direction)
        slope = torch.where(uphill, -gradient.square().sum(1), slope)
        step = torch.ones_like(value)
        new_u, new_value, new_gradient = u.clone(), value.clone(), gradient.clone()
        rows = (still < 2).nonzero()[:, 0]
        for _ in range(30):
            tried = u[rows] + step[rows, None] * direction[rows]
            at_value, at_gradient = evaluate(tried, rows)
            good = at_value <= value[rows] + 1e-4 * step[rows] * slope[rows]
            taken = rows[good]
            new_u[taken], new_value[taken], new_gradient[taken] = tried[good], at_value[good], at_gradient[good]
            rows = rows[~good]
            if not len(rows):
                break
            step[rows] *= 0.5
        past = [*past, (new_u - u, new_gradient - gradient, _curved(new_u - u, new_gradient - gradient))][-MEMORY:]
        small = value - new_value <= tolerance * value.abs()
        still = torch.where(small, still + 1, torch.zeros_like(still))
        u, value, gradient = new_u, new_value, new_gradient
        if bool((still >= 2).all()):
            break
    return u


def _curved(s: Tensor, y: Tensor) -> Tensor:
    """Return 1 / sᵀy (n,), or 0 if there is no positive curvature to learn from."""
    product = (s * y).sum(1)
    enough = product > 1e-14 * y.square().sum(1)
    return torch.where(enough, 1 / torch.where(enough, product, torch.ones_like(product)), torch.zeros_like(product))


def _times_inverse(past: list[tuple[Tensor, Tensor, Tensor]], gradient: Tensor) -> Tensor:
    """Apply the inverse Hessian learned by L-BFGS to gradients (n, P)."""
    q, kept = gradient, []
    for s, y, rho in reversed(past):
        alpha = rho * (s * q).sum(1)
        q = q - alpha[:, None] * y
        kept.append(alpha)
    for (s, y, rho), alpha in zip(past, reversed(kept), strict=True):
        q = q + (alpha - rho * (y * q).sum(1))[:, None] * s
    return q


def _at_equal_steps(points: Tensor, steps: Tensor, n: int) -> Tensor:
    """Return n points (n, K) at equal distances along points (P, K), which are `steps` (P - 1,) apart."""
    way = np.concatenate([[0.0], np.cumsum(steps.detach().cpu().numpy())])
    along = way / way[-1] if way[-1] > 0 else np.linspace(0, 1, len(way))
    asked, values = np.linspace(0, 1, n), points.detach().cpu().numpy()
    return torch.as_tensor(np.stack([np.interp(asked, along, column) for column in values.T], 1)).to(points)
