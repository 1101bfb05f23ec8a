"""The methods: name, title and options of each. The classes are in `lapae.methods`, one file each.

Titles and options stand here, and not beside the classes, because `lapae train --help` shows them and does not wait
for torch. A method of another package (entry point `lapae.methods`) may have all three in one file.
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
    """What every method has: how it predicts."""

    predictive: Predictive | None = None
    """Codes and reconstructions with uncertainty by moments (one pass), mc (sampled networks) or linearized; moments
    where the method and the network allow it."""
    n_samples: Count | None = None
    """Networks drawn for a prediction by mc; 20 where not given."""

    @property
    def starts_from(self) -> str | None:
        """Run folder whose trained method this one starts from."""
        return None

    def resolved(self, train: TrainConfig) -> Self:
        """With the defaults filled in that depend on the options of training."""
        return self


@dataclass(frozen=True)
class LaplaceOptions(MethodOptions):
    """What the online and the post-hoc posterior have in common."""

    hessian: Annotated[str, OneOf(HESSIANS)] | None = None
    """Curvature of the posterior; sketch where not given."""
    vectors: Count | None = None
    """Random vectors of a lowrank hessian; by default 500, or fewer where the network is large."""
    prior_precision: Positive = 1.0
    """Precision of the Gaussian prior over the weights."""
    prior_scale: Literal["flat", "fan-in"] | None = None
    """fan-in: the precision of a weight, that of the prior and the one it starts with, is times the number of inputs of
    its unit, so that the outputs of units vary alike however wide the layer; flat: the same for all (the paper's)."""
    temperature: Positive | None = None
    """Divides the posterior precision: above 1 is a wider posterior. Where not given, training is at 1, and what
    predicts held-out data best is taken afterwards."""
    uncertain: str = "all"
    """Weights that the posterior is over, the others are taken as known: all, encoder, decoder, or patterns of
    parameter names with commas between them, such as decoder.*,encoder.4.weight."""


@dataclass(frozen=True)
class OnlineOptions(LaplaceOptions):
    """Trains mean and precision of the weights together: the paper's method."""

    update: Literal["laplacian", "redux", "van", "nng"] = "laplacian"
    """Update of the precision (paper, appendix C)."""
    forgetting: Share | None = None
    """The α of the update; the learning rate, at most 1, where not given."""
    initial_precision: Literal["data", "prior"] = "data"
    """H_0: "data" for the number of training data, which keeps the first sampled networks sane (the authors' code),
    or "prior" for the prior precision (the paper's text)."""
    hessian_every: Count | None = None
    """Refresh the curvature every so many steps; 4 for tables where not given, else 1."""
    samples_per_step: Count | Literal["ranks"] = 1
    """Networks drawn in a training step, the same ones on all processes; "ranks": each process draws its own (a
    gradient of lower variance)."""

    def resolved(self, train: TrainConfig) -> Self:
        """The forgetting is the learning rate where it was not given."""
        if self.forgetting is not None or train.learning_rate is None:
            return self
        return replace(self, forgetting=min(train.learning_rate, 1.0))


@dataclass(frozen=True)
class PostHocOptions(LaplaceOptions):
    """Trains an autoencoder, then measures the curvature at its optimum once."""

    optimize_prior: Literal["scalar", "layer", "none"] = "scalar"
    """Prior precision by marginal likelihood: one number, one for each layer, or as given."""
    pretrained: str | None = None
    """Run folder of a trained autoencoder to start from; its weights are not trained further."""

    @property
    def starts_from(self) -> str | None:
        """The trained autoencoder."""
        return self.pretrained


@dataclass(frozen=True)
class VAEOptions(MethodOptions):
    """Twin encoders for mean and variance of the code."""

    kl_weight: float = 0.001
    """Weight of the KL term."""
    learned_variance: bool = True
    """Whether the variance of the output is learned too (False: constant)."""


@dataclass(frozen=True)
class DropoutOptions(MethodOptions):
    """Dropout in training and in prediction."""

    dropout: Probability = 0.2
    """Dropout probability."""


@dataclass(frozen=True)
class EnsembleOptions(MethodOptions):
    """Several autoencoders that differ in their initial weights."""

    members: Count = 5
    """How many."""


@dataclass(frozen=True)
class OnlineEnsembleOptions(OnlineOptions):
    """Several online autoencoders that differ in their initial weights, each with a posterior of its own."""

    members: Count = 5
    """How many."""


@dataclass(frozen=True)
class BBBOptions(MethodOptions):
    """A Gaussian over the weights, fitted by gradient descent."""

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
    """The dataclass of a method's options."""
    return METHODS.find(method).options


@dataclass(frozen=True, init=False)
class MethodConfig:
    """A method by name, with its options: `MethodConfig("online", hessian="mc").hessian`."""

    method: str
    options: Any
    """Of the class that the registry has for the method; its fields are attributes of this object too."""

    def __init__(self, method: str = "online", options: MethodOptions | None = None, **given: Any) -> None:
        """Choose a method.

        Args:
            method: a name of `METHODS`.
            options: where to start from instead of the defaults; of another method's, what was set and both have stays.
            given: options by name. One that the method does not have is a ConfigError.
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
        """With those of the options given that the method has; the others are left out."""
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
        """The method's name for a reader."""
        return METHODS[self.method].title

    def to_dict(self) -> dict[str, Any]:
        """A flat table: the method's name and its options."""
        return {"method": self.method, **dataclasses.asdict(self.options)}


def option_names(options: type) -> list[str]:
    """The options of a dataclass of them."""
    return [field.name for field in dataclasses.fields(options)]


def belongs_to(option: str) -> list[str]:
    """The methods that have an option."""
    owners = []
    for method in METHODS:
        with suppress(ConfigError):  # a package that cannot be loaded says so elsewhere
            owners += [method] if option in option_names(options_of(method)) else []
    return owners


def unknown_option(method: str, option: str) -> str:
    """What to say of an option that a method does not have."""
    owners = belongs_to(option)
    hint = f"it belongs to {', '.join(owners)}" if owners else nearest(option, option_names(options_of(method)))
    return f"the method {method!r} has no option {option!r}: {hint}"
