"""The Gaussian over the weights: its precision in three forms, online updates, the marginal likelihood."""

from lapae.posterior.block import BlockPrecision
from lapae.posterior.evidence import log_marginal_likelihood, maximise
from lapae.posterior.gaussian import WeightPosterior
from lapae.posterior.kron import KronPrecision
from lapae.posterior.precision import DiagonalPrecision, Precision
from lapae.posterior.update import RULES, UpdateRule, update_rule

__all__ = [
    "RULES",
    "BlockPrecision",
    "DiagonalPrecision",
    "KronPrecision",
    "Precision",
    "UpdateRule",
    "WeightPosterior",
    "log_marginal_likelihood",
    "maximise",
    "update_rule",
]
