"""The Gaussian over the weights: its precision in four forms, online updates, the marginal likelihood."""

from lapae.posterior.block import BlockPrecision
from lapae.posterior.evidence import log_marginal_likelihood, maximise
from lapae.posterior.gaussian import WeightPosterior
from lapae.posterior.kron import KronPrecision
from lapae.posterior.lowrank import LowRankPrecision
from lapae.posterior.precision import DiagonalPrecision, Precision
from lapae.posterior.shrinkage import Bound, bound, fit_shrinkage
from lapae.posterior.update import RULES, UpdateRule, update_rule

__all__ = [
    "RULES",
    "BlockPrecision",
    "Bound",
    "DiagonalPrecision",
    "KronPrecision",
    "LowRankPrecision",
    "Precision",
    "UpdateRule",
    "WeightPosterior",
    "bound",
    "fit_shrinkage",
    "log_marginal_likelihood",
    "maximise",
    "update_rule",
]
