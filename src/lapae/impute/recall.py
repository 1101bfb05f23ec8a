"""Missing values of images and series, recalled from the codes of training samples.

The candidates are the training codes whose decoded samples are nearest to the observed part. Each is refined by
encoding and decoding while the observed part stays fixed, and weighted by the likelihood of the observed part times
the density of its code,

    log w = -|x - decode(z)|² / (2 scale) + log p(z),        over observed values,

where scale is the noise of held-out residuals, times the number of values that vary together: neighbouring pixels are
not independent, and one candidate would otherwise get all the weight. Completions are draws; their mean is the best
guess.

Shapes: N samples x (N, *shape) in the model's space, R codes kept, J candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration
from lapae.impute.imputer import ITERATED, Imputer, ImputerRows, Trained, fit_hidden
from lapae.methods.base import Method
from lapae.predict.decode import encode_mean
from lapae.predict.mc import draw_seeds, n_distinct
from lapae.predict.prediction import Prediction
from lapae.predict.rows import evenly
from lapae.score.latent_codes import BATCH, MOST_VALUES, LatentCodes, expected_samples

KEPT = 2000
"""Maximum number of codes among which the nearest are searched."""
CANDIDATES = 16
REFINE = 3
"""Number of encodings and decodings of each candidate."""
TEMPER = 4.0
"""Factor of the scale of the residuals: a code fitted to a part of a sample is less certain than one of the whole."""


@dataclass(frozen=True)
class RecallImputer(Imputer):
    """Missing values of images, series and arrays.

    Attributes:
        noise: standard deviation of values around the decoded ones, (*features); None for images, which are meant to
            be viewed.
    """

    noise: Tensor | None = None

    @classmethod
    def fit(cls, trained: Trained, rows: ImputerRows, calibration: Calibration) -> Self:
        noise = None if trained.space.kind == "image" else calibration.deviation.noise
        return cls(*fit_hidden(lambda x: expected(trained, x), rows, ITERATED)[:1], None, None, None, noise)

    def guess(
        self,
        trained: Trained,
        x: Tensor,
        *,
        held: bool = False,
        whole: Tensor | None = None,
        shape: bool = False,
        at: Tensor | None = None,
    ) -> Prediction:
        return expected(trained, x)

    @torch.no_grad()
    def draw(self, trained: Trained, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        method = trained.method
        codes, chance = recall(method, trained.codes, x, seed=seed)
        which = torch.multinomial(chance, n, replacement=True, generator=torch.Generator().manual_seed(seed))
        picked = codes[torch.arange(len(x))[:, None], which].transpose(0, 1)
        # members of an ensemble have a latent space each: codes are those of the first
        seeds = draw_seeds(seed, n_distinct(method, n)) if method.shared_codes else []
        made = [expected_samples(method, z, None if not seeds else seeds[i % len(seeds)]) for i, z in enumerate(picked)]
        values = torch.stack(made).to(x.dtype)
        if self.noise is not None:
            generator = torch.Generator().manual_seed(seed)
            values = values + self.noise * torch.randn(values.shape, generator=generator, dtype=values.dtype)
        return torch.where(x.isnan(), values, x)


def expected(trained: Trained, x: Tensor) -> Prediction:
    """Predict x (n, *shape), with the mean of the possible values in place of missing ones."""
    if not x.isnan().any():
        return trained.predict(x)
    with torch.no_grad():
        found, chance = recall(trained.method, trained.codes, x, seed=trained.seed)
        made = expected_samples(trained.method, found.flatten(0, 1)).unflatten(0, chance.shape)
        filled = torch.where(x.isnan(), torch.einsum("nj,nj...->n...", chance, made).to(x.dtype), x)
    whole = trained.predict(filled)
    return whole.replace(x_mean=torch.where(x.isnan(), filled, whole.x_mean))


@torch.no_grad()
def recall(method: Method, known: LatentCodes, x: Tensor, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Find the codes that match the observed part of samples.

    Args:
        method: the trained method.
        known: codes of training samples.
        x: samples (N, *shape); NaN is missing.
        seed: seed of the choice if nothing is observed.

    Returns:
        Codes (N, J, *code) and their probabilities (N, J).
    """
    x = x.to(known.codes.dtype)
    seen = ~x.isnan()
    values = x.nan_to_num()
    codes = evenly(known.codes, min(KEPT, max(CANDIDATES, MOST_VALUES // x[0].numel())))
    made = expected_samples(method, codes).flatten(1)
    flat, mask = values.flatten(1), seen.flatten(1).to(x.dtype)
    n_candidates = min(CANDIDATES, len(codes))
    found, chance = [], []
    generator = torch.Generator().manual_seed(seed)
    for part in torch.arange(len(x)).split(max(1, BATCH // n_candidates)):
        square = mask[part] @ made.square().T - 2 * (flat * mask)[part] @ made.T
        # if nothing is observed, all are equally near: any will do
        square = square + 1e-3 * known.scale * torch.rand(square.shape, generator=generator)
        z = codes[square.topk(n_candidates, largest=False).indices].flatten(0, 1)
        given, there = (t[part].repeat_interleave(n_candidates, 0) for t in (values, seen))
        for _ in range(REFINE):
            z = encode_mean(method, torch.where(there, given, expected_samples(method, z)), batch_size=BATCH)
        gap = torch.where(there, given - expected_samples(method, z), 0.0)
        energy = gap.square().flatten(1).sum(1) / (2 * TEMPER * known.scale) - known.density.log_prob(z)
        found.append(z.unflatten(0, (len(part), n_candidates)))
        chance.append((-energy).unflatten(0, (len(part), n_candidates)).softmax(1))
    return torch.cat(found), torch.cat(chance)
