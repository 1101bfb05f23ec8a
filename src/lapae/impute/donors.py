"""Missing values of a table from donors: rows in which the value is known, weighted by similarity.

The distribution of missing value j of row i is that of the donors' values, where row r has the weight

    w_r ∝ exp(-d_j(i, r)),   d_j = Σ_c a_jc (z_ic - z_rc)² + b_j (l_ij - l_rj)² + g_j ρ_ij² (m_ij - m_rj)²

where z are the normal scores of the columns c that row i has, l is the score that the copula expects from these
columns, and m is the value that the network expects, as though it were missing. Both l are computed from the columns
that row i has: if the donor's used all its columns, donors with the same l would scatter less than the missing value
does. The value that the network expects for a donor uses all its columns, and is weighted by the share ρ of the other
columns that row i has. Column c has the coefficient a_jc if the donor has its value, and another one if it is drawn
from the copula. A continuous value is adjusted for the difference between the two rows' expectations, and given as the
score

    z_rj + s_j (l_ij - l_rj),   0 <= s_j <= 1,

because donors are never quite alike, and their differences would widen the distribution. Other values are given
unchanged: a category is filled with a category and a count with a count. The numbers a, b, g and s are learned: values
of training rows are hidden, and their log density under the distribution from the other rows is maximised. So each
column gets the neighbours that suit it, and median, spread and draws come from the same distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lapae.impute.copula import Copula
from lapae.impute.spread import SCORES
from lapae.impute.weighted import between, shared_moments, weighted_moments, weighted_quantiles
from lapae.methods.adam import Adam

Guess = Callable[[Tensor], Tensor]
"""Rows (n, D), NaN where missing -> what the network expects of all of their values."""

MOST_DONORS = 4000
"""Maximum number of rows to take values from."""
STEPS = 200
RATE = 0.05
QUERIES, CANDIDATES = 1024, 512
"""Approximate number of values per step whose donors are searched, and number of candidates for them."""
MASKS = 6
"""Number of ways to hide values that are prepared for training."""
PARTS = 5
"""Number of parts of the columns that are hidden in turn to find what the network expects for donors' values."""
PENALTY = 1e-3
CHUNK, MOST_CHUNK, VALUES = 64, 1024, 4e6
"""Minimum and maximum number of rows that are weighted together, and their maximum number of values."""
AT_ONCE = 2**17
"""Number of weights at a time: more do not fit into the cache of a core."""
DISTINCT, SPIKE = 0.5, 0.05
"""A column is continuous, so that its draws may lie between the donors' values, if at least this share of its values
are distinct and no single value is more frequent than the second share."""
POPULATIONS = 20
"""Number of populations from which completions are drawn in turn."""
WORK = 6e7
"""Multiply-adds above which their copulas are fitted to scores that are already filled in."""
UPTO = torch.special.ndtr(SCORES).tolist()
GAINS = 2e6
"""Approximate number of gains of a population at a time."""


@dataclass(frozen=True)
class Weighed:
    """Donors for a column that q rows lack.

    Attributes:
        rows: the rows' indices, (q,).
        features: the column's features, (f,).
        donors: the donors' indices, (r,).
        weight: their weights, (q, r).
        given: what they give: scores (q, r) for a feature whose values are adjusted, otherwise values (r, f).
    """

    rows: Tensor
    features: Tensor
    donors: Tensor
    weight: Tensor
    given: Tensor


@dataclass(frozen=True)
class Population:
    """A population from which the donors may have been sampled.

    Attributes:
        weight: weights of the donors, (R,), 1 on average.
        copula: the dependence between columns in it.
    """

    weight: Tensor
    copula: Copula


@dataclass(frozen=True)
class Donors:
    """R rows of D features, and a learned measure of similarity.

    Attributes:
        copula: the dependence between columns.
        rows: donors, NaN where missing, (R, D).
        scores: their normal scores, filled in, (R, D).
        network: the network's expectation of each value as though it were missing, (R, D).
        groups: the column of each feature, (D,); the features of a category belong to one column.
        metric: a, for columns that both rows have, and for those that the donor lacks, (D, 2 D).
        own: b and g, (D, 2).
        shift: s; 0 if the donors' values are given unchanged, (D,).
    """

    copula: Copula
    rows: Tensor
    scores: Tensor
    network: Tensor
    groups: Tensor
    metric: Tensor
    own: Tensor
    shift: Tensor

    @classmethod
    def fit(cls, rows: Tensor, guess: Guess, groups: Sequence[int]) -> Donors:
        """Learn which rows are similar.

        Args:
            rows: training rows (n, D) in the model's space; NaN is missing.
            guess: the network's expectation.
            groups: the column of each feature.
        """
        rows = rows[:MOST_DONORS]
        columns = torch.as_tensor(groups)
        copula = Copula.fit(rows)
        known = _known(copula, rows, guess, columns)
        d = rows.shape[1]
        smooth = torch.tensor([_continuous(column[~column.isnan()]) for column in rows.T])
        start = torch.full((d, 2 * d), math.log(3 / d)), torch.tensor([[-1.0, 0.0]]).repeat(d, 1), torch.full((d,), 2.0)
        metric, own, shift = _learn(
            copula, rows, known, guess, columns, start, smooth, torch.Generator().manual_seed(0)
        )
        alone = (columns[:, None] != columns).to(rows.dtype).repeat(1, 2)
        return cls(
            copula,
            rows,
            **known,
            groups=columns,
            metric=metric.to(rows.dtype).exp() * alone,
            own=own.to(rows.dtype).exp(),
            shift=shift.to(rows.dtype).sigmoid() * smooth,
        )

    def with_more(self, rows: Tensor, guess: Guess) -> Donors:
        """Return the donors with more rows (n, D)."""
        rows = torch.cat([self.rows, rows])[:MOST_DONORS]
        return replace(self, rows=rows, **_known(self.copula, rows, guess, self.groups))

    def find(self, x: Tensor) -> Tensor:
        """Return the first donor that equals each of the rows x (n, D), -1 if there is none: (n,)."""
        return torch.tensor([self._places.get(row, -1) for row in _as_bytes(x)])

    @cached_property
    def _places(self) -> dict[bytes, int]:
        """The first donor with each content."""
        return {row: i for i, row in reversed(list(enumerate(_as_bytes(self.rows))))}

    def _weights(
        self,
        x: Tensor,
        guess: Tensor,
        own: Tensor | None = None,
        *,
        drawn: bool = False,
        only: int | None = None,
        at: Tensor | None = None,
    ) -> Iterator[Weighed]:
        """Weight the donors for each part of the rows and each column that some of them lack.

        Args:
            x: rows (n, D); NaN is missing.
            guess: the network's expectation of all values.
            own: donors that give nothing to these rows, (n,).
            drawn: whether the weights are for completions, each from a population of its own. The uncertainty of the
                copula is then in the populations, and does not widen residuals.
            only: use only this column.
            at: use only one column of each row, that of these features (n,).
        """
        for rows in self._chunks(x):
            missing = x[rows].isnan()
            z = self.copula.marginals.normal(x[rows])
            hidden = self.copula.hidden(z)
            z, seen = z.nan_to_num(), (~missing).to(z.dtype)
            queries = torch.cat([(seen * z.square())[:, self._incomplete], seen * z, seen], 1)
            gap = seen * (z - self.copula.center)
            trusted = _trusted(seen, self.groups)
            wanted = missing if at is None else missing & (self.groups[at[rows], None] == self.groups)
            for group in self.groups.unique() if only is None else (only,):
                features = (self.groups == group).nonzero()[:, 0]
                q = wanted[:, features[0]].nonzero()[:, 0]
                donors = self._of_column(features) if len(q) else q
                if not len(donors):
                    continue
                theirs, keys = self.scores[donors] - self.copula.center, self._keys(features, donors)
                across = torch.cat([-theirs, theirs.new_ones(len(theirs), 1)], 1)
                linear, moved = float(self.own[features, 0].mean()), bool(self.shift[features[0]] > 0)
                trust = trusted[:, features[:1]]
                rest = torch.cat([queries, trust * guess[rows][:, features], trust], 1)
                given = self.rows[:, features][donors]
                levels: list[Tensor] = []
                for j in features.tolist():
                    gain = hidden.gain[q, hidden.place(q, j)] if at is None else hidden.gain_of(q, j)
                    levels.append(torch.cat([gain, torch.linalg.vecdot(gap[q], gain)[:, None]], 1))
                mine = None if own is None or len(donors) == 1 else self._place_among(donors, own[rows[q]])
                for chosen in torch.arange(len(q)).split(max(1, AT_ONCE // len(donors))):
                    some = slice(int(chosen[0]), int(chosen[-1]) + 1)
                    part, values = q[some], given
                    near = rest[part] @ keys.T
                    apart = near
                    for level in levels:
                        apart = level[some] @ across.T
                        near.addcmul_(apart, apart, value=-linear / len(features))
                    if mine is not None:
                        among = (mine[some] >= 0).nonzero()[:, 0]
                        near[among, mine[some][among]] = -torch.inf
                    if moved:
                        j = int(features[0])
                        wider = self._wider(seen[part].sum(1), drawn)[:, None]
                        # the part that the copula does not explain, slightly widened, and its expectation for the row
                        values = self.scores[donors, j] + (self.shift[j] + wider) * apart
                        values += wider * (theirs[:, j] - levels[0][some, -1:])
                    yield Weighed(rows[part], features, donors, torch.softmax(near, 1), values)

    @cached_property
    def _incomplete(self) -> Tensor:
        """Features that some donors lack."""
        return self.rows.isnan().any(0).nonzero()[:, 0]

    def _place_among(self, donors: Tensor, which: Tensor) -> Tensor:
        """Return the places of donors `which` (q,) among some of them (r,), -1 for others: (q,)."""
        place = torch.full((len(self.rows) + 1,), -1)  # the last one is that of -1
        place[donors] = torch.arange(len(donors))
        return place[which]

    def _of_column(self, features: Tensor) -> Tensor:
        """Return the donors (r,) that have a column's value, ordered by value if values are given unchanged."""
        donors = (~self.rows[:, features[0]].isnan()).nonzero()[:, 0]
        if self.shift[features[0]] > 0:
            return donors
        return donors[self.rows[donors, features[0]].argsort(stable=True)]

    def _keys(self, features: Tensor, donors: Tensor) -> Tensor:
        """Return the matrix that queries are multiplied with to get minus the distances of donors (r,), without the
        copula's term and what is the same for all of them: (r, E + 2 D + f + 1), E features that some lack."""
        both, other = self.metric[features].mean(0).chunk(2)
        z, network = self.scores[donors], self.network[donors][:, features]
        metric = torch.where(self.rows[donors].isnan(), other, both)
        share = self.own[features, 1].mean() / len(features)
        of_network = torch.cat([2 * network, -network.square().sum(1, keepdim=True)], 1)
        return torch.cat([-metric[:, self._incomplete], 2 * metric * z, -metric * z.square(), share * of_network], 1)

    def _chunks(self, x: Tensor) -> Sequence[Tensor]:
        """Return the indices of rows x (n, D) in parts that are weighted together."""
        lacking = int(x.isnan().sum(1).max()) if len(x) else 0
        most = VALUES / max(len(self.rows), lacking * x.shape[1])
        return torch.arange(len(x)).split(min(MOST_CHUNK, max(CHUNK, int(most))))

    def _wider(self, n_seen: Tensor, drawn: bool) -> Tensor:
        """Return the share by which residuals from the copula are smaller than those of new rows with `n_seen` (q,)
        values: as in a regression on that many numbers, fitted to the rows of the copula, or `drawn` with it."""
        share = (n_seen / self.copula.n_rows).clamp_max(0.5)
        return ((1.0 if drawn else 1 + share) / (1 - share)).sqrt() - 1

    @cached_property
    def populations(self) -> list[Population]:
        """Populations from which the donors may have been sampled: draws of the Bayesian bootstrap (Rubin 1981)."""
        generator, (n, d) = torch.Generator().manual_seed(0), self.rows.shape
        z = self.copula.marginals.normal(self.rows) if n * d**3 <= WORK else self.scores
        weights = torch.empty(POPULATIONS, len(z), dtype=z.dtype).exponential_(generator=generator)
        return [Population(weight, self.copula.redrawn(z, weight)) for weight in weights]

    def complete(
        self,
        x: Tensor,
        guess: Tensor,
        words: Tensor,
        own: Tensor | None = None,
        *,
        shape: bool = False,
        at: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Summarise the distributions of the missing values of x (n, D) as tensors (n, D).

        `middle` is the median and `mean` the mean, both equal to `guess` if there is no donor; `variance` is that of
        the donors' values. With `shape`, `points` (n, D, Q) are their quantiles at `SCORES` minus the median; NaN for
        features of words and if there is no donor; with `at`, (n, 1, Q).

        Args:
            x: NaN where missing.
            guess: the network's expectation of all values.
            words: (D,) features of categories and booleans, for which the mean replaces the median.
            own: (n,) donors that give nothing to these rows because they are the same rows; -1 for none.
            shape: whether to return the quantiles.
            at: fill in only one column of each row, that of these features (n,); the other values stay equal to
                `guess`. Default: all.
        """
        middle, average, variance = guess.clone(), guess.clone(), torch.zeros_like(guess)
        n_points = guess.shape[1] if at is None else 1
        points = guess.new_full((len(guess), n_points, len(SCORES)), torch.nan) if shape else None
        for of in self._weights(x, guess, own, at=at):
            part, weight, j = of.rows, of.weight, int(of.features[0])
            if words[j]:
                place = part[:, None], of.features
                average[place], variance[place] = shared_moments(of.given, weight)
                middle[place] = average[place]
                continue
            values = self._each(of)[0]
            average[part, j], variance[part, j] = weighted_moments(values, weight)
            levels = [0.5] if points is None else UPTO
            found = weighted_quantiles(values, weight, levels, ordered=not self.shift[j] > 0)
            middle[part, j] = found[:, found.shape[1] // 2]
            if points is not None:
                points[part, j if at is None else 0] = found - middle[part, j, None]
        out = {"middle": middle, "mean": average, "variance": variance}
        return out if points is None else out | {"points": points}

    def places(self, x: Tensor, guess: Tensor, truth: Tensor) -> Tensor:
        """Return where the true values of the missing ones in x lie in their distributions: the shares (n, D) of weight
        below them, including half of that at the value itself; NaN for values that are not asked for."""
        out = torch.full_like(x, torch.nan)
        for of in self._weights(x, guess):
            part, weight = of.rows, of.weight
            for j, values in zip(of.features.tolist(), self._each(of), strict=True):
                ours = truth[part, j, None]
                share = (weight * (values < ours)).sum(1) + 0.5 * (weight * (values == ours)).sum(1)
                out[part, j] = torch.where(ours[:, 0].isnan(), torch.nan, share)
        return out

    def _each(self, of: Weighed) -> list[Tensor]:
        """Return the donors' values of each feature: (q, r) if they are adjusted, otherwise (1, r)."""
        j = int(of.features[0])
        return [self.copula.values(j, of.given)] if self.shift[j] > 0 else [values[None] for values in of.given.T]

    def noise(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Draw n standard normal numbers (n, N, D) for each value of x (N, D). Those of a row are correlated like its
        missing values in the population from which the completion is drawn."""
        z = self.copula.marginals.normal(x)
        out = z.new_empty(n, *z.shape)
        for p, population in zip(range(min(n, POPULATIONS)), self.populations, strict=False):
            out[p::POPULATIONS] = population.copula.noise(z, len(range(p, n, POPULATIONS)), generator)
        return out

    def draw(self, x: Tensor, guess: Tensor, chance: Tensor) -> Tensor:
        """Return completions (n, N, D) of x (N, D): the quantiles of the distributions at `chance` (n, N, D). A
        category is one column, and uses the first of its chances.

        Completion i treats the table as drawn from population i: it uses the donors' weights, and the copula to adjust
        their values, of this population. So completions reflect the uncertainty about the population, as proper
        multiple imputation requires (Rubin 1987), and not only that of a row.
        """
        out = torch.where(x.isnan(), guess, x).expand(len(chance), *x.shape).clone()
        lacking = x.isnan().any(1).nonzero()[:, 0]
        for rows in lacking.split(max(8, min(256, int(GAINS / x.shape[1] ** 2)))) if len(lacking) else ():
            self._draw(out, rows, x[rows], guess[rows], chance)
        return out

    def _draw(self, out: Tensor, rows: Tensor, x: Tensor, guess: Tensor, chance: Tensor) -> None:
        """Write completions of some rows x (m, D) into `out` (n, N, D), at their indices `rows` (m,)."""
        z = self.copula.marginals.normal(x)
        turns = [torch.arange(p, len(chance), POPULATIONS) for p in range(min(POPULATIONS, len(chance)))]
        usual = self.copula.hidden(z)
        gains = [population.copula.hidden(z).gain - usual.gain for population in self.populations[: len(turns)]]
        z = z.nan_to_num()
        for of in self._weights(x, guess, drawn=True):
            part, j, order = of.rows, int(of.features[0]), self._order(of)
            for population, turn, change in zip(self.populations, turns, gains, strict=False):
                slope = change[part, usual.place(part, j)]
                at = chance[turn][:, rows[part], j].T.contiguous()
                made = self._taken(of, order, population, at, z[part], slope)
                out[turn[:, None, None], rows[part][:, None], of.features] = made.transpose(0, 1)

    def draw_column(self, x: Tensor, guess: Tensor, chance: Tensor, column: int, turn: int) -> Tensor:
        """Return the features (n, f) of a column that all rows x (n, D) lack, for completion number `turn`: the
        quantiles of the distributions at `chance` (n,)."""
        features = (self.groups == column).nonzero()[:, 0]
        z = self.copula.marginals.normal(x)
        population, usual = self.populations[turn % POPULATIONS], self.copula.hidden(z)
        change = population.copula.hidden(z).gain - usual.gain
        z, out = z.nan_to_num(), guess[:, features].clone()
        for of in self._weights(x, guess, drawn=True, only=column):
            slope = change[of.rows, usual.place(of.rows, int(features[0]))]
            at = chance[of.rows, None]
            out[of.rows] = self._taken(of, self._order(of), population, at, z[of.rows], slope)[:, 0]
        return out

    def _order(self, of: Weighed) -> tuple[Tensor, Tensor]:
        """Return the order of the donors by what they give, (q, r) or (1, r), and the sorted values."""
        moved = bool(self.shift[of.features[0]] > 0)
        key = of.given if moved else of.given.argmax(1)[None] if len(of.features) > 1 else of.given[:, 0][None]
        order = key.argsort(dim=1, stable=True)
        return order, key.gather(1, order)

    def _taken(
        self,
        of: Weighed,
        in_order: tuple[Tensor, Tensor],
        population: Population,
        chance: Tensor,
        z: Tensor,
        slope: Tensor,
    ) -> Tensor:
        """Return the quantiles (q, n, f) of a column at `chance` (q, n), with the donors' weights in a population.

        Args:
            of: the donors of the column.
            in_order: see `_order`.
            population: weights of donors, and a copula.
            chance: places in the distributions, from 0 to 1.
            z: scores (q, D) of the rows, 0 where missing.
            slope: difference of the gains of its copula from the usual ones, (q, D).
        """
        j, (order, ordered) = int(of.features[0]), in_order
        weight = of.weight.gather(1, order.expand_as(of.weight)) * population.weight[of.donors][order]
        total = weight.cumsum(1)
        wanted = chance * total[:, -1:]
        chosen = torch.searchsorted(total, wanted).clamp_max(len(of.donors) - 1)
        which = order.expand_as(total).gather(1, chosen)
        if not self.shift[j] > 0:
            return of.given[which]
        apart = (z * slope).sum(1)[:, None] - (slope @ self.scores[of.donors].T).gather(1, which)
        score = between(ordered, total, chosen, wanted) + self.shift[j] * apart
        return self.copula.values(j, score)[..., None]


def _as_bytes(rows: Tensor) -> list[bytes]:
    """Return rows (n, D) as keys, NaN equal to NaN."""
    return [row.tobytes() for row in (torch.where(rows.isnan(), torch.nan, rows) + 0.0).float().cpu().numpy()]


def _known(copula: Copula, rows: Tensor, guess: Guess, groups: Tensor) -> dict[str, Tensor]:
    """Return scores of rows, with draws in place of missing ones, and the network's expectation of each value."""
    scores = copula.fill(copula.marginals.normal(rows), torch.Generator().manual_seed(0))
    network = guess(rows).clone()
    columns = groups.unique()
    columns = columns[torch.randperm(len(columns), generator=torch.Generator().manual_seed(0))]
    for part in columns.chunk(min(PARTS, len(columns))):
        which = torch.isin(groups, part)
        network[:, which] = guess(torch.where(which, torch.nan, rows))[:, which]
    return {"scores": scores, "network": network}


def _continuous(values: Tensor) -> bool:
    """Whether a column has many different values (n,) and none of them is frequent."""
    count = values.unique(return_counts=True)[1]
    return len(count) > max(1, DISTINCT * len(values)) and int(count.max()) <= max(2, SPIKE * len(values))


def _trusted(seen: Tensor, columns: Tensor) -> Tensor:
    """Return ρ², the squared share of the other columns that rows have: (n, D) from `seen` (n, D)."""
    others = (columns[:, None] != columns).to(seen.dtype)
    return ((seen @ others.T) / others.sum(1).clamp_min(1)).square()


def _hide(rows: Tensor, columns: Tensor, generator: torch.Generator) -> Tensor:
    """Choose values to hide, (n, D): all features of a column, few columns in some rows and many in others."""
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
    start: tuple[Tensor, Tensor, Tensor],
    smooth: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Learn the logs of the metric (D, 2 D) and of b and g (D, 2), and the logit of the shift (D,)."""
    n, d = rows.shape
    truth = copula.marginals.normal(rows).float().nan_to_num()
    present = (~rows.isnan()).float()
    scores, network = (known[name].float() for name in ("scores", "network"))
    center = copula.center.float()
    views = []
    for _ in range(MASKS):
        hidden = _hide(rows, columns, generator)
        seen = torch.where(hidden, torch.nan, rows)
        views.append((hidden, copula.marginals.normal(seen), guess(seen).float()))
    log_metric, log_own, logit = (part.float().requires_grad_() for part in start)
    log_width = torch.full((d,), math.log(0.3), requires_grad=True)
    adam = Adam([{"params": [log_metric, log_own, logit, log_width], "lr": RATE}])
    alone = (columns[:, None] != columns).float().repeat(1, 2)
    n_queries = min(64, max(8, QUERIES // d))
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        hidden, z, net = views[step % MASKS]
        q = torch.randperm(n, generator=generator)[:n_queries]
        r = torch.randperm(n, generator=generator)[:CANDIDATES]
        of, seen = copula.hidden(z[q]), (~z[q].isnan()).float()
        at, gain = of.index, of.gain.float()  # only hidden values are learned from
        ours = z[q].float().nan_to_num()
        square = seen[:, None] * (ours[:, None] - scores[r]).square()
        squares = torch.cat([square * present[r], square * (1 - present[r])], 2)
        far = (log_metric.exp() * alone)[at] @ squares.transpose(1, 2)
        apart = (gain @ (seen * (ours - center))[..., None]) - gain @ (scores[r] - center).T
        b, g = log_own.exp()[at].unbind(2)
        differ = net[q].gather(1, at)[..., None] - network[r].T[at]
        far = far + b[..., None] * apart.square()
        far = far + (g * _trusted(seen, columns).gather(1, at))[..., None] * differ.square()
        out = (present[r].T[at] == 0) | (q[:, None] == r)[:, None]
        weight = torch.log_softmax((-far).masked_fill(out, -1e9), 2)
        width = (log_width.exp() + 0.02)[at][..., None]
        moved = scores[r].T[at] + (logit.sigmoid() * smooth)[at][..., None] * apart
        near = -0.5 * ((truth[q].gather(1, at)[..., None] - moved) / width).square() - width.log()
        density = torch.logsumexp(weight + near, 2)
        counted = hidden[q].gather(1, at) & of.there
        loss = -torch.where(counted, density, 0.0).sum() / counted.sum().clamp_min(1)
        loss = loss + PENALTY * (log_metric - log_metric.mean(1, keepdim=True)).square().sum() / d
        adam.zero_grad()
        loss.backward()
        adam.step()
    return log_metric.detach(), log_own.detach(), logit.detach()
