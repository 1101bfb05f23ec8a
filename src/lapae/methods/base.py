"""Interface of a method: its loss, what it does after a step, and how it draws networks.

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

`register` makes it available in this process. In an installed package, an entry point makes it available to every
command:

    [project.entry-points."lapae.methods"]
    mine = "my_package:Mine"

Shapes: S draws, B samples, K latent dimensions; x is (B, *shape), codes are (S, B, K), outputs (S, B, *shape).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from lapae.config import METHODS, MethodConfig, MethodOptions
from lapae.config.fields import check
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder

NetworkFactory = Callable[[], Autoencoder]
BatchFactory = Callable[[], Iterable[Tensor]]


class Output(NamedTuple):
    """Output of decoders: the parameters of the likelihood, and the noise variance if the method learns one."""

    loc: Tensor
    """Network outputs (a mean, or logits), (S, B, *shape)."""
    var: Tensor | None = None
    """Learned variance of the data around `loc`, (S, B, *shape); None if the likelihood fixes it."""


class Draws(Protocol):
    """S sampled networks. Draw s of `encode` and draw s of `decode` are the same network.

    The leading axis of inputs is S (one input for each network) or 1 (one for all): it broadcasts.
    """

    def encode(self, x: Tensor) -> Tensor:
        """Encode x (S or 1, B, *shape) into codes (S, B, K)."""
        ...

    def decode(self, z: Tensor) -> Output:
        """Decode z (S or 1, B, K) into outputs (S, B, *shape)."""
        ...


class Method(nn.Module):
    """A way to train an autoencoder. The optimiser trains its parameters; its buffers are the rest of its state.

    The constructor of a subclass takes `(network, likelihood, options, n_data)`: a function that makes a new network,
    the likelihood, the method's options and the size of the training set. In its methods, x are samples (B, *shape) of
    a batch; `step` has the generators of noise, this process's share of the batch, and the other processes; `batches`
    makes an iterator over batches of the training set, this process's part of them.
    """

    title: ClassVar[str] = ""
    """Name for readers, for a method that is registered as a class; the library's methods have it in
    `lapae.config.methods`."""
    options: ClassVar[type[MethodOptions]] = MethodOptions
    """Class of its options, for a method that is registered as a class."""
    temperature: float | None = None
    """Factor by which the variance of its posterior is multiplied; None without a posterior."""
    learns_variance = False
    """Whether the standard deviation that it reports includes the learned noise of the data."""

    stochastic = True
    """Whether draws differ; if not, one draw is enough."""
    distinct_draws: int | None = None
    """Number of different draws if it is finite, as for an ensemble, where consecutive seeds give different draws."""
    shared_codes = True
    """Whether draws share one latent space, so that each can decode the codes of the others."""
    latent_prior = False
    """Whether codes have a standard normal prior to generate from."""
    capturable: bool = True
    """Whether its training step can be replayed as a CUDA graph: the same operations every time, on state that is
    updated in place, without synchronisation with the device."""

    still: tuple[nn.Module, ...] = ()
    """Modules that a user passed in evaluation mode; they stay in it during training."""

    sigma: Tensor | None
    """Scale of the noise if it is learned: (*model_shape), or (1, …, 1) if all features share it."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self._likelihood = likelihood
        self.register_buffer("sigma", None)

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the data given the decoder's output, with the noise learned so far, if any."""
        return self._likelihood if self.sigma is None else self._likelihood.with_noise(self.sigma)

    def learn_noise(self, shape: tuple[int, ...]) -> None:
        """Make the scale of the noise, `sigma` (*shape), part of the state of the method, which training sets."""
        self.sigma = torch.ones(shape)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, except for modules that stay in evaluation mode."""
        super().train(mode)
        for module in self.still:
            module.training = False
        return self

    def begin(self, batches: BatchFactory, step: StepContext) -> None:
        """Prepare with the training set before the first epoch."""

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the training loss of a batch: a scalar, the mean over samples (which DDP averages)."""
        raise NotImplementedError

    def start_from(self, source: Method) -> None:
        """Take over the weights of a trained method, from the run that `options.starts_from` names."""
        raise NotImplementedError

    def after_forward(self, step: StepContext) -> None:
        """Update state after a training forward pass, such as the precision of a posterior.

        On a GPU it runs concurrently with the backward pass, on a stream of its own: it must not touch gradients or
        parameters, and must keep what it uses of the forward pass until the next one.
        """

    def after_backward(self, step: StepContext) -> None:
        """Complete what `after_forward` started, after the backward pass and before the optimiser's step."""

    def validate(self, x: Tensor, step: StepContext) -> dict[str, Tensor]:
        """Return sums over a validation batch of the numbers to report, scalars by name.

        "loss" decides on the learning rate, early stopping and the best epoch.
        """
        return {"loss": self(x, step) * len(x)}

    def finish(self, batches: BatchFactory, n_data: int, step: StepContext) -> dict[str, float]:
        """Fit what depends on the final weights, such as a post-hoc posterior, and return numbers to report.

        `n_data` is the size of the training set, over all processes.
        """
        return {}

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return one draw per seed; a seed gives the same network in any grouping of seeds."""
        raise NotImplementedError

    def draw_mean(self) -> Draws:
        """Return the point estimate, S = 1: the network at the mean of its distribution."""
        raise NotImplementedError


class Point:
    """Draws of a single deterministic network; S is that of the input."""

    def __init__(self, network: Autoencoder) -> None:
        self.network = network

    def encode(self, x: Tensor) -> Tensor:
        return self.network.encode(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def decode(self, z: Tensor) -> Output:
        return Output(self.network.decode(z.flatten(0, 1)).unflatten(0, z.shape[:2]))


M = TypeVar("M", bound=Method)


def register(name: str) -> Callable[[type[M]], type[M]]:
    """Make a `Method` available by name to the command line, the estimator and the configuration."""

    def add(cls: type[M]) -> type[M]:
        METHODS[name] = cls
        return cls

    return add


def build(config: MethodConfig, network: NetworkFactory, likelihood: Likelihood, n_data: int) -> Method:
    """Build a method with initial weights.

    Args:
        config: the method's name and options.
        network: makes a new network, each time with new initial weights.
        likelihood: likelihood of the data given the output of the network.
        n_data: size of the training set, to which the curvature of a batch is scaled.

    Returns:
        The method, on the CPU, in training mode.
    """
    check(config.options)
    method = METHODS.find(config.method).load()(network, likelihood, config.options, n_data)
    method.still = tuple(module for module in method.modules() if not module.training)
    return method
