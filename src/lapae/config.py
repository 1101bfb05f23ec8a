"""Configuration: frozen dataclasses whose field docstrings are the help of the command line.

A configuration file has one table a dataclass (`[data]`, `[model]`, `[method]`, `[train]`); what it leaves out keeps
its default. `lapae.runs.toml` reads and writes it. Nothing heavy is imported here: `lapae --help` reads this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import tyro

from lapae.errors import ConfigError


@dataclass(frozen=True)
class DataConfig:
    """What to learn from."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = "digits"
    """digits, mnist, fashion_mnist, celeba; a .npy, .npz or .csv file; or a folder of images."""
    data_dir: str | None = None
    """Folder of the named data sets; $LAPAE_DATA where not given."""
    validation_fraction: float | None = None
    """Part of the training data held out to steer training; a number of data where 1 or more. Chosen by the size of
    the data where not given."""
    calibration_fraction: float | None = None
    """Part of the training data held out to calibrate what is reported (p-values, intervals); a number of data where 1
    or more. Chosen by the size of the data where not given."""
    test_fraction: float | None = None
    """Part of the data held out for testing, where the source has no test split of its own."""
    split_seed: int = 0
    """Seed of the splits. Not that of training: runs of several seeds are tested on the same data."""
    label_column: str | None = None
    """Column of a .csv file that holds the labels."""
    image_size: int | None = None
    """Side to which the images of a folder are resized."""
    allow_nan: bool = False
    """Take missing values (NaN) as they are."""
    skip_bad: bool = False
    """Leave out images of a folder that cannot be read, instead of stopping at the first."""
    limit: int | None = None
    """Use so many data at most."""


@dataclass(frozen=True)
class ModelConfig:
    """The autoencoder and the likelihood of its output."""

    network: str = "mlp"
    """mlp, conv, paper-mnist, paper-fashion or paper-celeba."""
    latent_dim: int = 2
    """Size K of the code."""
    hidden: tuple[int, ...] | None = None
    """Widths of the hidden dense layers of the encoder (mlp, conv); the network's own where not given."""
    channels: tuple[int, ...] | None = None
    """Channels of the convolutions of the encoder (conv); the network's own where not given."""
    kernel_size: int | None = None
    """Side of the convolution kernels (conv); the network's own where not given."""
    activation: str | None = None
    """tanh, relu, gelu, silu, elu, leaky_relu, softplus or sigmoid (mlp, conv); tanh where not given."""
    likelihood: str = "gaussian"
    """gaussian, bernoulli or categorical."""
    sigma: float = 1.0
    """Standard deviation of the noise of the gaussian likelihood."""


@dataclass(frozen=True)
class MethodConfig:
    """How the autoencoder is trained, and what makes it stochastic."""

    method: str = "online"
    """online, posthoc, ae, ae-var, vae, dropout, ensemble or bbb."""
    hessian: str = "approx"
    """Curvature of the online and post-hoc posteriors: approx, exact, mixed, mc, sketch, bottleneck, block or kfac."""
    update: str = "laplacian"
    """Update of the online precision: laplacian, redux, van or nng (paper, appendix C)."""
    forgetting: float | None = None
    """The α of the online update; the learning rate, at most 1, where not given."""
    prior_precision: float = 1.0
    """Precision of the Gaussian prior over the weights."""
    initial_precision: str = "data"
    """H_0 of the online posterior: "data" for the number of training data, which keeps the first sampled networks sane
    (the authors' code), or "prior" for the prior precision (the paper's text)."""
    hessian_every: int = 1
    """Refresh the online curvature every so many steps."""
    samples_per_step: int | Literal["ranks"] = 1
    """Networks drawn in an online training step, the same ones on all processes; "ranks": one on each process, its
    own (a gradient of lower variance)."""
    temperature: float = 1.0
    """Divides the posterior precision: above 1 is a wider posterior."""
    uncertain: str = "all"
    """Weights that the online and post-hoc posteriors are over: all, encoder or decoder; the others are known."""
    optimize_prior: str = "scalar"
    """Post-hoc prior precision by marginal likelihood: scalar, layer (one a layer) or none."""
    pretrained: str | None = None
    """Run folder of a trained autoencoder to start the post-hoc fit from."""
    kl_weight: float = 0.001
    """Weight of the KL term of the vae."""
    learned_variance: bool = True
    """Whether the vae learns the variance of its output (False: constant)."""
    dropout: float = 0.2
    """Dropout probability of the dropout method."""
    members: int = 5
    """Members of the ensemble."""
    predictive: str = "mc"
    """Codes and reconstructions with uncertainty by mc (sampled networks), linearized or moments."""
    n_samples: int = 100
    """Networks drawn for a prediction by mc."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    epochs: int = 100
    """Passes over the training data at most; early stopping ends sooner."""
    batch_size: int = 64
    """Data in a step, those of all processes together."""
    learning_rate: float = 1e-3
    """Of Adam, at the start."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """plateau: the learning rate is halved after 5 epochs without a better validation loss (the paper's); cosine: it
    falls to 0 over all epochs."""
    patience: int = 8
    """Epochs without a better validation loss after which training stops."""
    seed: int = 0
    """Of the initial weights, the order of the batches and the noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is one."""
    devices: int = 1
    """Processes on each machine, one a GPU (or one a part of the CPU cores). torchrun's number counts where it
    started the job."""
    num_nodes: int = 1
    """Machines; the command is started on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """bf16: forward and backward passes in bfloat16, weights and curvature in float32; tf32: all in float32, but matrix
    products of a GPU round their factors to 10 bits (its convolutions do so in any case)."""
    capture: Literal["auto", "never"] = "auto"
    """auto: replay the training step as a CUDA graph where that works."""
    checkpoint_every: int | None = None
    """Epochs between checkpoints; where not given, as few as keep writing them under a twentieth of the time."""
    tensorboard: bool = False
    """Write TensorBoard events into the run (needs the extra lapae[tensorboard])."""
    verbose: bool = True
    """Show the progress of training."""


@dataclass(frozen=True)
class Config:
    """Everything a run needs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def resolved(self) -> Config:
        """With the defaults filled in that depend on other options; raises ConfigError where a number is impossible."""
        _check(self)
        if self.method.forgetting is None:
            return replace(self, method=replace(self.method, forgetting=min(self.train.learning_rate, 1.0)))
        return self


def _check(config: Config) -> None:
    """Numbers that no method can work with. What only one method minds, that method checks."""
    train, model, method = config.train, config.model, config.method
    for name, number in ((name, value) for section in vars(config).values() for name, value in vars(section).items()):
        if isinstance(number, int) and abs(number) >= 2**63:  # config.toml could not say it
            raise ConfigError(f"{name} = {number}: the number is too large")
    samples = method.samples_per_step
    if isinstance(samples, str) and samples != "ranks":
        raise ConfigError(f"samples_per_step = {samples!r}: expected a number, or ranks")
    at_least_one = [
        ("batch_size", train.batch_size),
        ("patience", train.patience),
        *([] if train.checkpoint_every is None else [("checkpoint_every", train.checkpoint_every)]),
        ("devices", train.devices),
        ("num_nodes", train.num_nodes),
        ("latent_dim", model.latent_dim),
        ("hessian_every", method.hessian_every),
        *([] if isinstance(samples, str) else [("samples_per_step", samples)]),
        ("members", method.members),
        ("n_samples", method.n_samples),
    ]
    for name, number in at_least_one:
        if number < 1:
            raise ConfigError(f"{name} = {number}: expected at least 1")
    for name, number in [("epochs", train.epochs), ("seed", train.seed), ("split_seed", config.data.split_seed)]:
        if number < 0:
            raise ConfigError(f"{name} = {number}: expected 0 or more")
    above_zero = [
        ("learning_rate", train.learning_rate),
        ("sigma", model.sigma),
        ("temperature", method.temperature),
        ("prior_precision", method.prior_precision),
    ]
    for name, number in above_zero:
        if not 0 < number < float("inf"):
            raise ConfigError(f"{name} = {number}: expected a finite number above 0")
    if not 0 <= method.dropout < 1:
        raise ConfigError(f"dropout = {method.dropout}: expected a probability below 1")
    for name, hint in get_type_hints(TrainConfig).items():  # flags and files are checked before, Python code is not
        if get_origin(hint) is Literal and getattr(train, name) not in get_args(hint):
            raise ConfigError(f"{name} = {getattr(train, name)!r}: expected one of {', '.join(get_args(hint))}")
    for name, widths in [("hidden", model.hidden), ("channels", model.channels)]:
        if widths and min(widths) < 1:
            raise ConfigError(f"{name} = {list(widths)}: expected widths of at least 1")
