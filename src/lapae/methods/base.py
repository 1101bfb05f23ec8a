"""The protocol of a method: how it makes its loss, what it does after a step, and how it draws networks.

Training, prediction, tasks and reports know nothing else about a method. A new one is a subclass of `Method`:

    @dataclass(frozen=True)
    class MineOptions(MethodOptions):                      # from lapae.config
        strength: float = 1.0
        '''What it does: the help of --strength.'''

    @register("mine")
    class Mine(Method):
        title = "my own autoencoder"
        options = MineOptions

        def __init__(self, network, likelihood, options, n_data):
            super().__init__(likelihood)
            self.network = network()                       # call it again for a second, independent network

        def forward(self, x, step):
            return -self.likelihood.log_prob(self.network(x), x).mean()

        def draw(self, seeds):
            return Point(self.network)

`register` makes it known in this process. In an installed package, an entry point does so for every command:

    [project.entry-points."lapae.methods"]
    mine = "my_package:Mine"

Shapes: S draws, B data, K latent dimensions; x is (B, *shape), codes (S, B, K), outputs (S, B, *shape).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from lapae.config import METHODS, MethodConfig, MethodOptions
from lapae.config.fields import check
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.step import Step
from lapae.networks import Autoencoder

NetworkFactory = Callable[[], Autoencoder]
BatchFactory = Callable[[], Iterable[Tensor]]


class Output(NamedTuple):
    """What decoders say: the parameters of the likelihood, and the noise variance where the method learns one."""

    loc: Tensor
    """(S, B, *shape): network outputs (a mean, or logits)."""
    var: Tensor | None = None
    """(S, B, *shape): learned variance of the data around `loc`; None where the likelihood fixes it."""


class Draws(Protocol):
    """S stochastic networks at once. Draw s of `encode` and draw s of `decode` are the same network.

    The leading axis of what comes in is S (an input for each network) or 1 (the same for all): it broadcasts.
    """

    def encode(self, x: Tensor) -> Tensor:
        """(S or 1, B, *shape) -> codes (S, B, K)."""
        ...

    def decode(self, z: Tensor) -> Output:
        """(S or 1, B, K) -> outputs (S, B, *shape)."""
        ...


class Method(nn.Module):
    """A way to train an autoencoder. Its parameters are what the optimiser trains, its buffers the rest of its state.

    The constructor of a method takes `(network, likelihood, options, n_data)`: a function that makes a new network, the
    likelihood, the method's options and the number of training data.
    """

    title: ClassVar[str] = ""
    """The name that a reader sees, where a method is registered as a class; those of the library have it in
    `lapae.config.methods`."""
    options: ClassVar[type[MethodOptions]] = MethodOptions
    """Its options, where a method is registered as a class."""
    temperature: float | None = None
    """What its posterior is widened by, where it has one to widen."""
    learns_variance = False
    """Whether the deviation that it reports is, or contains, a noise of the data that it has learned."""

    stochastic = True
    """Whether draws differ: False means that one draw says it all."""
    distinct_draws: int | None = None
    """How many draws differ where they are finitely many, as an ensemble's: those of consecutive seeds do."""
    shared_codes = True
    """Whether draws have one latent space: then any may decode the code of another."""
    latent_prior = False
    """Whether codes have a standard normal prior to generate from."""
    capturable: bool = True
    """Whether its step can be replayed as a CUDA graph: the same operations every time, on state that is kept in place,
    without waiting for the device."""

    still: tuple[nn.Module, ...] = ()
    """Modules that a user handed over in evaluation mode: they stay in it, in training too."""

    sigma: Tensor | None
    """Scale of the noise where it is learned: of the model's shape, or of ones where all features share it."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self._likelihood = likelihood
        self.register_buffer("sigma", None)

    @property
    def likelihood(self) -> Likelihood:
        """Of the data given the decoder's output; with the noise learned so far, where it is learned."""
        return self._likelihood if self.sigma is None else self._likelihood.with_noise(self.sigma)

    def learn_noise(self, shape: tuple[int, ...]) -> None:
        """From now on the scale of the noise is a state of the method, `sigma` (*shape), which training sets."""
        self.sigma = torch.ones(shape)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but those that stay in evaluation mode."""
        super().train(mode)
        for module in self.still:
            module.training = False
        return self

    def begin(self, batches: BatchFactory, step: Step) -> None:
        """Called once, before the first epoch: a look at the training data (this process's part of them)."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Training loss of a batch: a scalar, the mean over data (so that DDP averages it)."""
        raise NotImplementedError

    def start_from(self, source: Method) -> None:
        """Take over what another, trained method has learned: that of the run that `options.starts_from` names."""
        raise NotImplementedError

    def after_forward(self, step: Step) -> None:
        """Called after every training forward pass (a posterior updates its precision here).

        On a GPU it runs beside the backward pass, on a stream of its own: it must not touch gradients or parameters,
        and what it uses of the forward pass must be kept until the next one.
        """

    def after_backward(self, step: Step) -> None:
        """Called after every backward pass, before the optimiser's step: ends what `after_forward` left under way."""

    def validate(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Sums over the batch of what to report; "loss" steers the schedule, early stopping and the best weights."""
        return {"loss": self(x, step) * len(x)}

    def finish(self, batches: BatchFactory, n_data: int, step: Step) -> dict[str, float]:
        """After training, at the best weights: one more look at the training data (this process's part of them, of
        `n_data` in all). Returns numbers to report."""
        return {}

    def draw(self, seeds: Sequence[int]) -> Draws:
        """One draw per seed; the same seed gives the same network, however the draws are grouped."""
        raise NotImplementedError

    def draw_mean(self) -> Draws:
        """The point estimate, S = 1: the network at the mean of what is stochastic."""
        raise NotImplementedError


class Point:
    """A single deterministic network as draws: S is that of the input."""

    def __init__(self, network: Autoencoder) -> None:
        self.network = network

    def encode(self, x: Tensor) -> Tensor:
        return self.network.encode(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def decode(self, z: Tensor) -> Output:
        return Output(self.network.decode(z.flatten(0, 1)).unflatten(0, z.shape[:2]))


M = TypeVar("M", bound=Method)


def register(name: str) -> Callable[[type[M]], type[M]]:
    """Make a `Method` known by name to the command line, the estimator and the configuration."""

    def add(cls: type[M]) -> type[M]:
        METHODS[name] = cls
        return cls

    return add


def build(config: MethodConfig, network: NetworkFactory, likelihood: Likelihood, n_data: int) -> Method:
    """A fresh method.

    Args:
        config: the method's name and options.
        network: makes a new network, each time with new initial weights.
        likelihood: of the data given the output of the network.
        n_data: number of training data, which the curvature of a batch is scaled to.
    """
    check(config.options)
    method = METHODS.find(config.method).load()(network, likelihood, config.options, n_data)
    method.still = tuple(module for module in method.modules() if not module.training)
    return method
