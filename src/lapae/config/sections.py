"""The sections of a configuration: one frozen dataclass for each table of the file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import tyro

from lapae.config.fields import Bound, CodeSize, Count, OneOf, Positive, Probability, Whole, Widths, check
from lapae.config.methods import MethodConfig
from lapae.config.names import ACTIVATIONS, FEATURES, LIKELIHOODS, NETWORKS


@dataclass(frozen=True)
class DataConfig:
    """Training data and how they are split."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = "digits"
    """A name that `lapae data` lists, such as digits; a .npy, .npz, .csv or .parquet file; or a folder of images."""
    data_dir: str | None = None
    """Folder with the named data sets; default: $LAPAE_DATA."""
    validation_fraction: float | None = None
    """Share of the training data held out as the validation set, or its number of samples if 1 or more; default:
    depends on the size of the data."""
    calibration_fraction: float | None = None
    """Share of the training data held out as the calibration set (p-values, prediction intervals), or its number of
    samples if 1 or more; default: depends on the size of the data."""
    test_fraction: float | None = None
    """Share of the data held out as the test set, if the source has no test split of its own."""
    split_seed: Whole = 0
    """Seed of the splits, separate from the seed of training, so that runs with different seeds have the same test
    set."""
    label_column: str | None = None
    """Column of a table that contains the labels: a name, or a number from 0."""
    group_column: str | None = None
    """Column of a table that says which rows belong together, such as those of one patient: a name, or a number from 0.
    It is not learned, and the rows of a group are in the same split, so that p-values hold for new groups."""
    columns: tuple[str, ...] | None = None
    """Columns of a table to learn: names, or numbers from 0; default: all that can be learned."""
    drop: tuple[str, ...] | None = None
    """Columns of a table to leave out."""
    window: int | None = None
    """Time steps per window. The rows of a table or of an array (time, channels) are then a time series, which is cut
    into windows and split in time."""
    stride: int | None = None
    """Time steps from one window to the next; default: an eighth of a window, or less if that gives fewer than 500."""
    image_size: int | None = None
    """Side of the square to which the images of a folder are scaled."""
    fit: Literal["border", "crop", "stretch"] | None = None
    """How images of different sizes are scaled to one size; default: crop, or stretch with --features. Borders would be
    learned as content."""
    features: Annotated[str, OneOf(FEATURES)] | None = None
    """Learn features of images, computed by a network trained on photographs, instead of pixels, to find defects on
    surfaces (needs the extra lapae[images])."""
    tile: int | None = None
    """Side of the square tiles into which large images of a folder are cut, to learn them at full resolution; whole
    images are scored."""
    allow_nan: bool = False
    """Accept missing values (NaN, empty cells) in new data even if the training data have none. In the training data
    they are always accepted if the likelihood can handle them."""
    skip_bad: bool = False
    """Skip images of a folder that cannot be read, instead of stopping at the first one."""
    limit: int | None = None
    """Use at most this number of samples."""


@dataclass(frozen=True)
class ModelConfig:
    """Autoencoder and likelihood."""

    network: Annotated[str, OneOf(NETWORKS)] | None = None
    """Encoder and decoder. The defaults of this and the following options depend on the data (`lapae.train.choose`)."""
    latent_dim: CodeSize | None = None
    """Size K of the latent code."""
    hidden: Widths | None = None
    """Widths of the hidden dense layers of the encoder (mlp, conv); default: the network's own."""
    channels: Widths | None = None
    """Channels of the convolutions of the encoder (conv); default: the network's own."""
    kernel_size: int | None = None
    """Side of the convolution kernels (conv); default: the network's own."""
    activation: Annotated[str, OneOf(ACTIVATIONS)] | None = None
    """Activation between layers (mlp, conv)."""
    linear: bool | None = None
    """Add a linear path to the network (mlp, conv), which starts from the principal components of the data."""
    hide: Annotated[float, Bound(lambda share: 0 <= share < 1, "a share from 0 to below 1")] | None = None
    """Largest share of the values of a row that training masks (mlp on tables). The network takes the mask as an input
    and learns to impute missing values. 0: no masking."""
    likelihood: Annotated[str, OneOf(LIKELIHOODS)] = "gaussian"
    """Likelihood of the data given the output of the network."""
    sigma: Positive | None = None
    """Standard deviation of the noise of the gaussian likelihood; default: learned from the validation set."""


RETIRED = {"train": ("devices", "num_nodes", "capture", "checkpoint_every")}
"""Options of earlier versions by table. Files that have them are read, and these keys are ignored."""
RETIRED_VALUES = {"method": {"samples_per_step": "ranks"}}
"""Values of earlier versions, which are read as the default of their option."""


@dataclass(frozen=True)
class TrainConfig:
    """Training loop."""

    epochs: Whole | None = None
    """Maximum number of passes over the training set; early stopping may end training sooner. The defaults of this and
    the following numbers depend on the data."""
    batch_size: Count | None = None
    """Samples per step, over all processes."""
    learning_rate: Positive | None = None
    """Initial learning rate of Adam."""
    schedule: Literal["plateau", "cosine"] | None = None
    """plateau: the learning rate is halved after 5 epochs without a better validation loss (as in the paper); cosine:
    it falls to 0 until the last epoch, or until the patience ends if that is sooner."""
    patience: Count | None = None
    """Number of epochs without a better validation loss after which training stops."""
    false_alarm_rate: Probability = 0.05
    """Share of new normal samples that the trained model flags: those whose p-value is at most this rate."""
    unseen: Literal["unusual", "missing"] = "unusual"
    """How to treat categories that are not in the training data: as unusual (rarer than any category that is) or as
    missing values."""
    seed: Whole = 0
    """Seed of the initial weights, the order of the batches and the noise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on; auto: cuda if there is one."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """bf16: forward and backward passes in bfloat16, weights and curvature in float32; tf32: everything in float32, but
    matrix products on a GPU round their factors to 10 bits (convolutions on a GPU always do)."""
    tensorboard: bool = False
    """Write TensorBoard events into the run (needs the extra lapae[tensorboard])."""
    verbose: bool = True
    """Show the progress of training."""

    def filled(self) -> Any:
        """Return the options with the paper's numbers instead of None."""
        numbers = {"epochs": 100, "batch_size": 64, "learning_rate": 1e-3, "schedule": "plateau", "patience": 8}
        return replace(self, **{name: value for name, value in numbers.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class Config:
    """Everything a run needs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def resolved(self) -> Config:
        """Return the configuration with defaults that depend on other options filled in; check every value.

        A value that its option does not admit raises ConfigError.
        """
        for section in (self.data, self.model, self.method.options, self.train):
            check(section)
        options = self.method.options.resolved(self.train)
        return replace(self, method=MethodConfig(self.method.method, options))
