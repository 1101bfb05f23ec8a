"""Name, title and options of each method. The classes are in `lapae.methods`, one file each.

Titles and options are here instead of next to the classes, because `lapae train --help` shows them without importing
torch. A method of another package (entry point `lapae.methods`) may have all three in one file.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lapae.config.fields import Count, OneOf, Positive, Probability, Share
from lapae.config.names import HESSIANS
from lapae.errors import ConfigError
from lapae.registry import Entry, Registry, as_entry, nearest

if TYPE_CHECKING:
    from typing import Self

    from lapae.config.sections import TrainConfig

Predictive = Literal["mc", "linearized", "moments"]


@dataclass(frozen=True)
class MethodOptions:
    """Options of every method: how it predicts."""

    predictive: Predictive | None = None
    """How the uncertainty of codes and reconstructions is computed: moments (one pass), mc (sampled networks) or
    linearized. Default: linearized with a lowrank hessian, else moments if the method and the network allow it."""
    n_samples: Count | None = None
    """Number of networks that mc draws for a prediction; default: 20."""

    @property
    def starts_from(self) -> str | None:
        """Run folder of the trained method that this one starts from."""
        return None

    def resolved(self, train: TrainConfig) -> Self:
        """Return the options with defaults that depend on the options of training filled in."""
        return self


@dataclass(frozen=True)
class LaplaceOptions(MethodOptions):
    """Options of the online and the post-hoc posterior."""

    hessian: Annotated[str, OneOf(HESSIANS)] | None = None
    """Curvature of the posterior; default: sketch for images and networks of your own, else lowrank."""
    vectors: Count | None = None
    """Number of random vectors of a lowrank hessian; default: 500, or 32 for a large network, with the diagonal."""
    prior_precision: Positive = 1.0
    """Precision of the Gaussian prior over the weights."""
    prior_scale: Literal["flat", "fan-in"] | None = None
    """fan-in: prior precision and initial precision of a weight are multiplied by the number of inputs of its unit, so
    that the outputs of units have the same variance for layers of any width; flat: one precision for all weights (as in
    the paper)."""
    temperature: Positive | None = None
    """Divides the posterior precision: above 1, the posterior is wider. Default: 1 in training, then the one that
    predicts the validation set best."""
    uncertain: str = "all"
    """Weights that have a posterior; the others are treated as known: all, encoder, decoder, or patterns of parameter
    names separated by commas, such as decoder.*,encoder.4.weight."""


@dataclass(frozen=True)
class OnlineOptions(LaplaceOptions):
    """Train mean and precision of the weights together: the paper's method."""

    update: Literal["laplacian", "redux", "van", "nng"] = "laplacian"
    """Update of the precision (paper, appendix C)."""
    forgetting: Share | None = None
    """The α of the update; default: the learning rate, at most 1."""
    initial_precision: Literal["data", "prior"] = "data"
    """H_0: "data" for the size of the training set, which keeps the first sampled networks close to their mean (the
    authors' code), or "prior" for 0, so that the first precision is that of the prior (the paper's text)."""
    hessian_every: Count | None = None
    """Number of steps between updates of the curvature; default: 4 for tables, else 1."""
    samples_per_step: Count = 1
    """Networks drawn in a training step, the same on all processes."""

    def resolved(self, train: TrainConfig) -> Self:
        """Return the options with the learning rate as the default of the forgetting."""
        if self.forgetting is not None or train.learning_rate is None:
            return self
        return replace(self, forgetting=min(train.learning_rate, 1.0))


@dataclass(frozen=True)
class PostHocOptions(LaplaceOptions):
    """Train an autoencoder, then compute the curvature once, at its optimum."""

    optimize_prior: Literal["scalar", "layer", "none"] = "scalar"
    """Choose the prior precision by marginal likelihood: one number, one for each layer, or none (as given)."""
    pretrained: str | None = None
    """Run folder of a trained autoencoder, whose weights are used as they are."""

    @property
    def starts_from(self) -> str | None:
        """Run folder of the trained autoencoder."""
        return self.pretrained


@dataclass(frozen=True)
class VAEOptions(MethodOptions):
    """Train twin encoders for mean and variance of the code."""

    kl_weight: float = 0.001
    """Weight of the KL term."""
    learned_variance: bool = True
    """Learn the variance of the output too (False: constant)."""


@dataclass(frozen=True)
class DropoutOptions(MethodOptions):
    """Use dropout in training and in prediction."""

    dropout: Probability = 0.2
    """Dropout probability."""


@dataclass(frozen=True)
class EnsembleOptions(MethodOptions):
    """Train several autoencoders that differ in their initial weights."""

    members: Count = 5
    """Number of members."""


@dataclass(frozen=True)
class OnlineEnsembleOptions(OnlineOptions):
    """Train several online autoencoders that differ in their initial weights, each with its own posterior."""

    members: Count = 5
    """Number of members."""


@dataclass(frozen=True)
class BBBOptions(MethodOptions):
    """Fit a Gaussian over the weights by gradient descent."""

    prior_precision: Positive = 1.0
    """Precision of the Gaussian prior over the weights."""


def _method(title: str, place: str, options: type[MethodOptions] = MethodOptions) -> Entry:
    return Entry(title, f"lapae.methods.{place}", options)


def _as_method(found: Any) -> Entry:
    entry = as_entry(found)
    options = entry.load_options() or MethodOptions
    if not issubclass(options, MethodOptions):
        raise TypeError(f"the options of a method derive from lapae.config.MethodOptions, {options.__name__} does not")
    return replace(entry, options=options)


METHODS: Registry[Entry] = Registry(
    "method",
    {
        "online": _method("online Laplacian autoencoder", "online:Online", OnlineOptions),
        "posthoc": _method("post-hoc Laplacian autoencoder", "posthoc:PostHoc", PostHocOptions),
        "ae": _method("autoencoder", "ae:AE"),
        "ae-var": _method("autoencoder with a learned variance", "ae_var:AEVar"),
        "vae": _method("variational autoencoder", "vae:VAE", VAEOptions),
        "dropout": _method("autoencoder with dropout", "dropout:Dropout", DropoutOptions),
        "ensemble": _method("ensemble of autoencoders", "ensemble:Ensemble", EnsembleOptions),
        "online-ensemble": _method(
            "ensemble of online Laplacian autoencoders", "online_ensemble:OnlineEnsemble", OnlineEnsembleOptions
        ),
        "bbb": _method("autoencoder with Bayes by Backprop", "bbb:BBB", BBBOptions),
    },
    group="lapae.methods",
    adapt=_as_method,
)


def options_of(method: str) -> type[MethodOptions]:
    """Return the dataclass of a method's options."""
    return METHODS.find(method).options


@dataclass(frozen=True, init=False)
class MethodConfig:
    """Name and options of a method: `MethodConfig("online", hessian="mc").hessian`."""

    method: str
    options: Any
    """Options of the class that the registry has for the method; its fields are attributes of this object too."""

    def __init__(self, method: str = "online", options: MethodOptions | None = None, **given: Any) -> None:
        """Choose a method.

        Args:
            method: a name of `METHODS`.
            options: options to start from instead of the defaults. Values that were set for another method are kept if
                both methods have the option.
            given: options by name; an option that the method does not have raises ConfigError.
        """
        kind = options_of(method)
        known = option_names(kind)
        for name in given:
            if name not in known:
                raise ConfigError(unknown_option(method, name))
        before = {}
        for field in dataclasses.fields(options) if options is not None else ():
            value = getattr(options, field.name)
            if field.name in known and value != field.default:  # defaults are those of the method itself
                before[field.name] = value
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "options", kind(**before | given))

    @classmethod
    def taking(cls, method: str, **given: Any) -> MethodConfig:
        """Choose a method with those of the given options that it has."""
        known = option_names(options_of(method))
        return cls(method, **{name: value for name, value in given.items() if name in known})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "options":  # copies ask before there is anything
            raise AttributeError(name)
        try:
            return getattr(self.options, name)
        except AttributeError:
            raise AttributeError(unknown_option(self.method, name)) from None

    @property
    def title(self) -> str:
        """Name of the method for a reader."""
        return METHODS[self.method].title

    def to_dict(self) -> dict[str, Any]:
        """Return a flat table: the method's name and its options."""
        return {"method": self.method, **dataclasses.asdict(self.options)}


def option_names(options: type) -> list[str]:
    """Return the names of the fields of an options dataclass."""
    return [field.name for field in dataclasses.fields(options)]


def belongs_to(option: str) -> list[str]:
    """Return the names of the methods that have an option."""
    owners = []
    for method in METHODS:
        with suppress(ConfigError):  # a package that cannot be loaded says so elsewhere
            owners += [method] if option in option_names(options_of(method)) else []
    return owners


def unknown_option(method: str, option: str) -> str:
    """Say what is wrong with an option that a method does not have, and which methods have it."""
    owners = belongs_to(option)
    owners = [name for name in owners if name in METHODS.visible()] or owners
    hint = f"it belongs to {', '.join(owners)}" if owners else nearest(option, option_names(options_of(method)))
    return f"the method {method!r} has no option {option!r}: {hint}"
