"""How a method predicts: by `mc`, `linearized` or `moments`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor

from lapae.curvature.chunking import within_memory
from lapae.methods.base import Method
from lapae.methods.laplace import with_posterior
from lapae.predict import mc
from lapae.predict.closed_form import to_prediction
from lapae.predict.linearized import linearized
from lapae.predict.moments import moments
from lapae.predict.prediction import FIELDS, Inputs, Prediction, Progress, Quantity, batches, check_quantities, join

PREDICTIVES = ("mc", "linearized", "moments")
DEFAULT_QUANTITIES: tuple[Quantity, ...] = ("codes", "outputs", "density", "error")


@dataclass(frozen=True)
class Predictive:
    """A way to predict.

    Attributes:
        kind: "mc" draws networks, for any method; "linearized" is the closed form of the network linearised in its
            weights and "moments" one pass with a mean and a variance, both for Laplace posteriors.
        n_samples: number of networks drawn by "mc".
        seed: seed of the networks.
        at_mean: let "mc" return means of the network at the mean weights, as the closed forms do, instead of means over
            draws.
        batch_size: samples per batch.
        draws_at_once: networks at a time; default: as many as fit.
    """

    kind: str = "mc"
    n_samples: int = 100
    seed: int = 0
    at_mean: bool = False
    batch_size: int = 512
    draws_at_once: int | None = None

    def __call__(
        self,
        method: Method,
        x: Inputs,
        want: Collection[Quantity] = DEFAULT_QUANTITIES,
        progress: Progress | None = None,
    ) -> Prediction:
        """Predict mean and variance of codes and reconstructions, densities and errors.

        Args:
            method: the trained method.
            x: samples (N, *shape) in the model's space, or batches of them.
            want: the quantities to compute.
            progress: called with the number of (network, sample) pairs done.
        """
        parts = list(self.blocks(method, x, want, progress))
        if not parts:
            raise ValueError("expected at least one sample to predict for, got none")
        return join(parts)

    def blocks(
        self,
        method: Method,
        x: Inputs,
        want: Collection[Quantity] = DEFAULT_QUANTITIES,
        progress: Progress | None = None,
    ) -> Iterator[Prediction]:
        """Yield predictions block by block, for results that are reduced or written right away.

        Args:
            method: the trained method.
            x: samples (N, *shape) in the model's space, or batches of them.
            want: the quantities to compute.
            progress: called with the number of (network, sample) pairs done.
        """
        if self.kind not in PREDICTIVES:
            raise ValueError(f"unknown predictive {self.kind!r}: expected one of {', '.join(PREDICTIVES)}")
        check_quantities(want)
        wanted = {name for quantity in want for name in FIELDS[quantity]}
        if self.kind == "mc":
            drawn: set[Quantity] = {quantity for quantity in want if quantity != "means"}
            if "means" in want:
                drawn.update(("codes", "outputs"))
            for found in mc.predict_blocks(
                method,
                x,
                n_samples=self.n_samples,
                seed=self.seed,
                want=drawn,
                batch_size=self.batch_size,
                draws_at_once=self.draws_at_once,
                progress=progress,
                at_mean=self.at_mean,
            ):
                kept = {name: value for name, value in found.values.items() if name in wanted}
                yield Prediction(found.n_draws, kept, found.x_learned)
            return
        laplace = with_posterior(method, self.kind)
        weight = next(method.parameters())
        decodes = bool({"means", "outputs", "density", "error"} & set(want))

        def closed_form(part: Tensor) -> Prediction:
            part = part.to(weight.device, weight.dtype)
            with mc.evaluating(method, len(part)):
                if wanted == set(FIELDS["means"]):  # those of the network at the mean weights
                    z = laplace.network.encoder(part)
                    mean = method.likelihood.mean(laplace.network.decoder(z))
                    return Prediction(1, {"z_mean": z.cpu(), "x_mean": mean.cpu()})
                if self.kind == "moments":
                    found = moments(laplace, part)
                else:
                    found = linearized(laplace, part, outputs=decodes, codes=not wanted.isdisjoint(("z_var", "z_cov")))
                whole = to_prediction(method.likelihood, part, found, delta=self.kind == "moments")
            return Prediction(1, {name: value for name, value in whole.values.items() if name in wanted})

        most: int | None = None
        for batch in batches(x, self.batch_size):
            found, size = within_memory(
                lambda size, batch=batch: join([closed_form(part) for part in batch.split(size)]),
                min(len(batch), most or len(batch)),
                f"the {self.kind} predictive (samples)",
                "predictive mc",
            )
            most = size if size < len(batch) else most
            if progress:
                progress(len(batch))
            yield found


def predict(
    method: Method,
    x: Inputs,
    *,
    predictive: str = "mc",
    n_samples: int = 100,
    seed: int = 0,
    want: Collection[Quantity] = DEFAULT_QUANTITIES,
    batch_size: int = 512,
    draws_at_once: int | None = None,
    progress: Progress | None = None,
    at_mean: bool = False,
) -> Prediction:
    """Predict in one call, see `Predictive`.

    Args:
        method: the trained method.
        x: samples (N, *shape) in the model's space, or batches of them.
        predictive: "mc", "linearized" or "moments".
        n_samples: number of networks drawn by "mc".
        seed: seed of the networks.
        want: the quantities to compute.
        batch_size: samples per batch.
        draws_at_once: networks at a time; default: as many as fit.
        progress: called with the number of (network, sample) pairs done.
        at_mean: let "mc" return means of the network at the mean weights.
    """
    return Predictive(predictive, n_samples, seed, at_mean, batch_size, draws_at_once)(method, x, want, progress)
