"""Missing values of a table from donors: rows where the value is known, weighed by how alike they are.

The distribution of missing value j of row i is that of the donors' own values, row r with weight

    w_r ∝ exp(-d_j(i, r)),   d_j = Σ_c a_jc (z_ic - z_rc)² + b_j (l_ij - l_rj)² + g_j (m_ij - m_rj)²

with z the normal scores of all other columns, l what the copula expects of the score from the others, and m what the
network expects of the value, as though it were missing. A column c counts a_jc where both rows have its value, and
another number where one of the two is filled in. These numbers are learned: values of training rows are hidden, and the
log-density of what they are among the others' is maximised. So each column gets the neighbours that suit it, a category
is filled with a category and a count with a count, and the median, the spread and draws are those of one distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lapae.methods.adam import Adam
from lapae.predict.copula import Copula

Guess = Callable[[Tensor], Tensor]
"""Rows (n, D), NaN where missing -> what the network expects of all of their values."""

MOST_FEATURES = 128
"""Of wider tables there are as many numbers to learn as values: the network's guess serves."""
MOST_ROWS = 4000
STEPS = 200
RATE = 0.05
QUERIES, CANDIDATES = 1024, 512
"""Values whose donors are looked for in a step, about, and candidates for them."""
MASKS = 6
"""Ways to hide values that training has at hand."""
PARTS = 5
"""Parts of the columns that are hidden one after the other to know what the network expects of donors' values."""
PENALTY = 1e-3
CHUNK = 256
DISTINCT = 0.5
"""Share of a column's values that differ, from which it is continuous: draws may lie between the donors' values."""


@dataclass(frozen=True)
class Donors:
    """R rows of D features, and how alike two rows are."""

    copula: Copula
    rows: Tensor
    """(R, D): NaN where missing."""
    scores: Tensor
    """(R, D): their normal scores, filled in."""
    linear: Tensor
    """(R, D): what the copula expects of each score from the others."""
    network: Tensor
    """(R, D): what the network expects of each value as though it were missing."""
    groups: Tensor
    """(D,): the column of each feature; those of a category are one column."""
    metric: Tensor
    """(D, 2 D): a, where both rows have the value, and where they do not."""
    own: Tensor
    """(D, 2): b and g."""

    def with_more(self, rows: Tensor, guess: Guess) -> Donors:
        """The same with other donors too."""
        rows = torch.cat([self.rows, rows])[:MOST_ROWS]
        return replace(self, rows=rows, **_known(self.copula, rows, guess, self.groups))

    def find(self, x: Tensor) -> Tensor:
        """(n,): the donor that is equal to each of the rows x (n, D), -1 where none is; of several the first."""
        known = {row: i for i, row in reversed(list(enumerate(_as_bytes(self.rows))))}
        return torch.tensor([known.get(row, -1) for row in _as_bytes(x)])

    def _weights(
        self, x: Tensor, guess: Tensor, own: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For each column and part of the rows that lack it: the rows' indices (q,), the features (f,), the donors'
        indices (r,) and their weights (q, r). `own` (n,) are donors that give nothing to these rows."""
        missing = x.isnan()
        z = self.copula.fill(self.copula.marginals.normal(x))
        linear = self.copula.from_others(z)
        for group in self.groups.unique():
            features = (self.groups == group).nonzero()[:, 0]
            lacking = missing[:, features[0]].nonzero()[:, 0]
            donors = (~self.rows[:, features[0]].isnan()).nonzero()[:, 0]
            if not len(lacking) or not len(donors):
                continue
            both, other = self.metric[features].mean(0).chunk(2)
            weights = self.own[features].mean(0)
            theirs = (~self.rows[donors].isnan()).to(z.dtype)
            keys = _keys(self.scores[donors], theirs, both, other)
            for part in lacking.split(CHUNK):
                seen = (~missing[part]).to(z.dtype)
                far = _queries(z[part], seen) @ keys.T
                for ours, known, weight in ((linear, self.linear, weights[0]), (guess, self.network, weights[1])):
                    gap = ours[part][:, None, features] - known[donors][None, :, features]
                    far = far + weight * gap.square().mean(2)
                if own is not None and len(donors) > 1:
                    far = far.masked_fill(own[part][:, None] == donors, torch.inf)
                yield part, features, donors, torch.softmax(-far, 1)

    def complete(self, x: Tensor, guess: Tensor, words: Tensor, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Median and variance of the missing values of x (n, D), as `guess` where there is no donor.

        Args:
            x: NaN where missing.
            guess: what the network expects of all values.
            words: (D,) features of categories and booleans, whose expectation takes the place of the median.
            own: (n,) donors that give nothing to these rows, as they are the rows themselves; -1 is none.
        """
        middle, variance = guess.clone(), torch.zeros_like(guess)
        for part, features, donors, weight in self._weights(x, guess, own):
            for j in features.tolist():
                values = self.rows[donors, j]
                mean = weight @ values
                variance[part, j] = (weight @ values.square() - mean.square()).clamp_min(0)
                middle[part, j] = mean if words[j] else weighted_median(values, weight)
        return middle, variance

    def places(self, x: Tensor, guess: Tensor, truth: Tensor) -> Tensor:
        """Where the true values of x's missing ones lie in their distributions: shares (n, D) of weight below, half of
        that at the value itself counted in; NaN where nothing is asked."""
        out = torch.full_like(x, torch.nan)
        for part, features, donors, weight in self._weights(x, guess):
            for j in features.tolist():
                values, ours = self.rows[donors, j], truth[part, j, None]
                share = (weight * (values < ours)).sum(1) + 0.5 * (weight * (values == ours)).sum(1)
                out[part, j] = torch.where(ours[:, 0].isnan(), torch.nan, share)
        return out

    def draw(self, x: Tensor, guess: Tensor, chance: Tensor) -> Tensor:
        """Completions (n, N, D) of x (N, D): the values up to which the distributions have the weight `chance`, of
        the shape of the result; a category is one column, and takes the first of its chances."""
        out = torch.where(x.isnan(), guess, x).expand(len(chance), *x.shape).clone()
        for part, features, donors, weight in self._weights(x, guess):
            values = self.rows[donors][:, features]
            order = values.argmax(1).argsort() if len(features) > 1 else values[:, 0].argsort()
            total = weight[:, order].cumsum(1)
            wanted = chance[:, part, features[0]].T.contiguous() * total[:, -1:]
            chosen = torch.searchsorted(total, wanted).clamp_max(len(donors) - 1)
            picked = values[order][chosen].transpose(0, 1)
            if len(features) == 1 and len(values.unique()) > DISTINCT * len(values):
                picked = _between(values[order, 0], total, chosen, wanted).T[..., None]
            out[:, part[:, None], features] = picked
        return out


def _between(ordered: Tensor, total: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
    """Where sums of weights `wanted` (q, n) lie in distributions taken as even between the middles to the next values.

    These have the values `ordered` (r,), with sums of weights `total` (q, r) up to each; `chosen` (q, n) is the value
    where `wanted` is reached.
    """
    middles = torch.cat([ordered[:1], (ordered[1:] + ordered[:-1]) / 2, ordered[-1:]])
    upto = total.gather(1, chosen)
    below = torch.where(chosen > 0, total.gather(1, (chosen - 1).clamp_min(0)), 0.0)
    share = ((wanted - below) / (upto - below).clamp_min(1e-300)).clamp(0, 1)
    return middles[chosen] + share * (middles[chosen + 1] - middles[chosen])


def weighted_median(values: Tensor, weight: Tensor) -> Tensor:
    """Of values (r,) with weights (q, r) of sum 1: (q,)."""
    ordered, order = values.sort()
    place = torch.searchsorted(weight[:, order].cumsum(1), torch.full((len(weight), 1), 0.5, dtype=weight.dtype))
    return ordered[place[:, 0].clamp_max(len(values) - 1)]


def _as_bytes(rows: Tensor) -> list[bytes]:
    """Rows (n, D) as keys, NaN equal to NaN."""
    return [row.tobytes() for row in (torch.where(rows.isnan(), torch.nan, rows) + 0.0).float().cpu().numpy()]


def _keys(z: Tensor, seen: Tensor, both: Tensor, other: Tensor) -> Tensor:
    """What a query of `_queries` is multiplied with for the distance: (r, 6 D)."""
    more = both - other
    parts = [other.expand_as(z), -2 * other * z, other * z.square()]
    parts += [more * seen, -2 * more * seen * z, more * seen * z.square()]
    return torch.cat(parts, 1)


def _queries(z: Tensor, seen: Tensor) -> Tensor:
    """(q, 6 D)"""
    ones = torch.ones_like(z)
    return torch.cat([z.square(), z, ones, seen * z.square(), seen * z, seen], 1)


def _known(copula: Copula, rows: Tensor, guess: Guess, groups: Tensor) -> dict[str, Tensor]:
    """Scores of rows, and what copula and network expect of each value."""
    scores = copula.fill(copula.marginals.normal(rows))
    network = guess(rows).clone()
    columns = groups.unique()
    columns = columns[torch.randperm(len(columns), generator=torch.Generator().manual_seed(0))]
    for part in columns.chunk(min(PARTS, len(columns))):
        which = torch.isin(groups, part)
        network[:, which] = guess(torch.where(which, torch.nan, rows))[:, which]
    return {"scores": scores, "linear": copula.from_others(scores), "network": network}


def fit_donors(rows: Tensor, guess: Guess, groups: Sequence[int]) -> Donors:
    """Learn which rows are alike.

    Args:
        rows: training data (n, D) in the model's space; NaN is missing.
        guess: what the network expects.
        groups: the column of each feature.
    """
    rows = rows[:MOST_ROWS]
    columns = torch.as_tensor(groups)
    copula = Copula.of(rows)
    known = _known(copula, rows, guess, columns)
    d = rows.shape[1]
    start = torch.full((d, 2 * d), math.log(3 / d)), torch.tensor([[-1.0, 0.0]]).repeat(d, 1)
    metric, own = _learn(copula, rows, known, guess, columns, start, torch.Generator().manual_seed(0))
    alone = (columns[:, None] != columns).to(rows.dtype).repeat(1, 2)
    return Donors(
        copula,
        rows,
        **known,
        groups=columns,
        metric=metric.to(rows.dtype).exp() * alone,
        own=own.to(rows.dtype).exp(),
    )


def _hide(rows: Tensor, columns: Tensor, generator: torch.Generator) -> Tensor:
    """Further holes, (n, D): whole columns of features, of some rows few and of others many."""
    present = ~rows.isnan()
    most = max(0.3, 1.5 * float((~present).double().mean()))
    rate = 0.05 + (most - 0.05) * torch.rand(len(rows), 1, generator=generator)
    chosen = torch.rand(len(rows), int(columns.max()) + 1, generator=generator) < rate
    return chosen[:, columns] & present


def _learn(
    copula: Copula,
    rows: Tensor,
    known: dict[str, Tensor],
    guess: Guess,
    columns: Tensor,
    start: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Logs of the metric (D, 2 D) and of b and g (D, 2)."""
    n, d = rows.shape
    truth = copula.marginals.normal(rows).float().nan_to_num()
    present = (~rows.isnan()).float()
    scores, linear, network = (known[name].float() for name in ("scores", "linear", "network"))
    views = []
    for _ in range(MASKS):
        hidden = _hide(rows, columns, generator)
        seen = torch.where(hidden, torch.nan, rows)
        z = copula.fill(copula.marginals.normal(seen))
        ours = (z, ~seen.isnan(), copula.from_others(z), guess(seen))
        views.append((hidden, *(part.float() for part in ours)))
    log_metric, log_own = (part.float().requires_grad_() for part in start)
    log_width = torch.full((d,), math.log(0.3), requires_grad=True)
    adam = Adam([{"params": [log_metric, log_own, log_width], "lr": RATE}])
    alone = (columns[:, None] != columns).float().repeat(1, 2)
    n_queries = min(64, max(16, QUERIES // d))
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        hidden, z, seen, line, net = views[step % MASKS]
        q = torch.randperm(n, generator=generator)[:n_queries]
        r = torch.randperm(n, generator=generator)[:CANDIDATES]
        square = (z[q][:, None] - scores[r]).square()
        both = seen[q][:, None] * present[r]
        far = torch.cat([square * both, square * (1 - both)], 2) @ (log_metric.exp() * alone).T
        b, g = log_own.exp().unbind(1)
        far = far + b * (line[q][:, None] - linear[r]).square() + g * (net[q][:, None] - network[r]).square()
        out = (present[r] == 0) | (q[:, None] == r)[..., None]
        weight = torch.log_softmax((-far).masked_fill(out, -1e9), 1)
        width = log_width.exp() + 0.02
        near = -0.5 * ((truth[q][:, None] - scores[r]) / width).square() - width.log()
        density = torch.logsumexp(weight + near, 1)
        counted = hidden[q]
        loss = -torch.where(counted, density, 0.0).sum() / counted.sum().clamp_min(1)
        loss = loss + PENALTY * (log_metric - log_metric.mean(1, keepdim=True)).square().sum() / d
        adam.zero_grad()
        loss.backward()
        adam.step()
    return log_metric.detach(), log_own.detach()
