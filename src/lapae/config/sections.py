"""The sections of a configuration: one frozen dataclass for each table of the file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import tyro

from lapae.config.fields import Bound, CodeSize, Count, OneOf, Positive, Probability, Whole, Widths, check
from lapae.config.methods import MethodConfig
from lapae.config.names import ACTIVATIONS, LIKELIHOODS, NETWORKS


@dataclass(frozen=True)
class DataConfig:
    """What to learn from."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = "digits"
    """A name that `lapae data` lists, such as digits; a .npy, .npz, .csv or .parquet file; or a folder of images."""
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
    split_seed: Whole = 0
    """Seed of the splits. Not that of training: runs of several seeds are tested on the same data."""
    label_column: str | None = None
    """Column of a table that holds the labels: a name, or a number from 0."""
    columns: tuple[str, ...] | None = None
    """Columns of a table to learn: names, or numbers from 0; all that can be learned where not given."""
    drop: tuple[str, ...] | None = None
    """Columns of a table not to learn."""
    window: int | None = None
    """Steps per window. The rows of a table or of an array (time, channels) are then a series, cut into windows and
    split in time."""
    stride: int | None = None
    """Steps from one window of a series to the next; half a window where not given."""
    image_size: int | None = None
    """Side of the square that the images of a folder are fitted into."""
    fit: Literal["border", "crop", "stretch"] | None = None
    """How images of a folder that are not all of one size are brought to one; border where not given."""
    tile: int | None = None
    """Side of the square tiles that large images of a folder are cut into, to learn them at full size; images are then
    scored as a whole."""
    allow_nan: bool = False
    """Missing values (NaN, empty cells) are taken as such by default, where the likelihood can. With this option the
    model takes them even if the training data have none."""
    skip_bad: bool = False
    """Leave out images of a folder that cannot be read, instead of stopping at the first."""
    limit: int | None = None
    """Use so many data at most."""


@dataclass(frozen=True)
class ModelConfig:
    """The autoencoder and the likelihood of its output."""

    network: Annotated[str, OneOf(NETWORKS)] | None = None
    """Encoder and decoder. What is not given here and below is chosen by the data (`lapae.train.choose`)."""
    latent_dim: CodeSize | None = None
    """Size K of the code."""
    hidden: Widths | None = None
    """Widths of the hidden dense layers of the encoder (mlp, conv); the network's own where not given."""
    channels: Widths | None = None
    """Channels of the convolutions of the encoder (conv); the network's own where not given."""
    kernel_size: int | None = None
    """Side of the convolution kernels (conv); the network's own where not given."""
    activation: Annotated[str, OneOf(ACTIVATIONS)] | None = None
    """Between layers (mlp, conv)."""
    linear: bool | None = None
    """A linear path beside the network (mlp, conv), which starts from the principal components of the data."""
    hide: Annotated[float, Bound(lambda share: 0 <= share < 1, "a share from 0 to below 1")] | None = None
    """Share of the values of a table that training hides from the network (mlp) at most, which also gets to know what
    is missing: then it fills in missing values well. 0 for none of this."""
    likelihood: Annotated[str, OneOf(LIKELIHOODS)] = "gaussian"
    """Of the data given the output of the network."""
    sigma: Positive | None = None
    """Standard deviation of the noise of the gaussian likelihood; learned from held-out data where not given."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    epochs: Whole | None = None
    """Passes over the training data at most; early stopping ends sooner. Chosen by the data where not given, as are
    the other numbers below."""
    batch_size: Count | None = None
    """Data in a step, those of all processes together."""
    learning_rate: Positive | None = None
    """Of Adam, at the start."""
    schedule: Literal["plateau", "cosine"] | None = None
    """plateau: the learning rate is halved after 5 epochs without a better validation loss (the paper's); cosine: it
    falls to 0 over all epochs."""
    patience: Count | None = None
    """Epochs without a better validation loss after which training stops."""
    false_alarm_rate: Probability = 0.05
    """Share of new normal data that the trained model flags: those with a p-value of at most this."""
    seed: Whole = 0
    """Of the initial weights, the order of the batches and the noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is one."""
    devices: Count = 1
    """Processes on each machine, one per GPU (or per part of the CPU cores). torchrun's number counts where it
    started the job."""
    num_nodes: Count = 1
    """Machines; the command is started on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """bf16: forward and backward passes in bfloat16, weights and curvature in float32; tf32: all in float32, but matrix
    products of a GPU round their factors to 10 bits (its convolutions do so in any case)."""
    capture: Literal["auto", "never"] = "auto"
    """auto: replay the training step as a CUDA graph where that works."""
    checkpoint_every: Count | None = None
    """Epochs between checkpoints; where not given, so many that checkpointing takes at most 5 % of the time."""
    tensorboard: bool = False
    """Write TensorBoard events into the run (needs the extra lapae[tensorboard])."""
    verbose: bool = True
    """Show the progress of training."""

    def filled(self) -> Any:
        """With the paper's numbers in place of what is open: a TrainConfig without a None among them."""
        return _filled(self, epochs=100, batch_size=64, learning_rate=1e-3, schedule="plateau", patience=8)


def _filled(section: Any, **values: Any) -> Any:
    """A section with `values` for the fields of theirs that are None."""
    return replace(section, **{name: value for name, value in values.items() if getattr(section, name) is None})


@dataclass(frozen=True)
class Config:
    """Everything a run needs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def as_in_the_paper(self) -> Config:
        """With the paper's choices in place of what is open, where `lapae.train.choose` would look at the data."""
        chosen = {"hessian": "approx", "prior_scale": "flat", "predictive": "mc", "n_samples": 100, "hessian_every": 1}
        chosen["temperature"] = 1.0
        open_ = {name: value for name, value in chosen.items() if getattr(self.method.options, name, value) is None}
        model = _filled(self.model, network="mlp", latent_dim=2, sigma=1.0)
        if model.network in ("mlp", "conv"):  # the others are made as they are
            widths = (512, 256) if model.network == "mlp" else (128,)
            model = _filled(model, hidden=widths, activation="tanh", linear=False)
        if model.network == "mlp":
            model = _filled(model, hide=0.0)
        method = MethodConfig(self.method.method, self.method.options, **open_)
        return replace(self, model=model, method=method, train=self.train.filled())

    def resolved(self) -> Config:
        """With the defaults filled in that depend on other options; raises ConfigError where a value is impossible."""
        for section in (self.data, self.model, self.method.options, self.train):
            check(section)
        options = self.method.options.resolved(self.train)
        return replace(self, method=MethodConfig(self.method.method, options))
